"""Audit: do the stores of a cluster hold what they must, and the same?

Copies of a group hold the same records, so checksums are compared; what counts in the end are the
messages that each copy would serve. Copies are compared at an index that the home and all its
in-sync standbys have reached, which is committed (G6), so brokers may be running meanwhile. Where
one cuts in, by removing a segment or by taking a group over, everything is read again. Copies of a
stream are the same chunks in the same files; they are compared chunk by chunk.

    lost record          a message that others hold (or the checkpoint names), and this copy doesn't
    duplicated record    one message twice under one index, or one sequence of a producer twice
    swapped order        a record before one of a lower index
    changed body         another content under the same index and epoch
    missing copy         a broker that must have a copy of a group has none
    diverging copy       different records of one group under the same index
    resurrected message  settled in one copy, and live in another
    truncated segment    a segment that ends before its end, or is not there
    damaged record       a record that fails its checksum

Of one store alone (a lone broker's, say) there is less to compare; order, duplicates, damage and
what the checkpoint names are looked at all the same.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from rhizome.cluster.state.groups_and_placement import Group
from rhizome.errors import RhizomeError
from rhizome.spark import register
from rhizome.spark import schema as schemas
from rhizome.spark.jobs.audit_findings import (
    CHANGED,
    DAMAGED,
    DIVERGING,
    DUPLICATED,
    LOST,
    MISSING,
    RESURRECTED,
    SWAPPED,
    TRUNCATED,
    Violation,
    odd_copies,
    violations,
)
from rhizome.spark.jobs.audit_live_messages import MESSAGE, Messages
from rhizome.spark.jobs.audit_stream_copies import StreamCopies
from rhizome.spark.jobs.job_progress import JobError, Tell, silently, watch
from rhizome.spark.jobs.small_job_settings import (
    ROWS_MAX,
    are_small,
    interpreted,
    table_of,
)
from rhizome.spark.journal import broker_stores as stores
from rhizome.spark.journal.broker_stores import GONE, OpenStore, StorePlace
from rhizome.spark.journal.journal_rows import CHECKPOINT

_COLUMNS: Final = (
    "store", "segment", "offset", "group", "epoch", "record", "event", "vhost", "queue",
    "queue_id", "index", "producer", "sequence", "detail", "checksum", "digest",
)  # fmt: skip
READS_MAX: Final = 4
_SHORTENED: Final = ("segment", "offset")
# Records of a log that every copy has; MOVED and the marks of a store are its own.
_COMMON: Final = ("enqueued", "dequeued", "requeued", "purged", "queue-dropped", "delivered")
_TRUNCATION: Final = "without its end|too short|missing|incomplete|ends before"


@dataclass(frozen=True)
class AuditOptions:
    """Data directories of brokers, patterns allowed, or brokers that run (``uri``: all of the
    cluster, or those named); at most so many violations of a kind are listed (all are counted)."""

    paths: str = ""
    listed_max: int = 100
    uri: str = field(default="", repr=False)
    brokers: str = ""


@dataclass
class AuditReport:
    """What was looked at, and what was found. `compared_at` is the index by group."""

    stores: dict[str, str]
    records: int = 0
    messages: int = 0
    compared_at: dict[int, int] = field(default_factory=dict)
    copies: dict[int, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        return not self.counts

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "sound": self.is_sound}


def run(spark: SparkSession, options: AuditOptions, tell: Tell = silently) -> AuditReport:
    """Audit the stores; violations are in the report, never an exception."""
    register(spark)
    place = StorePlace(options.paths, options.uri, options.brokers)
    for left in reversed(range(READS_MAX)):
        with stores.opened(place) as found:
            audit = _Audit(spark, found, place, options, tell)
            try:
                with interpreted(spark, are_small(found)):
                    audit.read()
                if not audit.moved or not left:
                    with interpreted(spark, audit.report.records <= ROWS_MAX):
                        return audit.run()
            except (PySparkException, RhizomeError) as error:
                if not left or GONE not in str(error):
                    raise
            finally:
                audit.events.unpersist()
    raise AssertionError("the last reading returns or raises")


@dataclass(frozen=True)
class _Counted:
    """The rows of one event of a group in a store, and the highest index and epoch among them; 0
    where none has any."""

    group: int
    store: str
    event: str
    rows: int
    record: int
    epoch: int


class _Audit:
    """``events`` is the table that everything is asked of, read once."""

    def __init__(
        self,
        spark: SparkSession,
        found: list[OpenStore],
        place: StorePlace,
        options: AuditOptions,
        tell: Tell,
    ) -> None:
        self.spark = spark
        self.stores = {each.label: each for each in found}
        self.states = self._states()
        self.place = stores.as_now(found, place)
        self.brokers = {
            each: known.broker or Path(each).name for each, known in self.states.items()
        }
        if len(set(self.brokers.values())) < len(self.brokers):
            self.brokers = {each: each for each in self.stores}
        self.options = options
        self.tell = tell
        self.report = AuditReport(self.brokers)
        for store, state in self.states.items():
            if state.trouble:
                self.report.notes.append(
                    f"{self.brokers[store]} can't be asked which copies there should be: "
                    f"{state.trouble}"
                )
        self.counted: list[_Counted] = []
        self.behind: list[int] = []
        self.moved: list[int] = []
        self.events = _read(spark, self.place).persist()

    def _states(self) -> dict[str, stores.StoreState]:
        return {label: store.state() for label, store in self.stores.items()}

    def read(self) -> None:
        """Read all journals, and see whether groups got another home or other standbys meanwhile:
        whose copies must agree is known only of the others.
        """
        self.counted = watch(self.spark, "reading journals", self.tell, self._count)
        self.report.records = sum(each.rows for each in self.counted)
        self.report.messages = sum(each.rows for each in self.counted if each.event == "enqueued")
        now = self._states()
        epochs: dict[int, int] = {}
        for each in self.counted:
            if each.event == "epoch":
                epochs[each.group] = max(epochs.get(each.group, 0), each.epoch)
        for group, known in _newest_groups(self.states).items():
            is_same = _newest_groups(now).get(group) == known
            if not is_same or epochs.get(group, 0) > known.epoch:
                self.moved.append(group)

    def run(self) -> AuditReport:
        ends = self._ends()
        self._choose_copies(ends)
        messages = Messages(self.events, self._reach())
        self._note_far_ahead()
        checks = [
            self._damage(),
            self._missing_segments(),
            self._duplicates(),
            self._repeated_sequences(),
            self._order(),
            self._unkept(),
            *self._comparisons(messages),
            *self._streams(),
        ]
        found = reduce(DataFrame.unionByName, checks).persist()
        watch(self.spark, "comparing copies", self.tell, lambda: self._collect(found))
        found.unpersist()
        self._describe()
        return self.report

    def _count(self) -> list[_Counted]:
        rows = self.events.groupBy("group", "store", "event").agg(
            F.count("*").alias("rows"),
            F.max("record").alias("record"),
            F.max("epoch").alias("epoch"),
        )
        return [
            _Counted(
                int(row["group"] or 0),
                row["store"],
                row["event"],
                int(row["rows"]),
                int(row["record"] or 0),
                int(row["epoch"] or 0),
            )
            for row in rows.collect()
        ]

    # --- what is compared

    def _ends(self) -> dict[int, dict[str, int]]:
        """The last index that each store has of each group."""
        found: dict[int, dict[str, int]] = {}
        for each in self.counted:
            if each.group > 0:
                last = found.setdefault(each.group, {})
                last[each.store] = max(last.get(each.store, 0), each.record)
        return found

    def _choose_copies(self, ends: dict[int, dict[str, int]]) -> None:
        """Which stores must agree on a group, and up to which index."""
        for group, last in sorted(ends.items()):
            if group in self.moved:
                self._note_moved(group)
                continue
            members = self._members(group)
            chosen = [store for store in last if not members or self.brokers[store] in members]
            for store in last.keys() - set(chosen):
                self.report.notes.append(
                    f"{self.brokers[store]} has an old copy of group {group}; it is not in sync "
                    "and was not compared"
                )
            if chosen:
                self.report.copies[group] = sorted(self.brokers[store] for store in chosen)
                self.report.compared_at[group] = min(last[store] for store in chosen)
            self._note_missing(group, members, {self.brokers[store] for store in last})

    def _members(self, group: int) -> list[str]:
        """Home and in-sync standbys of a group, by the newest state among the stores."""
        newest = _newest_groups(self.states).get(group)
        if newest is None:
            return []
        return [newest.home, *(member.broker for member in newest.in_sync)]

    def _note_moved(self, group: int) -> None:
        self.report.notes.append(
            f"group {group} changed its home or its standbys while it was read, {READS_MAX} times; "
            "its copies were not compared"
        )

    def _note_missing(self, group: int, members: list[str], having: set[str]) -> None:
        for broker in members:
            if broker in having:
                continue
            if broker in self.brokers.values():
                store = next(each for each, name in self.brokers.items() if name == broker)
                text = f"the cluster counts on {broker} for group {group}, and its store has none"
                self._add(Violation(MISSING, broker, store, group, detail=text))
            else:
                self.report.notes.append(f"the copy of group {group} at {broker} was not given")

    def _reach(self) -> DataFrame:
        """Per group and store that is compared: the index up to which it is."""
        rows = [
            (group, store, index)
            for group, index in self.report.compared_at.items()
            for store, broker in self.brokers.items()
            if broker in self.report.copies[group]
        ]
        return table_of(self.spark, rows, "`group` INT, store STRING, reach BIGINT")

    def _note_far_ahead(self) -> None:
        """A checkpoint beyond the index of comparison forgets what was live at that index."""
        ends: dict[int, int] = {}
        for each in self.counted:
            if each.event == CHECKPOINT and each.group > 0:
                ends[each.group] = max(ends.get(each.group, 0), each.record)
        for group, record in ends.items():
            if record > self.report.compared_at.get(group, 1 << 62):
                self.behind.append(group)
                self.report.notes.append(
                    f"a copy of group {group} is so far behind that its messages can't be compared "
                    f"with those of the others, only its records up to "
                    f"{self.report.compared_at[group]}"
                )

    # --- of each store by itself

    def _damage(self) -> DataFrame:
        found = self.events.where("event = 'damaged'")
        kind = F.when(F.col("detail").rlike(_TRUNCATION), TRUNCATED).otherwise(DAMAGED)
        return violations(found, kind, F.col("detail"))

    def _missing_segments(self) -> DataFrame:
        """Segments between those that a restart would read."""
        rows = []
        for label, store in self.stores.items():
            for segments in store.segments(history=False):
                numbers, start = _settled_numbers(segments)
                kept = [number for number in numbers if number >= start]
                expected = range(start, kept[-1]) if kept else range(start, start + (start > 1))
                rows += [(label, number) for number in expected if number not in numbers]
        gone = table_of(self.spark, rows, "store STRING, segment BIGINT")
        return violations(gone, F.lit(TRUNCATED), F.lit("the segment is not there"))

    def _duplicates(self) -> DataFrame:
        """Not MOVED, which is a second record on purpose, nor what a copy in the making gets."""
        enqueued = self.events.where("event = 'enqueued'")
        twice = (
            enqueued.groupBy("store", "group", "epoch", "queue_id", "index")
            .agg(
                F.count("*").alias("n"),
                *(F.max(name).alias(name) for name in ("segment", "offset", "vhost", "queue")),
            )
            .where("n > 1")
            .join(self._installs(), ["store", "group"], "left_anti")
        )
        return violations(twice, F.lit(DUPLICATED), F.concat(F.col("n"), F.lit(" records of it")))

    def _repeated_sequences(self) -> DataFrame:
        twice = (
            self.events.where("event = 'enqueued' AND producer IS NOT NULL")
            .groupBy("store", "group", "queue_id", "producer", "sequence")
            .agg(
                F.countDistinct("index").alias("n"),
                F.max("index").alias("index"),
                *(F.max(name).alias(name) for name in (*_SHORTENED, "epoch", "vhost", "queue")),
            )
            .where("n > 1")
        )
        text = F.concat_ws(" ", F.lit("sequence"), "sequence", F.lit("of producer"), "producer")
        return violations(twice, F.lit(DUPLICATED), text)

    def _installs(self) -> DataFrame:
        """Groups whose copy in a store was made from another: its records came in any order."""
        return self.events.where("event = 'installing'").select("store", "group").distinct()

    def _order(self) -> DataFrame:
        logged = self.events.where(F.col("event").isin(*_COMMON) & (F.col("record") > 0)).join(
            self._installs(), ["store", "group"], "left_anti"
        )
        window = Window.partitionBy("store", "group", "segment").orderBy("offset")
        within = (
            logged.withColumn("before", F.lag("record").over(window))
            .withColumn("epoch_before", F.lag("epoch").over(window))
            .where("record < before AND epoch = epoch_before")
        )
        whole = Window.partitionBy("store", "group").orderBy("segment")
        spans = logged.groupBy("store", "group", "segment").agg(
            F.min_by("record", "offset").alias("record"),
            F.min_by("epoch", "offset").alias("epoch"),
            F.min("offset").alias("offset"),
            F.max_by("record", "offset").alias("last"),
            F.max_by("epoch", "offset").alias("last_epoch"),
        )
        between = (
            spans.withColumn("before", F.lag("last").over(whole))
            .withColumn("epoch_before", F.lag("last_epoch").over(whole))
            .where("record < before AND epoch = epoch_before")
            .withColumn("index", F.col("record"))
        )
        return violations(within, F.lit(SWAPPED), _behind()).unionByName(
            violations(between, F.lit(SWAPPED), _behind())
        )

    def _unkept(self) -> DataFrame:
        """What the checkpoint says is live must have its record where it says."""
        live = self.events.where("event = 'checkpointed'")
        there = self.events.where("event IN ('enqueued', 'moved')").select(
            "store", "segment", "offset", "queue_id", "index"
        )
        gone = live.join(there, ["store", "segment", "offset", "queue_id", "index"], "left_anti")
        text = F.lit("live in the checkpoint, and its record is not there")
        return violations(gone, F.lit(LOST), text)

    # --- of copies with each other

    def _comparisons(self, messages: Messages) -> list[DataFrame]:
        return [self._diverging(messages.reach), *self._unequal(messages)]

    def _diverging(self, reach: DataFrame) -> DataFrame:
        """Records under one index that differ between copies.

        What a copy in the making gets of a message names only the queues that still have it, so
        messages are compared by their digest, other records by their checksum.
        """
        logged = (
            self.events.where(F.col("event").isin(*_COMMON) & (F.col("record") > 0))
            .join(F.broadcast(reach), ["store", "group"])
            .where("record <= reach")
            .dropDuplicates(["store", "segment", "offset"])
            .withColumn("sum", F.coalesce("digest", "checksum"))
        )
        latest = logged.groupBy("store", "group", "record").agg(F.max("epoch").alias("epoch"))
        valid = logged.join(latest, ["store", "group", "record", "epoch"])
        sums = valid.groupBy("group", "record").agg(
            F.countDistinct("sum").alias("sums"),
            F.countDistinct("epoch").alias("epochs"),
            F.countDistinct("event").alias("kinds"),
        )
        differing = valid.join(sums.where("sums > 1 OR epochs > 1"), ["group", "record"])
        odd = odd_copies(differing, ["group", "record"], "sum")
        odd = odd.withColumn("index", F.coalesce("index", "record"))
        changed = (F.col("epochs") == 1) & (F.col("kinds") == 1) & (F.col("event") == "enqueued")
        text = F.concat_ws(
            "", F.lit("its record ("), "event", F.lit(") differs from that of the other copies")
        )
        return violations(odd, F.when(changed, CHANGED).otherwise(DIVERGING), text)

    def _unequal(self, messages: Messages) -> list[DataFrame]:
        """Messages that one copy would serve and another wouldn't."""
        live = messages.live()
        if self.behind:
            live = live.where(~F.col("group").isin(*self.behind))
        copies = messages.reach.groupBy("group").agg(F.collect_set("store").alias("stores"))
        held = live.groupBy(*MESSAGE).agg(
            F.collect_set("store").alias("having"),
            *(F.max(name).alias(name) for name in ("epoch", "vhost", "queue")),
        )
        unequal = held.join(copies, "group").where("size(having) < size(stores)")
        settled = messages.settled().select(*MESSAGE).distinct()
        text = F.concat_ws(
            " ", F.lit("the copies in"), F.concat_ws(", ", "having"), F.lit("have it")
        )
        lost = (
            unequal.join(settled, MESSAGE, "left_anti")
            .withColumn("detail", text)
            .withColumn("store", F.explode(F.array_except("stores", "having")))
        )
        risen = unequal.join(settled, MESSAGE, "left_semi").withColumn("store", F.explode("having"))
        return [
            violations(lost, F.lit(LOST), F.col("detail")),
            violations(risen, F.lit(RESURRECTED), F.lit("another copy has settled it")),
        ]

    def _streams(self) -> list[DataFrame]:
        """What is wrong with the logs of streams, which are no part of the journal."""
        found = StreamCopies(self.spark, self.stores, self.states, self.brokers)
        if not found.segments:
            return []
        watch(self.spark, "reading streams", self.tell, found.read)
        self.report.records += found.chunks_read
        self.report.messages += found.messages_read
        for group in found.groups:
            if group in self.moved:
                self._note_moved(group)
                continue
            members = self._members(group)
            having = found.holders(group)
            chosen = [broker for broker in having if not members or broker in members]
            if chosen:
                self.report.copies[group] = sorted(chosen)
                self.report.compared_at[group] = found.compare(group, chosen)
            self._note_missing(group, members, set(self.brokers.values()) - found.missed(group))
        return found.violations()

    # --- the report

    def _add(self, violation: Violation) -> None:
        self.report.counts[violation.kind] = self.report.counts.get(violation.kind, 0) + 1
        self.report.violations.append(violation)

    def _collect(self, found: DataFrame) -> None:
        counted = found.groupBy("kind").count().collect()
        if not counted:
            return
        counts = self.report.counts
        for row in counted:
            counts[row["kind"]] = counts.get(row["kind"], 0) + int(row["count"])
        window = Window.partitionBy("kind").orderBy("store", "group", "index", "segment", "offset")
        listed = found.withColumn("place", F.row_number().over(window)).where(
            F.col("place") <= self.options.listed_max
        )
        for row in listed.orderBy("kind", "place").collect():
            fields = row.asDict()
            fields.pop("place")
            fields["detail"] = fields["detail"] or ""
            self.report.violations.append(
                Violation(broker=self.brokers.get(row["store"], row["store"]), **fields)
            )

    def _describe(self) -> None:
        """Add what the messages are that violations are about."""
        indexes = {each.index for each in self.report.violations if each.index is not None}
        if not indexes:
            return
        rows = (
            self.spark.read.format("rhizome.journal")
            .schema(_described_schema())
            .option("events", "enqueued,moved")
            .option("damage", "rows")
            .options(**self.place.options())
            .load()
            .where(F.col("index").isin(*indexes))
            .collect()
        )
        known = {(row["group"], row["index"]): row["message"] for row in rows}
        self.report.violations = [
            _with_message(each, known.get((each.group, each.index)))
            for each in self.report.violations
        ]


