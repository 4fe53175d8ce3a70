"""Applications that publish: with confirms, and in transactions."""

from __future__ import annotations

from typing import Final

from rhizome.amqp.methods import (
    BasicAck,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicNack,
    BasicReturn,
    ChannelOpenOk,
    ConfirmLevel,
    ConfirmSelect,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
    TxSelectOk,
)
from rhizome.amqp.properties import Properties
from rhizome.client.confirm_level import CAPABILITY
from rhizome.client.protocol_events import ChannelEnded, ContentReceived, MethodReceived
from rhizome.testing.sim.apps.app_program import AppProgram, Workload, body_of, died_in, id_of
from rhizome.testing.sim.apps.app_topology import DELAY_MS_MAX, GRAVES, LATER
from rhizome.testing.sim.events import application_events as told
from rhizome.testing.sim.world.sim_host import Host

PAUSE_MS_MEAN: Final = 250
BURST_MAX: Final = 4
UNCONFIRMED_MAX: Final = 30
SIZES: Final = (20, 20, 20, 300, 4_000)
BIG_SIZE: Final = 150_000
BIG_CHANCE: Final = 0.003
TRANSIENT_CHANCE: Final = 0.25
MANDATORY_CHANCE: Final = 0.2
NOWHERE_CHANCE: Final = 0.03
CHANNEL_CHANCE: Final = 0.01
"""How often an application closes its channel and continues with another."""
PERSISTENT: Final = 2
TRANSIENT: Final = 1

FORGETS: Final = "forgets"
SENDS_AGAIN: Final = "sends again"
SENDS_THE_SAME: Final = "sends the same"
AFTERWARDS: Final = (FORGETS, SENDS_AGAIN, SENDS_THE_SAME)
"""What a publisher does about messages without an answer: nothing, send them again under another
message id as new ones, or under the same message id as duplicates."""


class Outgoing:
    """A message that an application sends, perhaps more than once."""

    __slots__ = (
        "delay_ms",
        "exchange",
        "key",
        "mandatory",
        "message_id",
        "persistent",
        "priority",
        "size",
    )

    def __init__(self, exchange: str, key: str) -> None:
        self.exchange = exchange
        self.key = key
        self.persistent = True
        self.mandatory = False
        self.priority = 0
        self.message_id = ""
        self.size = 0
        self.delay_ms = 0


class Sender(AppProgram):
    """Base of both kinds of publishers: it chooses messages and sends them."""

    def _drawn(self) -> Outgoing:
        places = self.workload.topology.destinations()
        exchange, key = places[self.pick(len(places))]
        if self.chance.random() < NOWHERE_CHANCE:
            exchange, key = "", "nowhere"
        outgoing = Outgoing(exchange, key)
        outgoing.persistent = self.chance.random() >= TRANSIENT_CHANCE
        outgoing.mandatory = self.chance.random() < MANDATORY_CHANCE
        outgoing.priority = self.pick(5) if key == "urgent" else 0
        if exchange == LATER:
            outgoing.delay_ms = 1 + self.pick(DELAY_MS_MAX)
            outgoing.mandatory = False
        big = self.chance.random() < BIG_CHANCE
        outgoing.size = BIG_SIZE if big else SIZES[self.pick(len(SIZES))]
        return outgoing

    def _send(self, channel: int, outgoing: Outgoing, transaction: int = 0) -> str:
        assert self.core is not None
        message = self.workload.next_id(self.name)
        body = body_of(message, outgoing.size)
        self.see(
            told.Sent(
                self.name,
                self.session,
                channel,
                message,
                outgoing.exchange,
                outgoing.key,
                int(outgoing.persistent),
                int(outgoing.mandatory),
                outgoing.priority,
                outgoing.message_id,
                transaction,
                len(body),
            )
        )
        properties = Properties(
            delivery_mode=PERSISTENT if outgoing.persistent else TRANSIENT,
            priority=outgoing.priority or None,
            message_id=outgoing.message_id or None,
            headers={"x-delay": outgoing.delay_ms} if outgoing.delay_ms else None,
        )
        self.core.publish(
            channel, outgoing.exchange, outgoing.key, outgoing.mandatory, properties, body
        )
        return message


