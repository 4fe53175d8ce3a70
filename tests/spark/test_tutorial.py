"""The tutorial and the notebook run as they are written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rhizome.testing.broker_process import BrokerProcess
from tests.document_blocks import ROOT, blocks

DOCS = ROOT / "docs" / "pipeline"
TUTORIAL = DOCS / "tutorial.md"
NOTEBOOK = DOCS / "notebook.py"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    before = Path.cwd()
    os.chdir(tmp_path)
    yield tmp_path
    os.chdir(before)


def tutorial() -> str:
    """The blocks in their order."""
    programs = [block.text for block in blocks(TUTORIAL) if block.language == "python"]
    assert len(programs) >= 8
    return "\n".join(programs)


def run(text: str, path: Path, spark: Any, broker: BrokerProcess) -> None:
    """The text with this broker, and a session that others go on using."""
    changes = {
        "127.0.0.1:5672": f"127.0.0.1:{broker.port}",
        'data = "data"': f"data = {str(broker.data)!r}",
        f'spark = local_session("{path.stem}")': "assert spark",
        "spark.stop()": "",
    }
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    exec(compile(text, str(path), "exec"), {"spark": spark})


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_tutorial_runs_as_written(spark: Any, own_broker: BrokerProcess, elsewhere: Path) -> None:
    run(tutorial(), TUTORIAL, spark, own_broker)
    assert (elsewhere / "traffic.html").stat().st_size > 5000


def test_notebook_runs_as_written(spark: Any, own_broker: BrokerProcess) -> None:
    run(NOTEBOOK.read_text(), NOTEBOOK, spark, own_broker)
