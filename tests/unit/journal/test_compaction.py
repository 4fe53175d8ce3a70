"""Choosing sparse segments and moving what lives in them."""

from __future__ import annotations

from rhizome.journal import compaction
from rhizome.journal.files import MemoryFiles
from rhizome.journal.journal import Journal, SegmentCount
from rhizome.journal.paged_index import PagedIndex
from rhizome.journal.records import StoredMessage, decode_message

UUID = bytes(range(16))


def journal_of(messages: int) -> tuple[MemoryFiles, Journal, PagedIndex]:
    files, journal, paged = MemoryFiles(), Journal(UUID, 4096), PagedIndex()
    for index in range(1, messages + 1):
        content = b"%d" % index * 100
        paged.append(index, journal.enqueue(3, 9, index, [5], b"tail", 7, 8, 2, 1, content))
    for chunk in journal.take():
        if chunk.offset == 0:
            files.create(int(chunk.segment), 0)
        files.write(int(chunk.segment), int(chunk.offset), chunk.pieces)
    return files, journal, paged


def fetched(files: MemoryFiles, relocation: compaction.Relocation) -> list[StoredMessage]:
    found = []
    for _, position in relocation.entries:
        message = decode_message(files.read(position >> 32, position & 0xFFFFFFFF, 9999), 0)
        assert message is not None
        found.append(message)
    return found


def test_the_oldest_sparse_segments_are_chosen() -> None:
    counts = [(1, 100, 100), (2, 25, 100), (3, 26, 100), (4, 0, 100), (5, 1, 100), (6, 1, 100)]
    segments = [SegmentCount(number, 4096, live, total) for number, live, total in counts]
    assert compaction.choose_victims(segments) == [2, 5], "not the active segment, not a dead one"
    assert compaction.choose_victims(segments, count_max=1) == [2]
    assert compaction.choose_victims(segments, live_percent_max=100, count_max=9) == [1, 2, 3, 5]


def test_what_lives_is_moved_and_the_victim_has_no_references_left() -> None:
    files, journal, paged = journal_of(60)
    victims = [position >> 32 for _, position in paged.positions()]
    count = victims.count(1)
    relocation = compaction.plan(5, paged, 1)
    assert relocation is not None
    assert [index for index, _ in relocation.entries] == list(range(1, count + 1))
    assert compaction.apply(relocation, fetched(files, relocation), paged, journal) == count
    assert 1 not in journal.live_references()
    assert [index for index, _ in paged.positions()] == list(range(1, 61))
    assert compaction.plan(5, paged, 1) is None
    for chunk in journal.take():
        if chunk.offset == 0:
            files.create(int(chunk.segment), 0)
        files.write(int(chunk.segment), int(chunk.offset), chunk.pieces)
    position = paged.find(2)
    message = decode_message(files.read(position >> 32, position & 0xFFFFFFFF, 9999), 0)
    assert message is not None
    assert (message.group, message.epoch, message.index, message.queue_ids) == (3, 9, 2, [5])
    assert (message.arrived_ms, message.expiration_ms, message.priority) == (7, 8, 2)
    assert (message.flags, message.tail, message.content) == (1, b"tail", b"2" * 100)


def test_what_left_the_index_since_the_plan_is_not_moved() -> None:
    files, journal, paged = journal_of(60)
    relocation = compaction.plan(5, paged, 1, 3)
    assert relocation is not None
    messages = fetched(files, relocation)
    before = journal.live_references()
    taken = paged.take(2)
    assert compaction.apply(relocation, messages, paged, journal) == 1
    assert paged.find(taken[0][0]) == 0
    assert paged.find(3) >> 32 > 1
    assert journal.live_references()[1] == before[1] - 1
