"""FrameReader: one pass over what came from a client.

This is the hot path: ``_run`` takes a publish (method, header, body) as one unit by offset and
hands everything else to the channel or to `control_frames.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from librt.strings import read_i32_be, read_i64_be
from mypy_extensions import i64

from rhizome.amqp.primitives import u16_at, u32_at
from rhizome.amqp.spec import (
    BASIC,
    CODE_BASIC_ACK,
    CODE_BASIC_PUBLISH,
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
)
from rhizome.broker.channel.channel import Channel
from rhizome.broker.channel.content_frames import begin_content
from rhizome.broker.connection.connection import Connection, InputReader
from rhizome.broker.connection.connection_states import CLOSED, HEADER, RUNNING
from rhizome.broker.connection.control_frames import (
    bad_frame,
    bad_frame_end,
    protocol_header,
    slow_frame,
)
from rhizome.broker.publishing.blocked_publishers import content_awaited, leave_unread
from rhizome.broker.publishing.publish_path import publish
from rhizome.broker.turn import TURN_WORK_MAX
from rhizome.errors import (
    AmqpError,
    ChannelError,
    ChannelFault,
    InternalFault,
)

if TYPE_CHECKING:
    from rhizome.broker.channel.channel import Channel

UNIT_FRAME_BYTES_MIN: Final = 2048
"""A body whose frames, except the last, are smaller than this is also collected frame by frame: an
incomplete unit is scanned again with each frame that arrives."""


@final
class FrameReader(InputReader):
    """Reads for all connections of a broker. It has no state: what is left of an input is in the
    ``tail`` of its connection."""

    def consume(self, connection: Connection, data: bytes) -> None:
        connection.at = 0
        if len(connection.tail) > 0:
            data = _complete_tail(connection, data)
        if len(data) > 0:
            _run_guarded(connection, data)


def _complete_tail(connection: Connection, data: bytes) -> bytes:
    """Move bytes to the tail until its first unit is whole, and run that.

    So a message across two reads costs a copy of itself, not of the reads. Returns what is to
    be run next, from ``connection.at`` on; nothing if everything has to wait.
    """
    used: i64 = 0
    tail = connection.tail
    while True:
        missing = _missing(connection, tail)
        if missing == 0:
            break
        piece = data[used : used + missing]
        tail += piece
        used += len(piece)
        if len(piece) < missing:
            connection.tail = tail
            return b""
    connection.tail = b""
    _run_guarded(connection, tail)
    if connection.stage == CLOSED:
        return b""
    if connection.waiting:
        if used < len(data):
            connection.held.append(data[used:])
            connection.held_bytes += len(data) - used
        return b""
    if len(connection.tail) > 0:
        # Only the beginning was a unit of its own (a publish without its content, say).
        data = connection.tail + data[used:]
        connection.tail = b""
        used = 0
    connection.at = used
    return data if used < len(data) else b""


def _missing(connection: Connection, tail: bytes) -> i64:
    """The least number of bytes that the unit at the start of ``tail`` lacks; 0 if it can be
    run."""
    size: i64 = len(tail)
    if connection.stage == HEADER:
        return 8 - size if size < 8 else 0
    if size < 7:
        return 7 - size
    frame = u32_at(tail, 3)
    if frame > connection.frame_max or tail[0] > FRAME_HEARTBEAT:
        return 0
    end: i64 = frame + 8
    if size < end:
        return end - size
    number = u16_at(tail, 1)
    if tail[0] != FRAME_METHOD or frame < 4 or read_i32_be(tail, 7) != CODE_BASIC_PUBLISH:
        return 0
    channel = connection.channels.get(number)
    if channel is None or channel.content_key is not None:
        return 0
    return _missing_content(connection, tail, end, number, size)


def _missing_content(connection: Connection, tail: bytes, at: i64, number: i64, size: i64) -> i64:
    left: i64 = -1
    while left != 0:
        if size < at + 7:
            return at + 7 - size
        kind = FRAME_HEADER if left < 0 else FRAME_BODY
        frame = u32_at(tail, at + 3)
        if tail[at] != kind or u16_at(tail, at + 1) != number or frame > connection.frame_max:
            return 0
        if frame < left and frame < UNIT_FRAME_BYTES_MIN:
            return 0
        if size < at + frame + 8:
            return at + frame + 8 - size
        if left < 0:
            left = read_i64_be(tail, at + 11) if frame >= 14 else 0
            if left < 0 or left > connection.unit_body_max:
                return 0
        else:
            left = left - frame if frame < left else 0
        at += frame + 8
    return 0


def _run_guarded(connection: Connection, data: bytes) -> None:
    """Run frames; turn errors into closes."""
    while True:
        try:
            _run(connection, data)
            return
        # One name per clause: a variable of compiled code has one type.
        except ChannelError as soft:
            connection.fail_channel(soft)
        except AmqpError as hard:
            connection.fail(hard)
            if connection.stage == CLOSED:
                return
        except Exception as bug:
            connection.broker.report_bug(bug, connection.name)
            connection.fail(InternalFault("the broker made a mistake; its log has the details"))
            return


def _run(connection: Connection, data: bytes) -> None:
    """Run all whole units from ``connection.at`` on; keep the rest in ``tail``.

    ``connection.at`` is behind the current frame before anything may raise: the next is taken then.
    """
    end: i64 = len(data)
    at: i64 = connection.at
    if connection.stage == HEADER:
        at = protocol_header(connection, data, at, end)
        if at == 0:
            return
    turn = connection.broker.turn
    began: i64 = at
    while end - at >= 7:
        if connection.waiting or turn.work >= TURN_WORK_MAX:
            connection.hold(data, at, at > began)
            return
        head: i64 = read_i64_be(data, at) if end - at > 7 else _short_head(data, at)
        size: i64 = head >> 8 & 0xFFFFFFFF
        after: i64 = at + size + 8
        kind: i64 = head >> 56 & 0xFF
        if size > connection.frame_max or kind > FRAME_HEARTBEAT:
            bad_frame(connection, data, at, size, end)
        if after > end:
            break
        if data[after - 1] != FRAME_END:
            bad_frame_end(connection, data, at, size)
        connection.current = number = head >> 40 & 0xFFFF
        connection.at = after
        if kind == FRAME_METHOD and size >= 4 and connection.stage == RUNNING:
            code: i64 = i64(read_i32_be(data, at + 7))
            if code == CODE_BASIC_PUBLISH:
                if connection.broker.suspended:
                    leave_unread(connection.broker, connection)
                    continue
                channel = _channel(connection, number, code)
                done = _publish_unit(connection, channel, data, at, after, end)
                if done == 0:
                    content_awaited(connection.broker, connection)
                    break
                at = done
                continue
            if code == CODE_BASIC_ACK and size == 13:
                channel = _channel(connection, number, code)
                channel.ack(read_i64_be(data, at + 11), data[at + 19] & 1 == 1)
                at = after
                continue
        slow_frame(connection, kind, number, data, at, after)
        if connection.stage == CLOSED:
            return
        at = after
    connection.at = end
    connection.tail = data[at:] if at > 0 else data


def _publish_unit(
    connection: Connection, channel: Channel, data: bytes, at: i64, header_at: i64, end: i64
) -> i64:
    """Take method, header and body frames at once.

    Returns the offset behind the unit; 0 if bytes are missing. A content that is interleaved
    with frames of other channels, too large or broken goes frame by frame through the channel.
    """
    if channel.content_key is not None:
        return _publish_by_frames(connection, channel, data, at, header_at)
    if channel.closing:
        slow_frame(connection, FRAME_METHOD, channel.number, data, at, header_at)
        return header_at
    if end - header_at < 8:
        return 0
    head: i64 = read_i64_be(data, header_at)
    size: i64 = head >> 8 & 0xFFFFFFFF
    body_at: i64 = header_at + size + 8
    if (
        head >> 40 & 0xFFFFFF != FRAME_HEADER << 16 | channel.number
        or size < 14
        or size > connection.frame_max
    ):
        return _publish_by_frames(connection, channel, data, at, header_at)
    if body_at > end:
        return 0
    left = read_i64_be(data, header_at + 11)
    if (
        left < 0
        or left > connection.unit_body_max
        or data[body_at - 1] != FRAME_END
        or u16_at(data, header_at + 7) != BASIC
    ):
        return _publish_by_frames(connection, channel, data, at, header_at)
    frame_bytes_max: i64 = size + 8
    next_at: i64 = body_at
    while left > 0:
        if end - next_at < 8:
            return 0
        head = read_i64_be(data, next_at)
        size = head >> 8 & 0xFFFFFFFF
        after: i64 = next_at + size + 8
        if (
            head >> 40 & 0xFFFFFF != FRAME_BODY << 16 | channel.number
            or size > left
            or (size < left and size < UNIT_FRAME_BYTES_MIN)
            or size > connection.frame_max
        ):
            return _publish_by_frames(connection, channel, data, at, header_at)
        if after > end:
            return 0
        if data[after - 1] != FRAME_END:
            return _publish_by_frames(connection, channel, data, at, header_at)
        if size + 8 > frame_bytes_max:
            frame_bytes_max = size + 8
        left -= size
        next_at = after
    connection.at = next_at
    publish(channel, data[at + 11 : header_at - 1], data[header_at:next_at], frame_bytes_max)
    return next_at


def _publish_by_frames(
    connection: Connection, channel: Channel, data: bytes, at: i64, after: i64
) -> i64:
    connection.at = after
    begin_content(channel, data[at + 11 : after - 1])
    return after


def _channel(connection: Connection, number: i64, code: i64) -> Channel:
    last = connection.last_channel
    if last is not None and last.number == number:
        return last
    channel = connection.channels.get(number)
    if channel is None:
        raise ChannelFault("expected 'channel.open'", code >> 16, code & 0xFFFF)
    connection.last_channel = channel
    return channel


def _short_head(data: bytes, at: i64) -> i64:
    """Type, channel and size of a frame, where its first eight bytes would have them as one number,
    when only these seven have come."""
    return read_i64_be(data[at : at + 7] + b"\0", 0)
