"""What the tests of durability and of bounds share: brokers with settings, drains, stores offline."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from base64 import b64encode
from collections.abc import Coroutine, Sequence
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

from rhizome.client import Channel, Message, Properties, connect
from rhizome.testing.processes import BrokerProcess, BrokerProcessError

T = TypeVar("T")

PERSISTENT: Final = Properties(delivery_mode=2)
TRANSIENT: Final = Properties(delivery_mode=1)
SCENARIO_SECONDS_MAX: Final = 50.0
COMMAND_SECONDS_MAX: Final = 30.0


def run(scenario: Coroutine[Any, Any, T], seconds: float = SCENARIO_SECONDS_MAX) -> T:
    """Run a scenario to its end, which it must reach within `seconds`."""

    async def limited() -> T:
        async with asyncio.timeout(seconds):
            return await scenario

    return asyncio.run(limited())


def broker_with(
    directory: Path, *, arguments: Sequence[str] = (), **settings: str
) -> BrokerProcess:
    """A broker that is not started yet. `journal_flush="never"` sets journal.flush, and so on."""
    environment = {f"RHIZOME_{name.upper()}": value for name, value in settings.items()}
    return BrokerProcess(directory, arguments=arguments, environment=environment)


def refusal(broker: BrokerProcess) -> str:
    """What the broker prints when it is started and refuses to run."""
    try:
        broker.start()
    except BrokerProcessError as error:
        return str(error)
    broker.kill()
    raise AssertionError(f"the broker started\n{broker.printed()}")


async def take(channel: Channel, queue: str, count: int) -> list[Message]:
    """The next `count` messages of a queue, unacknowledged; the consumer stays."""
    consumer = channel.consume(queue)
    taken: list[Message] = []
    while len(taken) < count:
        taken.extend(await consumer.batch(count - len(taken)))
    return taken


async def contents(broker: BrokerProcess, queue: str) -> list[bytes]:
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
