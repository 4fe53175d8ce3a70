"""Alarms of the disk: whoever fills it waits, also for the disks of others that have copies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from rhizome.broker.single_node_cluster import SingleNodeCluster
from rhizome.journal.files import MemoryFiles
from rhizome.server.alarms_and_compaction import SEGMENTS_FREE_MIN, Maintenance
from rhizome.server.config.broker_config import Config
from tests.unit.management.conftest import Core

MIB = 1 << 20


class Disk:
    """What the tests let the store and the cluster say."""

    free_bytes = 1 << 40
    alarm_of_copies = ""
    told = 0


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()

    def tell_news(self: SingleNodeCluster) -> None:
        disk.told += 1

    monkeypatch.setattr(MemoryFiles, "free_bytes", lambda self: disk.free_bytes)
    monkeypatch.setattr(SingleNodeCluster, "alarm_of_copies", lambda self: disk.alarm_of_copies)
    monkeypatch.setattr(SingleNodeCluster, "tell_news", tell_news)
    return disk


@pytest.fixture
def core(disk: Disk) -> Iterator[Core]:
    with asyncio.Runner() as runner:
        made = Core(runner)
        made.store.journal.segment_bytes_max = MIB
        yield made


@pytest.fixture
def maintenance(core: Core) -> Maintenance:
    config = core.context.config
    assert isinstance(config, Config)
    made = Maintenance(config, core.broker, core.store, core.shell)
    made.disk_free_min_bytes = 8 * MIB
    made.check_alarms()
    return made


def fill(core: Core, segments: int = 9) -> None:
    journal = core.store.journal
    for _ in range(segments):
        index = int(journal.records_appended) + 1
        journal.enqueue(0, 1, index, [1], b"", 0, -1, 0, 0, b"x" * (MIB - 1000))
    core.store.submit()


def test_less_free_than_two_segments_is_low_whatever_the_setting(
    core: Core, maintenance: Maintenance
) -> None:
    config = core.context.config
    assert isinstance(config, Config)
    least = SEGMENTS_FREE_MIN * int(core.store.journal.segment_bytes_max)
    for said, counts in ((0, 0), (1, least), (least + 1, least + 1)):
        object.__setattr__(config.disk, "free_min_bytes", said)
        object.__setattr__(config.broker, "memory", False)
        maintenance.configure(config)
        assert maintenance.disk_free_min_bytes == counts


def test_a_disk_that_messages_fill_is_told_as_such(
    core: Core, disk: Disk, maintenance: Maintenance
) -> None:
    disk.free_bytes = 5 * MIB
    maintenance.check_alarms()
    assert core.shell.alarm.startswith("low on disk:")
    assert (core.broker.disk_full, core.broker.backlog_fills_disk) == (True, False)
    assert disk.told == 1
    fill(core)
    maintenance.check_alarms()
    assert (core.broker.disk_full, core.broker.backlog_fills_disk) == (True, True)
    assert disk.told == 2, "at once, as other publishers have to wait"
    disk.free_bytes = 1 << 40
    maintenance.check_alarms()
    assert core.shell.alarm == ""
    assert (core.broker.disk_full, core.broker.backlog_fills_disk) == (False, False)


def test_publishers_wait_for_the_disk_of_another_broker_at_the_next_tick(
    core: Core, disk: Disk, maintenance: Maintenance
) -> None:
    disk.alarm_of_copies = "low on disk at b2: publishers wait"
    maintenance.tick()
    assert core.shell.alarm == disk.alarm_of_copies
    assert not core.broker.disk_full, "there is room here"
    disk.alarm_of_copies = ""
    maintenance.tick()
    assert core.shell.alarm == ""


def test_a_new_segment_has_the_disk_looked_at(
    core: Core, disk: Disk, maintenance: Maintenance
) -> None:
    maintenance.tick()
    disk.free_bytes = 0
    maintenance.tick()
    assert core.shell.alarm == "", "nothing was taken meanwhile"
    fill(core, 2)
    maintenance.tick()
    assert core.shell.alarm.startswith("low on disk:")
