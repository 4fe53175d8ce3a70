"""Copies of streams, for the audit: their chunks as a table, and where they differ.

A copy of a stream is the same chunks in files of the same numbers, each with a number that counts
them. They are compared between the first that no copy has dropped by retention and the last that
all have. Of the last segment the tail may be torn, by a crash or a running writer.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial, reduce
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from rhizome.journal.errors import CorruptRecord
from rhizome.journal.streams.stream_format import (
    CHUNK_HEADER_BYTES,
    CHUNK_MAGIC,
    KIND_INDEX,
    STREAM_HEADER_BYTES,
    ChunkHead,
    check_chunk,
    read_segment_header,
)
from rhizome.spark.jobs.audit_findings import (
    CHANGED,
    DAMAGED,
    DIVERGING,
    DUPLICATED,
    LOST,
    TRUNCATED,
    odd_copies,
    violations,
)
from rhizome.spark.jobs.small_job_settings import table_of
from rhizome.spark.journal import broker_stores
from rhizome.spark.journal.broker_stores import OpenStore, StreamFile

_NUMBERS: Final = (
    "stream", "segment", "offset", "number", "epoch", "first", "messages", "checksum"
)  # fmt: skip
_SCHEMA: Final = (
    f"store STRING, {', '.join(f'{name} BIGINT' for name in _NUMBERS)}, wrong STRING, detail STRING"
)
_ARROW_SCHEMA: Final = pa.schema(
    [
        ("store", pa.string()),
        *((name, pa.int64()) for name in _NUMBERS),
        ("wrong", pa.string()),
        ("detail", pa.string()),
    ]
)


class StreamCopies:
    """The streams in some stores. ``groups`` has the stream of each group that is one's own: those
    of a lone broker, or that are not replicated, have none and nothing to be compared with."""

    def __init__(
        self,
        spark: SparkSession,
        found: dict[str, OpenStore],
        states: dict[str, broker_stores.StoreState],
        brokers: dict[str, str],
    ) -> None:
        self.spark = spark
        self.brokers = brokers
        self.stores = found
        self.segments = [each for store in found.values() for each in store.stream_files()]
        self.groups: dict[int, int] = {}
        self.names: dict[int, tuple[str, str]] = {}
        for state in states.values():
            for stream, group in state.streams.items():
                if group in state.groups and state.groups[group].stream:
                    self.groups[group] = stream
            for stream, name in state.names.queues.items():
                self.names[stream] = (state.names.vhosts[stream], name)
        self.chunks_read = 0
        self.messages_read = 0
        self._chunks: DataFrame | None = None
        self._used: dict[int, bool] = {}
        self._bounds: dict[tuple[int, str], tuple[int, int]] = {}
        self._compared: list[tuple[int, str, int, int]] = []

    def read(self) -> None:
        """Read all chunks, and see how far each copy goes."""
        rows = [(each.store, each.stream, each.segment, each.last) for each in self.segments]
        files = table_of(
            self.spark, rows, "store STRING, stream BIGINT, segment BIGINT, last BOOLEAN"
        )
        chunks = partial(_chunks, self.stores)
        self._chunks = files.repartition(len(rows)).mapInArrow(chunks, _SCHEMA).persist()
        found = (
            self._chunks.groupBy("stream", "store")
            .agg(
                F.min("number").alias("first"),
                F.max("number").alias("last"),
                F.count("number").alias("chunks"),
                F.sum("messages").alias("messages"),
            )
            .collect()
        )
        for row in found:
            self.chunks_read += int(row["chunks"])
            self.messages_read += int(row["messages"] or 0)
            if row["messages"]:
                self._used[row["stream"]] = True
            if row["chunks"]:
                bounds = (int(row["first"]), int(row["last"]))
                self._bounds[row["stream"], row["store"]] = bounds

    def holders(self, group: int) -> list[str]:
        """The brokers that have something of a group's stream."""
        stream = self.groups[group]
        return [self.brokers[store] for each, store in self._bounds if each == stream]

    def missed(self, group: int) -> set[str]:
        """The brokers that have nothing of a group's stream, though it has messages elsewhere; not
        even now, if brokers are running."""
        stream = self.groups[group]
        if stream not in self._used:
            return set()
        return {
            broker
            for store, broker in self.brokers.items()
            if not self.stores[store].has_stream(stream)
        }

    def compare(self, group: int, brokers: list[str]) -> int:
        """Have the copies at these brokers compared; up to which chunk is told."""
        stream = self.groups[group]
        chosen = [store for store, broker in self.brokers.items() if broker in brokers]
        bounds = [self._bounds[stream, store] for store in chosen]
        first, last = max(each[0] for each in bounds), min(each[1] for each in bounds)
        self._compared += [(stream, store, first, last) for store in chosen]
        return last

    def violations(self) -> list[DataFrame]:
        assert self._chunks is not None, "read first"
        groups = {stream: group for group, stream in self.groups.items()}
        known = [(stream, groups.get(stream), *name) for stream, name in self.names.items()]
        named = table_of(
            self.spark, known, "stream BIGINT, `group` INT, vhost STRING, queue STRING"
        )
        chunks = self._chunks.join(F.broadcast(named), "stream", "left").withColumn(
            "index", F.col("first")
        )
        checks = [self._damage(chunks), self._gaps(chunks), *self._missing_segments(named)]
        if self._compared:
            checks.append(self._differing(chunks))
        return [reduce(DataFrame.unionByName, checks)]

    # --- of each store by itself

    def _damage(self, chunks: DataFrame) -> DataFrame:
        return violations(chunks.where("wrong IS NOT NULL"), F.col("wrong"), F.col("detail"))

    def _gaps(self, chunks: DataFrame) -> DataFrame:
        """Chunks follow each other without a gap, in all segments that there are."""
        order = Window.partitionBy("store", "stream").orderBy("segment", "offset")
        stray = (
            chunks.where("number IS NOT NULL")
            .withColumn("before", F.lag("number").over(order))
            .where("number <> before + 1")
        )
        kind = F.when(F.col("number") > F.col("before"), LOST).otherwise(DUPLICATED)
        text = F.concat_ws(" ", F.lit("chunk"), "number", F.lit("comes after chunk"), "before")
        return violations(stray, kind, text)

    def _missing_segments(self, named: DataFrame) -> list[DataFrame]:
        there: dict[tuple[str, int], list[int]] = {}
        for each in self.segments:
            there.setdefault((each.store, each.stream), []).append(each.segment)
        rows = [
            (store, stream, number)
            for (store, stream), numbers in there.items()
            for number in range(numbers[0], numbers[-1])
            if number not in numbers
        ]
        if not rows:
            return []
        gone = table_of(self.spark, rows, "store STRING, stream BIGINT, segment BIGINT")
        found = gone.join(F.broadcast(named), "stream", "left")
        return [violations(found, F.lit(TRUNCATED), F.lit("the segment is not there"))]

    # --- of copies with each other

    def _differing(self, chunks: DataFrame) -> DataFrame:
        reach = table_of(
            self.spark, self._compared, "stream BIGINT, store STRING, `from` BIGINT, reach BIGINT"
        )
        compared = chunks.join(F.broadcast(reach), ["stream", "store"]).where(
            "number BETWEEN `from` AND reach"
        )
        odd = odd_copies(compared, ["stream", "number"], "checksum")
        kind = F.when(F.col("epoch") == F.col("usual_epoch"), CHANGED).otherwise(DIVERGING)
        text = F.concat_ws(
            " ",
            F.lit("chunk"),
            "number",
            F.lit("with"),
            "messages",
            F.lit("messages differs from that of the other copies"),
        )
        return violations(odd, kind, text)


