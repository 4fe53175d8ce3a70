"""Whole brokers broken on purpose: the checkers of messages must see it.

What is compiled can't be patched, so the world is: the disk under the brokers.
"""

from __future__ import annotations

import copy
import re

import pytest
from crc32c import crc32c

from rhizome.journal.errors import CorruptStore
from rhizome.journal.records import KIND_ENQUEUE
from rhizome.testing.sim.scenarios.messages_scenario import MessagesScenario
from rhizome.testing.sim.seed_run import RunOptions, run_seed
from rhizome.testing.sim.world.sim_disk import SimDisk, SimFile
from rhizome.testing.sim.world.sim_host import Process
from rhizome.testing.sim.world.sim_journal_store import SimWriter

SEEDS = range(12)
FILE_HEADER_BYTES = 64
RECORD_HEADER_BYTES = 24
BODY = re.compile(rb"([pt]\d+/\d+ )\1")
"""The beginning of a message's body: its id, twice."""
LOST = ("NoConfirmedMessageLost", "NoAckedMessageRedelivered", "CopiesAgreeAtCommittedIndex")


def _seen(options: RunOptions, names: tuple[str, ...]) -> str:
    """The first of these checkers to see something, over some seeds."""
    for seed in SEEDS:
        outcome = run_seed(MessagesScenario(), seed, options, traced=False)
        if outcome.checker in names:
            return outcome.checker
    return ""


def _is_refused(options: RunOptions) -> bool:
    """Whether a broker, in one of some seeds, refuses to start with its journal."""
    for seed in SEEDS:
        outcome = run_seed(MessagesScenario(), seed, options, traced=False)
        if outcome.checker == "ProgramFailed" and CorruptStore.__name__ in outcome.text:
            return True
    return False


@pytest.mark.timeout(600)
def test_a_disk_that_says_too_early_that_it_has_synced_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All power goes at once: what was confirmed must be on disks. A journal that was never synced
    has segments without a header, and the broker that finds them must not start as if all was well.
    """

    def sync(self: SimWriter, size: int) -> None:
        self.backlog_bytes -= size
        token = self._token
        self._files.host.soon(lambda: self._on_durable(token, token))

    monkeypatch.setattr(SimWriter, "_sync", sync)
    options = RunOptions(brokers=(3, 3), minutes=1.0, faults=("blackout",), pace=2)
    assert _is_refused(options)


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


def _flip_unseen(disk: SimDisk, under: str = "") -> str:
    """Flip a bit in the body of each message on disk, and make the checksums of its record right:
    as if nobody looked at them."""
    for name in [each for each in disk.names() if each.startswith(under)]:
        for content in (disk.files[name].content, disk.files[name].durable):
            at = FILE_HEADER_BYTES
            while at + RECORD_HEADER_BYTES <= len(content):
                end = at + RECORD_HEADER_BYTES + int.from_bytes(content[at : at + 4], "big")
                body = BODY.search(content, at, min(end, len(content)))
                if body is not None and content[at + 8] == KIND_ENQUEUE and end <= len(content):
                    content[body.end() - 2] ^= 1
                    checksum = crc32c(bytes(content[at + 8 : end]))
                    content[at + 4 : at + 8] = checksum.to_bytes(4, "big")
                at = end
    return "everywhere"


@pytest.mark.timeout(600)
def test_a_flipped_bit_that_is_served_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a copy has of a message may come to an application when the home is gone."""
    monkeypatch.setattr(SimDisk, "flip_bit", _flip_unseen)
    options = RunOptions(brokers=(3, 3), minutes=0.9, faults=("flip-journal", "kill"), pace=5)
    assert _seen(options, ("NothingMadeUp",))
