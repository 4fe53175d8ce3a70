"""Effects of home changes: what a cluster does to queues, consumers and deliveries when the home of
a group comes to this broker or leaves it. Compiled.

A queue's counts, a channel's unacked deliveries and a consumer's place are changed here and in the
rest of the broker, and nowhere else:

- ``claim`` (`queue/queue.py`), ``settle``: a ready message that an application holds, or has
  settled;
- ``restore``: a delivery that an application here holds, whose queue is active here again;
- ``rehome``: a consumer gets its deliveries from another broker, or from this one again;
- ``show``: a delivery that an application holds and whose queue is active elsewhere;
- ``let_go``: a queue is active elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from rhizome.broker.channel.consumer import Consumer
from rhizome.broker.channel.unacked import ACK, REJECT
from rhizome.broker.message import Message
from rhizome.broker.streams.stream_reader import start_at

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.channel.channel import Channel
    from rhizome.broker.cluster_port import Proxy
    from rhizome.broker.queue.queue import Queue


def queues_of(broker: Broker, group: i64) -> list[Queue]:
    """The queues of a group. A broker may have ten thousands of groups, one per stream: the others
    are not looked at."""
    found = broker.shared_by_group.get(int(group))
    return [] if found is None else list(found.values())


def messages_by_group(broker: Broker) -> dict[str, object]:
    """How many messages the queues that are active here have, by the number of their group."""
    found: dict[str, object] = {}
    for group, queues in broker.shared_by_group.items():
        count: i64 = -1
        for queue in queues.values():
            if queue.away is None:
                if count < 0:
                    count = 0
                count += queue.ready + queue.unacked
        if count >= 0:
            found[str(group)] = int(count)
    return found


# ---- messages -----------------------------------------------------------------------------------


def settle(queue: Queue, message: Message, kind: i64, was_ready: bool) -> None:
    """Settle a message that counts as unacked.

    ``was_ready``: the queue had it back already. Then it isn't known whether it was given back in
    this way, and it is counted at least once.
    """
    if kind == ACK:
        queue.ack(message)
    elif kind == REJECT:
        queue.reject(message)
    elif was_ready and message.index in queue.counts:
        queue.take_back(message)
    else:
        queue.requeue(message)


def claim_of_stream(queue: Queue, index: i64) -> Message:
    """A stand-in for a message of a stream that is held: streams keep everything."""
    message = Message(queue.broker.pager.route_last, b"", 0, 0)
    message.index = index
    queue.unacked += 1
    return message


def reclaim_of_stream(queue: Queue, shown: Message) -> Message:
    """A message of a stream that an application here has been shown counts as unacked again."""
    queue.unacked += 1
    return shown


def restore(channel: Channel, tag: i64, message: Message | None) -> None:
    """What a channel holds under a tag is this message of a queue that is active here; None: it was
    lost, and nothing is held."""
    unacked = channel.unacked
    if message is not None:
        unacked.replace(tag, message)
        return
    consumer = unacked.consumer(tag)
    assert consumer is not None
    unacked.forget(tag)
    consumer.unacked -= 1
    channel.forgive(tag)


def show(channel: Channel, tag: i64) -> None:
    """A channel only shows what it holds under a tag from now on: the message's record and its
    place in memory are the queue's, and go with it."""
    message = channel.unacked.message(tag)
    assert message is not None
    channel.unacked.replace(tag, _shown_copy(message))


def show_and_give_back(channel: Channel, tag: i64) -> None:
    """The same, and the message is ready again in its queue, which stays here for now."""
    message = channel.unacked.message(tag)
    consumer = channel.unacked.consumer(tag)
    assert message is not None
    assert consumer is not None
    queue = consumer.queue
    channel.unacked.replace(tag, _shown_copy(message))
    if queue.stream is None:
        queue.take_back(message)
    else:
        queue.unacked -= 1


def _shown_copy(message: Message) -> Message:
    shown = Message(message.route, message.content, message.channel, message.frame_bytes_max)
    shown.index = message.index
    return shown


# ---- consumers ----------------------------------------------------------------------------------


def rehome(consumer: Consumer, proxy: Proxy | None, number: i64) -> None:
    """A consumer gets its deliveries through a proxy, which knows it by this number, or (None) from
    this broker."""
    consumer.proxy = proxy
    consumer.number = number
    consumer.credit = 0
    if proxy is None:
        stream = consumer.queue.stream
        if stream is not None and consumer in consumer.queue.consumers():
            stream.attach(consumer)
        consumer.queue.broker.lease_came_home(consumer)


def leave_place(consumer: Consumer) -> None:
    """A consumer of a stream continues elsewhere at the offset that it had here."""
    reader = consumer.reader
    if reader is not None:
        consumer.reached = reader.next
        start_at(consumer, reader.next)
        reader.detach()
        consumer.reader = None


def mark_active(queue: Queue) -> None:
    """The active one of consumers that take turns remains active wherever the home is."""
    active = queue.active
    if not isinstance(active, Consumer) or active.carrier is not None or active.proxy is not None:
        return
    if queue.stream is None:
        active.reached = max(active.reached, queue.log.next_index)


def choose_active(queue: Queue) -> None:
    """Of the consumers of a queue that has one active at a time, choose the one that was active at
    the home before: it got what was delivered last."""
    chosen = queue.active
    if chosen is None:
        return
    for consumer in queue.consumers():
        if consumer.reached > chosen.reached:
            chosen = consumer
    queue.active = chosen


# ---- queues -------------------------------------------------------------------------------------


def let_go(queue: Queue) -> None:
    """A queue is active elsewhere: it lets go of what is unacked."""
    if queue.stream is None:
        for message in queue.broker.unacked_messages(queue):
            queue.broker.pager.release(queue, message)
    if queue.keys is not None:
        queue.keys.restart()
    queue.unacked = 0
    queue.durable_bytes = 0
    queue.counts = {}
