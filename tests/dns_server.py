"""A small DNS server for tests: A and SRV records that a test changes while it runs.

It answers over UDP and TCP. A name without records doesn't exist. ``truncates`` makes it cut every
answer over UDP, ``silent`` answer nothing, ``fails`` answer with a failure.
"""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
from collections.abc import Mapping
from typing import Any

from rhizome.server.discovery.srv_records import TYPE_SRV, encode_name
from rhizome.testing.free_ports import free_port

TYPE_A = 1
HEADER = "!HHHHHH"


def a_record(address: str) -> bytes:
    return socket.inet_aton(address)


def srv_record(target: str, port: int) -> bytes:
    return struct.pack("!HHH", 0, 0, port) + encode_name(target)


class DnsServer:
    """Invariant: between `start` and `stop` both sockets are answered, each by its thread."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.records: dict[tuple[str, int], list[bytes]] = {}
        self.asked: list[tuple[str, int]] = []
        self.truncates = self.silent = self.fails = False
        outer = self

        class Udp(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                if not outer.silent:
                    data, sock = self.request
                    sock.sendto(outer.answer(data, udp=True), self.client_address)

        class Tcp(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                (length,) = struct.unpack("!H", self.request.recv(2, socket.MSG_WAITALL))
                query = self.request.recv(length, socket.MSG_WAITALL)
                reply = outer.answer(query, udp=False)
                self.request.sendall(struct.pack("!H", len(reply)) + reply)

        self.port = port or free_port()
        self._udp = socketserver.ThreadingUDPServer((host, self.port), Udp)
        self._tcp = socketserver.ThreadingTCPServer((host, self.port), Tcp)
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> DnsServer:
        for server in (self._udp, self._tcp):
            thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(self, *details: Any) -> None:
        for server in (self._udp, self._tcp):
            server.shutdown()
            server.server_close()
        for thread in self._threads:
            thread.join()

    def publish(self, service: str, brokers: Mapping[str, tuple[str, int]]) -> None:
        """SRV records of a service for these, and the address of each: host name -> both."""
        srv = [srv_record(host, port) for host, (_, port) in brokers.items()]
        self.records[service, TYPE_SRV] = srv
        for host, (address, _) in brokers.items():
            self.records[host, TYPE_A] = [a_record(address)]

    def answer(self, query: bytes, udp: bool) -> bytes:
        (number,) = struct.unpack_from("!H", query)
        place, labels = 12, []
        while query[place]:
            labels.append(query[place + 1 : place + 1 + query[place]].decode())
            place += 1 + query[place]
        question = query[12 : place + 5]
        (kind,) = struct.unpack_from("!H", query, place + 1)
        name = ".".join(labels).lower()
        self.asked.append((name, kind))
        if self.fails:
            return struct.pack(HEADER, number, 0x8182, 1, 0, 0, 0) + question
        if udp and self.truncates:
            return struct.pack(HEADER, number, 0x8380, 1, 0, 0, 0) + question
        found = self.records.get((name, kind), [])
        known = any(each == name for each, _ in self.records)
        flags = 0x8180 if known else 0x8183
        head = struct.pack(HEADER, number, flags, 1, len(found), 0, 0)
        answers = [  # 0xC00C points at the question's name
            struct.pack("!HHHIH", 0xC00C, kind, 1, 1, len(each)) + each for each in found
        ]
        return head + question + b"".join(answers)
