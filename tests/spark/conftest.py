"""One Spark session for all tests here: starting one takes ten seconds."""

from __future__ import annotations

import faulthandler
import os
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

# The first test of a run starts Spark, which takes ten seconds, or a minute on a busy machine. A
# timer that strikes amid a call into the JVM spoils the session for all tests after it.
SPARK_SECONDS_MAX = 900

# `make test` installs the extra `spark`, and must not pass without it.
if find_spec("pyspark") is None and "RHIZOME_EXPECT" not in os.environ:
    collect_ignore_glob = ["test_*.py", "*/test_*.py"]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(SPARK_SECONDS_MAX))
            # Spark and its libraries warn of each other; ours are tested with what they run on.
            item.add_marker(pytest.mark.filterwarnings("ignore:::pyspark"))
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))


@pytest.hookimpl(trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """The last resort of the project ends a run five minutes after a test has begun; these may take
    longer."""
    limit = item.get_closest_marker("timeout")
    if limit is not None and item.path.is_relative_to(Path(__file__).parent):
        faulthandler.dump_traceback_later(limit.args[0] + 60, exit=True, file=sys.__stderr__)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A local session with both formats registered."""
    if shutil.which("java") is None:
        pytest.skip("Java is not installed: apt-get install openjdk-17-jre-headless")
    from rhizome.spark import register
    from rhizome.spark.session import local_session

    session = local_session(
        "tests", where="local[2]", directory=tmp_path_factory.mktemp("spark"), quick=True
    )
    register(session)
    yield session
    session.stop()


@pytest.fixture(scope="session", autouse=True)
def python_for_workers() -> None:
    """Workers must run the same interpreter and find the same package."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
