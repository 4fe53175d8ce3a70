"""The documents run as they are written: each page is a script of its shell commands and programs.

The brokers that the pages begin with (`rhizome up`) run on other ports, which are put into the
pages; /etc/rhizome and /var/lib/rhizome are directories of the test. A question is answered with y.
What isn't run is marked in the page, with the reason (tests/document_blocks.py).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from rhizome.testing.broker_process import CHEAP_PASSWORDS
from tests.conftest import PATIENCE
from tests.document_blocks import ROOT, SESSION, Block, blocks, calls, pages, whole, words
from tests.process.cluster.test_up import Up

PAGE_SECONDS_MAX: Final = 240.0
LOGIN: Final = "Basic " + b64encode(b"guest:guest").decode()
ADDRESS: Final = re.compile(r"\b(?:127\.0\.0\.1|localhost|b([123])):(1?567)([234])\b")
NAMED_PORTS: Final = "(5672, 5673, 5674)"
DIRECTORIES: Final = {"/etc/rhizome": "etc", "/var/lib/rhizome": "var"}
BEGIN: Final = """\
set -e
until_ctrl_c() {
    env --default-signal=INT timeout --signal=INT --preserve-status 2 "$@" || [ $? = 130 ]
}"""
NOW: Final = "--- "
"""Before each command its place and text are printed, so that a failure can be told."""
HEARD = {
    "docs/tutorials/1-hello": ["received Hello World!"] * 2,
    "docs/tutorials/2-work-queues": ["done one", "done two", "done three"] * 2,
    "docs/tutorials/3-publish-subscribe": ["heard something happened"] * 2,
    "docs/tutorials/4-routing": ["error the roof is on fire"] * 2,
    "docs/tutorials/5-topics": ["kern.disk.full a critical kernel error"] * 2,
    "docs/tutorials/6-rpc": ["12 squared is 144"] * 2,
    "README": ["b'hello'"],
    "docs/howto/expiry": ["left: lasts a minute", "and then: None"],
    "docs/howto/dead-letters": [
        "an order without a customer died in orders because it was rejected"
    ],
    "docs/howto/retries": ["given up after 3 tries: to a server that is down"],
    "docs/howto/priorities": ["put the fire out", "tidy up"],
    "docs/howto/keyed-queues": [
        "a worker: ann has opened",
        "another: bob has opened",
        "another: None",
        "another: ann has paid",
    ],
    "docs/howto/delays": ["stand up came after a second", "call again"],
    "docs/howto/copies": ["the last broker has paid"],
    "docs/howto/streams": ["from first opened paid sent", "from 1 paid sent"],
}
"""What the programs of a page print of what they got. In tutorials pika's come first."""
TOLD = ("sent", "waiting")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT).with_suffix(""))


def is_run(block: Block) -> bool:
    if block.language == "python":
        return block.is_run()
    return any(block.is_run(command) for command in block.commands())


PAGES = [page for page in pages() if any(is_run(block) for block in blocks(page))]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**PATIENCE, **CHEAP_PASSWORDS}.items():
            patch.setenv(name, value)
        up = Up(tmp_path_factory.mktemp("documents") / "cluster", 3, 0, fake=False)
        try:
            up.start_until_ready()
            yield up
        finally:
            up.end_all()


def ask(cluster: Up, method: str, path: str, document: object = None) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{cluster.http_port}/api/{path}",
        json.dumps(document).encode() if document is not None else None,
        {"Authorization": LOGIN, "Content-Type": "application/json"},
        method=method,
    )
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read() or b"null")


def clean(cluster: Up) -> None:
    """What the page before has left goes, so that pages don't depend on each other."""
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", cluster.http_port)):
            cluster.restart("b1")  # which two pages kill, and may have failed then
    for kind, kept in (("vhosts", ""), ("users", "guest")):
        for each in ask(cluster, "GET", kind):
            if each["name"] != kept:
                ask(cluster, "DELETE", f"{kind}/{each['name'].replace('/', '%2F')}")
    ask(cluster, "PUT", "vhosts/%2F", {})
    rights = {"configure": ".*", "write": ".*", "read": ".*"}
    ask(cluster, "PUT", "permissions/%2F/guest", rights)


