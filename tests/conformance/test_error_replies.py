"""Every error reply of error_replies.txt: code, text and cause, to the letter.

Each scenario is a function here with the name that it has in that file. It is given a fresh `Case`
and leads to exactly one close.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from rhizome.amqp import methods as m
from rhizome.amqp.field_table import encode_table
from rhizome.amqp.frames import frame, method_frame
from rhizome.amqp.properties import Properties, encode_header
from tests.conformance.wire_driver import (
    CLIENT_PROPERTIES,
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    PROTOCOL_HEADER,
    Channel,
    ChannelClosed,
    Closed,
    Connection,
    ConnectionClosed,
    Wire,
)

from . import differences
from .conftest import Connect, Unique

REPLIES = Path(__file__).with_name("error_replies.txt")
REPLY_TEXT_BYTES_MAX = 255


@dataclass(frozen=True)
class Reply:
    scenario: str
    closes: type[Closed]
    code: int
    cause: str
    text: str

    @classmethod
    def parse(cls, line: str) -> Reply:
        scenario, closes, code, cause, text = line.rstrip("\n").split(" | ", 4)
        kinds = {"Channel.Close": ChannelClosed, "Connection.Close": ConnectionClosed}
        return cls(scenario, kinds[closes], int(code), cause, text)

    def text_for(self, name: str) -> str:
        text = self.text.format(name=name)
        return (
            text if len(text) <= REPLY_TEXT_BYTES_MAX else text[: REPLY_TEXT_BYTES_MAX - 3] + "..."
        )


class Case:
    """A channel, and a name for what the scenario is about."""

    def __init__(self, connect: Connect, dial: Callable[[], Wire], unique: Unique) -> None:
        self.connect = connect
        self.dial = dial
        self.connection: Connection = connect()
        self.channel: Channel = self.connection.channel()
        # Short enough for the longest text with the name in it to stay under 255 bytes.
        self.name = f"e{time.time_ns() % 10**9}"

    def fails(self, *methods: m.Method) -> Closed:
        return self.channel.fails(*methods)

    def publish_fails(self, properties: Properties, exchange: str = "amq.direct") -> Closed:
        self.channel.publish(exchange, "k", b"x", properties)
        return self.channel.closed()

    def sends(self, data: bytes) -> Closed:
        self.connection.send(data)
        return self.connection.closed_by_broker()

    def redeclare(self, first: m.Method, second: m.Method) -> Closed:
        answer = m.QueueDeclareOk if isinstance(first, m.QueueDeclare) else m.ExchangeDeclareOk
        self.channel.call(first, answer)
        closed = self.fails(second)
        cleanup = self.connection.channel()
        if isinstance(first, m.QueueDeclare):
            cleanup.call(m.QueueDelete(self.name), m.QueueDeleteOk)
        else:
            cleanup.call(m.ExchangeDelete(self.name), m.ExchangeDeleteOk)
        return closed


Scenario = Callable[[Case], Closed]
SCENARIOS: dict[str, Scenario] = {}


def scenario(run: Scenario) -> Scenario:
    SCENARIOS[run.__name__] = run
    return run


def sends_method(make: Callable[[str], m.Method], case: Case) -> Closed:
    return case.fails(make(case.name))


def declares_with(argument: str, value: object, case: Case) -> Closed:
    return case.fails(m.QueueDeclare(case.name, exclusive=True, arguments={argument: value}))


def redeclares_with(argument: str, first: object, second: object, case: Case) -> Closed:
    """Two declarations that differ in one argument; ... stands for leaving it away."""
    queues = [
        m.QueueDeclare(
            case.name, exclusive=True, arguments={} if value is ... else {argument: value}
        )
        for value in (first, second)
    ]
    return case.redeclare(*queues)


def consumes_with(priority: object, case: Case) -> Closed:
    case.channel.declare(case.name)
    return case.fails(m.BasicConsume(case.name, arguments={"x-priority": priority}))


def publishes_with(properties: Properties, case: Case) -> Closed:
    return case.publish_fails(properties)


def asks_for_locked(make: Callable[[str], m.Method], case: Case) -> Closed:
    case.connect().channel().declare(case.name)
    return case.fails(make(case.name))


SCENARIOS.update(
    {
        name: partial(sends_method, make)
        for name, make in {
            "declare_default_exchange": lambda _: m.ExchangeDeclare("", "direct"),
            "declare_default_exchange_passively": lambda _: m.ExchangeDeclare("", "direct", True),
            "delete_default_exchange": lambda _: m.ExchangeDelete(""),
            "delete_built_in_exchange": lambda _: m.ExchangeDelete("amq.direct"),
            "declare_missing_exchange_passively": lambda name: m.ExchangeDeclare(
                name, "direct", passive=True
            ),
            "redeclare_built_in_exchange_without_durable": lambda _: m.ExchangeDeclare(
                "amq.direct", "direct"
            ),
            "declare_exchange_of_unknown_type": lambda name: m.ExchangeDeclare(name, "ZZwwInvalid"),
            "declare_exchange_of_empty_type": lambda name: m.ExchangeDeclare(name, ""),
            "declare_exchange_with_number_as_alternate": lambda name: m.ExchangeDeclare(
                name, "direct", arguments={"alternate-exchange": 1}
            ),
            "bind_exchange_to_missing_source": lambda name: m.ExchangeBind("amq.direct", name, "k"),
            "bind_missing_exchange_to_source": lambda name: m.ExchangeBind(name, "amq.direct", "k"),
            "bind_exchange_to_default_source": lambda _: m.ExchangeBind("amq.direct", "", "k"),
            "bind_default_exchange_to_source": lambda _: m.ExchangeBind("", "amq.direct", "k"),
            "unbind_exchange_from_default_source": lambda _: m.ExchangeUnbind(
                "amq.direct", "", "k"
            ),
            "bind_missing_queue": lambda name: m.QueueBind(name, "amq.direct", "k"),
            "bind_reply_queue": lambda _: m.QueueBind("amq.rabbitmq.reply-to", "amq.direct", "k"),
            "bind_without_queue_name": lambda _: m.QueueBind("", "amq.direct", "k"),
            "unbind_without_queue_name": lambda _: m.QueueUnbind("", "amq.direct", "k"),
            "purge_missing_queue": m.QueuePurge,
            "purge_without_queue_name": lambda _: m.QueuePurge(""),
            "delete_without_queue_name": lambda _: m.QueueDelete(""),
            "declare_missing_queue_passively": lambda name: m.QueueDeclare(name, passive=True),
            "declare_nameless_queue_passively": lambda _: m.QueueDeclare("", passive=True),
            "consume_without_queue_name": lambda _: m.BasicConsume(""),
            "consume_from_missing_queue": m.BasicConsume,
            "consume_replies_with_ack": lambda _: m.BasicConsume("amq.rabbitmq.reply-to"),
            "get_without_queue_name": lambda _: m.BasicGet(""),
            "get_from_missing_queue": m.BasicGet,
            "get_from_reply_queue": lambda _: m.BasicGet("amq.rabbitmq.reply-to"),
            "commit_without_tx": lambda _: m.TxCommit(),
            "rollback_without_tx": lambda _: m.TxRollback(),
            "ack_unknown_tag": lambda _: m.BasicAck(12345),
            "ack_zero": lambda _: m.BasicAck(0),
            "ack_highest_tag": lambda _: m.BasicAck(-1),
            "ack_multiple_unknown_tag": lambda _: m.BasicAck(5, True),
            "nack_unknown_tag": lambda _: m.BasicNack(12345),
            "reject_unknown_tag": lambda _: m.BasicReject(12345),
            "flow_off": lambda _: m.ChannelFlow(False),
            "qos_with_size": lambda _: m.BasicQos(4096, 1),
            "recover_without_requeue": lambda _: m.BasicRecover(False),
            "recover_asynchronously_without_requeue": lambda _: m.BasicRecoverAsync(False),
            "send_get_empty": lambda _: m.BasicGetEmpty(),
            "send_declare_ok": lambda _: m.QueueDeclareOk("a", 1, 1),
            "connection_method_on_a_channel": lambda _: m.ConnectionOpen("/"),
            "open_channel_twice": lambda _: m.ChannelOpen(),
            "declare_exclusive_quorum_queue": lambda name: m.QueueDeclare(
                name, durable=True, exclusive=True, arguments={"x-queue-type": "quorum"}
            ),
            "declare_transient_quorum_queue": lambda name: m.QueueDeclare(
                name, arguments={"x-queue-type": "quorum"}
            ),
            "declare_auto_deleted_quorum_queue": lambda name: m.QueueDeclare(
                name, durable=True, auto_delete=True, arguments={"x-queue-type": "quorum"}
            ),
        }.items()
    }
)
SCENARIOS.update(
    {
        f"declare_{name}": partial(declares_with, argument, value)
        for name, argument, value in (
            ("queue_with_dead_letter_routing_key_only", "x-dead-letter-routing-key", "k"),
            ("queue_with_number_as_dead_letter_exchange", "x-dead-letter-exchange", 1),
            ("queue_with_negative_expires", "x-expires", -7),
            ("queue_with_zero_expires", "x-expires", 0),
            ("queue_with_text_as_expires", "x-expires", "soon"),
            ("queue_with_too_many_priorities", "x-max-priority", 260),
            ("queue_with_negative_priorities", "x-max-priority", -7),
            ("queue_with_text_as_max_priority", "x-max-priority", "high"),
            ("queue_with_text_as_ttl", "x-message-ttl", "soon"),
            ("queue_with_bool_as_ttl", "x-message-ttl", True),
            ("queue_with_double_as_ttl", "x-message-ttl", 1.5),
            ("queue_with_negative_ttl", "x-message-ttl", -7),
            ("queue_with_ttl_of_decades", "x-message-ttl", 2**40),
            ("queue_with_text_as_max_length", "x-max-length", "long"),
            ("queue_with_negative_max_length", "x-max-length", -1),
            ("queue_with_negative_max_length_bytes", "x-max-length-bytes", -1),
            ("queue_with_void_as_max_length_bytes", "x-max-length-bytes", None),
            ("queue_with_unknown_overflow", "x-overflow", "nope"),
            ("queue_with_number_as_overflow", "x-overflow", 1),
            ("queue_of_unknown_type", "x-queue-type", "nope"),
            ("queue_with_number_as_type", "x-queue-type", 1),
            ("queue_with_unknown_mode", "x-queue-mode", "nope"),
            ("queue_with_unknown_version", "x-queue-version", 3),
            ("queue_with_text_as_single_active_consumer", "x-single-active-consumer", "yes"),
            ("classic_queue_with_delivery_limit", "x-delivery-limit", 5),
            ("classic_queue_with_max_age", "x-max-age", "1D"),
        )
    }
)
SCENARIOS.update(
    {
        f"redeclare_queue_{name}": partial(redeclares_with, argument, first, second)
        for name, argument, first, second in (
            ("with_other_dead_letter_exchange", "x-dead-letter-exchange", "dlx_foo", "dlx_bar"),
            ("with_other_expires", "x-expires", 60000, 70000),
            ("with_other_max_length", "x-max-length", 10, 20),
            ("with_other_max_length_bytes", "x-max-length-bytes", 100, 200),
            ("with_other_message_ttl", "x-message-ttl", 1000, 2000),
            ("with_other_max_priority", "x-max-priority", 5, 6),
            ("without_max_priority", "x-max-priority", 5, ...),
            ("without_single_active_consumer", "x-single-active-consumer", True, False),
            ("with_other_overflow", "x-overflow", "drop-head", "reject-publish"),
            ("with_other_mode", "x-queue-mode", "lazy", "default"),
        )
    }
)
SCENARIOS.update(
    {
        f"consume_with_{name}_as_priority": partial(consumes_with, value)
        for name, value in (
            ("array", [1]),
            ("text", "high"),
            ("table", {"a": 1}),
            ("void", None),
            ("bool", True),
        )
    }
)
SCENARIOS.update(
    {
        f"publish_{name}": partial(publishes_with, properties)
        for name, properties in (
            ("with_expiration_and_letters", Properties(expiration="10foobar")),
            ("with_negative_expiration", Properties(expiration="-7")),
            ("with_letters_as_expiration", Properties(expiration="foobar")),
            ("with_empty_expiration", Properties(expiration="")),
            ("with_fraction_as_expiration", Properties(expiration="1.5")),
            ("with_number_as_cc", Properties(headers={"CC": 99})),
            ("with_text_as_cc", Properties(headers={"CC": "a"})),
            ("with_number_as_bcc", Properties(headers={"BCC": 99})),
            ("with_unknown_delivery_mode", Properties(delivery_mode=7)),
            ("as_somebody_else", Properties(user_id="somebody")),
            ("replying_without_reply_consumer", Properties(reply_to="amq.rabbitmq.reply-to")),
        )
    }
)
SCENARIOS.update(
    {
        f"{name}_locked_queue": partial(asks_for_locked, make)
        for name, make in {
            "declare": lambda name: m.QueueDeclare(name, passive=True),
            "bind": lambda name: m.QueueBind(name, "amq.direct", "k"),
            "purge": m.QueuePurge,
            "delete": m.QueueDelete,
            "consume_from": m.BasicConsume,
            "get_from": m.BasicGet,
        }.items()
    }
)


@scenario
def unbind_locked_queue(case: Case) -> Closed:
    """Only a binding that exists is looked at: unbinding what isn't bound succeeds anywhere."""
    owner = case.connect().channel()
    owner.declare(case.name)
    owner.bind(case.name, "amq.direct", "k")
    return case.fails(m.QueueUnbind(case.name, "amq.direct", "k"))


