"""DeadLetter: a message that has died in a queue, until it is sent on."""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from rhizome.broker.message import Message
from rhizome.broker.publishing.remote_targets import Recipients
from rhizome.broker.queue.queue import Queue


@final
class DeadLetter:
    """A message that has left its queue unconsumed.

    ``copy`` is what is sent, and ``recipients`` says where, by the bindings of ``epoch``. Without a
    copy the message goes nowhere; ``refusal`` then says why, if there was an exchange to send it
    to. All of this is computed when the message dies. A route may cost as much as a turn has time
    for, and code that discards many messages has to notice that.
    """

    queue: Queue
    message: Message
    reason: str
    copy: Message | None
    recipients: Recipients | None
    epoch: i64
    refusal: Exception | None

    def __init__(self, queue: Queue, message: Message, reason: str) -> None:
        self.queue = queue
        self.message = message
        self.reason = reason
        self.copy = None
        self.recipients = None
        self.epoch = 0
        self.refusal = None
