"""/metrics in Prometheus's format. The names are stable; docs/operating/metrics.md lists them.

A scrape reads the core a little at a time in the event loop. Metrics of a fixed number are made
into text in a thread, with Prometheus's own library; the series of each queue come from
`per_queue_metrics`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from rhizome import __version__
from rhizome.broker.broker import Broker
from rhizome.broker.fault_log import FAULT_KINDS
from rhizome.broker.publishing.confirm_latency import BOUNDS_MS, LatencyHistogram
from rhizome.broker.publishing.reliability_levels import LEVELS
from rhizome.journal.writer import SYNC_BUCKETS_MS
from rhizome.management.api_context import Context
from rhizome.management.cluster_view import ClusterDocument, GroupInfo
from rhizome.management.metrics.message_rates import Totals
from rhizome.management.metrics.per_queue_metrics import readable
from rhizome.management.metrics.slow_turns import WAITED, WORK
from rhizome.management.rhizome_api.cluster_status_and_changes import view_of
from rhizome.management.rhizome_api.stalls import KINDS, own_stalls

Labels = tuple[str, ...]
Value = tuple[Labels, float]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric with its values; ``labels`` are their names."""

    name: str
    text: str
    values: tuple[Value, ...]
    labels: Labels = ()
    counts: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """One histogram: counts per upper bound and the sum of all values."""

    labels: Labels
    buckets: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Histogram:
    name: str
    text: str
    bounds_ms: Sequence[float]
    series: tuple[Series, ...]
    labels: Labels = ()


@dataclass(slots=True)
class Reading:
    """All numbers of one scrape."""

    broker: str
    cluster: str
    families: list[Family] = field(default_factory=list)
    histograms: list[Histogram] = field(default_factory=list)

    def gauge(self, name: str, text: str, value: float) -> None:
        self.families.append(Family(name, text, (((), value),)))

    def counter(self, name: str, text: str, value: float) -> None:
        self.families.append(Family(name, text, (((), value),), counts=True))

    def labelled(
        self, name: str, text: str, labels: Labels, values: Iterable[Value], counts: bool = False
    ) -> None:
        self.families.append(Family(name, text, tuple(values), labels, counts))


async def read(context: Context) -> Reading:
    """Read the core. Runs in the event loop."""
    totals = await context.rates.totals()
    document = await view_of(context).cluster_document()
    settings = context.broker.settings
    reading = Reading(settings.name, settings.cluster_name)
    _read_broker(context, reading, totals)
    _read_messages(context, reading, totals)
    _read_readers(context, reading)
    _read_store(context, reading)
    _read_times(context, reading)
    _read_logins(context, reading)
    _read_cluster(context, reading, document)
    _read_groups(context, reading, document)
    return reading


# ---- the broker ---------------------------------------------------------------------------------


def _read_broker(context: Context, reading: Reading, totals: Totals) -> None:
    broker = context.broker
    running = broker.running_connections()
    channels = sum(len(each.channels) for each in running)
    vhosts = broker.state.vhosts.values()
    exchanges = sum(len(vhost.router.exchanges) for vhost in vhosts)
    stalls = Counter(str(row["kind"]) for row in own_stalls(context))
    gauge = reading.gauge
    gauge("rhizome_up_seconds", "Time since the broker started.", context.uptime_ms() / 1000)
    gauge("rhizome_connections", "Open client connections.", len(running))
    gauge("rhizome_channels", "Open channels.", channels)
    gauge("rhizome_consumers", "Consumers of the queues that are active here.", totals.consumers)
    gauge("rhizome_queues", "Queues that are active here.", totals.queues)
    gauge("rhizome_exchanges", "Exchanges.", exchanges)
    gauge("rhizome_vhosts", "Virtual hosts.", len(vhosts))
    reading.labelled(
        "rhizome_vhost_state_bytes",
        "Bytes of the cluster state that belong to a virtual host.",
        ("vhost",),
        (((readable(vhost.name),), broker.state.sizes.of(vhost.name)) for vhost in vhosts),
    )
    gauge(
        "rhizome_state_max_bytes",
        "What all virtual hosts may have of the cluster state.",
        broker.state.sizes.bytes_max,
    )
    gauge("rhizome_publishers_blocked", "1 while publishers are held up.", int(broker.blocking))
    gauge("rhizome_alarm", "1 while memory or disk runs short.", int(bool(context.shell.alarm)))
    salvaged = sum(each.messages for each in context.store.salvage.entries())
    gauge("rhizome_salvaged_messages", "Messages saved aside from forced homes.", salvaged)
    _read_damage(broker, reading)
    reading.counter("rhizome_turns", "Wake-ups of the broker.", int(context.shell.turns))
    _read_slow_turns(context, reading)
    _read_logs(context, reading)
    reading.labelled(
        "rhizome_stalls",
        "Things that wait at this broker.",
        ("kind",),
        (((kind,), stalls[kind]) for kind in KINDS),
    )


