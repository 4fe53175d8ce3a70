"""SRV records: a DNS client for the one question that the standard library can't ask.

It asks the servers of resolv.conf, in their order and with their search list, as libc does for
host names: by UDP, and by TCP when an answer says that it was cut. It blocks until its deadline at
most: callers run it in a thread. Answers are read with bounds; what doesn't fit is an error.
"""

from __future__ import annotations

import secrets
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rhizome.errors import RhizomeError

RESOLV_CONF: Final = Path("/etc/resolv.conf")
DNS_PORT: Final = 53
SERVERS_MAX: Final = 3
SEARCH_MAX: Final = 6
"""As many of each as libc takes."""
TRY_SECONDS: Final = 2.0
"""How long one server is waited for."""
NAME_BYTES_MAX: Final = 255
LABEL_BYTES_MAX: Final = 63
RECORDS_MAX: Final = 512
UDP_BYTES_MAX: Final = 4096

TYPE_SRV: Final = 33
CLASS_IN: Final = 1
NO_ERROR: Final = 0
NO_SUCH_NAME: Final = 3
_REPLY: Final = 0x8000
_TRUNCATED: Final = 0x0200
_RECURSION_DESIRED: Final = 0x0100
_POINTER: Final = 0xC0
_CODES: Final = {1: "format error", 2: "server failure", 4: "not implemented", 5: "refused"}


class DnsError(RhizomeError):
    """No server gave an answer that can be used; the text says what each of them said."""


@dataclass(frozen=True, slots=True)
class SrvRecord:
    """Where a service is: a host name without the dot at its end, and a port."""

    target: str
    port: int


@dataclass(frozen=True, slots=True)
class ResolverSettings:
    """What resolv.conf says: (address, port) of each server, and how short names are completed."""

    servers: tuple[tuple[str, int], ...] = (("127.0.0.1", DNS_PORT),)
    search: tuple[str, ...] = ()
    dots_min: int = 1
    """A name with fewer dots is completed before it is asked for as it is."""


def read_resolv_conf(path: Path = RESOLV_CONF) -> ResolverSettings:
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        raise DnsError(f"{path} can't be read: {error.strerror}") from None
    servers: list[tuple[str, int]] = []
    search: tuple[str, ...] = ()
    dots_min = 1
    for line in text.splitlines():
        word, *rest = line.split() or [""]
        if word == "nameserver" and rest:
            servers.append((rest[0], DNS_PORT))
        elif word in ("search", "domain"):
            search = tuple(each.rstrip(".") for each in rest[:SEARCH_MAX])
        elif word == "options":
            numbers = [each[6:] for each in rest if each.startswith("ndots:")]
            dots_min = int(numbers[-1]) if numbers and numbers[-1].isdigit() else dots_min
    if not servers:
        return ResolverSettings(search=search, dots_min=dots_min)
    return ResolverSettings(tuple(servers[:SERVERS_MAX]), search, dots_min)


def find_srv(name: str, seconds_max: float, settings: ResolverSettings) -> list[SrvRecord]:
    """The records of the first form of the name that has some; empty if there is none.

    Raises DnsError if no server can be asked about one of the forms.
    """
    deadline = time.monotonic() + seconds_max
    for candidate in _candidates(name, settings):
        found = _ask_servers(candidate, settings, deadline)
        if found:
            return found
    return []


def _candidates(name: str, settings: ResolverSettings) -> Iterator[str]:
    """The full names to ask for, in libc's order."""
    if name.endswith("."):
        yield name.rstrip(".")
        return
    completed = [f"{name}.{domain}" for domain in settings.search if domain]
    if name.count(".") >= settings.dots_min:
        yield from (name, *completed)
    else:
        yield from (*completed, name)


def _ask_servers(name: str, settings: ResolverSettings, deadline: float) -> list[SrvRecord]:
    said: list[str] = []
    for host, port in settings.servers:
        left = deadline - time.monotonic()
        if left <= 0:
            break
        try:
            return _ask(name, host, port, min(left, TRY_SECONDS))
        except (OSError, DnsError) as error:
            why = "no answer" if isinstance(error, TimeoutError) else str(error)
            said.append(f"{host}: {why}")
    raise DnsError(f"SRV {name}: {'; '.join(said) or 'out of time'}")


