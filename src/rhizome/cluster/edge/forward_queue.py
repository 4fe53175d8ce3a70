"""Forward queue: what an edge publishes for its applications, kept until it is safe elsewhere.

A forward queue leads to a group, wherever its home is, or to the private queues of one broker. Its
messages are numbered; the other end takes each number once and confirms cumulatively.

- `GroupForwardQueue`: numbers count per incarnation of this broker and group, whoever the home is.
  A publish is forgotten when it is committed, not when a home has it. At each attach the edge sends
  again from the number after the last that the home has taken (A1).
- `PrivateForwardQueue`: nothing is ever sent again, and what a broken link may have lost is lost:
  at most once, in order (A3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from rhizome.broker.message import Message, Route
from rhizome.broker.publishing.forward_port import Bundle, Forward, Target
from rhizome.cluster.peer_link_state import LinkChannel
from rhizome.cluster.protocol.attach_rule_switches import AttachRules
from rhizome.cluster.protocol.catalogue import FENCE
from rhizome.cluster.protocol.edge_home_codec import put_bundle, put_number, put_publish

if TYPE_CHECKING:
    from rhizome.broker.publishing.forward_port import PublisherChannel
    from rhizome.broker.queue.queue import Queue
    from rhizome.broker.turn import MarkedConnection

PENDING_BYTES_MAX: Final = 8 << 20
"""Publishers wait while more bytes than this are on their way."""

MESSAGE_OVERHEAD_BYTES: Final = 256


class ForwardQueue(Forward):
    """Messages on their way to one destination, by number.

    Invariant: ``messages[i]`` has the number ``first + i``; it is None if nobody waits for it any
    more. ``link_channel`` is set while messages can be written at once.
    """

    link_channel: LinkChannel | None
    lasting: bool
    first: i64
    messages: list[Message | None]
    targets: list[Target]
    channels: list[PublisherChannel | None]
    tags: list[int]
    pending_bytes: i64
    paused: list[MarkedConnection]
    reason: str

    def __init__(self, broker_name: str, group: i64) -> None:
        super().__init__(broker_name, group)
        self.link_channel = None
        self.lasting = group != 0
        self.first = 1
        self.messages = []
        self.targets = []
        self.channels = []
        self.tags = []
        self.pending_bytes = 0
        self.paused = []
        self.reason = ""

    def send(
        self, message: Message, target: Target, channel: PublisherChannel | None, tag: i64
    ) -> i64:
        number = self.sent + 1
        self.sent = number
        link_channel = self.link_channel
        if link_channel is None and not self.lasting:
            # Private queues end with their broker: there is nothing to keep the message for.
            self.first = number + 1
            self.confirmed = number
        else:
            self.keep(message, target, channel, tag)
        if target.bundle is not None:
            if target.bundle.targets[-1] is target:
                write_bundle(target.bundle, message)
        elif link_channel is not None:
            write(link_channel, message, target, number)
        return number

    def keep(
        self, message: Message, target: Target, channel: PublisherChannel | None, tag: i64
    ) -> None:
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
            # The next home must not take a message whose publisher was told that it is refused.
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
            channel.send_return(message)

    # ---- publishers that wait -------------------------------------------------------------------

    def pause(self, connection: MarkedConnection) -> None:
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
class PrivateForwardQueue(ForwardQueue):
    """The forward queue to the private queues of one broker."""

    def __init__(self, broker_name: str) -> None:
        super().__init__(broker_name, 0)

    def connect(self, link_channel: LinkChannel) -> None:
        self.link_channel = link_channel

    def disconnect(self) -> None:
        """The link is gone, and what was under way with it. Messages to be relayed were meant for
        brokers that are still there: their publisher is told that they may not have arrived."""
        self.link_channel = None
        at: i64 = 0
        while at < len(self.messages):
            if self.targets[at].relay:
                self.refuse(self.first + at)
            at += 1
        self.confirm(self.sent)


@final
class GroupForwardQueue(ForwardQueue):
    """The forward queue to the queues of one group.

    ``orphans`` are messages, by number, that were published here when this broker was home, last in
    epoch ``orphaned``, with their indexes in its log. A home whose log has them needs only their
    numbers (`broker/group_log/uncommitted_local_work.py`).
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

    def attached(self, link_channel: LinkChannel, last: i64, start: i64) -> None:
        """The home has taken everything up to ``last``: send it the rest. Below index ``start`` its
        log has what it got from this broker."""
        self.link_channel = link_channel
        if not self.rules.kept_until_committed:
            self.confirm(last)
        at = last + 1 - self.first
        if at < 0:
            at = 0
        while at < len(self.messages):
            message = self.messages[at]
            number = self.first + at
            if message is None or message is self.nothing or self.is_known(number, start):
                put_number(link_channel.outbox, FENCE, self.group, number)
            else:
                write(link_channel, message, self.targets[at], number)
            at += 1
        link_channel.link.touch()

    def adopt(self, message: Message, target: Target, index: i64, epoch: i64) -> i64:
        """Send a message that was published here while this broker was home, unless the home has
        it."""
        number = self.send(message, target, None, 0)
        self.orphans[number] = index
        self.orphaned = epoch
        return number

    def belongs_to(self, number: i64, channel: PublisherChannel, tag: i64) -> None:
        """A channel waits for the confirm of a message that is under way."""
        at = number - self.first
        if 0 <= at < len(self.messages):
            self.channels[at] = channel
            self.tags[at] = tag

    def is_known(self, number: i64, start: i64) -> bool:
        """Whether a home has had this message since this broker was home."""
        if len(self.orphans) == 0:
            return False
        return 0 < self.orphans.get(number, 0) < start

    def since(self) -> i64:
        """The epoch in which this broker was home last, if that still matters."""
        if len(self.orphans) > 0 and self.confirmed >= max(self.orphans):
            self.orphans = {}
        return self.orphaned if len(self.orphans) > 0 else 0

    def detached(self) -> None:
        """There is no link to the home for now."""
        self.link_channel = None

    def fence(self) -> i64:
        """Send a number that is confirmed once all that was settled before it is safe there."""
        if not self.lasting:
            return self.confirmed
        self.sent += 1
        self.keep(self.nothing, self.nowhere, None, 0)
        link_channel = self.link_channel
        if link_channel is not None:
            put_number(link_channel.outbox, FENCE, self.group, self.sent)
            link_channel.link.touch()
        return self.sent

    def end(self) -> None:
        """The group is gone: nobody will take its messages."""
        self.lasting = False
        self.confirm(self.sent)

    def doubt(self, last: i64, shared: dict[int, Queue]) -> None:
        """Of what it took up to ``last`` the home has only what was on its disk. The rest may be
        lost, and if sent again may come twice: its publishers are told that it isn't safe."""
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
        """Without a home: give up messages whose queues are all deleted."""
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


def write(link_channel: LinkChannel, message: Message, target: Target, number: i64) -> None:
    """Put a message onto the link, for one target."""
    if link_channel.slots[target.slot] is not target:
        link_channel.define(target, message)
    mandatory = target.sole and message.route.mandatory
    put_publish(link_channel.outbox, target.slot, number, message, mandatory, link_channel.by_user)
    link_channel.copies += 1
    if not link_channel.link.marked:
        link_channel.link.touch()


def write_bundle(bundle: Bundle, message: Message) -> None:
    """Write the last message of all forward queues of a bundle to the link: once, if they still
    share one link."""
    shared: LinkChannel | None = None
    apart = False
    for target in bundle.targets:
        way = target.forward
        assert isinstance(way, ForwardQueue)
        if way.link_channel is None or (shared is not None and way.link_channel is not shared):
            apart = True
        shared = way.link_channel
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
        assert isinstance(way, ForwardQueue)
        if way.link_channel is not None:
            write(way.link_channel, message, target, way.sent)