def _read_slow_turns(context: Context, reading: Reading) -> None:
    slow = context.slow_turns
    reading.labelled(
        "rhizome_slow_turns",
        "Turns, or steps of HTTP requests, that held the event loop for longer than"
        " broker.slow_turn.",
        ("cause",),
        (((WORK,), slow.work), ((WAITED,), slow.waited)),
        counts=True,
    )
    longest = ((("start",), slow.longest_ns), (("minute",), slow.longest_recently_ns()))
    reading.labelled(
        "rhizome_longest_turn_seconds",
        "The longest time for which the event loop was held.",
        ("since",),
        ((labels, time_ns / 1e9) for labels, time_ns in longest),
    )


def _read_logs(context: Context, reading: Reading) -> None:
    reading.labelled(
        "rhizome_log_lines_lost",
        "Lines of a log that could not be written, or found too many waiting.",
        ("log",),
        (((each.log,), each.lost_lines) for each in context.logs),
        counts=True,
    )
    reading.labelled(
        "rhizome_log_lines_waiting",
        "Lines of a log that wait to be written.",
        ("log",),
        (((each.log,), each.waiting_lines) for each in context.logs),
    )


def _read_damage(broker: Broker, reading: Reading) -> None:
    damage = broker.damage
    reading.gauge(
        "rhizome_damaged_messages",
        "Messages that can't be read from disk and are set aside.",
        int(damage.count()),
    )
    reading.counter(
        "rhizome_repaired_messages",
        "Messages that could not be read from disk and came from a copy.",
        int(damage.repaired),
    )
    reading.labelled(
        "rhizome_faults",
        "Exceptions that nobody expected, by what they were about.",
        ("kind",),
        tuple(((kind,), int(broker.faults.count(kind))) for kind in FAULT_KINDS),
        counts=True,
    )


def _read_messages(context: Context, reading: Reading, totals: Totals) -> None:
    pager = context.broker.pager
    gauge, counter = reading.gauge, reading.counter
    gauge("rhizome_messages_ready", "Messages ready for delivery.", totals.ready)
    gauge("rhizome_messages_unacked", "Messages delivered and not yet settled.", totals.unacked)
    gauge("rhizome_ready_bytes", "Size of all ready messages.", totals.ready_bytes)
    gauge(
        "rhizome_resident_bytes",
        "Messages kept in memory, with what they cost beyond their content.",
        int(pager.resident_bytes),
    )
    contents = context.broker.contents
    gauge(
        "rhizome_unfinished_content_bytes",
        "Contents that have begun to come and not ended, or wait for a commit.",
        int(contents.total),
    )
    counter(
        "rhizome_unfinished_contents_refused",
        "Contents refused because unfinished ones took too much memory.",
        int(contents.refused),
    )
    gauge(
        "rhizome_resident_budget_bytes",
        "Size of messages in memory beyond which they live on disk only.",
        int(pager.budget_bytes),
    )
    enqueued, delivered, acked, redelivered = totals.counts
    counter(
        "rhizome_messages_published",
        "Messages that reached a queue, counted once each.",
        totals.published,
    )
    counter("rhizome_messages_enqueued", "Messages put into queues, once per queue.", enqueued)
    counter("rhizome_messages_delivered", "Messages handed to consumers and pulls.", delivered)
    counter("rhizome_messages_acked", "Messages acknowledged.", acked)
    counter("rhizome_messages_redelivered", "Messages delivered once more.", redelivered)


def _read_readers(context: Context, reading: Reading) -> None:
    """Named readers of streams; series of each are in /metrics/per-object."""
    streams = context.broker.streams
    positions = [stream.positions for stream in streams.active.values()]
    gauge, counter = reading.gauge, reading.counter
    gauge(
        "rhizome_stream_readers",
        "Named readers of the streams that are active here.",
        sum(int(each.count()) for each in positions),
    )
    gauge(
        "rhizome_stream_readers_at_risk",
        "Named readers with unread messages that retention is about to drop.",
        sum(len(each.at_risk) for each in positions),
    )
    counter(
        "rhizome_stream_unread_dropped",
        "Messages that retention has dropped before a named reader had read them, once per reader.",
        sum(int(each.unread_dropped) for each in positions),
    )
    counter(
        "rhizome_stream_readers_expired",
        "Names of readers that were forgotten because nobody used them.",
        sum(int(each.expired) for each in positions),
    )
    counter(
        "rhizome_stream_readers_refused",
        "Positions that were told and not kept, because there are too many names.",
        int(streams.readers_refused),
    )


