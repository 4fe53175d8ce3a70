"""The history of streams in a run: what was appended, at which offset, and who was shown it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast

from rhizome.testing.sim.apps.app_topology import StreamPlan
from rhizome.testing.sim.brokers.stream_contents import StreamContents
from rhizome.testing.sim.checkers.checker import Checker
from rhizome.testing.sim.checkers.fault_timeline import lease
from rhizome.testing.sim.events import application_events
from rhizome.testing.sim.events import stream_events as told
from rhizome.testing.sim.world.event_scheduler import shown_time

NEVER_US: Final = -1
UNKNOWN: Final = ""
CONFIRMED: Final = "confirmed"
REFUSED: Final = "refused"


@dataclass(slots=True)
class Append:
    """One publish to a stream. `order` counts those of its channel; `offset` is where it was first
    seen, -1 if nowhere."""

    id: str
    application: str
    session: int
    channel: int
    stream: str
    order: int
    at_us: int
    transaction: int = 0
    message_id: str = ""
    outcome: str = UNKNOWN
    outcome_us: int = NEVER_US
    offset: int = -1

    def way(self) -> tuple[int, int, str]:
        """Its session, channel and stream: what has the same stays in order."""
        return self.session, self.channel, self.stream


@dataclass(slots=True)
class AppendTransaction:
    """A transaction at a broker; `asked` is what was sent."""

    number: int
    broker: str
    appends: list[Append] = field(default_factory=list)
    asked: str = ""
    asked_us: int = NEVER_US


@dataclass(slots=True)
class Subscription:
    """`shown_before`: the offset after the last one that any application had been shown when it was
    requested, `has_lease` whether its broker had a lease then, `epoch` the newest one of the stream
    that was known then. `last` is the last offset that it
    has been shown, -1 if none, `begun` the first."""

    application: str
    session: int
    channel: int
    consumer: str
    stream: str
    start: str
    name: str
    shown_before: int
    at_us: int
    has_lease: bool = True
    epoch: int = 0
    begun: int = -1
    last: int = -1
    is_over: bool = False


@dataclass(slots=True)
class StreamHistory:
    """`messages` is the message at each offset, as it was first seen; `shown_end` the offset after
    the last one that an application was shown. `is_gone`: it may be deleted."""

    plan: StreamPlan
    messages: dict[int, str] = field(default_factory=dict)
    shown_end: int = 0
    is_gone: bool = False


class StreamHolder(Protocol):
    """A broker that tells what it has of streams."""

    def streams(self) -> list[StreamContents]: ...


class StreamHistories(Checker):
    """Keeps what applications report of streams; it never raises a violation."""

    def __init__(self, plans: dict[str, StreamPlan]) -> None:
        super().__init__()
        self.streams = {name: StreamHistory(plan) for name, plan in plans.items()}
        self.appends: dict[str, Append] = {}
        self.ways: dict[tuple[int, int, str], list[Append]] = {}
        self.same: dict[tuple[str, str], list[Append]] = {}
        """Appends that a stream accepts once, by stream and message id."""
        self.append_transactions: dict[int, AppendTransaction] = {}
        self.subscriptions: dict[tuple[int, int, str], Subscription] = {}
        self.latest: dict[str, Subscription] = {}
        """Of each application."""
        self.cuts: list[list[int]] = []
        """When the power of each broker was cut, if a power cut may take what was confirmed."""
        self._disturbances: dict[str, str] = {}
        self.brokers: dict[int, str] = {}
        """Of each session."""
        self.sessions_over: dict[int, None] = {}
        self.channels_over: dict[tuple[int, int], None] = {}
        self._groups: dict[str, int] = {}
        self._epochs: dict[int, int] = {}
        """The newest epoch of each group that any broker knew of."""

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {
            told.StreamMade: self._made,
            told.StreamDeleted: self._deleted,
            told.Appended: self._appended,
            told.AppendConfirmed: self._confirmed,
            told.AppendRefused: self._refused,
            told.Subscribed: self._subscribed,
            told.Unsubscribed: self._unsubscribed,
            application_events.TransactionEnds: self._ends,
            application_events.TransactionEnded: self._ended,
            application_events.Disturbed: self._disturbed,
            application_events.Undisturbed: self._undisturbed,
            application_events.SessionOpened: self._session_opened,
            application_events.SessionOver: self._session_over,
            application_events.ChannelGone: self._channel_gone,
            application_events.GroupAt: self._group,
            application_events.QueueIn: self._queue,
        }

    def may_have_lost(self) -> bool:
        """Whether a power cut may have taken the end of a stream."""
        return any(self.cuts)

    @property
    def now_us(self) -> int:
        return self.watch.world.now_us

    def newest_epoch(self, stream: str) -> int:
        """The newest epoch of a stream that any broker knew of; 0 if none did."""
        return self._epochs.get(self._groups.get(stream, 0), 0)

    def holdings(self) -> Iterator[StreamContents]:
        """What brokers that are up have of streams."""
        for broker in self.watch.brokers.values():
            yield from cast(StreamHolder, broker).streams()

    def _made(self, seen: told.StreamMade) -> None:
        plan = StreamPlan(seen.stream, is_passing=True)
        self.streams[seen.stream] = StreamHistory(plan)

    def _deleted(self, seen: told.StreamDeleted) -> None:
        self.streams[seen.stream].is_gone = True

    def _group(self, seen: application_events.GroupAt) -> None:
        self._epochs[seen.group] = max(seen.epoch, self._epochs.get(seen.group, 0))

    def _queue(self, seen: application_events.QueueIn) -> None:
        self._groups[seen.queue] = seen.group

    # --- appending

    def _appended(self, seen: told.Appended) -> None:
        way = self.ways.setdefault((seen.session, seen.channel, seen.stream), [])
        append = Append(
            seen.message,
            seen.application,
            seen.session,
            seen.channel,
            seen.stream,
            len(way),
            self.now_us,
            seen.transaction,
            seen.message_id,
        )
        if seen.message_id and self.streams[seen.stream].plan.dedup:
            self.same.setdefault((seen.stream, seen.message_id), []).append(append)
        if seen.transaction:
            broker = self.brokers.get(seen.session, "")
            booking = AppendTransaction(seen.transaction, broker)
            self.append_transactions.setdefault(seen.transaction, booking).appends.append(append)
        way.append(append)
        self.appends[seen.message] = append

    def _confirmed(self, seen: told.AppendConfirmed) -> None:
        self._answered(seen.message, CONFIRMED)

    def _refused(self, seen: told.AppendRefused) -> None:
        self._answered(seen.message, REFUSED)

    def _answered(self, message: str, outcome: str) -> None:
        append = self.appends[message]
        append.outcome, append.outcome_us = outcome, self.now_us

    def _ends(self, seen: application_events.TransactionEnds) -> None:
        booking = self.append_transactions.get(seen.transaction)
        if booking is not None:
            booking.asked, booking.asked_us = seen.verdict, self.now_us

    def _ended(self, seen: application_events.TransactionEnded) -> None:
        booking = self.append_transactions.get(seen.transaction)
        if booking is not None:
            outcome = CONFIRMED if seen.verdict == application_events.COMMIT else REFUSED
            for append in booking.appends:
                self._answered(append.id, outcome)

    # --- reading

    def _subscribed(self, seen: told.Subscribed) -> None:
        subscription = Subscription(
            seen.application,
            seen.session,
            seen.channel,
            seen.consumer,
            seen.stream,
            seen.start,
            seen.name,
            self.streams[seen.stream].shown_end,
            self.now_us,
            self._has_lease(self.brokers.get(seen.session, "")),
            self.newest_epoch(seen.stream),
        )
        self.subscriptions[seen.session, seen.channel, seen.consumer] = subscription
        self.latest[seen.application] = subscription

    def _unsubscribed(self, seen: told.Unsubscribed) -> None:
        self.subscriptions[seen.session, seen.channel, seen.consumer].is_over = True

    def _disturbed(self, seen: application_events.Disturbed) -> None:
        self._disturbances[seen.key] = seen.places

    def _undisturbed(self, seen: application_events.Undisturbed) -> None:
        self._disturbances.pop(seen.key, None)

    def _has_lease(self, broker: str) -> bool:
        return all(lease(broker) not in each.split() for each in self._disturbances.values())

    def _session_opened(self, seen: application_events.SessionOpened) -> None:
        self.brokers[seen.session] = seen.broker

    def _session_over(self, seen: application_events.SessionOver) -> None:
        self.sessions_over[seen.session] = None
        latest = self.latest.get(seen.application)
        if latest is not None and latest.session == seen.session:
            latest.is_over = True

    def _channel_gone(self, seen: application_events.ChannelGone) -> None:
        self.channels_over[seen.session, seen.channel] = None

    def story(self, message: str) -> str:
        """What is known of an append, in one line."""
        append = self.appends.get(message)
        if append is None:
            return f"{message} was appended by nobody"
        text = (
            f"{message} was sent to {append.stream} by {append.application} at "
            f"{shown_time(append.at_us)}"
        )
        if append.outcome:
            text += f", {append.outcome} at {shown_time(append.outcome_us)}"
        return text + (f", offset {append.offset}" if append.offset >= 0 else ", never seen")
