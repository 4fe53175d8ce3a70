"""Values that no honest client sends, in every place where the broker reads one.

Each may be taken or refused, with a code of the protocol. None may be answered with 541, which says
that the broker itself made a mistake; `Core` raises what it was.
"""

from __future__ import annotations

import itertools

import pytest

from rhizome.amqp.field_table import Timestamp
from rhizome.amqp.methods import (
    BasicCancel,
    BasicConsume,
    BasicGet,
    ChannelClose,
    ConnectionClose,
    ExchangeBind,
    ExchangeDeclare,
    ExchangeDelete,
    ExchangeUnbind,
    Method,
    QueueBind,
    QueueDeclare,
    QueueDelete,
    QueuePurge,
    QueueUnbind,
)
from rhizome.amqp.properties import Properties
from rhizome.broker.access.auth_interface import OpenAuthenticator
from rhizome.testing.in_memory_broker import CAPABILITIES, Core, CoreClient, make_core

RAW = b"\xff\xfe\x80".decode("utf-8", "surrogateescape")
"""A text that is no UTF-8, as it comes from the wire."""

ODD: list[object] = [
    RAW,
    "",
    "x" * 300,
    "a\0b",
    "9" * 5000,
    -1,
    0,
    1 << 62,
    -(1 << 63),
    True,
    None,
    1.5,
    float("nan"),
    float("inf"),
    b"\xff\x00",
    Timestamp(1 << 62),
    [RAW],
    [],
    {RAW: RAW},
    {},
]

QUEUE_ARGUMENTS = [
    "qpid.replicate",
    "x-consumer-disconnected-timeout",
    "x-consumer-timeout",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-dedup",
    "x-dedup-window",
    "x-delayed-retry-max",
    "x-delayed-retry-min",
    "x-delayed-retry-multiplier",
    "x-delayed-retry-type",
    "x-delivery-limit",
    "x-expires",
    "x-group",
    "x-initial-cluster-size",
    "x-last-value-key",
    "x-max-age",
    "x-max-in-memory-bytes",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-message-ttl",
    "x-overflow",
    "x-queue-leader-locator",
    "x-queue-mode",
    "x-queue-type",
    "x-queue-version",
    "x-quorum-initial-group-size",
    "x-replicate",
    "x-single-active-consumer",
    "x-stream-filter-size-bytes",
    "x-stream-max-segment-size-bytes",
    RAW,
]
CONSUMER_ARGUMENTS = [
    "x-cancel-on-ha-failover",
    "x-consumer-timeout",
    "x-lease",
    "x-lease-bytes",
    "x-lease-end",
    "x-lease-from",
    "x-lease-keep-ms",
    "x-lease-read",
    "x-lease-settle",
    "x-lease-take",
    "x-lease-until",
    "x-priority",
    "x-stream-chunks",
    "x-stream-consumer-name",
    "x-stream-filter",
    "x-stream-from",
    "x-stream-match-unfiltered",
    "x-stream-offset",
    "x-stream-reader",
    "x-stream-reader-keep",
    "x-stream-reader-next",
    "x-stream-time-ms",
    RAW,
]
KINDS = [
    "direct",
    "fanout",
    "topic",
    "headers",
    "x-consistent-hash",
    "x-local-random",
    "x-modulus-hash",
    "x-recent-history",
    "x-random",
    "x-super-stream",
]
CODES = {311, 312, 313, 403, 404, 405, 406, 501, 502, 503, 504, 505, 506, 530, 540, 320, 402}


def sent(core: Core, *methods: Method) -> None:
    """Send methods, each on a connection of its own, and look at how they are refused."""
    for method in methods:
        client = core.connect()
        client.send(method)
        check(client)


def check(client: CoreClient) -> None:
    for channel in (0, 1):
        for event in client.take(channel):
            if isinstance(event, (ChannelClose, ConnectionClose)):
                assert event.reply_code in CODES, event.reply_text
    client.close_socket()


@pytest.fixture(scope="module")
def core() -> Core:
    core = make_core()
    client = core.connect()
    client.declare("q", durable=True)
    client.publish("", "q", b"m")
    client.declare("stream", durable=True, x_queue_type="stream")
    client.publish("", "stream", b"m")
    for kind in KINDS:
        client.send(ExchangeDeclare(f"x-{kind}", kind))
    delayed: dict[str, object] = {"x-delayed-type": "topic"}
    client.send(ExchangeDeclare("x-delayed", "x-delayed-message", arguments=delayed))
    check(client)
    return core


@pytest.mark.parametrize("argument", QUEUE_ARGUMENTS)
def test_arguments_of_queues(core: Core, argument: str) -> None:
    for number, value in enumerate(ODD):
        name = f"odd-{QUEUE_ARGUMENTS.index(argument)}-{number}"
        sent(core, QueueDeclare(name, arguments={argument: value}))
        stream: dict[str, object] = {"x-queue-type": "stream", argument: value}
        sent(core, QueueDeclare(f"{name}-s", durable=True, arguments=stream))
        sent(core, QueueDeclare("q", durable=True, arguments={argument: value}))


