"""Direct reply-to: replies that go straight to the channel that asked, without a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from rhizome.broker.message import Message

if TYPE_CHECKING:
    from rhizome.broker.consumer import Consumer

REPLY_QUEUE: Final = "amq.rabbitmq.reply-to"
REPLY_PREFIX: Final = "amq.rabbitmq.reply-to."


@final
class Replies:
    """Invariant: ``consumers`` maps the token of each channel with a reply consumer to it."""

    consumers: dict[str, Consumer]

    def __init__(self) -> None:
        self.consumers = {}

    def register(self, token: str, consumer: Consumer) -> None:
        self.consumers[token] = consumer

    def forget(self, token: str) -> None:
        self.consumers.pop(token, None)

    def knows(self, name: str) -> bool:
        """Whether a reply queue name leads to a channel that is open."""
        return name[len(REPLY_PREFIX) :] in self.consumers

    def deliver(self, message: Message) -> bool:
        """Deliver a reply; False if nobody waits for it any more."""
        consumer = self.consumers.get(message.route.key[len(REPLY_PREFIX) :])
        if consumer is None:
            return False
        consumer.deliver(message, False)
        return True
