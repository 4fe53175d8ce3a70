"""Deadletters: what died where, why and what it looks like; and a chosen part of it sent back.

Dead letters are read from a stream, an archive, or the stores of the brokers that hold the queue
they went to. They are grouped by the queue they died in, the reason, and their shape: the keys of a
JSON object, or the content type.

Redriving takes messages out of a dead-letter queue and puts those that a condition chooses into the
queue that they died in, or sends them to an exchange that is named. Whoever may publish to that
queue can write into x-death that a message has died anywhere, so the queues that letters may go
back to are named, too. Nothing else that a message says of itself counts: its other keys (CC) and
its user are not published again with the rights of whoever redrives it. Each carries a name made
of its content, and of its place among equal ones, under which its queue takes it once; only then
is it acknowledged. So a redrive that is killed and started again loses nothing and doubles nothing.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from rhizome.amqp import methods
from rhizome.amqp.properties import Properties, decode_properties, encode_header
from rhizome.client.protocol_events import ContentReceived
from rhizome.spark import register
from rhizome.spark.amqp_socket import AmqpSocket, addresses_of, connect_patiently
from rhizome.spark.jobs import archive, timetravel
from rhizome.spark.jobs.job_progress import Figures, JobError, Tell, silently, watch
from rhizome.spark.journal.broker_stores import StorePlace
from rhizome.spark.sink.confirmed_publisher import Publisher
from rhizome.spark.sink.publish_frames import Addressing, Framer

DEATHS: Final = (
    "ARRAY<STRUCT<reason: STRING, queue: STRING, exchange: STRING, count: BIGINT, "
    "time: BIGINT, `routing-keys`: ARRAY<STRING>>>"
)
PATIENCE_SECONDS: Final = 60
QUIET_SECONDS: Final = 1.0
"""A queue that sends nothing for so long is taken for empty."""


@dataclass(frozen=True)
class DeadletterOptions:
    """Where dead letters are: `stream` (with `uri`), `archive`, or `queue` in the stores `journal`
    or, without those, at the brokers of `uri`. `where` is a condition on reason, died_in, exchange,
    key, shape, deaths and the message's own columns."""

    uri: str = field(default="", repr=False)
    stream: str = ""
    archive: str = ""
    journal: str = ""
    queue: str = ""
    vhost: str = "/"
    where: str = ""
    catalog: str = field(default="", repr=False)
    table: str = ""
    brokers: str = ""


@dataclass(frozen=True)
class RedriveOptions:
    """Take at most `limit` messages out of `queue` and send back what `where` chooses: to those of
    the queues `died_in` that they died in, or to `exchange`."""

    uri: str = field(repr=False)
    queue: str
    where: str = ""
    limit: int = 10_000
    exchange: str | None = None
    key: str | None = None
    died_in: tuple[str, ...] = ()


@dataclass
class Deadletters:
    """Groups, the largest first."""

    messages: int = 0
    groups: list[dict[str, Any]] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Redriven:
    """How many were looked at, sent back, and left."""

    queue: str
    seen: int = 0
    sent: int = 0
    left: int = 0

    def document(self) -> dict[str, Any]:
        return asdict(self)


# --- looking


def run(spark: SparkSession, options: DeadletterOptions, tell: Tell = silently) -> Deadletters:
    """Group the dead letters."""
    register(spark)
    if options.stream or options.archive:
        return _grouped(spark, _letters(spark, options), options, tell)
    if not options.queue:
        raise JobError("say which queue of the journal has the dead letters")
    if not (options.journal or options.uri):
        raise JobError("dead letters are in a stream, an archive, a journal or at brokers")
    place = StorePlace(options.journal, "" if options.journal else options.uri, options.brokers)
    with timetravel.stores_of_queue(place, options.queue, options.vhost) as found:
        events = timetravel.queue_events(spark, found)
        now = timetravel.contents_at(events, int(time.time() * 1000) + 60_000)
        letters = now.where("message IS NOT NULL").select("message.*")
        return _grouped(spark, letters, options, tell)


