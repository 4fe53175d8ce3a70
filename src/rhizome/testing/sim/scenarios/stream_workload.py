"""Streams in a scenario (`--streams`): their applications, checkers and ambushes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from rhizome.testing.sim.apps.app_program import AppProgram, Workload
from rhizome.testing.sim.apps.app_topology import StreamPlan
from rhizome.testing.sim.apps.stream_apps import (
    Appender,
    ChunkConsumer,
    StreamConsumer,
    TransactionalAppender,
)
from rhizome.testing.sim.apps.stream_churn import StreamChurner
from rhizome.testing.sim.checkers.checker import Checker, Watch
from rhizome.testing.sim.checkers.message_history import History
from rhizome.testing.sim.checkers.stream_checkers import (
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
from rhizome.testing.sim.checkers.stream_copy_checkers import StreamCopiesAgree
from rhizome.testing.sim.checkers.stream_history import StreamHistories
from rhizome.testing.sim.events import application_events
from rhizome.testing.sim.events import stream_events as told
from rhizome.testing.sim.faults.fault_schedule import Fault
from rhizome.testing.sim.faults.messages_scenario_faults import MessageAmbushes
from rhizome.testing.sim.world.sim_host import Host

APPENDERS: Final = (1, 2)
READERS: Final = (1, 3)
"""Of each stream."""
CHUNKED_CHANCE: Final = 0.2

MOMENTS: Final = ("append", "kept", "shown")

MakeApp = Callable[[Host, str, Workload], AppProgram]


def stream_checkers(plans: dict[str, StreamPlan]) -> list[Checker]:
    """The stream histories, and all checkers of streams."""
    book = StreamHistories(plans)
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
    """The applications: a1, ... append, x1 does so in transactions, and r1, ... read; each stream
    has at least one reader. o1 has streams of its own."""
    found: dict[str, MakeApp] = {}
    for number in range(1, 1 + chance.randint(*APPENDERS)):
        found[f"a{number}"] = Appender
    found["x1"] = TransactionalAppender
    found["o1"] = StreamChurner
    for plan in plans.values():
        for _ in range(chance.randint(*READERS)):
            chunked = chance.random() < CHUNKED_CHANCE
            kind = ChunkConsumer if chunked else StreamConsumer
            found[f"r{len(found)}"] = _follower(kind, plan.name)
    return found


def _follower(kind: type[StreamConsumer], stream: str) -> MakeApp:
    return lambda host, name, workload: kind(host, name, workload, stream)


class StreamAmbushes:
    """Ambushes that strike the home of a stream when something was sent to it, and its home, a copy
    or an edge when that is confirmed, or shown for the first time."""

    def __init__(self, watch: Watch, history: History, ambushes: MessageAmbushes) -> None:
        self._history = history
        self._ambushes = ambushes
        self._streams: dict[str, str] = {}
        self._ends: dict[str, int] = {}
        self._booked: dict[int, tuple[dict[str, None], str]] = {}
        watch.listen(told.Appended, self._appended)
        watch.listen(told.AppendConfirmed, self._confirmed)
        watch.listen(told.Shown, self._shown)
        watch.listen(application_events.TransactionEnds, self._transaction)

    def kinds(self) -> dict[str, Fault]:
        """The faults that set an ambush."""
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

    def _transaction(self, seen: application_events.TransactionEnds) -> None:
        """Between here and its answer it is in doubt."""
        streams, broker = self._booked.pop(seen.transaction, ({}, ""))
        homes = self._ambushes.homes(list(streams))
        if homes:
            self._ambushes.spring("transaction", [*homes, broker])

    def _holders(self, stream: str) -> list[str]:
        homes = self._ambushes.homes([stream])
        members = self._history.members.get(self._history.groups.get(stream, -1), [])
        return [*homes, *[each.partition(":")[0] for each in members[-1][1].split()]]
