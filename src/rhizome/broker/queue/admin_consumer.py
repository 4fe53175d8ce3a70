"""AdminConsumer: message operations requested by an administrator, run at the queue's home.

An admin consumer works like an application, through a channel that no list shows. What it holds is
unacked like any other delivery: checkpoints contain it. If the queue gets another home meanwhile,
the message is presented there (A2) and settled there.

A message that is moved is not published again. `copy_into` puts it at the end of one queue as it
is; its properties and headers have no effect on the way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from mypy_extensions import i64

from rhizome.broker.channel.channel import Channel
from rhizome.broker.channel.consume_methods import pull, pull_consumer
from rhizome.broker.channel.unacked import ACK, REQUEUE
from rhizome.broker.channel.unacked_lookup import give_back_unseen
from rhizome.broker.dead_letters.dead_letter_routing import bury
from rhizome.broker.group_log.atomic_records import begin_all, commit_all
from rhizome.broker.group_log.local_group_log import TX_RECORD_BYTES
from rhizome.broker.message import copy_of
from rhizome.broker.publishing.forward_port import Target
from rhizome.broker.publishing.publish_path import enqueue, send_on
from rhizome.broker.publishing.publisher_confirms import Confirms
from rhizome.broker.queue.queue import claim

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.connection.connection import Connection
    from rhizome.broker.message import Message
    from rhizome.broker.queue.queue import Queue


@final
class AdminConsumer:
    """Invariant: until it has ended, its connection is among the broker's ``admin_consumers``."""

    broker: Broker
    connection: Connection
    channel: Channel

    def __init__(self, broker: Broker, name: str) -> None:
        self.broker = broker
        self.connection = broker.carry(name)
        self.channel = Channel(self.connection, 1)
        self.connection.channels[1] = self.channel
        broker.admin_consumers[self.connection.id] = self.connection

    def take(self, queue: Queue) -> Message | None:
        """Hold the first message of a queue that is active here; None if none may be delivered
        now."""
        message = pull(queue)
        if message is not None:
            queue.delivered += 1
            queue.unacked += 1
            if queue.durable_bytes > 0:
                # If this broker dies while the message is in two queues, the redelivered flag of
                # this one shows it.
                queue.broker.delivered_marks.note(queue, message)
            self.channel.hold(message, pull_consumer(self.channel, queue))
        return message

    def take_this(self, queue: Queue, index: i64) -> Message | None:
        """Hold one ready message of a queue that is active here, wherever in the queue it stands;
        None if it isn't ready, or may not be delivered now (L1, R9).

        A message from the middle that is given back afterwards stands at the head: look at it first
        (`message_cursor.look_at`) and take it only if it is to go.
        """
        if not self.broker.may_deliver or queue.log.still or index > queue.log.visible:
            return None
        message = claim(queue, index)
        if message is not None:
            queue.delivered += 1
            if queue.durable_bytes > 0:
                queue.broker.delivered_marks.note(queue, message)
            self.channel.hold(message, pull_consumer(self.channel, queue))
        return message

    def holds(self) -> bool:
        return self.channel.unacked.count > 0

    def done(self) -> None:
        """Remove the held message from its queue."""
        for tag in self.channel.unacked.tags():
            self.channel.settle_one(tag, ACK)

    def give_back(self) -> None:
        """Put the held message back in its place; nobody has seen it."""
        for tag in self.channel.unacked.tags():
            consumer = self.channel.unacked.consumer(tag)
            if consumer is not None and consumer.proxy is not None:
                self.channel.settle_one(tag, REQUEUE)
            else:
                give_back_unseen(self.channel, tag)

    def move(self, message: Message, queue: Queue, channel: Channel) -> bool:
        """Put the one held message at the end of another queue; False if that queue refuses it.

        If one log records both queues, a single record moves the message. Otherwise the message
        stays held until ``done``, which the caller calls once ``channel`` was sent a confirm. The
        channel is sent a nack if the home of the other queue refuses the message.
        """
        held = self.channel.unacked.tags()
        source = self.channel.unacked.consumer(held[0]) if len(held) == 1 else None
        assert source is not None
        confirms = Confirms()
        channel.confirms = confirms
        if queue.away is not None or source.proxy is not None or queue.log is not source.queue.log:
            return copy_into(queue, message, channel, confirms)
        begin_all(self.broker, len(message.content) + TX_RECORD_BYTES)
        accepted = copy_into(queue, message, channel, confirms)
        if accepted:
            self.done()
        bury(self.broker)
        for log, index in commit_all(self.broker).items():
            confirms.need(log, index, True)
        return accepted

    def drop(self, channel: Channel) -> None:
        """Remove the held message for good; ``channel`` is sent a confirm when no takeover and no
        restart can bring it back."""
        confirms = Confirms()
        channel.confirms = confirms
        begin_all(self.broker, TX_RECORD_BYTES)
        self.done()
        bury(self.broker)
        confirms.published += 1
        channel.touch()
        for log, index in commit_all(self.broker).items():
            confirms.need(log, index, True)

    def end(self) -> None:
        self.give_back()
        self.channel.release()
        self.connection.channels = {}
        self.broker.admin_consumers.pop(self.connection.id, None)
        self.broker.connection_gone(self.connection)


def copy_into(queue: Queue, message: Message, channel: Channel, confirms: Confirms) -> bool:
    """Put a copy of a message at the end of a queue, wherever that queue is active.

    Returns False if the queue is active here and refuses the message. Otherwise the channel gets
    the confirm, or the nack of a home elsewhere.

    The message's own headers have no effect: no other keys (CC), no producer sequence, no user and
    no delay. The copy keeps its properties, exchange and routing key. Its time to live starts
    again.
    """
    broker = channel.connection.broker
    copy = copy_of(message)
    copy.identity = None
    copy.arrived_ms = broker.turn.now_ms
    if queue.away is None and not queue.accepts(copy):
        # Check before trying: a message that stays where it is must not be dead-lettered as well.
        return False
    confirms.published += 1
    channel.touch()
    if queue.away is None:
        return enqueue(broker, copy, [queue], confirms)
    target = Target(queue.away.forward(), queue.vhost, [])
    target.queue_ids.append(queue.id)
    send_on(copy, [target], channel)
    return True
