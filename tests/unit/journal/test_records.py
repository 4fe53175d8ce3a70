"""The format of records, held by a golden segment, and reading them back."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from rhizome.journal.dedup_state import DedupIdentity, DedupState
from rhizome.journal.errors import CorruptRecord
from rhizome.journal.files import MemoryFiles
from rhizome.journal.journal import Journal, SegmentWrite
from rhizome.journal.record_walk import walk, walk_kind
from rhizome.journal.records import (
    CHECK_BAD,
    CHECK_INCOMPLETE,
    CHECK_UNWRITTEN,
    FLAG_DURABLE,
    KIND_ENQUEUE,
    KIND_STATE,
    SEGMENT_HEADER_BYTES,
    ascending_ranges,
    check_record,
    decode_message,
    decode_run,
    dequeue_record,
    enqueue_record,
    install_record,
    number_record,
    segment_header_fault,
    shown_record,
    tx_record,
    watermark_record,
)
from rhizome.journal.store_inspection import records

UUID = bytes(range(16))
GOLDEN = Path(__file__).parent / "golden" / "segment-v1.hex"


def written(chunks: list[SegmentWrite]) -> dict[int, bytes]:
    files = MemoryFiles()
    for chunk in chunks:
        if chunk.offset == 0:
            files.create(int(chunk.segment), 0)
        assert sum(map(len, chunk.pieces)) == chunk.size
        files.write(int(chunk.segment), int(chunk.offset), chunk.pieces)
    return {segment: bytes(content) for segment, content in files.contents.items()}


def every_kind() -> Journal:
    journal = Journal(UUID, 4096, 3)
    journal.epoch(2, 7, 1)
    tail = b"\x02ex\x03key"
    journal.enqueue(2, 7, 1, [5, 0xFFFFFFFE], tail, 1_700_000_000_000, -1, 9, 1, b"content")
    journal.enqueue(2, 7, 2, [5], tail, 1_700_000_000_001, 60_000, 0, 0xF9, b"")
    journal.dequeue(2, 7, 5, [12, 1, 2, 3, 10])
    journal.requeue(2, 7, 5, 2, 3)
    journal.purge(0xFFFF, 0xFFFFFFFF, 5, 1 << 62)
    journal.begin_tx(2, 7, 4)
    journal.enqueue(2, 7, 5, [6], tail, 1, 2, 3, 8, b"in a transaction")
    journal.dequeue(2, 7, 6, [5])
    journal.end_tx()
    journal.state(1, b"declare")
    seen = DedupState()
    for index, sequence in ((1, 1 << 40), (2, (1 << 40) + 1), (4, (1 << 40) + 3)):
        identity = DedupIdentity(b"producer", sequence, b"id %d" % index)
        identity.window = 2
        seen.take(index, index == 1, identity, 1_700_000_000_000)
    journal.append_raw(watermark_record(2, 7, 5, 5, seen.packed()), 0)
    journal.moved(2, 7, 2, [5], tail, 1_700_000_000_001, 60_000, 0, 0xF9, b"")
    journal.drop_queue(2, 7, 6)
    numbered = enqueue_record(2, 7, 6, [5], tail, 1, 2, 3, FLAG_DURABLE, b"numbered", 0xFEDC, 12)
    journal.append_raw(numbered, 1)
    journal.append_raw(number_record(2, 7, 7, 0xFEDC, 13, FLAG_DURABLE), 0)
    inner = [
        enqueue_record(2, 7, 8, [5, 6], tail, 1, 2, 3, 0, b"in a transaction", 0xFEDC, 14),
        dequeue_record(2, 7, 9, 6, [5], FLAG_DURABLE),
    ]
    journal.append_raw(tx_record(2, 7, 10, FLAG_DURABLE, inner), 2)
    journal.append_raw(install_record(2, 7, 10, True), 0)
    known = DedupIdentity(b"producer", 77, b"id").packed()
    both = enqueue_record(2, 7, 11, [5], tail, 1, 2, 3, FLAG_DURABLE, b"known", 0xFEDC, 15, known)
    journal.append_raw(both, 1)
    journal.append_raw(shown_record(2, 7, 12, 5, 9, 1 << 41, FLAG_DURABLE), 0)
    journal.synced(3 << 32 | 64)
    return journal


def test_segments_have_the_bytes_of_the_golden_file() -> None:
    content = written(every_kind().take())[3]
    lines = [content.hex()[at : at + 64] for at in range(0, len(content.hex()), 64)]
    assert lines == GOLDEN.read_text().split()


def test_golden_segment_reads_as_what_was_appended() -> None:
    files = MemoryFiles()
    files.contents[3] = bytearray(bytes.fromhex(GOLDEN.read_text()))
    rows = list(records(files))
    assert [row["kind"] for row in rows] == [
        *("epoch", "enqueue", "enqueue", "dequeue", "requeue", "purge"),
        *("tx", "enqueue", "dequeue", "state", "watermark", "moved", "drop-queue"),
        *("enqueue", "number", "tx", "enqueue", "dequeue", "install"),
        *("enqueue", "shown", "synced"),
    ]
    assert rows[13]["origin"] == rows[14]["origin"] == rows[16]["origin"] == "00000000fedc"
    assert (rows[13]["number"], rows[14]["number"], rows[16]["number"]) == (12, 13, 14)
    assert (rows[13]["content"], rows[13]["flags"]) == (b"numbered", 3)
    assert rows[16]["tx"] == rows[17]["tx"] == rows[15]["offset"]
    assert rows[18]["installing"] is True
    assert rows[1]["queues"] == [5, 0xFFFFFFFE]
    assert rows[1]["content"] == b"content"
    assert rows[3]["ranges"] == [(1, 3), (10, 1), (12, 1)]
    assert rows[5]["group"] == 0xFFFF
    assert rows[7]["tx"] == rows[6]["offset"]
    assert rows[9]["command"] == b"declare"
    assert rows[10]["producers"] == {b"producer": (1 << 40) + 3}
    assert rows[10]["message_ids"] == 2
    assert (rows[19]["number"], rows[19]["content"]) == (15, b"known")
    known = [rows[19][name] for name in ("producer", "sequence", "message_id")]
    assert known == [b"producer", 77, b"id"]
    assert (rows[20]["queues"], rows[20]["priority"], rows[20]["up_to"]) == ([5], 9, 1 << 41)
    assert segment_header_fault(bytes(files.contents[3][:64]), 3, UUID) == ""


def test_a_record_made_elsewhere_has_the_bytes_of_one_made_here() -> None:
    here, elsewhere = Journal(UUID), Journal(UUID)
    here.enqueue(2, 7, 1, [5, 6], b"tail", 1, -1, 9, FLAG_DURABLE, b"content" * 1000)
    made = enqueue_record(2, 7, 1, [5, 6], b"tail", 1, -1, 9, FLAG_DURABLE, b"content" * 1000)
    position = elsewhere.append_raw(made, 2)
    assert written(elsewhere.take()) == written(here.take())
    assert (elsewhere.records_appended, elsewhere.bytes_appended) == (1, here.bytes_appended)
    assert elsewhere.live_references() == here.live_references() == {1: 2}
    elsewhere.release(position, 2)
    assert elsewhere.live_references() == {}


def test_records_appended_in_one_piece_lie_in_one_segment() -> None:
    journal = Journal(UUID, 4096)
    journal.append_raw(enqueue_record(2, 7, 1, [5], b"", 0, -1, 0, 1, b"x" * 2000), 1)
    several = [enqueue_record(2, 7, i, [5], b"", 0, -1, 0, 1, b"x" * 500) for i in (2, 3, 4, 5)]
    position = journal.append_raw(b"".join(several), 4, 4)
    assert position == 2 << 32 | 64
    segments = written(journal.take())
    for at, index in enumerate((2, 3, 4, 5)):
        message = decode_message(segments[2], 64 + at * len(several[0]))
        assert message is not None
        assert message.index == index
    assert journal.records_appended == 5
    assert journal.live_references() == {1: 1, 2: 4}


def test_positions_are_known_when_a_record_is_appended() -> None:
    journal = Journal(UUID, 4096)
    positions = {}
    for index in range(100):
        content = b"x" * (index * 53 % 3000)
        positions[index] = journal.enqueue(0, 1, index, [1], b"", 0, -1, 0, 0, content)
    segments = written(journal.take())
    assert len(segments) > 20
    for index, position in positions.items():
        message = decode_message(segments[position >> 32], position & 0xFFFFFFFF)
        assert message is not None
        assert (message.index, len(message.content)) == (index, index * 53 % 3000)
    assert max(map(len, segments.values())) <= 4096


def test_a_record_larger_than_a_segment_has_one_of_its_own() -> None:
    journal = Journal(UUID, 4096)
    small = journal.enqueue(0, 1, 1, [1], b"", 0, -1, 0, 0, b"small")
    large = journal.enqueue(0, 1, 2, [1], b"", 0, -1, 0, 0, b"x" * 100_000)
    after = journal.enqueue(0, 1, 3, [1], b"", 0, -1, 0, 0, b"small")
    assert [position >> 32 for position in (small, large, after)] == [1, 2, 3]
    segments = written(journal.take())
    message = decode_message(segments[2], 64)
    assert message is not None
    assert message.content == b"x" * 100_000


def test_an_aborted_transaction_leaves_no_trace() -> None:
    plain = Journal(UUID, 4096)
    journal = Journal(UUID, 4096)
    for each in (plain, journal):
        each.enqueue(0, 1, 1, [1], b"", 0, -1, 0, 0, b"before")
    journal.begin_tx()
    journal.enqueue(0, 1, 2, [1, 2], b"", 0, -1, 0, 0, b"y" * 5000)
    journal.dequeue(0, 1, 1, [1])
    journal.abort_tx()
    assert journal.live_references() == plain.live_references() == {1: 1}
    assert journal.end_position() == plain.end_position()
    assert journal.bytes_appended == plain.bytes_appended
    assert written(journal.take()) == written(plain.take())


def test_a_transaction_that_is_announced_begins_in_a_segment_that_holds_it() -> None:
    journal = Journal(UUID, 4096)
    journal.enqueue(0, 1, 1, [1], b"", 0, -1, 0, 0, b"x" * 2000)
    journal.begin_tx(bytes_expected=3000)
    first = journal.enqueue(0, 1, 2, [1], b"", 0, -1, 0, 0, b"x" * 1400)
    second = journal.enqueue(0, 1, 3, [1], b"", 0, -1, 0, 0, b"x" * 1400)
    outer = journal.end_tx()
    assert {first >> 32, second >> 32, outer >> 32} == {2}
    segments = written(journal.take())
    assert check_record(segments[2], outer & 0xFFFFFFFF) == len(segments[2]) - 64
    for position, index in ((first, 2), (second, 3)):
        message = decode_message(segments[2], position & 0xFFFFFFFF)
        assert message is not None
        assert message.index == index


def test_references_are_counted_per_segment() -> None:
    journal = Journal(UUID, 4096)
    positions = [
        journal.enqueue(0, 1, index, [1, 2], b"", 0, -1, 0, 0, b"x" * 1000) for index in range(5)
    ]
    assert journal.live_references() == {1: 6, 2: 4}
    journal.release(positions[0], 2)
    journal.release(positions[4])
    assert journal.live_references() == {1: 4, 2: 3}
    for position in positions[1:3]:
        journal.release(position, 2)
    assert journal.live_references() == {2: 3}
    with pytest.raises(AssertionError, match="released twice"):
        journal.release(positions[0])


def test_a_scratch_segment_is_dead_when_nothing_in_it_lives() -> None:
    journal = Journal(UUID, 4096, scratch=True)
    positions = [
        journal.enqueue(0, 0, index, [1], b"", 0, -1, 0, 0, b"x" * 3000) for index in range(3)
    ]
    assert journal.dead_segments() == []
    journal.release(positions[1])
    journal.release(positions[2])
    assert journal.dead_segments() == [2]
    journal.removed(2)
    assert journal.dead_segments() == []


def test_a_batch_tells_how_far_the_one_before_was_synced() -> None:
    journal = Journal(UUID, 4096)
    journal.state(1, b"one")
    journal.take()
    end = journal.end_position()
    journal.synced(end)
    assert journal.take() == []
    journal.state(2, b"two")
    (chunk,) = journal.take()
    files = MemoryFiles()
    files.contents[1] = bytearray(64) + b"".join(chunk.pieces)
    rows = list(records(files))
    assert [(row["kind"], row["index"]) for row in rows] == [("state", 2), ("synced", end)]
    journal.state(3, b"three")
    assert len(list(journal.take()[0].pieces)) == 1


def test_every_flipped_bit_is_noticed() -> None:
    journal = Journal(UUID, 4096)
    journal.enqueue(1, 2, 3, [4], b"tail", 5, 6, 7, 8, b"content")
    content = written(journal.take())[1]
    assert check_record(content, 64) == len(content) - 64
    for bit in range(64 * 8, len(content) * 8):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        assert check_record(bytes(damaged), 64) <= 0


def test_space_that_was_never_written_is_told_from_damage() -> None:
    assert check_record(bytes(100), 0) == CHECK_UNWRITTEN
    assert check_record(bytes(23), 0) == CHECK_INCOMPLETE
    assert check_record(bytes(8) + b"\x01" + bytes(91), 0) == CHECK_BAD
    assert check_record(b"\0\0\0\x01" + bytes(96), 0) == CHECK_BAD


def test_a_run_is_decoded_as_far_as_the_buffer_goes() -> None:
    journal = Journal(UUID, 1 << 20)
    entries = [
        (index, journal.enqueue(0, 1, index, [1], b"", 0, -1, 0, 0, b"%d" % index * 50))
        for index in range(1, 21)
    ]
    content = written(journal.take())[1]
    start = entries[4][1] & 0xFFFFFFFF
    whole = decode_run(content[start:], start, entries[4:])
    assert [message.index for message in whole] == list(range(5, 21))
    cut = decode_run(content[start : (entries[9][1] & 0xFFFFFFFF) + 30], start, entries[4:])
    assert [message.index for message in cut] == [5, 6, 7, 8, 9]
    with pytest.raises(CorruptRecord, match="not 77"):
        decode_run(content[start:], start, [(77, entries[4][1])])
    with pytest.raises(CorruptRecord, match="no valid record"):
        decode_message(content, start + 1)


@pytest.mark.parametrize(
    ("indexes", "ranges"),
    [
        ([], []),
        ([5], [5, 1]),
        ([1, 2, 3, 7, 8, 20], [1, 3, 7, 2, 20, 1]),
        ([1, 1, 2, 2, 2, 3], [1, 3]),
        ([0, 1 << 40], [0, 1, 1 << 40, 1]),
    ],
)
def test_ascending_indexes_become_ranges(indexes: list[int], ranges: list[int]) -> None:
    assert ascending_ranges(indexes) == ranges


def offsets(packed: bytes) -> list[int]:
    return [offset for (offset,) in struct.iter_unpack(">q", packed)]


def test_records_of_one_kind_are_found_without_checking_the_others() -> None:
    content = written(every_kind().take())[3]
    valid = offsets(walk(content, SEGMENT_HEADER_BYTES)[0])
    states = [at for at in valid if content[at + 8] == KIND_STATE]
    assert len(states) == 1
    assert offsets(walk_kind(content, SEGMENT_HEADER_BYTES, KIND_STATE)) == states
    body = content.index(b"content")
    changed = content[:body] + b"C" + content[body + 1 :]
    assert walk(changed, SEGMENT_HEADER_BYTES)[1] < states[0]
    assert offsets(walk_kind(changed, SEGMENT_HEADER_BYTES, KIND_STATE)) == states
    assert offsets(walk_kind(changed, SEGMENT_HEADER_BYTES, KIND_ENQUEUE)) == []


def test_what_can_be_no_record_ends_the_search_for_a_kind() -> None:
    content = written(every_kind().take())[3]
    valid = offsets(walk(content, SEGMENT_HEADER_BYTES)[0])
    state = next(at for at in valid if content[at + 8] == KIND_STATE)
    before = valid[valid.index(state) - 1]
    for at, wrong in ((state + 24, b"?"), (before + 8, b"\0"), (before + 8, b"\xff")):
        damaged = content[:at] + wrong + content[at + 1 :]
        assert offsets(walk_kind(damaged, SEGMENT_HEADER_BYTES, KIND_STATE)) == []
    assert offsets(walk_kind(content[: state + 30], SEGMENT_HEADER_BYTES, KIND_STATE)) == []
