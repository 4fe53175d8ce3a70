"""The sections of a configuration file: every key, its default and what it does.

Sizes are bytes and times milliseconds once they are read; files and variables always state a unit.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rhizome.broker.access.usage_limits import COMPATIBILITIES, RABBITMQ_3_10
from rhizome.broker.metadata.metadata_commands import PutPolicy
from rhizome.regex import check_pattern
from rhizome.security import sasl_mechanisms, tls
from rhizome.security.allowed_host_names import is_host_pattern
from rhizome.security.audit_log import TOPOLOGY_ALL, TOPOLOGY_NONE, TOPOLOGY_SHARED
from rhizome.security.password_hashes import DEFAULT_COST, check_encoded
from rhizome.server.config.config_fields import (
    SettingError,
    addresses,
    checked,
    choice,
    duration,
    flag,
    interval,
    listed,
    named,
    number,
    portion,
    size,
    table,
    text,
    texts,
)
from rhizome.server.config.units import Address, Portion

_COUNT_MAX: Final = 1_000_000_000
CORES_MAX: Final = 128
PASSWORD_COST_MIN: Final = 10
PASSWORD_COST_MAX: Final = 18


@dataclass(frozen=True, slots=True)
class BrokerSection:
    """What this broker is called and where it keeps its store."""

    name: str = text("rhizome", "Name of this broker, unique in its cluster; shown everywhere.")
    data: str = text(
        "data", "Directory of the store, created if missing; one broker per directory."
    )
    memory: bool = flag(
        False, "Keep everything in memory and nothing on disk: a restart loses all."
    )
    cores: int = number(
        1,
        "Brokers on this machine that share its listeners, for machines with more cores: this one"
        " and secondaries beside it, each a process. See the guide to clusters.",
        1,
        CORES_MAX,
    )
    busy_poll_us: int = interval(
        "300us",
        "Time for which sockets are polled after input that came at such intervals, before the"
        " broker sleeps: waking it up takes longer than forwarding a message. It yields the"
        " processor to others, and stops where others want it, where waking up is quick, and when"
        " `busy_poll_budget_percent` is used up; 0us: never.",
        maximum="10ms",
    )
    busy_poll_budget_percent: int = number(
        3,
        "Share of one processor that such polling may use; it saves up what a second allows. A"
        " client that waits for each answer has those of a short dialog sooner. 100 keeps the delay"
        " of a steady stream of messages low, too, and uses up to a whole processor for it.",
        0,
        100,
    )
    slow_turn_ms: int = duration(
        "100ms",
        "A turn of the event loop that lasts longer is logged with what it did, counted, and shown"
        " by `rhizome doctor`: it held every connection up. 0s: none is.",
        maximum="1h",
    )


def _check_ports(given: tuple[Address, ...]) -> None:
    for address in given:
        if address.path:
            raise SettingError(f'"{address}": only listen.links takes Unix sockets')


@dataclass(frozen=True, slots=True)
class ListenSection:
    """Where connections are taken: lists of "HOST:PORT"; an empty list switches a listener off.

    `localhost` means both loopback addresses, an empty host (":5672") every interface, port 0 any
    free port.
    """

    amqp: tuple[Address, ...] = checked(addresses(("localhost:5672",), "Plain AMQP."), _check_ports)
    tls: tuple[Address, ...] = checked(
        addresses((), "AMQP over TLS, usually port 5671; needs [tls]."), _check_ports
    )
    http: tuple[Address, ...] = checked(
        addresses(("localhost:15672",), "Management API, metrics and console."), _check_ports
    )
    links: tuple[Address, ...] = addresses(
        (),
        "Where other brokers dial this one, if not at amqp or tls: the brokers of one machine"
        ' (broker.cores) share those. TLS if cluster.tls is set; "unix:/path" is a Unix socket.',
    )
    https: tuple[Address, ...] = checked(
        addresses((), "The same over TLS, usually port 15671; needs [tls]."), _check_ports
    )


@dataclass(frozen=True, slots=True)
class TlsSection:
    """Certificates of the TLS listeners, in PEM files.

    The files are read again when they change, and on SIGHUP: new connections get what is new.
    """

    certificate: str = text("", "Certificate of this broker, followed by its chain.")
    key: str = text("", "Its private key, unencrypted; empty: in the certificate's file.")
    ca: str = text("", "Certificates of the authorities that sign client certificates.")
    verify_client: str = choice(
        tls.VERIFY_NONE,
        (tls.VERIFY_NONE, tls.VERIFY_OPTIONAL, tls.VERIFY_REQUIRED),
        "Whether clients show a certificate. Unless none, the mechanism EXTERNAL is offered.",
    )
    verify_browser: str = choice(
        tls.VERIFY_NONE,
        (tls.VERIFY_NONE, tls.VERIFY_OPTIONAL, tls.VERIFY_REQUIRED),
        "The same for listen.https. A certificate there opens the door and logs nobody in.",
    )
    minimum_version: str = choice("1.2", ("1.2", "1.3"), "Oldest TLS version that is accepted.")


def _check_version(value: str) -> None:
    if re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,5}){1,3}", value) is None:
        raise SettingError('write a version of RabbitMQ such as "4.3.6"')


@dataclass(frozen=True, slots=True)
class AmqpSection:
    """What applications are told when they connect."""

    announce_version: str = checked(
        text(
            "4.3.6",
            "The version of RabbitMQ that clients and tools are told, for those that choose by it"
            " what they do. Which do is in docs/compatibility.md. Nothing else depends on it.",
        ),
        _check_version,
    )


def _check_heartbeat(value_ms: int) -> None:
    if value_ms % 1000:
        raise SettingError('AMQP counts heartbeats in whole seconds; write one such as "60s"')


@dataclass(frozen=True, slots=True)
class LimitsSection:
    """Maxima. The first three are offered to clients, which may ask for less."""

    channel_max: int = number(2047, "Channels per connection.", 1, 65_535)
    frame_max_bytes: int = size("128KiB", "Largest frame.", "4KiB", "16MiB")
    heartbeat_ms: int = checked(
        duration("60s", "Heartbeat interval, in whole seconds; 0s: none.", maximum="65535s"),
        _check_heartbeat,
    )
    handshake_timeout_ms: int = duration(
        "10s", "Time from accepting a connection to connection.open.", "100ms", "10m"
    )
    connections_max: int = number(100_000, "Client connections of this broker.", 1, _COUNT_MAX)
    channels_max: int = number(1_000_000, "Channels of all connections together.", 1, _COUNT_MAX)
    queues_max: int = number(1_000_000, "Queues of all vhosts together.", 1, _COUNT_MAX)
    message_bytes_max: int = size(
        "16MiB",
        "Largest message body; the default is that of RabbitMQ 4.x, 128MiB was that of 3.x.",
        "1B",
        "512MiB",
    )
    unfinished_bytes_max: int = size(
        "256MiB",
        "Contents that have begun to come and not ended, or wait for the commit of their "
        "transaction, of all connections; at most a quarter of `memory.high_watermark`.",
        "1MiB",
        "64GiB",
    )
    transaction_parts_max: int = number(
        100_000,
        "Publishes and acknowledgements of one AMQP transaction: they are done at once, and"
        " everybody waits for that.",
        1,
        10_000_000,
    )
    leases_max: int = number(16, "Leases of one queue.", 0, 1000)
    leased_messages_max: int = number(
        1_000_000, "Leased messages of one queue; they stay in memory.", 0, 10_000_000
    )
    leased_bytes_max: int = size(
        "256MiB", "Contents of the leased messages of one queue.", "0B", "64GiB"
    )
    stream_readers_max: int = number(
        20_000,
        "Named readers of all streams of one vhost that are active on this broker; of one stream at"
        " most 4096.",
        0,
        10_000_000,
    )
    stream_reader_expires_ms: int = duration(
        "30d",
        "Time for which the position of a named reader of a stream is remembered after the reader"
        " was last heard of; 0s: for ever.",
    )


def _check_host_pattern(given: tuple[str, ...]) -> None:
    for pattern in given:
        if not is_host_pattern(pattern):
            raise SettingError(
                f'"{pattern}" is no host name; write one without scheme and port such as'
                ' "broker.example.org", "*.example.org" for all names below it, or "*" for any'
            )


@dataclass(frozen=True, slots=True)
class HttpSection:
    """The HTTP listeners: who may use them, and how much of them."""

    allowed_hosts: tuple[str, ...] = checked(
        texts(
            (),
            "Names by which browsers and tools may call this broker over plain HTTP, besides its"
            " own names, IP addresses and names without a dot: those of proxies, load balancers"
            ' and Kubernetes services. "*.example.org" allows all names below it, "*" any name.'
            " A page of another site can have a name of its own lead to this broker.",
        ),
        _check_host_pattern,
    )
    connections_max: int = number(
        1024, "HTTP connections; a few more are taken for health checks.", 8, 65_536
    )
    connections_per_address_max: int = number(
        256,
        "HTTP connections of one address, loopback included. Above it the one that has been idle"
        " longest is closed. A proxy carries those of many: give it what it needs.",
        4,
        65_536,
    )
    hsts_ms: int = duration(
        "365d",
        "Time for which browsers that have come over HTTPS keep to it, for every port of this"
        " host (Strict-Transport-Security); 0s: not told.",
    )


@dataclass(frozen=True, slots=True)
class MemorySection:
    """How much memory messages may take."""

    resident_budget_bytes: int = size(
        "64MiB", "Bodies kept in memory; what exceeds it lives on disk only.", "1MiB"
    )
    high_watermark: Portion = portion(  # noqa: RUF009 - immutable
        "40%",
        "Memory of the process above which publishers are blocked: a size, or a share of the"
        " memory that the host or container has.",
    )


@dataclass(frozen=True, slots=True)
class DiskSection:
    """When a disk counts as full."""

    free_min_bytes: int = size(
        "256MiB",
        "Free space below which publishers are blocked; less than that of two segments of the"
        " journal counts as that. 0: never.",
    )


@dataclass(frozen=True, slots=True)
class JournalSection:
    """How durable messages reach the disk."""

    flush: str = choice(
        "always",
        ("always", "interval", "never"),
        "When writes are synced: before each confirm (many share one sync), every flush_interval"
        " (a power cut loses that much), or when the operating system likes (a crash of the process"
        " alone still loses nothing). The runbook says what else a power cut then takes.",
    )
    flush_interval_ms: int = duration("100ms", 'Used with flush = "interval".', "1ms", "1h")
    segment_size_bytes: int = size("64MiB", "Size of a journal file.", "1MiB", "1GiB")
    read_rate_bytes: int = size(
        "16MiB",
        "Bytes per second that all who read this broker's journal through the HTTP API get"
        " together, as `rhizome pipeline audit --uri` does. More of them slows publishers.",
        "64KiB",
        "64GiB",
    )
    pins_max: int = number(
        16,
        "Readers of the journal at the same time, each with a pin that keeps what it reads; 0:"
        " nobody reads the journal through the HTTP API.",
        0,
        1000,
    )
    pin_idle_ms: int = duration("5m", "Time after which a pin that nobody reads ends.", "1s", "7d")
    pin_lifetime_ms: int = duration("6h", "Time after which a pin ends in any case.", "1s", "30d")
    pinned_bytes_max: int = size(
        "8GiB",
        "Space on disk of files that are kept for readers only. Above it the oldest pins end; all"
        " do if the disk has less free than `disk.free_min`.",
    )


@dataclass(frozen=True, slots=True)
class SecuritySection:
    """Who may log in from where, and what happens to those who guess."""

    loopback_users: tuple[str, ...] = texts(
        ("guest",), "Users that may connect from loopback addresses only."
    )
    external_user_from: str = choice(
        sasl_mechanisms.COMMON_NAME,
        (sasl_mechanisms.COMMON_NAME, sasl_mechanisms.DISTINGUISHED_NAME),
        "Part of a client certificate's subject that names the user (mechanism EXTERNAL).",
    )
    password_cost: int = number(
        DEFAULT_COST.cost_log2,
        "What hashing a new password with scrypt costs: one more doubles the time and the memory of"
        " a login, 14 takes a quarter of a second and 16 MiB. Cheaper hashes are replaced when"
        " their users log in.",
        PASSWORD_COST_MIN,
        PASSWORD_COST_MAX,
    )
    login_free_failures: int = number(
        10, "Failed logins of a user or address before attempts are delayed.", 0, 10_000
    )
    login_delay_ms: int = duration(
        "250ms",
        "First time for which attempts are refused unseen; doubles with each failure.",
        maximum="1h",
    )
    login_delay_max_ms: int = duration("30s", "Longest such time.", maximum="1d")
    login_forget_ms: int = duration("10m", "Quiet time after which failures are forgotten.", "1s")


@dataclass(frozen=True, slots=True)
class ConsumersSection:
    """What is expected of consumers."""

    timeout_ms: int = duration(
        "30m",
        "Time for which a consumer may hold a delivery unacknowledged before it is cancelled and"
        " its deliveries are requeued; 0s: any time.",
    )


@dataclass(frozen=True, slots=True)
class QueuesSection:
    """What queues do where releases of RabbitMQ differ. All brokers of a cluster have the same."""

    compatibility: str = choice(
        RABBITMQ_3_10,
        COMPATIBILITIES,
        "Release of RabbitMQ that queues follow where they can't follow both. 4.3: quorum queues"
        " declared without a delivery limit have one of 20, consumers of classic queues have no"
        " timeout, dead letters have headers x-last-death-*, and redeliveries of quorum queues"
        " x-acquired-count.",
    )


def _check_command(command: str) -> None:
    try:
        shlex.split(command)
    except ValueError as error:
        raise ValueError(f"{error}; write it as for a shell") from None


@dataclass(frozen=True, slots=True)
class HooksSection:
    """Commands that are run when this broker becomes root or home, or is it no more."""

    promoted: str = checked(
        text("", "Command, without a shell; gets promoted ROLE GROUP NUMBER BROKER as arguments."),
        _check_command,
    )
    demoted: str = checked(
        text("", "The same for demoted, also when the broker is stopped."), _check_command
    )
    timeout_ms: int = duration("10s", "Time after which a command is killed.", "100ms", "1h")


@dataclass(frozen=True, slots=True)
class LogSection:
    """What is logged, and where."""

    level: str = choice("info", ("debug", "info", "warning", "error"), "Least severity logged.")
    format: str = choice("text", ("text", "json"), "One line of text or one JSON object per event.")
    file: str = text("", "File to append to; empty: standard error.")


@dataclass(frozen=True, slots=True)
class AuditSection:
    """The audit log: logins, refusals and changes, one JSON object a line."""

    file: str = text(
        "audit.log",
        "File to append to, relative to broker.data; empty: none. A broker that keeps nothing on"
        " disk writes it only to an absolute path.",
    )
    file_size_bytes: int = size("16MiB", "Size at which a new file is begun.", "64KiB", "1GiB")
    files_max: int = number(
        10, "Files that are kept; the one that is written to has no number.", 1, 1000
    )
    topology: str = choice(
        TOPOLOGY_SHARED,
        (TOPOLOGY_NONE, TOPOLOGY_SHARED, TOPOLOGY_ALL),
        "Which queues and exchanges it tells of when applications declare, delete, bind, unbind or"
        " purge them: none, those that connections share, or all, exclusive queues included.",
    )


@dataclass(frozen=True, slots=True)
class VhostDefinition:
    """[vhosts.NAME]: a vhost that exists from the first start."""

    description: str = text("", "For people.")
    connections_max: int = number(0, "Connections to this vhost; 0: no limit.", 0, _COUNT_MAX)
    queues_max: int = number(0, "Queues in this vhost; 0: no limit.", 0, _COUNT_MAX)


@dataclass(frozen=True, slots=True)
class PermissionDefinition:
    """[users.NAME.permissions.VHOST]: regular expressions of names; empty matches nothing."""

    configure: str = checked(text("", "Names to declare and delete."), check_pattern)
    write: str = checked(text("", "Names to publish and bind to."), check_pattern)
    read: str = checked(text("", "Names to consume and bind from."), check_pattern)


@dataclass(frozen=True, slots=True)
class TopicPermissionDefinition:
    """[[users.NAME.topic_permissions]]: a further restriction on one topic exchange.

    {username} and {vhost} stand for the connection's values.
    """

    exchange: str = text(None, "The topic exchange.")
    vhost: str = text("/", "Its vhost.")
    write: str = checked(text(".*", "Routing keys to publish with."), check_pattern)
    read: str = checked(text(".*", "Binding keys to bind with."), check_pattern)


@dataclass(frozen=True, slots=True)
class UserDefinition:
    """[users.NAME]: a user that exists from the first start; later changes are kept.

    With neither password nor password_hash the user can log in by certificate only.
    """

    password: str = text("", "In clear; only its hash is stored.", is_secret=True)
    password_hash: str = checked(
        text("", "Hashed: $scrypt$..., or from RabbitMQ $rabbit-sha256$...", is_secret=True),
        check_encoded,
    )
    kind: str = choice(
        "application",
        ("application", "console", "cluster"),
        "What the user is for; none can be used in place of another.",
    )
    tags: tuple[str, ...] = texts((), "Such as administrator, monitoring, management.")
    connections_max: int = number(0, "Connections of this user; 0: no limit.", 0, _COUNT_MAX)
    channels_max: int = number(0, "Channels of this user; 0: no limit.", 0, _COUNT_MAX)
    permissions: Mapping[str, PermissionDefinition] = named(
        PermissionDefinition, "Permissions by vhost; without an entry the vhost is closed."
    )
    topic_permissions: tuple[TopicPermissionDefinition, ...] = listed(
        TopicPermissionDefinition, "Restrictions by routing key."
    )


@dataclass(frozen=True, slots=True)
class PolicyDefinition:
    """[policies.NAME]: a policy that exists from the first start."""

    pattern: str = checked(text(None, "Regular expression of names."), check_pattern)
    definition: Mapping[str, Any] = table("What applies to them, such as { message-ttl = 60000 }.")
    vhost: str = text("/", "The vhost that it applies in.")
    priority: int = number(
        0, "Of the policies that match, the highest applies.", -(2**31), 2**31 - 1
    )
    apply_to: str = choice("all", ("all", "queues", "exchanges"), "What it applies to.")

    def command(self, name: str) -> PutPolicy:
        definition = dict(self.definition)
        return PutPolicy(self.vhost, name, self.pattern, definition, self.apply_to, self.priority)


def default_vhosts() -> Mapping[str, VhostDefinition]:
    return {"/": VhostDefinition()}


def default_users() -> Mapping[str, UserDefinition]:
    """guest/guest, as every RabbitMQ client expects; from loopback addresses only."""
    everything = PermissionDefinition(configure=".*", write=".*", read=".*")
    guest = UserDefinition(password="guest", tags=("administrator",), permissions={"/": everything})
    return {"guest": guest}