class Publisher(Sender):
    """Publishes with confirms, a few at a time.

    Every second publisher asks for reliability levels. Invariant: `_unconfirmed` has what was sent
    on the channel and not answered, by tag; `_unleveled` what was confirmed and waits for its
    level.
    """

    def __init__(self, host: Host, name: str, workload: Workload) -> None:
        super().__init__(host, name, workload)
        self._afterwards = AFTERWARDS[self.pick(len(AFTERWARDS))]
        self._channel = 0
        self._tags = 0
        self._unconfirmed: dict[int, tuple[str, Outgoing]] = {}
        self._unleveled: dict[int, str] = {}
        if name[-1] in "02468":
            self.capabilities = (CAPABILITY,)
        self._again: list[Outgoing] = []

    def opened(self) -> None:
        self._open_channel()

    def lost(self) -> None:
        self._channel = 0
        self._forget()

    def _open_channel(self) -> None:
        assert self.core is not None
        self._channel = self.core.open_channel()
        self._tags = 0
        self.core.send(self._channel, ConfirmSelect())

    def _forget(self) -> None:
        """Give up waiting: what is unconfirmed will never be answered."""
        left = [outgoing for _, outgoing in self._unconfirmed.values()]
        self._unconfirmed = {}
        self._unleveled = {}
        if self._afterwards == FORGETS:
            return
        for outgoing in left:
            if self._afterwards == SENDS_AGAIN:
                outgoing.message_id = ""
            self._again.append(outgoing)

    def act(self) -> int:
        if not self.workload.is_declared or self.blocked or self._channel == 0:
            return self.pause_ms(PAUSE_MS_MEAN)
        for _ in range(1 + self.pick(BURST_MAX)):
            if len(self._unconfirmed) >= UNCONFIRMED_MAX:
                break
            if self._again:
                self._publish(self._again.pop(0))
            elif not self.workload.is_ending():
                self._publish(self._new())
        if self.chance.random() < CHANNEL_CHANCE and not self.workload.is_calm:
            self._change_channel()
        return self.pause_ms(PAUSE_MS_MEAN)

    def _new(self) -> Outgoing:
        outgoing = self._drawn()
        if self._afterwards == SENDS_THE_SAME:
            outgoing.message_id = f"of {self.workload.next_id(f'{self.name}.ids')}"
            if "once" in self.workload.topology.queues and self.chance.random() < 0.5:
                outgoing.exchange, outgoing.key, outgoing.delay_ms = "", "once", 0
        return outgoing

    def _publish(self, outgoing: Outgoing) -> None:
        self._tags += 1
        self._unconfirmed[self._tags] = (self._send(self._channel, outgoing), outgoing)

    def _change_channel(self) -> None:
        assert self.core is not None
        self.core.close_channel(self._channel)
        self._ended()

    def _ended(self) -> None:
        """The channel is closed: what was sent on it gets no more answers."""
        self.see(told.ChannelGone(self.session, self._channel))
        self._forget()
        self._open_channel()

    def heard(self, event: MethodReceived | ContentReceived | ChannelEnded) -> None:
        if event.channel != self._channel:
            return
        if isinstance(event, ChannelEnded):
            self._ended()
        elif isinstance(event, ContentReceived):
            assert isinstance(event.method, BasicReturn), event.method
            self.see(told.Returned(id_of(event.body)))
        elif isinstance(event.method, BasicAck):
            self._answered(int(event.method.delivery_tag), event.method.multiple, True)
        elif isinstance(event.method, BasicNack):
            self._answered(int(event.method.delivery_tag), event.method.multiple, False)
        elif isinstance(event.method, ConfirmLevel):
            tag = int(event.method.delivery_tag)
            for each in [each for each in self._unleveled if each <= tag]:
                self.see(told.LevelTold(self._unleveled.pop(each), int(event.method.level)))

    def _answered(self, tag: int, multiple: bool, confirmed: bool) -> None:
        """Confirms come in any order; `multiple` answers all up to the tag."""
        tags = [each for each in self._unconfirmed if each == tag or (multiple and each < tag)]
        for each in tags:
            message, _ = self._unconfirmed.pop(each)
            self.see(told.Confirmed(message) if confirmed else told.Nacked(message))
            if confirmed and self.capabilities:
                self._unleveled[each] = message


