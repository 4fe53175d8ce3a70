"""Records of TLS that bring nothing: a client may send a few of them, and no more."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from rhizome.security.tls import ListenerTls
from rhizome.security.tls_empty_record_limit import BARREN_RECORDS_MAX, HANDSHAKE_RECORDS_MAX
from tests.key_updates import KEY_UPDATE_BYTES, KeyUpdatingClient
from tests.unit.security.test_tls import client_context, pem, pytestmark, settings

__all__ = ["pem", "pytestmark"]

KEY_UPDATES: Final = 5_000
RECORD_PLAIN_BYTES_MAX: Final = 16_384


class Wire:
    """The server's side of a connection, as an event loop drives it."""

    def __init__(self, listener: ListenerTls) -> None:
        self.arrived = ssl.MemoryBIO()
        self.sent = ssl.MemoryBIO()
        self.side = listener.context.wrap_bio(self.arrived, self.sent, server_side=True)

    def read_all(self) -> bytes:
        """All plain text that there is, by the event loop's rule of when there is some."""
        found = b""
        with suppress(ssl.SSLWantReadError):
            while self.arrived.pending or self.side.pending():
                found += self.side.read(1 << 18)
        return found


def shake_hands(wire: Wire, client: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.MemoryBIO]:
    """The client's side, and where it writes what the server is to be given."""
    to_server = ssl.MemoryBIO()
    near = client.wrap_bio(wire.sent, to_server, server_hostname="localhost")
    waiting: list[ssl.SSLObject] = [near, wire.side]
    for _ in range(10):
        for side in list(waiting):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
                waiting.remove(side)
            wire.arrived.write(to_server.read())
    assert not waiting
    return near, to_server


def shake_hands_but_for_the_last_step(
    wire: Wire, client: ssl.SSLContext
) -> tuple[ssl.SSLObject, ssl.MemoryBIO]:
    """The same; the server has still to be given what the client has said last."""
    to_server = ssl.MemoryBIO()
    near = client.wrap_bio(wire.sent, to_server, server_hostname="localhost")
    for side in (near, wire.side):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
        wire.arrived.write(to_server.read())
    with suppress(ssl.SSLWantReadError):
        wire.side.do_handshake()
    near.do_handshake()
    return near, to_server


class KeyUpdater:
    """A client that changes its key, at the other end of a wire."""

    def __init__(self, wire: Wire) -> None:
        self._near, self._far = socket.socketpair()
        for end in (self._near, self._far):
            end.setblocking(False)
        self.client = KeyUpdatingClient(self._near)
        done = False
        while not done:
            done = self.client.shake_hands()
            wire.arrived.write(self.written())
            with suppress(ssl.SSLWantReadError):
                wire.side.do_handshake()
            self._far.sendall(wire.sent.read())

    def written(self) -> bytes:
        """What it has sent since this was asked before."""
        found = b""
        with suppress(BlockingIOError):
            while data := self._far.recv(1 << 20):
                found += data
        return found

    def close(self) -> None:
        self._near.close()
        self._far.close()


@pytest.fixture
def wire(pem: Path) -> Wire:
    return Wire(ListenerTls(settings(pem), "none"))


@pytest.fixture
def updater(wire: Wire) -> Iterator[KeyUpdater]:
    made = KeyUpdater(wire)
    yield made
    made.close()


def flood(updater: KeyUpdater, count: int) -> bytes:
    found = b""
    for _ in range(count):
        assert updater.client.update_key()
        found += updater.written()
    assert len(found) == count * KEY_UPDATE_BYTES
    return found


def test_new_keys_without_end_end_the_connection(wire: Wire, updater: KeyUpdater) -> None:
    wire.arrived.write(flood(updater, KEY_UPDATES))
    with pytest.raises(ssl.SSLError, match="records without data"):
        wire.side.read(1 << 18)


def test_a_hello_in_records_without_end_is_not_waited_for(wire: Wire) -> None:
    begun = bytes.fromhex("16030100040101ff00")  # a hello of 130,816 bytes
    wire.arrived.write(begun + bytes.fromhex("160301000100") * 2 * HANDSHAKE_RECORDS_MAX)
    with pytest.raises(ssl.SSLError, match="records without data"):
        wire.side.do_handshake()


def test_a_little_data_between_them_buys_no_more(wire: Wire, updater: KeyUpdater) -> None:
    def exchange() -> None:
        for _ in range(BARREN_RECORDS_MAX):
            updater.client.write(b"x")
            wire.arrived.write(updater.written() + flood(updater, 3))
            wire.read_all()

    with pytest.raises(ssl.SSLError, match="records without data"):
        exchange()


def test_new_keys_now_and_then_are_taken(wire: Wire, updater: KeyUpdater) -> None:
    read = b""
    for number in range(BARREN_RECORDS_MAX // 2):
        updater.client.update_key()
        updater.client.write(b"%06d" % number)
        wire.arrived.write(updater.written())
        read += wire.read_all()
    assert read == b"".join(b"%06d" % number for number in range(BARREN_RECORDS_MAX // 2))


def test_new_keys_while_it_closes_count_too(wire: Wire, updater: KeyUpdater) -> None:
    wire.arrived.write(flood(updater, KEY_UPDATES))
    with pytest.raises(ssl.SSLError, match="records without data"):
        wire.side.unwrap()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("piece", [1, 7, 1000, 1 << 18])
def test_data_comes_through_in_whatever_pieces(
    wire: Wire, pem: Path, version: ssl.TLSVersion, piece: int
) -> None:
    client = client_context(pem, certified=False)
    client.maximum_version = version
    near, to_server = shake_hands(wire, client)
    plain = [b"AMQP", b"x", b"y" * 3 * RECORD_PLAIN_BYTES_MAX, *(b"%d" % n for n in range(400))]
    read = b""
    for data in plain:
        sent = 0
        while sent < len(data):
            sent += near.write(data[sent:])
        cipher = to_server.read()
        for at in range(0, len(cipher), piece):
            wire.arrived.write(cipher[at : at + piece])
            read += wire.read_all()
    assert read == b"".join(plain)


def test_many_records_that_arrive_together_are_read_together(wire: Wire, pem: Path) -> None:
    near, to_server = shake_hands(wire, client_context(pem, certified=False))
    for number in range(5_000):
        near.write(b"%05d" % number)
    wire.arrived.write(to_server.read())
    assert wire.read_all() == b"".join(b"%05d" % number for number in range(5_000))


def test_data_that_come_with_the_end_of_the_handshake_are_read(wire: Wire, pem: Path) -> None:
    near, to_server = shake_hands_but_for_the_last_step(wire, client_context(pem, certified=False))
    near.write(b"AMQP")
    wire.arrived.write(to_server.read())
    wire.side.do_handshake()
    assert wire.read_all() == b"AMQP"


def test_the_end_of_a_connection_is_seen_by_both(wire: Wire, pem: Path) -> None:
    near, to_server = shake_hands(wire, client_context(pem, certified=False))
    near.write(b"last")
    with suppress(ssl.SSLWantReadError):
        near.unwrap()
    wire.arrived.write(to_server.read())
    assert wire.side.read(100) == b"last"
    assert wire.side.read(100) == b""
    wire.side.unwrap()
    near.unwrap()


def test_what_is_no_record_is_an_error_of_tls(wire: Wire, pem: Path) -> None:
    wire.arrived.write(b"GET / HTTP/1.1\r\n\r\n" * 100)
    with pytest.raises(ssl.SSLError, match=r"(?i)http request|wrong version"):
        wire.side.do_handshake()
