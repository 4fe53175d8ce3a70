"""Cluster view: what the HTTP API needs of a cluster: a description, and the changes of operators.

A clustered broker implements `ClusterView` and `ClusterControl`; a standalone one has its own in
`rhizome.management.rhizome_api.cluster_status_and_changes`. Nothing here knows how a cluster works.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final, Protocol

from rhizome.management.errors import Conflict

PRIMARY: Final = "primary"
SECONDARY: Final = "secondary"
WITNESS: Final = "witness"

# Status of a broker, as operators see it.
STARTING: Final = "starting"
JOINING: Final = "joining"
CATCHING_UP: Final = "catching-up"
READY: Final = "ready"
RECOVERING: Final = "recovering"
ACTIVE: Final = "active"
DRAINING: Final = "draining"
ISOLATED: Final = "isolated"
STOPPED: Final = "stopped"

FORCE_ROOT: Final = "force-root"
ADD_PRIMARY: Final = "add-primary"
REMOVE_PRIMARY: Final = "remove-primary"
DRAIN: Final = "drain"
UNDRAIN: Final = "undrain"
MOVE_HOME: Final = "move-home"
UNPIN: Final = "unpin"
FORCE_HOME: Final = "force-home"
SETTINGS: Final = "settings"


@dataclass(frozen=True, slots=True)
class Quorum:
    """The quorum of primaries, witnesses included: how many the membership defines, how many of
    them are there, and how many are needed now: half of them under a sitting root, more than half
    to elect one (R1)."""

    defined: int
    active: int
    needed: int


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The cluster as one broker knows it. ``notes``: sentences for an operator, such as what it
    waits for, why it is isolated, and which voters share a machine."""

    uuid: str
    name: str
    term: int
    root: str | None
    quorum: Quorum
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """One broker. ``seniority``: the index of its registration, 0 before it has one. ``linked``:
    whether the broker that was asked is this one or has a link to it. ``homes``: the groups that
    have their home there, and ``stuck`` those of them that can't move; ``copies``: the groups that
    must wait for its answers. A broker that drains may stop when homes but ``stuck``, copies and
    connections are 0."""

    name: str
    role: str
    status: str
    seniority: int
    machine: str
    addresses: tuple[str, ...]
    connections: int
    linked: bool
    draining: bool = False
    homes: int = 0
    stuck: int = 0
    copies: int = 0


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """An in-sync member of a group. ``copy``: whole, or disk if it may lack transient messages.
    ``lag``: records that it has not answered for, None if the home hasn't told."""

    broker: str
    incarnation: str
    copy: str
    lag: int | None = None


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """One group. ``home`` is None while no broker may be its home, or it can't be reached;
    ``unavailable`` then says why. ``index`` is that of the last record of its log, None if the home
    hasn't reported it. ``stream``: it is the group of a stream. ``pinned``: the broker that a
    person moved it to, where it stays until it is unpinned."""

    id: int
    home: str | None
    epoch: int
    failover: tuple[str, ...]
    in_sync: tuple[MemberInfo, ...]
    queues: int
    messages: int
    copies: int = 1
    min_copies: int = 1
    local: bool = False
    origin: str = ""
    incarnation: str = ""
    version: int = 1
    parent: int = 0
    moving_to: str = ""
    unavailable: str = ""
    index: int | None = None
    stream: bool = False
    pinned: str = ""


