"""The [cluster] section: who the primaries are, what this broker is among them, and the times.

A broker whose section names no primaries is lone. The list of primaries counts only when a cluster
is made (R1, R7); later members are admitted with `rhizome cluster add-primary`.
"""

from __future__ import annotations

import hashlib
import re
import socket
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rhizome.cluster.takeover.settings import EAGER, REBALANCES
from rhizome.server.config.config_fields import (
    Setting,
    SettingError,
    addresses,
    checked,
    choice,
    decimal,
    duration,
    flag,
    number,
    size,
    strings,
    text,
    text_list,
    toml_list,
)
from rhizome.server.config.units import Address, format_duration, parse_address

PRIMARY: Final = "primary"
SECONDARY: Final = "secondary"
WITNESS: Final = "witness"
ROLES: Final = (PRIMARY, SECONDARY, WITNESS)

MACS_OF_NETWORK: Final = "network"
MACS_ALWAYS: Final = "always"
MACS: Final = (MACS_OF_NETWORK, MACS_ALWAYS)

KEY_BYTES_MIN: Final = 16
KEY_BYTES_MAX: Final = 4096
KEYS_MAX: Final = 4
"""As many keys as links accept proofs of."""

KEYS_HEAD: Final = "# Rhizome cluster keys, one a line: the first is proved with, all are taken."
"""The first line of a key file with several keys."""

DISCOVER_DNS: Final = "dns:"

NAME_CHARS_MAX: Final = 64
PRIMARIES_MAX: Final = 15
LEASE_HEARTBEATS_MIN: Final = 3
EVERY_INTERFACE: Final = ("", "0.0.0.0", "::")
BOOT_ID_FILE: Final = Path("/proc/sys/kernel/random/boot_id")
MACHINE_ID_FILES: Final = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))

_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{NAME_CHARS_MAX - 1}}}")
_SERVICE: Final = re.compile(rf"{DISCOVER_DNS}[A-Za-z0-9_][A-Za-z0-9_.-]{{0,200}}")
_EXAMPLE: Final = "b1=10.0.0.1:5672"


@dataclass(frozen=True, slots=True)
class Primary:
    """One entry of the list of primaries: a broker's name and where the others dial it."""

    name: str
    address: Address

    def __str__(self) -> str:
        return f"{self.name}={self.address}"


def check_broker_name(name: str) -> None:
    """Names of brokers appear in lists, queue names and paths, so they have no separators in
    them."""
    if not _NAME.fullmatch(name):
        raise SettingError(
            f'"{name}" is no name for a broker of a cluster; use up to {NAME_CHARS_MAX} letters,'
            " digits and _ . - and begin with a letter or digit"
        )


def parse_primary(written: str) -> Primary:
    name, equals, address = written.partition("=")
    if not equals:
        raise SettingError(f'"{written}" is no primary; write NAME=HOST:PORT such as "{_EXAMPLE}"')
    check_broker_name(name)
    where = parse_address(address)
    if not where.path and not (where.host and where.port):
        raise SettingError(
            f'"{written}": the others dial this; it needs a host and a port such as "{_EXAMPLE}"'
        )
    return Primary(name, where)


def _parse_primaries(value: object) -> tuple[Primary, ...]:
    found = tuple(parse_primary(entry) for entry in strings(value))
    for place, primary in enumerate(found):
        for other in found[:place]:
            if primary.name == other.name:
                raise SettingError(f'"{primary.name}" is listed twice')
            if primary.address == other.address:
                raise SettingError(
                    f'"{other.name}" and "{primary.name}" have one address, {primary.address}'
                )
    if len(found) > PRIMARIES_MAX:
        raise SettingError(
            f"{len(found)} primaries are more than {PRIMARIES_MAX}; each change waits for half of"
            " them. Brokers that only serve applications are secondaries, and need no entry"
        )
    return found


def _primaries(doc: str) -> Any:
    setting = Setting(doc, "list of NAME=HOST:PORT", _parse_primaries, toml_list, text_list)
    return field(default=(), metadata={"setting": setting})


