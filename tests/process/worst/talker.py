"""Talker: a raw AMQP client on a blocking socket, which sends what it is told, right or wrong."""

from __future__ import annotations

import socket
from typing import Final

from rhizome.amqp import methods
from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import Method, decode_method
from rhizome.amqp.spec import FRAME_METHOD

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
PATIENCE_S: Final = 300.0
RECEIVE_BYTES: Final = 1 << 20
FRAME_MAX: Final = 131_072


class Talker:
    """One connection, with channel 1 open unless ``channel`` is False."""

    def __init__(
        self,
        host: str,
        port: int,
        vhost: str = "/",
        user: str = "guest",
        password: str = "guest",
        properties: dict[str, object] | None = None,
        channel: bool = True,
        channel_max: int = 2047,
    ) -> None:
        self.socket = socket.create_connection((host, port), timeout=PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.kept = bytearray()
        self.at = 0
        self.socket.sendall(PROTOCOL_HEADER)
        self.expect(methods.ConnectionStart)
        login = f"\0{user}\0{password}".encode()
        self.send(methods.ConnectionStartOk(properties or {}, "PLAIN", login, "en_US"), 0)
        self.expect(methods.ConnectionTune)
        self.send(methods.ConnectionTuneOk(channel_max, FRAME_MAX, 0), 0)
        self.send(methods.ConnectionOpen(vhost), 0)
        self.expect(methods.ConnectionOpenOk)
        if channel:
            self.call(methods.ChannelOpen())

    def send(self, method: Method, channel: int = 1) -> None:
        self.socket.sendall(method_frame(channel, method))

    def send_all(self, sent: list[Method], channel: int = 1) -> None:
        self.socket.sendall(b"".join(method_frame(channel, method) for method in sent))

    def call(self, method: Method, channel: int = 1) -> Method:
        """Send a method and wait for the next one that comes; contents are passed over."""
        self.send(method, channel)
        return self.read_method()

    def expect(self, kind: type[Method]) -> Method:
        """The next method of this kind; what comes before is passed over."""
        while True:
            method = self.read_method()
            if isinstance(method, kind):
                return method
            closed = isinstance(method, (methods.ChannelClose, methods.ConnectionClose))
            assert not closed, f"{method.name()}: {getattr(method, 'reply_text', '')}"

    def read_method(self) -> Method:
        while True:
            kind, payload = self.read_frame()
            if kind == FRAME_METHOD:
                return decode_method(payload)

    def read_frame(self) -> tuple[int, bytes]:
        """Kind and payload of the next frame."""
        self._need(7)
        size = int.from_bytes(self.kept[self.at + 3 : self.at + 7], "big")
        self._need(size + 8)
        kind = self.kept[self.at]
        payload = bytes(self.kept[self.at + 7 : self.at + 7 + size])
        self.at += size + 8
        return kind, payload

    def _need(self, size: int) -> None:
        while len(self.kept) - self.at < size:
            if self.at:
                del self.kept[: self.at]
                self.at = 0
            data = self.socket.recv(RECEIVE_BYTES)
            if not data:
                raise EOFError("the broker has closed the connection")
            self.kept += data

    def read_to_end(self) -> None:
        """Take all that comes until the broker closes the connection."""
        try:
            while self.socket.recv(RECEIVE_BYTES):
                pass
        except OSError:
            pass

    def close(self) -> None:
        self.socket.close()
