"""The shapes of the rows of RabbitMQ's API, field by field."""

from __future__ import annotations

from typing import Final

from rhizome.management.declared import (
    ANY,
    FLAG,
    NUMBER,
    REAL,
    TABLE,
    TEXT,
    Answer,
    by_name,
    many,
    maybe,
    one_of,
    record,
    with_fields,
)

# ---- counts -------------------------------------------------------------------------------------

RATE: Final = record("Rate", {"rate": REAL})
DEPTHS: Final = {
    "messages": NUMBER,
    "messages_ready": NUMBER,
    "messages_unacknowledged": NUMBER,
}
DEPTH_RATES: Final = {f"{name}_details": RATE for name in DEPTHS}
STATS: Final = record(
    "MessageStats",
    {
        name: part
        for word in ("publish", "deliver_get", "deliver", "ack", "redeliver")
        for name, part in ((word, NUMBER), (f"{word}_details", RATE))
    },
)

# ---- the broker ---------------------------------------------------------------------------------

EXTENSION: Final = record(
    "Extension", {"name": TEXT, "description": TEXT}, {"enabled": FLAG, "version": TEXT}
)
LISTENER: Final = record(
    "Listener",
    {"node": TEXT, "protocol": TEXT, "ip_address": TEXT, "port": NUMBER, "socket_opts": TABLE},
)
WEB_CONTEXT: Final = record(
    "WebContext", {"description": TEXT, "path": TEXT, "port": TEXT, "ip": TEXT, "node": TEXT}
)
LINK: Final = record(
    "Link",
    {
        "broker": TEXT,
        "open_ms": NUMBER,
        "silent_ms": NUMBER,
        "backlog_bytes": NUMBER,
        "congested": FLAG,
        "sent_bytes": NUMBER,
        "received_bytes": NUMBER,
    },
)
OVERVIEW: Final = record(
    "Overview",
    {
        "rabbitmq_version": TEXT,
        "management_version": TEXT,
        "product_name": TEXT,
        "product_version": TEXT,
        "rates_mode": TEXT,
        "disable_stats": FLAG,
        "enable_queue_totals": FLAG,
        "sample_retention_policies": by_name(many(NUMBER)),
        "exchange_types": many(EXTENSION),
        "cluster_name": TEXT,
        "node": TEXT,
        "erlang_version": TEXT,
        "erlang_full_version": TEXT,
        "statistics_db_event_queue": NUMBER,
        "object_totals": record(
            "ObjectTotals",
            dict.fromkeys(("connections", "channels", "consumers", "exchanges", "queues"), NUMBER),
        ),
        "queue_totals": record("QueueTotals", {**DEPTHS, **DEPTH_RATES}),
        "message_stats": STATS,
        "churn_rates": TABLE,
        "listeners": many(LISTENER),
        "contexts": many(WEB_CONTEXT),
    },
)
NODE: Final = record(
    "Node",
    {"name": TEXT, "type": TEXT, "running": FLAG, "being_drained": FLAG},
    {
        "os_pid": TEXT,
        "rates_mode": TEXT,
        "mem_alarm": FLAG,
        "disk_free_alarm": FLAG,
        **dict.fromkeys(
            (
                "uptime",
                "processors",
                "mem_used",
                "mem_limit",
                "mem_resident_messages",
                "disk_free",
                "disk_free_limit",
                "fd_used",
                "fd_total",
                "sockets_used",
                "sockets_total",
                "proc_used",
                "proc_total",
                "run_queue",
                "net_ticktime",
            ),
            NUMBER,
        ),
        "partitions": many(TEXT),
        "exchange_types": many(EXTENSION),
        "auth_mechanisms": many(EXTENSION),
        "applications": many(EXTENSION),
        "contexts": many(WEB_CONTEXT),
        "enabled_plugins": many(TEXT),
        "cluster_links": many(LINK),
        "mem_calculation_strategy": TEXT,
        "log_files": many(TEXT),
        "config_files": many(TEXT),
        "db_dir": TEXT,
    },
)
MEMORY: Final = record(
    "Memory",
    {
        "memory": record(
            "MemoryParts",
            {
                "binary": NUMBER,
                "other_system": NUMBER,
                "strategy": TEXT,
                "total": record(
                    "MemoryTotal", {"rss": NUMBER, "allocated": NUMBER, "erlang": NUMBER}
                ),
            },
        )
    },
)
NAME: Final = record("Name", {"name": TEXT})
SIGN_IN: Final = record("SignIn", {"enable_uaa": FLAG, "uaa_client_id": TEXT, "uaa_location": TEXT})
WHOAMI: Final = record("Whoami", {"name": TEXT, "tags": many(TEXT)})