def _check_discover(given: str) -> None:
    if given and not _SERVICE.fullmatch(given):
        raise SettingError(
            f'"{given}" says no place to look; write "{DISCOVER_DNS}NAME" with the name of a'
            f' service in DNS, such as "{DISCOVER_DNS}rhizome.example.org"'
        )


def _check_advertised(given: tuple[Address, ...]) -> None:
    for address in given:
        if address.path or not address.host or not address.port:
            raise SettingError(f'"{address}": others are told this; it needs a host and a port')


@dataclass(frozen=True, slots=True)
class ClusterSection:
    """The cluster that this broker belongs to. Without primaries it is a lone broker.

    All brokers of a cluster have the same key, list of primaries and times.
    """

    name: str = text("", "Name of the cluster, told to clients; empty: the broker's name.")
    key: str = text(
        "",
        "Secret that all brokers of the cluster share, at least 16 bytes. Brokers never send it.",
        is_secret=True,
    )
    key_file: str = text(
        "",
        "File that holds the key, instead of key; not readable by everybody. White space around"
        " the key doesn't count. While the key is rotated it holds several, as `rhizome cluster"
        " rotate-key` writes them. It is read again when it has changed.",
    )
    role: str = choice(
        PRIMARY,
        ROLES,
        "A primary votes, keeps the cluster state and can hold queues; a secondary comes and goes,"
        " serves applications and never votes; a witness only votes.",
    )
    primaries: tuple[Primary, ...] = _primaries(
        "The primaries and witnesses that a new cluster is made of, with the addresses at which"
        " they are dialled. Counts until there is a cluster; afterwards it tells whom to dial.",
    )
    discover: str = checked(
        text(
            "",
            'Where the primaries are found, instead of primaries: "dns:NAME" takes them from the'
            " SRV records of _amqp._tcp.NAME (_amqps._tcp.NAME with tls). The first label of a"
            " target is the name of a broker.",
        ),
        _check_discover,
    )
    discover_count: int = number(
        3,
        "How many primaries and witnesses a new cluster has that are found by discover: it is"
        " founded when so many are listed.",
        1,
        PRIMARIES_MAX,
    )
    discover_timeout_ms: int = duration(
        "5m",
        "How long a broker with a new store looks for them before it ends with an error.",
        "1s",
        "1d",
    )
    advertise: tuple[Address, ...] = checked(
        addresses(
            (),
            "Addresses of this broker that applications and other brokers are told; empty: its own"
            " in primaries, else those that it listens on.",
        ),
        _check_advertised,
    )
    machine: str = text(
        "",
        "Name of what fails together with this broker: a host, a rack. Copies are kept apart by"
        " it, and of the brokers of one machine only one votes. Empty: made from the host's"
        " machine-id.",
    )
    tls: bool = flag(
        False,
        "Links use TLS: primaries has addresses of TLS listeners, and both ends show a"
        " certificate that tls.ca has signed.",
    )
    link_macs: str = choice(
        MACS_OF_NETWORK,
        MACS,
        "Which links without TLS have MACs, so that nobody on the path can send in a broker's name:"
        " those to other machines, or all, with loopback addresses too. Unix sockets need none.",
    )
    insecure_links: bool = flag(
        False,
        "Links beyond this machine are allowed with brokers of a release that has no MACs for them"
        " (0.1), so that whoever is on the path can send in their name. For the time of an upgrade"
        " without TLS.",
    )
    placement: str = choice(
        "spread",
        ("spread", "root"),
        "Where shared queues live: spread over all primaries, or all at the root.",
    )
    copies: int = number(
        2,
        "Copies of each message of a replicated queue, its home's included. Counts for a new"
        " cluster; policies may say otherwise.",
        1,
        PRIMARIES_MAX,
    )
    min_copies: int = number(
        1,
        "Copies that must be there: with fewer, confirms wait and publishers are blocked. Counts"
        " for a new cluster; policies may say otherwise.",
        1,
        PRIMARIES_MAX,
    )
    failover_policy: str = text(
        "ring", "Who takes over from whom: a name of the entry point rhizome.failover_policies."
    )
    connect_policy: str = choice(
        "serve",
        ("serve", "redirect", "active-only"),
        "What becomes of applications: served where they connect; sent where their work is, if they"
        " can follow; or taken by active brokers only.",
    )
    edge: bool = flag(
        False,
        "Serve the applications of this host only (`rhizome edge` sets it): no other broker is told"
        " an address of this one, so none sends it clients. For secondaries.",
    )
    demand_key: bool = flag(
        False,
        "Applications must show that they belong to this cluster: the client property"
        " cluster_token has what `rhizome cluster app-token` prints.",
    )
    state_size_max_bytes: int = size(
        "64MiB", "Largest cluster state; declares beyond it are refused.", "1MiB", "4GiB"
    )
    heartbeat_ms: int = duration(
        "150ms", "How often the root tells the others that it is there.", "10ms", "10s"
    )
    root_lease_ms: int = duration(
        "900ms",
        "Time without answers from half of the primaries after which a root resigns; at"
        " least three heartbeats.",
        "50ms",
        "5m",
    )
    election_patience_ms: int = duration(
        "400ms",
        "Time for which a candidate waits for all primaries before a majority suffices.",
        "10ms",
        "1m",
    )
    startup_patience_ms: int = duration(
        "3s",
        "Time after its start for which a candidate waits for primaries that still start.",
        "0s",
        "10m",
    )
    home_lease_ms: int = duration(
        "1600ms",
        "Time for which a broker may serve without hearing from the root, and after which its"
        " groups are taken over; more than root_lease and election_patience together.",
        "100ms",
        "10m",
    )
    last_man_standing_ms: int = duration(
        "0s",
        "Time after which a primary that is away doesn't count in the quorum until it is back, so"
        " that a cluster may lose its brokers one after the other, down to the last. 0s: it always"
        " counts. Longer than home_lease; see docs/operating/cluster.md before you use it.",
        "0s",
        "30d",
    )
    sync_timeout_ms: int = duration(
        "2s",
        "Time after which a home goes on without a copy that doesn't answer, and an alarm is"
        " raised.",
        "100ms",
        "10m",
    )
    whole_patience_ms: int = duration(
        "3s",
        "Time for which a group without a home waits for a copy that has the transient messages"
        " too, before one that has only what is on disk takes over.",
        "0s",
        "24h",
    )
    replace_patience_ms: int = duration(
        "5m",
        "Time for which a broker may be away before others keep copies in its place.",
        "1s",
        "365d",
    )
    unlinked_patience_ms: int = duration(
        "2s",
        "Time for which two brokers that the root reaches may have no link with each other, before"
        " their groups move to a broker that reaches all. 0s: groups stay, and clients of the one"
        " wait for queues of the other.",
        "0s",
        "24h",
    )
    full_disk_patience_ms: int = duration(
        "2s",
        "Time for which the disk of a home may be short of space (disk.free_min), before its groups"
        " move to standbys that have room. 0s: groups stay, and publishers wait for the disk.",
        "0s",
        "24h",
    )
    transfer_patience_ms: int = duration(
        "5s",
        "Time for which a home that hands a group over holds it back, before it goes on itself.",
        "100ms",
        "10m",
    )
    resume_patience_ms: int = duration(
        "1.5s",
        "Time that a new home has for clients that can resume and whose broker is gone: until they"
        " are back with what they hold, or it is over, nothing is delivered or confirmed. Without"
        " such clients there is no wait.",
        "0s",
        "1m",
    )
    catch_up_rate: int = size(
        "24MiB",
        "What a copy that catches up is sent in a second while its group is in use; a group that"
        " rests sends as fast as it can.",
        "64KiB",
    )
    rebalance: str = choice(
        EAGER,
        REBALANCES,
        "Whether homes are spread over the brokers again after a failure: never; only those of"
        " groups with hardly any traffic; or all of them.",
    )
    max_drift: float = decimal(
        0.05, "Largest difference between the speeds of two hosts' clocks.", 0.0, 0.5
    )
    link_timeout_ms: int = duration(
        "5s",
        "Silence after which a link counts as broken; at least three heartbeats.",
        "100ms",
        "10m",
    )
    link_buffer_bytes: int = size(
        "32MiB",
        "Bytes waiting for one link above which publishers to it are held back.",
        "64KiB",
        "4GiB",
    )
    reconnect_delay_ms: int = duration(
        "100ms",
        "Time before a lost link is dialled again; doubles with each failure.",
        "10ms",
        "1m",
    )
    reconnect_delay_max_ms: int = duration("5s", "Longest such time.", "10ms", "10m")

    @property
    def is_clustered(self) -> bool:
        return bool(self.primaries or self.discover)

    @property
    def primary_names(self) -> tuple[str, ...]:
        return tuple(primary.name for primary in self.primaries)

    def address_of(self, name: str) -> Address | None:
        """Where the list says that a primary is dialled."""
        found = (primary.address for primary in self.primaries if primary.name == name)
        return next(found, None)


