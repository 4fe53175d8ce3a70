"""The simulator's disk keeps what was synced, and of the rest what chance leaves."""

from __future__ import annotations

import pytest

from rhizome.testing.sim.world.event_scheduler import MS, SECOND, World
from rhizome.testing.sim.world.sim_disk import SimDisk


def run_now(action) -> None:
    action()


def synced(disk: SimDisk, name: str) -> list[int]:
    """Ask for a sync; the list gets the time at which it ends."""
    ends: list[int] = []
    disk.sync([name], run_now, lambda: ends.append(disk.world.now_us))
    return ends


def test_what_was_synced_survives_a_power_cut() -> None:
    world = World(1)
    disk = SimDisk(world, "b1")
    disk.open("log").append(b"safe")
    ends = synced(disk, "log")
    world.run_until(SECOND)
    assert ends
    disk.open("log").append(b" and not")
    disk.power_cut()
    assert disk.open("log").content.startswith(b"safe")


def test_a_sync_covers_only_what_was_written_before_it() -> None:
    cut = set()
    for seed in range(40):
        world = World(seed)
        disk = SimDisk(world, "b1")
        disk.open("log").append(b"A" * 10)
        synced(disk, "log")
        disk.open("log").append(b"B" * 10)
        world.run_until(SECOND)
        disk.power_cut()
        assert disk.open("log").content[:10] == b"A" * 10
        cut.add(len(disk.open("log").content))
    assert cut == {10, 20}


def test_unsynced_writes_are_lost_torn_or_kept() -> None:
    whole = [b"a" * 700, b"b" * 700, b"c" * 700]
    found = set()
    for seed in range(300):
        disk = SimDisk(World(seed), "b1")
        for data in whole:
            disk.open("log").append(data)
        disk.power_cut()
        found.add(bytes(disk.open("log").content))
    assert b"" in found
    assert b"".join(whole) in found
    assert b"".join(whole[:1]) in found
    assert any(content[700:1400].strip(b"b") and content[1400:] for content in found), "reordered"
    assert any(len(content) % 700 > 0 for content in found), "torn"
    assert all(len(content) % 512 in (0, 188, 376, 52) for content in found), "between sectors"


def test_a_killed_program_leaves_what_it_wrote_and_hears_of_no_sync() -> None:
    world = World(1)
    disk = SimDisk(world, "b1")
    disk.open("log").append(b"written")
    ends = synced(disk, "log")
    disk.killed()
    world.run_until(SECOND)
    assert ends == []
    assert disk.open("log").content == b"written"
    assert disk.open("log").durable == b""


def test_a_stalled_disk_ends_syncs_in_order_after_the_stall() -> None:
    world = World(1)
    disk = SimDisk(world, "b1")
    disk.stall()
    disk.stall()
    order: list[int] = []
    for number in range(3):
        disk.open("log").append(b"x")
        disk.sync(["log"], run_now, lambda number=number: order.append(number))
    world.run_until(5 * SECOND)
    disk.unstall()
    world.run_until(10 * SECOND)
    assert order == [], "two stalls are over when both are"
    disk.unstall()
    world.run_until(10 * SECOND + 50 * MS)
    assert order == [0, 1, 2]


def test_a_full_disk_tells_when_it_has_room_again() -> None:
    world = World(1)
    disk = SimDisk(world, "b1")
    disk.fill()
    told: list[str] = []
    disk.when_not_full(lambda: told.append("room"))
    ends = synced(disk, "log")
    world.run_until(SECOND)
    assert disk.is_full()
    assert ends == told == []
    disk.unfill()
    world.run_until(2 * SECOND)
    assert not disk.is_full()
    assert ends
    assert told == ["room"]


def test_a_slow_disk_syncs_so_many_times_later() -> None:
    ends = []
    for factor in (1, 50):
        world = World(1)
        disk = SimDisk(world, "b1")
        disk.slow(factor)
        disk.sync(["log"], run_now, lambda world=world: ends.append(world.now_us))
        world.run_until(10 * SECOND)
    assert ends[1] == 50 * ends[0]