def _read_store(context: Context, reading: Reading) -> None:
    store = context.store
    statistics = store.statistics()
    gauge, counter = reading.gauge, reading.counter
    gauge("rhizome_journal_bytes", "Size of the journal.", int(store.journal.disk_bytes()))
    gauge("rhizome_journal_segments", "Segments of the journal.", len(store.journal.segments()))
    gauge("rhizome_spill_bytes", "Size of the spill segments.", int(store.spill.disk_bytes()))
    gauge("rhizome_store_backlog_bytes", "Handed over, not yet written.", store.backlog_bytes())
    gauge("rhizome_disk_free_bytes", "Free space where the store is.", store.free_bytes())
    counter("rhizome_journal_written_bytes", "Bytes written.", statistics.bytes_written)
    counter("rhizome_journal_batches", "Batches written.", statistics.batches)
    reading.histograms += [
        Histogram(
            "rhizome_journal_sync_seconds",
            "Time that syncs of the journal took.",
            SYNC_BUCKETS_MS,
            (Series((), tuple(statistics.sync_buckets), statistics.sync_seconds),),
        ),
        Histogram(
            "rhizome_journal_commit_seconds",
            "Time from the end of a turn until what it recorded was durable here.",
            SYNC_BUCKETS_MS,
            (Series((), tuple(statistics.commit_buckets), statistics.commit_seconds),),
        ),
    ]


def _read_times(context: Context, reading: Reading) -> None:
    told = zip(LEVELS, context.broker.levels_told, strict=True)
    reading.labelled(
        "rhizome_confirm_levels",
        "Confirmed publishes of clients that are told levels, by the level that was reached.",
        ("level",),
        tuple(((level,), count) for level, count in told),
        counts=True,
    )
    confirms = context.broker.confirm_latencies
    kinds = {"memory": confirms.memory, "disk": confirms.disk, "forwarded": confirms.forwarded}
    reading.histograms += [
        Histogram(
            "rhizome_confirm_seconds",
            "Time from a publish to its confirm, copies included.",
            BOUNDS_MS,
            tuple(_series((kind,), times) for kind, times in kinds.items()),
            ("kept",),
        ),
        Histogram(
            "rhizome_takeover_seconds",
            "Time from becoming home of a group until this broker went on with it.",
            BOUNDS_MS,
            (_series((), context.broker.takeover_times),),
        ),
    ]


def _series(labels: Labels, times: LatencyHistogram) -> Series:
    return Series(labels, tuple(times.counts), int(times.total_ms) / 1000)


def _read_logins(context: Context, reading: Reading) -> None:
    statistics = context.login.statistics
    reading.labelled(
        "rhizome_logins",
        "Logins, over AMQP and HTTP.",
        ("result",),
        (
            (("accepted",), statistics.accepted),
            (("refused",), statistics.refused),
            (("throttled",), statistics.throttled),
        ),
        counts=True,
    )
    reading.gauge("rhizome_console_logins", "Logins of the console.", len(context.logins))
    _read_issuers(context, reading)


def _read_issuers(context: Context, reading: Reading) -> None:
    """Issuers of access tokens whose keys are fetched."""
    issuers = [(readable(each.name), each) for each in context.issuers()]
    reading.labelled(
        "rhizome_issuer_keys",
        "Keys of an issuer of access tokens that count now.",
        ("issuer",),
        (((name,), each.keys_count) for name, each in issuers),
    )
    reading.labelled(
        "rhizome_issuer_keys_age_seconds",
        "Time since the keys of an issuer were fetched last.",
        ("issuer",),
        (((name,), each.age_ms / 1000) for name, each in issuers if each.age_ms is not None),
    )
    reading.labelled(
        "rhizome_issuer_key_fetches",
        "Fetches of the keys of an issuer.",
        ("issuer", "result"),
        (
            ((name, result), count)
            for name, each in issuers
            for result, count in (("ok", each.fetches), ("failed", each.failures))
        ),
        counts=True,
    )


# ---- the cluster --------------------------------------------------------------------------------


