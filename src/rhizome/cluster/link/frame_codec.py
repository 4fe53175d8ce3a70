"""Frame codec: frames between brokers, AMQP method frames of a private class.

    type u8 = 1 | channel u16 = 0 | size u32 | class u16 = 0xF100 | method u16 | payload | 0xCE

A frame may be somewhat larger than the largest message: it is never split. Contents above
``COPY_BYTES_MAX`` go from the socket they came from to the sockets they go to without a copy in
between, and a frame that comes in many reads is put together once.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import write_i16_be
from mypy_extensions import i64, mypyc_attr

from rhizome.amqp.primitives import put_u16, put_u32, u16_at, u32_at
from rhizome.amqp.spec import FRAME_END, FRAME_HEARTBEAT, FRAME_METHOD
from rhizome.broker.connection.outbox import COPY_BYTES_MAX, Outbox
from rhizome.errors import FrameError

CLASS_LINK: Final = 0xF100
HEAD_BYTES: Final = 7
"""The bytes of a frame's head: type, channel, size."""

FRAME_BYTES: Final = 12
"""By how much a frame is longer than its payload: head, class, method, end."""

HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"


def begin_frame(outbox: Outbox, method: i64, payload_bytes: i64) -> None:
    """Write a frame up to its payload; exactly ``payload_bytes`` and ``end_frame`` must follow."""
    writer = outbox.writer
    writer.append(FRAME_METHOD)
    write_i16_be(writer, 0)
    put_u32(writer, payload_bytes + 4)
    put_u16(writer, CLASS_LINK)
    put_u16(writer, method)


def end_frame(outbox: Outbox) -> None:
    outbox.writer.append(FRAME_END)


def put_frame(outbox: Outbox, method: i64, payload: bytes) -> None:
    """Write a frame with a payload of one part."""
    begin_frame(outbox, method, len(payload))
    put_part(outbox, payload)
    end_frame(outbox)


def put_frame_of(outbox: Outbox, method: i64, fields: bytes, content: bytes) -> None:
    """Write a frame with fields and, behind them, a content that may be large."""
    begin_frame(outbox, method, len(fields) + len(content))
    outbox.put(fields)
    put_part(outbox, content)
    end_frame(outbox)


def put_part(outbox: Outbox, part: bytes) -> None:
    """Write a part of a payload: copied if it is small, handed on if it is large."""
    if len(part) > COPY_BYTES_MAX:
        outbox.put_large(part)
    else:
        outbox.put(part)


@mypyc_attr(allow_interpreted_subclasses=True)
class FrameSink:
    """Takes the frames that a reader finds.

    ``data`` is shared with other frames: a sink that keeps something copies it.
    """

    def frame(self, method: i64, data: bytes, start: i64, end: i64) -> None:
        """A frame of the private class; its payload is data[start:end]."""
        raise NotImplementedError

    def other_frame(self, kind: i64, data: bytes, start: i64, end: i64) -> None:
        """Any other frame: a heartbeat, or a method of AMQP. Its payload is data[start:end]."""
        raise NotImplementedError


@final
class LinkReader:
    """Cuts a stream of bytes into frames.

    Invariant: ``pieces`` holds ``have`` bytes, the beginning of one frame; ``need`` is how many
    bytes of it must be there before it can be looked at again, 0 if no frame has begun. So each
    byte of a frame that comes in many reads is copied once, when the frame is whole. ``rest`` has
    the bytes behind the frame with which it was stopped.
    """

    sink: FrameSink
    frame_max: i64
    pieces: list[bytes]
    have: i64
    need: i64
    stopped: bool
    rest: bytes

    def __init__(self, sink: FrameSink, frame_max: i64) -> None:
        self.sink = sink
        self.frame_max = frame_max
        self.pieces = []
        self.have = 0
        self.need = 0
        self.stopped = False
        self.rest = b""

    def stop(self) -> None:
        """Hand out no further frame, not even of the bytes that are being read."""
        self.stopped = True
        self.pieces = []
        self.have = 0
        self.need = 0

    def receive(self, data: bytes) -> None:
        """Take bytes; raises FrameError for what can't be a frame, and nothing can follow that."""
        at: i64 = 0
        if self.need > 0:
            at = self._complete(data)
        if self.stopped:
            self.rest = data[at:]
        elif self.need == 0:
            self._run(data, at)

    def _complete(self, data: bytes) -> i64:
        """Add to the frame that has begun, and hand it out if that makes it whole.

        Returns the offset behind what was used.
        """
        used: i64 = 0
        size: i64 = len(data)
        while self.have < self.need:
            missing: i64 = self.need - self.have
            if size - used < missing:
                self.pieces.append(data[used:] if used > 0 else data)
                self.have += size - used
                return size
            self.pieces.append(data[used : used + missing])
            self.have += missing
            used += missing
            if self.need == HEAD_BYTES:
                head = b"".join(self.pieces)
                self.pieces = [head]
                self.need = self._frame_bytes(head, 0)
        frame = b"".join(self.pieces)
        self.pieces = []
        self.have = 0
        self.need = 0
        self._run(frame, 0)
        return used

    def _run(self, data: bytes, at: i64) -> None:
        """Hand out all whole frames from ``at`` on; keep the rest."""
        end: i64 = len(data)
        while end - at >= HEAD_BYTES:
            size = self._frame_bytes(data, at)
            if end - at < size:
                self._keep(data, at, size)
                return
            after: i64 = at + size
            if data[after - 1] != FRAME_END:
                raise FrameError(f"a link's frame of {size} bytes ends with {data[after - 1]}")
            if (
                size >= FRAME_BYTES
                and data[at] == FRAME_METHOD
                and u16_at(data, at + 7) == CLASS_LINK
            ):
                self.sink.frame(u16_at(data, at + 9), data, at + 11, after - 1)
            else:
                self.sink.other_frame(data[at], data, at + 7, after - 1)
            if self.stopped:
                self.rest = data[after:]
                return
            at = after
        if at < end:
            self._keep(data, at, HEAD_BYTES)

    def _keep(self, data: bytes, at: i64, need: i64) -> None:
        self.pieces = [data[at:] if at > 0 else data]
        self.have = len(data) - at
        self.need = need

    def _frame_bytes(self, data: bytes, at: i64) -> i64:
        """The size of the whole frame whose head is at ``at``."""
        kind = data[at]
        if kind != FRAME_METHOD and kind != FRAME_HEARTBEAT:
            raise FrameError(f"a link's frame is of type {kind}; 1 and 8 are known")
        size = u32_at(data, at + 3)
        if size > self.frame_max:
            raise FrameError(f"a link's frame has {size} bytes; the maximum is {self.frame_max}")
        return size + 8
