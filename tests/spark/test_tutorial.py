"""The tutorial runs as it is written."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rhizome.testing.processes import BrokerProcess

TUTORIAL = Path(__file__).parents[2] / "docs" / "pipeline" / "tutorial.md"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    before = Path.cwd()
    os.chdir(tmp_path)
    yield tmp_path
    os.chdir(before)


def code(broker: BrokerProcess) -> str:
    """The blocks in their order, for this broker and for a session that others go on using."""
    blocks = re.findall(r"```python\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)
    assert len(blocks) >= 8
    text = "\n".join(blocks)
    changes = {
        "127.0.0.1:5672": f"127.0.0.1:{broker.port}",
        'data = "data"': f"data = {str(broker.data)!r}",
        'spark = local_session("tutorial")': "assert spark",
        "spark.stop()": "",
    }
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


@pytest.mark.timeout(300)
def test_tutorial_runs_as_written(spark: Any, own_broker: BrokerProcess, elsewhere: Path) -> None:
    exec(compile(code(own_broker), str(TUTORIAL), "exec"), {"spark": spark})
    assert (elsewhere / "traffic.html").stat().st_size > 5000