# --- values that come from elsewhere


def read_keys(section: ClusterSection) -> tuple[bytes, ...]:
    """The cluster key, and during a rotation also the other accepted keys.

    Raises SettingError in words that don't quote them.
    """
    if section.key and section.key_file:
        raise SettingError("is given besides key; keep one of the two")
    if section.key_file:
        return read_key_file(Path(section.key_file))
    return _checked_keys([section.key.strip().encode()])


def read_key_file(path: Path) -> tuple[bytes, ...]:
    """The keys in a file: one that is the file, or those that are listed below ``KEYS_HEAD``."""
    held = _read_secret(path)
    head, _, listed = held.partition(b"\n")
    if head.strip() != KEYS_HEAD.encode():
        return _checked_keys([held])
    lines = (line.strip() for line in listed.splitlines())
    return _checked_keys([line for line in lines if line])


def keys_text(keys: Sequence[bytes]) -> bytes:
    """The text of a file with these keys; a single key is written as releases without lists read
    it."""
    if len(keys) == 1:
        return keys[0] + b"\n"
    return b"\n".join([KEYS_HEAD.encode(), *keys, b""])


def _checked_keys(keys: list[bytes]) -> tuple[bytes, ...]:
    for key in keys:
        if not KEY_BYTES_MIN <= len(key) <= KEY_BYTES_MAX:
            raise SettingError(
                f"holds a key of {len(key)} bytes; it takes {KEY_BYTES_MIN} to {KEY_BYTES_MAX},"
                " such as what `openssl rand -base64 32` prints"
            )
    if not 0 < len(set(keys)) == len(keys) <= KEYS_MAX:
        raise SettingError(f"lists {len(keys)} keys; it takes 1 to {KEYS_MAX}, each once")
    return tuple(keys)


