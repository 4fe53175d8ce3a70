"""ContentFrames: publishes whose content comes frame by frame.

That of most comes at once, and never gets here (`connection/frame_reader.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from librt.strings import read_i16_be, read_i64_be
from mypy_extensions import i64

from rhizome.amqp.field_table import unsigned_64
from rhizome.amqp.spec import BASIC, FRAME_HEADER
from rhizome.broker.publishing.blocked_publishers import published_by
from rhizome.broker.publishing.publish_path import check_publish, publish
from rhizome.errors import (
    AmqpError,
    PreconditionFailed,
    UnexpectedFrame,
)

if TYPE_CHECKING:
    from rhizome.broker.channel.channel import Channel


def begin_content(channel: Channel, key: bytes) -> None:
    """Begin a publish whose content doesn't follow at once, or is large.

    A client that may not publish is refused here, before any content is collected.
    """
    if channel.content_key is not None:
        raise expected_content(channel)
    check_publish(channel, key)
    connection = channel.connection
    if connection.broker.blocking:
        published_by(connection.broker, connection)
    channel.content_key = key
    channel.content_parts = []
    channel.content_large = None
    channel.content_left = -1
    channel.content_frame_max = 0


def content_frame(channel: Channel, kind: i64, frame: bytes) -> None:
    """A header or body frame on this channel."""
    if channel.content_key is None:
        raise UnexpectedFrame("expected method frame, got non method frame instead")
    if channel.content_left < 0:
        _content_header(channel, kind, frame)
    else:
        _content_body(channel, kind, frame)
    if len(frame) > channel.content_frame_max:
        channel.content_frame_max = len(frame)
    if channel.content_left == 0:
        key = channel.content_key
        content = channel.collected()
        channel.drop_content()
        publish(channel, key, content, channel.content_frame_max)
    else:
        channel.connection.broker.contents.grow(channel, len(frame))


def _content_header(channel: Channel, kind: i64, frame: bytes) -> None:
    if kind != FRAME_HEADER:
        raise expected_content(channel)
    if len(frame) < 22:
        raise UnexpectedFrame("the content header is too short", 60, 40)
    class_id = i64(read_i16_be(frame, 7)) & 0xFFFF
    if class_id != BASIC:
        raise UnexpectedFrame(
            f"expected content header for class 60, got one for class {class_id} instead",
            60,
            40,
        )
    channel.content_left = read_i64_be(frame, 11)
    limit = channel.connection.broker.limits.message_bytes_max
    if channel.content_left < 0 or channel.content_left > limit:
        size = unsigned_64(channel.content_left)
        channel.drop_content()
        raise PreconditionFailed(
            f"message size {size} is larger than configured max size {limit}", 60, 40
        )
    channel.collect(frame)


def _content_body(channel: Channel, kind: i64, frame: bytes) -> None:
    if kind == FRAME_HEADER:
        raise expected_content(channel)
    size: i64 = len(frame) - 8
    if size > channel.content_left:
        raise UnexpectedFrame(
            f"the content body is {size - channel.content_left} bytes longer than announced",
            60,
            40,
        )
    if size > 0:
        channel.collect(frame)
    channel.content_left -= size


def expected_content(channel: Channel) -> AmqpError:
    if channel.content_left < 0:
        text = "expected content header for class 60, got non content header frame instead"
    else:
        text = "expected content body, got non content body frame instead"
    return UnexpectedFrame(text, 60, 40)