@scenario
def declare_locked_queue_with_long_name(case: Case) -> Closed:
    case.name += "x" * (30 - len(case.name))
    return asks_for_locked(lambda name: m.QueueDeclare(name, exclusive=True), case)


@scenario
def declare_locked_queue_with_longer_name(case: Case) -> Closed:
    case.name += "x" * (60 - len(case.name))
    return asks_for_locked(m.QueueDeclare, case)


@scenario
def publish_to_internal_exchange(case: Case) -> Closed:
    case.channel.call(m.ExchangeDeclare(case.name, "direct", internal=True), m.ExchangeDeclareOk)
    case.channel.publish(case.name, "k", b"x")
    closed = case.channel.closed()
    case.connection.channel().call(m.ExchangeDelete(case.name), m.ExchangeDeleteOk)
    return closed


@scenario
def declare_reserved_exchange(case: Case) -> Closed:
    case.name = f"amq.{case.name}"
    return case.fails(m.ExchangeDeclare(case.name, "direct"))


@scenario
def declare_reserved_queue(case: Case) -> Closed:
    case.name = f"amq.{case.name}"
    return case.fails(m.QueueDeclare(case.name))


@scenario
def bind_to_default_exchange(case: Case) -> Closed:
    return case.fails(m.QueueBind(case.channel.declare(), "", "k"))


