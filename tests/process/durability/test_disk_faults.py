"""What a broker does when its disk fails, is full or hangs: the table in the runbook says so."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rhizome.client import Channel, ConnectionLost, connect
from rhizome.errors import ConnectionForced
from rhizome.testing.broker_process import wait_until
from tests.process.durability.test_power_cuts import CutBroker, lone
from tests.process.helpers import PERSISTENT, contents, run
from tests.process.power_cut import Faults

pytestmark = pytest.mark.rhizome_only

FULL = "the disk of the journal is full"
END_SECONDS_MAX = 30.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[CutBroker]:
    broker = lone(tmp_path / "faulty")
    broker.start()
    yield broker
    broker.disk.faults.clear()
    broker.close()


@asynccontextmanager
async def publisher(broker: CutBroker) -> AsyncIterator[Channel]:
    """A channel with confirms, and the message "before", which is confirmed."""
    async with connect(broker.url) as connection, connection.channel(confirms=True) as channel:
        await channel.declare_queue("q", durable=True)
        await channel.publish(b"before", routing_key="q", properties=PERSISTENT)
        yield channel


async def during(channel: Channel) -> None:
    await channel.publish(b"during", routing_key="q", properties=PERSISTENT)


def failing_writes(faults: Faults) -> None:
    faults.fail_writes(errno.EIO)


def failing_syncs(faults: Faults) -> None:
    faults.fail_syncs(errno.EIO)


def full_at_sync(faults: Faults) -> None:
    """The pages may be gone: that there is space later proves nothing."""
    faults.fail_syncs(errno.ENOSPC)


@pytest.mark.parametrize("fail", [failing_writes, failing_syncs, full_at_sync])
def test_a_disk_that_fails_ends_the_broker_and_nothing_is_confirmed(
    broker: CutBroker, fail: object
) -> None:
    assert callable(fail)

    async def scenario() -> None:
        async with publisher(broker) as channel:
            fail(broker.disk.faults)
            await during(channel)

    with pytest.raises(ConnectionForced):
        run(scenario())
    wait_until(lambda: not broker.is_running(), "the broker to end", END_SECONDS_MAX)
    assert "the store failed, stopping" in broker.printed()
    assert broker.stop() == 1
    broker.disk.faults.clear()
    broker.disk.cut()
    broker.start()
    assert run(contents(broker, "q")) == [b"before"]


def test_a_full_disk_is_waited_out(broker: CutBroker) -> None:
    async def scenario() -> None:
        async with publisher(broker) as channel:
            broker.disk.faults.fail_writes(errno.ENOSPC)
            publishing = asyncio.create_task(during(channel))
            while FULL not in broker.printed():
                await asyncio.sleep(0.01)
            assert await contents(broker, "q") == [b"before", b"during"], "consumers go on"
            assert not publishing.done()
            broker.disk.faults.clear()
            await publishing

    run(scenario())
    broker.kill()
    broker.disk.cut()
    broker.start()
    assert run(contents(broker, "q")) == [b"before", b"during"]


def test_a_sync_that_hangs_holds_confirms_up_and_nothing_else(broker: CutBroker) -> None:
    async def scenario() -> None:
        async with publisher(broker) as channel:
            broker.disk.faults.hang_syncs(True)
            publishing = asyncio.create_task(during(channel))
            while broker.disk.faults.hanging == 0:
                await asyncio.sleep(0.01)
            assert await contents(broker, "q") == [b"before", b"during"]
            assert not publishing.done()
            broker.disk.faults.clear()
            await publishing

    run(scenario())


def test_a_write_that_hangs_holds_confirms_up_and_nothing_else(broker: CutBroker) -> None:
    """Journals and logs are written by threads: the event loop waits for neither."""

    async def scenario() -> None:
        async with publisher(broker) as channel:
            broker.disk.faults.hang_writes(True)
            publishing = asyncio.create_task(during(channel))
            while broker.disk.faults.hanging == 0:
                await asyncio.sleep(0.01)
            assert await contents(broker, "q") == [b"before", b"during"]
            assert not publishing.done()
            broker.disk.faults.clear()
            await publishing

    run(scenario())


def test_what_a_sync_that_hangs_had_not_made_safe_may_be_lost(broker: CutBroker) -> None:
    """Nobody was told that it was safe."""

    async def scenario() -> None:
        async with publisher(broker) as channel:
            broker.disk.faults.hang_syncs(True)
            publishing = asyncio.create_task(during(channel))
            while broker.disk.faults.hanging == 0:
                await asyncio.sleep(0.01)
            broker.kill()
            await publishing

    with pytest.raises(ConnectionLost):
        run(scenario())
    broker.disk.faults.clear()
    broker.disk.cut()
    broker.start()
    assert run(contents(broker, "q")) == [b"before"]
