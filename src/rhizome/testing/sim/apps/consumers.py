"""Applications that consume: push and pull, with acks of their own or automatic ones."""

from __future__ import annotations

from typing import Final

from rhizome.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicNack,
    BasicQos,
    BasicQosOk,
    BasicReject,
    ChannelOpenOk,
    QueuePurge,
    QueuePurgeOk,
)
from rhizome.client.protocol_events import ChannelEnded, ContentReceived, MethodReceived
from rhizome.testing.sim.apps.app_program import AppProgram, Workload, body_of, died_in, id_of
from rhizome.testing.sim.events import application_events as told
from rhizome.testing.sim.world.sim_host import Host

ACT_MS_MEAN: Final = 150
PREFETCHES: Final = (1, 3, 20, 0)
QUEUES_MAX: Final = 4
REQUEUE_CHANCE: Final = 0.06
REJECT_CHANCE: Final = 0.03
HOLD_CHANCE: Final = 0.3
CANCEL_CHANCE: Final = 0.004
CLOSE_CHANCE: Final = 0.004
PURGE_CHANCE: Final = 0.01
CONSUME_AGAIN_MS: Final = 500


class _Place:
    """A channel that consumes or pulls from one queue.

    Invariant: `held` are the tags that are not settled, oldest first.
    """

    __slots__ = ("asked", "channel", "consumer", "consuming", "held", "prefetch", "pulls", "queue")

    def __init__(self, queue: str, pulls: bool, prefetch: int) -> None:
        self.queue = queue
        self.pulls = pulls
        self.prefetch = prefetch
        self.channel = 0
        self.consumer = ""
        self.consuming = False
        self.asked = False
        self.held: list[int] = []


