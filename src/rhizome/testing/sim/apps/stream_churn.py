"""An application that declares and deletes streams, so that numbers of groups are reused (G1)."""

from __future__ import annotations

from typing import Final

from rhizome.amqp.methods import (
    BasicAck,
    BasicConsume,
    BasicDeliver,
    BasicNack,
    BasicQos,
    ConfirmSelect,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
)
from rhizome.amqp.properties import Properties, decode_properties
from rhizome.client.protocol_events import ChannelEnded, ContentReceived, MethodReceived
from rhizome.testing.sim.apps.app_program import AppProgram, Workload, body_of, id_of
from rhizome.testing.sim.apps.app_topology import SEGMENT_BYTES, StreamPlan
from rhizome.testing.sim.events import application_events
from rhizome.testing.sim.events import stream_events as told
from rhizome.testing.sim.world.sim_host import Host

ACT_MS_MEAN: Final = 200
LENGTH_MAX: Final = 10
PREFETCH: Final = 4
SIZE: Final = 200


class StreamChurner(AppProgram):
    """Declares a stream, appends to it, reads it from the beginning, deletes it, and begins again.

    Invariant: `_stream` is the stream that may exist; `_unconfirmed` has the appends without an
    answer, by tag, `_length` is how many there were, and `_read` the offset that comes next (-1: it
    doesn't read). Whatever goes wrong it deletes the stream, which may exist or not.
    """

    def __init__(self, host: Host, name: str, workload: Workload) -> None:
        super().__init__(host, name, workload)
        self._channel = 0
        self._stream = ""
        self._waits = False
        self._unconfirmed: dict[int, str] = {}
        self._length = 0
        self._read = -1

    def opened(self) -> None:
        assert self.core is not None
        self._channel = self.core.open_channel()
        self._waits = False
        self._forget()

    def lost(self) -> None:
        self._channel = 0

    def _forget(self) -> None:
        """It is unknown what the stream has: it is to be deleted."""
        if self._stream:
            self.see(told.StreamDeleted(self._stream))
        self._unconfirmed = {}
        self._length = 0
        self._read = -1

    def act(self) -> int:
        if self.workload.is_declared and self._channel and not self._waits and not self.blocked:
            self._go_on()
        return self.pause_ms(ACT_MS_MEAN)

    def _go_on(self) -> None:
        assert self.core is not None
        if not self._stream:
            if not self.workload.is_ending():
                self._make()
        elif self._length == 0 or self._read >= self._length:
            self._forget()
            self._waits = True
            self.core.send(self._channel, QueueDelete(self._stream))
        elif self._read < 0 and not self._unconfirmed:
            self._subscribe()

    def _make(self) -> None:
        assert self.core is not None
        self._stream = self.workload.next_id(f"{self.name}.streams")
        self._waits = True
        self.see(told.StreamMade(self._stream))
        arguments = StreamPlan(self._stream, SEGMENT_BYTES).arguments()
        self.core.send(self._channel, QueueDeclare(self._stream, durable=True, arguments=arguments))

    def _append(self) -> None:
        assert self.core is not None
        self._waits = False
        self.core.send(self._channel, ConfirmSelect())
        self._length = 1 + self.pick(LENGTH_MAX)
        for number in range(1, 1 + self._length):
            message = self.workload.next_id(self.name)
            self._unconfirmed[number] = message
            self.see(
                told.Appended(self.name, self.session, self._channel, message, self._stream, SIZE)
            )
            body = body_of(message, SIZE)
            self.core.publish(self._channel, "", self._stream, False, Properties(), body)

    def _subscribe(self) -> None:
        assert self.core is not None
        self._read = 0
        self.see(
            told.Subscribed(self.name, self.session, self._channel, "c", self._stream, told.FIRST)
        )
        self.core.send(self._channel, BasicQos(0, PREFETCH, False))
        arguments: dict[str, object] = {"x-stream-offset": told.FIRST}
        self.core.send(self._channel, BasicConsume(self._stream, "c", arguments=arguments))

    # --- hearing

    def heard(self, event: MethodReceived | ContentReceived | ChannelEnded) -> None:
        if event.channel != self._channel:
            return
        if isinstance(event, ChannelEnded):
            self._ended()
        elif isinstance(event, ContentReceived):
            if isinstance(event.method, BasicDeliver) and self._read >= 0:
                self._shown(event, int(event.method.delivery_tag))
        elif isinstance(event.method, QueueDeclareOk):
            self._append()
        elif isinstance(event.method, QueueDeleteOk):
            self._stream = ""
            self._change_channel()
        elif isinstance(event.method, (BasicAck, BasicNack)):
            self._answered(event.method)

    def _answered(self, method: BasicAck | BasicNack) -> None:
        tag = int(method.delivery_tag)
        kind = told.AppendConfirmed if isinstance(method, BasicAck) else told.AppendRefused
        for each in [each for each in self._unconfirmed if each <= tag]:
            if each == tag or method.multiple:
                self.see(kind(self._unconfirmed.pop(each)))

    def _shown(self, event: ContentReceived, tag: int) -> None:
        assert self.core is not None
        offset = (decode_properties(event.header).headers or {}).get("x-stream-offset")
        assert isinstance(offset, int), offset
        message = id_of(event.body)
        intact = int(event.body == body_of(message, len(event.body)))
        self.see(
            told.Shown(
                self.name, self.session, self._channel, "c", self._stream, offset, message, intact
            )
        )
        self._read = offset + 1
        self.core.send(self._channel, BasicAck(tag, False))

    def _change_channel(self) -> None:
        """Use another channel: tags begin at 1 with the next stream."""
        assert self.core is not None
        self.core.close_channel(self._channel)
        self._ended()

    def _ended(self) -> None:
        self.see(application_events.ChannelGone(self.session, self._channel))
        self.opened()
