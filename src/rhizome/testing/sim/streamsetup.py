"""Streams in a scenario: who uses them, who watches, and what strikes there (`--streams`)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from rhizome.testing.sim import streamtraffic as told
from rhizome.testing.sim import traffic
from rhizome.testing.sim.apps import AppProgram, Workload
from rhizome.testing.sim.checkers import Checker, Watch
from rhizome.testing.sim.faults import Fault
from rhizome.testing.sim.history import History
from rhizome.testing.sim.message_faults import MessageAmbushes
from rhizome.testing.sim.process import Host
from rhizome.testing.sim.stream_promises import (
    AppendedOnce,
    DuplicateAppendsAreDropped,
    EachOffsetOnceAndInOrder,
    NamedReadersGoOn,
    NoConfirmedAppendLost,
    NoReaderStuck,
    OneMessagePerOffset,
    OrderPerAppender,
    RetentionTakesTheFrontOnly,
    ShownIsCommitted,
    StreamTransactionsWhole,
)
from rhizome.testing.sim.streamapps import Appender, Booker, ChunkFollower, Follower
from rhizome.testing.sim.streambook import StreamBook
from rhizome.testing.sim.streamcopies import StreamCopiesAgree
from rhizome.testing.sim.streamplans import StreamPlan
from rhizome.testing.sim.streamrotation import Rotator

APPENDERS: Final = (1, 2)
READERS: Final = (1, 3)
"""Of each stream."""
CHUNKED_CHANCE: Final = 0.2

MOMENTS: Final = ("append", "kept", "shown")

MakeApp = Callable[[Host, str, Workload], AppProgram]


def stream_checkers(plans: dict[str, StreamPlan]) -> list[Checker]:
    """The book, and all that is promised about streams."""
    book = StreamBook(plans)
    return [
        book,
        OneMessagePerOffset(book),
        ShownIsCommitted(book),
        AppendedOnce(book),
        DuplicateAppendsAreDropped(book),
        EachOffsetOnceAndInOrder(book),
        NamedReadersGoOn(book),
        OrderPerAppender(book),
        StreamTransactionsWhole(book),
        StreamCopiesAgree(book),
        RetentionTakesTheFrontOnly(book),
        NoConfirmedAppendLost(book),
        NoReaderStuck(book),
    ]


def stream_applications(chance: random.Random, plans: dict[str, StreamPlan]) -> dict[str, MakeApp]:
    """Who appends, a1, ..., x1 in transactions, and who reads, r1, ...; each stream has a reader at
    least. o1 has streams of its own."""
    found: dict[str, MakeApp] = {}
    for number in range(1, 1 + chance.randint(*APPENDERS)):
        found[f"a{number}"] = Appender
    found["x1"] = Booker
    found["o1"] = Rotator
    for plan in plans.values():
        for _ in range(chance.randint(*READERS)):
            chunked = chance.random() < CHUNKED_CHANCE
            kind = ChunkFollower if chunked else Follower
            found[f"r{len(found)}"] = _follower(kind, plan.name)
    return found


def _follower(kind: type[Follower], stream: str) -> MakeApp:
    return lambda host, name, workload: kind(host, name, workload, stream)


class StreamAmbushes:
    """Strike the home of a stream, when something was sent there; its home, a copy of it or an edge
    when that is confirmed, or shown for the first time."""

    def __init__(self, watch: Watch, history: History, ambushes: MessageAmbushes) -> None:
        self._history = history
        self._ambushes = ambushes
        self._streams: dict[str, str] = {}
        self._ends: dict[str, int] = {}
        self._booked: dict[int, tuple[dict[str, None], str]] = {}
        watch.listen(told.Appended, self._appended)
        watch.listen(told.AppendConfirmed, self._confirmed)
        watch.listen(told.Shown, self._shown)
        watch.listen(traffic.TransactionEnds, self._transaction)

    def kinds(self) -> dict[str, Fault]:
        """The faults that set one."""
        return {f"ambush-{moment}": self._ambushes.arm(moment) for moment in MOMENTS}

    def _appended(self, seen: told.Appended) -> None:
        self._streams[seen.message] = seen.stream
        if seen.transaction:
            broker = self._history.sessions[seen.session].broker
            self._booked.setdefault(seen.transaction, ({}, broker))[0][seen.stream] = None
            return
        self._ambushes.spring("append", self._ambushes.homes([seen.stream]))

    def _confirmed(self, seen: told.AppendConfirmed) -> None:
        self._ambushes.spring("kept", self._holders(self._streams[seen.message]))

    def _shown(self, seen: told.Shown) -> None:
        if seen.offset > self._ends.get(seen.stream, -1):
            self._ends[seen.stream] = seen.offset
            edge = self._history.sessions[seen.session].broker
            self._ambushes.spring("shown", [*self._holders(seen.stream), edge])

    def _transaction(self, seen: traffic.TransactionEnds) -> None:
        """Between here and its answer it is in doubt."""
        streams, broker = self._booked.pop(seen.transaction, ({}, ""))
        homes = self._ambushes.homes(list(streams))
        if homes:
            self._ambushes.spring("transaction", [*homes, broker])

    def _holders(self, stream: str) -> list[str]:
        homes = self._ambushes.homes([stream])
        members = self._history.members.get(self._history.groups.get(stream, -1), [])
        return [*homes, *[each.partition(":")[0] for each in members[-1][1].split()]]
