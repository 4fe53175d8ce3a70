"""Applications that switch between two brokers under load, and what they have published and got.

A publisher numbers its messages and goes on at the other broker with the next number; a consumer
acknowledges all that it has noted before it leaves. So a message that is missing at the end was
lost, and one that was noted twice was delivered twice, and neither is the applications' doing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from rhizome.client import Channel, ClientError, Connection, Properties, connect
from rhizome.errors import AmqpError
from rhizome.testing.broker_process import wait_until

SECONDS_MAX: Final = 60.0
PREFETCH: Final = 50
BATCH: Final = 10


class Party(Protocol):
    """As much of a broker as an adoption needs, whatever make it is."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def http_url(self) -> str: ...


def login(party: Party, user: str, password: str, vhost: str = "") -> str:
    return f"amqp://{user}:{password}@{party.host}:{party.port}/{vhost}"


@dataclass
class Ledger:
    """What was published and got. `pauses_s` are the longest waits for a message of each queue."""

    confirmed: dict[str, int] = field(default_factory=dict)
    got: Counter[str] = field(default_factory=Counter)
    out_of_order: int = 0
    pauses_s: dict[str, float] = field(default_factory=dict)
    _latest: dict[str, int] = field(default_factory=dict)
    _last_s: dict[str, float] = field(default_factory=dict)

    def note(self, queue: str, message_id: str) -> None:
        self.got[message_id] += 1
        publisher, _, number = message_id.rpartition("-")
        self.out_of_order += int(number) < self._latest.get(publisher, -1)
        self._latest[publisher] = max(int(number), self._latest.get(publisher, -1))
        now_s = time.monotonic()
        pause_s = now_s - self._last_s.get(queue, now_s)
        self.pauses_s[queue] = max(self.pauses_s.get(queue, 0.0), pause_s)
        self._last_s[queue] = now_s

    @property
    def published(self) -> int:
        return sum(self.confirmed.values())

    def lost(self) -> list[str]:
        ids = (f"{name}-{n}" for name, count in self.confirmed.items() for n in range(count))
        return [each for each in ids if each not in self.got]

    def twice(self) -> list[str]:
        return [each for each, count in self.got.items() if count > 1]

    def report(self) -> dict[str, Any]:
        return {
            "published": self.published,
            "lost": len(self.lost()),
            "duplicated": len(self.twice()),
            "out_of_order": self.out_of_order,
            "longest_pause_s": round(max(self.pauses_s.values(), default=0.0), 2),
        }