@scenario
def unbind_from_default_exchange(case: Case) -> Closed:
    return case.fails(m.QueueUnbind(case.channel.declare(), "", "k"))


@scenario
def bind_to_missing_exchange(case: Case) -> Closed:
    return case.fails(m.QueueBind(case.channel.declare(), case.name, "k"))


@scenario
def publish_to_missing_exchange(case: Case) -> Closed:
    case.channel.publish(case.name, "k", b"x")
    return case.channel.closed()


@scenario
def consume_from_exclusively_consumed_queue(case: Case) -> Closed:
    case.channel.declare(case.name)
    case.channel.consume(case.name, exclusive=True)
    return case.connection.channel().fails(m.BasicConsume(case.name))


@scenario
def consume_exclusively_from_consumed_queue(case: Case) -> Closed:
    case.channel.declare(case.name)
    case.channel.consume(case.name)
    return case.fails(m.BasicConsume(case.name, exclusive=True))


@scenario
def consume_exclusively_with_single_active_consumer(case: Case) -> Closed:
    case.channel.declare(case.name, arguments={"x-single-active-consumer": True})
    return case.fails(m.BasicConsume(case.name, exclusive=True))


@scenario
def reuse_consumer_tag(case: Case) -> Closed:
    case.channel.declare(case.name)
    case.channel.consume(case.name, "mine")
    return case.fails(m.BasicConsume(case.name, "mine"))