def _read_cluster(context: Context, reading: Reading, document: ClusterDocument) -> None:
    cluster = document.cluster
    quorum = cluster.quorum
    statuses = Counter(broker.status for broker in document.brokers)
    gauge = reading.gauge
    gauge("rhizome_root", "1 if this broker is the root.", int(cluster.root == document.seen_by))
    gauge("rhizome_root_known", "1 if this broker knows a root.", int(cluster.root is not None))
    gauge("rhizome_term", "Number of the latest election.", cluster.term)
    gauge(
        "rhizome_isolated",
        "1 while this broker holds no lease.",
        int(bool(context.broker.isolation)),
    )
    gauge("rhizome_quorum_defined", "Primaries of the cluster.", quorum.defined)
    gauge("rhizome_quorum_active", "Primaries that this broker sees.", quorum.active)
    gauge("rhizome_quorum_needed", "Primaries that are needed now.", quorum.needed)
    reading.labelled(
        "rhizome_brokers",
        "Brokers of the cluster as this one sees them.",
        ("status",),
        (((status,), count) for status, count in sorted(statuses.items())),
    )
    links = context.others.links()
    gauge("rhizome_links", "Open links with other brokers.", len(links))
    for name, text, column, counts in _LINKS:
        values = [((readable(str(link["broker"])),), _number(link[column])) for link in links]
        reading.labelled(name, text, ("peer",), values, counts)


_LINKS: Final = (
    ("rhizome_link_backlog_bytes", "Bytes that wait to be sent.", "backlog_bytes", False),
    ("rhizome_link_congested", "1 while publishers wait for a link.", "congested", False),
    ("rhizome_link_sent_bytes", "Bytes sent since the link is up.", "sent_bytes", True),
    ("rhizome_link_received_bytes", "Bytes received since then.", "received_bytes", True),
)


def _number(value: object) -> float:
    return value if isinstance(value, (int, float)) else 0


def _read_groups(context: Context, reading: Reading, document: ClusterDocument) -> None:
    own = [group for group in document.groups if group.home == context.name]
    missing = sum(group.home is None for group in document.groups)
    reading.gauge("rhizome_groups_home", "Groups that have their home here.", len(own))
    reading.gauge("rhizome_groups_unavailable", "Groups without a home.", missing)

    def values(of: Iterable[tuple[GroupInfo, float]]) -> list[Value]:
        return [((str(group.id),), number) for group, number in of]

    reading.labelled(
        "rhizome_group_messages",
        "Messages of a group.",
        ("group",),
        values((group, group.messages) for group in own),
    )
    reading.labelled(
        "rhizome_group_epoch",
        "Number of a group's tenure at its home.",
        ("group",),
        values((group, group.epoch) for group in own),
    )
    reading.labelled(
        "rhizome_group_in_sync",
        "Standbys without whose answer the home doesn't confirm.",
        ("group",),
        values((group, len(group.in_sync)) for group in own),
    )
    reading.labelled(
        "rhizome_group_uncommitted_records",
        "Records of a group's log that its copies or the disk don't have yet.",
        ("group",),
        _uncommitted(context),
    )
    reading.labelled(
        "rhizome_group_lag_records",
        "Records that a standby is behind its home.",
        ("group", "standby"),
        [
            ((str(group.id), readable(member.broker)), member.lag)
            for group in own
            for member in group.in_sync
            if member.lag is not None
        ],
    )


def _uncommitted(context: Context) -> Iterator[Value]:
    for number, log in context.broker.logs.items():
        last = int(log.next_index) - 1
        yield (str(number),), max(0, last - int(log.committed_disk))


# ---- the text -----------------------------------------------------------------------------------


class Scrape(Collector):
    """The metric families of one reading."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading

    def collect(self) -> Iterable[Metric]:
        reading = self.reading
        about = {"version": __version__, "broker": reading.broker, "cluster": reading.cluster}
        shown = {name: readable(text) for name, text in about.items()}
        yield InfoMetricFamily("rhizome_build", "What this broker is.", shown)
        for family in reading.families:
            kind = CounterMetricFamily if family.counts else GaugeMetricFamily
            metric = kind(family.name, family.text, labels=family.labels)
            for labels, value in family.values:
                metric.add_metric(labels, value)
            yield metric
        for histogram in reading.histograms:
            yield _histogram(histogram)


def _histogram(histogram: Histogram) -> Metric:
    metric = HistogramMetricFamily(histogram.name, histogram.text, labels=histogram.labels)
    bounds = [f"{bound / 1000:g}" for bound in histogram.bounds_ms]
    for series in histogram.series:
        buckets: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip([*bounds, "+Inf"], series.buckets, strict=True):
            total += count
            buckets.append((bound, total))
        metric.add_metric(series.labels, buckets, series.seconds)
    return metric


def render(reading: Reading, accept: str) -> tuple[bytes, str]:
    """The text of a scrape and its content type. May run in any thread."""
    registry = CollectorRegistry()
    registry.register(Scrape(reading))
    ProcessCollector(registry=registry)
    encoder, content_type = choose_encoder(accept)
    return encoder(registry), content_type
