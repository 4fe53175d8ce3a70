"""Frames of links: written, cut anyhow, and read again."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import ConnectionClose
from rhizome.broker.connection.outbox import COPY_BYTES_MAX, Outbox
from rhizome.cluster.link.frame_codec import (
    HEARTBEAT_FRAME,
    FrameSink,
    LinkReader,
    begin_frame,
    end_frame,
    put_frame,
    put_frame_of,
    put_part,
)
from rhizome.errors import FrameError

FRAME_MAX = 1 << 20
GOLDEN = Path(__file__).parent / "golden" / "frames.hex"

payloads = st.binary(max_size=40) | st.integers(COPY_BYTES_MAX - 1, 3 * COPY_BYTES_MAX).map(
    lambda size: bytes(range(256)) * (size // 256 + 1)
)
frames = st.lists(st.tuples(st.integers(0, 0xFFFF), payloads), max_size=8)


class Frames(FrameSink):
    """Keeps what a reader hands out."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[tuple[int, bytes]] = []
        self.others: list[tuple[int, bytes]] = []
        self.reader: LinkReader | None = None

    def frame(self, method: int, data: bytes, start: int, end: int) -> None:
        self.taken.append((int(method), data[start:end]))
        if self.reader is not None:
            self.reader.stop()

    def other_frame(self, kind: int, data: bytes, start: int, end: int) -> None:
        self.others.append((int(kind), data[start:end]))


def written(*parts: tuple[int, bytes]) -> bytes:
    outbox = Outbox()
    for method, payload in parts:
        put_frame(outbox, method, payload)
    return b"".join(outbox.take())


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in pairwise(bounds)]


def feed_bytes(reader: LinkReader, data: bytes) -> None:
    for at in range(len(data)):
        reader.receive(data[at : at + 1])


@given(frames, st.lists(st.integers(0, 1 << 20), max_size=30))
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(
    sent: list[tuple[int, bytes]], places: list[int]
) -> None:
    sink = Frames()
    reader = LinkReader(sink, FRAME_MAX)
    for piece in cut(written(*sent), places):
        reader.receive(piece)
    assert sink.taken == sent
    assert reader.need == 0


def test_frames_come_out_byte_by_byte() -> None:
    sent = [(16, b""), (17, b"x"), (18, b"y" * 300)]
    sink = Frames()
    feed_bytes(LinkReader(sink, FRAME_MAX), written(*sent))
    assert sink.taken == sent


def test_other_frames_are_told_apart() -> None:
    close = ConnectionClose(320, "bye")
    sink = Frames()
    LinkReader(sink, FRAME_MAX).receive(
        HEARTBEAT_FRAME + written((16, b"x")) + method_frame(0, close) + b"\1\0\0\0\0\0\2ab\xce"
    )
    assert sink.taken == [(16, b"x")]
    assert sink.others == [(8, b""), (1, close.encode()), (1, b"ab")]


def test_fields_and_content_are_one_payload() -> None:
    outbox = Outbox()
    content = b"c" * (COPY_BYTES_MAX + 1)
    put_frame_of(outbox, 20, b"fields", content)
    begin_frame(outbox, 21, 3)
    put_part(outbox, b"a")
    put_part(outbox, b"bc")
    end_frame(outbox)
    chunks = outbox.take()
    assert any(chunk is content for chunk in chunks), "a large content was copied"
    sink = Frames()
    LinkReader(sink, FRAME_MAX).receive(b"".join(chunks))
    assert sink.taken == [(20, b"fields" + content), (21, b"abc")]


def test_a_stopped_reader_hands_out_nothing_more_of_what_it_was_given() -> None:
    sink = Frames()
    sink.reader = LinkReader(sink, FRAME_MAX)
    data = written((16, b"first"), (17, b"second"))
    sink.reader.receive(data[:3])
    sink.reader.receive(data[3:])
    sink.reader.receive(data)
    assert sink.taken == [(16, b"first")]


def test_a_large_frame_in_many_reads_is_put_together_once() -> None:
    sink = Frames()
    reader = LinkReader(sink, FRAME_MAX)
    data = written((16, b"z" * 500_000))
    for at in range(0, len(data), 1000):
        reader.receive(data[at : at + 1000])
        assert len(reader.pieces) <= at // 1000 + 2
    assert sink.taken == [(16, b"z" * 500_000)]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\2\0\0\0\0\0\1x\xce", "type 2"),
        (b"AMQP\0\0\x09\x01", "type 65"),
        (b"\1\0\0\0\x10\0\1", "maximum"),
        (b"\1\0\0\0\0\0\4\xf1\0\0\x10\0", "ends with 0"),
    ],
)
def test_what_can_be_no_frame_is_refused_whole_or_cut(data: bytes, text: str) -> None:
    with pytest.raises(FrameError, match=text):
        LinkReader(Frames(), FRAME_MAX).receive(data)
    with pytest.raises(FrameError, match=text):
        feed_bytes(LinkReader(Frames(), FRAME_MAX), data)


def test_frames_are_written_as_they_were_in_the_first_release() -> None:
    outbox = Outbox()
    put_frame(outbox, 16, b"payload")
    put_frame_of(outbox, 0x1234, b"fields", b"content")
    assert b"".join(outbox.take()) == bytes.fromhex(GOLDEN.read_text())
