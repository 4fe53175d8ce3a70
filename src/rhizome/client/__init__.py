"""An AMQP 0-9-1 client for asyncio, with a blocking facade in `rhizome.client.blocking`.

`Session` (session/) fails over when its broker is gone; `Connection` and `Channel` are plain AMQP.
protocol.py is the protocol without input or output; connection.py drives it on a socket;
channel.py publishes and consumes. Knows rhizome.amqp and nothing else of Rhizome.
Begin with connection.py, then session/session.py.
"""

from rhizome.amqp.properties import Properties
from rhizome.client.channel import Channel, ChannelStatistics
from rhizome.client.confirm_level import Level
from rhizome.client.connection import Connection, ConnectionStatistics, connect
from rhizome.client.connection_uri import Address, parse_uris
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
from rhizome.client.message import Message, ReturnedMessage
from rhizome.client.session.balancing_policies import Policy, RoundRobin
from rhizome.client.session.failover_addresses import Broker, Failover, FailoverMap
from rhizome.client.session.producer import Producer
from rhizome.client.session.queue import Queue
from rhizome.client.session.queue_browser import Browser
from rhizome.client.session.session import Session, SessionStatistics, open_session
from rhizome.client.session.session_channel import SessionChannel, SessionConsumer
from rhizome.client.topology_calls import QueueInfo

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