def _grouped(
    spark: SparkSession, letters: DataFrame, options: DeadletterOptions, tell: Tell
) -> Deadletters:
    found = with_deaths(letters)
    if options.where:
        found = found.where(options.where)
    grouped = (
        found.groupBy("died_in", "reason", "exchange", "shape")
        .agg(
            F.count("*").alias("messages"),
            F.sum(F.length("value")).alias("bytes"),
            F.max("deaths").alias("deaths_max"),
            F.min("died_at").alias("first"),
            F.max("died_at").alias("last"),
            F.first("key").alias("key"),
            F.first(F.substring(F.decode("value", "utf-8"), 1, 80)).alias("example"),
        )
        .orderBy(F.desc("messages"))
    )
    rows = watch(spark, "grouping", tell, grouped.collect)
    groups = [_plain(row.asDict()) for row in rows]
    return Deadletters(sum(each["messages"] for each in groups), groups)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {k: v.isoformat() if hasattr(v, "isoformat") else v for k, v in row.items()}


def _letters(spark: SparkSession, options: DeadletterOptions) -> DataFrame:
    given = [each for each in (options.stream, options.archive, options.journal) if each]
    if len(given) != 1:
        raise JobError("dead letters are in one of a stream, an archive and a journal")
    return archive.read_messages(
        spark, options.archive, options.catalog, options.table, options.uri, options.stream
    )


def with_deaths(letters: DataFrame) -> DataFrame:
    """Letters with reason, died_in, died_at, deaths and shape. The exchange and key are those that
    they were first published with."""
    deaths = F.from_json(F.col("headers")["x-death"], DEATHS)
    latest = F.get("history", F.lit(0))
    text = F.decode("value", "utf-8")
    keys = F.json_object_keys(text)
    shape = F.when(
        keys.isNotNull(), F.concat(F.lit("{"), F.array_join(F.array_sort(keys), ", "), F.lit("}"))
    ).otherwise(F.coalesce("content_type", F.lit("bytes")))
    return (
        letters.withColumn("history", deaths)
        .withColumn("reason", latest["reason"])
        .withColumn("died_in", latest["queue"])
        .withColumn("died_at", F.timestamp_seconds(latest["time"]))
        .withColumn("deaths", latest["count"])
        .withColumn("exchange", F.coalesce(latest["exchange"], "exchange"))
        .withColumn("key", F.coalesce(F.get(latest["routing-keys"], F.lit(0)), "key"))
        .withColumn("shape", shape)
        .drop("history")
    )


# --- sending back


def redrive(spark: SparkSession, options: RedriveOptions, tell: Tell = silently) -> Redriven:
    """Send chosen dead letters back; the others stay in their queue."""
    check_target(options)
    register(spark)
    found = Redriven(options.queue)
    with connect_patiently(addresses_of(options.uri), "rhizome redrive", PATIENCE_SECONDS) as wire:
        held = _hold(wire, options, tell)
        found.seen = len(held)
        if held:
            chosen = watch(spark, "choosing", tell, lambda: _choose(spark, held, options))
            _publish([(held[tag], exchange, key) for tag, exchange, key in chosen], options)
            for tag, _, _ in chosen:
                wire.send(methods.BasicAck(tag, False))
            wire.exchange(QUIET_SECONDS)
            found.sent = len(chosen)
    # What was not acknowledged goes back to its place with the end of the connection.
    found.left = found.seen - found.sent
    return found


def check_target(options: RedriveOptions) -> None:
    """Raise JobError if messages would choose for themselves which queue they go to."""
    if options.exchange or (options.exchange is not None and options.key is not None):
        return
    if options.exchange is None and options.key is None and options.died_in:
        return
    raise JobError(
        "say where the letters may go: --died-in for each queue that they go back to, or"
        " --exchange, and --key with the default one. x-death can be written by everybody who may"
        " publish to a queue of dead letters; `rhizome pipeline deadletters` shows what it says"
    )


