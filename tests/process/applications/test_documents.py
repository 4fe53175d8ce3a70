"""The programs of docs/tutorials and docs/howto, run as they stand there."""

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
from rhizome.testing.cluster_process import ClusterProcess

DOCS = Path(__file__).parents[3] / "docs"
PORTS = "(5672, 5673, 5674)"
"""A page with these in a program needs a cluster."""
HEARD = {
    "1-hello": ["received Hello World!"] * 2,
    "2-work-queues": ["done one", "done two", "done three"] * 2,
    "3-publish-subscribe": ["heard something happened"] * 2,
    "4-routing": ["error the roof is on fire"] * 2,
    "5-topics": ["kern.disk.full a critical kernel error"] * 2,
    "6-rpc": ["12 squared is 144"] * 2,
    "expiry": ["left: lasts a minute", "and then: None"],
    "dead-letters": ["an order without a customer died in orders because it was rejected"],
    "retries": ["given up after 3 tries: to a server that is down"],
    "priorities": ["put the fire out", "tidy up"],
    "keyed-queues": [
        "a worker: ann has opened",
        "another: bob has opened",
        "another: None",
        "another: ann has paid",
    ],
    "delays": ["stand up came after a second", "call again"],
    "copies": ["the last broker has paid"],
    "streams": ["from first opened paid sent", "from 1 paid sent"],
}
"""What the programs of a page print of what they got. In tutorials pika's come first."""

TOLD = ("sent", "waiting")


def with_programs() -> list[Path]:
    pages = sorted([*DOCS.glob("tutorials/*.md"), *DOCS.glob("howto/*.md")])
    return [page for page in pages if "```python" in page.read_text()]


PAGES = with_programs()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("tutorials")) as process:
        yield process


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    processes = ClusterProcess(tmp_path_factory.mktemp("tutorials"))
    try:
        processes.start()
        yield processes
    finally:
        processes.stop()


def ports_of(page: Path, request: pytest.FixtureRequest) -> list[int]:
    """Of the brokers that the page's programs need: one, or a cluster."""
    if PORTS in page.read_text():
        return [each.port for each in request.getfixturevalue("cluster").brokers.values()]
    return [request.getfixturevalue("broker").port]


def write_programs(page: Path, directory: Path, ports: list[int]) -> None:
    for name, code in re.findall(r"```python\n# (\S+\.py)\n(.*?)```", page.read_text(), re.DOTALL):
        code = code.replace("127.0.0.1:5672", f"127.0.0.1:{ports[0]}")
        (directory / name).write_text(code.replace(PORTS, str(tuple(ports))))


def commands(page: Path) -> list[str]:
    return re.findall(r"^    (python .*)$", page.read_text(), re.MULTILINE)


def started(program: list[str], output: Path) -> subprocess.Popen[bytes]:
    with output.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, *program], cwd=output.parent, stdout=file, stderr=subprocess.STDOUT
        )


def printed(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_every_page_is_known() -> None:
    assert sorted(page.stem for page in PAGES) == sorted(HEARD)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_runs_as_written(request: pytest.FixtureRequest, page: Path, tmp_path: Path) -> None:
    write_programs(page, tmp_path, ports_of(page, request))
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