def test_a_replaced_file_has_its_old_or_its_new_content() -> None:
    found = set()
    for seed in range(20):
        world = World(seed)
        disk = SimDisk(world, "b1")
        disk.replace("mark", b"old", run_now, lambda: None)
        world.run_until(SECOND)
        disk.replace("mark", b"new", run_now, lambda: None)
        disk.power_cut()
        found.add(bytes(disk.open("mark").content))
    assert found == {b"old", b"new"}


def test_a_killed_program_loses_the_last_of_its_writes_that_are_not_synced() -> None:
    """One thread writes to all files, in the order in which it was asked to."""
    found = set()
    for seed in range(60):
        world = World(seed)
        disk = SimDisk(world, "b1")
        disk.open("log").append(b"safe")
        synced(disk, "log")
        world.run_until(SECOND)
        for name, data in (("log", b"A"), ("spill", b"B"), ("log", b"C"), ("spill", b"D")):
            disk.open(name).append(data)
        disk.killed()
        disk.lose_unwritten()
        assert disk.open("log").durable == b"safe"
        found.add((bytes(disk.open("log").content), bytes(disk.open("spill").content)))
    assert found == {
        (b"safe", b""),
        (b"safeA", b""),
        (b"safeA", b"B"),
        (b"safeAC", b"B"),
        (b"safeAC", b"BD"),
    }


def test_what_a_killed_program_has_written_is_read_next_and_still_not_safe() -> None:
    left = set()
    for seed in range(40):
        disk = SimDisk(World(seed), "b1")
        disk.open("log").append(b"written")
        disk.lose_unwritten()
        if disk.open("log").content:
            assert disk.open("log").content == b"written"
            disk.power_cut()
            left.add(bytes(disk.open("log").content))
    assert left == {b"written", b""}


def test_a_disk_that_loses_all_it_can_has_what_was_synced() -> None:
    world = World(1)
    disk = SimDisk(world, "b1")
    disk.open("journal/1").append(b"safe")
    assert disk.is_behind("journal/")
    synced(disk, "journal/1")
    world.run_until(SECOND)
    assert not disk.is_behind("journal/")
    disk.open("journal/1").append(b" and not")
    disk.open("spill/1").append(b"neither")
    assert not disk.is_behind("cluster/")
    disk.lose_unsynced()
    assert [bytes(disk.open(name).content) for name in ("journal/1", "spill/1")] == [b"safe", b""]


def test_a_flipped_bit_stays_flipped() -> None:
    world = World(1)
    disk = SimDisk(world, "b1")
    disk.open("log").append(bytes(100))
    synced(disk, "log")
    world.run_until(SECOND)
    assert disk.flip_bit()
    assert sum(bin(byte).count("1") for byte in disk.open("log").content) == 1
    disk.power_cut()
    assert sum(bin(byte).count("1") for byte in disk.open("log").content) == 1


@pytest.mark.parametrize("seed", range(20))
def test_content_is_the_durable_part_with_all_writes_done(seed: int) -> None:
    world = World(seed)
    disk = SimDisk(world, "b1")
    chance = world.chance("test")
    file = disk.open("log")
    model = bytearray()
    for _ in range(100):
        choice = chance.random()
        if choice < 0.6:
            offset = chance.randrange(len(model) + 5)
            data = bytes([chance.randrange(256)]) * chance.randrange(1, 20)
            file.write(offset, data)
            model.extend(bytes(max(0, offset - len(model))))
            model[offset : offset + len(data)] = data
        elif choice < 0.8:
            size = chance.randrange(len(model) + 1)
            file.cut(size)
            del model[size:]
        else:
            synced(disk, "log")
            world.run_until(world.now_us + chance.randrange(5 * MS))
        assert file.content == model
    synced(disk, "log")
    world.run_until(world.now_us + 10 * SECOND)
    assert file.durable == model
