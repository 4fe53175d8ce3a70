"""A simulated application: declares, subscribes, publishes and consumes on its own broker.

It speaks AMQP frames with its broker's core. It reports everything that it is told to the checkers:
a declare-ok, a confirm, a message. It never waits for an answer before it continues with other
things, but does one thing per channel at a time.

    channel 1   declares queues that nobody deletes, and queues that others declare differently
    channel 2   publishes numbered messages, with confirms, to the shared queues
    channel 3   consumes from shared queues, and acks
    channel 4   publishes numbered news to a fanout exchange
    channel 5   has a private queue bound to that exchange, and consumes it
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rhizome.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicNack,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ConfirmSelect,
    ExchangeDeclare,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
)
from rhizome.amqp.properties import Properties
from rhizome.testing.in_memory_broker import Content, CoreClient, Event
from rhizome.testing.sim.events import broker_events as seen

if TYPE_CHECKING:
    from rhizome.testing.sim.brokers.broker_program import BrokerProgram

DECLARE: Final = 1
PUBLISH: Final = 2
CONSUME: Final = 3
NEWS: Final = 4
SUBSCRIBE: Final = 5
CHANNELS: Final = (DECLARE, PUBLISH, CONSUME, NEWS, SUBSCRIBE)

SHARED_QUEUES: Final = ("orders", "bills", "letters")
NEWS_EXCHANGE: Final = "news"
PAUSE_MS_MEAN: Final = 400
PREFETCH_UNSETTLED_MAX: Final = 20


class _Core:
    """What `CoreClient` needs of a core; the broker's turn does the rest later."""

    def __init__(self, program: BrokerProgram) -> None:
        self.broker = program.broker
        self._program = program

    @property
    def now_ms(self) -> int:
        return int(self.broker.turn.now_ms)

    def settle(self) -> None:
        application = self._program.application
        if application is not None:
            application.flush()

    def socket_closed(self, connection: object) -> None:
        pass


class _Client(CoreClient):
    """Takes the outbox step by step; its handshake needs no waiting."""

    def send_bytes(self, data: bytes) -> None:
        self.connection.receive(data)
        self.flush()


class Application:
    """One application with one connection. `next_ms` is when it acts next, by its host's clock."""

    def __init__(self, program: BrokerProgram) -> None:
        self._program = program
        self._chance = program.host.chance("application")
        self._name = f"{program.name}/{program.host.run}"
        self._numbers = 0
        self._unconfirmed: dict[int, str] = {}
        self._tags = 0
        self._declaring = ""
        self._subscribed = False
        self.next_ms = program.host.now_ms()
        self._client = _Client(_Core(program))  # type: ignore[arg-type]
        self._client.connection.port = self
        for channel in CHANNELS[1:]:
            self._client.send(ChannelOpen(), channel=channel)
        self._client.send(ExchangeDeclare(NEWS_EXCHANGE, "fanout", durable=True), channel=SUBSCRIBE)
        self._client.send(QueueDeclare("", exclusive=True), channel=SUBSCRIBE)
        self._client.send(ExchangeDeclare(NEWS_EXCHANGE, "fanout", durable=True), channel=NEWS)
        self._client.send(ConfirmSelect(), channel=PUBLISH)
        for queue in SHARED_QUEUES:
            self._client.send(QueueDeclare(queue, durable=True), channel=PUBLISH)
            self._client.send(QueueDeclare(queue, durable=True), channel=CONSUME)
            self._client.send(BasicConsume(queue, queue), channel=CONSUME)

    def gone(self) -> None:
        """The broker was killed, and this application with it."""
        self._program.watch.see(seen.SubscriberGone(self._name))

    # --- acting

    def tick(self, now_ms: int) -> None:
        if now_ms < self.next_ms:
            return
        self.next_ms = now_ms + 1 + int(self._chance.expovariate(1 / PAUSE_MS_MEAN))
        if self._program.broker.blocking or self._client.connection.waiting:
            return
        draw = self._chance.random()
        if draw < 0.2:
            self._declare()
        elif draw < 0.6:
            self._publish()
        else:
            self._tell_news()

    def _number(self) -> str:
        self._numbers += 1
        return f"{self._name}/{self._numbers}"

    def _declare(self) -> None:
        if not self._declaring:
            self._declaring = f"kept {self._number()}"
            self._client.send(QueueDeclare(self._declaring, durable=True), channel=DECLARE)

    def _publish(self) -> None:
        queue = SHARED_QUEUES[int(self._chance.random() * len(SHARED_QUEUES))]
        body = self._number()
        self._tags += 1
        self._unconfirmed[self._tags] = body
        self._client.publish("", queue, body.encode(), Properties(delivery_mode=2), channel=PUBLISH)

    def _tell_news(self) -> None:
        body = self._number()
        self._program.watch.see(seen.NewsTold(self._name, body))
        self._client.publish(NEWS_EXCHANGE, "", body.encode(), channel=NEWS)

    # --- hearing

    def flush(self) -> None:
        self._client.flush()
        for channel in CHANNELS:
            for event in self._client.take(channel):
                self._hear(channel, event)

    def _hear(self, channel: int, event: Event) -> None:
        watch = self._program.watch
        if isinstance(event, Content):
            self._hear_content(channel, event)
        elif isinstance(event, QueueDeclareOk) and channel == DECLARE:
            self._declaring = ""
            watch.see(seen.Declared(self._program.name, event.queue))
        elif isinstance(event, QueueDeclareOk) and channel == SUBSCRIBE:
            self._client.send(QueueBind(event.queue, NEWS_EXCHANGE), channel=SUBSCRIBE)
            self._client.send(BasicConsume(event.queue, "news", no_ack=True), channel=SUBSCRIBE)
        elif isinstance(event, QueueBindOk):
            self._subscribed = True
        elif isinstance(event, BasicConsumeOk) and channel == SUBSCRIBE:
            watch.see(seen.Subscribed(self._name))
        elif isinstance(event, BasicAck):
            self._confirmed(int(event.delivery_tag), event.multiple)
        elif isinstance(event, BasicNack):
            self._unconfirmed.pop(int(event.delivery_tag), None)
        elif isinstance(event, ChannelClose):
            self._closed(channel, event)
        elif isinstance(event, BasicCancel):
            self._client.send(BasicConsume(event.consumer_tag, event.consumer_tag), channel=CONSUME)

    def _hear_content(self, channel: int, content: Content) -> None:
        assert isinstance(content.method, BasicDeliver)
        body = content.body.decode()
        if channel == CONSUME:
            self._program.watch.see(seen.Consumed(self._name, body))
            self._client.send(BasicAck(content.tag, False), channel=CONSUME)
        else:
            self._program.watch.see(seen.NewsHeard(self._name, body))

    def _confirmed(self, tag: int, multiple: bool) -> None:
        tags = [each for each in self._unconfirmed if each == tag or (multiple and each < tag)]
        for each in tags:
            self._program.watch.see(seen.Confirmed(self._name, self._unconfirmed.pop(each)))

    def _closed(self, channel: int, event: ChannelClose) -> None:
        """A channel was closed by its broker: a change could not be made, or a home is away."""
        self._client.send(ChannelCloseOk(), ChannelOpen(), channel=channel)
        if channel == DECLARE:
            self._declaring = ""
        elif channel == CONSUME:
            for queue in SHARED_QUEUES:
                self._client.send(BasicConsume(queue, queue), channel=CONSUME)
        elif channel == PUBLISH:
            self._tags = 0
            self._unconfirmed.clear()
            self._client.send(ConfirmSelect(), channel=PUBLISH)
