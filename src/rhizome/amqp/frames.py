"""Frames: type, channel, size, payload, 0xCE.

A message's `content` is the raw bytes of its content-header frame and its body frames, exactly as
they came off the wire. The functions here cut it, and make it fit another channel and another
frame limit, without decoding anything. A `frame_max` of 0 means no limit.

Invariant: `content` was checked frame by frame when it was received. The walk below still checks
every size against the end, and raises FrameError rather than read past it.
"""

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from rhizome.amqp.methods import Method
from rhizome.amqp.primitives import put_shortstr, put_u16, put_u32, put_u64, u32_at
from rhizome.amqp.spec import (
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_HEADER_SIZE,
    FRAME_METHOD,
    FRAME_OVERHEAD,
)
from rhizome.errors import FrameError

__all__ = [
    "body_of",
    "content_frames",
    "frame",
    "frame_end",
    "header_payload_of",
    "method_frame",
    "put_content",
    "put_frame",
    "put_method",
    "put_shortstr",
    "put_u16",
    "put_u32",
    "put_u64",
    "reframe",
]


def put_frame(writer: BytesWriter, kind: i64, channel: i64, payload: bytes) -> None:
    """Append a frame."""
    writer.append(int(kind))
    put_u16(writer, channel)
    put_u32(writer, len(payload))
    writer.write(payload)
    writer.append(FRAME_END)


def frame(kind: i64, channel: i64, payload: bytes) -> bytes:
    """Return a frame."""
    writer = BytesWriter()
    put_frame(writer, kind, channel, payload)
    return writer.getvalue()


def put_method(writer: BytesWriter, channel: i64, method: Method) -> None:
    """Append a method frame."""
    put_frame(writer, FRAME_METHOD, channel, method.encode())


def method_frame(channel: i64, method: Method) -> bytes:
    """Return a method frame."""
    return frame(FRAME_METHOD, channel, method.encode())


def content_frames(channel: i64, header_payload: bytes, body: bytes, frame_max: i64) -> bytes:
    """Return the header frame, and the body in frames of at most `frame_max` bytes."""
    writer = BytesWriter()
    put_frame(writer, FRAME_HEADER, channel, header_payload)
    _put_body(writer, channel, body, frame_max)
    return writer.getvalue()


def _put_body(writer: BytesWriter, channel: i64, body: bytes, frame_max: i64) -> None:
    size: i64 = len(body)
    room = frame_max - FRAME_OVERHEAD if frame_max > FRAME_OVERHEAD else size
    offset: i64 = 0
    while offset < size:
        put_frame(writer, FRAME_BODY, channel, body[offset : offset + room])
        offset += room


def frame_end(content: bytes, offset: i64) -> i64:
    """Return the offset after the frame that begins at `offset`."""
    left: i64 = len(content) - offset
    if left >= FRAME_OVERHEAD:
        size = u32_at(content, offset + 3) + FRAME_OVERHEAD
        if size <= left:
            return offset + size
    raise FrameError(f"content is cut in the middle of the frame at byte {offset}")


def header_payload_of(content: bytes) -> bytes:
    """Return the payload of the content header: class, weight, body size, flags, properties."""
    return content[FRAME_HEADER_SIZE : frame_end(content, 0) - 1]


def body_of(content: bytes) -> bytes:
    """Return the whole body, joined from its frames."""
    offset = frame_end(content, 0)
    end: i64 = len(content)
    if offset == end:
        return b""
    after = frame_end(content, offset)
    if after == end:
        return content[offset + FRAME_HEADER_SIZE : after - 1]
    writer = BytesWriter()
    while offset < end:
        after = frame_end(content, offset)
        writer.write(content[offset + FRAME_HEADER_SIZE : after - 1])
        offset = after
    return writer.getvalue()


def put_content(writer: BytesWriter, content: bytes, channel: i64, frame_max: i64) -> None:
    """Append `content` for another channel, its body split anew if a frame is over the limit."""
    if not _fits(content, frame_max):
        put_frame(writer, FRAME_HEADER, channel, header_payload_of(content))
        _put_body(writer, channel, body_of(content), frame_max)
        return
    base: i64 = len(writer)
    writer.write(content)
    high = u8(channel >> 8)
    low = u8(channel & 0xFF)
    offset: i64 = 0
    end: i64 = len(content)
    while offset < end:
        after = frame_end(content, offset)
        writer[base + offset + 1] = high
        writer[base + offset + 2] = low
        offset = after


def _fits(content: bytes, frame_max: i64) -> bool:
    """Tell whether all body frames are within the limit. A header frame can't be split anyway."""
    if frame_max == 0:
        return True
    offset = frame_end(content, 0)
    end: i64 = len(content)
    while offset < end:
        after = frame_end(content, offset)
        if after - offset > frame_max:
            return False
        offset = after
    return True


def reframe(content: bytes, channel: i64, frame_max: i64) -> bytes:
    """Return `content` for another channel, in frames of at most `frame_max` bytes."""
    writer = BytesWriter()
    put_content(writer, content, channel, frame_max)
    return writer.getvalue()