def _newest_groups(states: dict[str, stores.StoreState]) -> dict[int, Group]:
    """Each group as the store knows it that knows most of it."""
    found: dict[int, Group] = {}
    for state in states.values():
        for number, group in state.groups.items():
            known = found.get(number)
            if known is None or (known.epoch, known.version) < (group.epoch, group.version):
                found[number] = group
    return found


def _read(spark: SparkSession, place: StorePlace) -> DataFrame:
    wanted = [each for each in schemas.journal(with_sums=True) if each.name in _COLUMNS]
    return (
        spark.read.format("rhizome.journal")
        .schema(StructType(wanted))
        .option("damage", "rows")
        .option("checkpoints", True)
        .options(**place.options())
        .load()
    )


def _settled_numbers(segments: stores.Segments) -> tuple[list[int], int]:
    """The segments of a journal, and from which on a restart needs them."""
    there = segments.listed()
    while True:
        start = stores.checkpoint_segment(segments.files())
        before, there = there, segments.listed()
        if there.checkpoints == before.checkpoints:
            return [number for number, _ in there.segments], start


def _behind() -> Any:
    return F.concat_ws(" ", F.lit("index"), "record", F.lit("comes after"), "before")


def _described_schema() -> StructType:
    wanted = ("group", "index", "message")
    shown = ("key", "exchange", "message_id", "content_type", "app_id")
    fields = [each for each in schemas.journal() if each.name in wanted]
    for each in fields:
        if each.name == "message":
            each.dataType = StructType([one for one in schemas.message() if one.name in shown])
    return StructType(fields)


def _with_message(violation: Violation, message: Any) -> Violation:
    if message is None:
        return violation
    return Violation(**{**asdict(violation), "message": message.asDict()})


def check_place(options: AuditOptions) -> None:
    """Raise JobError unless there is something to audit."""
    try:
        if options.uri:
            for store in stores.stores_at(StorePlace("", options.uri, options.brokers), 10):
                store.close()
            return
        for directory in stores.find(options.paths):
            stores.segments_of(directory)
    except RhizomeError as error:
        raise JobError(str(error)) from None
