"""Forwarding: what an edge publishes for its applications, kept until it is safe elsewhere.

A way leads to a group, wherever its home is, or to the private queues of one broker. What is sent
on it is numbered; the other end takes each number once and confirms cumulatively.

- `GroupWay`: numbers count per incarnation of this broker and group, whoever the home is. A publish
  is forgotten when it is committed, not when a home has it, and is sent again at each attach, from
  the number after the last that the home has taken (A1).
- `PrivateWay`: nothing is ever sent again, and what a broken link may have lost is lost: at most
  once, in order (A3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from rhizome.broker.message import Message, Route
from rhizome.broker.port import Forward
from rhizome.broker.publishing import send_return
from rhizome.broker.targets import Bundle, Target
from rhizome.cluster.attachrules import AttachRules
from rhizome.cluster.track import Track
from rhizome.cluster.wire import FENCE, put_bundle, put_number, put_publish

if TYPE_CHECKING:
    from rhizome.broker.channel import Channel
    from rhizome.broker.connection import Connection
    from rhizome.broker.queue import Queue

PENDING_BYTES_MAX: Final = 8 << 20
"""Above this much on its way, publishers wait."""

MESSAGE_OVERHEAD_BYTES: Final = 256


class Way(Forward):
    """Invariant: ``messages[i]`` has the number ``first + i``; it is None if nobody waits for it
    any more. ``track`` is set while what is sent can be written at once.
    """

    track: Track | None
    lasting: bool
    first: i64
    messages: list[Message | None]
    targets: list[Target]
    channels: list[Channel | None]
    tags: list[int]
    pending_bytes: i64
    paused: list[Connection]
    reason: str

    def __init__(self, broker_name: str, group: i64) -> None:
        super().__init__(broker_name, group)
        self.track = None
        self.lasting = group != 0
        self.first = 1
        self.messages = []
        self.targets = []
        self.channels = []
        self.tags = []
        self.pending_bytes = 0
        self.paused = []
        self.reason = ""

    def send(self, message: Message, target: Target, channel: Channel | None, tag: i64) -> i64:
        number = self.sent + 1
        self.sent = number
        track = self.track
        if track is None and not self.lasting:
            # Private queues end with their broker: nothing to keep the message for.
            self.first = number + 1
            self.confirmed = number
        else:
            self.keep(message, target, channel, tag)
        if target.bundle is not None:
            if target.bundle.targets[-1] is target:
                write_bundle(target.bundle, message)
        elif track is not None:
            write(track, message, target, number)
        return number

    def keep(self, message: Message, target: Target, channel: Channel | None, tag: i64) -> None:
        self.messages.append(message)
        self.targets.append(target)
        self.channels.append(channel)
        self.tags.append(tag)
        self.pending_bytes += len(message.content) + MESSAGE_OVERHEAD_BYTES
        if self.pending_bytes > PENDING_BYTES_MAX:
            self.congested = True

    # ---- answers --------------------------------------------------------------------------------

    def confirm(self, number: i64) -> None:
        """Everything up to ``number`` is safe at the other end."""
        done = number - self.first + 1
        if done > len(self.messages):
            done = len(self.messages)
        if done <= 0:
            return
        at: i64 = 0
        while at < done:
            message = self.messages[at]
            if message is not None:
                self.pending_bytes -= len(message.content) + MESSAGE_OVERHEAD_BYTES
            at += 1
        self.forget(done)

    def forget(self, count: i64) -> None:
        """Nobody waits for the first ``count`` any more."""
        del self.messages[:count]
        del self.targets[:count]
        del self.channels[:count]
        del self.tags[:count]
        self.first += count
        self.confirmed = self.first - 1
        if self.congested and self.pending_bytes < PENDING_BYTES_MAX // 2:
            self.congested = False
            self._unpause()

    def refuse(self, number: i64) -> None:
        """A queue at the other end refused a message; its confirm follows."""
        at = number - self.first
        if at < 0 or at >= len(self.messages):
            return
        channel = self.channels[at]
        tag: i64 = self.tags[at]
        message = self.messages[at]
        if message is not None:
            # Whoever is home next must not take what the publisher was told is refused.
            self.messages[at] = None
            self.pending_bytes -= len(message.content) + MESSAGE_OVERHEAD_BYTES
        if channel is None or tag == 0 or channel.closing or tag in channel.nacked:
            return
        channel.nack(tag)

    def unrouted(self, number: i64) -> None:
        """Nobody took a mandatory message."""
        at = number - self.first
        if at < 0 or at >= len(self.messages):
            return
        channel = self.channels[at]
        message = self.messages[at]
        if channel is not None and message is not None and not channel.closing:
            send_return(channel, message)

    # ---- publishers that wait -------------------------------------------------------------------

    def pause(self, connection: Connection) -> None:
        if not connection.paused:
            connection.pause()
            self.paused.append(connection)
            if self.reason:
                connection.set_blocked(self.reason)

    def explain(self, reason: str) -> None:
        """Tell the publishers that wait here why they do ("": they wait for nothing unusual)."""
        if reason == self.reason:
            return
        self.reason = reason
        for connection in self.paused:
            connection.set_blocked(reason)

    def _unpause(self) -> None:
        paused = self.paused
        self.paused = []
        for connection in paused:
            if self.reason:
                connection.set_blocked("")
            connection.unpause()


@final
class PrivateWay(Way):
    """The way to the private queues of one broker."""

    def __init__(self, broker_name: str) -> None:
        super().__init__(broker_name, 0)

    def connect(self, track: Track) -> None:
        self.track = track

    def disconnect(self) -> None:
        """The link is gone, and what was under way with it. What had to be relayed was meant for
        brokers that are still there: its publisher is told that it may not have arrived."""
        self.track = None
        at: i64 = 0
        while at < len(self.messages):
            if self.targets[at].relay:
                self.refuse(self.first + at)
            at += 1
        self.confirm(self.sent)


@final
class GroupWay(Way):
    """The way to the queues of one group.

    ``orphans`` are messages, by number, that were published here when this broker was home, last in
    epoch ``orphaned``, with their indexes in its log: a home whose log has them needs only their
    numbers (`broker/unsure.py`).
    """

    rules: AttachRules
    nothing: Message
    nowhere: Target
    orphans: dict[int, int]
    orphaned: i64

    def __init__(self, group: i64, rules: AttachRules) -> None:
        super().__init__("", group)
        self.rules = rules
        self.orphans = {}
        self.orphaned = 0
        self.nothing = Message(Route("", "", b"\0\0"), b"", 0, 0)
        self.nowhere = Target(self, "", [])

    def attached(self, track: Track, last: i64, start: i64) -> None:
        """The home has taken everything up to ``last``: send it the rest. Its log has what it got
        from this broker below index ``start``."""
        self.track = track
        if not self.rules.kept_until_committed:
            self.confirm(last)
        at = last + 1 - self.first
        if at < 0:
            at = 0
        while at < len(self.messages):
            message = self.messages[at]
            number = self.first + at
            if message is None or message is self.nothing or self.is_known(number, start):
                put_number(track.outbox, FENCE, self.group, number)
            else:
                write(track, message, self.targets[at], number)
            at += 1
        track.link.touch()

    def adopt(self, message: Message, target: Target, index: i64, epoch: i64) -> i64:
        """Send what was published here while this broker was home, unless the home has it."""
        number = self.send(message, target, None, 0)
        self.orphans[number] = index
        self.orphaned = epoch
        return number

    def belongs_to(self, number: i64, channel: Channel, tag: i64) -> None:
        """A channel waits for the confirm of something that is under way."""
        at = number - self.first
        if 0 <= at < len(self.messages):
            self.channels[at] = channel
            self.tags[at] = tag

    def is_known(self, number: i64, start: i64) -> bool:
        """Whether a home has this message since this broker was home."""
        if len(self.orphans) == 0:
            return False
        return 0 < self.orphans.get(number, 0) < start

    def since(self) -> i64:
        """The epoch in which this broker was home last, if that still matters."""
        if len(self.orphans) > 0 and self.confirmed >= max(self.orphans):
            self.orphans = {}
        return self.orphaned if len(self.orphans) > 0 else 0

    def detached(self) -> None:
        """There is no way to the home for now."""
        self.track = None

    def fence(self) -> i64:
        """Send a number that is confirmed once all that was settled before it is safe there."""
        if not self.lasting:
            return self.confirmed
        self.sent += 1
        self.keep(self.nothing, self.nowhere, None, 0)
        track = self.track
        if track is not None:
            put_number(track.outbox, FENCE, self.group, self.sent)
            track.link.touch()
        return self.sent

    def end(self) -> None:
        """The group is gone: what was for it nobody will take."""
        self.lasting = False
        self.confirm(self.sent)

    def doubt(self, last: i64, shared: dict[int, Queue]) -> None:
        """Of what it took up to ``last`` the home has only what was on its disk. The rest may be
        lost, and sent again it may come twice: its publishers are told that it isn't safe."""
        at: i64 = 0
        while at < len(self.messages) and self.first + at <= last:
            message = self.messages[at]
            if message is not None and message is not self.nothing:
                on_disk = message.persistent
                for queue_id in self.targets[at].queue_ids:
                    queue = shared.get(queue_id)
                    on_disk = on_disk and queue is not None and queue.durable
                if not on_disk:
                    self.refuse(self.first + at)
            at += 1

    def drop_deleted(self, shared: dict[int, Queue]) -> None:
        """Without a home: give up what is for queues only that were deleted."""
        at: i64 = 0
        gone = False
        judged: Target | None = None
        while at < len(self.messages):
            target = self.targets[at]
            if target is not judged:
                judged = target
                gone = target is not self.nowhere
                for queue_id in target.queue_ids:
                    if queue_id in shared:
                        gone = False
            message = self.messages[at]
            if gone and message is not None:
                self.messages[at] = None
                self.pending_bytes -= len(message.content) + MESSAGE_OVERHEAD_BYTES
            at += 1
        done: i64 = 0
        while done < len(self.messages) and self.messages[done] is None:
            done += 1
        if done > 0:
            self.forget(done)


