"""An AMQP 0-9-1 client for asyncio, with a blocking facade in `rhizome.client.blocking`.

Example:
    import rhizome.client

    async with rhizome.client.connect("amqp://guest:guest@127.0.0.1:5672/") as connection:
        async with connection.channel(prefetch=100, confirms=True) as channel:
            await channel.declare_queue("greetings")
            await channel.publish(b"hello", routing_key="greetings")
            async for message in channel.consume("greetings"):
                await message.ack()

The package knows the codec, and nothing else of the broker. `protocol` is the sans-IO core,
`connection` drives it on a socket, `channel` and `consumer` are what applications use.
"""

from rhizome.amqp.properties import Properties
from rhizome.client.address import Address, parse_uris
from rhizome.client.channel import Channel, ChannelStatistics
from rhizome.client.connection import Connection, ConnectionStatistics, connect
from rhizome.client.consumer import Consumer
from rhizome.client.errors import (
    ClientError,
    ConnectFailed,
    ConnectionLost,
    ConsumerCancelled,
    InvalidUri,
    MessageReturned,
    NotOpen,
    ProtocolViolation,
    PublishNacked,
    SendBufferFull,
)
from rhizome.client.message import Message, ReturnedMessage
from rhizome.client.topology import QueueInfo

__all__ = [
    "Address",
    "Channel",
    "ChannelStatistics",
    "ClientError",
    "ConnectFailed",
    "Connection",
    "ConnectionLost",
    "ConnectionStatistics",
    "Consumer",
    "ConsumerCancelled",
    "InvalidUri",
    "Message",
    "MessageReturned",
    "NotOpen",
    "Properties",
    "ProtocolViolation",
    "PublishNacked",
    "QueueInfo",
    "ReturnedMessage",
    "SendBufferFull",
    "connect",
    "parse_uris",
]
