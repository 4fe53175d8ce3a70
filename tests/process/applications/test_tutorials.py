"""The programs of docs/tutorials, run as they stand there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from rhizome.testing.broker_process import BrokerProcess, wait_until

PAGES = sorted((Path(__file__).parents[3] / "docs" / "tutorials").glob("[1-9]-*.md"))
HEARD = {
    "1-hello": ["received Hello World!"] * 2,
    "2-work-queues": ["done one", "done two", "done three"] * 2,
    "3-publish-subscribe": ["heard something happened"] * 2,
    "4-routing": ["error the roof is on fire"] * 2,
    "5-topics": ["kern.disk.full a critical kernel error"] * 2,
    "6-rpc": ["12 squared is 144"] * 2,
}
"""What the programs of a page print of what they got: pika's first, then the client's."""

TOLD = ("sent", "waiting")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("tutorials")) as process:
        yield process


def write_programs(page: Path, directory: Path, address: str) -> None:
    for name, code in re.findall(r"```python\n# (\S+\.py)\n(.*?)```", page.read_text(), re.DOTALL):
        (directory / name).write_text(code.replace("127.0.0.1:5672", address))


def commands(page: Path) -> list[str]:
    return re.findall(r"^    (python .*)$", page.read_text(), re.MULTILINE)


def started(program: list[str], output: Path) -> subprocess.Popen[bytes]:
    with output.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, *program], cwd=output.parent, stdout=file, stderr=subprocess.STDOUT
        )


def printed(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_every_tutorial_is_known() -> None:
    assert [page.stem for page in PAGES] == sorted(HEARD)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_runs_as_written(broker: BrokerProcess, page: Path, tmp_path: Path) -> None:
    write_programs(page, tmp_path, f"{broker.host}:{broker.port}")
    outputs: list[Path] = []
    background: list[subprocess.Popen[bytes]] = []
    try:
        for number, command in enumerate(commands(page)):
            output = tmp_path / f"{number}.txt"
            outputs.append(output)
            words = shlex.split(command, comments=True)
            stays = words[-1] == "&"
            process = started(words[1:-1] if stays else words[1:], output)
            if stays:
                background.append(process)
                wait_until(partial(printed, output), f"{command} to wait")
            else:
                assert process.wait(120) == 0, output.read_text()
        for process in background:
            assert process.wait(120) == 0, [each.read_text() for each in outputs]
    finally:
        for process in background:
            process.kill()
            process.wait()
    lines = [line for output in outputs for line in printed(output) if not line.startswith(TOLD)]
    assert lines == HEARD[page.stem]
