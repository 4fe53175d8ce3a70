"""Traffic: how much, how large, how late, by whom; a report in HTML.

From streams and archives come rates, sizes and top talkers. How long a message was on its way to
the broker is shown where publishers set the header `timestamp_in_ms`; AMQP's own timestamp has
whole seconds, which is no measure of milliseconds. A journal tells how long messages waited in
their queues: from the record that took them to the one that settled them. Given beside a stream or
an archive it adds that to their report.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from rhizome.spark import register
from rhizome.spark.jobs import archive
from rhizome.spark.jobs.charts import (
    Series,
    bar_chart,
    figures,
    line_chart,
    milliseconds_text,
    number_text,
    page,
    table,
)
from rhizome.spark.jobs.job_progress import JobError, Tell, silently, watch
from rhizome.spark.jobs.small_job_settings import (
    ROWS_MAX,
    are_small,
    interpreted,
)
from rhizome.spark.journal import broker_stores
from rhizome.spark.journal.broker_stores import StorePlace

STEPS_SECONDS: Final = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 6 * 3600, 86_400)
BINS_MAX: Final = 200
TOP: Final = 15
KEYS_TOP: Final = 1_000
"""Routing keys in a report: more than one looks through, so the page can search them."""

ONE_SOURCE: Final = "traffic needs a stream, an archive or a journal, and only one of the first two"
SENT_HEADER: Final = "timestamp_in_ms"
"""When a publisher sent the message, in ms since 1970."""

WAY_MS_MAX: Final = 86_400_000
"""A message that was on its way for longer was stamped by a clock that is wrong, or sent again."""

ON_ITS_WAY: Final = "from publisher to broker"
IN_QUEUES: Final = "waiting in queues"
_TALKERS: Final = ("exchange", "key", "queue", "app_id", "user_id")


@dataclass(frozen=True)
class TrafficOptions:
    """What to look at: `stream` (with `uri`) or `archive`, and `journal`; without those the
    journals of the brokers of `uri`. `html` is where the report goes, `title` what it is called.
    `where` is a condition in SQL on the stream or archive, or on the journal if that is alone."""

    uri: str = field(default="", repr=False)
    stream: str = ""
    archive: str = ""
    journal: str = ""
    where: str = ""
    html: str = ""
    catalog: str = field(default="", repr=False)
    table: str = ""
    brokers: str = ""
    title: str = "Traffic"


@dataclass
class Latency:
    """How late messages were, in ms: over all of them, and in each bin of a report (None: no
    message is known there)."""

    of: str
    percentiles: dict[str, float]
    p50: list[float | None] = field(default_factory=list)
    p99: list[float | None] = field(default_factory=list)


@dataclass
class Traffic:
    """The figures. Bins have their begin, messages and bytes; latencies are in the same steps, from
    the same begin."""

    source: str
    messages: int = 0
    bytes: int = 0
    first: str | None = None
    last: str | None = None
    step_seconds: int = 1
    bins: list[dict[str, Any]] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    size_percentiles: dict[str, int] = field(default_factory=dict)
    latencies: list[Latency] = field(default_factory=list)
    top: dict[str, list[tuple[str, int, int]]] = field(default_factory=dict)
    html: str = ""

    def document(self) -> dict[str, Any]:
        return asdict(self)


def run(spark: SparkSession, options: TrafficOptions, tell: Tell = silently) -> Traffic:
    """Compute the figures, and write the report if it has a place."""
    register(spark)
    if not (options.stream or options.archive):
        found = _of_journals(spark, options, tell)
    else:
        source, rows = _rows(spark, options)
        with _kept(rows) as rows:
            found = watch(spark, "counting", tell, lambda: _figures(source, rows, ON_ITS_WAY))
        if options.journal:
            found.latencies += _waits(spark, options, found, tell)
    if options.html:
        Path(options.html).write_text(html(found, options.title))
        found.html = options.html
    return found


@contextmanager
def _kept(rows: DataFrame) -> Iterator[DataFrame]:
    """Rows that are read once and counted in several ways."""
    rows = rows.persist()
    try:
        yield rows
    finally:
        rows.unpersist()


@contextmanager
def _of_stores(
    spark: SparkSession, options: TrafficOptions, where: str
) -> Iterator[tuple[str, DataFrame]]:
    """What the journals are called, and their messages."""
    place = StorePlace(options.journal, "" if options.journal else options.uri, options.brokers)
    with broker_stores.opened(place) as found:
        labels = options.journal or ", ".join(each.label for each in found)
        rows = _journal_rows(spark, broker_stores.as_now(found, place), where, len(found) > 1)
        with interpreted(spark, are_small(found)), _kept(rows) as rows:
            yield f"journal {labels}", rows


def _of_journals(spark: SparkSession, options: TrafficOptions, tell: Tell) -> Traffic:
    if not (options.journal or options.uri):
        raise JobError(ONE_SOURCE)
    with _of_stores(spark, options, options.where) as (source, rows):
        return watch(spark, "counting", tell, lambda: _figures(source, rows, IN_QUEUES))


def _waits(
    spark: SparkSession, options: TrafficOptions, beside: Traffic, tell: Tell
) -> list[Latency]:
    """How long messages waited in the queues of the journal, in the bins of another report."""
    with _of_stores(spark, options, "") as (_, rows):
        return watch(spark, "waiting times", tell, lambda: _latencies(rows, beside, IN_QUEUES))


# --- rows: time, size, exchange, key, queue, app_id, user_id, latency_ms


def _rows(spark: SparkSession, options: TrafficOptions) -> tuple[str, DataFrame]:
    given = [each for each in (options.stream, options.archive) if each]
    if len(given) != 1:
        raise JobError(ONE_SOURCE)
    found = archive.read_messages(
        spark, options.archive, options.catalog, options.table, options.uri, options.stream
    )
    if options.where:
        found = found.where(options.where)
    sent_ms = F.try_to_number(F.col("headers")[SENT_HEADER], F.lit("9" * 15)).cast("long")
    on_its_way = F.unix_millis("timestamp") - sent_ms
    return given[0], found.select(
        F.col("timestamp").alias("time"),
        F.length("value").alias("size"),
        *_TALKERS,
        F.when(on_its_way.between(0, WAY_MS_MAX), on_its_way).alias("latency_ms"),
    )


def _journal_rows(
    spark: SparkSession, place: StorePlace, where: str, has_copies: bool
) -> DataFrame:
    """Messages with how long they waited, per queue. Of copies of a group each message counts once;
    numbers of the local group (0) mean something in one store only."""
    events = (
        spark.read.format("rhizome.journal")
        .option("events", "enqueued,dequeued")
        .options(**place.options())
        .load()
        .withColumn("of", F.when(F.col("group") == 0, F.col("store")).otherwise(F.lit("")))
    )
    came = events.where("event = 'enqueued'")
    if where:
        came = came.where(where)
    key = ["of", "group", "queue_id", "index"]
    if has_copies:
        came = came.dropDuplicates([*key, "epoch"])
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

_PERCENTILES: Final = ("p50", "p90", "p99", "max")


def _figures(source: str, rows: DataFrame, latency_of: str) -> Traffic:
    found = Traffic(source)
    bounds = rows.agg(
        F.count("*"),
        F.sum("size"),
        F.unix_millis(F.min("time")),
        F.unix_millis(F.max("time")),
        F.percentile_approx("size", [0.5, 0.9, 0.99, 1.0]),
    ).first()
    assert bounds is not None
    found.messages, found.bytes = int(bounds[0]), int(bounds[1] or 0)
    if found.messages == 0:
        return found
    found.first, found.last = _text(bounds[2]), _text(bounds[3])
    found.step_seconds = step_for((bounds[3] - bounds[2]) / 1000)
    found.size_percentiles = dict(zip(_PERCENTILES, bounds[4], strict=True))
    with interpreted(rows.sparkSession, found.messages <= ROWS_MAX):
        found.bins = _bins(rows, found.step_seconds)
        found.latencies = _latencies(rows, found, latency_of)
        found.sizes = _sizes(rows)
        for name in _TALKERS:
            found.top[name] = _top(rows, name, KEYS_TOP if name == "key" else TOP)
    return found


def step_for(seconds: float) -> int:
    """The finest step that makes no more than BINS_MAX bins."""
    return next((s for s in STEPS_SECONDS if seconds / s <= BINS_MAX), STEPS_SECONDS[-1])


def _number(step: int) -> Column:
    """The number of the bin that a row is in, counted from 1970."""
    return F.floor(F.unix_millis("time") / (step * 1000)).alias("bin")


def _bins(rows: DataFrame, step: int) -> list[dict[str, Any]]:
    counted = (
        rows.groupBy(_number(step))
        .agg(F.count("*").alias("messages"), F.sum("size").alias("bytes"))
        .collect()
    )
    known = {int(row["bin"]): row for row in counted}
    found = []
    for place in range(min(known), max(known) + 1):
        row = known.get(place)
        found.append(
            {
                "begin": _text(place * step * 1000),
                "messages": int(row["messages"]) if row is not None else 0,
                "bytes": int(row["bytes"] or 0) if row is not None else 0,
            }
        )
    return found


def _latencies(rows: DataFrame, beside: Traffic, of: str) -> list[Latency]:
    """Percentiles of `latency_ms` of rows from the time of a report, over all of them and in its
    bins; none if no row has any."""
    if not beside.bins:
        return []
    step = beside.step_seconds
    first = int(datetime.fromisoformat(beside.bins[0]["begin"]).timestamp()) // step
    bins = range(first, first + len(beside.bins))
    known = rows.where("latency_ms IS NOT NULL").where(
        F.unix_millis("time").between(bins.start * step * 1000, bins.stop * step * 1000 - 1)
    )
    whole = known.agg(F.percentile_approx("latency_ms", [0.5, 0.9, 0.99, 1.0])).first()
    if whole is None or whole[0] is None:
        return []
    some = F.percentile_approx("latency_ms", [0.5, 0.99]).alias("some")
    by_bin = {row["bin"]: row["some"] for row in known.groupBy(_number(step)).agg(some).collect()}
    pairs = [by_bin.get(place) or (None, None) for place in bins]
    percentiles = dict(zip(_PERCENTILES, whole[0], strict=True))
    return [Latency(of, percentiles, [p50 for p50, _ in pairs], [p99 for _, p99 in pairs])]


def _sizes(rows: DataFrame) -> list[tuple[int, int]]:
    """Messages by size, up to powers of two: (at most so many bytes, count)."""
    power = F.ceil(F.log2(F.greatest(F.col("size"), F.lit(1)))).alias("power")
    counted = rows.groupBy(power).count().orderBy("power").collect()
    return [(1 << int(row["power"]), int(row["count"])) for row in counted]


def _top(rows: DataFrame, name: str, most: int) -> list[tuple[str, int, int]]:
    counted = (
        rows.where(F.col(name).isNotNull())
        .groupBy(name)
        .agg(F.count("*").alias("messages"), F.sum("size").alias("bytes"))
        .orderBy(F.desc("messages"), name)
        .limit(most)
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


def html(traffic: Traffic, title: str) -> str:
    """The report as one page."""
    if traffic.messages == 0:
        return page(title, traffic.source, [("", "<p>No messages.</p>")])
    step = traffic.step_seconds
    labels = [_label(each["begin"], step) for each in traffic.bins]
    rate = [each["messages"] / step for each in traffic.bins]
    volume = [each["bytes"] / step for each in traffic.bins]
    sections = [
        ("", figures(_headline(traffic, max(rate)))),
        ("Messages per second", line_chart(labels, [Series("messages", rate)], "")),
        ("Bytes per second", line_chart(labels, [Series("bytes", volume)], "B")),
        *_latency_sections(traffic, labels),
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
            listed = table(columns, shown, searched=len(rows) > TOP, shown_first=TOP)
            sections.append((_HEADINGS[name], listed))
    subtitle = f"{traffic.source}, {traffic.first} to {traffic.last}"
    return page(title, subtitle, sections)


def _headline(traffic: Traffic, peak: float) -> list[tuple[str, str]]:
    found = [
        ("messages", f"{traffic.messages:,}"),
        ("bytes", number_text(traffic.bytes)),
        ("per second, at most", number_text(peak)),
        ("median size", f"{traffic.size_percentiles['p50']:,} B"),
    ]
    for each in traffic.latencies:
        found.append((f"median {each.of}", milliseconds_text(each.percentiles["p50"])))
    return found


def _latency_sections(traffic: Traffic, labels: list[str]) -> list[tuple[str, str]]:
    found = []
    for each in traffic.latencies:
        series = [Series("p50", each.p50), Series("p99", each.p99)]
        chart = line_chart(labels, series, "", text=milliseconds_text)
        found.append((f"Time {each.of}", chart))
    return found


def _label(begin: str, step: int) -> str:
    return begin[5:10] if step >= 86_400 else begin[11:16] if step >= 60 else begin[11:19]
