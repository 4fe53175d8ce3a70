"""Content headers: golden bytes, round trips, and the scan that decodes nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhizome.amqp.field_table import Timestamp
from rhizome.amqp.properties import (
    FLAG_HEADERS,
    FLAGS_OFFSET,
    Properties,
    PropertySpans,
    body_size_of,
    decode_properties,
    encode_header,
    scan,
)
from rhizome.errors import SyntaxErrorFault

FIELDS = [
    "content_type",
    "content_encoding",
    "headers",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
]


def all_fourteen() -> Properties:
    return Properties(
        content_type="text/plain",
        content_encoding="utf-8",
        headers={"k": True},
        delivery_mode=2,
        priority=9,
        correlation_id="c",
        reply_to="r",
        expiration="1000",
        message_id="m",
        timestamp=2**64 - 1,
        type="t",
        user_id="guest",
        app_id="a",
        cluster_id="",
    )


GOLDEN = (
    b"\x00\x3c\x00\x00\x00\x00\x00\x00\x00\x00\x00\x03\xff\xfc"
    b"\x0atext/plain\x05utf-8\x00\x00\x00\x04\x01kt\x01\x02\x09\x01c\x01r\x041000\x01m"
    b"\xff\xff\xff\xff\xff\xff\xff\xff\x01t\x05guest\x01a\x00"
)


def values_of(properties: Properties) -> list[object]:
    return [getattr(properties, name) for name in FIELDS]


def scanned(payload: bytes) -> PropertySpans:
    return scan(payload, FLAGS_OFFSET, len(payload))


def test_header_is_encoded() -> None:
    assert encode_header(3, all_fourteen()) == GOLDEN
    assert encode_header(2**40, Properties())[4:] == b"\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00"


def test_header_is_decoded() -> None:
    assert values_of(decode_properties(GOLDEN)) == values_of(all_fourteen())
    assert body_size_of(GOLDEN) == 3
    assert decode_properties(GOLDEN + b"junk").cluster_id == ""


def test_absent_properties_are_none() -> None:
    assert values_of(decode_properties(encode_header(0, Properties()))) == [None] * 14


@pytest.mark.parametrize("name", FIELDS)
def test_each_property_alone_survives_a_round_trip(name: str) -> None:
    properties = Properties()
    setattr(properties, name, getattr(all_fourteen(), name))
    payload = encode_header(0, properties)
    assert values_of(decode_properties(payload)) == values_of(properties)
    assert scanned(payload).end == len(payload)
    for end in range(FLAGS_OFFSET + 2, len(payload)):
        with pytest.raises(SyntaxErrorFault):
            decode_properties(payload[:end])
        with pytest.raises(SyntaxErrorFault):
            scanned(payload[:end])


def test_header_cut_at_any_byte_is_a_syntax_error_of_basic_publish() -> None:
    for end in range(len(GOLDEN)):
        for decode in (decode_properties, scanned):
            with pytest.raises(SyntaxErrorFault) as caught:
                decode(GOLDEN[:end])
            assert (caught.value.class_id, caught.value.method_id) == (60, 40)


def test_scan_finds_what_a_broker_needs() -> None:
    spans = scanned(GOLDEN)
    assert (spans.delivery_mode, spans.priority) == (2, 9)
    assert GOLDEN[spans.headers_start : spans.headers_end] == b"\x01kt\x01"
    assert spans.headers_at == spans.headers_start - 4
    assert GOLDEN[spans.reply_to_start : spans.reply_to_end] == b"r"
    assert GOLDEN[spans.expiration_start : spans.expiration_end] == b"1000"
    assert GOLDEN[spans.message_id_start : spans.message_id_end] == b"m"
    assert GOLDEN[spans.user_id_start : spans.user_id_end] == b"guest"
    assert spans.end == len(GOLDEN)


def test_scan_tells_absent_from_empty() -> None:
    spans = scanned(encode_header(0, Properties()))
    assert (spans.delivery_mode, spans.priority) == (-1, -1)
    assert (spans.headers_start, spans.headers_end) == (0, 0)
    assert (spans.expiration_start, spans.expiration_end) == (0, 0)
    empty = scanned(encode_header(0, Properties(headers={}, expiration="")))
    assert empty.headers_start == empty.headers_end > 0
    assert empty.expiration_start == empty.expiration_end > 0


def test_place_of_absent_headers_is_known() -> None:
    payload = encode_header(0, Properties(content_type="a", content_encoding="b", priority=1))
    spans = scanned(payload)
    assert payload[spans.headers_at :] == b"\x01"
    assert not spans.flags & FLAG_HEADERS


def test_scan_works_in_the_middle_of_a_buffer() -> None:
    buffer = b"before" + GOLDEN + b"after"
    spans = scan(buffer, 6 + FLAGS_OFFSET, 6 + len(GOLDEN))
    assert buffer[spans.user_id_start : spans.user_id_end] == b"guest"
    with pytest.raises(SyntaxErrorFault):
        scan(buffer, 6 + FLAGS_OFFSET, len(buffer) + 1)


def test_second_word_of_flags_is_a_syntax_error() -> None:
    payload = GOLDEN[:FLAGS_OFFSET] + b"\x00\x01\x00\x00"
    for decode in (decode_properties, scanned):
        with pytest.raises(SyntaxErrorFault):
            decode(payload)


def test_property_that_does_not_fit_is_refused() -> None:
    for properties in (Properties(delivery_mode=256), Properties(message_id="m" * 256)):
        with pytest.raises(ValueError):
            encode_header(0, properties)


text = st.binary(max_size=30).map(lambda data: data.decode("utf-8", "surrogateescape"))
octet = st.integers(0, 255)
headers = st.dictionaries(
    text, st.one_of(st.integers(-5, 5), text, st.just(Timestamp(1))), max_size=3
)


@st.composite
def properties(draw: st.DrawFn) -> Properties:
    made = Properties()
    for name in draw(st.sets(st.sampled_from(FIELDS))):
        if name == "headers":
            made.headers = draw(headers)
        elif name in ("delivery_mode", "priority"):
            setattr(made, name, draw(octet))
        elif name == "timestamp":
            made.timestamp = draw(st.integers(0, 2**64 - 1))
        else:
            setattr(made, name, draw(text))
    return made


@given(properties())
def test_properties_survive_a_round_trip(made: Properties) -> None:
    payload = encode_header(5, made)
    assert values_of(decode_properties(payload)) == values_of(made)
    spans = scanned(payload)
    assert spans.end == len(payload)
    assert spans.priority == (-1 if made.priority is None else made.priority)
    expiration = payload[spans.expiration_start : spans.expiration_end]
    assert expiration == (made.expiration or "").encode("utf-8", "surrogateescape")


@given(st.binary(max_size=60))
def test_random_bytes_raise_nothing_but_syntax_errors(data: bytes) -> None:
    payload = bytes(FLAGS_OFFSET) + data
    for decode in (decode_properties, scanned):
        try:
            decode(payload)
        except SyntaxErrorFault:
            pass
