"""Traffic: how much, how large, how late, by whom; a report in HTML.

From streams and archives come rates, sizes and top talkers, and how long a message was on its way
to the broker where publishers set a timestamp (in whole seconds). A journal also tells how long
messages waited in their queues: from the record that took them to the one that settled them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from rhizome.spark import register
from rhizome.spark.jobs import archive
from rhizome.spark.jobs.charts import (
    Series,
    bar_chart,
    figures,
    line_chart,
    number_text,
    page,
    table,
)
from rhizome.spark.jobs.watching import JobError, Tell, silently, watch

STEPS_SECONDS: Final = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 6 * 3600, 86_400)
BINS_MAX: Final = 200
TOP: Final = 15
_TALKERS: Final = ("exchange", "key", "queue", "app_id", "user_id")


@dataclass(frozen=True)
class TrafficOptions:
    """What to look at, one of `stream` (with `uri`), `archive` and `journal`; `html` is where the
    report goes. `where` is a condition in SQL."""

    uri: str = field(default="", repr=False)
    stream: str = ""
    archive: str = ""
    journal: str = ""
    where: str = ""
    html: str = ""


@dataclass
class Traffic:
    """The figures. Bins have their begin, messages, bytes, and latencies (ms) where known."""

    source: str
    messages: int = 0
    bytes: int = 0
    first: str | None = None
    last: str | None = None
    step_seconds: int = 1
    bins: list[dict[str, Any]] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    size_percentiles: dict[str, int] = field(default_factory=dict)
    latency_of: str = ""
    latency_percentiles: dict[str, float] = field(default_factory=dict)
    top: dict[str, list[tuple[str, int, int]]] = field(default_factory=dict)
    html: str = ""

    def document(self) -> dict[str, Any]:
        return asdict(self)


def run(spark: SparkSession, options: TrafficOptions, tell: Tell = silently) -> Traffic:
    """Compute the figures, and write the report if it has a place."""
    register(spark)
    source, rows = _rows(spark, options)
    rows = rows.persist()
    try:
        found = watch(spark, "counting", tell, lambda: _figures(source, rows))
    finally:
        rows.unpersist()
    if options.html:
        Path(options.html).write_text(html(found))
        found.html = options.html
    return found


# --- rows: time, size, exchange, key, queue, app_id, user_id, latency_ms


def _rows(spark: SparkSession, options: TrafficOptions) -> tuple[str, DataFrame]:
    given = [each for each in (options.stream, options.archive, options.journal) if each]
    if len(given) != 1:
        raise JobError("traffic needs one of a stream, an archive and a journal")
    if options.journal:
        return f"journal {options.journal}", _journal_rows(spark, options)
    if options.archive:
        found = archive.read(spark, options.archive)
    else:
        found = (
            spark.read.format("rhizome")
            .option("uri", options.uri)
            .option("subscribe", options.stream)
            .load()
        )
    if options.where:
        found = found.where(options.where)
    sent_ms = F.col("message_timestamp") * 1000
    on_its_way = F.unix_millis("timestamp") - sent_ms
    return given[0], found.select(
        F.col("timestamp").alias("time"),
        F.length("value").alias("size"),
        *_TALKERS,
        F.when(on_its_way.between(-1000, 86_400_000), on_its_way).alias("latency_ms"),
    )


def _journal_rows(spark: SparkSession, options: TrafficOptions) -> DataFrame:
    """Messages with how long they waited, per queue."""
    events = (
        spark.read.format("rhizome.journal")
        .option("events", "enqueued,dequeued")
        .load(options.journal)
    )
    came = events.where("event = 'enqueued'")
    if options.where:
        came = came.where(options.where)
    key = ["store", "group", "queue_id", "index"]
    went = events.where("event = 'dequeued'").groupBy(*key).agg(F.min("time").alias("settled"))
    return came.join(went, key, "left").select(
        "time",
        F.length("message.value").alias("size"),
        F.col("message.exchange").alias("exchange"),
        F.col("message.key").alias("key"),
        "queue",
        F.col("message.app_id").alias("app_id"),
        F.col("message.user_id").alias("user_id"),
        (F.unix_millis("settled") - F.unix_millis("time")).alias("latency_ms"),
    )


# --- figures


def _figures(source: str, rows: DataFrame) -> Traffic:
    found = Traffic(source)
    bounds = rows.agg(
        F.count("*"),
        F.sum("size"),
        F.unix_millis(F.min("time")),
        F.unix_millis(F.max("time")),
        F.percentile_approx("size", [0.5, 0.9, 0.99, 1.0]),
        F.percentile_approx("latency_ms", [0.5, 0.9, 0.99, 1.0]),
    ).first()
    assert bounds is not None
    found.messages, found.bytes = int(bounds[0]), int(bounds[1] or 0)
    if found.messages == 0:
        return found
    found.first, found.last = _text(bounds[2]), _text(bounds[3])
    found.step_seconds = step_for((bounds[3] - bounds[2]) / 1000)
    found.size_percentiles = dict(zip(("p50", "p90", "p99", "max"), bounds[4], strict=True))
    if bounds[5]:
        found.latency_percentiles = dict(zip(("p50", "p90", "p99", "max"), bounds[5], strict=True))
        waited = source.startswith("journal")
        found.latency_of = "waiting in queues" if waited else "from publisher to broker"
    found.bins = _bins(rows, found.step_seconds)
    found.sizes = _sizes(rows)
    for name in _TALKERS:
        found.top[name] = _top(rows, name)
    return found


def step_for(seconds: float) -> int:
    """The finest step that makes no more than BINS_MAX bins."""
    return next((s for s in STEPS_SECONDS if seconds / s <= BINS_MAX), STEPS_SECONDS[-1])


def _bins(rows: DataFrame, step: int) -> list[dict[str, Any]]:
    number = F.floor(F.unix_millis("time") / (step * 1000)).alias("bin")
    counted = (
        rows.groupBy(number)
        .agg(
            F.count("*").alias("messages"),
            F.sum("size").alias("bytes"),
            F.percentile_approx("latency_ms", [0.5, 0.99]).alias("latency"),
        )
        .orderBy("bin")
        .collect()
    )
    known = {int(row["bin"]): row for row in counted}
    found = []
    for place in range(min(known), max(known) + 1):
        row = known.get(place)
        latency = row["latency"] if row is not None else None
        found.append(
            {
                "begin": _text(place * step * 1000),
                "messages": int(row["messages"]) if row is not None else 0,
                "bytes": int(row["bytes"] or 0) if row is not None else 0,
                "latency_p50_ms": latency[0] if latency else None,
                "latency_p99_ms": latency[1] if latency else None,
            }
        )
    return found


def _sizes(rows: DataFrame) -> list[tuple[int, int]]:
    """Messages by size, up to powers of two: (at most so many bytes, count)."""
    power = F.ceil(F.log2(F.greatest(F.col("size"), F.lit(1)))).alias("power")
    counted = rows.groupBy(power).count().orderBy("power").collect()
    return [(1 << int(row["power"]), int(row["count"])) for row in counted]


def _top(rows: DataFrame, name: str) -> list[tuple[str, int, int]]:
    counted = (
        rows.where(F.col(name).isNotNull())
        .groupBy(name)
        .agg(F.count("*").alias("messages"), F.sum("size").alias("bytes"))
        .orderBy(F.desc("messages"), name)
        .limit(TOP)
        .collect()
    )
    return [(str(row[name]), int(row["messages"]), int(row["bytes"] or 0)) for row in counted]


def _text(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")


# --- the report

_HEADINGS: Final = {
    "exchange": "Exchanges",
    "key": "Routing keys",
    "queue": "Queues and streams",
    "app_id": "Applications (app-id)",
    "user_id": "Users (user-id)",
}


def html(traffic: Traffic) -> str:
    """The report as one page."""
    if traffic.messages == 0:
        return page("Traffic", traffic.source, [("", "<p>No messages.</p>")])
    step = traffic.step_seconds
    labels = [_label(each["begin"], step) for each in traffic.bins]
    rate = [each["messages"] / step for each in traffic.bins]
    volume = [each["bytes"] / step for each in traffic.bins]
    sections = [
        ("", figures(_headline(traffic, max(rate)))),
        ("Messages per second", line_chart(labels, [Series("messages", rate)], "")),
        ("Bytes per second", line_chart(labels, [Series("bytes", volume)], "B")),
        *_latency_section(traffic, labels),
        (
            "Sizes",
            bar_chart(
                [f"≤ {number_text(limit)}B" for limit, _ in traffic.sizes],
                [float(count) for _, count in traffic.sizes],
                "",
            ),
        ),
    ]
    for name, rows in traffic.top.items():
        if rows:
            shown = [(who, count, size, size / count) for who, count, size in rows]
            columns = (name, "messages", "bytes", "bytes each")
            sections.append((_HEADINGS[name], table(columns, shown)))
    subtitle = f"{traffic.source}, {traffic.first} to {traffic.last}"
    return page("Traffic", subtitle, sections)


def _headline(traffic: Traffic, peak: float) -> list[tuple[str, str]]:
    found = [
        ("messages", f"{traffic.messages:,}"),
        ("bytes", number_text(traffic.bytes)),
        ("per second, at most", number_text(peak)),
        ("median size", f"{traffic.size_percentiles['p50']:,} B"),
    ]
    if traffic.latency_percentiles:
        found.append((f"median {traffic.latency_of}", f"{traffic.latency_percentiles['p50']:,} ms"))
    return found


def _latency_section(traffic: Traffic, labels: list[str]) -> list[tuple[str, str]]:
    if not traffic.latency_percentiles:
        return []
    series = [
        Series("p50", [each["latency_p50_ms"] for each in traffic.bins]),
        Series("p99", [each["latency_p99_ms"] for each in traffic.bins]),
    ]
    return [(f"Latency {traffic.latency_of}", line_chart(labels, series, "ms"))]


def _label(begin: str, step: int) -> str:
    return begin[5:10] if step >= 86_400 else begin[11:16] if step >= 60 else begin[11:19]
