"""A core under attack: what must hold for it at any time, and when everybody has gone.

- The core never reports a mistake of its own (`Core.settle` raises it), and never answers 541.
- Whatever it sends is whole frames, in order, that a client can decode; a close has a known code
  and a text that begins with the code's name; nothing follows it but close-ok.
- A well-behaved client on the same core gets its confirms and its messages, each in time.
- What is kept of unfinished input is bounded.
- When all clients have gone and all queues are deleted nothing is resident, no journal record is
  referred to, and nobody is waited for.
"""

from __future__ import annotations

from typing import Final

from rhizome import errors
from rhizome.amqp import methods as m
from rhizome.amqp.frames import method_frame
from rhizome.amqp.properties import Properties, body_size_of, decode_properties
from rhizome.amqp.spec import FRAME_BODY, FRAME_HEADER, FRAME_HEARTBEAT, FRAME_METHOD
from rhizome.broker.access.auth_interface import Peer
from rhizome.broker.connection.connection_states import CLOSED, CLOSING, RUNNING
from rhizome.testing.in_memory_broker import PROTOCOL_HEADER, Content, Core, CoreClient, make_core

TAIL_BYTES_MAX: Final = 3 * 131072
GONE_MS: Final = 30_000


def _leaves(base: type[errors.AmqpError]) -> dict[int, str]:
    return {kind.code: kind.name for kind in base.__subclasses__()}


CHANNEL_CODES: Final = _leaves(errors.ChannelError)
CONNECTION_CODES: Final = _leaves(errors.ConnectionFault)
INTERNAL: Final = errors.InternalFault.code


class RawClient(CoreClient):
    """The other end of a connection that sends whatever it is told to, and checks what comes.

    `closes` are the channel.close methods that have come; `close` is the connection.close.
    """

    def __init__(self, core: Core) -> None:
        self.core = core
        self.frame_max = 131072
        self.events = {}
        self.heartbeats = 0
        self.closed = False
        self.reading = True
        self._input = b""
        self.output = b""
        self.close: m.ConnectionClose | None = None
        self.closes: list[tuple[int, m.ChannelClose]] = []
        self.methods: list[tuple[int, m.Method]] = []
        self._awaited: dict[int, tuple[bytes, int]] = {}
        self.connection = core.broker.connect("hostile", Peer("127.0.0.1", 2, loopback=True))
        self.connection.port = self

    def shake_hands(self, heartbeat: int = 0, frame_max: int = 131072) -> None:
        capabilities: dict[str, object] = {
            "consumer_cancel_notify": True,
            "authentication_failure_close": True,
        }
        start_ok = m.ConnectionStartOk({"capabilities": capabilities}, "PLAIN", b"\0guest\0guest")
        self.send_bytes(PROTOCOL_HEADER)
        self.send(start_ok, channel=0)
        self.send(m.ConnectionTuneOk(2047, frame_max, heartbeat), channel=0)
        self.send(m.ConnectionOpen("/"), channel=0)
        assert self.connection.stage == RUNNING

    def open_channels(self) -> list[int]:
        channels = self.connection.channels
        return [number for number, channel in channels.items() if not channel.closing]

    def held_tags(self, number: int) -> list[int]:
        channel = self.connection.channels.get(number)
        return [] if channel is None else channel.unacked.tags()

    def is_transactional(self, number: int) -> bool:
        channel = self.connection.channels.get(number)
        return channel is not None and channel.transaction is not None

    def feed(self, pieces: list[bytes]) -> None:
        """Bytes as several reads of one turn."""
        self.core.broker.turn.now_ms = self.core.now_ms
        for piece in pieces:
            self.connection.receive(piece)
        self.core.settle()

    def _parse(self) -> None:
        data, self._input = self._input, b""
        self.output += data
        if data == PROTOCOL_HEADER:
            assert self.connection.stage == CLOSED
            return
        at = 0
        while at < len(data):
            size = int.from_bytes(data[at + 3 : at + 7], "big")
            end = at + size + 8
            assert end <= len(data), "a frame was cut short"
            assert data[end - 1] == 0xCE, "a frame has no end"
            assert size + 8 <= self.connection.frame_max, "a frame is larger than was agreed"
            number = int.from_bytes(data[at + 1 : at + 3], "big")
            self._check_frame(data[at], number, data[at + 7 : end - 1])
            at = end

    def _check_frame(self, kind: int, channel: int, payload: bytes) -> None:
        if kind == FRAME_HEARTBEAT:
            assert channel == 0
            assert payload == b""
        elif kind == FRAME_METHOD:
            assert channel not in self._awaited, "a method came in the middle of a content"
            method = m.decode_method(payload)
            self.methods.append((channel, method))
            self._check_method(channel, method)
        else:
            self._check_content(kind, channel, payload)

    def _check_method(self, channel: int, method: m.Method) -> None:
        if self.close is not None:
            assert isinstance(method, m.ConnectionCloseOk), f"{method.name()} came after a close"
        if isinstance(method, m.ConnectionClose):
            _check_close(method.reply_code, method.reply_text, CONNECTION_CODES | CHANNEL_CODES)
            self.close = method
        elif isinstance(method, m.ChannelClose):
            _check_close(method.reply_code, method.reply_text, CHANNEL_CODES)
            self.closes.append((channel, method))
        elif isinstance(method, (m.BasicDeliver, m.BasicGetOk, m.BasicReturn)):
            self._awaited[channel] = (b"", -1)

    def _check_content(self, kind: int, channel: int, payload: bytes) -> None:
        body, left = self._awaited.pop(channel)
        if left < 0:
            assert kind == FRAME_HEADER
            decode_properties(payload)
            left = int(body_size_of(payload))
        else:
            assert kind == FRAME_BODY
            assert 0 < len(payload) <= left
            left -= len(payload)
        if left > 0:
            self._awaited[channel] = (body, left)

    def check(self) -> None:
        """Between turns no frame or content is unfinished, and little input is kept."""
        if self.reading:
            assert not self._awaited, "a content was not sent to its end"
        assert len(self.connection.tail) <= TAIL_BYTES_MAX
        if self.close is not None:
            assert self.connection.stage in (CLOSING, CLOSED)

    def check_working(self) -> None:
        """A connection that was not closed and is not amid a frame still takes commands."""
        connection = self.connection
        is_amid = len(connection.tail) > 0 or connection.waiting or not self.reading
        if connection.stage != RUNNING or is_amid:
            return
        number = 1234
        if len(connection.channels) >= connection.channel_max or number in connection.channels:
            return
        self.methods.clear()
        self.send(m.ChannelOpen(), channel=number)
        assert any(
            channel == number and isinstance(method, m.ChannelOpenOk)
            for channel, method in self.methods
        ), "a running connection does not answer"


