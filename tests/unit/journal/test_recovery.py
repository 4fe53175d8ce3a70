"""What recovery makes of damaged files."""

from __future__ import annotations

import pytest

from rhizome.journal import checkpoint as checkpoints
from rhizome.journal import compaction
from rhizome.journal.checkpoint import CheckpointBuilder
from rhizome.journal.dedup_state import DedupIdentity, DedupState
from rhizome.journal.errors import CorruptStore, ForeignStore
from rhizome.journal.files import MemoryFiles
from rhizome.journal.journal import Journal
from rhizome.journal.paged_index import PagedIndex
from rhizome.journal.records import (
    FLAG_DURABLE,
    crc32c,
    decode_message,
    enqueue_record,
    install_record,
    number_record,
    tx_record,
)
from rhizome.journal.recovery import Corruption, Recovered, recover
from tests.unit.journal.crashing_files import copy_of

UUID = bytes(range(16))


def write(files: MemoryFiles, journal: Journal) -> None:
    for chunk in journal.take():
        if chunk.offset == 0:
            files.create(int(chunk.segment), 0)
        files.write(int(chunk.segment), int(chunk.offset), chunk.pieces)


def filled(messages: int, segment_bytes: int = 1 << 20, size: int = 40) -> MemoryFiles:
    """A journal of messages 1.. in queue 1, each its own batch, synced each time."""
    files = MemoryFiles()
    journal = Journal(UUID, segment_bytes)
    for index in range(1, messages + 1):
        journal.enqueue(0, 1, index, [1], b"", 0, -1, 0, 0, b"%03d" % index * (size // 3))
        write(files, journal)
    return files


def live(recovered: Recovered, queue_id: int = 1) -> list[int]:
    if queue_id not in recovered.queues:
        return []
    return [index for index, _ in recovered.queues[queue_id].in_order().positions()]


def corruptions(files: MemoryFiles) -> list[Corruption]:
    before = copy_of(files)
    with pytest.raises(CorruptStore) as caught:
        recover(files, UUID)
    assert files.contents == before.contents, "a refusal changes nothing"
    return [c for c in caught.value.corruptions if isinstance(c, Corruption)]


def test_an_empty_store_is_an_empty_store() -> None:
    recovered = recover(MemoryFiles(), UUID)
    assert recovered.next_segment == 1
    assert not recovered.queues


def test_a_torn_tail_is_cut_off_at_every_byte() -> None:
    files = filled(4)
    size = files.size(1)
    record = (size - 64) // 4
    for cut in range(size):
        torn = copy_of(files)
        torn.cut(1, cut)
        recovered = recover(torn, UUID)
        assert live(recovered) == list(range(1, 1 + max(0, cut - 64) // record))
        assert not recovered.corruptions
        # What was repaired is whole, and the next life begins in a new segment.
        again = recover(torn, UUID)
        assert live(again) == live(recover(copy_of(torn), UUID))
        assert again.torn_bytes == 0
        assert again.next_segment == (2 if cut >= 64 + record else 1)


def test_a_torn_tail_in_reserved_space_is_cut_off_too() -> None:
    files = filled(4)
    size = files.size(1)
    record = (size - 64) // 4
    for cut in range(64, size):
        torn = copy_of(files)
        torn.contents[1][cut:] = bytes(size - cut + 10_000)
        recovered = recover(torn, UUID)
        whole = (cut - 64) // record
        assert live(recovered) == list(range(1, 1 + whole))
        assert whole == 0 or torn.size(1) == 64 + whole * record + 24, (
            "reserved space is given back"
        )


def test_a_flipped_bit_before_valid_records_is_reported() -> None:
    files = filled(10)
    record = (files.size(1) - 64) // 10
    for offset in range(64, 64 + 9 * record, 7):
        damaged = copy_of(files)
        damaged.contents[1][offset] ^= 0x10
        (corruption,) = corruptions(damaged)
        number = (offset - 64) // record
        assert (corruption.segment, corruption.offset) == (1, 64 + number * record)
        accepted = recover(damaged, UUID, accept_corruption=True)
        assert live(accepted) == [n for n in range(1, 11) if n != number + 1]
        assert accepted.corruptions == [corruption]


def test_damage_in_an_earlier_segment_is_reported_even_at_its_end() -> None:
    files = filled(200, segment_bytes=4096)
    assert len(files.segments()) > 2
    damaged = copy_of(files)
    del damaged.contents[1][-30:]
    assert corruptions(damaged)[0].segment == 1
    lost = copy_of(files)
    lost.remove(2)
    assert corruptions(lost) == [Corruption(2, 0, "the segment is missing")]
    kept = live(recover(lost, UUID, accept_corruption=True))
    assert set(kept) < set(range(1, 201))
    assert {1, 200} <= set(kept)


def test_all_damage_is_reported_at_once() -> None:
    files = filled(200, segment_bytes=4096)
    files.contents[1][100] ^= 1
    files.contents[2][2000] ^= 1
    assert [corruption.segment for corruption in corruptions(files)] == [1, 2]


def batch_after_sync(synced: bool) -> MemoryFiles:
    """Messages 1..40 in one batch, 41..50 in the next, which may tell that the first was synced."""
    files = MemoryFiles()
    journal = Journal(UUID, 1 << 20)
    for index in range(1, 51):
        journal.enqueue(0, 1, index, [1], b"", 0, -1, 0, 0, b"%03d" % index * 100)
        if index == 40:
            write(files, journal)
            journal.synced(journal.end_position() if synced else 0)
    write(files, journal)
    return files


def test_a_hole_in_a_batch_that_was_not_synced_is_a_torn_tail() -> None:
    files = batch_after_sync(synced=False)
    files.contents[1][2048:4096] = bytes(2048)
    recovered = recover(files, UUID)
    kept = live(recovered)
    assert kept == list(range(1, len(kept) + 1))
    assert 3 < len(kept) < 8
    assert recovered.torn_bytes > 0


def test_a_hole_in_what_had_been_synced_is_damage() -> None:
    files = batch_after_sync(synced=True)
    files.contents[1][2048:4096] = bytes(2048)
    assert len(corruptions(files)) == 1


def test_a_segment_of_another_store_or_a_newer_version_is_refused() -> None:
    files = filled(3)
    with pytest.raises(ForeignStore, match="another store"):
        recover(files, bytes(16))
    files.contents[1][11] = 2
    files.contents[1][60:64] = crc32c(bytes(files.contents[1][:60])).to_bytes(4, "big")
    with pytest.raises(ForeignStore, match="version 2"):
        recover(files, UUID)


def test_a_flipped_bit_of_a_segments_version_is_damage_and_costs_no_message() -> None:
    files = filled(3)
    files.contents[1][11] ^= 2
    (corruption,) = corruptions(files)
    assert corruption.reason == "segment header fails its checksum"
    assert live(recover(files, UUID, accept_corruption=True)) == [1, 2, 3]


def test_a_flipped_bit_of_a_checkpoints_version_is_damage() -> None:
    files, _, _ = checkpointed(3)
    name = checkpoints.checkpoint_names(files)[0]
    whole = files.load(name)
    flipped = bytearray(whole)
    flipped[11] ^= 1
    files.store(name, [bytes(flipped)])
    assert [each.reason for each in corruptions(files)] == [f"{name} fails its checksum"]
    newer = bytes(flipped[:-4])
    files.store(name, [newer, crc32c(newer).to_bytes(4, "big")])
    with pytest.raises(ForeignStore, match="start the program that wrote it"):
        recover(files, UUID)


def checkpointed(messages: int) -> tuple[MemoryFiles, Journal, PagedIndex]:
    files = MemoryFiles()
    journal = Journal(UUID, 4096)
    paged = PagedIndex()
    for index in range(1, messages + 1):
        paged.append(index, journal.enqueue(0, 1, index, [1], b"", 0, -1, 0, 0, b"x" * 100))
    write(files, journal)
    checkpoint(files, journal, paged)
    return files, journal, paged


def checkpoint(
    files: MemoryFiles, journal: Journal, paged: PagedIndex, clean: bool = False
) -> None:
    builder = CheckpointBuilder(int(journal.end_position()), UUID)
    builder.state(b"snapshot")
    refused = {0xA: [2, 8], 0xB: []}
    builder.group(0, 3, 1000, [(1, 1), (3, 900)], {0xA: 9, 0xB: 5}, refused, installing=True)
    seen = DedupState()
    seen.take(1, True, DedupIdentity(b"producer", 77, b""), 5)
    builder.queue(1, 0, 100 * len(paged), {2: 5}, seen, {0: 12})
    builder.entries(0, paged)
    checkpoints.write(files, builder.pieces(clean))
    journal.checkpointed(builder.position, builder.references())


def test_a_checkpoint_brings_everything_back() -> None:
    files, journal, _ = checkpointed(100)
    journal.dequeue(0, 1, 1, list(range(1, 31)))
    journal.state(2, b"later")
    write(files, journal)
    recovered = recover(files, UUID)
    assert recovered.snapshot == b"snapshot"
    assert recovered.commands == [(2, b"later")]
    seen = recovered.queues[1].seen
    assert seen is not None
    assert (seen.has_sequence(b"producer", 77), seen.has_sequence(b"producer", 78)) == (True, False)
    assert recovered.queues[1].shown == {0: 12}
    assert (recovered.groups[0].epoch, recovered.groups[0].index) == (3, 1000)
    assert recovered.groups[0].starts == [(1, 1), (3, 900)]
    assert recovered.groups[0].origins == {0xA: 9, 0xB: 5}
    assert recovered.groups[0].refused == {0xA: [2, 8]}
    assert recovered.groups[0].installing
    assert recovered.records == 2, "what comes before the checkpoint isn't read"
    assert recovered.queues[1].content_bytes == 7000
    assert recovered.queues[1].delivery_counts == {}
    assert live(recovered) == list(range(31, 101))
    assert not recovered.clean


def test_a_clean_checkpoint_at_the_end_is_clean() -> None:
    files, journal, paged = checkpointed(10)
    checkpoint(files, journal, paged, clean=True)
    assert recover(files, UUID).clean


def test_a_damaged_checkpoint_gives_way_to_the_one_before() -> None:
    files, journal, paged = checkpointed(100)
    journal.dequeue(0, 1, 1, [1, 2, 3])
    write(files, journal)
    paged.remove_range(1, 3)
    checkpoint(files, journal, paged)
    first, second = files.names()
    files.named[second] = files.named[second][:-1] + b"?"
    assert live(recover(files, UUID)) == list(range(4, 101))
    files.named[first] = files.named[first][:50]
    assert "checksum" in str(corruptions(files)[0])


def test_a_missing_segment_with_live_messages_is_reported() -> None:
    files, _, paged = checkpointed(100)
    files.remove(2)
    (corruption,) = corruptions(files)
    assert corruption.segment == 2
    assert "live messages" in corruption.reason
    kept = live(recover(files, UUID, accept_corruption=True))
    assert kept == [n for n, position in paged.positions() if position >> 32 != 2]


def test_a_journal_that_ends_before_its_checkpoint_is_reported() -> None:
    files, _, _ = checkpointed(100)
    last = max(files.segments())
    files.cut(last, files.size(last) - 10)
    assert "checkpoint" in corruptions(files)[0].reason
    files.remove(last)
    assert "missing" in corruptions(files)[0].reason


def test_two_checkpoints_are_kept() -> None:
    files, journal, paged = checkpointed(1)
    for _ in range(5):
        checkpoint(files, journal, paged)
    assert files.names() == ["checkpoint-0000000005", "checkpoint-0000000006"]


def test_an_epoch_voids_what_an_older_one_left_beyond_its_start() -> None:
    files = MemoryFiles()
    journal = Journal(UUID, 4096)
    for index in range(1, 11):
        journal.enqueue(4, 1, index, [1], b"", 0, -1, 0, 0, b"old")
        journal.enqueue(5, 1, index, [2], b"", 0, -1, 0, 0, b"other group")
    journal.epoch(4, 2, 7)
    journal.enqueue(4, 2, 7, [1], b"", 0, -1, 0, 0, b"new")
    write(files, journal)
    recovered = recover(files, UUID)
    assert live(recovered) == [1, 2, 3, 4, 5, 6, 7]
    assert live(recovered, 2) == list(range(1, 11))
    assert (recovered.groups[4].epoch, recovered.groups[4].index) == (2, 7)
    assert recovered.groups[4].starts == [(2, 7)]


def test_priorities_have_an_index_each_and_merge_in_order() -> None:
    files = MemoryFiles()
    journal = Journal(UUID, 4096)
    for index in range(1, 31):
        journal.enqueue(0, 1, index, [1], b"", 0, -1, index % 3, 0, b"x")
    journal.dequeue(0, 1, 1, [4, 5, 6])
    write(files, journal)
    queue = recover(files, UUID).queues[1]
    assert list(queue.levels) == [0, 1, 2]
    assert {p: len(level) for p, level in queue.levels.items()} == {0: 9, 1: 9, 2: 9}
    assert queue.count == 27
    merged = [index for index, _ in queue.in_order().positions()]
    assert merged == [n for n in range(1, 31) if n not in (4, 5, 6)]


def with_transaction(after: int = 0) -> tuple[MemoryFiles, int, int]:
    """Message 1, a transaction of 2 and 3 that dequeues 1, then `after` more; and where it lies."""
    files = MemoryFiles()
    journal = Journal(UUID, 1 << 20)
    journal.enqueue(0, 1, 1, [1], b"", 0, -1, 0, 0, b"before")
    journal.begin_tx(0, 1)
    journal.enqueue(0, 1, 2, [1], b"", 0, -1, 0, 0, b"two" * 100)
    journal.dequeue(0, 1, 1, [1])
    journal.enqueue(0, 1, 3, [1], b"", 0, -1, 0, 0, b"three" * 100)
    start = int(journal.end_tx()) & 0xFFFFFFFF
    end = int(journal.end_position()) & 0xFFFFFFFF
    for index in range(4, 4 + after):
        journal.enqueue(0, 1, index, [1], b"", 0, -1, 0, 0, b"after")
    write(files, journal)
    return files, start, end


def test_a_torn_transaction_is_cut_off_as_a_whole_at_every_byte() -> None:
    files, start, end = with_transaction()
    for reserved in (0, 2000):
        for cut in range(start, end, 3):
            torn = copy_of(files)
            torn.contents[1][cut:] = bytes(reserved)
            assert live(recover(torn, UUID)) == [1]
    assert live(recover(files, UUID)) == [2, 3]


def test_a_damaged_transaction_is_reported_and_not_half_applied() -> None:
    files, start, end = with_transaction(after=3)
    for offset in range(start + 12, end, 11):
        damaged = copy_of(files)
        damaged.contents[1][offset] ^= 4
        assert [corruption.offset for corruption in corruptions(damaged)] == [start]
        assert live(recover(damaged, UUID, accept_corruption=True)) == [1, 4, 5, 6]


def test_a_transaction_with_a_damaged_length_is_not_taken_for_a_torn_one() -> None:
    for after in (0, 3):
        files, start, _ = with_transaction(after)
        files.contents[1][start] ^= 0x40
        assert [corruption.offset for corruption in corruptions(files)] == [start]


def test_the_last_number_of_each_origin_is_recovered() -> None:
    files, journal, _ = checkpointed(10)
    journal.append_raw(enqueue_record(0, 3, 1001, [1], b"", 0, -1, 0, 1, b"", 0xA, 10), 1)
    journal.append_raw(number_record(0, 3, 1002, 0xA, 11, 1), 0)
    journal.append_raw(number_record(0, 3, 1003, 0xB, 0, 1), 0)
    old = enqueue_record(0, 3, 1004, [1], b"", 0, -1, 0, 1, b"", 0xA, 4)
    new = enqueue_record(0, 3, 1005, [1], b"", 0, -1, 0, 1, b"", 0xC, 7)
    journal.append_raw(tx_record(0, 3, 1006, 1, [old, new]), 2)
    journal.append_raw(install_record(0, 3, 1006, False), 0)
    write(files, journal)
    group = recover(files, UUID).groups[0]
    assert group.origins == {0xA: 11, 0xC: 7}
    assert group.index == 1006
    assert not group.installing


def test_origins_are_kept_per_group() -> None:
    files = MemoryFiles()
    journal = Journal(UUID, 4096)
    for group in (1, 2, 1):
        journal.append_raw(number_record(group, 1, 1, 0xA, group * 10, 1), 0)
    write(files, journal)
    groups = recover(files, UUID).groups
    assert (groups[1].origins, groups[2].origins) == ({0xA: 10}, {0xA: 20})


def test_moving_a_message_leaves_its_origin_behind() -> None:
    files = MemoryFiles()
    journal = Journal(UUID, 4096)
    made = enqueue_record(1, 1, 5, [1], b"", 0, -1, 0, FLAG_DURABLE, b"body", 0xA, 3)
    position = journal.append_raw(made, 1)
    write(files, journal)
    paged = PagedIndex()
    paged.append(5, position)
    step = compaction.plan(1, paged, 1)
    assert step is not None
    message = decode_message(made, 0)
    assert message is not None
    assert compaction.apply(step, [message], paged, journal) == 1
    write(files, journal)
    recovered = recover(files, UUID)
    assert recovered.groups[1].origins == {0xA: 3}
    assert live(recovered) == [5]


def test_a_moved_message_stays_at_the_priority_that_its_queue_has_it_at() -> None:
    """A queue without priorities has it at 0, whatever its record says."""
    files = MemoryFiles()
    journal = Journal(UUID, 4096)
    paged = PagedIndex()
    paged.append(5, journal.enqueue(0, 1, 5, [1], b"", 0, -1, 9, 1, b"body"))
    write(files, journal)
    checkpoint(files, journal, paged)
    position = journal.moved(0, 1, 5, [1], b"", 0, -1, 9, 1, b"body")
    write(files, journal)
    queue = recover(files, UUID).queues[1]
    assert {each: level.positions() for each, level in queue.levels.items()} == {0: [(5, position)]}
