"""What was published, read into columns and published again, is the same to the byte: properties,
headers of every field type of AMQP, body. Without Spark and without a broker.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from struct import pack

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rhizome.amqp import frames, methods
from rhizome.amqp.properties import FLAG_HEADERS
from rhizome.spark.columns.content_decoder import (
    ALIKE_ROWS_MIN,
    COLUMNS,
    PROPERTIES,
    Contents,
)
from rhizome.spark.columns.vectorized_bytes import Window
from rhizome.spark.sink.publish_frames import Addressing, Framer
from rhizome.spark.source.stream_rows import STAMP_BYTES

FRAME_BYTES_MAX = 4096
FIXED = {b"t": 1, b"b": 1, b"B": 1, b"s": 2, b"u": 2, b"I": 4, b"i": 4, b"l": 8, b"L": 8,
         b"f": 4, b"d": 8, b"D": 5, b"T": 8, b"V": 0}  # fmt: skip
SIZES = {"octet": 1, "longlong": 8}


# A busy machine draws slowly.
patient = settings(suppress_health_check=[HealthCheck.too_slow])


def long(data: bytes) -> bytes:
    return pack(">I", len(data)) + data


def short(data: bytes) -> bytes:
    return bytes([len(data)]) + data


def of_size(kind: bytes, size: int) -> st.SearchStrategy[bytes]:
    if kind == b"t":
        return st.sampled_from([b"t\0", b"t\1"])
    if kind == b"D":  # a scale that a decimal can have
        return st.binary(min_size=4, max_size=4).map(lambda data: b"D\2" + data)
    return st.binary(min_size=size, max_size=size).map(lambda data: kind + data)


names = st.text("ax-.ü€", max_size=20).map(lambda name: short(name.encode()))
simple = st.one_of(
    *(of_size(kind, size) for kind, size in FIXED.items()),
    st.binary(max_size=40).map(lambda data: b"x" + long(data)),
    st.binary(max_size=40).map(lambda data: b"S" + long(data)),
)


def entries(values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Of a table, whose names are all different."""
    pairs = st.dictionaries(names, values, max_size=4)
    return pairs.map(lambda found: b"".join(name + value for name, value in found.items()))


values = st.recursive(
    simple,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda found: b"A" + long(b"".join(found))),
        entries(inner).map(lambda found: b"F" + long(found)),
    ),
    max_leaves=8,
)
tables = entries(values)


@dataclass(frozen=True)
class Sent:
    """A message of a publisher. The properties are flag and bytes, in their order."""

    properties: tuple[tuple[int, bytes], ...]
    body: bytes

    @property
    def raw(self) -> bytes:
        flags = sum(flag for flag, _ in self.properties)
        return pack(">H", flags) + b"".join(value for _, value in self.properties)

    def content(self, raw: bytes) -> bytes:
        room = FRAME_BYTES_MAX - 8
        parts = [self.body[at : at + room] for at in range(0, len(self.body), room)]
        header = pack(">HHQ", 60, 0, len(self.body)) + raw
        return frames.frame(2, 1, header) + b"".join(frames.frame(3, 1, part) for part in parts)


@st.composite
def messages(draw: st.DrawFn) -> Sent:
    found = []
    for flag, _, form in PROPERTIES:
        if not draw(st.booleans()):
            continue
        if form == "table":
            value = long(draw(tables))
        elif form == "shortstr":
            value = short(draw(st.binary(max_size=30)))
        else:
            value = draw(st.binary(min_size=SIZES[form], max_size=SIZES[form]))
        found.append((flag, value))
    size = draw(st.sampled_from([0, 1, 200, FRAME_BYTES_MAX - 8, FRAME_BYTES_MAX - 7, 10_000]))
    return Sent(tuple(found), bytes([draw(st.integers(0, 255))]) * size)


def places(contents: list[bytes]) -> tuple[Window, np.ndarray, np.ndarray]:
    bounds = np.array(list(accumulate(map(len, contents), initial=0)), np.int64)
    return Window(b"".join(contents)), bounds[:-1], bounds[1:]


@patient
@given(st.lists(messages(), min_size=1, max_size=6))
def test_columns_become_the_frames_that_they_came_from(sent: list[Sent]) -> None:
    window, starts, ends = places([each.content(each.raw) for each in sent])
    columns = Contents(window, starts, ends).columns(set(COLUMNS))
    assert all(len(column) == len(sent) for column in columns.values())
    batch = pa.record_batch({name: columns[name] for name in ("value", "raw_properties")})
    framer = Framer(Addressing("again", "key", mandatory=True, persistent=True), FRAME_BYTES_MAX)
    found = framer.frames(batch, None)
    method = frames.method_frame(1, methods.BasicPublish("again", "key", mandatory=True))
    wanted = [method + each.content(each.raw) for each in sent]
    bounds = found.bounds.tolist()
    assert [bytes(found.data[start:end]) for start, end in pairwise(bounds)] == wanted


@patient
@given(st.lists(messages(), min_size=1, max_size=6))
def test_streams_give_back_the_properties_without_their_stamp(sent: list[Sent]) -> None:
    contents = [each.content(stamped(each)) for each in sent]
    window, starts, ends = places(contents)
    bare = np.array([FLAG_HEADERS not in dict(each.properties) for each in sent])
    columns = Contents(window, starts, ends, STAMP_BYTES, bare).columns({"raw_properties"})
    assert columns["raw_properties"].to_pylist() == [each.raw for each in sent]


@settings(patient, max_examples=40)
@given(messages(), messages(), st.integers(0, 2 * ALIKE_ROWS_MIN), st.booleans())
def test_many_of_one_kind_are_read_as_each_by_itself(
    usual: Sent, other: Sent, place: int, is_stream: bool
) -> None:
    sent = [usual] * (2 * ALIKE_ROWS_MIN)
    sent[place:place] = [other] * (place % 3 // 2)  # now and then one that is different
    sent = [Sent(each.properties, each.body[: len(each.body) - row]) for row, each in pairs(sent)]
    raws = [stamped(each, row) if is_stream else each.raw for row, each in pairs(sent)]
    window, starts, ends = places([e.content(raw) for e, raw in zip(sent, raws, strict=True)])
    bare = np.array([FLAG_HEADERS not in dict(each.properties) for each in sent])
    stamp = STAMP_BYTES if is_stream else 0
    found = Contents(window, starts, ends, stamp, bare if is_stream else None).columns(set(COLUMNS))
    for row in range(len(sent)):
        only = slice(row, row + 1)
        own = bare[only] if is_stream else None
        alone = Contents(window, starts[only], ends[only], stamp, own).columns(set(COLUMNS))
        assert {name: each[row].as_py() for name, each in found.items()} == {
            name: each[0].as_py() for name, each in alone.items()
        }


def pairs(sent: list[Sent]) -> list[tuple[int, Sent]]:
    return list(enumerate(sent))


def stamped(message: Sent, offset: int = 0) -> bytes:
    """The properties as a stream stores them."""
    stamp = short(b"x-stream-offset") + b"l" + offset.to_bytes(8, "big")
    given = dict(message.properties)
    given[FLAG_HEADERS] = long(stamp + given.get(FLAG_HEADERS, long(b""))[4:])
    ordered = tuple((flag, given[flag]) for flag, _, _ in PROPERTIES if flag in given)
    return Sent(ordered, b"").raw
