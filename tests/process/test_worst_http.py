"""Whatever the HTTP API is sent within its limits, nobody else waits for it.

A bystander's connection asks the broker something over and over meanwhile. Measured is the time on
the processor that the broker's event loop takes between a question and its answer: a machine may be
busy with other things.
"""

from __future__ import annotations

import asyncio
import http.client
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from rhizome.client import connect
from rhizome.testing.processes import BrokerProcess

from .kit import run
from .worst_http import WorstRequest, filling, worst_requests

# In each run `test_worst_input.py` has the worst of every endpoint; here are all of them.
pytestmark = [pytest.mark.rhizome_only, pytest.mark.soak, pytest.mark.timeout(900)]

STALL_MS_MAX: Final = 100.0
SHOWN: Final = 10
SECONDS_MAX: Final = 800.0
LOGIN: Final = "Basic " + b64encode(b"guest:guest").decode()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("worst")) as process:
        assert ask(process, WorstRequest("", "POST", "/api/definitions", filling)) == 204
        yield process
        assert process.is_running(), process.printed()


def ask(broker: BrokerProcess, request: WorstRequest) -> int:
    connection = http.client.HTTPConnection(broker.host, broker.http_port, timeout=60)
    try:
        connection.request(
            request.method, request.path, request.body() or None, {"Authorization": LOGIN}
        )
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def loop_ms(broker: BrokerProcess) -> float:
    """What the thread of the event loop has had of a processor so far."""
    path = Path(f"/proc/{broker.pid}/task/{broker.pid}/schedstat")
    return int(path.read_text().split()[0]) / 1e6


def test_nobody_waits_for_the_worst_request_of_any_endpoint(broker: BrokerProcess) -> None:
    stalls = run(measured(broker, worst_requests()), SECONDS_MAX)
    idle = stalls.pop("idle")
    slowest = sorted(stalls.items(), key=lambda each: -each[1])[:SHOWN]
    table = "\n".join(f"{stall:8.1f} ms  {name}" for name, stall in slowest)
    print(f"idle: {idle:.1f} ms; the slowest of {len(stalls)}:\n{table}")
    assert slowest[0][1] < STALL_MS_MAX + idle, table


async def measured(broker: BrokerProcess, requests: list[WorstRequest]) -> dict[str, float]:
    """The longest stall of the bystander during each request, and without one."""
    found: dict[str, float] = {}
    async with connect(broker.url) as connection, connection.channel() as channel:
        await channel.declare_queue("bystander", exclusive=True)

        async def stall_during(work: asyncio.Future[int]) -> float:
            longest = 0.0
            while not work.done():
                before = loop_ms(broker)
                await channel.declare_queue("bystander", passive=True)
                longest = max(longest, loop_ms(broker) - before)
            return longest

        quiet = asyncio.ensure_future(asyncio.sleep(0.5, 0))
        found["idle"] = await stall_during(quiet)
        for request in requests:
            work = asyncio.ensure_future(asyncio.to_thread(ask, broker, request))
            found[request.name] = await stall_during(work)
            assert await work != 500, request.name
    return found