@pytest.mark.parametrize("argument", CONSUMER_ARGUMENTS)
@pytest.mark.parametrize("queue", ["q", "stream"])
def test_arguments_of_consumers(core: Core, argument: str, queue: str) -> None:
    for value, no_ack, lease in itertools.product(ODD, (True, False), (True, False)):
        arguments = {"x-lease": "l", argument: value} if lease else {argument: value}
        sent(core, BasicConsume(queue, no_ack=no_ack, arguments=arguments))


@pytest.mark.parametrize("kind", KINDS)
def test_arguments_of_exchanges_and_bindings(core: Core, kind: str) -> None:
    names = ["alternate-exchange", "hash-header", "hash-property", "x-delayed-type", RAW]
    for number, value in enumerate(ODD):
        for name in names:
            odd = f"{kind}-{names.index(name)}-{number}"
            sent(core, ExchangeDeclare(odd, kind, arguments={name: value}))
            delayed: dict[str, object] = {"x-delayed-type": kind, name: value}
            sent(core, ExchangeDeclare(f"{odd}-d", "x-delayed-message", arguments=delayed))
        for name in ("x-match", "n", RAW):
            for key in ("1", RAW, "", "9" * 255, "-", "+1"):
                sent(core, QueueBind("q", f"x-{kind}", key, arguments={name: value}))
                sent(core, ExchangeBind("x-fanout", f"x-{kind}", key, arguments={name: value}))


def test_names(core: Core) -> None:
    for name in (RAW, "", "a\0b", "x" * 255, "amq.", "amq.rabbitmq.reply-to." + RAW, "\r\n"):
        sent(
            core,
            QueueDeclare(name),
            QueueDeclare(name, passive=True),
            QueuePurge(name),
            ExchangeDeclare(name, "direct"),
            ExchangeDeclare("new", name),
            ExchangeDeclare(name, "direct", passive=True),
            BasicConsume(name, RAW),
            BasicConsume("q", name),
            BasicCancel(name),
            BasicGet(name),
            QueueBind(name, name, name),
            QueueUnbind(name, name, name),
            ExchangeBind(name, name, name),
            ExchangeUnbind(name, name, name),
            QueueDelete(name),
            ExchangeDelete(name),
        )


HEADERS = ["x-producer", "x-sequence", "CC", "BCC", "x-delay", "x-death", "n", "hash", RAW]


@pytest.mark.parametrize("header", HEADERS)
def test_headers_of_messages(core: Core, header: str) -> None:
    exchanges = [*(f"x-{kind}" for kind in KINDS), "x-delayed", ""]
    for value, exchange in itertools.product(ODD, exchanges):
        headers: dict[str, object] = {"x-producer": "p", "x-sequence": 1, header: value}
        client = core.connect()
        client.publish(exchange, "q", b"m", Properties(headers=headers))
        check(client)


def test_properties_of_messages(core: Core) -> None:
    for text in (RAW, "", "-1", "9" * 200, "1.5", "a\0b", "amq.rabbitmq.reply-to", " 1"):
        for properties in (
            Properties(expiration=text),
            Properties(reply_to=text),
            Properties(user_id=text),
            Properties(message_id=text),
            Properties(correlation_id=text),
        ):
            for exchange in ("", "x-headers", "x-consistent-hash", "x-delayed"):
                client = core.connect()
                client.publish(exchange, "q", b"m", properties)
                check(client)


def test_what_clients_say_of_themselves() -> None:
    core = make_core()
    for value in ODD:
        for name in ("session", "session-visit", "product", "connection_name", RAW):
            capabilities = {**CAPABILITIES, "session.resume": True}
            properties: dict[str, object] = {"session": "s", "capabilities": capabilities}
            client = core.connect(properties={**properties, name: value})
            client.send(BasicGet(""))
            check(client)
        core.connect(properties={"capabilities": value}).close_socket()


@pytest.mark.parametrize("user", [RAW, "", "a/b", "%2F"])
def test_names_of_users(user: str) -> None:
    core = make_core()
    core.broker.authenticator = OpenAuthenticator(user)
    client = core.connect()
    client.declare("q")
    client.publish("", "q", b"m", Properties(headers={"x-producer": "p", "x-sequence": 1}))
    assert client.get("q") is not None


def test_what_was_taken_survives_a_restart(core: Core) -> None:
    sent(core, QueueDeclare(RAW, durable=True), ExchangeDeclare(RAW, "topic", durable=True))
    sent(core, QueueBind(RAW, RAW, RAW, arguments={RAW: RAW}))
    client = core.connect()
    client.publish(RAW, RAW, b"kept", Properties(delivery_mode=2, message_id=RAW))
    again = core.restarted().connect()
    taken = again.get(RAW)
    assert taken is not None
    assert taken.body == b"kept"
