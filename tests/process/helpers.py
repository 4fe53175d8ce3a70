"""What the tests of durability and of bounds share: brokers with settings, stores, raw clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
from base64 import b64encode
from collections.abc import Coroutine
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import quote

from rhizome.amqp import methods
from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import Method
from rhizome.client import Channel, Message, Properties, connect
from rhizome.testing.broker_process import Broker, BrokerProcess, BrokerProcessError

T = TypeVar("T")

PERSISTENT: Final = Properties(delivery_mode=2)
TRANSIENT: Final = Properties(delivery_mode=1)
SCENARIO_SECONDS_MAX: Final = 50.0
COMMAND_SECONDS_MAX: Final = 30.0
LOGINS_AT_ONCE: Final = 50
PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"


def run(scenario: Coroutine[Any, Any, T], seconds: float = SCENARIO_SECONDS_MAX) -> T:
    """Run a scenario to its end, which it must reach within `seconds`."""

    async def limited() -> T:
        async with asyncio.timeout(seconds):
            return await scenario

    return asyncio.run(limited())


class LeanBroker(BrokerProcess):
    """A broker without the HTTP API, which starts and stops faster."""

    def command(self) -> list[str]:
        whole = super().command()
        at = whole.index("--http")
        return whole[:at] + whole[at + 2 :]


def broker_with(directory: Path, **settings: str) -> BrokerProcess:
    """A broker that is not started yet. `journal_flush="never"` sets journal.flush, and so on."""
    environment = {f"RHIZOME_{name.upper()}": value for name, value in settings.items()}
    return LeanBroker(directory, environment={**environment, "RHIZOME_LISTEN_HTTP": ""})


def refusal(broker: BrokerProcess) -> str:
    """What the broker prints when it is started and refuses to run."""
    try:
        broker.start()
    except BrokerProcessError as error:
        return str(error)
    broker.kill()
    raise AssertionError(f"the broker started\n{broker.printed()}")


class Party(Protocol):
    """As much of a broker as a raw client needs."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def user(self) -> str: ...

    @property
    def password(self) -> str: ...


class RawClient:
    """A client that is logged in, does only what it is told, and never reads unless asked to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @staticmethod
    async def connected(broker: Party, receive_bytes: int = 65_536) -> RawClient:
        """Connected, without a word said."""
        stream = socket.socket()
        stream.setblocking(False)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        await asyncio.get_running_loop().sock_connect(stream, (broker.host, broker.port))
        # The limit makes the stream leave in the socket what nobody has asked for.
        return RawClient(*await asyncio.open_connection(sock=stream, limit=1024))

    @staticmethod
    async def logged_in(broker: Party, receive_bytes: int = 65_536) -> RawClient:
        client = await RawClient.connected(broker, receive_bytes)
        client.write(PROTOCOL_HEADER)
        await client.read_frame()
        login = f"\0{broker.user}\0{broker.password}".encode()
        client.send(0, methods.ConnectionStartOk({}, "PLAIN", login, "en_US"))
        await client.read_frame()
        client.send(0, methods.ConnectionTuneOk(2047, 131_072, 0), methods.ConnectionOpen("/"))
        await client.read_frame()
        return client

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    def send(self, channel: int, *sent: Method) -> None:
        self.write(b"".join(method_frame(channel, method) for method in sent))

    async def drain(self) -> None:
        await self._writer.drain()

    async def read_frame(self) -> bytes:
        """The payload of the next frame."""
        head = await self._reader.readexactly(7)
        payload = await self._reader.readexactly(int.from_bytes(head[3:], "big") + 1)
        return payload[:-1]

    async def read_to_end(self) -> bytes:
        """All that comes until the broker closes the connection."""
        return await self._reader.read()

    async def close(self) -> None:
        """Close the socket without a word."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


async def log_in_many(broker: Party, count: int) -> list[RawClient]:
    """So many raw clients, some of them at a time."""
    left = iter(range(count))
    clients: list[RawClient] = []

    async def some() -> None:
        for _ in left:
            clients.append(await RawClient.logged_in(broker))

    async with asyncio.TaskGroup() as group:
        for _ in range(LOGINS_AT_ONCE):
            group.create_task(some())
    return clients


async def take(channel: Channel, queue: str, count: int) -> list[Message]:
    """The next `count` messages of a queue, unacknowledged; the consumer stays."""
    consumer = channel.consume(queue)
    taken: list[Message] = []
    while len(taken) < count:
        taken.extend(await consumer.batch(count - len(taken)))
    return taken


async def contents(broker: Broker, queue: str) -> list[bytes]:
    """The bodies in a queue, in order; all of them stay in it."""
    async with connect(broker.url) as connection, connection.channel() as channel:
        count = (await channel.declare_queue(queue, passive=True)).message_count
        return [message.body for message in await take(channel, queue, count)]


def call_api(broker: BrokerProcess, method: str, *parts: str, **document: Any) -> Any:
    """One request to the HTTP API; None if it answers 404."""
    connection = HTTPConnection(broker.host, broker.http_port, timeout=COMMAND_SECONDS_MAX)
    login = b64encode(f"{broker.user}:{broker.password}".encode()).decode()
    target = "/api/" + "/".join(quote(part, safe="") for part in parts)
    body = json.dumps(document) if document else None
    connection.request(method, target, body, {"Authorization": f"Basic {login}"})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    if answer.status == 404:
        return None
    assert answer.status < 300, f"{method} {target}: {answer.status} {text!r}"
    return json.loads(text) if text else {}


def inspected(directory: Path) -> dict[str, Any]:
    """What `rhizome journal inspect --json` says of a store."""
    command = [sys.executable, "-m", "rhizome", "journal", "inspect", str(directory), "--json"]
    done = subprocess.run(command, capture_output=True, timeout=COMMAND_SECONDS_MAX, check=False)
    assert done.returncode in (0, 1), done.stderr.decode()
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def segment_files(broker: BrokerProcess) -> list[Path]:
    """The journal's segment files, oldest first."""
    return sorted((broker.data / "journal").glob("*.seg"))


def resident_bytes(pid: int) -> int:
    """Resident memory of a process that is its own (VmRSS)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has no VmRSS")
