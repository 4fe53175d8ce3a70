"""Applications that use streams: they append with confirms or in transactions, and read.

A reader that loses its connection continues with the offset after the last one that it has seen, at
any broker. One that was killed knows nothing, and begins anywhere. Some are named readers instead,
and leave it to the stream where they continue.
"""

from __future__ import annotations

from typing import Final

from rhizome.amqp.frames import body_of as body_of_content
from rhizome.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicDeliver,
    BasicNack,
    BasicQos,
    ConfirmSelect,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
)
from rhizome.amqp.properties import Properties, decode_properties
from rhizome.client.protocol_events import ChannelEnded, ContentReceived, MethodReceived
from rhizome.journal.streams.stream_format import ChunkHead, check_chunk, entries_of
from rhizome.testing.sim.apps.app_program import AppProgram, Workload, body_of, id_of
from rhizome.testing.sim.events import application_events
from rhizome.testing.sim.events import stream_events as told
from rhizome.testing.sim.world.sim_host import Host

PAUSE_MS_MEAN: Final = 250
ACT_MS_MEAN: Final = 150
WAIT_MS: Final = 500
BURST_MAX: Final = 5
UNCONFIRMED_MAX: Final = 30
SIZES: Final = (20, 20, 60, 300, 2_000)
CHANNEL_CHANCE: Final = 0.01
PREFETCHES: Final = (1, 4, 50)
HOLD_CHANCE: Final = 0.3
END_CHANCE: Final = 0.008
"""How often a reader ends its subscription, and begins another."""
JUMP_CHANCE: Final = 0.15
"""How often it then begins somewhere else."""
NAMED_CHANCE: Final = 0.35
STEPS_MAX: Final = 4
COMMIT_CHANCE: Final = 0.85


class Appender(AppProgram):
    """Publishes to streams with confirms, a few messages at a time.

    Invariant: `_unconfirmed` has what was sent on the channel and not answered, by tag; `_again`
    what was never answered, for one that sends such things again: stream, size, message id.
    """

    def __init__(self, host: Host, name: str, workload: Workload) -> None:
        super().__init__(host, name, workload)
        self._repeats = self.chance.random() < 0.5
        self._channel = 0
        self._tags = 0
        self._unconfirmed: dict[int, tuple[str, str, int, str]] = {}
        self._again: list[tuple[str, int, str]] = []

    def opened(self) -> None:
        assert self.core is not None
        self._channel = self.core.open_channel()
        self._tags = 0
        self.core.send(self._channel, ConfirmSelect())

    def lost(self) -> None:
        self._channel = 0
        self._forget()

    def _forget(self) -> None:
        """Give up waiting: what is unconfirmed will never be answered."""
        if self._repeats:
            self._again += [unconfirmed[1:] for unconfirmed in self._unconfirmed.values()]
        self._unconfirmed = {}

    def act(self) -> int:
        if not self.workload.is_declared or self.blocked or self._channel == 0:
            return self.pause_ms(PAUSE_MS_MEAN)
        for _ in range(1 + self.pick(BURST_MAX)):
            if len(self._unconfirmed) >= UNCONFIRMED_MAX:
                break
            if self._again:
                self._append(*self._again.pop(0))
            elif not self.workload.is_ending():
                streams = list(self.workload.topology.streams)
                stream, size = streams[self.pick(len(streams))], SIZES[self.pick(len(SIZES))]
                self._append(stream, size, f"of {self.workload.next_id(f'{self.name}.ids')}")
        if self.chance.random() < CHANNEL_CHANCE and not self.workload.is_calm:
            assert self.core is not None
            self.core.close_channel(self._channel)
            self._ended()
        return self.pause_ms(PAUSE_MS_MEAN)

    def _append(self, stream: str, size: int, message_id: str) -> None:
        assert self.core is not None
        message = self.workload.next_id(self.name)
        body = body_of(message, size)
        self._tags += 1
        self._unconfirmed[self._tags] = (message, stream, size, message_id)
        self.see(
            told.Appended(
                self.name,
                self.session,
                self._channel,
                message,
                stream,
                len(body),
                message_id=message_id,
            )
        )
        properties = Properties(message_id=message_id)
        self.core.publish(self._channel, "", stream, False, properties, body)

    def _ended(self) -> None:
        self.see(application_events.ChannelGone(self.session, self._channel))
        self._forget()
        self.opened()

    def heard(self, event: MethodReceived | ContentReceived | ChannelEnded) -> None:
        if event.channel != self._channel:
            return
        if isinstance(event, ChannelEnded):
            self._ended()
        elif isinstance(event, MethodReceived):
            method = event.method
            if isinstance(method, (BasicAck, BasicNack)):
                confirmed = isinstance(method, BasicAck)
                self._answered(int(method.delivery_tag), method.multiple, confirmed)

    def _answered(self, tag: int, multiple: bool, confirmed: bool) -> None:
        kind = told.AppendConfirmed if confirmed else told.AppendRefused
        for each in [each for each in self._unconfirmed if each <= tag]:
            if each == tag or multiple:
                self.see(kind(self._unconfirmed.pop(each)[0]))


