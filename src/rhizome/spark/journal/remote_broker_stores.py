"""Stores that are read through their brokers: from any machine, while they run.

Each broker pins what is committed of its store, on the driver's request; tasks then fetch ranges of
the pinned files over HTTP, and verify the checksum of each. A pin lives while it is read, so a job
may take as long as it likes. One that has ended says so with `GONE`, and the job reads again.

A request names the broker whose store it is about, and any broker passes it on. So brokers that
have no address of their own (the further cores of a machine), or none that leads there from here,
are read through those that were given.
"""

from __future__ import annotations

import base64
import http.client
import ipaddress
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote, urlsplit

from rhizome.client.connection_uri import Address
from rhizome.cluster.state.cluster_commands import WHOLE, Member
from rhizome.cluster.state.groups_and_placement import Group
from rhizome.errors import RhizomeError
from rhizome.journal.files import ReadOnlyFiles
from rhizome.journal.records import crc32c
from rhizome.spark.amqp_socket import addresses_of, wait_s
from rhizome.spark.data_source_options import OptionError
from rhizome.spark.journal.broker_stores import (
    GONE,
    OpenStore,
    Segments,
    StoreError,
    StorePlace,
    StoreState,
    StreamFile,
)
from rhizome.spark.journal.journal_rows import Names

PATH: Final = "/api/rhizome/journals"
PORTS: Final = {"http": 15672, "https": 15671}
AMQP_OF: Final = {"http": "amqp", "https": "amqps"}
CHECKSUM_HEADER: Final = "x-rhizome-crc32c"
RANGE_BYTES: Final = 2 << 20
CONNECT_SECONDS: Final = 5.0
FIRST_SECONDS: Final = 20.0
"""For the first answer: nobody waits for long for an address that is wrong."""
CLOSE_SECONDS: Final = 15.0
ANSWER_SECONDS: Final = 60.0
"""A broker lets a reader wait for its turn, and may have to ask another one."""
PAUSE_SECONDS_FIRST: Final = 0.1
PAUSE_SECONDS_MAX: Final = 2.0


class JournalAccessError(RhizomeError):
    """A broker refuses to have its journal read; the text has its reason."""


class BrokerSilentError(RhizomeError):
    """A broker could not be asked for as long as patience lasts; the text has the last failure."""


class PinEndedError(RhizomeError):
    """What was to be read is not kept any more."""


class _Again(Exception):
    """An answer that may be another one next time."""


# --- addresses


def http_addresses(uri: str) -> list[Address]:
    """Where the HTTP APIs are. Of an AMQP URI: on the same hosts, at the usual port."""
    scheme, separator, rest = uri.partition("://")
    if scheme not in AMQP_OF:
        return [
            replace(each, port=PORTS["http" if each.tls is None else "https"])
            for each in addresses_of(uri)
        ]
    found = addresses_of(f"{AMQP_OF[scheme]}{separator}{rest}")
    hosts = rest.partition("?")[0].partition("/")[0].rpartition("@")[2].split(",")
    return [
        each if _has_port(host) else replace(each, port=PORTS[scheme])
        for each, host in zip(found, hosts, strict=True)
    ]


def _has_port(host: str) -> bool:
    return ":" in host.rpartition("]")[2]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _direct(given: Sequence[Address], urls: list[str]) -> list[Address]:
    """The addresses that a broker tells of itself, for who asks as those given. Its loopback
    address is another machine's, unless it is where the others were found too: credentials are not
    sent there."""
    near = all(_is_loopback(each.host) for each in given)
    found = []
    for url in urls:
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        alike = [each for each in given if (each.tls is not None) == secure]
        if alike and parts.hostname and parts.port and (near or not _is_loopback(parts.hostname)):
            found.append(replace(alike[0], host=parts.hostname, port=parts.port))
    return found


# --- asking


