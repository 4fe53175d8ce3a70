"""Forwarding: what an edge publishes to another broker, kept until that broker has it safe.

One way per other broker. Messages are numbered; the other end takes each number once and confirms
cumulatively (A1). When a link comes back everything unconfirmed is sent again, in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from rhizome.broker.message import Message, Route
from rhizome.broker.port import Forward
from rhizome.broker.publishing import send_return
from rhizome.broker.targets import Target
from rhizome.cluster.track import Applied, Track
from rhizome.cluster.wire import FENCE, put_number, put_publish, put_route

if TYPE_CHECKING:
    from rhizome.broker.channel import Channel
    from rhizome.broker.connection import Connection
    from rhizome.broker.queue import Queue

PENDING_BYTES_MAX: Final = 8 << 20
"""Above this much on its way, publishers wait."""

MESSAGE_OVERHEAD_BYTES: Final = 256
SLOTS: Final = 16384


@final
class Way(Forward):
    """Invariant: ``messages[i]`` has the number ``first + i``; it is None if nobody waits for it
    any more. ``slots[n]`` is the target that slot ``n`` of the link stands for.
    """

    applied: Applied
    track: Track | None
    first: i64
    messages: list[Message | None]
    targets: list[Target]
    channels: list[Channel | None]
    tags: list[int]
    pending_bytes: i64
    slots: list[Target | None]
    next_slot: i64
    paused: list[Connection]
    reason: str
    nothing: Message
    nowhere: Target

    def __init__(self, broker_name: str, applied: Applied) -> None:
        super().__init__(broker_name)
        self.applied = applied
        self.track = None
        self.first = 1
        self.messages = []
        self.targets = []
        self.channels = []
        self.tags = []
        self.pending_bytes = 0
        self.slots = [None] * SLOTS
        self.next_slot = 0
        self.paused = []
        self.reason = ""
        self.nothing = Message(Route("", "", b"\0\0"), b"", 0, 0)
        self.nowhere = Target(self, "", [])

    def send(self, message: Message, target: Target, channel: Channel | None, tag: i64) -> i64:
        self.sent += 1
        self.messages.append(message)
        self.targets.append(target)
        self.channels.append(channel)
        self.tags.append(tag)
        self.pending_bytes += len(message.content) + MESSAGE_OVERHEAD_BYTES
        if self.pending_bytes > PENDING_BYTES_MAX:
            self.congested = True
        if self.track is not None:
            self._write(self.track, message, target, self.sent)
        elif len(target.queue_ids) == 0:
            # Private queues end with their broker: nothing to keep the message for.
            self._drop(self.sent - self.first)
        return self.sent

    def _write(self, track: Track, message: Message, target: Target, number: i64) -> None:
        if self.slots[target.number] is not target:
            target.number = self.next_slot
            self.slots[target.number] = target
            self.next_slot = (self.next_slot + 1) % SLOTS
            put_route(track.outbox, target.number, target, message.route.tail, self.applied.index)
        mandatory = target.sole and message.route.mandatory
        put_publish(track.outbox, target.number, number, message, mandatory)
        if not track.link.marked:
            track.link.touch()

    def fence(self) -> i64:
        """Send a number that is confirmed once all that was settled before it is safe there."""
        assert self.track is not None
        self.sent += 1
        self.messages.append(self.nothing)
        self.targets.append(self.nowhere)
        self.channels.append(None)
        self.tags.append(0)
        self.pending_bytes += len(self.nothing.content) + MESSAGE_OVERHEAD_BYTES
        put_number(self.track.outbox, FENCE, self.sent)
        self.track.link.touch()
        return self.sent

    # ---- the link -------------------------------------------------------------------------------

    def connect(self, track: Track) -> None:
        """A link is there: send again what is not confirmed."""
        self.track = track
        self.slots = [None] * SLOTS
        self.next_slot = 0
        at: i64 = 0
        while at < len(self.messages):
            message = self.messages[at]
            if message is not None:
                self._write(track, message, self.targets[at], self.first + at)
            at += 1

    def disconnect(self) -> None:
        """The link is gone, and what was meant for private queues with it: at most once (A3)."""
        self.track = None
        at: i64 = 0
        while at < len(self.messages):
            if len(self.targets[at].queue_ids) == 0:
                self._drop(at)
            at += 1
        self._advance()

    def drop_deleted(self, shared: dict[int, Queue]) -> None:
        """Without a link: give up what is for queues only that were deleted."""
        at: i64 = 0
        gone = False
        judged: Target | None = None
        while at < len(self.messages):
            target = self.targets[at]
            if target is not judged:
                judged = target
                gone = True
                for queue_id in target.queue_ids:
                    if queue_id in shared:
                        gone = False
            message = self.messages[at]
            if gone and message is not None:
                self.messages[at] = None
                self.pending_bytes -= len(message.content) + MESSAGE_OVERHEAD_BYTES
            at += 1
        self._advance()

    def _drop(self, at: i64) -> None:
        message = self.messages[at]
        if message is not None:
            self.messages[at] = None
            self.pending_bytes -= len(message.content) + MESSAGE_OVERHEAD_BYTES
        if at == 0:
            self._advance()

    def _advance(self) -> None:
        """Count what nobody waits for as confirmed, once it is the oldest."""
        done: i64 = 0
        while done < len(self.messages) and self.messages[done] is None:
            done += 1
        if done > 0:
            self._forget(done)

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
        self._forget(done)
        self._advance()

    def _forget(self, count: i64) -> None:
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
