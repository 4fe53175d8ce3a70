"""The schemas of the rows of RabbitMQ's API, field by field."""

from __future__ import annotations

from typing import Final

from rhizome.management.openapi.endpoint_shapes import (
    ANY,
    FLAG,
    NUMBER,
    REAL,
    TABLE,
    TEXT,
    Answer,
    by_name,
    fields,
    many,
    maybe,
    one_of,
    record,
    with_fields,
)

# ---- counts -------------------------------------------------------------------------------------

RATE: Final = record("Rate", {"rate": REAL})
DEPTHS: Final = fields(NUMBER, "messages messages_ready messages_unacknowledged")
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
        **fields(NUMBER, "open_ms silent_ms backlog_bytes sent_bytes received_bytes"),
        "congested": FLAG,
    },
)
OVERVIEW: Final = record(
    "Overview",
    {
        **fields(
            TEXT,
            "rabbitmq_version management_version product_name "
            "product_version rates_mode cluster_name node erlang_version "
            "erlang_full_version",
        ),
        **fields(FLAG, "disable_stats enable_queue_totals"),
        "sample_retention_policies": by_name(many(NUMBER)),
        "exchange_types": many(EXTENSION),
        "statistics_db_event_queue": NUMBER,
        "object_totals": record(
            "ObjectTotals",
            fields(NUMBER, "connections channels consumers exchanges queues"),
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
        **fields(TEXT, "os_pid rates_mode mem_calculation_strategy db_dir"),
        **fields(FLAG, "mem_alarm disk_free_alarm"),
        **fields(
            NUMBER,
            "uptime processors mem_used mem_limit mem_resident_messages disk_free "
            "disk_free_limit fd_used fd_total sockets_used sockets_total proc_used "
            "proc_total run_queue net_ticktime",
        ),
        **fields(many(TEXT), "partitions enabled_plugins log_files config_files"),
        **fields(many(EXTENSION), "exchange_types auth_mechanisms applications"),
        "contexts": many(WEB_CONTEXT),
        "cluster_links": many(LINK),
    },
)
MEMORY: Final = record(
    "Memory",
    {
        "memory": record(
            "MemoryParts",
            {
                **fields(NUMBER, "binary other_system"),
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
        **fields(
            TEXT,
            "name node vhost user protocol type peer_host host "
            "blocked_reason user_who_performed_action",
        ),
        **fields(maybe(TEXT), "user_provided_name peer_cert_subject"),
        "state": STATE,
        **fields(
            NUMBER,
            "peer_port port channels channel_max frame_max timeout "
            "connected_at send_pend recv_oct send_oct",
        ),
        "ssl": FLAG,
        "client_properties": TABLE,
        **fields(RATE, "recv_oct_details send_oct_details"),
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
                **fields(TEXT, "name node connection_name peer_host user"),
                **fields(NUMBER, "number peer_port"),
            },
        ),
        **fields(FLAG, "ack_required exclusive active"),
        **fields(NUMBER, "prefetch_count priority messages_unacknowledged"),
        "arguments": TABLE,
        "activity_status": one_of("up", "waiting"),
    },
)
CHANNEL: Final = record(
    "Channel",
    {
        **fields(TEXT, "name node vhost user"),
        **fields(
            NUMBER,
            "number consumer_count prefetch_count global_prefetch_count "
            "messages_unacknowledged messages_unconfirmed "
            "messages_uncommitted acks_uncommitted",
        ),
        "state": STATE,
        "connection_details": record(
            "ConnectionDetails", {"name": TEXT, "peer_host": TEXT, "peer_port": NUMBER}
        ),
        **fields(FLAG, "confirm transactional"),
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
        **fields(TEXT, "name vhost type"),
        **fields(FLAG, "durable auto_delete internal"),
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
        **fields(TEXT, "source vhost destination routing_key properties_key"),
        "destination_type": one_of("queue", "exchange"),
        "arguments": TABLE,
    },
)
QUEUE: Final = record(
    "Queue",
    {
        **fields(TEXT, "name vhost type"),
        **fields(FLAG, "durable auto_delete exclusive"),
        **fields(TABLE, "arguments effective_policy_definition"),
        **fields(maybe(TEXT), "policy operator_policy node"),
        "state": one_of("running", "down"),
    },
    {
        **fields(
            NUMBER,
            "consumers messages_paged_out messages_ready_ram "
            "message_bytes_ready message_bytes_ram "
            "message_bytes_persistent memory keys_live keys_held",
        ),
        **DEPTHS,
        **DEPTH_RATES,
        **fields(maybe(NUMBER), "head_message_timestamp head_arrived_ms"),
        **fields(maybe(TEXT), "idle_since single_active_consumer_tag exclusive_consumer_tag"),
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
        **fields(TEXT, "exchange routing_key"),
        "redelivered": FLAG,
        **fields(NUMBER, "message_count payload_bytes"),
        "properties": PROPERTIES,
        **PAYLOAD,
    },
)
BROWSED: Final = record(
    "BrowsedMessage",
    {
        **fields(NUMBER, "index delivery_count arrived_ms size"),
        **fields(TEXT, "id exchange routing_key"),
        "properties": PROPERTIES,
        "redelivered": FLAG,
        **PAYLOAD,
    },
)
FOUND: Final = record(
    "FoundMessage",
    {name: part for name, part in BROWSED.schema["properties"].items() if name != "index"},
)
SEARCHED: Final = record(
    "Searched", {"messages": many(FOUND), "scanned": NUMBER, "next": maybe(TEXT)}
)
ACTED: Final = record(
    "ActedMessages",
    {
        "action": TEXT,
        "dry_run": FLAG,
        **fields(NUMBER, "done scanned left"),
        "to": by_name(NUMBER),
        "skipped": by_name(NUMBER),
        "next": maybe(TEXT),
    },
)
ROUTED: Final = record("Routed", {"routed": FLAG})
MOVED: Final = record("Moved", {"moved": NUMBER, "left": NUMBER})

# ---- vhosts, users, policies --------------------------------------------------------------------

METADATA: Final = record(
    "VhostMetadata", {**fields(TEXT, "description default_queue_type"), "tags": many(TEXT)}
)
VHOST: Final = record(
    "Vhost",
    {
        **fields(TEXT, "name description default_queue_type"),
        "tags": many(TEXT),
        "metadata": METADATA,
        "tracing": FLAG,
        "cluster_state": by_name(TEXT),
        **DEPTHS,
        **fields(NUMBER, "state_bytes state_bytes_max"),
    },
)
VHOST_LIMITS: Final = record("VhostLimits", {"vhost": TEXT, "value": by_name(NUMBER)})
USER_LIMITS: Final = record("UserLimits", {"user": TEXT, "value": by_name(NUMBER)})
USER: Final = record(
    "User",
    {
        **fields(TEXT, "name password_hash hashing_algorithm type"),
        "tags": many(TEXT),
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
        **fields(TEXT, "vhost name pattern apply-to"),
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