# ---- sessions -----------------------------------------------------------------------------------

STATE: Final = one_of("running", "blocked", "flow", "closing")
CONNECTION: Final = record(
    "Connection",
    {
        "name": TEXT,
        "user_provided_name": maybe(TEXT),
        "node": TEXT,
        "vhost": TEXT,
        "user": TEXT,
        "state": STATE,
        "protocol": TEXT,
        "type": TEXT,
        "peer_host": TEXT,
        "peer_port": NUMBER,
        "host": TEXT,
        "port": NUMBER,
        "ssl": FLAG,
        "peer_cert_subject": maybe(TEXT),
        "channels": NUMBER,
        "channel_max": NUMBER,
        "frame_max": NUMBER,
        "timeout": NUMBER,
        "connected_at": NUMBER,
        "client_properties": TABLE,
        "blocked_reason": TEXT,
        "send_pend": NUMBER,
        "user_who_performed_action": TEXT,
        "recv_oct": NUMBER,
        "recv_oct_details": RATE,
        "send_oct": NUMBER,
        "send_oct_details": RATE,
    },
)
CONSUMER: Final = record(
    "Consumer",
    {
        "consumer_tag": TEXT,
        "queue": record("QueueName", {"name": TEXT, "vhost": TEXT}),
        "channel_details": record(
            "ChannelDetails",
            {
                "name": TEXT,
                "node": TEXT,
                "number": NUMBER,
                "connection_name": TEXT,
                "peer_host": TEXT,
                "peer_port": NUMBER,
                "user": TEXT,
            },
        ),
        "ack_required": FLAG,
        "exclusive": FLAG,
        "prefetch_count": NUMBER,
        "priority": NUMBER,
        "arguments": TABLE,
        "active": FLAG,
        "activity_status": one_of("up", "waiting"),
        "messages_unacknowledged": NUMBER,
    },
)
CHANNEL: Final = record(
    "Channel",
    {
        "name": TEXT,
        "number": NUMBER,
        "node": TEXT,
        "vhost": TEXT,
        "user": TEXT,
        "state": STATE,
        "connection_details": record(
            "ConnectionDetails", {"name": TEXT, "peer_host": TEXT, "peer_port": NUMBER}
        ),
        "consumer_count": NUMBER,
        "prefetch_count": NUMBER,
        "global_prefetch_count": NUMBER,
        "messages_unacknowledged": NUMBER,
        "messages_unconfirmed": NUMBER,
        "messages_uncommitted": NUMBER,
        "acks_uncommitted": NUMBER,
        "confirm": FLAG,
        "transactional": FLAG,
        "message_stats": record(
            "ChannelStats", {"publish": NUMBER, "deliver_get": NUMBER}, {"confirm": NUMBER}
        ),
    },
)
CHANNEL_WHOLE: Final = with_fields(
    CHANNEL,
    "ChannelWhole",
    {"publishes": many(ANY), "deliveries": many(ANY), "consumer_details": many(CONSUMER)},
)

# ---- exchanges, queues, bindings ----------------------------------------------------------------