@scenario
def consume_replies_twice(case: Case) -> Closed:
    case.channel.consume("amq.rabbitmq.reply-to", no_ack=True)
    return case.fails(m.BasicConsume("amq.rabbitmq.reply-to", no_ack=True))


@scenario
def bind_with_number_as_x_match(case: Case) -> Closed:
    queue = case.channel.declare()
    return case.fails(m.QueueBind(queue, "amq.headers", "", arguments={"x-match": 23}))


@scenario
def bind_with_unknown_x_match(case: Case) -> Closed:
    queue = case.channel.declare()
    wrong = {"x-match": "all or any I don't mind"}
    return case.fails(m.QueueBind(queue, "amq.headers", "", arguments=wrong))


@scenario
def select_tx_after_confirm(case: Case) -> Closed:
    case.channel.confirm()
    return case.fails(m.TxSelect())


@scenario
def select_confirm_after_tx(case: Case) -> Closed:
    case.channel.call(m.TxSelect(), m.TxSelectOk)
    return case.fails(m.ConfirmSelect())


@scenario
def delete_exchange_in_use(case: Case) -> Closed:
    case.channel.declare_exchange(case.name)
    case.channel.bind(case.channel.declare(), case.name, "k")
    return case.fails(m.ExchangeDelete(case.name, if_unused=True))


