"""Errands: what people have a home do with messages, as an application would.

An errand has a channel that nobody lists. What it holds is unacked like what anybody holds: a
checkpoint has it, and if the home of the queue is another broker meanwhile, it is presented there
(A2), and settled there.

A message that is moved is not published again: `copy_into` puts it at the end of one queue, as it
is, whatever its properties and headers would have an exchange or a queue do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from rhizome.broker.basic import pull, pull_consumer
from rhizome.broker.channel import Channel
from rhizome.broker.confirms import Confirms
from rhizome.broker.letters import bury
from rhizome.broker.log import TX_RECORD_BYTES
from rhizome.broker.message import copy_of
from rhizome.broker.places import give_back_unseen
from rhizome.broker.publishing import enqueue, send_on
from rhizome.broker.targets import Target
from rhizome.broker.together import begin_all, commit_all
from rhizome.broker.unacked import ACK, REQUEUE

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.connection import Connection
    from rhizome.broker.message import Message
    from rhizome.broker.queue import Queue


@final
class Errand:
    """Invariant: until it has ended its connection is among the broker's ``errands``."""

    broker: Broker
    connection: Connection
    channel: Channel

    def __init__(self, broker: Broker, name: str) -> None:
        self.broker = broker
        self.connection = broker.carry(name)
        self.channel = Channel(self.connection, 1)
        self.connection.channels[1] = self.channel
        broker.errands[self.connection.id] = self.connection

    def take(self, queue: Queue) -> Message | None:
        """Hold the first message of a queue that is active here; None if there is none that may be
        given out now."""
        message = pull(queue)
        if message is not None:
            queue.delivered += 1
            queue.unacked += 1
            if queue.durable_bytes > 0:
                # If this broker dies while the message is in two queues, this one says so.
                queue.broker.showing.note(queue, message)
            self.channel.hold(message, pull_consumer(self.channel, queue))
        return message

    def holds(self) -> bool:
        return self.channel.unacked.count > 0

    def done(self) -> None:
        """What is held leaves its queue."""
        for tag in self.channel.unacked.tags():
            self.channel.settle_one(tag, ACK)

    def give_back(self) -> None:
        """What is held goes back where it was; nobody has seen it."""
        for tag in self.channel.unacked.tags():
            consumer = self.channel.unacked.consumer(tag)
            if consumer is not None and consumer.proxy is not None:
                self.channel.settle_one(tag, REQUEUE)
            else:
                give_back_unseen(self.channel, tag)

    def move(self, message: Message, queue: Queue, channel: Channel) -> bool:
        """Put what is held, one message, at the end of another queue; False if that refuses it.

        Where one log records both queues, one record takes the message out of the one and puts it
        into the other. Else the message is held until ``done``, which is called when ``channel``
        was sent a confirm. The channel is sent a nack if the home of the other queue refuses.
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

    def end(self) -> None:
        self.give_back()
        self.channel.release()
        self.connection.channels = {}
        self.broker.errands.pop(self.connection.id, None)
        self.broker.connection_gone(self.connection)


def copy_into(queue: Queue, message: Message, channel: Channel, confirms: Confirms) -> bool:
    """Put a copy of a message at the end of a queue, wherever that is active; False if the queue
    is active here and refuses it. The confirm, or the nack of a home elsewhere, goes to the
    channel.

    Nothing that the message says of itself counts: it has no other keys (CC), no number of its
    producer, no user and no delay. It keeps its properties, exchange and routing key. Its time to
    live begins again.
    """
    broker = queue.broker
    copy = copy_of(message)
    copy.identity = None
    copy.arrived_ms = broker.turn.now_ms
    if queue.away is None and not queue.accepts(copy):
        # Asked before it is tried: what stays where it is must not be dead-lettered as well.
        return False
    confirms.published += 1
    channel.touch()
    if queue.away is None:
        return enqueue(broker, copy, [queue], confirms)
    target = Target(queue.away.forward(), queue.vhost, [])
    target.queue_ids.append(queue.id)
    send_on(copy, [target], channel)
    return True