def _chunks(found: dict[str, OpenStore], batches: Iterator[Any]) -> Iterator[Any]:
    """Runs at Spark's workers: a row per chunk, and per thing that should be one."""
    for batch in batches:
        for row in batch.to_pylist():
            file = StreamFile(**row)
            columns = zip(*chunk_rows(file, found[file.store]), strict=True)
            arrays = [
                pa.array(column, each.type)
                for column, each in zip(columns, _ARROW_SCHEMA, strict=False)
            ]
            if arrays:
                yield pa.record_batch(arrays, schema=_ARROW_SCHEMA)


def chunk_rows(file: StreamFile, store: OpenStore) -> Iterator[tuple[Any, ...]]:
    """The chunks of a segment, their checksums verified. None of one that retention has removed
    since it was listed."""
    try:
        data = store.stream_bytes(file)
    except FileNotFoundError:
        return
    place = (file.store, file.stream, file.segment)
    try:
        read_segment_header(data, file.segment, file.stream)
    except CorruptRecord as error:
        if not file.last:
            yield (*place, 0, None, None, None, None, None, DAMAGED, str(error))
    at, kind, reread_at = STREAM_HEADER_BYTES, 0, 0
    while at < len(data):
        head = _chunk_at(data, at)
        if head is None:
            following = _following(data, at + 1)
            if following < 0:
                break
            if file.last and reread_at != at:
                # Of a running broker: what was read first may be older than what was read last.
                data, reread_at = store.stream_bytes(file), at
                continue
            wrong = "a chunk fails its checksum, and there are others behind it"
            yield (*place, at, None, None, None, None, None, DAMAGED, wrong)
            at = following
            continue
        kind = int(head.kind)
        checksum = int.from_bytes(data[at + 8 : at + 12], "big")
        found = (int(head.number), int(head.epoch), int(head.first), int(head.count), checksum)
        yield (*place, at, *found, None, None)
        at += int(head.size)
    if not file.last and kind != KIND_INDEX:
        wrong = "the segment ends before its end"
        yield (*place, at, None, None, None, None, None, TRUNCATED, wrong)


def _chunk_at(data: bytes, at: int) -> ChunkHead | None:
    try:
        head = ChunkHead(data, at)
        if at + head.size > len(data):
            return None
        check_chunk(data, at, head.size)
    except CorruptRecord:
        return None
    return head


def _following(data: bytes, at: int) -> int:
    """Where the next valid chunk begins; -1 if there is none."""
    at = data.find(CHUNK_MAGIC, at)
    while at >= 0 and (len(data) - at < CHUNK_HEADER_BYTES or _chunk_at(data, at) is None):
        at = data.find(CHUNK_MAGIC, at + 1)
    return at
