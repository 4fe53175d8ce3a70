"""Messages between the consensus cores of two brokers. Every message carries the term.

    PreVote, PreVoteAnswer      would you elect me, if I asked? Changes nothing (R5)
    Vote, VoteAnswer            elect me (R3)
    Heartbeat, Report           the root lives, this is committed and settled, your lease is
                                granted; I heard you, have applied this, and ask for my lease
                                (R9, R10)
    Append, AppendAnswer        entries of the log; they are synced here (R2)
    SnapshotChunk, -Answer      the state, for a broker that is too far behind for entries (R8)
    Register                    enter this incarnation into the registry (R6)
    HandOver                    stand for election now: I have given up the role of root
    Farewell                    I give up my lease, and am leaving
    Abdication                  I was root in this term and am no more: forget my lease

Times in messages are of the clock of the broker that first wrote them, and are only sent back to
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, TypeAlias

from rhizome.cluster.consensus import dataclass_codec
from rhizome.cluster.consensus.log.cluster_store import Entry

NO_STAMP: Final = -1


@dataclass(frozen=True, slots=True)
class PreVote:
    """Asks with the sender's log and rank. ``impatient``: only log and leases matter now.
    ``awaits_starting``: a broker that is still starting is to say no (R5)."""

    KIND: ClassVar[int] = 1
    term: int
    round: int
    last_term: int
    last_index: int
    preference: int
    seniority: int
    impatient: bool
    awaits_starting: bool


@dataclass(frozen=True, slots=True)
class PreVoteAnswer:
    KIND: ClassVar[int] = 2
    term: int
    round: int
    yes: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Vote:
    """Asks for a vote. ``consent`` is the term of a root that has resigned in favour of this
    candidate, or 0."""

    KIND: ClassVar[int] = 3
    term: int
    last_term: int
    last_index: int
    consent: int


@dataclass(frozen=True, slots=True)
class VoteAnswer:
    KIND: ClassVar[int] = 4
    term: int
    yes: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """From the root. ``stamp_ms`` asks for a Report unless it is NO_STAMP.

    ``granted_ms`` is the receiver's own time of asking for the lease that is hereby granted, or
    NO_STAMP. ``commit`` is at most what the root knows the receiver to hold.
    """

    KIND: ClassVar[int] = 5
    term: int
    stamp_ms: int
    commit: int
    settled: int
    granted_ms: int
    home_lease_ms: int
    root_lease_ms: int


@dataclass(frozen=True, slots=True)
class Report:
    """To the root. ``stamp_ms`` is that of the heartbeat it answers, or NO_STAMP; ``asked_ms`` the
    sender's time of asking for its lease, or NO_STAMP if it must not have one."""

    KIND: ClassVar[int] = 6
    term: int
    stamp_ms: int
    asked_ms: int
    applied: int


@dataclass(frozen=True, slots=True)
class Append:
    """Entries after (``prev_index``, ``prev_term``). Without entries it asks where the logs
    agree."""

    KIND: ClassVar[int] = 7
    term: int
    prev_index: int
    prev_term: int
    commit: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class AppendAnswer:
    """The answer to Append.

    ``ok``: everything up to ``index`` is as the root has it, and synced. Otherwise ``index`` is the
    highest at which the logs may still agree, with ``index_term`` there.
    """

    KIND: ClassVar[int] = 8
    term: int
    ok: bool
    index: int
    index_term: int


@dataclass(frozen=True, slots=True)
class SnapshotChunk:
    KIND: ClassVar[int] = 9
    term: int
    index: int
    index_term: int
    offset: int
    size: int
    data: bytes


@dataclass(frozen=True, slots=True)
class SnapshotAnswer:
    """The answer to SnapshotChunk.

    ``done``: the receiver holds everything up to ``index``; otherwise it wants ``offset``.
    """

    KIND: ClassVar[int] = 10
    term: int
    index: int
    offset: int
    done: bool


@dataclass(frozen=True, slots=True)
class Register:
    KIND: ClassVar[int] = 11
    term: int


@dataclass(frozen=True, slots=True)
class HandOver:
    KIND: ClassVar[int] = 12
    term: int


@dataclass(frozen=True, slots=True)
class Farewell:
    KIND: ClassVar[int] = 13
    term: int


@dataclass(frozen=True, slots=True)
class Abdication:
    KIND: ClassVar[int] = 14
    term: int


Message: TypeAlias = (
    PreVote
    | PreVoteAnswer
    | Vote
    | VoteAnswer
    | Heartbeat
    | Report
    | Append
    | AppendAnswer
    | SnapshotChunk
    | SnapshotAnswer
    | Register
    | HandOver
    | Farewell
    | Abdication
)

_KINDS: Final[dict[int, type[Message]]] = {
    kind.KIND: kind
    for kind in (
        PreVote,
        PreVoteAnswer,
        Vote,
        VoteAnswer,
        Heartbeat,
        Report,
        Append,
        AppendAnswer,
        SnapshotChunk,
        SnapshotAnswer,
        Register,
        HandOver,
        Farewell,
        Abdication,
    )
}


def encode(message: Message) -> bytes:
    """One byte for the kind, then the fields."""
    return bytes((message.KIND,)) + dataclass_codec.encode(message)


def decode(data: bytes) -> Message:
    """Raises dataclass_codec.DamagedError."""
    kind = _KINDS.get(data[0]) if data else None
    if kind is None:
        raise dataclass_codec.DamagedError(
            f"no message of the consensus core begins with {data[:1]!r}"
        )
    return dataclass_codec.decode(kind, data[1:])
