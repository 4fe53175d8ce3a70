"""Errands: what people have a home do with messages, as an application would.

An errand has a channel that nobody lists. What it holds is unacked like what anybody holds: a
checkpoint has it, and if the home of the queue is another broker meanwhile, it is presented there
(A2), and settled there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from rhizome.broker.basic import pull, pull_consumer
from rhizome.broker.channel import Channel
from rhizome.broker.places import give_back_unseen
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
            self.channel.hold(message, pull_consumer(self.channel, queue))
        return message

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

    def end(self) -> None:
        self.give_back()
        self.channel.release()
        self.connection.channels = {}
        self.broker.errands.pop(self.connection.id, None)
        self.broker.connection_gone(self.connection)