def _ask(name: str, host: str, port: int, seconds: float) -> list[SrvRecord]:
    number = secrets.randbits(16)
    question = encode_name(name) + struct.pack("!HH", TYPE_SRV, CLASS_IN)
    query = struct.pack("!HHHHHH", number, _RECURSION_DESIRED, 1, 0, 0, 0) + question
    deadline = time.monotonic() + seconds
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as udp:
        udp.connect((host, port))  # so that only this server's datagrams come
        udp.send(query)
        while True:
            udp.settimeout(max(0.001, deadline - time.monotonic()))
            answer = udp.recv(UDP_BYTES_MAX)
            if _answers(answer, number, question):
                break
    if struct.unpack_from("!H", answer, 2)[0] & _TRUNCATED:
        answer = _ask_by_tcp(query, host, port, deadline)
        if not _answers(answer, number, question):
            raise DnsError("an answer to another question")
    return read_answer(answer)


def _ask_by_tcp(query: bytes, host: str, port: int, deadline: float) -> bytes:
    left = max(0.001, deadline - time.monotonic())
    with socket.create_connection((host, port), timeout=left) as tcp:
        tcp.sendall(struct.pack("!H", len(query)) + query)
        (length,) = struct.unpack("!H", _read_exactly(tcp, 2, deadline))
        return _read_exactly(tcp, length, deadline)


def _read_exactly(tcp: socket.socket, count: int, deadline: float) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        tcp.settimeout(max(0.001, deadline - time.monotonic()))
        part = tcp.recv(count - len(parts))
        if not part:
            raise DnsError("the answer ends too early")
        parts += part
    return bytes(parts)


# --- the format of messages


def encode_name(name: str) -> bytes:
    """A name as it stands in a message, without compression."""
    encoded = bytearray()
    for label in name.split("."):
        raw = label.encode("ascii", "replace")
        if not 0 < len(raw) <= LABEL_BYTES_MAX:
            raise DnsError(f"{name!r} is no name: each part has 1 to {LABEL_BYTES_MAX} bytes")
        encoded += bytes([len(raw)]) + raw
    encoded.append(0)
    if len(encoded) > NAME_BYTES_MAX:
        raise DnsError(f"{name!r} is no name: it is longer than {NAME_BYTES_MAX} bytes")
    return bytes(encoded)


def _answers(message: bytes, number: int, question: bytes) -> bool:
    """Whether this is the reply to our question; names are the same in any case of letters."""
    if len(message) < 12 + len(question):
        return False
    echoed, flags, questions = struct.unpack_from("!HHH", message)
    said = message[12 : 12 + len(question)]
    return bool(
        echoed == number and flags & _REPLY and questions == 1 and said.lower() == question.lower()
    )


def read_answer(message: bytes) -> list[SrvRecord]:
    """The SRV records of a reply; empty if the name doesn't exist."""
    try:
        _, flags, questions, answers, _, _ = struct.unpack_from("!HHHHHH", message)
        code = flags & 0xF
        if code == NO_SUCH_NAME:
            return []
        if code != NO_ERROR:
            raise DnsError(_CODES.get(code, f"code {code}"))
        if answers > RECORDS_MAX:
            raise DnsError(f"an answer of {answers} records; {RECORDS_MAX} are read at most")
        place = 12
        for _ in range(questions):
            place = _read_name(message, place)[1] + 4
        return list(_read_records(message, place, answers))
    except (struct.error, IndexError):
        raise DnsError("an answer that is cut off or no DNS message") from None


def _read_records(message: bytes, place: int, count: int) -> Iterator[SrvRecord]:
    for _ in range(count):
        _, place = _read_name(message, place)
        kind, cls, _, length = struct.unpack_from("!HHIH", message, place)
        place += 10
        if kind == TYPE_SRV and cls == CLASS_IN:
            _, _, port = struct.unpack_from("!HHH", message, place)
            target, _ = _read_name(message, place + 6)
            if target:  # "." says that there is no such service
                yield SrvRecord(target, port)
        place += length


def _read_name(message: bytes, place: int) -> tuple[str, int]:
    """A name, and the place behind it. A pointer leads backwards only, so there are no rings."""
    labels: list[str] = []
    size = 0
    behind = -1
    limit = place
    while length := message[place]:
        if length & _POINTER == _POINTER:
            target = ((length & ~_POINTER) << 8) | message[place + 1]
            behind = place + 2 if behind < 0 else behind
            if target >= limit:
                raise DnsError("an answer whose name points forwards")
            place = limit = target
            continue
        label = message[place + 1 : place + 1 + length]
        size += length + 1
        if len(label) != length or length > LABEL_BYTES_MAX or size > NAME_BYTES_MAX:
            raise DnsError("an answer with a name that is too long")
        labels.append(label.decode("ascii", "replace"))
        place += 1 + length
    return ".".join(labels), (place + 1 if behind < 0 else behind)
