"""The series of each queue for /metrics/per-object, made in the event loop a little at a time.

A thread would not do: the interpreter lets it run for milliseconds before the loop gets its turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rhizome.broker.queue.queue import Queue
from rhizome.management.api_context import Context
from rhizome.management.http.cooperative_yield import Pace

OPENMETRICS: Final = "application/openmetrics-text"
END: Final = b"# EOF\n"
READER_SERIES_MAX: Final = 1_000
"""Names of readers come from clients, so a scrape has series for this many at most."""
LAG: Final = "rhizome_stream_reader_lag"
LAG_TEXT: Final = "Messages of a stream that a named reader has not read yet."
LEFT_OUT: Final = "rhizome_stream_readers_left_out"
LEFT_OUT_TEXT: Final = "Named readers without a series, because there are too many."

# name, what it is, whether it counts, how it is read
SERIES: Final[tuple[tuple[str, str, bool, Callable[[Queue], int]], ...]] = (
    (
        "rhizome_queue_messages_ready",
        "Messages ready for delivery in a queue.",
        False,
        lambda queue: int(queue.ready),
    ),
    (
        "rhizome_queue_messages_unacked",
        "Messages delivered and not yet settled.",
        False,
        lambda queue: int(queue.unacked),
    ),
    (
        "rhizome_queue_ready_bytes",
        "Size of the ready messages of a queue.",
        False,
        lambda queue: int(queue.ready_bytes),
    ),
    (
        "rhizome_queue_consumers",
        "Consumers of a queue.",
        False,
        lambda queue: int(queue.consumer_count),
    ),
    (
        "rhizome_queue_messages_enqueued",
        "Messages that a queue has taken.",
        True,
        lambda queue: int(queue.published),
    ),
    (
        "rhizome_queue_messages_delivered",
        "Messages that a queue has handed out.",
        True,
        lambda queue: int(queue.delivered),
    ),
    (
        "rhizome_queue_messages_acked",
        "Messages that were acknowledged.",
        True,
        lambda queue: int(queue.acked),
    ),
)


async def with_queues(context: Context, text: bytes, content_type: str) -> bytes:
    """A scrape with the series of each queue that is active here behind it."""
    is_openmetrics = content_type.startswith(OPENMETRICS)
    pace = Pace()
    blocks: list[list[str]] = [_head(series, is_openmetrics) for series in SERIES]
    for queue in context.queues():
        labels = f'{{queue="{escaped(queue.name)}",vhost="{escaped(queue.vhost)}"}}'
        for block, (name, _, counts, number) in zip(blocks, SERIES, strict=True):
            block.append(f"{name}{'_total' if counts else ''}{labels} {number(queue)}.0\n")
        if pace.is_due():
            await pace.rest()
    blocks += await _reader_blocks(context, pace)
    pieces = [text.removesuffix(END)]
    for block in blocks:
        pieces.append("".join(block).encode())
        await pace.rest()
    return b"".join(pieces) + (END if is_openmetrics else b"")


async def _reader_blocks(context: Context, pace: Pace) -> list[list[str]]:
    """The lag of each named reader of a stream: the largest ones, if there are more than
    ``READER_SERIES_MAX``, and how many are left out."""
    found: list[tuple[int, str]] = []
    for stream in list(context.broker.streams.active.values()):
        where = f'stream="{escaped(stream.queue.name)}",vhost="{escaped(stream.queue.vhost)}"'
        for position in stream.positions.all():
            reader = escaped(position.name.decode("utf-8", "surrogateescape"))
            lag = int(stream.log.committed - max(position.next, stream.log.first))
            found.append((lag, f'{{reader="{reader}",{where}}}'))
        if pace.is_due():
            await pace.rest()
    found.sort(key=lambda each: -each[0])
    shown = found[:READER_SERIES_MAX]
    lags = [f"# HELP {LAG} {LAG_TEXT}\n# TYPE {LAG} gauge\n"]
    lags += [f"{LAG}{labels} {lag}.0\n" for lag, labels in shown]
    left_out = f"# HELP {LEFT_OUT} {LEFT_OUT_TEXT}\n# TYPE {LEFT_OUT} gauge\n"
    return [lags, [left_out, f"{LEFT_OUT} {len(found) - len(shown)}.0\n"]]


def _head(series: tuple[str, str, bool, Callable[[Queue], int]], is_openmetrics: bool) -> list[str]:
    name, text, counts, _ = series
    # OpenMetrics names a counter without the ending that its samples have.
    shown = name + "_total" if counts and not is_openmetrics else name
    kind = "counter" if counts else "gauge"
    return [f"# HELP {shown} {text}\n# TYPE {shown} {kind}\n"]


def readable(name: str) -> str:
    """Label values must be UTF-8; names may be any bytes."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def escaped(name: str) -> str:
    return readable(name).replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