class JournalClient:
    """Asks over one connection that it keeps, at the address that answered last. Pickled it leaves
    the connection behind."""

    def __init__(self, addresses: Sequence[Address], patience_s: float) -> None:
        self.addresses = list(addresses)
        self.patience_s = patience_s
        self._at = 0
        self._connection: http.client.HTTPConnection | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connection": None}

    def __del__(self) -> None:
        # Tasks let go of what they read with, and say nothing.
        if getattr(self, "_connection", None) is not None:
            self.close()

    def document(self, method: str, path: str) -> Any:
        """The JSON that is answered; None if there is none."""
        body = self._ask(method, path)[0]
        return json.loads(body) if body else None

    def range_of(self, path: str, offset: int, length: int) -> bytes:
        """Bytes of a part, their checksum verified."""
        return self._ask("GET", f"{path}?from={offset}&bytes={length}", length)[0]

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, method: str, path: str, length: int = -1) -> tuple[bytes, str]:
        """Body and checksum. Asked again while only connections and brokers that are busy are to
        blame."""
        deadline = time.monotonic() + self.patience_s
        pause_s = PAUSE_SECONDS_FIRST
        while True:
            try:
                return self._once(method, path, length)
            except (OSError, http.client.HTTPException, _Again) as error:
                self.close()
                label = self.addresses[self._at].label
                if time.monotonic() + pause_s > deadline:
                    what = str(error) or type(error).__name__
                    raise BrokerSilentError(
                        f"the journal can't be read through {label}, tried for"
                        f" {self.patience_s:g} s: {what}. Is the broker running, and is this its"
                        " HTTP address?"
                    ) from None
            self._at = (self._at + 1) % len(self.addresses)
            wait_s(pause_s)
            pause_s = min(2 * pause_s, PAUSE_SECONDS_MAX)

    def _once(self, method: str, path: str, length: int) -> tuple[bytes, str]:
        address = self.addresses[self._at]
        connection = self._connected(address)
        connection.request(method, path, headers=login_headers(address))
        answer = connection.getresponse()
        body = answer.read()
        checksum = answer.headers.get(CHECKSUM_HEADER, "")
        if answer.status >= 300:
            raise _refusal(answer.status, body, address, path)
        if length >= 0 and (len(body) != length or f"{crc32c(body):08x}" != checksum):
            raise _Again(
                f"{len(body)} of {length} bytes have come, with checksum {checksum or 'none'}"
            )
        return body, checksum

    def _connected(self, address: Address) -> http.client.HTTPConnection:
        if self._connection is None:
            made = http_connection(address, CONNECT_SECONDS)
            made.connect()
            assert made.sock is not None
            made.sock.settimeout(ANSWER_SECONDS)
            self._connection = made
        return self._connection


def http_connection(address: Address, timeout_s: float) -> http.client.HTTPConnection:
    if address.tls is None:
        return http.client.HTTPConnection(address.host, address.port, timeout=timeout_s)
    context = address.tls.context()
    return http.client.HTTPSConnection(
        address.host, address.port, timeout=timeout_s, context=context
    )


def login_headers(address: Address) -> dict[str, str]:
    login = f"{address.user}:{address.password}".encode()
    return {"authorization": "Basic " + base64.b64encode(login).decode()}


def _refusal(status: int, body: bytes, address: Address, path: str) -> Exception:
    try:
        reason = str(json.loads(body)["reason"])
    except (ValueError, KeyError, TypeError):
        reason = f"HTTP status {status}"
    if status == 404 and "/pins/" in path:
        return PinEndedError(f"what {address.label} has pinned {GONE}: {reason}")
    if status in (429, 500, 502, 503, 504):
        return _Again(reason)
    if status == 404 and path == PATH:
        reason = "it has no such API: it is too old, or none of Rhizome's"
    return JournalAccessError(f"{address.label} refuses user '{address.user}': {reason}")


# --- files


