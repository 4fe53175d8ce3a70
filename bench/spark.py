"""Rates of the pipeline: `spark.py [--messages N] [--body BYTES] [--rounds R] [--only NAME]`.

A lone broker on loopback with a throw-away store, and Spark in this process with two cores; the
machine has two for everything. Each scenario is run to warm up, and then all of them in turns; the
best round's rate counts, as what else a machine does can only slow it down. Beside it stand CPU
seconds per million rows, the medians of all rounds: of Spark's JVM, of its Python workers, of the
broker, and of all of them.

    parquet      the same bodies from Parquet into a noop sink: what Spark can do without us
    parquet-body the columns `value` and `offset` of the stream, from Parquet
    stream       a stream into a noop sink, in a batch
    spark-floor  the columns of the stream from a Python source that reads one batch of it, and
                 yields that again and again: what Spark takes for rows that cost nothing
    streaming    the same by a streaming query (availableNow)
    stream-body  a stream, reading `value` and `offset` only
    spark-floor-body  the same from the source that yields one batch
    journal      all records of a store into a noop sink
    sink         the Parquet rows into a queue, all of them confirmed

`--write` makes SPARK.md and adds to results/spark/.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from rhizome import build_info
from rhizome.client.blocking import Connection
from rhizome.spark import register
from rhizome.spark.data_source_options import Options
from rhizome.spark.schema import stream as stream_schema
from rhizome.spark.session import local_session
from rhizome.spark.source.stream_source import (
    OPTIONS,
    StreamBatchReader,
    StreamPart,
    source_settings,
)
from rhizome.testing.broker_process import BrokerProcess

HERE = Path(__file__).parent
STREAM = "bench-stream"
QUEUE = "bench-journal"
TARGETS = {
    "stream": 1_000_000,
    "streaming": 700_000,
    "journal": 1_000_000,
    "sink": 350_000,
}
BODY_SHARE = 0.6
"""Of the rate of `parquet-body`: what `stream-body` has to reach."""
BODIES = "value BINARY, offset BIGINT"
FLOOR_ROWS = 9000
PARTS = ("JVM", "Python", "broker")
ALL = "all"
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
NOTES = """
## What bounds the figures

The machine was starved in this run: more than twenty processes wanted its two cores, so rates, and
whether they reach a target, say nothing. Even CPU seconds of Parquet were 2.6 times those of a run
at a load of 0.6 (0.37). What may be compared are lines of this table with each other:

- Reading all columns takes 1.6 times as much CPU as Spark takes for ready-made batches of the same
  rows (`spark-floor`), reading bodies 1.6 times as well, and 1.7 times as much as Parquet.
- 60% of Parquet's rate allows 1.67 times its CPU. On a quieter machine (load 1 to 6, earlier the
  same day) the floor of bodies alone was 0.68 to 0.81 CPU seconds per million rows, and Parquet's
  0.37 allows 0.62: there Spark's own way from a Python worker into the JVM takes more than the aim
  leaves for everything. Batches of 8,000 or of 64,000 rows make no difference that can be seen.
- 1,000,000 rows of all columns per second leave 2.0 CPU seconds on two cores; the floor took 1.02
  to 1.25 of them on the quieter machine.

Our own part, run alone in turns with the code before it was changed, CPU seconds per million rows,
medians on the starved machine on 2026-11-18:

| part | before | now |
|---|---|---|
| task: Arrow columns of chunks, all columns | 0.44 to 0.48 | 0.35 |
| task: Arrow columns of chunks, bodies | 0.21 | 0.20 |
| task: receiving | 0.17 | 0.17 |
| broker: chunks from disk to the socket | 0.18 to 0.24 | the same |
| sink's task: frames with a sequence | 0.47 | 0.27 |
| sink's task: frames without one | 0.25 | 0.25 |
| broker: messages with a sequence | 3.2 to 3.7 | 2.2 to 2.5 |
| broker: messages without one | 1.0 to 1.25 | the same |

- Columns: publishers mostly send one kind of message. One comparison of all headers and routes of
  a batch tells so, and then one of them is read. Where each message has properties of its own
  (ids, times), all are gathered as before.
- Sink: to know rows again by producer and sequence still costs a broker as much as to take them.
  One core of a broker takes no more than about 400,000 such messages per second.
- Journal: of a lone broker without a checkpoint the driver reads all segments once before, for the
  names of queues: 0.4 CPU seconds per million records.
- `streaming` has CPU seconds that don't depend on rows: planning, checkpoint, processes that start.

## Two workers

