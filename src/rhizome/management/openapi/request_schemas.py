"""Request schemas: the JSON objects of the endpoints that take one.

RabbitMQ's own tools sometimes send numbers and flags as strings; `json_body.py` accepts those too.
"""

from __future__ import annotations

from typing import Final

from rhizome.management.openapi.endpoint_shapes import (
    ANY,
    FLAG,
    NUMBER,
    TABLE,
    TEXT,
    between,
    document,
    fields,
    many,
    one_of,
)

BASIS: Final = {"preview": FLAG, "basis": TEXT}
"""Ask with `preview` first, then send the `basis` that was answered."""

QUEUE: Final = document(optional={"durable": FLAG, "auto_delete": FLAG, "arguments": TABLE})
QUEUE_ACTION: Final = document({"action": one_of("sync", "cancel_sync")})
EXCHANGE: Final = document(
    optional={
        "type": TEXT,
        **fields(FLAG, "durable auto_delete internal"),
        "arguments": TABLE,
    }
)
BINDING: Final = document(optional={"routing_key": TEXT, "arguments": TABLE})
GET: Final = document(
    {
        "ackmode": one_of(
            "ack_requeue_true",
            "reject_requeue_true",
            "ack_requeue_false",
            "reject_requeue_false",
        )
    },
    {"count": between(0, 10_000), "encoding": one_of("auto", "base64"), "truncate": NUMBER},
)
MOVE_MESSAGES: Final = document({"to": TEXT}, {"count": between(1, 1000)})
ACT_ON_MESSAGES: Final = document(
    {"action": one_of("move", "drop", "requeue", "redrive")},
    {
        "where": TEXT,
        "ids": many(TEXT),
        "to": TEXT,
        "count": between(1, 1000),
        "after": TEXT,
        "dry_run": FLAG,
    },
)
MOVE_SCHEDULE: Final = document({"delay_ms": between(0, (1 << 32) - 1)}, {"user": TEXT})
PUBLISH: Final = document(
    {"routing_key": TEXT, "payload": TEXT},
    {"payload_encoding": one_of("string", "base64"), "properties": TABLE},
)
STREAM: Final = document(optional={"partitions": between(0, 1000), "arguments": TABLE})
OFFSET: Final = document({"offset": between(0, (1 << 62) - 1)})

VHOST: Final = document(
    optional={
        "description": TEXT,
        "tags": {"anyOf": [TEXT, many(TEXT)]},
        "default_queue_type": TEXT,
        "tracing": FLAG,
    }
)
LIMIT: Final = document({"value": NUMBER})
USER: Final = document(
    {"tags": {"anyOf": [TEXT, many(TEXT)]}},
    {"password": TEXT, "password_hash": TEXT, "hashing_algorithm": TEXT, "type": TEXT},
)
USERS: Final = document({"users": many(TEXT)})
PERMISSION: Final = document({"configure": TEXT, "write": TEXT, "read": TEXT})
TOPIC_PERMISSION: Final = document({"exchange": TEXT, "write": TEXT, "read": TEXT})
POLICY: Final = document(
    {"pattern": TEXT, "definition": {"type": "object", "minProperties": 1}},
    {"apply-to": one_of("all", "queues", "exchanges"), "priority": NUMBER},
)
PARAMETER: Final = document({"value": ANY})
NAME: Final = document({"name": TEXT})
DEFINITIONS: Final = document(
    optional={
        name: many(TABLE)
        for name in (
            "vhosts",
            "users",
            "permissions",
            "topic_permissions",
            "parameters",
            "global_parameters",
            "policies",
            "exchanges",
            "queues",
            "bindings",
        )
    }
)

FORCE_ROOT: Final = document(optional=BASIS)
PRIMARIES: Final = document(optional={"add": TEXT, "remove": TEXT, **BASIS})
MOVE: Final = document({"broker": TEXT}, BASIS)
DRAIN: Final = document(optional={"grace_ms": between(0, 24 * 3_600_000), **BASIS})
UNDRAIN: Final = document(optional=BASIS)
SETTINGS: Final = document(
    optional={
        **fields(NUMBER, "copies min_copies"),
        "placement": one_of("spread", "root"),
        **BASIS,
    }
)