def _check_close(code: int, text: str, known: dict[int, str]) -> None:
    assert code != INTERNAL, text
    assert code in known, (code, text)
    assert text.startswith(f"{known[code]} - "), text
    assert len(text.encode("utf-8", "surrogateescape")) <= 255


class RecordedClient(CoreClient):
    """A client that keeps the bytes that came."""

    output = b""

    def _parse(self) -> None:
        self.output += self._input
        super()._parse()


class GoodClient:
    """A client that does nothing wrong, on a private queue, and wants to be served."""

    def __init__(self, core: Core) -> None:
        self.client = RecordedClient(core)
        self.client.call(m.QueueDeclare("good", exclusive=True), m.QueueDeclareOk)
        self.client.consume("good", "good")
        self.client.confirm()
        self.published = 0

    def work(self) -> None:
        """Publish, be confirmed, receive and acknowledge."""
        self.published += 1
        body = b"good %d" % self.published
        self.client.publish("", "good", body, Properties(delivery_mode=2))
        events = self.client.take()
        confirms = [event for event in events if isinstance(event, m.BasicAck)]
        assert [confirm.delivery_tag for confirm in confirms] == [self.published]
        contents = [event for event in events if isinstance(event, Content)]
        assert body in [content.body for content in contents], "a good client is not served"
        assert len(confirms) + len(contents) == len(events), events
        for content in contents:
            self.client.send(m.BasicAck(content.tag, False))
        assert not self.client.closed


class Arena:
    """A core with one good client and any number of hostile ones."""

    def __init__(self, resident_budget_bytes: int = 0, good: bool = True) -> None:
        self.core = make_core(resident_budget_bytes)
        self.good = GoodClient(self.core) if good else None
        self.hostile: list[RawClient] = []

    def intrude(self) -> RawClient:
        client = RawClient(self.core)
        self.hostile.append(client)
        return client

    def check(self) -> None:
        broker = self.core.broker
        assert broker.pager.resident_bytes >= 0
        for client in self.hostile:
            client.check()
        for vhost in broker.state.vhosts.values():
            for queue in vhost.destinations.values():
                counts = self.core.queue(queue.name)
                assert counts.ready >= 0
                assert counts.unacked >= 0
                assert counts.ready_bytes >= 0
        if self.good is not None:
            self.good.work()

    def finish(self) -> None:
        """Everybody goes and everything is deleted; see what is left."""
        for client in self.hostile:
            client.check_working()
            client.check()
        for client in self.hostile:
            if not client.closed:
                client.close_socket()
        self.core.advance(GONE_MS)
        cleaner = self.core.connect()
        for name in list(self.core.broker.state.vhosts["/"].destinations):
            if name != "good":
                cleaner.call(m.QueueDelete(name), m.QueueDeleteOk)
        cleaner.close_socket()
        if self.good is not None:
            self.good.work()
            self.good.client.send_bytes(method_frame(0, m.ConnectionClose(200, "", 0, 0)))
            self.good.client.expect(m.ConnectionCloseOk, 0)
        self.core.advance(GONE_MS)
        self.check_empty()
        again = self.core.restarted()
        assert not again.broker.state.vhosts["/"].destinations
        assert again.store.journal.live_references() == {}

    def check_empty(self) -> None:
        broker = self.core.broker
        assert broker.connections == {}
        assert broker.state.vhosts["/"].destinations == {}
        assert broker.pager.resident_bytes == 0
        assert self.core.store.journal.live_references() == {}
        assert self.core.store.spill.live_references() == {}
        assert broker.timers.queues == {}
        assert broker.replies.consumers == {}
        assert (broker.delayed.retries, broker.delayed.queues) == ([], {})
        waiting = (broker.stalled, broker.congested, broker.unconfirmed, broker.commits)
        assert not any(waiting), waiting
        assert not broker.dead_letters
        assert not broker.waiting.methods
        assert not broker.pager.waiting
