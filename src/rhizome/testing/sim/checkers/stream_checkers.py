"""Checkers of streams: offsets, confirms, order, progress (L1, L2, L3, G2, G6, A1)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from rhizome.testing.sim.apps.app_program import TRAFFIC_AFTER_US, body_of, id_of
from rhizome.testing.sim.brokers.stream_contents import StreamContents, shown_from
from rhizome.testing.sim.checkers.checker import Checker
from rhizome.testing.sim.checkers.delivery_checkers import ANSWER_US
from rhizome.testing.sim.checkers.stream_history import (
    CONFIRMED,
    Append,
    AppendTransaction,
    StreamHistories,
    StreamHistory,
    Subscription,
)
from rhizome.testing.sim.events import application_events
from rhizome.testing.sim.events import stream_events as told
from rhizome.testing.sim.events.broker_events import Recovered
from rhizome.testing.sim.world.event_scheduler import shown_time


class StreamChecker(Checker):
    """Base of the checkers of streams: the stream histories.

    With a flush policy that doesn't wait, a power cut may take the end of a stream, and its offsets
    are given again. From the first one on only what holds at any instant is checked
    (`holds_after_loss`).
    """

    holds_after_loss = False

    def __init__(self, book: StreamHistories) -> None:
        super().__init__()
        self.book = book

    def fail(self, text: str) -> None:
        if self.holds_after_loss or not self.book.may_have_lost():
            super().fail(text)

    @property
    def now_us(self) -> int:
        return self.watch.world.now_us


class OneMessagePerOffset(StreamChecker):
    """An offset has one message, at every broker and for ever: what an application was shown, and
    what a home has committed, whether it is read or not (L1, L2). And it is what was sent there,
    byte for byte.

    Nothing excuses that.
    """

    def __init__(self, book: StreamHistories) -> None:
        super().__init__(book)
        self._looked: dict[tuple[str, str, str, int], int] = {}

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {told.Shown: self._shown}

    def _shown(self, seen: told.Shown) -> None:
        stream = self.book.streams[seen.stream]
        stream.shown_end = max(stream.shown_end, seen.offset + 1)
        who = f"{seen.application} is shown"
        self._compare(seen.stream, seen.offset, seen.message, bool(seen.intact), who)

    def glance(self) -> None:
        for holding in self.book.holdings():
            if holding.shows:
                self._look_into(holding)

    def final(self) -> None:
        self.glance()

    def _look_into(self, holding: StreamContents) -> None:
        """Compare everything that a home has committed, once."""
        key = (holding.broker, holding.incarnation, holding.stream, holding.epoch)
        who = f"the home {holding.broker} has committed"
        after = max(self._looked.get(key, 0), int(holding.log.first))
        for offset, body in shown_from(holding.log, after):
            if offset != after:
                self.fail(f"{who} offset {offset} of {holding.stream} after {after - 1}")
            message = id_of(body)
            self._compare(holding.stream, offset, message, body == body_of(message, len(body)), who)
            after = offset + 1
        if after != holding.log.committed:
            self.fail(
                f"{who} {holding.stream} up to {int(holding.log.committed) - 1}, and has it up to "
                f"{after - 1}"
            )
        self._looked[key] = after

    def _compare(self, stream: str, offset: int, message: str, intact: bool, who: str) -> None:
        history = self.book.streams[stream]
        append = self.book.appends.get(message)
        where = f"{who} {message} at offset {offset} of {stream}"
        if append is None or append.stream != stream or not intact:
            self.fail(f"{where}, which nobody sent there so. {self.book.story(message)}")
            return
        known = history.messages.setdefault(offset, message)
        if known != message:
            self.fail(f"{where}, where {known} was before. {self.book.story(known)}")
        if append.offset < 0:
            append.offset = offset


class ShownIsCommitted(StreamChecker):
    """What an application is shown is committed at a home (L1): at the newest one, or at an earlier
    one that does not know of it yet. The newest has committed all that earlier ones had.

    A home that is gone counts with what it had committed: what it sent may arrive after its end.
    While the newest home has not been seen to show anything, nothing can be checked, because an
    earlier one that is paused or cut off lacks what was appended since.
    """

    def __init__(self, book: StreamHistories) -> None:
        super().__init__(book)
        self._newest: dict[str, StreamContents] = {}
        """The newest home of each stream that was seen to show something, even if it is gone."""

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {told.Shown: self._shown}

    def glance(self) -> None:
        self._look()

    def _look(self) -> list[StreamContents]:
        """The homes that show something; the newest of each stream is remembered."""
        homes = [each for each in self.book.holdings() if each.shows]
        for home in homes:
            known = self._newest.get(home.stream)
            if known is None or home.epoch >= known.epoch:
                self._newest[home.stream] = home
        return homes

    def _shown(self, seen: told.Shown) -> None:
        homes = [each for each in self._look() if each.stream == seen.stream]
        newest = self._newest.get(seen.stream)
        if newest is None or newest.epoch < self.book.newest_epoch(seen.stream):
            return
        if newest not in homes:
            homes.append(newest)
        if all(each.log.committed <= seen.offset for each in homes):
            ends = ", ".join(f"{each.broker} up to {int(each.log.committed) - 1}" for each in homes)
            self.fail(
                f"{seen.application} is shown {seen.message} at offset {seen.offset} of "
                f"{seen.stream}, which is committed at {ends}. {self.book.story(seen.message)}"
            )


class AppendedOnce(StreamChecker):
    """What an application has sent once is in its stream once, whatever happens to edges, links and
    homes: a number and its message are one entry (A1).

    Nothing excuses that.
    """

    def __init__(self, book: StreamHistories) -> None:
        super().__init__(book)
        self._seen: dict[str, int] = {}
        self._offsets: dict[str, int] = {}

    def glance(self) -> None:
        for name, history in self.book.streams.items():
            for offset, message in list(history.messages.items())[self._seen.get(name, 0) :]:
                if self._offsets.setdefault(message, offset) != offset:
                    self.fail(
                        f"{message} is at offset {self._offsets[message]} of {name}, and at "
                        f"{offset}. {self.book.story(message)}"
                    )
            self._seen[name] = len(history.messages)

    def final(self) -> None:
        self.glance()


class DuplicateAppendsAreDropped(StreamChecker):
    """A stream with x-dedup has one message of each id (L5). Nothing excuses a second one."""

    def glance(self) -> None:
        for (name, message_id), appends in self.book.same.items():
            there = [each.id for each in appends if each.offset >= 0]
            if len(there) > 1:
                stories = ". ".join(self.book.story(each) for each in there)
                self.fail(f"{name} has {len(there)} messages {message_id}: {stories}")

    def final(self) -> None:
        self.glance()


class NoConfirmedAppendLost(StreamChecker):
    """What was confirmed is in its stream at the end, at the offset at which it was ever seen, and
    so is everything that an application was shown (G1-G7, L2).

    Of messages that are the same (L5) one counts for all. Only retention is an excuse: it takes
    what is before the first offset. It also excuses a message that was never seen, if nothing that
    was sent on the same channel before it is still there (L3).
    """

    def final(self) -> None:
        homes = [each for each in self.book.holdings() if each.shows]
        for name, history in self.book.streams.items():
            if history.is_gone:
                continue
            mine = [each for each in homes if each.stream == name]
            if not mine and not self._may_be_missing(name, history):
                self.fail(f"nobody shows {name} at the end")
            for home in mine:
                self._check(home)

    def _may_be_missing(self, name: str, history: StreamHistory) -> bool:
        """Whether a stream may never have been declared: nothing sent to it was confirmed."""
        appends = [each for each in self.book.appends.values() if each.stream == name]
        return history.plan.is_passing and all(each.outcome != CONFIRMED for each in appends)

    def _check(self, home: StreamContents) -> None:
        log, name = home.log, home.stream
        history = self.book.streams[name]
        there = {id_of(body): offset for offset, body in shown_from(log, 0)}
        first = int(log.first) if history.plan.retained_bytes else 0
        for offset, message in history.messages.items():
            if offset >= first and there.get(message) != offset:
                self.fail(f"{home.broker} has {name} without {message}. {self.book.story(message)}")
        for append in self.book.appends.values():
            same = self.book.same.get((name, append.message_id), [append])
            if append.outcome != CONFIRMED or append.stream != name:
                continue
            if any(each.id in there for each in same):
                continue
            if first == 0 or not self._may_be_retired(append, first):
                self.fail(
                    f"{append.id} was confirmed, and is nowhere: {name} at {home.broker} has the "
                    f"offsets from {log.first} up to {int(log.committed) - 1}. "
                    f"{self.book.story(append.id)}"
                )

    def _may_be_retired(self, append: Append, first: int) -> bool:
        if append.offset >= 0:
            return append.offset < first
        before = self.book.ways[append.way()][: append.order]
        return all(each.offset < first for each in before)


class EachOffsetOnceAndInOrder(StreamChecker):
    """A subscription begins where it was asked to and continues offset by offset, whatever happens
    to the home meanwhile: no gap, nothing twice. With `next` it begins after all that any
    application had been shown before it was requested. For a named reader NamedReadersGoOn says
    where.

    A gap is excused by retention: it ends with the first offset that is left. With `next`, older
    messages are excused if the broker had no lease: it may not know yet what others were shown, and
    begins with what it knows rather than miss something.
    """

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {told.Shown: self._shown}

    def _shown(self, seen: told.Shown) -> None:
        subscription = self.book.subscriptions[seen.session, seen.channel, seen.consumer]
        offset = seen.offset
        if subscription.last >= 0:
            wanted = subscription.last + 1
            right = offset == wanted or (offset > wanted and self._is_retired(seen))
            after = f"after {subscription.last}"
        else:
            subscription.begun = offset
            right = bool(subscription.name) or self._begins_well(subscription, seen)
            after = f"first, and asked for {subscription.start}"
        subscription.last = offset
        if not right:
            self.fail(
                f"{seen.application}, subscribed at {shown_time(subscription.at_us)}, is shown "
                f"offset {offset} of {seen.stream} {after}; others had been shown all below "
                f"{subscription.shown_before}"
            )

    def _begins_well(self, subscription: Subscription, seen: told.Shown) -> bool:
        if subscription.start == told.NEXT:
            return seen.offset >= subscription.shown_before or not subscription.has_lease
        wanted = 0 if subscription.start == told.FIRST else int(subscription.start)
        return seen.offset == wanted or (seen.offset > wanted and self._is_retired(seen))

    def _is_retired(self, seen: told.Shown) -> bool:
        """Whether everything before an offset may be gone."""
        if not self.book.streams[seen.stream].plan.retained_bytes:
            return False
        firsts = [each.log.first for each in self.book.holdings() if each.stream == seen.stream]
        return max(firsts, default=0) >= seen.offset


class OrderPerAppender(StreamChecker):
    """What was sent to a stream on one channel has offsets in that order (L3).

    Nothing excuses that: homes accept publishes by number, and readers remove nothing.
    """

    def __init__(self, book: StreamHistories) -> None:
        super().__init__(book)
        self._checked: dict[tuple[int, int, str], int] = {}

    def glance(self) -> None:
        for way, appends in self.book.ways.items():
            there = [each for each in appends if each.offset >= 0]
            if len(there) == self._checked.get(way, 0):
                continue
            self._checked[way] = len(there)
            for one, other in pairwise(there):
                if one.offset >= other.offset:
                    self.fail(
                        f"{other.id} was sent after {one.id}. {self.book.story(one.id)}. "
                        f"{self.book.story(other.id)}"
                    )

    def final(self) -> None:
        self.glance()


class StreamTransactionsWhole(StreamChecker):
    """Nothing of a transaction is in a stream before its commit was sent, or after it was rolled
    back. Its part for a stream whose home is the broker of its client is one chunk: all of it or
    nothing, with nothing in between (L4).

    Streams at other homes get their part as publishes, which may be there in part if the commit was
    not answered. If it was, NoConfirmedAppendLost checks that all of them are there.
    """

    def __init__(self, book: StreamHistories) -> None:
        super().__init__(book)
        self._chunks: list[tuple[AppendTransaction, list[Append]]] = []

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {application_events.TransactionEnds: self._ends}

    def _ends(self, seen: application_events.TransactionEnds) -> None:
        booking = self.book.append_transactions.get(seen.transaction)
        if booking is None or seen.verdict != application_events.COMMIT:
            return
        here = [
            each.stream
            for each in self.book.holdings()
            if each.shows and each.broker == booking.broker
        ]
        for stream in here:
            appends = [each for each in booking.appends if each.stream == stream]
            if len(appends) > 1:
                self._chunks.append((booking, appends))

    def glance(self) -> None:
        for booking in self.book.append_transactions.values():
            if booking.asked != application_events.COMMIT:
                for append in booking.appends:
                    if append.offset >= 0:
                        self.fail(
                            f"{append.id} is of transaction {booking.number}, which was "
                            f"{'rolled back' if booking.asked else 'not committed'}. "
                            f"{self.book.story(append.id)}"
                        )

    def final(self) -> None:
        self.glance()
        for booking, appends in self._chunks:
            offsets = [each.offset for each in appends]
            whole = list(range(offsets[0], offsets[0] + len(offsets)))
            if offsets != whole and any(each >= 0 for each in offsets):
                self.fail(
                    f"transaction {booking.number} of {appends[0].application}, committed at "
                    f"{booking.broker} at {shown_time(booking.asked_us)}, is in "
                    f"{appends[0].stream} at the offsets {offsets}"
                )


class NamedReadersGoOn(StreamChecker):
    """A named reader continues at or before the first offset that it has not acked, so that it
    misses nothing. The position that a stream keeps for a name does not go back: a reader never
    begins before the offset at which it began the last time at the same home, nor, at any home,
    before a position that was committed.

    A position is in use before it is committed. What a home could not bring to its copies before it
    died is lost, and the messages since come again. Excused by retention, as for others.
    """

    def __init__(self, book: StreamHistories) -> None:
        super().__init__(book)
        self._acked: dict[str, dict[int, None]] = {}
        self._floor: dict[str, int] = {}
        self._begun: dict[str, tuple[int, int]] = {}
        """Where a name began the last time, and in which epoch; -1 if that is not certain."""
        self._committed: dict[str, int] = {}
        """The committed position of each name: the offset after the last one acked."""

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {told.Shown: self._shown, told.DoneWith: self._done_with}

    def glance(self) -> None:
        for holding in self.book.holdings():
            if holding.shows and holding.is_all_committed():
                for name, offset in holding.log.offsets.items():
                    known = self._committed.get(name.decode(), 0)
                    self._committed[name.decode()] = max(known, int(offset) + 1)

    def _done_with(self, seen: told.DoneWith) -> None:
        name = self.book.subscriptions[seen.session, seen.channel, seen.consumer].name
        if name:
            self._acked.setdefault(name, {})[seen.offset] = None

    def _shown(self, seen: told.Shown) -> None:
        subscription = self.book.subscriptions[seen.session, seen.channel, seen.consumer]
        name = subscription.name
        if not name or subscription.begun != seen.offset:
            return
        floor = self._floor.setdefault(name, seen.offset)
        acked = self._acked.get(name, {})
        while acked.pop(floor, 0) is None:
            floor += 1
        self._floor[name] = floor
        retained = self.book.streams[seen.stream].plan.retained_bytes
        if seen.offset > floor and not retained:
            self.fail(f"{name} begins with offset {seen.offset}, and has not acked {floor}")
        newest = self.book.newest_epoch(seen.stream)
        epoch = newest if subscription.epoch == newest else -1
        begun, begun_in = self._begun.get(name, (0, -1))
        if seen.offset < begun and epoch == begun_in >= 0:
            self.fail(f"{name} begins with offset {seen.offset}, and began with {begun} before")
        if seen.offset < self._committed.get(name, 0):
            self.fail(
                f"{name} begins with offset {seen.offset}, and a home had committed that it has "
                f"acked all below {self._committed[name]}"
            )
        self._begun[name] = (seen.offset, epoch)


class RetentionTakesTheFrontOnly(StreamChecker):
    """Retention drops whole segments, the oldest first, and only while there is more than the limit
    allows: what a home has, with the segment that was dropped last, is above the limit.
    OneMessagePerOffset checks that what is left has no holes.
    """

    def __init__(self, book: StreamHistories) -> None:
        super().__init__(book)
        self._sizes: dict[tuple[str, int], int] = {}
        """Sizes of segments that were complete when a broker was seen to have them."""

    def glance(self) -> None:
        for holding in self.book.holdings():
            for segment in holding.log.segments[:-1]:
                self._sizes[holding.stream, int(segment.number)] = int(segment.size)
            if holding.shows and holding.log.first > 0:
                self._check(holding)

    def _check(self, holding: StreamContents) -> None:
        limit = self.book.streams[holding.stream].plan.retained_bytes
        log = holding.log
        dropped = self._sizes.get((holding.stream, int(log.segments[0].number) - 1), limit)
        if not limit or log.size + dropped <= limit:
            self.fail(
                f"{holding.broker} has dropped what was before offset {log.first} of "
                f"{holding.stream}, at last {dropped} bytes, and has {log.size} left of {limit}"
            )


class NoReaderStuck(StreamChecker):
    """After the faults every append is answered, and every reader has been shown all there is.

    A reader waits for its next offset: if power cuts took the end of the stream, that comes later.
    """

    holds_after_loss = True

    def __init__(self, book: StreamHistories) -> None:
        super().__init__(book)
        self._recovered_us = -1

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {Recovered: self._recovered}

    def _recovered(self, _: Recovered) -> None:
        self._recovered_us = self.now_us

    def is_done(self) -> bool:
        if self._recovered_us < 0 or self.now_us < self._recovered_us + TRAFFIC_AFTER_US:
            return False
        return not self._unanswered(0) and not self._behind()

    def final(self) -> None:
        if not self.book.appends or not self.book.subscriptions:
            self.fail("nobody has used a stream")
        for text in [*self._unanswered(ANSWER_US), *self._behind()]:
            self.fail(text)

    def _unanswered(self, patience_us: int) -> list[str]:
        book = self.book
        return [
            f"{each.id} was never answered. {book.story(each.id)}"
            for each in book.appends.values()
            if not each.outcome
            and self._is_asked(each)
            and each.session not in book.sessions_over
            and (each.session, each.channel) not in book.channels_over
            and each.at_us <= self.now_us - patience_us
        ]

    def _is_asked(self, append: Append) -> bool:
        """Whether there must be an answer: in a transaction, once its end was requested."""
        return not append.transaction or bool(
            self.book.append_transactions[append.transaction].asked
        )

    def _behind(self) -> list[str]:
        if self.book.may_have_lost():
            return []
        ends = {each.stream: int(each.log.committed) for each in self.book.holdings() if each.shows}
        found = []
        for reader, subscription in self.book.latest.items():
            end = ends.get(subscription.stream, -1)
            history = self.book.streams[subscription.stream]
            if history.is_gone or (history.plan.is_passing and subscription.is_over):
                continue
            if subscription.is_over:
                found.append(f"{reader} is not subscribed to {subscription.stream}")
            elif self._lags(subscription, end):
                found.append(
                    f"{reader} was shown {subscription.stream} up to {subscription.last}, and it "
                    f"ends with {end - 1}"
                )
        return found

    def _lags(self, subscription: Subscription, end: int) -> bool:
        """A reader that asked for new messages only, or is done with all earlier ones, may have
        been shown nothing."""
        if subscription.last < 0:
            return (
                not subscription.name
                and subscription.start.isdecimal()
                and (int(subscription.start) < end)
            )
        return subscription.last != end - 1
