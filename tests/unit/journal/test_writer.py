"""The writer's thread: group commit, full disks, failing disks."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable

import pytest

from rhizome.journal.errors import JournalFailed
from rhizome.journal.journal import Journal, SegmentWrite
from rhizome.journal.recovery import recover
from rhizome.journal.writer import ALWAYS, NEVER, Flush, JournalWriter, every
from tests.unit.journal.crashing_files import CrashingFiles

UUID = bytes(range(16))


class Harness:
    def __init__(self, files: CrashingFiles | None = None, flush: Flush = ALWAYS) -> None:
        self.files = files or CrashingFiles()
        self.journal = Journal(UUID, 4096)
        self.changed = threading.Condition()
        self.token = 0
        self.synced = 0
        self.alarms: list[str] = []
        self.failures: list[BaseException] = []
        self.writer = JournalWriter(
            self.files, 4096, flush, self.durable, self.alarms_append, self.failed
        )

    def durable(self, token: int, synced: int) -> None:
        with self.changed:
            self.token, self.synced = token, synced
            self.changed.notify_all()

    def alarms_append(self, text: str) -> None:
        with self.changed:
            self.alarms.append(text)
            self.changed.notify_all()

    def failed(self, error: BaseException) -> None:
        with self.changed:
            self.failures.append(error)
            self.changed.notify_all()

    def submit(self, size: int = 100, count: int = 1) -> int:
        for _ in range(count):
            index = int(self.journal.records_appended) + 1
            self.journal.enqueue(0, 1, index, [1], b"", 0, -1, 0, 0, b"x" * size)
        return self.hand_over()

    def submit_ack(self) -> int:
        """A batch that nobody waits for."""
        self.journal.dequeue(0, 1, 1, [1])
        return self.hand_over()

    def hand_over(self) -> int:
        hurried = self.journal.is_hurried()
        chunks = self.journal.take()
        token = int(self.journal.end_position())
        self.writer.submit(chunks, token, hurried)
        return token

    def wait_for(self, what: str) -> None:
        conditions = {
            "token": lambda: self.token >= int(self.journal.end_position()),
            "sync": lambda: self.synced >= int(self.journal.end_position()),
            "alarm": lambda: len(self.alarms) > 0,
            "relief": lambda: len(self.alarms) > 1,
            "failure": lambda: len(self.failures) > 0,
        }
        with self.changed:
            assert self.changed.wait_for(conditions[what], 20), what


class SlowSync(CrashingFiles):
    """Syncs only when it is let through."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived = threading.Event()
        self.gate = threading.Event()

    def sync(self, segment: int) -> None:
        self.arrived.set()
        assert self.gate.wait(20)
        super().sync(segment)


def test_batches_that_come_during_a_sync_share_the_next_one() -> None:
    files = SlowSync()
    harness = Harness(files)
    harness.submit()
    assert files.arrived.wait(20)
    for _ in range(10):
        harness.submit(10)
    assert harness.token == 0
    assert harness.writer.backlog_bytes > 0
    files.gate.set()
    harness.wait_for("token")
    harness.writer.close()
    assert files.syncs == 2
    assert harness.writer.backlog_bytes == 0
    assert harness.writer.statistics.batches == 11
    assert sum(harness.writer.statistics.sync_buckets) == 2


def test_batches_that_nobody_waits_for_share_the_sync_of_one_that_somebody_waits_for() -> None:
    harness = Harness()
    harness.submit()
    harness.wait_for("sync")
    for _ in range(5):
        harness.submit_ack()
    assert harness.writer.backlog_bytes > 0
    harness.submit()
    harness.wait_for("sync")
    harness.writer.close()
    assert harness.files.syncs == 2
    assert harness.writer.statistics.batches == 7
    assert sum(harness.writer.statistics.commit_buckets) == 2


def test_what_nobody_waits_for_is_written_when_the_store_is_told_to_hurry() -> None:
    harness = Harness()
    harness.submit_ack()
    harness.writer.hurry()
    harness.wait_for("sync")
    assert harness.writer.backlog_bytes == 0
    harness.writer.close()
    assert harness.files.syncs == 1


@pytest.mark.parametrize("end", [JournalWriter.close, JournalWriter.settle])
def test_what_nobody_waits_for_is_written_at_the_latest_when_the_writer_must_be_done(
    end: Callable[[JournalWriter], None],
) -> None:
    harness = Harness()
    harness.submit_ack()
    end(harness.writer)
    assert harness.writer.backlog_bytes == 0
    assert harness.writer.statistics.batches == 1
    harness.writer.close()


