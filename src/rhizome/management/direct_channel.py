"""Direct channel: a channel without a client, with which an HTTP request acts like an AMQP
application.

The core's own checks of names, permissions and locks take a channel, and so does its publish. A
channel from here belongs to no registered connection: nothing lists it, nothing is sent on it, and
it ends with the request. It never consumes or holds messages.
"""

from __future__ import annotations

import asyncio
from typing import Final

from librt.strings import BytesWriter

from rhizome.amqp import spec
from rhizome.amqp.frames import content_frames, frame_end
from rhizome.amqp.methods import QueuePurge
from rhizome.amqp.primitives import put_shortstr, put_u8, put_u16, u32_at
from rhizome.amqp.properties import Properties, encode_header
from rhizome.broker.broker import Broker
from rhizome.broker.channel.channel import Channel
from rhizome.broker.channel.topology_methods import queue_purge
from rhizome.broker.connection.amqp_handshake import Handshake, enter
from rhizome.broker.connection.connection import Connection
from rhizome.broker.connection.frame_reader import FrameReader
from rhizome.broker.message import largest_frame
from rhizome.broker.metadata.resource_names import check_length
from rhizome.broker.metadata.vhost import VHost
from rhizome.broker.publishing import publish_path
from rhizome.broker.publishing.publisher_confirms import Confirms
from rhizome.management.api_context import Context
from rhizome.management.errors import BadRequest, Unavailable
from rhizome.management.http.auth import Caller

CHANNEL: Final = 1
MANDATORY: Final = 1
CONFIRM_SECONDS_MAX: Final = 30.0
CONFIRM_POLL_SECONDS: Final = 0.002


def open_channel(broker: Broker, vhost: VHost, caller: Caller) -> Channel:
    connection = Connection(
        broker, FrameReader(), 0, "HTTP API", caller.peer, Handshake(broker), vhost, caller.identity
    )
    enter(connection, vhost)
    connection.frame_max = broker.limits.frame_max
    return Channel(connection, CHANNEL)


async def publish(
    context: Context, channel: Channel, exchange: str, key: str, properties: Properties, body: bytes
) -> bool:
    """Publish a message and wait until it is safe; False if no queue took it, or one refused it."""
    broker = context.broker
    check_open(broker)
    if len(body) > broker.limits.message_bytes_max:
        limit = broker.limits.message_bytes_max
        raise BadRequest(f"message size {len(body)} is larger than configured max size {limit}")
    check_length("routing key", key)
    content = _content(channel, properties, body)
    channel.confirms = Confirms()
    context.shell.begin_turn()
    publish_path.publish(channel, _publish_fields(exchange, key), content, largest_frame(content))
    return await until_confirmed(channel)


def check_open(broker: Broker) -> None:
    """Raise Unavailable while publishers have to wait."""
    if broker.blocking:
        reason = broker.block_reason or "the disk can't keep up"
        raise Unavailable(f"publishers are blocked: {reason}")


async def until_confirmed(channel: Channel) -> bool:
    """Wait until the last publish is safe; False if no queue took it, or one refused it."""
    wanted = {spec.CODE_BASIC_ACK, spec.CODE_BASIC_NACK}
    said = await _until_said(channel, wanted, "the message is not confirmed")
    return spec.CODE_BASIC_ACK in said and spec.CODE_BASIC_RETURN not in said


async def purge(context: Context, channel: Channel, queue: str) -> None:
    """Purge a queue and wait until no takeover can bring the messages back."""
    context.shell.begin_turn()
    queue_purge(channel, QueuePurge(queue))
    wanted = {spec.CODE_QUEUE_PURGE_OK, spec.CODE_CHANNEL_CLOSE}
    said = await _until_said(
        channel, wanted, f"queue '{queue}' was purged, but its copies have not said so"
    )
    if spec.CODE_QUEUE_PURGE_OK not in said:
        raise Unavailable(f"queue '{queue}' was deleted, or its home can't be reached; try again")


def _content(channel: Channel, properties: Properties, body: bytes) -> bytes:
    try:
        header = encode_header(len(body), properties)
    except ValueError as error:
        raise BadRequest(f"properties: {error}") from None
    return content_frames(CHANNEL, header, body, channel.connection.frame_max)


def _publish_fields(exchange: str, key: str) -> bytes:
    """The fields of basic.publish: reserved, exchange, routing key, bits."""
    writer = BytesWriter()
    put_u16(writer, 0)
    put_shortstr(writer, exchange)
    put_shortstr(writer, key)
    put_u8(writer, MANDATORY)
    return writer.getvalue()


async def _until_said(channel: Channel, wanted: set[int], otherwise: str) -> set[int]:
    """The methods that the broker has sent on the channel up to the awaited one, as codes.

    The core writes to the outbox of a connection, which here has no client. Polling it is cheap
    enough for the few messages that come this way.
    """
    said: set[int] = set()
    pause = 0.0
    try:
        async with asyncio.timeout(CONFIRM_SECONDS_MAX):
            while not said & wanted:
                await asyncio.sleep(pause)
                pause = CONFIRM_POLL_SECONDS
                said |= _methods(b"".join(channel.connection.outbox.take()))
    except TimeoutError:
        # Nobody waits any more, so the next home is not asked.
        channel.closing = True
        raise Unavailable(
            f"{otherwise} after {CONFIRM_SECONDS_MAX:g} s; it may be safe later."
            " Is a disk full, or a broker away?"
        ) from None
    return said


def _methods(output: bytes) -> set[int]:
    """The codes of the methods in whole frames."""
    found: set[int] = set()
    at = 0
    while at < len(output):
        if output[at] == spec.FRAME_METHOD:
            found.add(u32_at(output, at + spec.FRAME_HEADER_SIZE))
        at = frame_end(output, at)
    return found