class Worker(AppProgram):
    """Consumes some queues, each on its own channel, and settles messages in every way there is."""

    hold_chance = HOLD_CHANCE

    def __init__(self, host: Host, name: str, workload: Workload, queues: list[str]) -> None:
        super().__init__(host, name, workload)
        self._places = [
            _Place(queue, self.chance.random() < 0.15, PREFETCHES[self.pick(len(PREFETCHES))])
            for queue in queues
        ]
        self._tags = 0

    def opened(self) -> None:
        for place in self._places:
            place.channel = 0

    def lost(self) -> None:
        for place in self._places:
            place.channel = 0

    # --- acting

    def act(self) -> int:
        if not self.workload.is_declared:
            return CONSUME_AGAIN_MS
        place = self._places[self.pick(len(self._places))]
        if place.channel == 0:
            self._begin(place)
        elif self.workload.is_calm:
            self._finish(place)
        else:
            self._live(place)
        if place.pulls and place.channel and not place.asked:
            self._pull(place)
        return self.pause_ms(ACT_MS_MEAN)

    def _begin(self, place: _Place) -> None:
        assert self.core is not None
        place.channel = self.core.open_channel()
        place.held = []
        place.asked = False
        place.consuming = False
        if place.pulls:
            return
        if place.prefetch:
            self.core.send(place.channel, BasicQos(0, place.prefetch, False))
        self._consume(place)

    def _consume(self, place: _Place) -> None:
        assert self.core is not None
        self._tags += 1
        place.consumer = f"{self.name}.{self._tags}"
        arguments: dict[str, object] = {}
        if self.chance.random() < 0.2:
            arguments["x-priority"] = 1 + self.pick(3)
        automatic = self._takes(place)
        method = BasicConsume(place.queue, place.consumer, no_ack=automatic, arguments=arguments)
        self.core.send(place.channel, method)
        place.asked = True
        self.asks(place.channel)

    def _pull(self, place: _Place) -> None:
        assert self.core is not None
        place.asked = True
        self.core.send(place.channel, BasicGet(place.queue, self._takes(place)))
        self.asks(place.channel)

    def _takes(self, place: _Place) -> bool:
        """Report that it asks for messages; returns whether with automatic acks."""
        self.see(told.Takes(self.session, place.channel, place.queue))
        automatic = self.workload.topology.queues[place.queue].automatic
        if automatic:
            self.see(told.TakesUnseen(self.session, place.channel, place.queue))
        return automatic

    def _live(self, place: _Place) -> None:
        """Act like an application: settle one or many, keep messages, requeue them, cancel."""
        draw = self.chance.random()
        if draw < CLOSE_CHANCE:
            self._close(place)
        elif draw < CLOSE_CHANCE + CANCEL_CHANCE and place.consuming and not place.asked:
            self._cancel(place)
        elif draw < CLOSE_CHANCE + CANCEL_CHANCE + PURGE_CHANCE:
            self._purge(place)
        elif place.held and self.chance.random() >= self.hold_chance:
            self._settle_some(place)

    def _finish(self, place: _Place) -> None:
        """Requeue nothing any more, and keep nothing."""
        if place.held:
            self._settle(place, place.held[-1], told.ACK, multiple=True)
        if not place.pulls and not place.consuming and not place.asked:
            self._consume(place)

    def _settle_some(self, place: _Place) -> None:
        draw = self.chance.random()
        at = self.pick(len(place.held))
        if draw < REQUEUE_CHANCE:
            self._settle(place, place.held[at], told.REQUEUE, self.chance.random() < 0.3)
        elif draw < REQUEUE_CHANCE + REJECT_CHANCE:
            self._settle(place, place.held[at], told.REJECT, multiple=False)
        elif draw < 0.4:
            self._settle(place, place.held[at], told.ACK, multiple=False)
        else:
            self._settle(place, place.held[-1 if draw < 0.8 else at], told.ACK, multiple=True)

    def _settle(self, place: _Place, tag: int, verdict: str, multiple: bool) -> None:
        assert self.core is not None
        if verdict == told.ACK:
            self.core.send(place.channel, BasicAck(tag, multiple))
        elif multiple:
            self.core.send(place.channel, BasicNack(tag, True, verdict == told.REQUEUE))
        else:
            self.core.send(place.channel, BasicReject(tag, verdict == told.REQUEUE))
        settled = [each for each in place.held if each == tag or (multiple and each < tag)]
        place.held = [each for each in place.held if each not in settled]
        for each in settled:
            self.see(told.SettledBy(self.session, place.channel, each, verdict, 0))

    def _cancel(self, place: _Place) -> None:
        assert self.core is not None
        self.core.send(place.channel, BasicCancel(place.consumer))
        self.see(told.CancelSent(self.session, place.channel, place.consumer))
        place.asked = True
        self.asks(place.channel)

    def _close(self, place: _Place) -> None:
        assert self.core is not None
        self.core.close_channel(place.channel)
        self._ended(place)

    def _ended(self, place: _Place) -> None:
        self.was_answered(place.channel)
        self.see(told.ChannelGone(self.session, place.channel))
        place.channel = 0

    def _purge(self, place: _Place) -> None:
        assert self.core is not None
        if self.workload.topology.queues[place.queue].purged and not place.asked:
            self.see(told.PurgeSent(place.queue))
            self.core.send(place.channel, QueuePurge(place.queue))
            self.asks(place.channel)

    # --- hearing

    def heard(self, event: MethodReceived | ContentReceived | ChannelEnded) -> None:
        place = next((each for each in self._places if each.channel == event.channel), None)
        if place is None:
            if isinstance(event, ChannelEnded):
                # Until now its broker may have sent messages to the channel.
                self.see(told.ChannelGone(self.session, event.channel))
            return
        if isinstance(event, ChannelEnded):
            self._ended(place)
        elif isinstance(event, ContentReceived):
            self._message(place, event)
        else:
            self._answer(place, event)

    def _answer(self, place: _Place, event: MethodReceived) -> None:
        method = event.method
        if not isinstance(method, (ChannelOpenOk, BasicQosOk)):
            self.was_answered(place.channel)
        if isinstance(method, BasicConsumeOk):
            place.consuming, place.asked = True, False
            self.see(
                told.Consuming(
                    self.session, place.channel, place.consumer, place.queue, place.prefetch
                )
            )
        elif isinstance(method, (BasicCancelOk, BasicCancel)):
            kind = told.Cancelled if isinstance(method, BasicCancel) else told.ConsumerGone
            self.see(kind(self.session, place.channel, place.consumer))
            place.consuming = False
            self._consume(place)
        elif isinstance(method, BasicGetEmpty):
            place.asked = False
        elif isinstance(method, QueuePurgeOk):
            self.see(told.PurgeAnswered(place.queue))

    def _message(self, place: _Place, event: ContentReceived) -> None:
        method = event.method
        assert isinstance(method, (BasicDeliver, BasicGetOk)), method
        tag = int(method.delivery_tag)
        automatic = self.workload.topology.queues[place.queue].automatic
        message = id_of(event.body)
        self.see(
            told.Delivered(
                self.name,
                self.session,
                place.channel,
                place.consumer if isinstance(method, BasicDeliver) else "",
                tag,
                place.queue,
                message,
                int(method.redelivered),
                int(automatic),
                int(event.body == body_of(message, len(event.body))),
                died_in(event.header),
            )
        )
        if not automatic:
            place.held.append(tag)
            if self.workload.is_calm:
                self._finish(place)
        if isinstance(method, BasicGetOk):
            self.was_answered(place.channel)
            place.asked = False
            if self.workload.is_calm:
                self._pull(place)