@dataclass(frozen=True)
class RemotePart:
    """A file that a broker has pinned; see `rhizome.journal.pinned_files.Part`."""

    name: str
    kind: str
    number: int
    stream: int
    size: int
    committed: int
    sealed: bool

    def is_short(self) -> bool:
        return self.size < self.committed


class RemoteFiles(ReadOnlyFiles):
    """A directory of a store at its broker, as it was when it was pinned."""

    def __init__(
        self,
        client: JournalClient,
        path: str,
        parts: dict[int, RemotePart],
        named: dict[str, RemotePart],
    ) -> None:
        self.client = client
        self.path = path
        self._parts = parts
        self._named = named

    def segments(self) -> list[int]:
        return sorted(self._parts)

    def size(self, segment: int) -> int:
        return self._part(segment).size

    def read(self, segment: int, offset: int, length: int) -> bytes:
        return read_part(self.client, self.path, self._part(segment), offset, length)

    def names(self) -> list[str]:
        return sorted(self._named)

    def load(self, name: str) -> bytes:
        part = self._named[name]
        return read_part(self.client, self.path, part, 0, part.size)

    def close(self) -> None:
        self.client.close()

    def _part(self, segment: int) -> RemotePart:
        try:
            return self._parts[segment]
        except KeyError:
            raise FileNotFoundError(f"there is no segment {segment}") from None


def read_part(
    client: JournalClient, path: str, part: RemotePart, offset: int, length: int
) -> bytes:
    """Up to ``length`` bytes of a part, in several requests if it takes so many."""
    end = min(part.size, offset + length)
    pieces = []
    while offset < end:
        size = min(RANGE_BYTES, end - offset)
        pieces.append(client.range_of(f"{path}/{part.name}", offset, size))
        offset += size
    return b"".join(pieces)


@dataclass(frozen=True)
class RemoteDirectory:
    """Segments and checkpoints of a pin; what a task is sent."""

    client: JournalClient
    path: str
    parts: tuple[RemotePart, ...]
    checkpoints: tuple[RemotePart, ...] = ()

    def files(self) -> RemoteFiles:
        return RemoteFiles(
            self.client,
            self.path,
            {part.number: part for part in self.parts},
            {part.name: part for part in self.checkpoints},
        )

    def narrowed(self, segments: list[int]) -> RemoteDirectory:
        return replace(self, parts=tuple(each for each in self.parts if each.number in segments))

    def tail_missing(self, segment: int) -> bool:
        return any(each.is_short() for each in self.parts if each.number == segment)


# --- stores


class RemoteStore(OpenStore):
    """The store of one broker. It is pinned when its files are asked for, or was before."""

    def __init__(self, broker: str, client: JournalClient, pin: str = "") -> None:
        self.label = broker
        self.client = client
        self.pin = pin
        self._is_own = not pin
        self._parts: list[RemotePart] | None = None

    @property
    def path(self) -> str:
        return f"{PATH}/{quote(self.label, safe='')}"

    @property
    def pin_path(self) -> str:
        return f"{self.path}/pins/{self.pin}"

    def state(self) -> StoreState:
        return state_from(self.client.document("GET", f"{self.path}/state"))

    def parts(self) -> list[RemotePart]:
        if self._parts is None:
            if self.pin:
                found = self.client.document("GET", self.pin_path)
            else:
                found = self.client.document("POST", f"{self.path}/pins")
                self.pin = str(found["pin"])
            self._parts = [RemotePart(**row) for row in found["parts"]]
        return self._parts

    def segments(self, history: bool = True) -> list[Segments]:
        by_kind: dict[str, list[RemotePart]] = {}
        for part in self.parts():
            by_kind.setdefault(part.kind, []).append(part)
        found = []
        retired = by_kind.get("retired", [])
        if history and retired:
            directory = RemoteDirectory(self.client, self.pin_path, tuple(retired))
            found.append(Segments(self.label, directory, live=False))
        directory = RemoteDirectory(
            self.client,
            self.pin_path,
            tuple(by_kind.get("segment", [])),
            tuple(by_kind.get("checkpoint", [])),
        )
        return [*found, Segments(self.label, directory, live=True)]

    def stream_files(self) -> list[StreamFile]:
        streams = [part for part in self.parts() if part.kind == "stream"]
        return [
            StreamFile(self.label, part.stream, part.number, not (part.sealed or part.is_short()))
            for part in sorted(streams, key=lambda each: (each.stream, each.number))
        ]

    def has_stream(self, stream: int) -> bool:
        if any(part.stream == stream for part in self.parts()):
            return True
        fresh = RemoteStore(self.label, self.client)
        try:
            return any(part.stream == stream for part in fresh.parts())
        finally:
            fresh.close()

    def stream_bytes(self, file: StreamFile) -> bytes:
        for part in self.parts():
            if (part.kind, part.stream, part.number) == ("stream", file.stream, file.segment):
                return read_part(self.client, self.pin_path, part, 0, part.size)
        raise FileNotFoundError(f"there is no segment {file.segment} of stream {file.stream}")

    def close(self) -> None:
        """End the pin that was made here. One that can't be ended ends by itself."""
        if self.pin and self._is_own:
            try:
                impatient = JournalClient(self.client.addresses, CLOSE_SECONDS)
                impatient.document("DELETE", self.pin_path)
                impatient.close()
            except RhizomeError:
                pass
        self.client.close()