class Application:
    """Something with a connection that switches brokers when it is told to."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._wanted = url
        self._moves = asyncio.Event()
        self._is_over = False
        self._at = ""

    async def run(self) -> None:
        """Work until it is over, session after session."""
        while not self._is_over:
            self._moves.clear()
            self._url = self._wanted
            try:
                async with connect(self._url) as connection:
                    self._at = self._url
                    await self.work(connection)
            except (ClientError, AmqpError, OSError):
                await asyncio.sleep(0.1)

    async def switch(self, url: str) -> None:
        """Go on at another broker; returns when it is connected there."""
        self._wanted = url
        self._moves.set()
        async with asyncio.timeout(SECONDS_MAX):
            while self._at != url:
                await asyncio.sleep(0.01)

    def finish(self) -> None:
        self._is_over = True
        self._moves.set()

    async def work(self, connection: Connection) -> None:
        raise NotImplementedError


class Publisher(Application):
    """Publishes under its name to an exchange, numbered, a batch at a time, confirmed."""

    def __init__(
        self, name: str, url: str, exchange: str, key: str, ledger: Ledger, rate: float
    ) -> None:
        super().__init__(url)
        self._name, self._exchange, self._key = name, exchange, key
        self._ledger = ledger
        self._pause_s = BATCH / rate
        ledger.confirmed[name] = 0

    async def work(self, connection: Connection) -> None:
        async with connection.channel(confirms=True) as channel:
            while not self._moves.is_set():
                await self._publish_batch(channel)
                await asyncio.sleep(self._pause_s)

    async def _publish_batch(self, channel: Channel) -> None:
        first = self._ledger.confirmed[self._name]
        for number in range(first, first + BATCH):
            channel.publish_soon(
                b"x" * (number % 2000),
                exchange=self._exchange,
                routing_key=self._key,
                properties=Properties(delivery_mode=2, message_id=f"{self._name}-{number}"),
                mandatory=True,
            )
        await channel.confirmed()
        self._ledger.confirmed[self._name] = first + BATCH


class Consumer(Application):
    """Notes what it gets from a queue and acknowledges it."""

    def __init__(self, queue: str, url: str, ledger: Ledger) -> None:
        super().__init__(url)
        self._queue = queue
        self._ledger = ledger

    async def work(self, connection: Connection) -> None:
        channel = await connection.channel(prefetch=PREFETCH)
        consumer = channel.consume(self._queue)
        await consumer.subscribe()
        moving = asyncio.create_task(self._moves.wait())
        try:
            while not self._moves.is_set():
                batch = asyncio.ensure_future(consumer.batch())
                await asyncio.wait([batch, moving], return_when=asyncio.FIRST_COMPLETED)
                if not batch.done():
                    batch.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await batch
                    break
                messages = batch.result()
                if not messages:
                    break
                # No await between: what is noted is acknowledged in the same breath.
                await channel.ack(messages[-1].delivery_tag, multiple=True)
                for message in messages:
                    self._ledger.note(self._queue, str(message.properties.message_id))
        finally:
            moving.cancel()
        # Whatever else was delivered goes back when the channel is closed.
        await channel.close()


class AdoptProcess:
    """One `rhizome adopt run --json`; killed and started again as often as the test likes."""

    def __init__(self, directory: Path, source: str, target: str, http: Sequence[str]) -> None:
        self.state = directory / "adoption"
        self._output = directory / "adopt.txt"
        self._ends = [
            "--from",
            source,
            "--from-http",
            http[0],
            "--to",
            target,
            "--to-http",
            http[1],
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self._start = 0

    def start(self, *arguments: str) -> None:
        """Start it and return when it looks after the queues."""
        command = ["run", *self._ends, "--state", str(self.state), "--json", "--status", "1"]
        with self._output.open("ab") as output:
            self._start = output.tell()
            self._process = subprocess.Popen(
                [*RHIZOME, "adopt", *command, "--look", "0.3", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        wait_until(lambda: self.events("ready"), "adopt to be ready", SECONDS_MAX)

    def printed(self) -> str:
        with self._output.open("rb") as output:
            output.seek(self._start)
            return output.read().decode()

    def events(self, name: str) -> list[dict[str, Any]]:
        """Events of one name since the last start."""
        assert self._process is None or self._process.poll() in (None, 0), self.printed()
        lines = [line for line in self.printed().splitlines(keepends=True) if line.endswith("\n")]
        parsed = [json.loads(line) for line in lines if line.startswith("{")]
        return [event for event in parsed if event["event"] == name]

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(SECONDS_MAX)
        self._process = None
        return code

    def end(self) -> None:
        if self._process is not None:
            self.kill()

    def command(self, name: str, *arguments: str) -> tuple[int, dict[str, Any], str]:
        """Exit code, document and what was said on standard error of `plan` or `verify`."""
        state = [] if name == "plan" else ["--state", str(self.state)]
        done = subprocess.run(
            [*RHIZOME, "adopt", name, *self._ends, *state, "--json", *arguments],
            capture_output=True,
            check=False,
            timeout=SECONDS_MAX,
            env=os.environ,
        )
        text = done.stdout.decode()
        return done.returncode, json.loads(text) if text else {}, done.stderr.decode()


RHIZOME: Final = (sys.executable, "-m", "rhizome")