class TransactionalPublisher(Sender):
    """Publishes and acknowledges in transactions, one after the other."""

    pulls: tuple[str, ...] = ("orders", "bills", GRAVES)
    """The queues that it takes messages from."""
    pull_chance = 0.3

    def __init__(self, host: Host, name: str, workload: Workload) -> None:
        super().__init__(host, name, workload)
        self._channel = 0
        self._transaction = 0
        self._verdict = ""
        self._pulled = ""
        self._steps = 0
        self._waits = False

    def opened(self) -> None:
        assert self.core is not None
        self._channel = self.core.open_channel()
        self.core.send(self._channel, TxSelect())
        self._transaction = 0
        self._waits = False

    def lost(self) -> None:
        self._channel = 0

    def act(self) -> int:
        if self.workload.is_declared and not self.blocked and self._channel and not self._waits:
            if self._transaction == 0:
                if not self.workload.is_ending():
                    self._begin()
            elif self._steps > 0:
                self._steps -= 1
                self._step()
            else:
                self._end()
        return self.pause_ms(PAUSE_MS_MEAN // 2)

    def _begin(self) -> None:
        self._transaction = self.workload.next_transaction()
        self._steps = 1 + self.pick(4)

    def _step(self) -> None:
        """Mostly a publish, sometimes a message to acknowledge."""
        assert self.core is not None
        if self.chance.random() < self.pull_chance:
            self._waits = True
            self._pulled = self.pulls[self.pick(len(self.pulls))]
            self.see(told.Takes(self.session, self._channel, self._pulled))
            self.core.send(self._channel, BasicGet(self._pulled, False))
            self.asks(self._channel)
            return
        outgoing = self._drawn()
        nowhere = not self.workload.topology.route(outgoing.exchange, outgoing.key)
        if nowhere or outgoing.delay_ms:
            outgoing.exchange, outgoing.key, outgoing.delay_ms = "work", "both", 0
        outgoing.persistent = True
        self._send(self._channel, outgoing, self._transaction)

    def _end(self) -> None:
        assert self.core is not None
        self._waits = True
        commits = self.workload.is_calm or self.chance.random() < 0.8
        verdict = told.COMMIT if commits else told.ROLLBACK
        self._verdict = verdict
        self.see(told.TransactionEnds(self._transaction, verdict))
        self.core.send(self._channel, TxCommit() if commits else TxRollback())
        self.asks(self._channel)

    def heard(self, event: MethodReceived | ContentReceived | ChannelEnded) -> None:
        if event.channel != self._channel:
            return
        if isinstance(event, (ChannelEnded, ContentReceived)) or not isinstance(
            event.method, (ChannelOpenOk, TxSelectOk)
        ):
            self.was_answered(event.channel)
        if isinstance(event, ChannelEnded):
            self.see(told.ChannelGone(self.session, self._channel))
            self.opened()
        elif isinstance(event, ContentReceived):
            if isinstance(event.method, BasicGetOk):
                self._pulled_one(event, event.method)
        elif isinstance(event.method, (TxCommitOk, TxRollbackOk)):
            self._waits = False
            self.see(told.TransactionEnded(self._transaction, self._verdict))
            if self._verdict == told.ROLLBACK:
                self._change_channel()
            self._transaction = 0
        elif isinstance(event.method, BasicGetEmpty):
            self._waits = False

    def _pulled_one(self, event: ContentReceived, method: BasicGetOk) -> None:
        assert self.core is not None
        self._waits = False
        tag = int(method.delivery_tag)
        message = id_of(event.body)
        self.see(
            told.Delivered(
                self.name,
                self.session,
                self._channel,
                "",
                tag,
                self._pulled,
                message,
                int(method.redelivered),
                0,
                int(event.body == body_of(message, len(event.body))),
                died_in(event.header),
            )
        )
        self.core.send(self._channel, BasicAck(tag, False))
        self.see(told.SettledBy(self.session, self._channel, tag, told.ACK, self._transaction))

    def _change_channel(self) -> None:
        """After a rollback what was acked in the transaction is held again: close the channel to
        give it up."""
        assert self.core is not None
        self.core.close_channel(self._channel)
        self.see(told.ChannelGone(self.session, self._channel))
        self.opened()
