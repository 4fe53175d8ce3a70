"""The shapes of what Rhizome's own part of the API answers, under /api/rhizome."""

from __future__ import annotations

from typing import Final

from rhizome.management.clusterview import (
    BrokerInfo,
    ClusterDocument,
    CopyInfo,
    GroupInfo,
    Preview,
    StandbyInfo,
)
from rhizome.management.declared import (
    FLAG,
    NUMBER,
    REAL,
    TABLE,
    TEXT,
    Answer,
    Part,
    Shape,
    by_name,
    many,
    maybe,
    one_of,
    record,
    row_of,
    shape_of,
    with_fields,
)
from rhizome.management.seen import GROUP_COUNTS, LINK_COUNTS, STANDBY_COUNTS, STORE_COUNTS
from rhizome.management.shapes import DEPTHS, HISTORY, LINK

# ---- the cluster --------------------------------------------------------------------------------

# Users who don't monitor are not told what counts all vhosts together.
UNTOLD: Final = maybe(NUMBER)


def _told(shape: Shape, *counts: str) -> Shape:
    return with_fields(shape, shape.name, dict.fromkeys(counts, UNTOLD))


BROKER: Final = _told(shape_of(BrokerInfo), "connections")
GROUP: Final = _told(shape_of(GroupInfo), *GROUP_COUNTS)
CLUSTER: Final = with_fields(
    shape_of(ClusterDocument),
    "ClusterDocument",
    {"brokers": many(BROKER), "groups": many(GROUP)},
)
STANDBY: Final = _told(shape_of(StandbyInfo), *STANDBY_COUNTS)
COPY: Final = with_fields(shape_of(CopyInfo), "Copy", {"index": UNTOLD, "standbys": many(STANDBY)})
GROUP_WHOLE: Final = with_fields(GROUP, "GroupWhole", {"held": many(COPY), "silent": many(TEXT)})
FAILOVER_MAP: Final = CLUSTER.schema["properties"]["failover_map"]
STALL: Final = record("Stall", {"broker": maybe(TEXT), "kind": TEXT, "what": TEXT, "why": TEXT})

PREVIEW: Final = with_fields(
    shape_of(Preview),
    "ChangePreview",
    {"change": TEXT, "broker": TEXT, "group": maybe(NUMBER)},
)
CHANGED: Final = record("Changed", {"done": TEXT})
ORDERED: Final[Answer] = row_of({"anyOf": [PREVIEW, CHANGED]})
"""A change that is shown before it is made."""

# ---- one broker ---------------------------------------------------------------------------------

STORE: Final = record(
    "Store",
    {
        "kind": one_of("memory", "journal"),
        "uuid": TEXT,
        "free_bytes": NUMBER,
        **dict.fromkeys(STORE_COUNTS, UNTOLD),
    },
)
STATUS: Final = with_fields(
    CLUSTER,
    "Status",
    {
        "broker": record(
            "BrokerStatus",
            {
                "name": TEXT,
                "status": TEXT,
                "version": TEXT,
                "uptime_ms": NUMBER,
                "addresses": many(TEXT),
                "connections": NUMBER,
                "channels": NUMBER,
                "consumers": NUMBER,
                "queues": NUMBER,
                **DEPTHS,
                "memory_bytes": NUMBER,
                "resident_bytes": UNTOLD,
                "alarms": many(TEXT),
                "blocking": FLAG,
                "store": STORE,
            },
        )
    },
)
_LOAD: Final[dict[str, Part]] = {
    "uptime_ms": NUMBER,
    "connections": NUMBER,
    "channels": NUMBER,
    "consumers": NUMBER,
    "queues": NUMBER,
    "ready": NUMBER,
    "unacked": NUMBER,
    "ready_bytes": NUMBER,
    "rates": record("Rates", {"published": REAL, "delivered": REAL, "acked": REAL}),
    "memory_bytes": NUMBER,
    "memory_max_bytes": NUMBER,
    "disk_free_bytes": NUMBER,
    "alarm": TEXT,
    "http": many(TEXT),
    "links": many(with_fields(LINK, "LoadLink", dict.fromkeys(LINK_COUNTS, UNTOLD))),
}
LOAD: Final = record("Load", {**_LOAD, "stalls": many(STALL)}, {"history": HISTORY})
LIVE: Final = with_fields(
    CLUSTER,
    "Live",
    {
        "now_ms": NUMBER,
        "loads": by_name(record("BrokerLoad", _LOAD, {"history": HISTORY})),
        "silent": many(TEXT),
        "stalls": many(STALL),
    },
)

# ---- streams ------------------------------------------------------------------------------------

_STREAM: Final = {
    "first": NUMBER,
    "next": NUMBER,
    "messages": maybe(NUMBER),
    "bytes": maybe(NUMBER),
    "epoch": NUMBER,
    "segments": NUMBER,
    "first_timestamp": maybe(NUMBER),
    "last_timestamp": maybe(NUMBER),
    "consumers": NUMBER,
    "arguments": TABLE,
    "active": FLAG,
}
_STREAM_DETAILS: Final = {
    "segment_details": many(
        record(
            "Segment",
            dict.fromkeys(
                ("segment", "first", "next", "bytes", "first_timestamp", "last_timestamp"), NUMBER
            ),
        )
    ),
    "consumer_details": many(
        record(
            "StreamConsumer",
            {
                "consumer_tag": TEXT,
                "name": TEXT,
                "next": NUMBER,
                "lag": NUMBER,
                "unacknowledged": NUMBER,
                "prefetch_count": NUMBER,
            },
        )
    ),
    "offsets": by_name(NUMBER),
    "offset_at": NUMBER,
}
_NAMED: Final = {"name": TEXT, "vhost": TEXT, "kind": one_of("stream", "partitioned")}
PARTITION: Final = record("Partition", _NAMED, {**_STREAM, **_STREAM_DETAILS})
STREAM: Final = record(
    "Stream",
    _NAMED,
    {**_STREAM, **_STREAM_DETAILS, "partitions": NUMBER, "streams": many(PARTITION)},
)
LEASE: Final = record(
    "QueueLease",
    {
        "name": TEXT,
        "state": one_of("active", "expired"),
        "first": NUMBER,
        "next": NUMBER,
        "messages": NUMBER,
        "bytes": NUMBER,
        "read_up_to": NUMBER,
        "keep_ms": NUMBER,
        "expires_in_ms": NUMBER,
    },
)
OFFSETS: Final = by_name(NUMBER)
OFFSET: Final = record("Offset", {"offset": NUMBER})
