"""Properties and headers come out byte for byte as they went in."""

from __future__ import annotations

import struct
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rhizome.amqp import methods as m
from rhizome.amqp.field_table import Timestamp
from rhizome.amqp.frames import content_frames, method_frame
from rhizome.amqp.properties import Properties, encode_header
from tests.conformance import differences
from tests.conformance.wire_driver import Channel

EVERYTHING = Properties(
    content_type="application/json",
    content_encoding="gzip",
    headers={"k": "v"},
    delivery_mode=1,
    priority=200,
    correlation_id="c",
    reply_to="r",
    expiration="60000",
    message_id="m",
    timestamp=2**63,
    type="t",
    user_id="guest",
    app_id="a",
    cluster_id="k",
)
# Written out: a compiled class has no annotations.
NAMES = (
    *("content_type", "content_encoding", "delivery_mode", "priority", "correlation_id"),
    *("reply_to", "expiration", "message_id", "timestamp", "type", "user_id", "app_id"),
    "cluster_id",
)


def passed_through(channel: Channel, header: bytes, body: bytes = b"") -> bytes:
    """The content header that is delivered for the one that is published."""
    queue = channel.declare()
    channel.connection.send(
        method_frame(channel.number, m.BasicPublish("", queue))
        + content_frames(channel.number, header, body, channel.connection.frame_max)
    )
    got = channel.get(queue)
    assert got is not None
    return got.header


def header_with(flags: int, properties: bytes) -> bytes:
    return struct.pack(">HHQH", 60, 0, 0, flags) + properties


def table(entries: bytes) -> bytes:
    return struct.pack(">I", len(entries)) + entries


def test_all_properties_together(channel: Channel) -> None:
    header = encode_header(0, EVERYTHING)
    assert passed_through(channel, header) == header


@pytest.mark.parametrize("name", [*NAMES, "headers"])
def test_each_property_alone(channel: Channel, name: str) -> None:
    header = encode_header(0, Properties(**{name: getattr(EVERYTHING, name)}))
    assert passed_through(channel, header) == header


def test_no_properties_at_all(channel: Channel) -> None:
    header = encode_header(0, Properties())
    assert passed_through(channel, header) == header


@pytest.mark.parametrize("name", ["content_type", "message_id", "app_id", "reply_to"])
@pytest.mark.parametrize("text", ["", "x" * 255, "ü€", "\x00\x01\x7f", "\udcff\udcfe"])
def test_short_strings_of_any_bytes(channel: Channel, name: str, text: str) -> None:
    header = encode_header(0, Properties(**{name: text}))
    assert passed_through(channel, header) == header


@pytest.mark.parametrize(
    "value",
    [
        b"t\x01",
        b"t\x00",
        b"b\x80",
        b"B\xff",
        b"s\x80\x00",
        b"u\xff\xff",
        b"I\x80\x00\x00\x00",
        b"i\xff\xff\xff\xff",
        b"l\x80\x00\x00\x00\x00\x00\x00\x00",
        b"f\x3f\x80\x00\x01",
        b"d\xbf\xf8\x00\x00\x00\x00\x00\x01",
        b"D\x02\x00\x00\x01\x02",
        b"D\xff\xff\xff\xff\xff",
        b"S\x00\x00\x00\x03\xff\xfe\x00",
        b"x\x00\x00\x00\x03\x00\x01\x02",
        b"T\xff\xff\xff\xff\xff\xff\xff\xff",
        b"T\x00\x00\x00\x00\x00\x00\x00\x00",
        b"V",
        b"A\x00\x00\x00\x00",
        b"A\x00\x00\x00\x03Vt\x01",
        b"F\x00\x00\x00\x00",
        b"F\x00\x00\x00\x0a\x01aF\x00\x00\x00\x03\x01bV",
    ],
    ids=lambda value: value[:1].decode() + str(len(value)),
)
def test_header_values_of_every_type(channel: Channel, value: bytes) -> None:
    header = header_with(0x2000, table(b"\x03key" + value + b"\x04more" + b"t\x01"))
    assert passed_through(channel, header) == header


@pytest.mark.rhizome_only  # RabbitMQ has no such numbers and ends the connection
@pytest.mark.parametrize(
    "value", [b"f\x7f\xc0\x00\x01", b"d\x7f\xf8\x00\x00\x00\x00\x00\x01", b"f\x7f\x80\x00\x00"]
)
def test_numbers_that_are_none_pass(channel: Channel, value: bytes) -> None:
    header = header_with(0x2000, table(b"\x03key" + value))
    assert passed_through(channel, header) == header


@differences.HEADER_TABLES
def test_the_order_of_header_fields_is_kept(channel: Channel) -> None:
    entries = b"".join(bytes([1]) + name + b"V" for name in (b"z", b"a", b"m", b"b"))
    header = header_with(0x2000, table(entries))
    assert passed_through(channel, header) == header


@differences.HEADER_TABLES
def test_large_headers_pass(channel: Channel) -> None:
    headers: dict[str, object] = {f"key{number}": "x" * 100 for number in range(1000)}
    header = encode_header(0, Properties(headers=headers))
    assert len(header) > 100_000
    assert passed_through(channel, header) == header


def test_nested_tables_and_arrays_pass(channel: Channel) -> None:
    nested: object = {"end": None}
    for number in range(30):
        nested = {"down": nested} if number % 2 else {"down": [nested, number]}
    header = encode_header(0, Properties(headers={"top": nested}))
    assert passed_through(channel, header) == header


SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.none(),
    st.integers(0, 2**64 - 1).map(Timestamp),
    st.builds(Decimal, st.integers(-999, 999)),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(max_size=10), inner, max_size=4),
    ),
    max_leaves=10,
)
# CC and BCC would be read as routing keys.
HEADERS = st.dictionaries(
    st.text(max_size=20).filter(lambda name: name not in ("CC", "BCC")), VALUES, max_size=6
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(headers=HEADERS, body=st.binary(max_size=50))
@differences.HEADER_TABLES
def test_any_headers_pass(channel: Channel, headers: dict[str, object], body: bytes) -> None:
    header = encode_header(len(body), Properties(headers=headers, content_type="x"))
    assert passed_through(channel, header, body) == header