def test_what_waits_for_the_disk_can_be_read() -> None:
    files = SlowSync()
    harness = Harness(files)
    harness.submit()
    assert files.arrived.wait(20)
    harness.submit(3000)
    start = int(harness.journal.end_position()) & 0xFFFFFFFF
    data = harness.writer.read(1, start - 3100, 3100)
    assert data.endswith(b"x" * 3000)
    assert harness.writer.read(1, start - 50, 20) == b"x" * 20
    assert harness.writer.read(1, 0, 8) == b"RHIZSEG\0"
    files.gate.set()
    harness.writer.close()


def test_a_closed_segment_is_synced_before_the_next_is_written() -> None:
    harness = Harness(flush=NEVER)
    harness.submit(1000, count=50)
    harness.wait_for("token")
    assert harness.synced == 0 or harness.synced < harness.token
    survivors = harness.files.killed(0)
    recovered = recover(survivors, UUID)
    assert not recovered.corruptions
    assert recovered.queues[1].count >= 48 - 3
    harness.writer.close()


def test_nothing_is_durable_before_its_sync() -> None:
    files = SlowSync()
    harness = Harness(files)
    harness.submit()
    assert files.arrived.wait(20)
    assert (harness.token, harness.synced) == (0, 0)
    files.gate.set()
    harness.wait_for("token")
    assert harness.synced == harness.token
    harness.writer.close()


@pytest.mark.parametrize("flush", [NEVER, every(3_600_000)])
def test_whoever_does_not_always_flush_counts_as_durable_what_is_written(flush: Flush) -> None:
    harness = Harness(flush=flush)
    harness.submit()
    harness.wait_for("token")
    assert (harness.synced, harness.files.syncs) == (0, 0)
    harness.writer.close()
    assert harness.files.syncs == 1


def test_who_flushes_at_an_interval_syncs_without_being_asked() -> None:
    harness = Harness(flush=every(1))
    harness.submit()
    harness.wait_for("sync")
    assert harness.files.syncs == 1
    harness.writer.close()


def test_a_full_disk_raises_an_alarm_and_goes_on_when_there_is_space() -> None:
    harness = Harness()
    harness.files.bytes_left = 700
    tokens = [harness.submit(200) for _ in range(6)]
    harness.wait_for("alarm")
    assert "full" in harness.alarms[0]
    assert harness.token < tokens[-1]
    assert not harness.failures
    harness.files.bytes_left = 1 << 30
    harness.wait_for("relief")
    harness.wait_for("token")
    assert harness.alarms[1] == ""
    harness.writer.close()
    assert recover(harness.files, UUID).queues[1].count == 6


def test_closing_on_a_full_disk_says_so() -> None:
    harness = Harness()
    harness.files.bytes_left = 100
    harness.submit(200)
    harness.wait_for("alarm")
    with pytest.raises(JournalFailed, match="No space"):
        harness.writer.close()


def test_after_a_failed_sync_nothing_is_called_durable() -> None:
    harness = Harness()
    harness.submit()
    harness.wait_for("token")
    before = harness.token
    harness.files.sync_error = errno.EIO
    harness.submit()
    harness.wait_for("failure")
    harness.files.sync_error = 0
    with pytest.raises(JournalFailed):
        harness.submit()
    assert harness.token == before
    with pytest.raises(JournalFailed):
        harness.writer.close()


def test_a_failed_sync_for_want_of_space_is_final_too() -> None:
    harness = Harness()
    harness.files.sync_error = errno.ENOSPC
    harness.submit()
    harness.wait_for("failure")
    assert harness.alarms == []


def test_a_backlog_beyond_its_maximum_is_congestion() -> None:
    files = SlowSync()
    harness = Harness(files)
    harness.writer.backlog_bytes_max = 500
    harness.submit(100)
    assert files.arrived.wait(20)
    assert not harness.writer.congested()
    harness.submit(1000)
    assert harness.writer.congested()
    files.gate.set()
    harness.wait_for("token")
    assert not harness.writer.congested()
    harness.writer.close()


def test_an_empty_batch_is_nothing() -> None:
    harness = Harness()
    chunks: list[SegmentWrite] = []
    harness.writer.submit(chunks, 5)
    harness.writer.close()
    assert harness.files.segments() == []


def test_a_write_that_fails_for_another_reason_is_final() -> None:
    harness = Harness()
    harness.files.write_error = errno.EIO
    harness.submit()
    harness.wait_for("failure")
    assert harness.alarms == []
    assert harness.token == 0