EXCHANGE: Final = record(
    "Exchange",
    {
        "name": TEXT,
        "vhost": TEXT,
        "type": TEXT,
        "durable": FLAG,
        "auto_delete": FLAG,
        "internal": FLAG,
        "arguments": TABLE,
    },
    {"policy": TEXT},
)
EXCHANGE_WHOLE: Final = with_fields(
    EXCHANGE, "ExchangeWhole", {"incoming": many(ANY), "outgoing": many(ANY)}
)
BINDING: Final = record(
    "Binding",
    {
        "source": TEXT,
        "vhost": TEXT,
        "destination": TEXT,
        "destination_type": one_of("queue", "exchange"),
        "routing_key": TEXT,
        "arguments": TABLE,
        "properties_key": TEXT,
    },
)
QUEUE: Final = record(
    "Queue",
    {
        "name": TEXT,
        "vhost": TEXT,
        "durable": FLAG,
        "auto_delete": FLAG,
        "exclusive": FLAG,
        "arguments": TABLE,
        "type": TEXT,
        "policy": maybe(TEXT),
        "operator_policy": maybe(TEXT),
        "effective_policy_definition": TABLE,
        "node": maybe(TEXT),
        "state": one_of("running", "down"),
    },
    {
        "consumers": NUMBER,
        **DEPTHS,
        **DEPTH_RATES,
        "messages_paged_out": NUMBER,
        "messages_ready_ram": NUMBER,
        "message_bytes_ready": NUMBER,
        "message_bytes_ram": NUMBER,
        "message_bytes_persistent": NUMBER,
        "memory": NUMBER,
        "head_message_timestamp": maybe(NUMBER),
        "head_arrived_ms": maybe(NUMBER),
        "idle_since": maybe(TEXT),
        "single_active_consumer_tag": maybe(TEXT),
        "exclusive_consumer_tag": maybe(TEXT),
        "recoverable_slaves": maybe(ANY),
        "message_stats": STATS,
        "depths": many(NUMBER),
    },
)
QUEUE_WHOLE: Final = with_fields(
    QUEUE,
    "QueueWhole",
    {"incoming": many(ANY), "deliveries": many(ANY), "consumer_details": many(CONSUMER)},
)
HISTORY: Final = record(
    "History",
    {
        name: many(NUMBER)
        for name in ("times_ms", "ready", "unacked", "published", "delivered", "acked", "age_ms")
    },
)
PROPERTIES: Final = TABLE
PAYLOAD: Final = {"payload": TEXT, "payload_encoding": one_of("string", "base64")}
TAKEN: Final = record(
    "TakenMessage",
    {
        "exchange": TEXT,
        "routing_key": TEXT,
        "redelivered": FLAG,
        "message_count": NUMBER,
        "properties": PROPERTIES,
        "payload_bytes": NUMBER,
        **PAYLOAD,
    },
)
BROWSED: Final = record(
    "BrowsedMessage",
    {
        "index": NUMBER,
        "exchange": TEXT,
        "routing_key": TEXT,
        "properties": PROPERTIES,
        "redelivered": FLAG,
        "delivery_count": NUMBER,
        "arrived_ms": NUMBER,
        "size": NUMBER,
        **PAYLOAD,
    },
)
ROUTED: Final = record("Routed", {"routed": FLAG})
MOVED: Final = record("Moved", {"moved": NUMBER, "left": NUMBER})

# ---- vhosts, users, policies --------------------------------------------------------------------

METADATA: Final = record("VhostMetadata", {"description": TEXT, "tags": many(TEXT)})
VHOST: Final = record(
    "Vhost",
    {
        "name": TEXT,
        "description": TEXT,
        "tags": many(TEXT),
        "default_queue_type": TEXT,
        "metadata": METADATA,
        "tracing": FLAG,
        "cluster_state": by_name(TEXT),
        **DEPTHS,
        "state_bytes": NUMBER,
        "state_bytes_max": NUMBER,
    },
)
VHOST_LIMITS: Final = record("VhostLimits", {"vhost": TEXT, "value": by_name(NUMBER)})
USER_LIMITS: Final = record("UserLimits", {"user": TEXT, "value": by_name(NUMBER)})
USER: Final = record(
    "User",
    {
        "name": TEXT,
        "password_hash": TEXT,
        "hashing_algorithm": TEXT,
        "tags": many(TEXT),
        "type": TEXT,
        "limits": by_name(NUMBER),
    },
)
PERMISSION: Final = record(
    "Permission", {"user": TEXT, "vhost": TEXT, "configure": TEXT, "write": TEXT, "read": TEXT}
)
TOPIC_PERMISSION: Final = record(
    "TopicPermission",
    {"user": TEXT, "vhost": TEXT, "exchange": TEXT, "write": TEXT, "read": TEXT},
)
POLICY: Final = record(
    "Policy",
    {
        "vhost": TEXT,
        "name": TEXT,
        "pattern": TEXT,
        "apply-to": TEXT,
        "definition": TABLE,
        "priority": NUMBER,
    },
)
PARAMETER: Final = record(
    "Parameter", {"component": TEXT, "vhost": TEXT, "name": TEXT, "value": ANY}
)
GLOBAL_PARAMETER: Final = record("GlobalParameter", {"name": TEXT, "value": ANY})

# ---- health -------------------------------------------------------------------------------------

ALARM: Final = record("Alarm", {"node": TEXT, "resource": TEXT, "text": TEXT})
PASSED: Final = record("Passed", {"status": one_of("ok")}, {"port": NUMBER, "protocol": TEXT})
FAILED: Final = record(
    "Failed",
    {"status": one_of("failed"), "reason": TEXT},
    {
        "alarms": many(ALARM),
        "missing": TEXT,
        "ports": many(NUMBER),
        "protocols": many(TEXT),
        "expired": many(TABLE),
        "queues": many(ANY),
    },
)
CHECKED: Final = Answer({200: PASSED, 503: FAILED})