def _read_secret(path: Path) -> bytes:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise SettingError(f"{path} is no file")
        if status.st_mode & stat.S_IROTH:
            raise SettingError(f"{path} can be read by everybody on this host; chmod 600 it")
        with path.open("rb") as file:
            return file.read((KEYS_MAX + 1) * KEY_BYTES_MAX).strip()
    except OSError as error:
        raise SettingError(f"{path} can't be read: {error.strerror}") from None


def advertised(
    section: ClusterSection, broker_name: str, listening: Sequence[Address]
) -> tuple[Address, ...]:
    """The addresses that others are told: as configured, else the own entry in the list of
    primaries, else what the broker listens on (``listening`` has the ports that were bound)."""
    if section.edge:
        return ()
    if section.advertise:
        return section.advertise
    own = section.address_of(broker_name)
    if own is not None and not own.path:
        return (own,)
    return tuple(
        Address(socket.gethostname(), each.port) if each.host in EVERY_INTERFACE else each
        for each in listening
    )


def machine_id(section: ClusterSection) -> str:
    """The configured machine, else one derived from the host's machine-id, else its host name.

    The host's id itself stays on the host, as machine-id(5) asks: a hash of it does as well.
    """
    if section.machine:
        return section.machine
    for path in MACHINE_ID_FILES:
        try:
            found = path.read_text("ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if len(found) == 32:
            return hashlib.sha256(b"rhizome machine " + found.encode()).hexdigest()[:16]
    return socket.gethostname()


def host_id() -> str:
    """An id that all brokers of this machine share and no other; empty if it can't be known.

    It is made from the kernel's own id, which is new with every boot, not from the machine-id,
    which clones share.
    """
    try:
        found = BOOT_ID_FILE.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
    return hashlib.sha256(b"rhizome host " + found.encode()).hexdigest()[:32] if found else ""


# --- values that are right by themselves and wrong together


def cluster_contradictions(
    section: ClusterSection, broker_name: str, in_memory: bool
) -> Iterator[tuple[str, str]]:
    """(key, what is wrong) for each fault."""
    if not section.is_clustered:
        yield from _lone_contradictions(section)
        return
    yield from _key_contradictions(section)
    yield from _membership_contradictions(section, broker_name, in_memory)
    yield from _time_contradictions(section)
    if section.min_copies > section.copies:
        yield "min_copies", f"{section.min_copies} is more than copies, {section.copies}"


def _lone_contradictions(section: ClusterSection) -> Iterator[tuple[str, str]]:
    wanted = 'is missing; list the cluster\'s primaries, such as ["b1=10.0.0.1:5672", ...]'
    if section.role != PRIMARY:
        yield "primaries", f"{wanted}: a {section.role} belongs to a cluster"
    elif (section.key or section.key_file) and not section.demand_key:
        yield "primaries", f"{wanted}; or remove the key: a lone broker has no use for it"
    if section.demand_key:
        yield from _key_contradictions(section)


def _key_contradictions(section: ClusterSection) -> Iterator[tuple[str, str]]:
    if not section.key and not section.key_file:
        yield "key_file", "is missing; the brokers of a cluster know each other by their key"
        return
    try:
        read_keys(section)
    except SettingError as error:
        yield ("key_file" if section.key_file else "key"), str(error)


def _membership_contradictions(
    section: ClusterSection, broker_name: str, in_memory: bool
) -> Iterator[tuple[str, str]]:
    if section.discover and section.primaries:
        yield "discover", "is given besides primaries; keep one of the two"
    listed = broker_name in section.primary_names
    names = ", ".join(section.primary_names)
    if section.role == SECONDARY:
        try:
            check_broker_name(broker_name)
        except SettingError as error:
            yield "role", str(error)
        if listed:
            yield "role", f'is "secondary", and primaries lists this broker, "{broker_name}"'
    elif section.discover:
        try:
            check_broker_name(broker_name)
        except SettingError as error:
            yield "discover", str(error)
    elif not listed:
        yield (
            "primaries",
            f'doesn\'t list this broker, "{broker_name}" (listed: {names}); add it, correct'
            ' broker.name, or set role = "secondary"',
        )
    if section.edge and section.role != SECONDARY:
        yield "edge", f'is true, and role is "{section.role}": an edge is a secondary'
    if section.edge and section.advertise:
        yield "advertise", "is given besides edge, which tells nobody an address; keep one of both"
    if in_memory and section.role != SECONDARY:
        yield (
            "role",
            f'is "{section.role}", and broker.memory is true: a broker that forgets its votes'
            " can't vote; keep the store on disk, or be a secondary",
        )


def _time_contradictions(section: ClusterSection) -> Iterator[tuple[str, str]]:
    heartbeats_ms = LEASE_HEARTBEATS_MIN * section.heartbeat_ms
    for key, value_ms in (
        ("root_lease", section.root_lease_ms),
        ("link_timeout", section.link_timeout_ms),
    ):
        if value_ms < heartbeats_ms:
            yield (
                key,
                f"{format_duration(value_ms)} is shorter than {LEASE_HEARTBEATS_MIN} heartbeats"
                f" ({format_duration(heartbeats_ms)}): one late heartbeat would end it",
            )
    replaced_ms = section.root_lease_ms + section.election_patience_ms
    if section.home_lease_ms <= replaced_ms:
        yield (
            "home_lease",
            f"{format_duration(section.home_lease_ms)} must be more than root_lease and"
            f" election_patience together ({format_duration(replaced_ms)}): else every broker stops"
            " serving whenever a root is replaced",
        )
    if 0 < section.last_man_standing_ms <= section.home_lease_ms:
        yield (
            "last_man_standing",
            f"{format_duration(section.last_man_standing_ms)} must be longer than home_lease"
            f" ({format_duration(section.home_lease_ms)}), or 0s: else a broker that restarts loses"
            " its vote",
        )
    if section.reconnect_delay_ms > section.reconnect_delay_max_ms:
        yield "reconnect_delay", "is longer than reconnect_delay_max"