@scenario
def delete_queue_with_messages_if_empty(case: Case) -> Closed:
    case.channel.declare(case.name)
    case.channel.publish("", case.name, b"x")
    return case.fails(m.QueueDelete(case.name, if_empty=True))


@scenario
def delete_queue_with_consumers_if_unused(case: Case) -> Closed:
    case.channel.declare(case.name)
    case.channel.consume(case.name)
    return case.fails(m.QueueDelete(case.name, if_unused=True))


def redeclares_exchange(
    first: Callable[[str], m.Method], second: Callable[[str], m.Method], case: Case
) -> Closed:
    return case.redeclare(first(case.name), second(case.name))


def exchange(kind: str = "direct", **options: object) -> Callable[[str], m.Method]:
    return lambda name: m.ExchangeDeclare(name, kind, **options)  # type: ignore[arg-type]


def queue(**options: object) -> Callable[[str], m.Method]:
    return lambda name: m.QueueDeclare(name, **options)  # type: ignore[arg-type]


QUORUM: dict[str, object] = {"x-queue-type": "quorum"}
CLASSIC: dict[str, object] = {"x-queue-type": "classic"}
DEAD = "x-dead-letter-exchange"
DEAD_KEY = "x-dead-letter-routing-key"
SCENARIOS.update(
    {
        f"redeclare_{name}": partial(redeclares_exchange, first, second)
        for name, first, second in (
            (
                "exchange_with_other_alternate",
                exchange(arguments={"alternate-exchange": "UME"}),
                exchange(arguments={"alternate-exchange": "somewhere"}),
            ),
            (
                "exchange_with_added_alternate",
                exchange(),
                exchange(arguments={"alternate-exchange": "a"}),
            ),
            ("exchange_with_auto_delete", exchange(), exchange(auto_delete=True)),
            ("exchange_with_durable", exchange(), exchange(durable=True)),
            ("exchange_without_internal", exchange(internal=True), exchange()),
            ("fanout_exchange_as_direct", exchange("fanout"), exchange("direct")),
            ("direct_exchange_as_fanout", exchange("direct"), exchange("fanout")),
            ("direct_exchange_as_topic", exchange("direct"), exchange("topic")),
            ("queue_without_auto_delete", queue(auto_delete=True), queue()),
            ("queue_with_auto_delete", queue(), queue(auto_delete=True)),
            ("queue_without_durable", queue(durable=True), queue()),
            ("queue_with_durable", queue(), queue(durable=True)),
            (
                "queue_with_other_dead_letter_routing_key",
                queue(arguments={DEAD: "dlx_foo", DEAD_KEY: "dlx_rk"}),
                queue(arguments={DEAD: "dlx_foo", DEAD_KEY: "dlx_routing_key"}),
            ),
            (
                "queue_with_added_dead_letter_routing_key",
                queue(arguments={DEAD: "dlx_foo"}),
                queue(arguments={DEAD: "dlx_foo", DEAD_KEY: "foo"}),
            ),
            (
                "classic_queue_as_quorum",
                queue(durable=True),
                queue(durable=True, arguments=QUORUM),
            ),
            (
                "quorum_queue_as_classic",
                queue(durable=True, arguments=QUORUM),
                queue(durable=True, arguments=CLASSIC),
            ),
            (
                "quorum_queue_without_type",
                queue(durable=True, arguments=QUORUM),
                queue(durable=True),
            ),
            ("exclusive_queue_as_shared", queue(exclusive=True), queue()),
            ("shared_queue_as_exclusive", queue(), queue(exclusive=True)),
        )
    }
)