Whether two workers of one core each are 1.7 times as fast as one is not measured: it takes more
cores than the two that all hosts share here. What was measured instead on 2026-11-18, in turns
within one run on a busy machine: two readers of half a stream each spend as much as one reader of
all of it, all columns, without Spark (0.74 and 0.70 CPU seconds per million rows in tasks, 0.27
and 0.31 in the broker, medians of seven turns). So a row costs tasks the same however the range
is split. What does not divide is a read's plan, in which the driver asks a broker for the bounds
of each stream: a read of 2,000 rows takes 0.3 CPU seconds in all, which is 7% of what 2,000,000
rows take.
"""


@dataclass(frozen=True)
class Result:
    """Of a scenario: the seconds of the best round, and the CPU seconds of a usual one by part."""

    name: str
    rows: int
    seconds: float
    cpu_s: dict[str, float]

    @property
    def rate(self) -> float:
        return self.rows / self.seconds

    def cpu_s_per_million(self, part: str) -> float:
        return self.cpu_s[part] * 1e6 / self.rows


def cpu_s() -> dict[str, float]:
    """CPU seconds of this process and all its descendants, those that have ended included."""
    children: dict[int, list[int]] = {}
    used: dict[int, float] = {}
    parts: dict[int, str] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            words = (path.parent / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        pid = int(path.parent.name)
        is_java = words[0].endswith(b"java")
        parts[pid] = "JVM" if is_java else "broker" if b"serve" in words else "Python"
        children.setdefault(int(fields[1]), []).append(pid)
        used[pid] = sum(map(int, fields[11:15])) / TICKS_PER_SECOND
    found, ahead = dict.fromkeys((*PARTS, ALL), 0.0), [os.getpid()]
    while ahead:
        pid = ahead.pop()
        found[parts.get(pid, "Python")] += used.get(pid, 0.0)
        found[ALL] += used.get(pid, 0.0)
        ahead.extend(children.get(pid, []))
    return found


class FloorReader(DataSourceReader):  # type: ignore[misc]
    """Yields the first batch of a stream until it has yielded as many rows as were asked for."""

    def __init__(self, schema: Any, options: dict[str, str]) -> None:
        self.rows = int(options.pop("rows"))
        self.stream = options["subscribe"]
        settings = source_settings(Options(options, OPTIONS, "the floor"), streaming=False)
        self.reader = StreamBatchReader(settings, schema)

    def partitions(self) -> list[InputPartition]:
        return [StreamPart(self.stream, 0, 0, self.rows // 2) for _ in range(2)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, StreamPart)
        few = StreamPart(self.stream, 0, 0, FLOOR_ROWS)
        batch = next(iter(self.reader.read(few)))
        for first in range(0, partition.end, len(batch)):
            yield batch.slice(0, partition.end - first)


class FloorSource(DataSource):  # type: ignore[misc]
    """What Spark itself takes for the rows of a stream."""

    @classmethod
    def name(cls) -> str:
        return "floor"

    def schema(self) -> Any:
        return stream_schema()

    def reader(self, schema: Any) -> DataSourceReader:
        return FloorReader(schema, dict(self.options))


class Bench:
    """The broker, the session, and the rows that all scenarios share."""

    def __init__(self, spark: Any, broker: BrokerProcess, directory: Path, rows: int, body: int):
        self.spark = spark
        self.broker = broker
        self.directory = directory
        self.rows = rows
        self.body = body
        self.runs = 0
        self.parquet = str(directory / "rows")
        self.bodies = str(directory / "bodies")

    def prepare(self) -> None:
        """The rows as Parquet, in a stream, and in a queue's journal."""
        (
            self.spark.range(0, self.rows, 1, 2)
            .selectExpr(f"lpad(cast(id AS STRING), {self.body}, 'x') AS value")
            .write.parquet(self.parquet)
        )
        with Connection(self.broker.url) as connection:
            channel = connection.channel()
            channel.declare_queue(STREAM, durable=True, arguments={"x-queue-type": "stream"})
            channel.declare_queue(QUEUE, durable=True)
        self.send(STREAM, "none")
        self.send(QUEUE, "none")
        self.stream_bodies().write.parquet(self.bodies)

    def send(self, queue: str, deduplicate: str = "sequence") -> None:
        (
            self.spark.read.parquet(self.parquet)
            .write.format("rhizome")
            .option("uri", self.broker.url)
            .option("queue", queue)
            .option("deduplicate", deduplicate)
            .mode("append")
            .save()
        )

    def source(self, reader: Any) -> Any:
        return (
            reader.format("rhizome")
            .option("uri", self.broker.url)
            .option("subscribe", STREAM)
            .option("startingOffsets", "earliest")
        )

    def floor(self) -> Any:
        return self.source(self.spark.read).format("floor").option("rows", self.rows)

    def stream_bodies(self) -> Any:
        return self.source(self.spark.read).schema(BODIES).load()

    # --- scenarios

    def read_parquet(self) -> None:
        self.spark.read.parquet(self.parquet).write.format("noop").mode("overwrite").save()

    def read_stream(self) -> None:
        self.source(self.spark.read).load().write.format("noop").mode("overwrite").save()

    def read_floor(self) -> None:
        self.floor().load().write.format("noop").mode("overwrite").save()

    def read_floor_body(self) -> None:
        bodies = self.floor().schema(BODIES).load()
        bodies.write.format("noop").mode("overwrite").save()

    def read_parquet_body(self) -> None:
        self.spark.read.parquet(self.bodies).write.format("noop").mode("overwrite").save()

    def read_stream_body(self) -> None:
        self.stream_bodies().write.format("noop").mode("overwrite").save()

    def read_streaming(self) -> None:
        self.runs += 1
        query = (
            self.source(self.spark.readStream)
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(self.directory / f"checkpoint-{self.runs}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def read_journal(self) -> None:
        journal = self.spark.read.format("rhizome.journal").load(str(self.broker.data))
        journal.write.format("noop").mode("overwrite").save()

    def write_queue(self) -> None:
        self.runs += 1
        name = f"bench-sink-{self.runs}"
        with Connection(self.broker.url) as connection:
            connection.channel().declare_queue(name, durable=True)
        self.send(name)
        with Connection(self.broker.url) as connection:
            channel = connection.channel()
            there = channel.declare_queue(name, passive=True).message_count
            assert there == self.rows, f"{there} of {self.rows} messages are in the queue"
            channel.delete_queue(name)

    def scenarios(self) -> dict[str, Callable[[], None]]:
        return {
            "parquet": self.read_parquet,
            "stream": self.read_stream,
            "spark-floor": self.read_floor,
            "streaming": self.read_streaming,
            "parquet-body": self.read_parquet_body,
            "stream-body": self.read_stream_body,
            "spark-floor-body": self.read_floor_body,
            "journal": self.read_journal,
            "sink": self.write_queue,
        }

    def measure(self, names: list[str], rounds: int) -> list[Result]:
        runs = self.scenarios()
        found: dict[str, list[Result]] = {name: [] for name in names}
        for turn in range(1 + rounds):
            for name in names:
                begun, before = time.perf_counter(), cpu_s()
                runs[name]()
                seconds, after = time.perf_counter() - begun, cpu_s()
                used = {part: after[part] - before[part] for part in after}
                if turn:
                    found[name].append(Result(name, self.rows, seconds, used))
                    print(json.dumps(asdict(found[name][-1])), flush=True)
        return [usual(found[name]) for name in names]


def usual(rounds: list[Result]) -> Result:
    parts = rounds[0].cpu_s
    used = {part: median(each.cpu_s[part] for each in rounds) for part in parts}
    return Result(rounds[0].name, rounds[0].rows, min(each.seconds for each in rounds), used)


def targets(results: list[Result]) -> dict[str, int]:
    """What each scenario has to reach; one of them depends on another in the same run."""
    found = dict(TARGETS)
    for each in results:
        if each.name == "parquet-body":
            found["stream-body"] = round(BODY_SHARE * each.rate)
    return found


def table(results: list[Result]) -> str:
    lines = [
        f"| scenario | rows/s | CPU s per million rows | {' | '.join(PARTS)} | target | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in results:
        target = targets(results).get(each.name, 0)
        verdict = "" if not target else "pass" if each.rate >= target else "FAIL"
        wanted = f"{target:,}" if target else ""
        cost = " | ".join(f"{each.cpu_s_per_million(part):.2f}" for part in (ALL, *PARTS))
        lines.append(f"| {each.name} | {each.rate:,.0f} | {cost} | {wanted} | {verdict} |")
    return "\n".join(lines) + "\n"


def write(results: list[Result], args: argparse.Namespace) -> None:
    now = datetime.now(UTC)
    document = {
        "time": now.isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "compiled": build_info.is_compiled(),
        "body_bytes": args.body,
        "load": os.getloadavg(),
        "results": [asdict(each) for each in results],
    }
    path = HERE / "results" / "spark" / f"{now:%Y%m%dT%H%M%SZ}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
    head = (
        "# Rates of the pipeline\n\n"
        f"Spark with `local[2]`, {args.messages:,} rows of {args.body} B; Spark, its workers and "
        f"the broker share {os.cpu_count()} cores. The load average was "
        f"{os.getloadavg()[0]:.0f} at the end. Made by "
        "`bench/spark.py --write`; do not edit.\n\n"
    )
    (HERE / "SPARK.md").write_text(head + table(results) + NOTES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--body", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    print(f"compiled: {build_info.is_compiled()}; load: {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory(prefix="rhizome-bench-") as name:
        directory = Path(name)
        spark = local_session("bench", "local[2]", directory / "spark")
        register(spark)
        spark.dataSource.register(FloorSource)
        with BrokerProcess(directory / "broker") as broker:
            bench = Bench(spark, broker, directory, args.messages, args.body)
            bench.prepare()
            results = bench.measure(args.only or list(bench.scenarios()), args.rounds)
        spark.stop()
    print(table(results))
    if args.write:
        write(results, args)


if __name__ == "__main__":
    main()
