"""Tables, numbers, pairs and message documents."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhizome.amqp.field_table import Timestamp
from rhizome.amqp.properties import Properties
from rhizome.cli.bench.bench_statistics import Counts, Histogram, summarize
from rhizome.cli.bench.load_generator import Share, share_out
from rhizome.cli.commands.cluster.status_command import flatten
from rhizome.cli.commands.messages.consume_command import (
    encode_payload,
    json_value,
    properties_document,
)
from rhizome.cli.output.printer import bytes_text, cell_text, format_table
from rhizome.cli.shared_options import parse_pairs


def test_columns_of_numbers_are_aligned_to_the_right() -> None:
    lines = format_table(("name", "count"), [["a", 5], ["bcdef", 12345], ["x", None]])
    assert lines == ["name   count", "a          5", "bcdef  12345", "x          -"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (True, "yes"),
        ({}, "-"),
        ({"b": 1, "a": [2]}, '{"a": [2], "b": 1}'),
        ("two\nlines", "two\\nlines"),
        ("grün", "grün"),
    ],
)
def test_a_cell_is_always_one_printable_line(value: object, text: str) -> None:
    assert cell_text(value) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 41, "2.0 TiB")]
)
def test_sizes_are_shown_in_binary_units(count: int, text: str) -> None:
    assert bytes_text(count) == text


def test_pairs_are_text_unless_types_are_guessed_or_json_is_given() -> None:
    pairs = ["a=1", "b=x=y", "c:=[1]", "d=true"]
    plain = parse_pairs("--header", pairs, guess_types=False)
    assert plain == {"a": "1", "b": "x=y", "c": [1], "d": "true"}
    guessed = parse_pairs("--argument", pairs, guess_types=True)
    assert guessed == {"a": 1, "b": "x=y", "c": [1], "d": True}


def test_status_is_flattened_to_dotted_names() -> None:
    document = {"name": "b1", "store": {"used_bytes": 2048, "alarms": []}, "empty": {}}
    assert flatten(document) == [
        ("name", "b1"),
        ("store.used_bytes", "2048 (2.0 KiB)"),
        ("store.alarms", []),
        ("empty", {}),
    ]


def test_properties_become_json_and_absent_ones_are_left_out() -> None:
    properties = Properties(
        delivery_mode=2,
        headers={"t": Timestamp(5), "d": Decimal("1.5"), "b": b"\xff", "n": [None, {"x": 1.5}]},
    )
    assert properties_document(properties) == {
        "delivery_mode": 2,
        "headers": {"t": 5, "d": "1.5", "b": "/w==", "n": [None, {"x": 1.5}]},
    }
    assert json_value(True) is True


def test_a_body_that_is_no_text_becomes_base64() -> None:
    assert encode_payload(b"text") == ("text", "string")
    assert encode_payload(b"\xff\xfe") == ("//4=", "base64")


# --- benchmarks


@given(st.lists(st.integers(0, 10**9), min_size=1), st.floats(1, 100))
def test_percentiles_are_within_two_percent(values: list[int], percent: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    ranked = sorted(values)
    at = next(number for number in range(len(ranked)) if number + 1 >= len(ranked) * percent / 100)
    assert ranked[at] <= histogram.percentile(percent) <= ranked[at] * 1.02 + 1


@given(st.lists(st.integers(0, 10**6)), st.lists(st.integers(0, 10**6)))
def test_merged_histograms_are_the_histogram_of_all(first: list[int], second: list[int]) -> None:
    one, two, both = Histogram(), Histogram(), Histogram()
    for value in first:
        one.record(value)
        both.record(value)
    for value in second:
        two.record(value)
        both.record(value)
    one.merge(two)
    assert (one.counts, one.total, one.sum) == (both.counts, both.total, both.sum)
    assert one.maximum == both.maximum


def test_a_run_without_messages_has_no_latency() -> None:
    summary = summarize(16, 2.0, Counts(10, 0), Histogram())
    assert summary.latency_us is None
    assert (summary.published_per_s, summary.consumed_per_s) == (5.0, 0.0)


def test_work_is_dealt_evenly_and_nobody_is_idle() -> None:
    assert share_out(1, 1, 2) == [Share((0,), ()), Share((), (0,))]
    assert share_out(1, 0, 4) == [Share((0,), ())]
    for shares in (share_out(5, 3, 2), share_out(2, 7, 3)):
        publishers = sorted(number for share in shares for number in share.publishers)
        consumers = sorted(number for share in shares for number in share.consumers)
        assert publishers == list(range(len(publishers)))
        assert consumers == list(range(len(consumers)))