@scenario
def declare_queue_with_number_as_dead_letter_routing_key(case: Case) -> Closed:
    arguments: dict[str, object] = {DEAD: "foo", DEAD_KEY: 1}
    return case.fails(m.QueueDeclare(case.name, exclusive=True, arguments=arguments))


@scenario
def ack_twice(case: Case) -> Closed:
    case.channel.declare(case.name)
    case.channel.publish("", case.name, b"x")
    got = case.channel.get(case.name, no_ack=False)
    assert got is not None
    return case.fails(m.BasicAck(got.tag), m.BasicAck(got.tag))


@scenario
def publish_immediate(case: Case) -> Closed:
    case.channel.publish("", case.name, b"x", immediate=True)
    return case.channel.closed()


def login(case: Case, mechanism: str, response: bytes) -> Closed:
    wire = case.dial()
    wire.send(PROTOCOL_HEADER)
    wire.expect(m.ConnectionStart)
    wire.send_method(0, m.ConnectionStartOk(CLIENT_PROPERTIES, mechanism, response))
    return ConnectionClosed(wire.expect(m.ConnectionClose))


@scenario
def login_with_wrong_password_plain(case: Case) -> Closed:
    return login(case, "PLAIN", b"\0guest\0wrong")


@scenario
def login_with_wrong_password_amqplain(case: Case) -> Closed:
    table = encode_table({"LOGIN": "guest", "PASSWORD": "wrong"})
    return login(case, "AMQPLAIN", table[4:])


@scenario
def open_missing_vhost(case: Case) -> Closed:
    with pytest.raises(ConnectionClosed) as closed:
        case.connect(vhost=case.name)
    return closed.value


@scenario
def more_channels_than_agreed(case: Case) -> Closed:
    connection = case.connect(channel_max=3)
    for _ in range(3):
        connection.channel()
    connection.send_method(2047, m.ChannelOpen())
    return connection.closed_by_broker()


@scenario
def tune_a_running_connection(case: Case) -> Closed:
    return case.sends(method_frame(0, m.ConnectionTuneOk(1, 4096, 0)))


@scenario
def queue_method_on_channel_zero(case: Case) -> Closed:
    return case.sends(method_frame(0, m.QueueDeclare(case.name)))


