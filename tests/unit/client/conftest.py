"""A scripted peer for the client: speaks the server's side of AMQP on a loopback socket.

It answers what it was told to answer, and nothing else; it keeps no queues.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest

from rhizome.amqp import frames, methods, spec
from rhizome.amqp.methods import Method
from rhizome.amqp.properties import Properties, decode_properties, encode_header

M = TypeVar("M", bound=Method)

Answer = Callable[[int, Method], list[Method]]


class ScriptedPeer:
    """One listening socket. `answers` maps a method to what is sent back on its channel.

    `received` is everything that the client sent, in order, as (channel, method); `properties` and
    `bodies` are those of its contents.
    """

    def __init__(self) -> None:
        self.port = 0
        self.received: list[tuple[int, Method]] = []
        self.properties: list[Properties] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self.mechanisms = b"AMQPLAIN PLAIN"
        self.server_properties: dict[str, object] = {"product": "Scripted"}
        self.answers: dict[type[Method], Answer] = dict(HANDSHAKE)
        self._arrived = asyncio.Event()
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    @property
    def uri(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()
        await self._server.wait_closed()

    def send(self, channel: int, *sent: Method) -> None:
        """Send methods to the latest connection."""
        self.send_raw(b"".join(frames.method_frame(channel, method) for method in sent))

    def send_content(self, channel: int, method: Method, body: bytes) -> None:
        """Send a method with its content."""
        header = encode_header(len(body), Properties(message_id="m"))
        self.send_raw(
            frames.method_frame(channel, method)
            + frames.content_frames(channel, header, body, 131_072)
        )

    def send_raw(self, data: bytes) -> None:
        self._writers[-1].write(data)

    def drop(self) -> None:
        """Close the socket without a word."""
        self._writers[-1].transport.abort()

    def answer(self, method: type[Method], *reply: Method) -> None:
        """Always answer `method` with these."""
        self.answers[method] = lambda channel, received: list(reply)

    def of(self, kind: type[M]) -> list[M]:
        """All methods of one kind that have come."""
        return [method for _, method in self.received if isinstance(method, kind)]

    async def until(self, kind: type[M], count: int = 1) -> list[M]:
        """Wait until so many methods of this kind have come."""
        async with asyncio.timeout(5):
            while len(self.of(kind)) < count:
                self._arrived.clear()
                await self._arrived.wait()
        return self.of(kind)

    async def until_bodies(self, count: int) -> list[bytes]:
        """Wait until so many contents have come."""
        async with asyncio.timeout(5):
            while len(self.bodies) < count:
                self._arrived.clear()
                await self._arrived.wait()
        return self.bodies

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        try:
            assert await reader.readexactly(8) == spec.PROTOCOL_HEADER
            start = methods.ConnectionStart(0, 9, self.server_properties, self.mechanisms, b"en_US")
            writer.write(frames.method_frame(0, start))
            while True:
                kind, channel, size = struct.unpack(">BHI", await reader.readexactly(7))
                payload = (await reader.readexactly(size + 1))[:-1]
                if kind == spec.FRAME_METHOD:
                    self._take(writer, channel, methods.decode_method(payload))
                elif kind == spec.FRAME_HEADER:
                    self.properties.append(decode_properties(payload))
                elif kind == spec.FRAME_BODY:
                    self.bodies.append(payload)
                    self._arrived.set()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _take(self, writer: asyncio.StreamWriter, channel: int, method: Method) -> None:
        self.received.append((channel, method))
        self._arrived.set()
        answer = self.answers.get(type(method))
        if answer is not None:
            for reply in answer(channel, method):
                writer.write(frames.method_frame(channel, reply))


HANDSHAKE: dict[type[Method], Answer] = {
    methods.ConnectionStartOk: lambda _, m: [methods.ConnectionTune(2047, 131_072, 60)],
    methods.ConnectionOpen: lambda _, m: [methods.ConnectionOpenOk()],
    methods.ConnectionClose: lambda _, m: [methods.ConnectionCloseOk()],
    methods.ChannelOpen: lambda _, m: [methods.ChannelOpenOk()],
    methods.ChannelClose: lambda _, m: [methods.ChannelCloseOk()],
    methods.ConfirmSelect: lambda _, m: [methods.ConfirmSelectOk()],
    methods.BasicQos: lambda _, m: [methods.BasicQosOk()],
    methods.BasicConsume: lambda _, m: [methods.BasicConsumeOk("tag")],
    methods.BasicCancel: lambda _, m: [methods.BasicCancelOk("tag")],
    methods.QueueDeclare: lambda _, m: [methods.QueueDeclareOk("q", 3, 1)],
}


@asynccontextmanager
async def scripted_peer(tls: ssl.SSLContext | None = None) -> AsyncIterator[ScriptedPeer]:
    peer = ScriptedPeer()
    await peer.start(tls)
    try:
        yield peer
    finally:
        await peer.stop()


@pytest.fixture
def peer_context() -> Callable[..., object]:
    """`async with peer_context() as peer`: a scripted peer on a port of its own."""
    return scripted_peer
