"""Sizes, times, shares and addresses as people write them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhizome.server.config.units import (
    SIZE_UNITS,
    TIME_UNITS,
    VALUE_MAX,
    Address,
    UnitError,
    format_duration,
    format_interval,
    format_size,
    parse_address,
    parse_duration,
    parse_interval,
    parse_portion,
    parse_size,
)


@given(st.integers(0, VALUE_MAX))
def test_every_size_survives_being_written_and_read(size: int) -> None:
    assert parse_size(format_size(size)) == size


@given(st.integers(0, VALUE_MAX))
def test_every_time_survives_being_written_and_read(duration_ms: int) -> None:
    assert parse_duration(format_duration(duration_ms)) == duration_ms


@given(st.integers(0, VALUE_MAX))
def test_every_interval_survives_being_written_and_read(interval_us: int) -> None:
    assert parse_interval(format_interval(interval_us)) == interval_us


@given(st.integers(0, 10**6), st.sampled_from(sorted(SIZE_UNITS)), st.sampled_from(["", " "]))
def test_size_is_number_times_unit(number: int, unit: str, space: str) -> None:
    assert parse_size(f"{number}{space}{unit}") == number * SIZE_UNITS[unit]


@given(st.integers(0, 10**6), st.sampled_from(sorted(TIME_UNITS)))
def test_time_is_number_times_unit(number: int, unit: str) -> None:
    assert parse_duration(f"{number}{unit}") == number * TIME_UNITS[unit]


@given(st.text(max_size=12))
def test_any_other_text_is_refused_and_nothing_worse(text: str) -> None:
    for parse in (parse_size, parse_duration, parse_interval, parse_portion, parse_address):
        try:
            parse(text)
        except UnitError:
            continue


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64MiB", 64 << 20),
        ("1.5GiB", 3 << 29),
        ("0B", 0),
        (" 10 kB ", 10_000),
        ("2GB", 2_000_000_000),
    ],
)
def test_size_is_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [("1500ms", 1500), ("60s", 60_000), ("1.5m", 90_000), ("2h", 7_200_000), ("1d", 86_400_000)],
)
def test_time_is_read(text: str, duration_ms: int) -> None:
    assert parse_duration(text) == duration_ms


@pytest.mark.parametrize(
    ("text", "interval_us"), [("300us", 300), ("1.5ms", 1500), ("0us", 0), ("1s", 1_000_000)]
)
def test_an_interval_is_counted_in_microseconds(text: str, interval_us: int) -> None:
    assert parse_interval(text) == interval_us


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("64", 'has no unit; write a size such as "64MiB"'),
        ("64mib", 'did you mean "MiB"?'),
        ("64s", 'unit "s" is unknown'),
        ("-1MiB", "is no size"),
        ("MiB", "is no size"),
        ("", "is no size"),
        ("1.5B", "no whole number of B"),
        ("99999999999GiB", "too large"),
        ("9" * 5000 + "B", "too large"),
        ("٣MiB", "is no size"),
    ],
)
def test_refused_size_says_what_to_write(text: str, says: str) -> None:
    with pytest.raises(UnitError, match=re.escape(says)):
        parse_size(text)


def test_time_without_a_unit_says_what_to_write() -> None:
    with pytest.raises(UnitError, match='60 has no unit; write a time such as "30s"'):
        parse_duration("60")


@pytest.mark.parametrize(
    ("size", "text"),
    [(64 << 20, "64MiB"), (1000, "1kB"), (1001, "1001B"), (1024, "1KiB"), (0, "0B")],
)
def test_size_is_written_as_short_as_it_is_exact(size: int, text: str) -> None:
    assert format_size(size) == text


def test_portion_is_a_share_or_a_size() -> None:
    assert parse_portion("40%").of(1000) == 400
    assert parse_portion("12.5%").of(1000) == 125
    assert parse_portion("1MiB").of(1000) == 1 << 20
    assert [str(parse_portion(text)) for text in ("40%", "12.5%", "1MiB")] == [
        "40%",
        "12.5%",
        "1MiB",
    ]


@pytest.mark.parametrize("text", ["101%", "40", "%", "40 percent"])
def test_portion_of_another_kind_is_refused(text: str) -> None:
    with pytest.raises(UnitError):
        parse_portion(text)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:5672", Address("127.0.0.1", 5672)),
        ("localhost:0", Address("localhost", 0)),
        ("[::1]:5672", Address("::1", 5672)),
        (":5672", Address("", 5672)),
    ],
)
def test_address_is_read_and_written(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    ["localhost", "5672", "host:", "host:x", "host:70000", "::1:5672", "a b:1", "http://a:1"],
)
def test_text_that_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UnitError):
        parse_address(text)
