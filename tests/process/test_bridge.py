"""Bridges between real brokers, with either side and the bridge itself killed on the way."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from rhizome.client import ClientError, Properties, connect
from rhizome.errors import AmqpError
from rhizome.testing.processes import BrokerProcess, wait_until

from .kit import broker_with, contents, run

pytestmark = pytest.mark.timeout(120)

SECONDS_MAX: Final = 30.0
STOP_SECONDS_MAX: Final = 40.0
DEDUP: Final[dict[str, object]] = {"x-dedup": "message-id"}
COMMAND: Final = (
    "from rhizome.cli.main import COMMANDS, main;"
    "COMMANDS['bridge'] = 'rhizome.cli.bridge'; main()"
)


class BridgeProcess:
    """One `rhizome bridge --json`, with its events read back from the file that it prints to."""

    def __init__(self, output: Path, *arguments: str, environment: dict[str, str] | None = None):
        self._output = output
        self._arguments = arguments
        self._environment = environment or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._start = 0

    def start(self) -> None:
        """Start it, and return at once."""
        command = [sys.executable, "-c", COMMAND, "bridge", "--json", *self._arguments]
        with self._output.open("ab") as output:
            self._start = output.tell()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._environment},
            )

    def start_and_run(self) -> None:
        self.start()
        self.until("ready")

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._process = None

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.exit_code()

    def exit_code(self) -> int:
        code = self.process.wait(STOP_SECONDS_MAX)
        self._process = None
        return code

    def end(self) -> None:
        if self._process is not None:
            self.kill()

    def printed(self) -> str:
        with self._output.open("rb") as output:
            output.seek(self._start)
            return output.read().decode()

    def events(self, name: str) -> list[dict[str, Any]]:
        """Events of one name since the last start."""
        lines = [line for line in self.printed().splitlines(keepends=True) if line.endswith("\n")]
        parsed = [json.loads(line) for line in lines if line.startswith("{")]
        return [event for event in parsed if event["event"] == name]

    def until(self, name: str, count: int = 1) -> dict[str, Any]:
        """Wait for an event; returns the latest of its name."""

        def enough() -> bool:
            ended = self._process is not None and self._process.poll() is not None
            assert not ended or len(self.events(name)) >= count, self.printed()
            return len(self.events(name)) >= count

        wait_until(enough, f"event {name} of {self.printed()}", SECONDS_MAX)
        return self.events(name)[-1]


class Site:
    """Two brokers and the bridges between them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.a = broker_with(directory / "a", cluster_name="alpha")
        self.b = broker_with(directory / "b", cluster_name="beta")
        self.bridges: list[BridgeProcess] = []

    def bridge(self, *arguments: str, reverse: bool = False) -> BridgeProcess:
        source, destination = (self.b, self.a) if reverse else (self.a, self.b)
        ends = ("--from", source.url, "--to", destination.url, "--retry-max", "0.5")
        return self.any_bridge(*ends, *arguments)

    def any_bridge(self, *arguments: str, **options: Any) -> BridgeProcess:
        output = self.directory / f"bridge-{len(self.bridges)}.txt"
        bridge = BridgeProcess(output, *arguments, **options)
        self.bridges.append(bridge)
        return bridge

    def end(self) -> None:
        for bridge in self.bridges:
            bridge.end()
        for broker in (self.a, self.b):
            if broker.is_running():
                broker.kill()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    made.a.start()
    made.b.start()
    yield made
    made.end()


def body(number: int) -> bytes:
    return b"%d:" % number + b"x" * (number % 300)


def number_of(content: bytes) -> int:
    number = int(content.split(b":")[0])
    assert content == body(number)
    return number


def properties(number: int) -> Properties:
    return Properties(delivery_mode=2, message_id=f"m{number}")


def declare(broker: BrokerProcess, queue: str, arguments: dict[str, object] | None = None) -> None:
    async def scenario() -> None:
        async with connect(broker.url) as connection, connection.channel() as channel:
            await channel.declare_queue(queue, durable=True, arguments=arguments)

    run(scenario())


def publish(
    broker: BrokerProcess,
    numbers: range,
    *,
    exchange: str = "",
    key: str,
    made: Callable[[int], Properties] = properties,
) -> None:
    async def scenario() -> None:
        async with connect(broker.url) as connection, connection.channel(confirms=True) as channel:
            for number in numbers:
                channel.publish_soon(
                    body(number), exchange=exchange, routing_key=key, properties=made(number)
                )
            await channel.confirmed()

    run(scenario())


def count(broker: BrokerProcess, queue: str) -> int:
    async def scenario() -> int:
        async with connect(broker.url) as connection, connection.channel() as channel:
            return (await channel.declare_queue(queue, passive=True)).message_count

    return run(scenario())


def until_count(broker: BrokerProcess, queue: str, wanted: int) -> None:
    wait_until(
        lambda: count(broker, queue) >= wanted, f"{wanted} messages in {queue}", SECONDS_MAX
    )


def numbers_in(broker: BrokerProcess, queue: str) -> list[int]:
    return [number_of(each) for each in run(contents(broker, queue))]


def stop_cleanly(bridge: BridgeProcess) -> None:
    assert bridge.stop() == 0, bridge.printed()


# --- moving


def test_a_queue_is_moved_in_order_and_left_empty(site: Site) -> None:
    declare(site.a, "orders")
    declare(site.b, "orders")
    publish(site.a, range(2000), key="orders")
    bridge = site.bridge("--queue", "orders")
    bridge.start_and_run()
    until_count(site.b, "orders", 2000)
    stop_cleanly(bridge)
    assert numbers_in(site.b, "orders") == list(range(2000))
    assert count(site.a, "orders") == 0
    assert bridge.until("stopped")["moved"] == 2000
