"""From the first byte to open-ok, heartbeats, and the ways in which connections end."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable

import pytest

from rhizome import __version__
from rhizome.amqp import methods as m
from rhizome.amqp.field_table import encode_table
from rhizome.amqp.frames import frame, method_frame
from rhizome.testing.broker_process import Broker
from tests.conformance.wire_driver import (
    CLIENT_PROPERTIES,
    FRAME_HEARTBEAT,
    PROTOCOL_HEADER,
    Channel,
    Connection,
    ConnectionClosed,
    EndOfStream,
    Wire,
    plain,
)

from . import differences
from .conftest import Connect

Dial = Callable[[], Wire]


def started(dial: Dial) -> tuple[Wire, m.ConnectionStart]:
    wire = dial()
    wire.send(PROTOCOL_HEADER)
    return wire, wire.expect(m.ConnectionStart)


def logged_in(dial: Dial, broker: Broker) -> tuple[Wire, m.ConnectionTune]:
    wire, _ = started(dial)
    response = plain(broker.user, broker.password)
    wire.send_method(0, m.ConnectionStartOk(CLIENT_PROPERTIES, "PLAIN", response))
    return wire, wire.expect(m.ConnectionTune)


def ends_without_opening(wire: Wire) -> bool:
    """Whether the broker ends the connection, with or without saying why, and never opens it."""
    try:
        while True:
            got = wire.read_frame()
            assert got.kind != 1 or not isinstance(got.method(), m.ConnectionOpenOk)
            if got.kind == 1 and isinstance(got.method(), m.ConnectionClose):
                wire.send_method(0, m.ConnectionCloseOk())
    except (EndOfStream, ConnectionResetError, BrokenPipeError):
        return True


@pytest.mark.parametrize(
    "header",
    [
        b"AMQP\x00\x00\x09\x02",
        pytest.param(b"AMQP\x00\x00\x08\x00", marks=differences.PROTOCOL_HEADER),
        pytest.param(b"AMQP\x01\x01\x00\x0a", marks=differences.PROTOCOL_HEADER),
        pytest.param(b"AMQP\x00\x01\x00\x00", marks=differences.PROTOCOL_HEADER),
        pytest.param(b"AMQP\x03\x01\x00\x00", marks=differences.PROTOCOL_HEADER),
        pytest.param(b"GET / HT", marks=differences.PROTOCOL_HEADER),
        pytest.param(
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", marks=differences.PROTOCOL_HEADER
        ),
        pytest.param(b"\x00" * 8, marks=differences.PROTOCOL_HEADER),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01", marks=differences.PROTOCOL_HEADER),
    ],
    ids=["0-9-2", "0-8", "0-10", "1-0", "sasl", "http", "http-request", "zeros", "tls"],
)
def test_another_protocol_header_is_answered_with_ours_and_closed(
    dial: Dial, header: bytes
) -> None:
    wire = dial()
    wire.send(header)
    assert wire.rest() == PROTOCOL_HEADER


def test_the_protocol_header_may_come_byte_by_byte(dial: Dial) -> None:
    wire = dial()
    for octet in PROTOCOL_HEADER:
        wire.send(bytes([octet]))
    assert wire.expect(m.ConnectionStart).version_minor == 9


def test_start_offers_mechanisms_locale_and_product(dial: Dial) -> None:
    _, start = started(dial)
    assert (start.version_major, start.version_minor) == (0, 9)
    assert {b"PLAIN", b"AMQPLAIN"} <= set(start.mechanisms.split())
    assert b"en_US" in start.locales.split()
    properties = start.server_properties
    assert properties["product"] == "RabbitMQ"
    assert re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", str(properties["version"]))
    for key in ("platform", "copyright", "information", "cluster_name"):
        assert isinstance(properties[key], str), key


@pytest.mark.rhizome_only  # RabbitMQ from 4.3.7 on
def test_a_client_may_answer_the_cancel_of_its_consumer(channel: Channel, other: Channel) -> None:
    start = channel.connection.start
    assert start.server_properties["capabilities"]["accept_consumer_cancel_ok"] is True
    queue = channel.declare(exclusive=False)
    tag = channel.consume(queue)
    other.call(m.QueueDelete(queue), m.QueueDeleteOk)
    assert channel.expect(m.BasicCancel).consumer_tag == tag
    channel.send(m.BasicCancelOk(tag))
    assert channel.declare()


@pytest.mark.rhizome_only
def test_the_version_of_a_current_rabbitmq_is_announced_beside_ours(dial: Dial) -> None:
    _, start = started(dial)
    assert start.server_properties["version"] == "4.3.6"
    assert start.server_properties["rhizome"] == __version__


@pytest.mark.parametrize(
    "capability",
    [
        "authentication_failure_close",
        "basic.nack",
        "connection.blocked",
        "consumer_cancel_notify",
        "consumer_priorities",
        "direct_reply_to",
        "exchange_exchange_bindings",
        "per_consumer_qos",
        "publisher_confirms",
    ],
)
def test_capabilities_are_announced(dial: Dial, capability: str) -> None:
    _, start = started(dial)
    capabilities = start.server_properties["capabilities"]
    assert isinstance(capabilities, dict)
    assert capabilities[capability] is True


def test_tune_offers_2047_channels_128_kib_and_60_seconds(dial: Dial, broker: Broker) -> None:
    _, tune = logged_in(dial, broker)
    assert (tune.channel_max, tune.frame_max, tune.heartbeat) == (2047, 131072, 60)


def test_amqplain_logs_in(dial: Dial, broker: Broker) -> None:
    wire, _ = started(dial)
    login = encode_table({"LOGIN": broker.user, "PASSWORD": broker.password})[4:]
    wire.send_method(0, m.ConnectionStartOk(CLIENT_PROPERTIES, "AMQPLAIN", login))
    assert wire.expect(m.ConnectionTune)


@pytest.mark.parametrize("locale", ["en_US", "en_us", "en_GB", "xx_YY", ""])
def test_any_locale_is_accepted(dial: Dial, broker: Broker, locale: str) -> None:
    wire, _ = started(dial)
    response = plain(broker.user, broker.password)
    wire.send_method(0, m.ConnectionStartOk(CLIENT_PROPERTIES, "PLAIN", response, locale))
    assert wire.expect(m.ConnectionTune)


@pytest.mark.parametrize("user", ["guest", "nobody"])
def test_a_refused_login_is_told_to_clients_that_can_take_it(dial: Dial, user: str) -> None:
    wire, _ = started(dial)
    wire.send_method(0, m.ConnectionStartOk(CLIENT_PROPERTIES, "PLAIN", plain(user, "wrong")))
    close = wire.expect(m.ConnectionClose)
    text = "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN."
    assert (close.reply_code, close.class_id, close.method_id) == (403, 0, 0)
    assert close.reply_text.startswith(text)


def test_a_refused_login_leaves_the_socket_open_for_close_ok(dial: Dial) -> None:
    """Closed at once, a client that is still sending sees a reset instead of the reason."""
    wire, _ = started(dial)
    wire.send_method(0, m.ConnectionStartOk(CLIENT_PROPERTIES, "PLAIN", plain("guest", "wrong")))
    wire.expect(m.ConnectionClose)
    with pytest.raises(TimeoutError):
        wire.read(1, 0.5)
    wire.send_method(0, m.ConnectionCloseOk())
    assert wire.rest() == b""


def test_a_refused_login_is_a_closed_socket_for_clients_without_the_capability(
    dial: Dial,
) -> None:
    wire, _ = started(dial)
    wire.send_method(0, m.ConnectionStartOk({}, "PLAIN", plain("guest", "wrong")))
    assert wire.rest() == b""


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [("NOPE", b""), ("ANONYMOUS", b""), ("EXTERNAL", b""), ("PLAIN", b""), ("PLAIN", b"xyz")],
)
def test_an_unknown_mechanism_or_a_garbled_response_ends_the_connection(
    dial: Dial, mechanism: str, response: bytes
) -> None:
    wire, _ = started(dial)
    wire.send_method(0, m.ConnectionStartOk(CLIENT_PROPERTIES, mechanism, response))
    assert ends_without_opening(wire)


@pytest.mark.parametrize("response", [b"xyz", encode_table({"LOGIN": "guest"})[4:], b""])
def test_a_garbled_amqplain_response_ends_the_connection(dial: Dial, response: bytes) -> None:
    wire, _ = started(dial)
    wire.send_method(0, m.ConnectionStartOk(CLIENT_PROPERTIES, "AMQPLAIN", response))
    assert ends_without_opening(wire)


@pytest.mark.parametrize(
    "size",
    [
        4_000,
        pytest.param(8_000, marks=differences.LONG_LOGIN),
        pytest.param(16_000, marks=[differences.LONG_LOGIN, differences.LONGER_LOGIN]),
    ],
)
def test_a_login_may_be_long(connect: Connect, size: int) -> None:
    connection = connect(client_properties={"padding": "x" * (size - 100)})
    assert connection.channel().declare()


def test_a_login_may_not_be_longer_than_16_kib(connect: Connect) -> None:
    with pytest.raises((EndOfStream, ConnectionClosed)):
        connect(client_properties={"padding": "x" * 17_000})


@pytest.mark.parametrize(
    ("channel_max", "frame_max", "heartbeat"),
    [
        (2047, 131072, 60),
        pytest.param(1, 4096, 0, marks=differences.SMALL_FRAMES),
        (16, 8192, 1),
        (1024, 70000, 4),
        (2047, 131072, 65535),
    ],
)
def test_a_client_may_ask_for_less(
    connect: Connect, channel_max: int, frame_max: int, heartbeat: int
) -> None:
    connection = connect(channel_max=channel_max, frame_max=frame_max, heartbeat=heartbeat)
    assert connection.channel().declare().startswith("amq.gen-")


@pytest.mark.parametrize(
    ("channel_max", "frame_max"),
    [(2048, 131072), (65535, 131072), (0, 131072), (2047, 131073), (2047, 4095), (2047, 0)],
)
def test_a_client_may_not_ask_for_more_or_for_tiny_frames(
    dial: Dial, broker: Broker, channel_max: int, frame_max: int
) -> None:
    wire, _ = logged_in(dial, broker)
    wire.send_method(0, m.ConnectionTuneOk(channel_max, frame_max, 0))
    wire.send_method(0, m.ConnectionOpen("/"))
    assert ends_without_opening(wire)


@differences.SMALL_FRAMES
def test_frames_sent_are_within_the_size_that_was_agreed(connect: Connect) -> None:
    sender = connect().channel()
    receiver = connect(frame_max=4096)
    channel = receiver.channel()
    queue = channel.declare()
    body = bytes(range(256)) * 100
    sender.publish("", queue, body)
    assert channel.get_wait(queue).body == body  # the driver checks every frame's size


@pytest.mark.parametrize(
    "early",
    [
        m.ConnectionOpen("/"),
        m.ConnectionTuneOk(2047, 131072, 0),
        m.ConnectionUpdateSecret(b"s", "r"),
        m.QueueDeclare("q"),
    ],
    ids=lambda method: method.name(),
)
def test_nothing_but_start_ok_may_follow_start(dial: Dial, early: m.Method) -> None:
    wire, _ = started(dial)
    wire.send_method(0, early)
    assert ends_without_opening(wire)


def test_a_channel_may_not_be_opened_before_the_connection(dial: Dial, broker: Broker) -> None:
    wire, _ = logged_in(dial, broker)
    wire.send_method(1, m.ChannelOpen())
    assert ends_without_opening(wire)


def test_open_may_not_precede_tune_ok(dial: Dial, broker: Broker) -> None:
    wire, _ = logged_in(dial, broker)
    wire.send_method(0, m.ConnectionOpen("/"))
    assert ends_without_opening(wire)


def test_an_oversized_frame_in_the_handshake_ends_the_connection(dial: Dial) -> None:
    wire, _ = started(dial)
    wire.send(b"\x01\x00\x00\xff\xff\xff\xff")
    assert ends_without_opening(wire)


def test_the_whole_handshake_may_be_pipelined(dial: Dial, broker: Broker) -> None:
    wire = dial()
    response = plain(broker.user, broker.password)
    wire.send(
        PROTOCOL_HEADER
        + method_frame(0, m.ConnectionStartOk(CLIENT_PROPERTIES, "PLAIN", response))
        + method_frame(0, m.ConnectionTuneOk(2047, 131072, 0))
        + method_frame(0, m.ConnectionOpen("/"))
        + method_frame(1, m.ChannelOpen())
        + method_frame(1, m.QueueDeclare("", exclusive=True))
    )
    wire.expect(m.ConnectionStart)
    wire.expect(m.ConnectionTune)
    wire.expect(m.ConnectionOpenOk)
    wire.expect(m.ChannelOpenOk, 1)
    assert wire.expect(m.QueueDeclareOk, 1).queue


def test_update_secret_is_answered(connection: Connection) -> None:
    connection.call(m.ConnectionUpdateSecret(b"new", "rotation"), m.ConnectionUpdateSecretOk)
    assert connection.channel().declare()


@pytest.mark.lone_only("other brokers know whose a server-named queue is, not that it is gone")
def test_close_is_answered_and_ends_open_channels(connect: Connect, connection: Connection) -> None:
    queue = connection.channel().declare()
    connection.call(m.ConnectionClose(200, "bye"), m.ConnectionCloseOk)
    closed = connect().channel().fails(m.QueueDeclare(queue, passive=True))
    assert closed.code == 404


def test_close_sent_twice_is_answered_twice(connection: Connection) -> None:
    """Clients that close from several threads do this; the socket is theirs to close."""
    connection.send(
        method_frame(0, m.ConnectionClose(200, "bye"))
        + method_frame(0, m.ConnectionClose(200, "bye"))
    )
    for _ in range(2):
        connection.expect(m.ConnectionCloseOk)


def test_frames_after_a_close_by_the_broker_are_ignored_until_close_ok(
    connection: Connection,
) -> None:
    connection.send_method(0, m.ConnectionTuneOk(1, 4096, 0))
    connection.send_method(1, m.ChannelOpen())
    connection.send_method(1, m.QueueDeclare("q"))
    assert connection.closed_by_broker().code == 504


def test_close_from_both_sides_at_once_is_settled(connection: Connection) -> None:
    connection.send(
        method_frame(0, m.ConnectionTuneOk(1, 4096, 0))
        + method_frame(0, m.ConnectionClose(200, "bye"))
    )
    assert connection.expect(m.ConnectionClose).reply_code == 504
    got = connection.read_frame()
    assert isinstance(got.method(), m.ConnectionCloseOk)


def test_the_broker_sends_heartbeats_at_half_the_interval(connect: Connect) -> None:
    connection = connect(heartbeat=2)
    beats = [connection.read_frame() for _ in range(2)]
    assert {(beat.kind, beat.channel, beat.payload) for beat in beats} == {(8, 0, b"")}


def test_a_silent_client_is_dropped_after_two_intervals(connect: Connect) -> None:
    connection = connect(heartbeat=1)
    began = time.monotonic()
    connection.rest()
    assert time.monotonic() - began >= 1.5


def test_a_client_that_only_sends_heartbeats_stays(connect: Connect) -> None:
    connection = connect(heartbeat=1)
    until = time.monotonic() + 3.5
    beat = frame(FRAME_HEARTBEAT, 0, b"")
    while time.monotonic() < until:
        connection.send(beat)
        assert connection.read_frame().kind == FRAME_HEARTBEAT
    assert connection.channel().declare()


def test_any_traffic_counts_as_a_heartbeat(connect: Connect) -> None:
    """It is tried again where the machine keeps this client from sending for a second."""
    for _ in range(10):
        longest_s, failure = _traffic_goes_on(connect)
        if failure is None:
            return
        if longest_s < 1.0:
            raise failure
    pytest.fail("this client never came to send a frame a second")


def _traffic_goes_on(connect: Connect) -> tuple[float, Exception | None]:
    """The longest pause between two frames of this client, and how the connection ended, if it
    did."""
    channel = connect(heartbeat=1).channel()
    began = last = time.monotonic()
    longest_s = 0.0
    while last - began < 3.5:
        try:
            assert channel.declare()
            assert channel.is_quiet(0.4)
        except EndOfStream as error:
            return max(longest_s, time.monotonic() - last), error
        now = time.monotonic()
        longest_s, last = max(longest_s, now - last), now
    return longest_s, None


def test_no_heartbeat_was_asked_for_and_none_comes(connect: Connect) -> None:
    connection = connect(heartbeat=0)
    with pytest.raises(TimeoutError):
        connection.read_frame(1.5)


def test_localhost_is_served_on_ipv4_and_ipv6(broker: Broker) -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        wire = Wire("::1", broker.port)
    except OSError as error:
        if broker.host == "127.0.0.1":
            pytest.skip(f"the broker was told to listen on {broker.host} only: {error}")
        raise
    wire.send(PROTOCOL_HEADER)
    wire.expect(m.ConnectionStart)
    wire.close()


def test_a_client_that_disappears_leaves_its_messages_to_others(
    connect: Connect, unique: Callable[[str], str]
) -> None:
    queue = unique("left")
    first = connect()
    holder = first.channel()
    holder.declare(queue, exclusive=False, auto_delete=False)
    holder.publish("", queue, b"held")
    assert holder.get(queue, no_ack=False) is not None
    first.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    first.close()
    channel = connect().channel()
    got = channel.get_wait(queue)
    assert (got.body, got.method.redelivered) == (b"held", True)
    channel.call(m.QueueDelete(queue), m.QueueDeleteOk)


def test_an_unknown_vhost_is_named_in_the_refusal(connect: Connect) -> None:
    with pytest.raises(ConnectionClosed) as closed:
        connect(vhost="no-such-vhost")
    assert str(closed.value) == "530 NOT_ALLOWED - vhost no-such-vhost not found (10.40)"


@pytest.mark.rhizome_only
def test_a_handshake_that_never_goes_on_is_given_up(dial: Dial) -> None:
    """Ten seconds after it began, whatever it waits for: all of them at once."""
    silent, dripping = dial(), dial()
    without_login, _ = started(dial)
    dripping.send(PROTOCOL_HEADER[:3])
    assert silent.rest(60) in (b"", PROTOCOL_HEADER)
    assert dripping.rest(60) in (b"", PROTOCOL_HEADER)
    without_login.rest(60)