def _hold(wire: AmqpSocket, options: RedriveOptions, tell: Tell) -> dict[int, ContentReceived]:
    """Take messages, by delivery tag, and keep them unacknowledged."""
    there = wire.call(
        methods.QueueDeclare(queue=options.queue, passive=True), methods.QueueDeclareOk
    )
    wanted = min(int(there.message_count), options.limit)
    held: dict[int, ContentReceived] = {}
    if wanted == 0:
        return held
    wire.call(methods.BasicQos(prefetch_count=min(wanted, 0xFFFF)), methods.BasicQosOk)
    wire.call(
        methods.BasicConsume(queue=options.queue, consumer_tag="redrive"), methods.BasicConsumeOk
    )
    while len(held) < wanted:
        events = wire.poll(QUIET_SECONDS)
        for event in events:
            if isinstance(event, ContentReceived):
                method = event.method
                assert isinstance(method, methods.BasicDeliver)
                held[int(method.delivery_tag)] = event
        tell(Figures("taking", rows=len(held)))
        if not events:
            break
    return held


def _choose(
    spark: SparkSession, held: dict[int, ContentReceived], options: RedriveOptions
) -> list[tuple[int, str, str]]:
    """Tag, exchange and key of those that the condition chooses."""
    import json

    from rhizome.spark.columns.header_columns import text_of

    rows = []
    for tag, event in held.items():
        properties = decode_properties(event.header)
        headers = {name: text_of(value) for name, value in (properties.headers or {}).items()}
        method = event.method
        assert isinstance(method, methods.BasicDeliver)
        rows.append(
            (
                tag,
                method.exchange,
                method.routing_key,
                bytearray(event.body),
                headers,
                properties.content_type,
                properties.message_id,
                properties.app_id,
                json.dumps(sorted(headers)),
            )
        )
    letters = spark.createDataFrame(
        rows,
        "tag BIGINT, exchange STRING, key STRING, value BINARY, headers MAP<STRING, STRING>, "
        "content_type STRING, message_id STRING, app_id STRING, header_names STRING",
    )
    found = with_deaths(letters)
    if options.where:
        found = found.where(options.where)
    found = _addressed(found, options)
    chosen = found.select("tag", "exchange", "key").orderBy("tag").collect()
    return [(int(row["tag"]), row["exchange"], row["key"]) for row in chosen]


def _addressed(found: DataFrame, options: RedriveOptions) -> DataFrame:
    """Letters with where they go: the queue that they died in if it is one of those that are named,
    else the exchange."""
    if options.exchange is None:
        found = found.where(F.col("died_in").isin(*options.died_in))
        return found.withColumn("exchange", F.lit("")).withColumn("key", F.col("died_in"))
    found = found.withColumn("exchange", F.lit(options.exchange))
    if options.key is not None:
        found = found.withColumn("key", F.lit(options.key))
    return found


def _publish(chosen: list[tuple[ContentReceived, str, str]], options: RedriveOptions) -> None:
    if not chosen:
        return
    publisher = Publisher(addresses_of(options.uri), "rhizome redrive", PATIENCE_SECONDS)
    try:
        framer = Framer(
            Addressing("", None, mandatory=True, persistent=True), publisher.frame_bytes_max
        )
        rows = pa.record_batch(
            {
                "value": pa.array([event.body for event, _, _ in chosen], pa.binary()),
                "exchange": pa.array([exchange for _, exchange, _ in chosen], pa.string()),
                "key": pa.array([key for _, _, key in chosen], pa.string()),
                "raw_properties": pa.array(_named([event for event, _, _ in chosen]), pa.binary()),
            }
        )
        publisher.publish(framer.frames(rows, None))
        publisher.finish()
    except BaseException:
        publisher.drop()
        raise


def _named(events: list[ContentReceived]) -> list[bytes]:
    """The properties of messages, which their queues will know by their content from now on, and
    by how many equal ones came before."""
    counts: dict[str, int] = {}
    named: list[bytes] = []
    for event in events:
        digest = sha256(event.header + event.body).hexdigest()[:32]
        named.append(_renamed(event, digest, counts.get(digest, 0)))
        counts[digest] = counts.get(digest, 0) + 1
    return named


def _renamed(event: ContentReceived, digest: str, number: int) -> bytes:
    properties: Properties = decode_properties(event.header)
    headers = dict(properties.headers or {})
    headers.pop("CC", None)
    headers.pop("BCC", None)
    if properties.user_id is not None:
        # A broker takes it from the user itself only.
        headers["x-original-user-id"] = properties.user_id
        properties.user_id = None
    headers["x-producer"] = f"redrive:{digest}"
    headers["x-sequence"] = number
    properties.headers = headers
    return encode_header(0, properties)[12:]