@scenario
def method_on_a_channel_not_open(case: Case) -> Closed:
    return case.sends(method_frame(9, m.QueueDeclare(case.name)))


@scenario
def frame_of_unknown_type(case: Case) -> Closed:
    return case.sends(frame(0, 0, b"1234567890\x001234567890"))


@scenario
def frame_over_the_limit(case: Case) -> Closed:
    return case.sends(frame(FRAME_BODY, 1, b"x" * 131073)[:7])


@scenario
def frame_of_two_gigabytes(case: Case) -> Closed:
    return case.sends(b"\x01\x00\x01\x7f\xff\xff\xff")


@scenario
def frame_without_end_octet(case: Case) -> Closed:
    return case.sends(b"\x01\x00\x01\x00\x00\x00\x02abx")


@scenario
def method_frame_of_two_bytes(case: Case) -> Closed:
    return case.sends(frame(FRAME_METHOD, 1, b"\x00\x3c"))


@scenario
def heartbeat_on_a_channel(case: Case) -> Closed:
    return case.sends(frame(FRAME_HEARTBEAT, 1, b""))


@scenario
def heartbeat_with_payload(case: Case) -> Closed:
    return case.sends(frame(FRAME_HEARTBEAT, 0, b"abc"))


@scenario
def body_on_channel_zero(case: Case) -> Closed:
    return case.sends(frame(FRAME_BODY, 0, b"xyz"))


@scenario
def body_instead_of_method(case: Case) -> Closed:
    return case.sends(frame(FRAME_BODY, 1, b"abc"))


@scenario
def method_instead_of_header(case: Case) -> Closed:
    publish = method_frame(1, m.BasicPublish("", "k"))
    return case.sends(publish + method_frame(1, m.BasicQos()))


@scenario
def header_of_another_class(case: Case) -> Closed:
    header = b"\x00\x0a" + encode_header(1, Properties())[2:]
    return case.sends(method_frame(1, m.BasicPublish("", "k")) + frame(FRAME_HEADER, 1, header))


@scenario
def method_instead_of_body(case: Case) -> Closed:
    header = frame(FRAME_HEADER, 1, encode_header(1, Properties()))
    publish = method_frame(1, m.BasicPublish("", "k"))
    return case.sends(publish + header + method_frame(1, m.BasicQos()))


LINES = [line for line in REPLIES.read_text().splitlines() if not line.startswith("#")]
EXPECTED = [Reply.parse(line) for line in LINES]


def test_every_line_of_the_file_has_a_scenario() -> None:
    assert sorted(reply.scenario for reply in EXPECTED) == sorted(SCENARIOS)


MARKS = {
    "unbind_locked_queue": pytest.mark.lone_only(
        "what a private queue is bound to is known to its broker only"
    ),
    "declare_exchange_of_unknown_type": differences.UNKNOWN_EXCHANGE_TYPE,
    "declare_exchange_of_empty_type": differences.UNKNOWN_EXCHANGE_TYPE,
    "declare_queue_with_unknown_mode": differences.QUEUE_MODES,
    "redeclare_classic_queue_as_quorum": differences.QUEUE_TYPE_TEXT,
    "redeclare_quorum_queue_without_type": differences.QUEUE_TYPE_TEXT,
    "publish_with_unknown_delivery_mode": differences.DELIVERY_MODES,
}


def marked(reply: Reply) -> object:
    marks = [MARKS[reply.scenario]] if reply.scenario in MARKS else []
    return pytest.param(reply, id=reply.scenario, marks=marks)


@pytest.mark.parametrize("reply", [marked(reply) for reply in EXPECTED])
def test_error_reply(
    reply: Reply, connect: Connect, dial: Callable[[], Wire], unique: Unique
) -> None:
    case = Case(connect, dial, unique)
    closed = SCENARIOS[reply.scenario](case)
    assert (closed.code, closed.text, closed.cause) == (
        reply.code,
        reply.text_for(case.name),
        reply.cause,
    )
    assert type(closed) is reply.closes
