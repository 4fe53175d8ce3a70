"""Cluster commands: what the entries of the state log say to the cluster state.

An entry is an envelope around one command: of the broker's state
(``broker/metadata/metadata_commands.py``), or one of those below, about brokers and groups. The
envelope says who proposed it, so that an entry that got into the log twice counts once (R10).

Encoding: an AMQP table {"v": 1, "incarnation", "number", "answered", "broker" or "cluster":
command}, the command encoded as ``broker/metadata/metadata_commands.py`` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rhizome.amqp.field_table import encode_table, read_table
from rhizome.broker.metadata import metadata_commands as broker_commands
from rhizome.broker.metadata.metadata_commands import Codec, Command, DamagedCommandError
from rhizome.errors import AmqpError

ENVELOPE_VERSION: Final = 1

WHOLE: Final = "whole"
DISK: Final = "disk"

SPREAD: Final = "spread"
ROOT: Final = "root"
PLACEMENTS: Final = (SPREAD, ROOT)


@dataclass(frozen=True)
class Member:
    """An in-sync member of a group. ``copy`` is `WHOLE`, or `DISK` if it may lack transient
    messages (G2)."""

    broker: str
    incarnation: str
    copy: str


@dataclass(frozen=True)
class ClusterCommand(Command):
    """A change of what the cluster knows about its brokers and groups."""


@dataclass(frozen=True)
class RegisterBroker(ClusterCommand):
    """A broker, or a new incarnation of it, joins. Its first registration determines its seniority
    (R6); the failover map knows it from the same moment (J3)."""

    name: str
    uuid: str
    incarnation: str
    role: str
    addresses: tuple[str, ...]
    machine: str


@dataclass(frozen=True)
class RetireBroker(ClusterCommand):
    """An incarnation will not come back; with "" the broker itself won't, and its name is free."""

    name: str
    incarnation: str = ""


@dataclass(frozen=True)
class PutSettings(ClusterCommand):
    """Settings that all brokers must follow alike, whatever their own configurations say."""

    placement: str
    copies: int
    failover_policy: str
    state_size_max_bytes: int
    min_copies: int = 1


@dataclass(frozen=True)
class AppointHome(ClusterCommand):
    """Make an incarnation of a broker the home of a group, in the epoch after ``epoch``.

    This is done only if the group is still in that epoch and its in-sync set has that ``version``
    (G1, G3, G5), and only if that broker is an in-sync member or was the last home: nobody else has
    everything.
    """

    group: int
    broker: str
    incarnation: str
    epoch: int
    version: int


@dataclass(frozen=True)
class SetInSync(ClusterCommand):
    """Set the in-sync members of a group, under the same conditions (G5)."""

    group: int
    members: tuple[Member, ...]
    epoch: int
    version: int


@dataclass(frozen=True)
class PlanMove(ClusterCommand):
    """Let a group's home go to another broker when that one has a whole copy, if the group is still
    in ``epoch`` (G11); with "" it stays. The home makes a copy there, hands over and asks for
    `TransferHome`."""

    group: int
    broker: str
    epoch: int


@dataclass(frozen=True)
class PinHome(ClusterCommand):
    """A person says where a group's home is to be, if the group is still in ``epoch``: it moves
    there, and goes back there after every takeover; with "" it is free again. Release 0.1 doesn't
    know this command, so nobody proposes it while a broker of that release has a link."""

    group: int
    broker: str
    epoch: int


@dataclass(frozen=True)
class TransferHome(ClusterCommand):
    """The home, which has stopped admitting, hands a group to a whole member that has everything
    (G11). It is conditional like a takeover; the old home is a whole member of the new epoch."""

    group: int
    broker: str
    incarnation: str
    epoch: int
    version: int


@dataclass(frozen=True)
class ForceHome(ClusterCommand):
    """A takeover that may lose messages, ordered by a person (G8): any primary becomes the home,
    with the copy that it has. ``parent`` is the epoch of that copy, 0 if it has none."""

    group: int
    broker: str
    incarnation: str
    epoch: int
    version: int
    parent: int


@dataclass(frozen=True)
class SetDraining(ClusterCommand):
    """Begin or stop draining a broker (G11). ``grace_ms``: the time over which its sessions are
    asked to go elsewhere, once it is home of nothing."""

    broker: str
    draining: bool
    grace_ms: int = 0


@dataclass(frozen=True)
class SetAway(ClusterCommand):
    """An incarnation has lost its lease, or has one again; ``lost``: so long ago that others should
    keep copies in its place. It serves placement and people: safety never depends on it."""

    broker: str
    incarnation: str
    away: bool
    lost: bool = False


@dataclass(frozen=True)
class SetFailoverList(ClusterCommand):
    """Say who takes over from a broker, whatever the policy would say; with () the policy
    decides."""

    broker: str
    failover: tuple[str, ...]


# The names are part of the format: they stay when a class is renamed.
OPERATIONS: Final[dict[str, type[Command]]] = {
    "register-broker": RegisterBroker,
    "retire-broker": RetireBroker,
    "put-settings": PutSettings,
    "appoint-home": AppointHome,
    "set-in-sync": SetInSync,
    "plan-move": PlanMove,
    "transfer-home": TransferHome,
    "force-home": ForceHome,
    "set-draining": SetDraining,
    "set-away": SetAway,
    "set-failover-list": SetFailoverList,
    "pin-home": PinHome,
}

_CODEC: Final = Codec(OPERATIONS)


@dataclass(frozen=True)
class Envelope:
    """A command and who proposed it.

    Each incarnation numbers its proposals from 1 on. ``answered`` is the highest number up to which
    it knows all outcomes: the state need not remember them any more. With the incarnation "" the
    command is not deduplicated, because twice is as good as once.
    """

    command: Command
    incarnation: str = ""
    number: int = 0
    answered: int = 0


def encode(envelope: Envelope) -> bytes:
    """The bytes of an entry; raises ValueError for a value that no AMQP table can hold."""
    command = envelope.command
    table: dict[str, object] = {
        "v": ENVELOPE_VERSION,
        "incarnation": envelope.incarnation,
        "number": envelope.number,
        "answered": envelope.answered,
    }
    if isinstance(command, ClusterCommand):
        table["cluster"] = _CODEC.encode(command)
    else:
        table["broker"] = broker_commands.encode(command)
    return encode_table(table)


def decode(data: bytes) -> Envelope:
    """The envelope in ``data``; raises DamagedCommandError."""
    try:
        table, end = read_table(data, 0)
    except AmqpError as error:
        raise DamagedCommandError(f"an entry of the state log is damaged: {error.text}") from error
    if int(end) != len(data):
        raise DamagedCommandError(f"an entry has {len(data) - int(end)} bytes behind its end")
    version = table.get("v")
    if version != ENVELOPE_VERSION:
        raise DamagedCommandError(
            f"an entry has version {version!r} and this broker knows {ENVELOPE_VERSION}: upgrade it"
        )
    incarnation = table.get("incarnation")
    number, answered = table.get("number"), table.get("answered")
    if not isinstance(incarnation, str) or type(number) is not int or type(answered) is not int:
        raise DamagedCommandError("an entry doesn't say who proposed it")
    return Envelope(_command_in(table), incarnation, number, answered)


def _command_in(table: dict[str, object]) -> Command:
    cluster, broker = table.get("cluster"), table.get("broker")
    if isinstance(cluster, bytes):
        return _CODEC.decode(cluster)
    if isinstance(broker, bytes):
        return broker_commands.decode(broker)
    raise DamagedCommandError("an entry has no command that this broker knows: upgrade it")