def stores_of(place: StorePlace, patience_s: float) -> list[RemoteStore]:
    """The stores of the brokers that a place names."""
    addresses = http_addresses(place.uri)
    first = JournalClient(addresses, min(patience_s, FIRST_SECONDS))
    rows = {str(row["broker"]): row for row in first.document("GET", PATH)}
    first.close()
    wanted = [name.strip() for name in place.brokers.split(",") if name.strip()] or list(rows)
    pins = dict(_pair(each) for each in place.pins.split(",") if each)
    found = []
    for name in wanted:
        if name not in rows:
            raise OptionError(f"there is no broker '{name}'; the cluster has {', '.join(rows)}")
        if not rows[name]["reachable"]:
            raise StoreError(
                f"broker '{name}' can't be reached by {addresses[0].label}, so its store can't be"
                " read; start it, or name the brokers whose stores are to be read (brokers)"
            )
        near = [*_direct(addresses, rows[name]["http"]), *addresses]
        client = JournalClient(list(dict.fromkeys(near)), patience_s)
        found.append(RemoteStore(name, client, pins.get(name, "")))
    return found


def _pair(text: str) -> tuple[str, str]:
    name, _, pin = text.partition("=")
    return name.strip(), pin.strip()


def pinned(found: Sequence[OpenStore], place: StorePlace) -> StorePlace:
    """Where the source finds these stores just as they are now."""
    pins = []
    for store in found:
        assert isinstance(store, RemoteStore)
        store.parts()
        pins.append(f"{store.label}={store.pin}")
    names = ",".join(store.label for store in found)
    return replace(place, brokers=names, pins=",".join(pins))


def state_from(document: dict[str, Any]) -> StoreState:
    """What a broker tells of queues and groups."""
    groups = {
        int(row["id"]): Group(
            int(row["id"]),
            "",
            str(row["home"]),
            "",
            int(row["epoch"]),
            int(row["version"]),
            tuple(Member(str(each), "", WHOLE) for each in row["in_sync"]),
            stream=bool(row["stream"]),
        )
        for row in document["groups"]
    }
    queues = document["queues"]
    own = str(document["broker"])
    return StoreState(
        Names(
            {int(row["id"]): str(row["name"]) for row in queues},
            {int(row["id"]): str(row["vhost"]) for row in queues},
        ),
        own,
        groups,
        {int(row["id"]): int(row["group"]) for row in queues if row["stream"]},
        homes={
            int(row["id"]): groups[row["group"]].home if row["group"] in groups else own
            for row in queues
        },
    )
