"""Brokers of the release before, from its source: no second build, they run interpreted."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from rhizome.testing.broker_process import CHEAP_PASSWORDS, BrokerProcess

ROOT = Path(__file__).resolve().parents[2]
RELEASES = ROOT / "packaging" / "releases.txt"
GIT_SECONDS_MAX = 60.0


def releases() -> dict[str, str]:
    """Each release and its commit, oldest first."""
    lines = [line.split() for line in RELEASES.read_text().splitlines()]
    return {line[0]: line[1] for line in lines if line and line[0] != "#"}


def last_release() -> str:
    return list(releases())[-1]


def git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, timeout=GIT_SECONDS_MAX, check=False)


def unpack_last_release(directory: Path) -> Path:
    """The ``src`` of the last release. Skips only where there can't be one: no clone, or one that
    was made without the history."""
    commit = releases()[last_release()]
    packed = git("archive", "--format=tar", commit, "src")
    if packed.returncode != 0:
        shallow = git("rev-parse", "--is-shallow-repository")
        if shallow.returncode != 0:
            pytest.skip("this is no clone: the source of the last release is not here")
        if shallow.stdout.strip() == b"true":
            pytest.skip(f"shallow clone: {commit} of release {last_release()} is not in it")
        raise AssertionError(f"release {last_release()}: {packed.stderr.decode()}")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(directory, filter="data")
    return directory / "src"


class ReleaseProcess(BrokerProcess):
    """A broker whose code is exchanged while it is stopped: that of ``source``, or the current."""

    source: Path | None = None

    def run_source(self, source: Path | None) -> None:
        assert not self.is_running()
        self.source = source
        self._environment.pop("PYTHONPATH", None)
        self._environment.pop("RHIZOME_PURE", None)
        if source is None:
            self._environment |= CHEAP_PASSWORDS
            return
        for unknown in CHEAP_PASSWORDS:
            self._environment.pop(unknown, None)
        self._environment |= {"PYTHONPATH": str(source), "RHIZOME_PURE": "1"}

    def restart_with(self, source: Path | None, seconds: float) -> None:
        """The same broker, store and ports with other code."""
        if self.is_running():
            self.stop_cleanly()
        self.run_source(source)
        self.launch()
        self.wait_until_ready(seconds)
