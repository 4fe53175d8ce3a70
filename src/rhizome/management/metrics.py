"""/metrics in Prometheus's format. The names are stable; docs/operating/metrics.md lists them.

A scrape reads the core a little at a time in the event loop; a thread then makes the text of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
from rhizome.journal.writer import SYNC_BUCKETS_MS
from rhizome.management.context import Context
from rhizome.management.pace import Pace
from rhizome.management.rates import Totals

# (name, help, which number of a queue)
_QUEUE_GAUGES: Final = (
    ("rhizome_queue_messages_ready", "Messages ready for delivery in a queue."),
    ("rhizome_queue_messages_unacked", "Messages delivered and not yet settled."),
    ("rhizome_queue_ready_bytes", "Size of the ready messages of a queue."),
    ("rhizome_queue_consumers", "Consumers of a queue."),
)
_QUEUE_COUNTERS: Final = (
    ("rhizome_queue_messages_enqueued", "Messages that a queue has taken."),
    ("rhizome_queue_messages_delivered", "Messages that a queue has handed out."),
    ("rhizome_queue_messages_acked", "Messages that were acknowledged."),
)


@dataclass(frozen=True, slots=True)
class QueueReading:
    vhost: str
    name: str
    gauges: tuple[int, int, int, int]
    counters: tuple[int, int, int]


@dataclass(slots=True)
class Reading:
    """All numbers of one scrape."""

    broker: str
    cluster: str
    uptime_ms: int
    totals: Totals
    gauges: dict[str, tuple[str, float]] = field(default_factory=dict)
    counters: dict[str, tuple[str, float]] = field(default_factory=dict)
    sync_buckets: list[int] = field(default_factory=list)
    sync_seconds: float = 0.0
    queues: list[QueueReading] = field(default_factory=list)


async def read(context: Context, per_queue: bool) -> Reading:
    """Read the core. Runs in the event loop."""
    totals = await context.rates.totals()
    settings = context.broker.settings
    reading = Reading(settings.name, settings.cluster_name, context.uptime_ms(), totals)
    _read_broker(context, reading)
    _read_store(context, reading)
    if per_queue:
        await _read_queues(context, reading)
    return reading


def _read_broker(context: Context, reading: Reading) -> None:
    broker = context.broker
    running = broker.running_connections()
    totals = reading.totals
    vhosts = broker.state.vhosts.values()
    reading.gauges |= {
        "rhizome_up_seconds": ("Time since the broker started.", reading.uptime_ms / 1000),
        "rhizome_connections": ("Open client connections.", len(running)),
        "rhizome_channels": ("Open channels.", sum(len(each.channels) for each in running)),
        "rhizome_consumers": ("Consumers of all queues.", totals.consumers),
        "rhizome_queues": ("Queues.", totals.queues),
        "rhizome_exchanges": (
            "Exchanges.",
            sum(len(vhost.router.exchanges) for vhost in vhosts),
        ),
        "rhizome_vhosts": ("Virtual hosts.", len(vhosts)),
        "rhizome_messages_ready": ("Messages ready for delivery.", totals.ready),
        "rhizome_messages_unacked": ("Messages delivered and not yet settled.", totals.unacked),
        "rhizome_ready_bytes": ("Size of all ready messages.", totals.ready_bytes),
        "rhizome_resident_bytes": (
            "Messages kept in memory, with what they cost beyond their content.",
            int(broker.pager.resident_bytes),
        ),
        "rhizome_resident_budget_bytes": (
            "Size of messages in memory beyond which they live on disk only.",
            int(broker.pager.budget_bytes),
        ),
        "rhizome_publishers_blocked": ("1 while publishers are held up.", int(broker.blocking)),
        "rhizome_alarm": ("1 while memory or disk runs short.", int(bool(context.shell.alarm))),
    }
    enqueued, delivered, acked, redelivered = totals.counts
    reading.counters |= {
        "rhizome_messages_published": (
            "Messages that reached a queue, counted once each.",
            totals.published,
        ),
        "rhizome_messages_enqueued": ("Messages put into queues, once per queue.", enqueued),
        "rhizome_messages_delivered": ("Messages handed to consumers and pulls.", delivered),
        "rhizome_messages_acked": ("Messages acknowledged.", acked),
        "rhizome_messages_redelivered": ("Messages delivered once more.", redelivered),
    }


def _read_store(context: Context, reading: Reading) -> None:
    store = context.store
    statistics = store.statistics()
    reading.gauges |= {
        "rhizome_journal_bytes": ("Size of the journal.", int(store.journal.disk_bytes())),
        "rhizome_journal_segments": ("Segments of the journal.", len(store.journal.segments())),
        "rhizome_spill_bytes": ("Size of the spill segments.", int(store.spill.disk_bytes())),
        "rhizome_store_backlog_bytes": ("Handed over, not yet written.", store.backlog_bytes()),
        "rhizome_disk_free_bytes": ("Free space where the store is.", store.free_bytes()),
    }
    reading.counters |= {
        "rhizome_journal_written_bytes": ("Bytes written.", statistics.bytes_written),
        "rhizome_journal_batches": ("Batches written.", statistics.batches),
    }
    reading.sync_buckets = list(statistics.sync_buckets)
    reading.sync_seconds = statistics.sync_seconds


async def _read_queues(context: Context, reading: Reading) -> None:
    pace = Pace()
    for queue in context.queues():
        gauges = (
            int(queue.ready),
            int(queue.unacked),
            int(queue.ready_bytes),
            int(queue.consumer_count),
        )
        counters = (int(queue.published), int(queue.delivered), int(queue.acked))
        reading.queues.append(QueueReading(queue.vhost, queue.name, gauges, counters))
        if pace.is_due():
            await pace.rest()


class Scrape(Collector):
    """The metric families of one reading."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading

    def collect(self) -> Iterable[Metric]:
        reading = self.reading
        about = {"version": __version__, "broker": reading.broker, "cluster": reading.cluster}
        yield InfoMetricFamily("rhizome_build", "What this broker is.", about)
        for name, (text, value) in reading.gauges.items():
            yield GaugeMetricFamily(name, text, value)
        for name, (text, value) in reading.counters.items():
            yield CounterMetricFamily(name, text, value)
        yield self._syncs()
        if reading.queues:
            yield from self._queues()

    def _syncs(self) -> Metric:
        buckets: list[tuple[str, float]] = []
        total = 0
        bounds = [f"{bound / 1000:g}" for bound in SYNC_BUCKETS_MS]
        for bound, count in zip([*bounds, "+Inf"], self.reading.sync_buckets, strict=True):
            total += count
            buckets.append((bound, total))
        text = "Time that syncs of the journal took."
        return HistogramMetricFamily(
            "rhizome_journal_sync_seconds", text, buckets, self.reading.sync_seconds
        )

    def _queues(self) -> Iterator[Metric]:
        labels = ("vhost", "queue")
        for at, (name, text) in enumerate(_QUEUE_GAUGES):
            gauge = GaugeMetricFamily(name, text, labels=labels)
            for queue in self.reading.queues:
                gauge.add_metric(_labels(queue), queue.gauges[at])
            yield gauge
        for at, (name, text) in enumerate(_QUEUE_COUNTERS):
            counter = CounterMetricFamily(name, text, labels=labels)
            for queue in self.reading.queues:
                counter.add_metric(_labels(queue), queue.counters[at])
            yield counter


def _labels(queue: QueueReading) -> tuple[str, str]:
    """Label values must be UTF-8; names may be any bytes."""
    return (_readable(queue.vhost), _readable(queue.name))


def _readable(name: str) -> str:
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def render(reading: Reading, accept: str) -> tuple[bytes, str]:
    """The text of a scrape and its content type. May run in any thread."""
    registry = CollectorRegistry()
    registry.register(Scrape(reading))
    ProcessCollector(registry=registry)
    encoder, content_type = choose_encoder(accept)
    return encoder(registry), content_type
