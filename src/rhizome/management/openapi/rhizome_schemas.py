"""The schemas of the answers of Rhizome's own part of the API, under /api/rhizome."""

from __future__ import annotations

from typing import Final

from rhizome.management.cluster_view import (
    BrokerInfo,
    ClusterDocument,
    CopyInfo,
    GroupInfo,
    Preview,
    StandbyInfo,
)
from rhizome.management.http.caller_visible_totals import (
    GROUP_COUNTS,
    LINK_COUNTS,
    STANDBY_COUNTS,
    STORE_COUNTS,
)
from rhizome.management.openapi.endpoint_shapes import (
    FLAG,
    NUMBER,
    REAL,
    TABLE,
    TEXT,
    Answer,
    Part,
    Shape,
    by_name,
    document,
    fields,
    many,
    maybe,
    one_of,
    record,
    row_of,
    shape_of,
    with_fields,
)
from rhizome.management.openapi.rabbitmq_schemas import DEPTHS, HISTORY, LINK

# ---- the cluster --------------------------------------------------------------------------------

# Users who don't monitor are not told counts over all vhosts.
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
                **fields(TEXT, "name status version"),
                **fields(NUMBER, "uptime_ms connections channels consumers queues memory_bytes"),
                **fields(many(TEXT), "addresses alarms"),
                **DEPTHS,
                "resident_bytes": UNTOLD,
                "blocking": FLAG,
                "store": STORE,
            },
        )
    },
)
_LOAD: Final[dict[str, Part]] = {
    **fields(
        NUMBER,
        "uptime_ms connections channels consumers "
        "queues ready unacked ready_bytes "
        "memory_bytes memory_max_bytes "
        "disk_free_bytes",
    ),
    "rates": record("Rates", {"published": REAL, "delivered": REAL, "acked": REAL}),
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

# ---- pipelines ----------------------------------------------------------------------------------

_FLOW: Final = {
    "batch": maybe(NUMBER),
    "rows_per_second": REAL,
    "error": TEXT,
    "lag": by_name(NUMBER),
    **fields(NUMBER, "batches rows batch_ms batch_done_ms restarts set_aside error_ms lag_total"),
}
_FLOW_STATE: Final = one_of("starting", "running", "waiting", "halted", "stopped")
PIPELINE: Final = record(
    "Pipeline",
    {
        **fields(TEXT, "name vhost node user host"),
        "state": one_of("running", "stopping", "stopped", "silent"),
        "age_ms": NUMBER,
        "flows": many(record("PipelineFlow", {"name": TEXT, "state": _FLOW_STATE, **_FLOW})),
    },
)
PIPELINE_REPORT: Final = document(
    {
        "state": one_of("running", "stopping", "stopped"),
        "flows": many(document({"name": TEXT, "state": _FLOW_STATE}, _FLOW)),
    },
    {"host": TEXT},
)

# ---- streams ------------------------------------------------------------------------------------

STREAM_READER: Final = record(
    "StreamReader",
    {
        **fields(TEXT, "name stream vhost"),
        **fields(NUMBER, "next lag behind_retention at_risk"),
        **fields(FLAG, "kept connected"),
        "used_ms": maybe(NUMBER),
    },
)
_STREAM: Final = {
    **fields(NUMBER, "first next epoch segments consumers readers"),
    **fields(maybe(NUMBER), "messages bytes first_timestamp last_timestamp"),
    "arguments": TABLE,
    "active": FLAG,
}
_STREAM_DETAILS: Final = {
    "segment_details": many(
        record(
            "Segment",
            fields(NUMBER, "segment first next bytes first_timestamp last_timestamp"),
        )
    ),
    "consumer_details": many(
        record(
            "StreamConsumer",
            {
                **fields(TEXT, "consumer_tag name"),
                **fields(NUMBER, "next lag unacknowledged prefetch_count"),
            },
        )
    ),
    "offsets": by_name(NUMBER),
    "reader_details": many(STREAM_READER),
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
        **fields(NUMBER, "first next messages bytes read_up_to keep_ms expires_in_ms"),
    },
)
SCHEDULES: Final = record(
    "Schedules",
    {
        "waiting": NUMBER,
        "schedules": many(
            record(
                "Schedule",
                {
                    "id": maybe(TEXT),
                    "user": maybe(TEXT),
                    "exchange": TEXT,
                    "routing_key": TEXT,
                    **fields(NUMBER, "due_ms scheduled_ms payload_bytes"),
                },
            )
        ),
        "next": maybe(NUMBER),
    },
)
OFFSETS: Final = by_name(NUMBER)
OFFSET: Final = record("Offset", {"offset": NUMBER})
