"""Whole brokers broken on purpose: the checkers of messages must see it.

What is compiled can't be patched, so the world is: the disk under the brokers.
"""

from __future__ import annotations

import copy

import pytest

from rhizome.testing.sim.disk import SimDisk, SimFile
from rhizome.testing.sim.files import SimWriter
from rhizome.testing.sim.process import Process
from rhizome.testing.sim.run import RunOptions
from rhizome.testing.sim.scenarios import run_named

SEEDS = range(12)
LOST = ("NoConfirmedMessageLost", "NoAckedMessageRedelivered", "CopiesAgreeAtCommittedIndex")


def _seen(options: RunOptions, names: tuple[str, ...]) -> str:
    """The first of these checkers to see something, over some seeds."""
    for seed in SEEDS:
        outcome = run_named("messages", seed, options)
        if outcome.checker in names:
            return outcome.checker
    return ""


@pytest.mark.timeout(600)
def test_a_disk_that_says_too_early_that_it_has_synced_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All power goes at once: what was confirmed must be on disks."""

    def sync(self: SimWriter, size: int) -> None:
        self.backlog_bytes -= size
        token = self._token
        self._files.host.soon(lambda: self._on_durable(token, token))

    monkeypatch.setattr(SimWriter, "_sync", sync)
    options = RunOptions(brokers=(3, 3), minutes=1.0, faults=("blackout",), pace=2)
    assert _seen(options, ("NoConfirmedMessageLost", *LOST))


@pytest.mark.timeout(600)
def test_a_disk_that_forgets_what_it_has_synced_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every journal is back as it was at the start before: as if from a backup."""
    backups: dict[str, dict[str, SimFile]] = {}
    start = Process.start

    def start_from_backup(self: Process) -> None:
        name, disk = self.name, self.disk
        if name in backups:
            for path in [each for each in disk.files if each.startswith("journal/")]:
                del disk.files[path]
            disk.files.update(copy.deepcopy(backups[name]))
        backups[name] = {
            path: copy.deepcopy(file)
            for path, file in disk.files.items()
            if path.startswith("journal/")
        }
        start(self)

    monkeypatch.setattr(Process, "start", start_from_backup)
    monkeypatch.setattr(SimDisk, "flip_bit", lambda self, under="": "")
    options = RunOptions(brokers=(3, 3), minutes=1.0, faults=("blackout",), pace=2)
    assert _seen(options, LOST)
