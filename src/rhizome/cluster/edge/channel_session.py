"""Channel session: one channel of an application, at the home of one group.

What the application holds of the group it holds through a session. It settles by the tags of the
session's channel at the home. The session keeps settlements by queue and index until the home says
that their record is committed, and presents them to whoever is home at the next attach (A2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from rhizome.broker.cluster_port import Proxy, Waiter
from rhizome.broker.connection.outbox import Outbox
from rhizome.broker.message import Message
from rhizome.broker.publishing.forward_port import Forward
from rhizome.cluster.protocol.call_table_codec import TAKE_BACK
from rhizome.cluster.protocol.edge_home_codec import HeldWriter, put_settled

if TYPE_CHECKING:
    from rhizome.broker.channel.channel import Channel
    from rhizome.broker.channel.consumer import Consumer
    from rhizome.cluster.edge.edge_group import EdgeGroup

WINDOW_BYTES: Final = 2 << 20
"""How many bytes a home may send a consumer beyond what its application's socket has taken."""


VOID: Final = 0
"""The index of a message that an application holds and no log has: no log begins so low."""


@final
class Settling:
    """What was settled in one way and isn't told yet: tags at the home, and indexes by queue.

    Invariant: ``indexes`` is ``by_queue[queue_id]``.
    """

    tags: list[int]
    by_queue: dict[int, list[int]]
    queue_id: i64
    indexes: list[int]

    def __init__(self) -> None:
        self.tags = []
        self.by_queue = {}
        self.queue_id = 0
        self.indexes = []

    def add(self, queue_id: i64, message: Message) -> None:
        self.tags.append(message.tag)
        if queue_id != self.queue_id:
            self.queue_id = queue_id
            self.indexes = self.by_queue.setdefault(queue_id, [])
        self.indexes.append(message.index)


@final
class Settled:
    """What was settled in one way, under one number, until it is safe at the home."""

    number: i64
    kind: i64
    by_queue: dict[int, list[int]]

    def __init__(self, number: i64, kind: i64, by_queue: dict[int, list[int]]) -> None:
        self.number = number
        self.kind = kind
        self.by_queue = by_queue


