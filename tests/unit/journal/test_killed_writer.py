"""Real processes with real files, killed at random instants."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

from rhizome.journal.files import DiskFiles
from rhizome.journal.recovery import recover
from rhizome.journal.store_identity import load_identity

KILLS = 5
WRITER = Path(__file__).parent / "killed_writer.py"


def run_and_kill(directory: Path, lines_before: int) -> tuple[int, int]:
    """The last durable (first live index, last index) that a process told before it was killed."""
    command = [sys.executable, str(WRITER), str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        last = b""
        for _ in range(lines_before):
            last = process.stdout.readline()
        process.kill()
        for line in process.stdout:
            last = line if line.endswith(b"\n") else last
    first, index = last.split()
    return int(first), int(index)


def test_what_was_durable_survives_kills_once_and_in_order(tmp_path: Path) -> None:
    chance = random.Random(42)
    known_first, known_last = 0, 0
    for _ in range(KILLS):
        first, last = run_and_kill(tmp_path, chance.randint(5, 200))
        known_first, known_last = max(first, known_first), max(last, known_last)
        identity = load_identity(DiskFiles(tmp_path))
        recovered = recover(DiskFiles(tmp_path / "journal"), identity.uuid, repair=False)
        found = [index for index, _ in recovered.queues[1].in_order().positions()]
        assert found == list(range(found[0], found[-1] + 1))
        assert found[-1] >= known_last, "what was durable is there"
        assert found[0] >= known_first, "what was durably dequeued isn't"
        assert found[0] <= found[-1] - 40, "nothing else is missing"
    assert known_last > 500
    assert len(DiskFiles(tmp_path / "journal").segments()) < 60, "checkpoints let segments go"
