"""The examples of docs/client do what they say, on a real broker."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from rhizome.client import connect
from rhizome.testing.broker_process import BrokerProcess

EXAMPLES = Path(__file__).parents[3] / "docs" / "client" / "examples"

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("examples"))
    process.start()
    yield process
    process.kill()


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def fill(url: str, queue: str, *bodies: bytes) -> None:
    async with connect(url) as connection, connection.channel(confirms=True) as channel:
        await channel.declare_queue(queue, durable=True)
        for body in bodies:
            await channel.publish(body, routing_key=queue)


async def count(url: str, queue: str) -> int:
    async with connect(url) as connection, connection.channel() as channel:
        return (await channel.declare_queue(queue, passive=True)).message_count


def test_every_example_is_run_here() -> None:
    run = {"exactly_once", "work_queue", "events", "without_a_loop", "nearest_first"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} == run


def test_exactly_once(broker: BrokerProcess) -> None:
    assert asyncio.run(example("exactly_once").main(broker.url)) == 500
    assert asyncio.run(count(broker.url, "lines")) == 500


def test_work_queue(broker: BrokerProcess) -> None:
    asyncio.run(fill(broker.url, "jobs", b"1", b"2", b"3", b"4"))
    assert asyncio.run(example("work_queue").main(broker.url)) == [b"1", b"2", b"3"]
    assert asyncio.run(count(broker.url, "jobs")) == 1


def test_events(broker: BrokerProcess) -> None:
    assert asyncio.run(example("events").main(broker.url)) == b"paid"


def test_without_a_loop(broker: BrokerProcess) -> None:
    assert example("without_a_loop").main(broker.url) == [b"a", b"b"]


def test_nearest_first(broker: BrokerProcess) -> None:
    assert asyncio.run(example("nearest_first").main(broker.url)) == "rhizome"
