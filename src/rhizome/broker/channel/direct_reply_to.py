"""Direct reply-to: replies that go straight to the channel that asked, without a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from rhizome.broker.message import Message

if TYPE_CHECKING:
    from rhizome.broker.channel.consumer import Consumer

REPLY_QUEUE: Final = "amq.rabbitmq.reply-to"
REPLY_PREFIX: Final = "amq.rabbitmq.reply-to."


@final
class DirectReplyTo:
    """Invariant: ``consumers`` maps the token of each channel with a reply consumer to it."""

    consumers: dict[str, Consumer]

    def __init__(self) -> None:
        self.consumers = {}

    def register(self, token: str, consumer: Consumer) -> None:
        self.consumers[token] = consumer

    def forget(self, token: str) -> None:
        self.consumers.pop(token, None)

    def knows(self, vhost: str, name: str) -> bool:
        """Whether a reply queue name leads to a channel that is open, in this vhost."""
        return self._consumer(vhost, name) is not None

    def deliver(self, vhost: str, message: Message) -> bool:
        """Deliver a reply that was published in a vhost; False if nobody waits for it there."""
        consumer = self._consumer(vhost, message.route.key)
        if consumer is None:
            return False
        consumer.deliver(message, False)
        return True

    def _consumer(self, vhost: str, name: str) -> Consumer | None:
        """The consumer that a reply name leads to. A token is valid in one vhost only, though
        nobody elsewhere could guess it."""
        consumer = self.consumers.get(name[len(REPLY_PREFIX) :])
        if consumer is None or consumer.channel.connection.router.vhost != vhost:
            return None
        return consumer