@dataclass(frozen=True, slots=True)
class GroupCopies:
    """Which brokers must have a copy of a group, by the cluster's state: its ``home``, empty while
    there is none, and those ``in_sync``. ``version`` counts the changes of that set. ``stream``: it
    is the group of a stream."""

    id: int
    home: str
    epoch: int
    version: int
    in_sync: tuple[str, ...]
    stream: bool

    def row(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class StandbyInfo:
    """What a home knows of one copy: ``stage`` (following, catching up, ...), the records that it
    hasn't answered, and the bytes sent to it since the home began: records as they were made,
    catch-up lists of live messages, and messages that it lacked."""

    broker: str
    stage: str
    lag: int
    records_bytes: int
    listing_bytes: int
    backfill_bytes: int


@dataclass(frozen=True, slots=True)
class CopyInfo:
    """What one broker has of a group: the epoch and index of its last record. ``role``: home,
    standby, or spare for what is left from an earlier time. ``usable``: whether it could be home.
    ``standbys``: reported by the home."""

    broker: str
    incarnation: str
    role: str
    epoch: int
    index: int
    usable: bool
    standbys: tuple[StandbyInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class FailoverInfo:
    """Who takes over from a broker, and where it is."""

    broker: str
    addresses: tuple[str, ...]
    machine: str


@dataclass(frozen=True, slots=True)
class TxPart:
    """What one broker knows of an unsettled transaction over several groups.

    ``role``: edge, decides or takes part. ``group`` is 0 for an edge; ``homes`` are those of
    ``groups``, "" if one has none. ``set_aside``: how many messages are held back until it is over.
    """

    broker: str
    transaction: str
    edge: str
    edge_is_gone: bool
    role: str
    group: int
    decider: int
    groups: tuple[int, ...]
    homes: tuple[str, ...]
    state: str
    age_ms: int
    set_aside: int
    waits_for: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TxParty:
    """A group that takes part; ``state`` is unknown if its home doesn't answer, or knows nothing of
    it."""

    group: int
    home: str
    state: str
    set_aside: int


@dataclass(frozen=True, slots=True)
class TxInfo:
    """An unsettled transaction over several groups, from what all brokers know of it."""

    id: str
    age_ms: int
    state: str
    edge: str
    edge_is_gone: bool
    decider: int
    parties: tuple[TxParty, ...]
    waits_for: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClusterDocument:
    """Everything that `rhizome status` shows of a cluster, as the broker ``seen_by`` sees it.

    Invariant: brokers are in order of seniority, those without any last.
    """

    seen_by: str
    cluster: ClusterInfo
    brokers: tuple[BrokerInfo, ...]
    groups: tuple[GroupInfo, ...]
    failover_map: Mapping[str, tuple[FailoverInfo, ...]] = field(default_factory=dict)

    def row(self) -> dict[str, object]:
        return asdict(self)


class ClusterView(Protocol):
    """Shows the cluster. Answers from memory, at once, even while there is no root."""

    async def cluster_document(self) -> ClusterDocument: ...

    def copy_of(self, group: int) -> CopyInfo | None:
        """What this broker itself has of a group; None if nothing."""
        ...

    def group_copies(self) -> list[GroupCopies]:
        """All groups in the cluster state; none for a standalone broker."""
        ...

    def doubts(self) -> list[TxPart]:
        """What this broker itself knows of unsettled transactions over several groups."""
        ...

    def unseen_groups(self) -> list[int]:
        """Groups of which this broker has a copy from before their home was forced (G8)."""
        ...

    def key_fingerprints(self) -> list[str]:
        """The fingerprints of the cluster keys that this broker accepts; it proves with the
        first."""
        ...

    def link_fingerprints(self) -> dict[str, str]:
        """The fingerprint of the cluster key that each of this broker's links was made with, by
        peer."""
        ...

    def exposed_links(self) -> list[str]:
        """The peers in whose name somebody on the network path could send."""
        ...

    def troubled_homes(self) -> list[str]:
        """At the root: impaired homes, which are alive but can't serve everybody, why, and what
        becomes of their groups; a sentence each."""
        ...


@dataclass(frozen=True, slots=True)
class Change:
    """A change that an operator asks for: one of the kinds above, and the broker and group that it
    is about. ``copies`` is what brokers have of the group, as far as they answer; ``settings`` are
    those to be changed, by their names in the configuration."""

    kind: str
    broker: str = ""
    group: int = 0
    grace_ms: int = 0
    copies: tuple[CopyInfo, ...] = ()
    settings: tuple[tuple[str, int | str], ...] = ()


@dataclass(frozen=True, slots=True)
class Preview:
    """What a change would do. ``refusal``: why it can't be made, empty if it can.

    ``basis`` names what the preview was made from (such as term and membership); a change is made
    only on the basis that was shown.
    """

    steps: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    refusal: str = ""
    basis: str = ""


class ChangeRefused(Conflict):
    """A change that can't be made now; the text says why, and what to do."""


class ClusterControl(Protocol):
    """Makes the changes that operators order.

    A preview changes nothing. `execute` raises `ChangeRefused` if the change can't be made, or if
    ``basis`` is no longer that of its preview. It returns when the change is committed, with a
    sentence that says what holds now.
    """

    def preview(self, change: Change) -> Preview: ...

    async def execute(self, change: Change, basis: str) -> str: ...
