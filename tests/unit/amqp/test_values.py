"""Field tables: golden bytes, round trips, and bytes that are no tables."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhizome.amqp.field_table import (
    TABLE_DEPTH_MAX,
    Timestamp,
    check_table,
    decode_table,
    encode_table,
    encode_value,
    find_entry,
    raw_entries,
    read_table,
    type_name,
    value_at,
)
from rhizome.errors import SyntaxErrorFault

GOLDEN: list[tuple[bytes, object]] = [
    (b"t\x01", True),
    (b"t\x00", False),
    (b"I\x00\x00\x00\x05", 5),
    (b"I\xff\xff\xff\xff", -1),
    (b"I\x80\x00\x00\x00", -(2**31)),
    (b"l\x00\x00\x00\x00\x80\x00\x00\x00", 2**31),
    (b"l\x80\x00\x00\x00\x00\x00\x00\x00", -(2**63)),
    (b"d\x3f\xf8\x00\x00\x00\x00\x00\x00", 1.5),
    (b"D\x02\x00\x00\x01\x3a", Decimal("3.14")),
    (b"D\x00\xff\xff\xff\xff", Decimal(-1)),
    (b"D\xff\x00\x00\x00\x01", Decimal("1E-255")),
    (b"S\x00\x00\x00\x03\xc3\xa4x", "\u00e4x"),
    (b"S\x00\x00\x00\x01\xff", "\udcff"),
    (b"x\x00\x00\x00\x02\x00\xff", b"\x00\xff"),
    (b"T\xff\xff\xff\xff\xff\xff\xff\xff", Timestamp(2**64 - 1)),
    (b"V", None),
    (b"A\x00\x00\x00\x03t\x01V", [True, None]),
    (b"A\x00\x00\x00\x00", []),
    (b"F\x00\x00\x00\x04\x01ct\x01", {"c": True}),
]
ONLY_DECODED: list[tuple[bytes, object]] = [
    (b"t\x07", True),
    (b"b\xff", -1),
    (b"B\xff", 255),
    (b"s\xff\xfe", -2),
    (b"u\xff\xfe", 65534),
    (b"i\xff\xff\xff\xff", 2**32 - 1),
    (b"L\xff\xff\xff\xff\xff\xff\xff\xff", -1),
    (b"f\x3f\xc0\x00\x00", 1.5),
]


def table_of(value: bytes) -> bytes:
    return b"\x01k" + value


@pytest.mark.parametrize(("data", "value"), GOLDEN + ONLY_DECODED)
def test_value_is_decoded(data: bytes, value: object) -> None:
    body = table_of(data)
    decoded = decode_table(body, 0, len(body))["k"]
    assert decoded == value
    assert type(decoded) is type(value)


@pytest.mark.parametrize(("data", "value"), GOLDEN)
def test_value_is_encoded(data: bytes, value: object) -> None:
    assert encode_value(value) == data


def test_decimal_keeps_its_scale() -> None:
    body = table_of(encode_value(Decimal("1.50")))
    assert str(decode_table(body, 0, len(body))["k"]) == "1.50"
    assert encode_value(Decimal("2E+3")) == b"D\x00\x00\x00\x07\xd0"


EVERYTHING = b"".join(
    bytes([2]) + f"{place:02}".encode() + data
    for place, (data, _) in enumerate(GOLDEN + ONLY_DECODED)
)


def test_table_cut_at_any_byte_is_a_syntax_error_or_a_shorter_table() -> None:
    whole = decode_table(EVERYTHING, 0, len(EVERYTHING))
    ends = {end for _, _, end in raw_entries(EVERYTHING, 0, len(EVERYTHING))} | {0}
    for end in range(len(EVERYTHING)):
        if end in ends:
            part = decode_table(EVERYTHING, 0, end)
            assert list(part.items()) == list(whole.items())[: len(part)]
        else:
            with pytest.raises(SyntaxErrorFault):
                decode_table(EVERYTHING, 0, end)
            with pytest.raises(SyntaxErrorFault):
                raw_entries(EVERYTHING, 0, end)


def test_table_is_read_from_the_middle_of_other_bytes() -> None:
    encoded = encode_table({"a": 1})
    assert read_table(b"??" + encoded + b"junk", 2) == ({"a": 1}, 2 + len(encoded))


@pytest.mark.parametrize("cut", range(1, 12))
def test_length_beyond_the_end_is_a_syntax_error(cut: int) -> None:
    encoded = encode_table({"a": 1})
    assert len(encoded) == 11
    with pytest.raises(SyntaxErrorFault):
        read_table(encoded[:-cut], 0)


@pytest.mark.parametrize("data", [b"S\xff\xff\xff\xff", b"A\x7f\xff\xff\xff", b"F\x80\x00\x00\x00"])
def test_huge_length_is_a_syntax_error(data: bytes) -> None:
    body = table_of(data + b"abc")
    with pytest.raises(SyntaxErrorFault):
        decode_table(body, 0, len(body))


def test_unknown_type_is_a_syntax_error() -> None:
    with pytest.raises(SyntaxErrorFault, match="unknown type 122"):
        decode_table(table_of(b"z\x00"), 0, 4)


def test_first_of_two_entries_with_one_name_counts() -> None:
    body = b"\x01kt\x01\x01kV"
    assert decode_table(body, 0, len(body)) == {"k": True}
    assert find_entry(body, 0, len(body), b"k") == (2, 4)


def nested(depth: int) -> dict[str, object]:
    table: dict[str, object] = {}
    for _ in range(depth - 1):
        table = {"t": table}
    return table


def test_nesting_is_bounded() -> None:
    deepest = encode_table(nested(TABLE_DEPTH_MAX))
    assert read_table(deepest, 0)[0] == nested(TABLE_DEPTH_MAX)
    with pytest.raises(ValueError, match="deeper"):
        encode_table(nested(TABLE_DEPTH_MAX + 1))
    check_table(deepest, 4, len(deepest))
    body = b"\x01tF" + deepest
    for decode in (decode_table, check_table):
        with pytest.raises(SyntaxErrorFault, match="deeper"):
            decode(body, 0, len(body))


def test_frame_full_of_nested_arrays_is_refused() -> None:
    body = b""
    for _ in range(20_000):
        body = b"A" + len(body).to_bytes(4, "big") + body if len(body) < 120_000 else body
    data = b"\x01a" + body
    with pytest.raises(SyntaxErrorFault, match="deeper"):
        decode_table(data, 0, len(data))


@pytest.mark.parametrize(
    "value",
    [
        2**63,
        -(2**63) - 1,
        object(),
        (1, 2),
        Decimal("NaN"),
        Decimal("1E-256"),
        Decimal("1E+999999"),
    ],
)
def test_value_without_a_type_octet_is_refused(value: object) -> None:
    with pytest.raises(ValueError):
        encode_value(value)


def test_name_longer_than_255_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="255 bytes"):
        encode_table({"n" * 256: 1})


def test_timestamp_is_64_bits() -> None:
    assert Timestamp(5) == Timestamp(5)
    assert Timestamp(5) != 5
    assert len({Timestamp(5), Timestamp(5)}) == 1
    for seconds in (-1, 2**64):
        with pytest.raises(ValueError):
            Timestamp(seconds)


def test_type_names_are_those_of_rabbitmq() -> None:
    values = ["x", True, 1, 2**40, {}, [], None, 1.5, b"", Timestamp(0), Decimal(1)]
    assert [type_name(value) for value in values] == [
        "longstr",
        "bool",
        "signedint",
        "long",
        "table",
        "array",
        "void",
        "double",
        "binary",
        "timestamp",
        "decimal",
    ]


def test_raw_entries_cover_the_table() -> None:
    entries = raw_entries(EVERYTHING, 0, len(EVERYTHING))
    at = 0
    for name, start, end in entries:
        assert start == at + 1 + len(name)
        at = end
    assert at == len(EVERYTHING)
    values = dict(decode_table(EVERYTHING, 0, len(EVERYTHING)))
    assert {name: value_at(EVERYTHING, start, end) for name, start, end in entries} == values


def test_absent_entry_is_not_found() -> None:
    assert find_entry(EVERYTHING, 0, len(EVERYTHING), b"nn") == (0, 0)
    assert find_entry(b"", 0, 0, b"nn") == (0, 0)


text = st.binary(max_size=20).map(lambda data: data.decode("utf-8", "surrogateescape"))
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.binary(max_size=20),
    text,
    st.integers(0, 2**64 - 1).map(Timestamp),
    st.builds(
        lambda n, s: Decimal(n).scaleb(-s), st.integers(-(2**31), 2**31 - 1), st.integers(0, 9)
    ),
)
tables = st.dictionaries(
    text,
    st.recursive(
        scalars, lambda inner: st.lists(inner) | st.dictionaries(text, inner), max_leaves=8
    ),
    max_size=6,
)


@given(tables)
def test_table_survives_a_round_trip(table: dict[str, object]) -> None:
    encoded = encode_table(table)
    decoded, end = read_table(encoded, 0)
    assert decoded == table
    assert end == len(encoded)
    assert encode_table(decoded) == encoded


@given(st.binary(max_size=60))
def test_random_bytes_raise_nothing_but_syntax_errors(data: bytes) -> None:
    for decode in (decode_table, raw_entries, check_table):
        try:
            decode(data, 0, len(data))
        except SyntaxErrorFault:
            pass


def is_refused(decode: Callable[[bytes, int, int], object], data: bytes) -> bool:
    try:
        decode(data, 4, len(data))
    except SyntaxErrorFault:
        return True
    return False


@given(tables, st.data())
def test_table_with_a_wrong_byte_raises_nothing_but_syntax_errors(
    table: dict[str, object], data: st.DataObject
) -> None:
    encoded = bytearray(encode_table(table))
    place = data.draw(st.integers(0, len(encoded) - 1))
    encoded[place] = data.draw(st.integers(0, 255))
    try:
        read_table(bytes(encoded), 0)
    except SyntaxErrorFault:
        pass
    assert is_refused(check_table, bytes(encoded)) == is_refused(decode_table, bytes(encoded))