def write(track: Track, message: Message, target: Target, number: i64) -> None:
    """Put a message onto the link, for one target."""
    if track.slots[target.slot] is not target:
        track.define(target, message)
    mandatory = target.sole and message.route.mandatory
    put_publish(track.outbox, target.slot, number, message, mandatory, track.by_user)
    track.copies += 1
    if not track.link.marked:
        track.link.touch()


def write_bundle(bundle: Bundle, message: Message) -> None:
    """Put the message that all ways of a bundle were sent last onto the link: once, if they still
    share one.
    """
    shared: Track | None = None
    apart = False
    for target in bundle.targets:
        way = target.forward
        assert isinstance(way, Way)
        if way.track is None or (shared is not None and way.track is not shared):
            apart = True
        shared = way.track
    if shared is None or apart:
        _write_apart(bundle, message)
        return
    if shared.slots[bundle.slot] is not bundle:
        shared.define_bundle(bundle, message)
    put_bundle(shared.outbox, bundle, message, shared.by_user)
    shared.copies += 1
    if not shared.link.marked:
        shared.link.touch()


def _write_apart(bundle: Bundle, message: Message) -> None:
    """A home is new, or has moved: each gets its own copy, or will when it is attached to."""
    for target in bundle.targets:
        way = target.forward
        assert isinstance(way, Way)
        if way.track is not None:
            write(way.track, message, target, way.sent)