class TransactionalAppender(AppProgram):
    """Appends to all streams in transactions, one after the other."""

    def __init__(self, host: Host, name: str, workload: Workload) -> None:
        super().__init__(host, name, workload)
        self._channel = 0
        self._transaction = 0
        self._verdict = ""
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
                    self._transaction = self.workload.next_transaction()
                    self._steps = 1 + self.pick(STEPS_MAX)
            elif self._steps > 0:
                self._steps -= 1
                self._append()
            else:
                self._end()
        return self.pause_ms(ACT_MS_MEAN // 2)

    def _append(self) -> None:
        assert self.core is not None
        streams = list(self.workload.topology.streams)
        stream = streams[self.pick(len(streams))]
        message = self.workload.next_id(self.name)
        body = body_of(message, SIZES[self.pick(len(SIZES))])
        self.see(
            told.Appended(
                self.name,
                self.session,
                self._channel,
                message,
                stream,
                len(body),
                self._transaction,
            )
        )
        self.core.publish(self._channel, "", stream, False, Properties(), body)

    def _end(self) -> None:
        assert self.core is not None
        self._waits = True
        commits = self.workload.is_calm or self.chance.random() < COMMIT_CHANCE
        self._verdict = application_events.COMMIT if commits else application_events.ROLLBACK
        self.see(application_events.TransactionEnds(self._transaction, self._verdict))
        self.core.send(self._channel, TxCommit() if commits else TxRollback())

    def heard(self, event: MethodReceived | ContentReceived | ChannelEnded) -> None:
        if event.channel != self._channel:
            return
        if isinstance(event, ChannelEnded):
            self.see(application_events.ChannelGone(self.session, self._channel))
            self.opened()
        elif isinstance(event, MethodReceived):
            if isinstance(event.method, (TxCommitOk, TxRollbackOk)):
                self.see(application_events.TransactionEnded(self._transaction, self._verdict))
                self._transaction = 0
                self._waits = False


class StreamConsumer(AppProgram):
    """Reads one stream, one subscription after the other.

    Invariant: `_held` are the tags and offsets that are not acked, oldest first; `_next` is the
    offset after the last one seen, -1 if there is none.
    """

    def __init__(self, host: Host, name: str, workload: Workload, stream: str) -> None:
        super().__init__(host, name, workload)
        self._stream = stream
        self._name = f"{name}.name" if _is_named(name, workload) else ""
        self._prefetch = PREFETCHES[self.pick(len(PREFETCHES))]
        self._channel = 0
        self._consumer = ""
        self._consumers = 0
        self._ending = False
        self._held: list[tuple[int, int]] = []
        self._next = -1

    def lost(self) -> None:
        self._channel = 0

    def act(self) -> int:
        if not self.workload.is_declared:
            return WAIT_MS
        if self._channel == 0:
            self._begin()
        elif self._held and (self.workload.is_calm or self.chance.random() >= HOLD_CHANCE):
            self._ack()
        elif self.chance.random() < END_CHANCE and not self.workload.is_calm:
            self._end()
        return self.pause_ms(ACT_MS_MEAN)

    def _begin(self) -> None:
        assert self.core is not None
        self._channel = self.core.open_channel()
        self.core.send(self._channel, BasicQos(0, self._prefetch, False))
        self._subscribe()

    def _subscribe(self) -> None:
        assert self.core is not None
        self._consumers += 1
        self._consumer = f"{self.name}.{self._consumers}"
        self._held = []
        self._ending = False
        start = self._drawn_start()
        self.see(
            told.Subscribed(
                self.name,
                self.session,
                self._channel,
                self._consumer,
                self._stream,
                start,
                self._name,
            )
        )
        method = BasicConsume(self._stream, self._consumer, arguments=self._arguments(start))
        self.core.send(self._channel, method)

    def _arguments(self, start: str) -> dict[str, object]:
        found: dict[str, object] = {"x-stream-offset": int(start) if start.isdecimal() else start}
        if self._name:
            found["x-stream-consumer-name"] = self._name
        return found

    def _drawn_start(self) -> str:
        if self._name:
            return told.FIRST
        if self._next >= 0 and self.chance.random() >= JUMP_CHANCE:
            return str(self._next)
        draw = self.chance.random()
        if draw < 0.4:
            return told.FIRST
        if draw < 0.6 and not self.workload.is_calm:
            return told.NEXT
        return str(self.pick(max(self._next, 0) + 1))

    def _ack(self) -> None:
        """One of them, or all up to one."""
        assert self.core is not None
        at = len(self._held) - 1
        multiple = True
        if not self.workload.is_calm:
            multiple = self.chance.random() < 0.6
            at = self.pick(len(self._held))
        tag = self._held[at][0]
        self.core.send(self._channel, BasicAck(tag, multiple))
        acked = self._held[: at + 1] if multiple else [self._held[at]]
        self._held = [each for each in self._held if each not in acked]
        for _, offset in acked:
            self.see(
                told.DoneWith(self.session, self._channel, self._consumer, self._stream, offset)
            )

    def _end(self) -> None:
        """Cancel, or close the channel."""
        assert self.core is not None
        if self._ending:
            return
        self._over()
        if self.chance.random() < 0.5:
            self._ending = True
            self.core.send(self._channel, BasicCancel(self._consumer))
        else:
            self.core.close_channel(self._channel)
            self._channel = 0

    def _over(self) -> None:
        self._held = []
        self.see(told.Unsubscribed(self.session, self._channel, self._consumer))

    def heard(self, event: MethodReceived | ContentReceived | ChannelEnded) -> None:
        if event.channel != self._channel:
            return
        if isinstance(event, ChannelEnded):
            self._over()
            self._channel = 0
        elif isinstance(event, ContentReceived):
            assert isinstance(event.method, BasicDeliver), event.method
            if event.method.consumer_tag == self._consumer and not self._ending:
                self._shown(event, int(event.method.delivery_tag))
        elif isinstance(event.method, BasicCancelOk):
            self._subscribe()
        elif isinstance(event.method, BasicCancel):
            self._over()
            self._subscribe()

    def _shown(self, event: ContentReceived, tag: int) -> None:
        offset = _number(event, "x-stream-offset")
        self._see(offset, event.body)
        self._take(tag, offset)

    def _see(self, offset: int, body: bytes) -> None:
        message = id_of(body)
        self.see(
            told.Shown(
                self.name,
                self.session,
                self._channel,
                self._consumer,
                self._stream,
                offset,
                message,
                int(body == body_of(message, len(body))),
            )
        )
        self._next = offset + 1

    def _take(self, tag: int, offset: int) -> None:
        """Hold a delivery; its ack gives credit."""
        self._held.append((tag, offset))
        if self.workload.is_calm:
            self._ack()


class ChunkConsumer(StreamConsumer):
    """Reads whole chunks, as the Spark source does. The first delivery tells where a chunk
    starts."""

    def __init__(self, host: Host, name: str, workload: Workload, stream: str) -> None:
        super().__init__(host, name, workload, stream)
        self._name = ""
        self._from = 0

    def _arguments(self, start: str) -> dict[str, object]:
        return super()._arguments(start) | {"x-stream-chunks": True}

    def _shown(self, event: ContentReceived, tag: int) -> None:
        offset = _number(event, "x-stream-offset")
        if event.body:
            head = ChunkHead(event.body, 0)
            check_chunk(event.body, 0, len(event.body))
            for entry in entries_of(event.body, 0, head):
                if entry.offset >= self._from:
                    self._see(int(entry.offset), body_of_content(bytes(entry.content)))
                    self._from = int(entry.offset) + 1
        else:
            self._from = offset
        self._take(tag, offset)


def _number(event: ContentReceived, header: str) -> int:
    number = (decode_properties(event.header).headers or {}).get(header)
    assert isinstance(number, int), header
    return number


def _is_named(name: str, workload: Workload) -> bool:
    """The same answer for all runs of an application."""
    chance = workload.watch.world.chance(f"named {name}")
    return chance.random() < NAMED_CHANCE
