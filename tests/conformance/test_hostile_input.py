"""Garbage, lies about sizes, deep nesting, half frames: a reply or a closed connection, never more.

Every test ends by showing that the broker still serves somebody else.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator

import pytest

from rhizome.amqp import methods as m
from rhizome.amqp.frames import frame, method_frame
from rhizome.amqp.properties import Properties, encode_header
from rhizome.testing.broker_process import Broker
from tests.conformance.wire_driver import (
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_METHOD,
    PROTOCOL_HEADER,
    Channel,
    Closed,
    Connection,
    EndOfStream,
    Wire,
)

from . import differences
from .conftest import Connect

HARD_ERRORS = {501, 502, 503, 504, 505, 530, 540, 541}


@pytest.fixture(autouse=True)
def others_are_still_served(broker: Broker) -> Iterator[None]:
    yield
    connection = Connection(broker)
    channel = connection.channel()
    queue = channel.declare()
    channel.publish("", queue, b"still here")
    got = channel.get(queue)
    assert got is not None
    assert got.body == b"still here"
    connection.close()


def ended(connection: Connection) -> int:
    """The code with which the broker ends the connection; 0 if it only closes the socket."""
    try:
        while True:
            connection.next_frame(0)
    except Closed as closed:
        return closed.code
    except (EndOfStream, ConnectionResetError):
        return 0


def code_of(attempt: Callable[[], object]) -> int:
    """The code with which an attempt was refused; 0 if it worked or the socket was closed."""
    try:
        attempt()
    except Closed as closed:
        return closed.code
    except (EndOfStream, ConnectionError, TimeoutError):
        return 0
    return 0


def opened(connect: Connect) -> Connection:
    connection = connect()
    connection.channel(1)
    return connection


@pytest.mark.parametrize("size", [131_073, 2**31 - 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("kind", [FRAME_METHOD, FRAME_HEADER, FRAME_BODY])
def test_a_frame_that_announces_too_much_is_refused_before_it_comes(
    connect: Connect, kind: int, size: int
) -> None:
    connection = opened(connect)
    connection.send(struct.pack(">BHI", kind, 1, size))
    assert ended(connection) == 501


@differences.SMALL_FRAMES
def test_a_frame_over_the_agreed_size_is_refused(connect: Connect) -> None:
    connection = connect(frame_max=4096)
    connection.channel(1)
    connection.send(struct.pack(">BHI", FRAME_METHOD, 1, 4097))
    assert ended(connection) == 501


@pytest.mark.parametrize("kind", [0, 4, 5, 6, 7, 9, 65, 255])
def test_an_unknown_frame_type_is_refused(connect: Connect, kind: int) -> None:
    connection = opened(connect)
    connection.send(frame(kind, 1, b"abc"))
    assert ended(connection) == 501


@pytest.mark.parametrize("end", [0x00, 0xCD, 0xCF, 0xFF])
def test_a_wrong_frame_end_is_refused(connect: Connect, end: int) -> None:
    connection = opened(connect)
    connection.send(method_frame(1, m.QueueDeclare("", exclusive=True))[:-1] + bytes([end]))
    assert ended(connection) == 501


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x00",
        b"\x00\x3c\x00",
        b"\xff\xff\xff\xff",
        b"\x00\x3c\x00\xff",
        b"\x00\x00\x00\x00",
        b"\x00\x32\x00\x0a",
        b"\x00\x32\x00\x0a\x00\x00\xff",
        b"\x00\x32\x00\x0a\x00\x00\x03abc",
        b"\x00\x32\x00\x0a\x00\x00\x03abc\x00\xff\xff\xff\xff",
        b"\x00\x32\x00\x0a\x00\x00\x03abc\x00\x00\x00\x00\x05\x01a",
        b"\x00\x32\x00\x0a\x00\x00\x03abc\x00\x00\x00\x00\x03\x01a?",
        b"\x00\x32\x00\x0a\x00\x00\x03abc\x00\x00\x00\x00\x07\x01aS\xff\xff\xff\xff",
        b"\x00\x32\x00\x0a\x00\x00\x03abc\x00\x00\x00\x00\x07\x01aF\x00\x00\x00\x09",
        b"\x00\x32\x00\x0a\x00\x00\x03abc\x00\x00\x00\x00\x03\xff\x00\x00",
    ],
    ids=lambda payload: payload.hex() or "empty",
)
def test_garbled_methods_end_the_connection(connect: Connect, payload: bytes) -> None:
    connection = opened(connect)
    connection.send(frame(FRAME_METHOD, 1, payload))
    assert ended(connection) in HARD_ERRORS | {0}


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\x00\x3c",
        struct.pack(">HHQ", 60, 0, 1),
        struct.pack(">HHQH", 60, 0, 1, 0x8000),
        struct.pack(">HHQH", 60, 0, 1, 0x8000) + b"\xffabc",
        struct.pack(">HHQH", 60, 0, 1, 0x2000) + b"\x7f\xff\xff\xff",
        struct.pack(">HHQH", 60, 0, 1, 0x2000) + b"\x00\x00\x00\x03\x01a",
        struct.pack(">HHQH", 60, 0, 1, 0x0001),
        struct.pack(">HHQH", 60, 0, 1, 0xFFFF) + b"\xff" * 20,
    ],
    ids=lambda header: header.hex() or "empty",
)
def test_garbled_content_headers_end_the_connection(connect: Connect, header: bytes) -> None:
    connection = opened(connect)
    channel = connection.channel(2)
    queue = channel.declare()
    connection.send(
        method_frame(2, m.BasicPublish("", queue))
        + frame(FRAME_HEADER, 2, header)
        + frame(FRAME_BODY, 2, b"x")
        # Whoever reads properties only when it needs them must notice when it does.
        + method_frame(2, m.BasicGet(queue, True))
        + method_frame(2, m.ChannelOpen())
    )
    assert ended(connection) in HARD_ERRORS | {0}


@pytest.mark.rhizome_only  # RabbitMQ waits for ever
def test_a_body_longer_than_announced_is_refused(connect: Connect) -> None:
    connection = opened(connect)
    connection.send(
        method_frame(1, m.BasicPublish("", "q"))
        + frame(FRAME_HEADER, 1, encode_header(3, Properties()))
        + frame(FRAME_BODY, 1, b"abcdef")
        + frame(FRAME_BODY, 1, b"abcdef")
    )
    assert ended(connection) in HARD_ERRORS


@pytest.mark.parametrize("size", [2**31, 2**40, 2**63, 2**64 - 1])
def test_a_body_announced_to_be_huge_does_not_cost_memory(connect: Connect, size: int) -> None:
    connection = opened(connect)
    header = struct.pack(">HHQH", 60, 0, size, 0)
    connection.send(
        method_frame(1, m.BasicPublish("", "q"))
        + frame(FRAME_HEADER, 1, header)
        + frame(FRAME_BODY, 1, b"x" * 1000)
    )
    # RabbitMQ waits for the rest up to 512 MiB and refuses more on the channel; both are fine.
    channel = Channel(connection, 1)
    assert code_of(lambda: channel.next(0.3)) in HARD_ERRORS | {0, 311, 406}


@pytest.mark.parametrize("frames", [1, 2, 3])
@pytest.mark.parametrize("cut", [1, 6, 7, 8, 12])
def test_a_connection_that_ends_in_mid_frame_leaves_no_trace(
    connect: Connect, frames: int, cut: int
) -> None:
    connection = opened(connect)
    channel = connection.channel(2)
    queue = channel.declare("", exclusive=False, auto_delete=True)
    parts = [
        method_frame(2, m.BasicPublish("", queue)),
        frame(FRAME_HEADER, 2, encode_header(100, Properties())),
        frame(FRAME_BODY, 2, b"x" * 100),
    ]
    connection.send(b"".join(parts[: frames - 1]) + parts[frames - 1][:cut])
    connection.close()
    other = connect().channel()
    assert other.get(queue) is None
    other.call(m.QueueDelete(queue), m.QueueDeleteOk)


def nested_table(depth: int) -> bytes:
    inner = b""
    for _ in range(depth):
        inner = b"\x01aF" + struct.pack(">I", len(inner)) + inner
    return struct.pack(">I", len(inner)) + inner


@pytest.mark.parametrize("depth", [500, 10_000])
def test_deeply_nested_tables_in_a_method_do_no_harm(connect: Connect, depth: int) -> None:
    connection = opened(connect)
    declare = struct.pack(">HHH", 50, 10, 0) + b"\x00" + b"\x04" + nested_table(depth)
    connection.send(frame(FRAME_METHOD, 1, declare))
    channel = Channel(connection, 1)
    assert code_of(lambda: channel.expect(m.QueueDeclareOk)) in HARD_ERRORS | {0}


@pytest.mark.parametrize("depth", [500, 10_000])
def test_deeply_nested_headers_do_no_harm(connect: Connect, depth: int) -> None:
    connection = opened(connect)
    channel = connection.channel(2)
    exchange_queue = channel.declare()
    channel.bind(exchange_queue, "amq.headers", "", {"x-match": "all", "a": "b"})
    header = struct.pack(">HHQH", 60, 0, 0, 0x2000) + nested_table(depth)
    connection.send(
        method_frame(2, m.BasicPublish("amq.headers", "")) + frame(FRAME_HEADER, 2, header)
    )
    assert code_of(lambda: channel.qos(1)) in HARD_ERRORS | {0, 406}


@pytest.mark.parametrize("name", ["\udcff\udcfe", "\x00", "a\x00b", "\udcc3", "\udced\udca0\udc80"])
def test_names_that_are_not_utf8_do_no_harm(connect: Connect, name: str) -> None:
    connection = opened(connect)
    channel = connection.channel(2)

    def use_it() -> None:
        channel.declare(name)
        channel.publish("", name, b"x")
        got = channel.get(name)
        assert got is not None
        assert got.method.routing_key == name
        channel.bind(name, "amq.topic", name)

    assert code_of(use_it) in HARD_ERRORS | {0, 406}


def test_a_flood_of_channel_opens_and_closes_is_served(connect: Connect) -> None:
    connection = connect()
    for _ in range(1000):
        connection.channel(1).close()


def test_heartbeats_in_mid_content_are_allowed(connect: Connect) -> None:
    connection = connect()
    channel = connection.channel(2)
    queue = channel.declare()
    beat = frame(8, 0, b"")
    connection.send(
        beat
        + method_frame(2, m.BasicPublish("", queue))
        + beat
        + frame(FRAME_HEADER, 2, encode_header(4, Properties()))
        + beat
        + frame(FRAME_BODY, 2, b"ab")
        + beat
        + frame(FRAME_BODY, 2, b"cd")
    )
    assert channel.get_wait(queue).body == b"abcd"


@pytest.mark.parametrize("seed", range(10))
def test_random_bytes_after_the_handshake_end_the_connection(connect: Connect, seed: int) -> None:
    connection = opened(connect)
    noise = random.Random(seed)
    connection.send(b"\xee" + noise.randbytes(3000))
    assert ended(connection) in HARD_ERRORS | {0}


@pytest.mark.parametrize("seed", range(20))
def test_good_traffic_with_bytes_flipped_does_no_harm(connect: Connect, seed: int) -> None:
    connection = opened(connect)
    channel = connection.channel(2)
    noise = random.Random(seed)
    queue = channel.declare()
    traffic = bytearray(
        method_frame(2, m.QueueBind(queue, "amq.topic", "a.#", arguments={"a": [1, {"b": None}]}))
        + channel.publish_frames("amq.topic", "a.b", b"body", Properties(headers={"x": 1}))
        + method_frame(2, m.BasicConsume(queue, "t", arguments={"x-priority": 5}))
        + method_frame(2, m.BasicAck(0, True))
    )
    for _ in range(3):
        traffic[noise.randrange(len(traffic))] ^= 1 << noise.randrange(8)
    try:
        connection.send(bytes(traffic))
        while True:
            connection.next_frame(2, 0.2)
    except (Closed, EndOfStream, TimeoutError, ConnectionError):
        pass


@pytest.mark.parametrize("seed", range(5))
def test_random_bytes_in_the_handshake_end_the_connection(
    dial: Callable[[], Wire], seed: int
) -> None:
    wire = dial()
    noise = random.Random(seed)
    wire.send(PROTOCOL_HEADER)
    wire.expect(m.ConnectionStart)
    wire.send(b"\xee" + noise.randbytes(3000))
    wire.rest()


def test_ten_connections_that_stop_in_mid_frame_hold_nobody_up(connect: Connect) -> None:
    stuck = [opened(connect) for _ in range(10)]
    for connection in stuck:
        connection.send(method_frame(1, m.QueueDeclare("", exclusive=True))[:9])
    channel = connect().channel()
    for _ in range(20):
        channel.declare()


def test_a_client_that_does_not_read_holds_nobody_up(connect: Connect) -> None:
    """Its deliveries wait in the broker within bounds; others go on."""
    deaf = connect()
    channel = deaf.channel()
    queue = channel.declare()
    publisher = connect().channel()
    publisher.confirm()
    channel.send(m.BasicConsume(queue, "deaf", no_ack=True))
    body = b"x" * 100_000
    for _ in range(200):
        publisher.publish_confirmed("", queue, body)
    mine = publisher.declare()
    publisher.publish_confirmed("", mine, b"quick")
    assert publisher.bodies(mine) == [b"quick"]