class Script:
    """The commands and programs of a page, for bash."""

    def __init__(self, page: Path, directory: Path, cluster: Up) -> None:
        self.directory = directory
        self._cluster = cluster
        self._lines = [BEGIN]
        self._backgrounds = 0
        for name in (*DIRECTORIES.values(), "data"):
            (directory / name).mkdir()
        (directory / "data" / "cluster").symlink_to(cluster.directory)
        for block in blocks(page):
            self._add(block)

    def _add(self, block: Block) -> None:
        if block.file:
            (self.directory / block.file).write_text(self._here(block.text))
        elif block.language == "python" and block.is_run():
            name = f"line{block.line}.py"
            (self.directory / name).write_text(self._here(block.text))
            self._add_command(block, f"python {name}")
        run = [command for command in block.commands() if block.is_run(command)]
        for command in [*block.first, *run] if run else []:
            self._add_command(block, whole(command) if calls(command) else command)
            if block.is_stopped(command):
                self._lines[-1] = f"until_ctrl_c {self._lines[-1]}"
        if self._backgrounds:
            self._lines += ["wait", *(f"cat {n}.out" for n in range(self._backgrounds))]
            self._backgrounds = 0

    def _add_command(self, block: Block, command: str) -> None:
        self._lines.append(f"echo {shlex.quote(f'{NOW}{block.where}: {command}')}")
        command = self._here(command)
        stays = re.match(r"(.*) & *(#.*)?$", command)
        if stays:  # what follows is for somebody who is listening
            name = f"{self._backgrounds}.out"
            self._backgrounds += 1
            command = f"{stays[1]} >{name} & until [ -s {name} ]; do sleep 0.02; done"
        self._lines.append(command)

    def _here(self, text: str) -> str:
        """A text of a page, with the addresses and directories of this test."""
        first = {"567": self._cluster.port, "1567": self._cluster.http_port}

        def address(match: re.Match[str]) -> str:
            number = int(match[1]) - 1 if match[1] else int(match[3]) - 2
            return f"127.0.0.1:{first[match[2]] + number}"

        ports = tuple(self._cluster.port + number for number in range(3))
        text = ADDRESS.sub(address, text).replace(NAMED_PORTS, str(ports))
        for theirs, ours in DIRECTORIES.items():
            text = text.replace(theirs, str(self.directory / ours))
        return text

    def run(self) -> str:
        """What all of it printed; it must succeed."""
        (self.directory / "page.sh").write_text("\n".join(self._lines) + "\n")
        output = self.directory / "output.txt"
        with output.open("wb") as printed:
            # In a session of its own, so that nobody asks the terminal for a password.
            process = subprocess.Popen(
                ["bash", "-c", "yes | bash page.sh"],
                cwd=self.directory,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status: object = process.wait(PAGE_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                status = f"none after {PAGE_SECONDS_MAX:g} s"
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        text = output.read_text()
        assert status == 0, f"exit status {status}\n{text[-4000:]}"
        return text

    def _environment(self) -> dict[str, str]:
        programs = self.directory / ".venv" / "bin"
        programs.mkdir(parents=True)
        for name, module in (("rhizome", "-m rhizome"), ("python", "")):
            (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {module} "$@"\n')
            (programs / name).chmod(0o755)
        here = {
            "HOME": str(self.directory),
            "PATH": f"{programs}:{os.environ['PATH']}",
            "RHIZOME_HTTP": self._here("127.0.0.1:15672"),
            "RHIZOME_URI": self._here("amqp://guest:guest@127.0.0.1:5672/"),
        }
        return {**os.environ, **here}


def spoken(text: str) -> list[str]:
    """What the programs of a page have printed, but for what they say of themselves."""
    heard: list[str] = []
    is_program = False
    for line in text.splitlines():
        if line.startswith(NOW):
            is_program = re.search(r": python \S+\.py", line) is not None
        elif is_program and not line.startswith(TOLD):
            heard.append(line)
    return heard


def sessions(page: Path) -> Iterator[str]:
    """What the page says that commands print."""
    for block in blocks(page):
        if block.language == SESSION and is_run(block):
            yield re.sub(r"^\$ .*\n", "", block.text, flags=re.MULTILINE)


def test_every_page_that_is_listened_to_is_run() -> None:
    assert set(map(name_of, PAGES)) >= set(HEARD)


@pytest.mark.timeout(PAGE_SECONDS_MAX + 60)
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_runs_as_written(cluster: Up, page: Path, tmp_path: Path) -> None:
    if any("curl" in words(command) for block in blocks(page) for command in block.commands()):
        if not shutil.which("curl"):
            pytest.skip("curl is missing")
    clean(cluster)
    printed = Script(page, tmp_path, cluster).run()
    assert spoken(printed) == HEARD.get(name_of(page), [])
    for said in sessions(page):
        assert said in printed
