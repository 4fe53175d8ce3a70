"""Rows become the very frames that a client would send."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
import pytest

from rhizome.amqp import frames, methods
from rhizome.amqp.properties import Properties, decode_properties, encode_header
from rhizome.spark.sink.publish_frames import Addressing, Framer, Producer, RowError

FRAME_BYTES_MAX = 4096
TEXTS = ("content_type", "content_encoding", "correlation_id", "reply_to", "expiration",
         "message_id", "type", "user_id", "app_id", "cluster_id")  # fmt: skip


def client_frames(exchange: str, key: str, properties: Properties, body: bytes) -> bytes:
    method = methods.BasicPublish(exchange, key, mandatory=True)
    room = FRAME_BYTES_MAX - 8
    return b"".join(
        [
            frames.method_frame(1, method),
            frames.frame(2, 1, encode_header(len(body), properties)),
            *(frames.frame(3, 1, body[at : at + room]) for at in range(0, len(body), room)),
        ]
    )


def framed(batch: Any, producer: Producer | None = None, key: str | None = None) -> list[bytes]:
    framer = Framer(Addressing("orders", key, mandatory=True, persistent=True), FRAME_BYTES_MAX)
    found = framer.frames(batch, producer)
    bounds = found.bounds.tolist()
    assert len(found) == batch.num_rows
    return [bytes(found.data[start:end]) for start, end in pairwise(bounds)]


def test_body_alone_is_a_persistent_message() -> None:
    batch = pa.record_batch({"value": pa.array([b"one", b"two"])})
    wanted = [
        client_frames("orders", "new", Properties(delivery_mode=2), body)
        for body in (b"one", b"two")
    ]
    assert framed(batch, key="new") == wanted


def test_texts_are_bodies_too_and_null_is_an_empty_one() -> None:
    batch = pa.record_batch({"value": pa.array(["zwölf", None, ""])})
    wanted = [
        client_frames("orders", "", Properties(delivery_mode=2), body)
        for body in ("zwölf".encode(), b"", b"")
    ]
    assert framed(batch) == wanted


@pytest.mark.parametrize("seed", range(4))
def test_every_property_is_sent_where_it_is_set(seed: int) -> None:
    chance = random.Random(seed)
    rows: list[dict[str, Any]] = []
    for _ in range(50):
        row: dict[str, Any] = {
            name: chance.choice([None, "", "x" * chance.randrange(1, 200)]) for name in TEXTS
        }
        row["value"] = chance.randbytes(chance.choice([0, 1, 100, 4088, 4089, 20_000]))
        row["key"] = chance.choice([None, "a.b", "k" * 255])
        row["exchange"] = chance.choice([None, "", "other"])
        row["delivery_mode"] = chance.choice([None, 1, 2])
        row["priority"] = chance.choice([None, 0, 255])
        row["message_timestamp"] = chance.choice([None, 0, 1_700_000_000])
        row["headers"] = chance.choice([None, [], [("a", "b"), ("n", None), ("ü", "x" * 3000)]])
        rows.append(row)
    columns = {name: pa.array([row[name] for row in rows]) for name in ("value", "key", "exchange")}
    columns |= {name: pa.array([row[name] for row in rows], pa.string()) for name in TEXTS}
    for name in ("delivery_mode", "priority"):
        columns[name] = pa.array([row[name] for row in rows], pa.int32())
    columns["message_timestamp"] = pa.array([row["message_timestamp"] for row in rows], pa.int64())
    columns["headers"] = pa.array(
        [row["headers"] for row in rows], pa.map_(pa.string(), pa.string())
    )
    wanted = []
    for row in rows:
        headers = None if row["headers"] is None else dict(row["headers"])
        properties = Properties(
            headers=headers,
            delivery_mode=row["delivery_mode"],
            priority=row["priority"],
            timestamp=row["message_timestamp"],
            **{name: row[name] for name in TEXTS},
        )
        exchange = "orders" if row["exchange"] is None else row["exchange"]
        wanted.append(client_frames(exchange, row["key"] or "", properties, row["value"]))
    batch = pa.record_batch(columns)
    assert framed(batch) == wanted
    # Slices of a batch have offsets of their own.
    assert framed(batch.slice(7, 20)) == wanted[7:27]


def test_producer_and_sequence_join_the_headers() -> None:
    batch = pa.record_batch(
        {
            "value": pa.array([b"a", b"b"]),
            "headers": pa.array([[("h", "1")], None], pa.map_(pa.string(), pa.string())),
        }
    )
    wanted = [
        client_frames(
            "orders",
            "",
            Properties(
                headers={**own, "x-producer": "q:1", "x-sequence": (5 << 32) + row}, delivery_mode=2
            ),
            body,
        )
        for row, (own, body) in enumerate([({"h": "1"}, b"a"), ({}, b"b")])
    ]
    assert framed(batch, Producer("q:1", 5 << 32)) == wanted


COPIES: Final = {"CC": ["payroll"], "n": 5, "BCC": ["secret"], "CCX": 1}


@pytest.mark.parametrize("producer", [None, Producer("q:1", 5 << 32)])
def test_no_publisher_chooses_further_keys_where_the_sink_has_one(producer: Any) -> None:
    """CC would lead to any queue that the user of the sink may write."""
    kept = [Properties(headers=COPIES), Properties(headers={"a": "x"}), Properties()]
    raw = [encode_header(0, each)[12:] for each in kept]
    batch = pa.record_batch(
        {"value": pa.array([b"x"] * 3), "raw_properties": pa.array(raw, pa.binary())}
    )
    wanted: list[dict[str, Any] | None] = [{"n": 5, "CCX": 1}, {"a": "x"}, None]
    for number, headers in enumerate(wanted):
        if producer is not None:
            marks = {"x-producer": "q:1", "x-sequence": (5 << 32) + number}
            wanted[number] = {**(headers or {}), **marks}
    assert framed(batch, producer, key="scores") == [
        client_frames("orders", "scores", Properties(headers=each), b"x") for each in wanted
    ]


def test_a_row_without_a_key_of_the_sink_keeps_its_further_keys() -> None:
    raw = encode_header(0, Properties(headers=COPIES))[12:]
    batch = pa.record_batch(
        {
            "value": pa.array([b"x"]),
            "key": pa.array(["k"]),
            "raw_properties": pa.array([raw], pa.binary()),
        }
    )
    assert framed(batch) == [client_frames("orders", "k", Properties(headers=COPIES), b"x")]


def test_a_header_map_has_no_copy_keys() -> None:
    """They are arrays; as texts a broker refuses them, and one message would stop a query."""
    maps = [[("CC", '["payroll"]'), ("a", "1")], None, [("BCC", None)], [("b", None)]]
    kind = pa.map_(pa.string(), pa.string())
    batch = pa.record_batch({"value": pa.array([b"x"] * 4), "headers": pa.array(maps, kind)})
    headers = [{"a": "1"}, None, {}, {"b": None}]
    assert framed(batch) == [
        client_frames("orders", "", Properties(headers=each, delivery_mode=2), b"x")
        for each in headers
    ]


@pytest.mark.parametrize("is_raw", [True, False])
def test_rows_lose_the_user_ids_of_others(is_raw: bool) -> None:
    """A broker refuses these: one publisher who gives his own could stop a pipeline for ever."""
    users = ["eve", "pipe", None, "pipe2"]
    if is_raw:
        properties = [Properties(user_id=user, app_id="a", headers={"n": 1}) for user in users]
        raw = [encode_header(0, each)[12:] for each in properties]
        column = {"raw_properties": pa.array(raw, pa.binary())}
        headers: dict[str, object] | None = {"n": 1}
    else:
        column = {"user_id": pa.array(users), "app_id": pa.array(["a"] * 4)}
        headers = None
    batch = pa.record_batch({"value": pa.array([b"x"] * 4), **column})

    def sent(user: str | None, kept: list[str | None]) -> None:
        framer = Framer(Addressing("orders", None, True, False, user), FRAME_BYTES_MAX)
        found = framer.frames(batch, None)
        wanted = [
            client_frames("orders", "", Properties(user_id=each, app_id="a", headers=headers), b"x")
            for each in kept
        ]
        assert bytes(found.data[: found.bounds[-1]]) == b"".join(wanted)

    sent("pipe", [None, "pipe", None, None])
    sent(None, users)


def test_raw_properties_are_sent_as_they_were() -> None:
    kept = [
        Properties(),
        Properties(content_type="t", headers={"n": 5, "deep": {"x": [1, None]}}, message_id="m"),
        Properties(headers={}),
        Properties(content_encoding="gzip", timestamp=7),
        Properties(app_id="a"),
    ]
    raw = [encode_header(0, each)[12:] for each in kept]
    batch = pa.record_batch({"value": pa.array([b"x"] * 5), "raw_properties": pa.array(raw)})
    assert framed(batch) == [client_frames("orders", "", each, b"x") for each in kept]
    assert framed(batch.slice(1, 3)) == [client_frames("orders", "", p, b"x") for p in kept[1:4]]
    for sent, before in zip(framed(batch, Producer("p", 0)), kept, strict=True):
        content = sent[frames.frame_end(sent, 0) :]
        got = decode_properties(frames.header_payload_of(content))
        assert got.headers is not None
        assert got.headers.pop("x-producer") == "p"
        assert isinstance(got.headers.pop("x-sequence"), int)
        assert got.headers == (before.headers or {})
        got.headers = before.headers
        assert vars_of(got) == vars_of(before)


def test_marks_of_an_earlier_producer_are_replaced() -> None:
    before = Properties(headers={"a": 1, "x-producer": "old", "x-sequence": 7, "z": "x-producer"})
    raw = [encode_header(0, before)[12:], encode_header(0, Properties())[12:]]
    batch = pa.record_batch({"value": pa.array([b"x"] * 2), "raw_properties": pa.array(raw)})
    assert framed(batch)[0] == client_frames("orders", "", before, b"x")
    after = {"a": 1, "z": "x-producer", "x-producer": "new", "x-sequence": 1 << 40}
    wanted = Properties(headers=after)
    assert framed(batch, Producer("new", 1 << 40))[0] == client_frames("orders", "", wanted, b"x")


def vars_of(properties: Properties) -> list[object]:
    return [encode_header(0, properties)]


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"key": pa.array(["k" * 256])}, "column 'key' has a text of more than 255 bytes"),
        ({"priority": pa.array([256])}, "column 'priority' has a number below 0 or above 255"),
        ({"message_timestamp": pa.array([-1])}, "'message_timestamp' has a number below 0"),
        ({"type": pa.array([1.5])}, "column 'type' is double; it must be a text"),
    ],
)
def test_rows_that_no_frame_can_hold_are_refused(columns: dict[str, Any], text: str) -> None:
    with pytest.raises(RowError, match=text):
        framed(pa.record_batch({"value": pa.array([b"x"]), **columns}))