@final
class ChannelSession(Proxy):
    """One channel of an application at the home of one group.

    Invariant: ``settling[kind]`` is what was settled since the last flush; ``returned`` are the
    tags of deliveries that the application never saw. The ``tag`` of each message that the channel
    holds of this session is its tag at the home that was attached to last.

    A prefetch of the whole channel is kept here, where it is known: each home is told what the
    channel may hold from it. Homes that deliver at the same time may exceed it together, so a
    delivery beyond it is given back at once, and its home pauses until the channel has room again.
    ``share`` is what the home was told last; -1 while it pauses. ``presented`` is the last tag at
    the home if a resuming client presented all of them; -1 once the home delivers some itself.
    """

    home: EdgeGroup
    channel: Channel
    number: i64
    counted: bool
    settling: list[Settling]
    returned: list[int]
    marked: bool
    share: i64
    contended: bool
    presented: i64

    def __init__(self, home: EdgeGroup, channel: Channel, number: i64, counted: bool) -> None:
        """``counted``: its deliveries count against the prefetch of the channel."""
        super().__init__()
        self.home = home
        self.channel = channel
        self.number = number
        self.counted = counted
        self.settling = [Settling(), Settling(), Settling()]
        self.returned = []
        self.marked = False
        self.share = channel.prefetch_global if counted else 0
        self.contended = False
        self.presented = 0

    # ---- settling -------------------------------------------------------------------------------

    def settle(self, consumer: Consumer, message: Message, kind: i64) -> None:
        self.settling[kind].add(consumer.queue.id, message)
        if not self.marked:
            self.mark()

    def mark(self) -> None:
        self.marked = True
        self.home.touched.append(self)

    def take_back(self, tag: i64) -> None:
        """Return a delivery that nobody saw here: the home may give it to others."""
        self.returned.append(tag)
        if not self.marked:
            self.mark()

    def flush(self, outbox: Outbox | None) -> None:
        """Keep what was settled, and tell the home if there is a link."""
        self.marked = False
        kind: i64 = 0
        while kind < len(self.settling):
            settling = self.settling[kind]
            if len(settling.tags) > 0:
                number = self.home.keep(kind, settling.by_queue)
                if outbox is not None:
                    group = self.home.group
                    put_settled(outbox, group, self.number, kind, number, settling.tags)
                self.settling[kind] = Settling()
            kind += 1
        if len(self.returned) > 0:
            if outbox is not None:
                put_settled(outbox, self.home.group, self.number, TAKE_BACK, 0, self.returned)
            self.returned = []

    def commit(self, elsewhere: dict[Forward, int]) -> None:
        link_channel = self.home.link_channel
        self.flush(None if link_channel is None else link_channel.outbox)
        elsewhere[self.home.way] = self.home.way.fence()

    def epoch(self) -> i64:
        return self.home.epoch

    # ---- attaching ------------------------------------------------------------------------------

    def present(self, outbox: Outbox, all_of_it: bool) -> None:
        """Tell the home what the application holds, unless ``all_of_it`` is a broken rule. From
        here on ``tag`` is the position in this list."""
        self.contended = False
        self.share = self.channel.prefetch_global if self.counted else 0
        held = HeldWriter(self.home.group, self.number, self.share)
        unacked = self.channel.unacked
        for tag in unacked.tags():
            consumer = unacked.consumer(tag)
            message = unacked.message(tag)
            if not all_of_it:
                break
            if consumer is not None and message is not None and consumer.proxy is self:
                number = consumer.number if self.home.is_attached(consumer) else 0
                message.tag = held.add(number, consumer.queue.id, message.index)
        if self.presented >= 0:
            self.presented = held.count
        held.put(outbox)

    def present_more(self, outbox: Outbox, first_tag: i64) -> None:
        """Tell the home, too, what the application holds from one of its own tags on."""
        held = HeldWriter(self.home.group, self.number, self.share)
        unacked = self.channel.unacked
        for tag in unacked.tags():
            consumer = unacked.consumer(tag)
            message = unacked.message(tag)
            if tag >= first_tag and consumer is not None and message is not None:
                if consumer.proxy is self:
                    place = held.add(0, consumer.queue.id, message.index)
                    message.tag = self.presented + place
        self.presented += held.count
        held.put(outbox)

    def void(self, first: i64) -> None:
        """Mark as void what the application holds from this index on: no log has it any more."""
        unacked = self.channel.unacked
        for tag in unacked.tags():
            consumer = unacked.consumer(tag)
            message = unacked.message(tag)
            if consumer is not None and message is not None and consumer.proxy is self:
                if message.index >= first and consumer.queue.stream is None:
                    message.index = VOID

    def forget_all(self) -> None:
        """The application holds nothing here any more."""
        unacked = self.channel.unacked
        for tag in unacked.tags():
            consumer = unacked.consumer(tag)
            if consumer is not None and consumer.proxy is self:
                unacked.forget(tag)
                consumer.unacked -= 1

    def detach(self, consumer: Consumer, waiter: Waiter | None) -> bool:
        return self.home.detach(self, consumer, waiter)

    # ---- flow -----------------------------------------------------------------------------------

    def drained(self, consumer: Consumer) -> None:
        if consumer.credit >= WINDOW_BYTES // 2:
            self.home.grant(consumer)
        if self.contended:
            self.tell_share()

    def is_beyond(self) -> bool:
        """Whether the channel already holds as much as its prefetch allows."""
        limit = self.channel.prefetch_global
        return self.counted and limit > 0 and self.channel.unacked.window() >= limit

    def give_back(self, tag: i64) -> None:
        """Give back a delivery beyond the channel's prefetch: the home may give it to others."""
        self.take_back(tag)
        self.contended = True
        self.tell_share()

    def tell_share(self) -> None:
        """Tell the home how many of its messages the channel may hold, if that has changed."""
        share = self._share()
        if share != self.share:
            self.share = share
            self.home.put_prefetch(self)

    def _share(self) -> i64:
        limit = self.channel.prefetch_global
        if not self.counted or limit == 0:
            return 0
        room = limit - self.channel.unacked.window()
        if not self.contended:
            return limit
        if room <= 0:
            return -1
        held: i64 = 0
        for consumer in self.channel.consumers.values():
            if consumer.proxy is self:
                held += consumer.unacked
        return held + room
