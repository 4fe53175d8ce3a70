"""An AMQP 0-9-1 client for asyncio, with a blocking facade in `rhizome.client.blocking`.

A session goes on when its broker is gone:

    import rhizome.client

    async with rhizome.client.open_session("amqp://guest:guest@b1,b2,b3/") as session:
        async with session.producer(routing_key="greetings") as producer:
            await producer.publish(b"hello")
        async with session.queue("greetings", durable=True) as queue:
            async for message in queue:
                await message.ack()

A connection is one socket, and everything that AMQP says of it:

    async with rhizome.client.connect("amqp://guest:guest@127.0.0.1:5672/") as connection:
        async with connection.channel(prefetch=100, confirms=True) as channel:
            await channel.declare_queue("greetings")
            await channel.publish(b"hello", routing_key="greetings")
            async for message in channel.consume("greetings"):
                await message.ack()

The package knows the codec, and nothing else of the broker. `protocol` is the sans-IO core,
`connection` drives it on a socket, `channel` and `consumer` are what applications use; `session`,
`sessionchannel` and `failover` are what outlives a connection.
"""

from rhizome.amqp.properties import Properties
from rhizome.client.address import Address, parse_uris
from rhizome.client.browser import Browser
from rhizome.client.channel import Channel, ChannelStatistics
from rhizome.client.connection import Connection, ConnectionStatistics, connect
from rhizome.client.consumer import Consumer
from rhizome.client.errors import (
    ClientError,
    ConnectFailed,
    ConnectionLost,
    ConsumerCancelled,
    FailoverFailed,
    InvalidUri,
    MessageReturned,
    NotOpen,
    ProtocolViolation,
    PublishNacked,
    SendBufferFull,
)
from rhizome.client.failover import Broker, Failover, FailoverMap
from rhizome.client.levels import Level
from rhizome.client.message import Message, ReturnedMessage
from rhizome.client.policies import Policy, RoundRobin
from rhizome.client.producer import Producer
from rhizome.client.queue import Queue
from rhizome.client.session import Session, SessionStatistics, open_session
from rhizome.client.sessionchannel import SessionChannel, SessionConsumer
from rhizome.client.topology import QueueInfo

__all__ = [
    "Address",
    "Broker",
    "Browser",
    "Channel",
    "ChannelStatistics",
    "ClientError",
    "ConnectFailed",
    "Connection",
    "ConnectionLost",
    "ConnectionStatistics",
    "Consumer",
    "ConsumerCancelled",
    "Failover",
    "FailoverFailed",
    "FailoverMap",
    "InvalidUri",
    "Level",
    "Message",
    "MessageReturned",
    "NotOpen",
    "Policy",
    "Producer",
    "Properties",
    "ProtocolViolation",
    "PublishNacked",
    "Queue",
    "QueueInfo",
    "ReturnedMessage",
    "RoundRobin",
    "SendBufferFull",
    "Session",
    "SessionChannel",
    "SessionConsumer",
    "SessionStatistics",
    "connect",
    "open_session",
    "parse_uris",
]
