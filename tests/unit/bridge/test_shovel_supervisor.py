"""Following parameters: what is begun, ended and begun anew, with bridges that only say so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rhizome.bridge import BridgeEvent, BridgeFailed, BridgeSettings
from rhizome.bridge.bridge_events import RUNNING, STOPPED, Report, Reporter
from rhizome.bridge.shovel_settings import OwnCluster, Parameter, ParameterContext
from rhizome.bridge.shovel_supervisor import (
    ParameterListing,
    ParametersRefused,
    ParametersUnavailable,
    ShovelIntervals,
    ShovelSupervisor,
)

SECONDS_MAX = 30
TEMPLATE = BridgeSettings("", "", "")
OWN = OwnCluster("grove", ("amqp://b1:5672", "amqp://b2:5672"))


class FakeBridge:
    """Runs until it is told to stop, and then until it is let; or fails at once if it should."""

    def __init__(self, settings: BridgeSettings, report: Report, world: World) -> None:
        self.settings = settings
        self.reporter = Reporter(settings.id, report)
        self.running = asyncio.Event()
        self.may_end = asyncio.Event()
        self.is_over = False
        self._world = world
        if not world.holds:
            self.may_end.set()

    async def run(self, stop: asyncio.Event) -> None:
        assert all(other.is_over for other in self._world.others(self)), "two at a time"
        try:
            if self._world.fails:
                raise BridgeFailed("no queue")
            self.running.set()
            self.reporter.tell(RUNNING, "running")
            await stop.wait()
            await self.may_end.wait()
            self.reporter.tell(STOPPED, "stopped")
        finally:
            self.is_over = True


class World:
    """The parameters as they are, the bridges that were made, and what was told."""

    def __init__(self) -> None:
        self.parameters: dict[tuple[str, str], object] = {}
        self.own = OwnCluster()
        self.error: Exception | None = None
        self.holds = False
        self.fails = False
        self.looks = 0
        self.bridges: list[FakeBridge] = []
        self.events: list[BridgeEvent] = []
        self.stop = asyncio.Event()
        self._something = asyncio.Event()
        pauses = ShovelIntervals(look_s=0.01, again_s=0.01)
        own_uri = "amqp://u:s3cret@"
        origin = ParameterContext(OwnCluster(), own_uri, TEMPLATE)
        self.follower = ShovelSupervisor(self._read, origin, self._report, pauses, self._make)

    async def _read(self) -> ParameterListing:
        self.looks += 1
        self._something.set()
        if self.error is not None:
            raise self.error
        found = tuple(Parameter(*key, value) for key, value in self.parameters.items())
        return ParameterListing(found, self.own)

    def _make(self, settings: BridgeSettings, report: Report) -> FakeBridge:
        self.bridges.append(FakeBridge(settings, report, self))
        return self.bridges[-1]

    def _report(self, event: BridgeEvent) -> None:
        self.events.append(event)
        self._something.set()

    def others(self, bridge: FakeBridge) -> list[FakeBridge]:
        same = [each for each in self.bridges if each.settings.id == bridge.settings.id]
        return [each for each in same if each is not bridge]

    def put(self, name: str, vhost: str = "/", **given: Any) -> None:
        value = {"src-queue": "q", "dest-queue": "r"}
        value |= {"src-uri": "amqp://u:p@a", "dest-uri": "amqp://u:p@b"}
        value |= {key.replace("_", "-"): each for key, each in given.items()}
        kept = {key: each for key, each in value.items() if each is not None}
        self.parameters[(vhost, name)] = kept

    def told(self, name: str, bridge: str = "") -> list[str]:
        found = [each for each in self.events if each.name == name]
        return [each.text for each in found if not bridge or each.bridge == bridge]

    def state(self, bridge: str) -> dict[str, object]:
        self.follower.tell_status()
        return [each.details for each in self.events if each.bridge == bridge][-1]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS_MAX):
            while not condition():
                self._something.clear()
                await self._something.wait()

    async def looked(self) -> None:
        """Until two further looks have begun: what was there for the first has been acted upon."""
        wanted = self.looks + 2
        await self.until(lambda: self.looks >= wanted)

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.follower.run(self.stop))
        try:
            yield
            self.stop.set()
            async with asyncio.timeout(SECONDS_MAX):
                await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def scenario(
    work: Callable[[World], Coroutine[Any, Any, None]],
) -> Callable[[], None]:
    def run() -> None:
        async def limited() -> None:
            async with asyncio.timeout(SECONDS_MAX * 2):
                await work(World())

        asyncio.run(limited())

    run.__name__, run.__doc__ = work.__name__, work.__doc__
    return run


@scenario
async def test_what_is_added_is_begun_and_what_is_removed_is_ended(world: World) -> None:
    world.put("one")
    async with world.following():
        await world.until(lambda: len(world.told("running")) == 1)
        world.put("two", vhost="v")
        await world.until(lambda: world.told("running", "v/two") == ["running"])
        world.holds = True
        del world.parameters[("/", "one")]
        await world.until(lambda: bool(world.told("stopped", "one")))
        await world.looked()
        assert [each.is_over for each in world.bridges] == [True, False]
    assert world.told("ready") == ["following one"]
    assert world.told("removed") == ["the parameter was removed"]


@scenario
async def test_what_is_not_changed_is_left_alone(world: World) -> None:
    world.put("one")
    async with world.following():
        for _ in range(3):
            await world.looked()
        assert len(world.bridges) == 1
        assert world.told("changed") == []


@scenario
async def test_what_is_changed_begins_anew_when_the_old_one_has_ended(world: World) -> None:
    world.holds = True
    world.put("one")
    async with world.following():
        await world.until(lambda: bool(world.told("running")))
        world.put("one", dest_queue="other")
        await world.until(lambda: bool(world.told("changed")))
        await world.looked()
        assert len(world.bridges) == 1
        world.bridges[0].may_end.set()
        await world.until(lambda: len(world.told("running")) == 2)
        assert [each.settings.to_queue for each in world.bridges] == ["r", "other"]
        world.bridges[1].may_end.set()


@scenario
async def test_what_is_removed_and_added_again_waits_for_the_old_one(world: World) -> None:
    world.holds = True
    world.put("one")
    async with world.following():
        await world.until(lambda: bool(world.told("running")))
        before = dict(world.parameters)
        world.parameters.clear()
        await world.until(lambda: bool(world.told("removed")))
        world.parameters = before
        await world.until(lambda: len(world.told("added")) == 2)
        await world.looked()
        assert len(world.bridges) == 1
        world.bridges[0].may_end.set()
        await world.until(lambda: len(world.told("running")) == 2)
        world.bridges[1].may_end.set()


@scenario
async def test_a_wrong_parameter_is_told_once_and_hinders_nobody(world: World) -> None:
    world.put("bad", src_qeue="q")
    world.put("good")
    async with world.following():
        await world.until(lambda: bool(world.told("running", "good")))
        await world.looked()
        assert world.told("failed") == [
            "shovel 'bad' in vhost '/': unknown key 'src-qeue', did you mean 'src-queue'?"
        ]
        assert world.state("bad")["state"] == "failed"
        assert "src-qeue" in str(world.state("bad")["reason"])
        world.put("bad")
        await world.until(lambda: bool(world.told("running", "bad")))
        assert world.state("bad")["reason"] == ""
        assert len(world.bridges) == 2


@scenario
async def test_a_bridge_that_becomes_wrong_ends(world: World) -> None:
    world.put("one")
    async with world.following():
        await world.until(lambda: bool(world.told("running")))
        world.put("one", ack_mode="never")
        await world.until(lambda: bool(world.told("failed")))
        assert world.bridges[0].is_over


@scenario
async def test_a_bridge_that_fails_is_tried_again(world: World) -> None:
    world.fails = True
    world.put("one")
    async with world.following():
        await world.until(lambda: len(world.bridges) >= 3)
        world.fails = False
        await world.until(lambda: bool(world.told("running")))


@scenario
async def test_everything_goes_on_while_the_parameters_cannot_be_read(world: World) -> None:
    world.put("one")
    async with world.following():
        await world.until(lambda: bool(world.told("running")))
        world.error = ParametersUnavailable("none of the brokers answers")
        await world.looked()
        world.error = ParametersRefused("Login failed")
        await world.looked()
        lost = world.told("lost")
        assert [text.partition(";")[0] for text in lost] == [
            "the parameters can't be read: none of the brokers answers",
            "the parameters can't be read: Login failed",
        ]
        assert not world.bridges[0].is_over
        world.error = None
        await world.until(lambda: bool(world.told("connected")))
        assert len(world.bridges) == 1


@scenario
async def test_a_silent_cluster_is_waited_for_and_a_refusal_at_the_start_ends_it(
    world: World,
) -> None:
    world.error = ParametersUnavailable("none of the brokers answers")
    running = asyncio.create_task(world.follower.run(world.stop))
    await world.looked()
    assert not running.done()
    world.error = ParametersRefused("Login failed")
    with pytest.raises(ParametersRefused, match="Login failed"):
        await running


@scenario
async def test_addresses_of_the_cluster_are_taken_when_none_is_known_any_more(
    world: World,
) -> None:
    world.own = OWN
    world.put("one", src_uri="amqp:///%2F")
    async with world.following():
        await world.until(lambda: bool(world.told("running")))
        assert world.bridges[0].settings.source_uri == "amqp://u:s3cret@b1:5672,b2:5672/%2F"
        world.own = OwnCluster("grove", ("amqp://b2:5672", "amqp://b3:5672"))
        await world.looked()
        world.own = OwnCluster()
        await world.looked()
        assert len(world.bridges) == 1
        world.own = OwnCluster("grove", ("amqp://b4:5672",))
        await world.until(lambda: len(world.told("running")) == 2)
        assert world.bridges[1].settings.source_uri == "amqp://u:s3cret@b4:5672/%2F"
    assert "s3cret" not in repr(world.events)


@scenario
async def test_bindings_that_the_parameter_had_before_are_removed(world: World) -> None:
    world.put("one", src_queue=None, src_exchange="e", src_exchange_key="a")
    async with world.following():
        await world.until(lambda: len(world.told("running")) == 1)
        world.put("one", src_queue=None, src_exchange="e", src_exchange_key="b")
        await world.until(lambda: len(world.told("running")) == 2)
        world.put("one", src_queue=None, src_exchange="e", src_exchange_key="a")
        await world.until(lambda: len(world.told("running")) == 3)
        world.put("one", src_queue=None, src_exchange="e", src_exchange_key="a", dest_queue="s")
        await world.until(lambda: len(world.told("running")) == 4)
        unbinds = [each.settings.unbinds for each in world.bridges]
        assert unbinds == [(), (("e", "a"),), (("e", "b"),), ()]
        assert world.told("advice") == []


@scenario
async def test_a_queue_that_nobody_takes_from_any_more_is_told(world: World) -> None:
    world.put("one", src_queue=None, src_exchange="e")
    world.put("two", src_queue=None, src_exchange="e")
    world.put("three")
    async with world.following():
        await world.until(lambda: len(world.told("running")) == 3)
        world.put("one", src_queue=None, src_exchange="e", src_uri="amqp://u:p@elsewhere")
        world.put("two")
        await world.until(lambda: len(world.told("running")) == 5)
        assert "rhizome queue delete bridge.one" in world.told("advice", "one")[0]
        assert "rhizome queue delete bridge.two" in world.told("advice", "two")[0]
        world.parameters.clear()
        await world.until(lambda: len(world.told("removed")) == 3)
        counts = [len(world.told("advice", name)) for name in ("one", "two", "three")]
        assert counts == [2, 1, 0]


@scenario
async def test_a_stop_ends_all_bridges_cleanly_and_gives_no_advice(world: World) -> None:
    world.put("one", src_queue=None, src_exchange="e")
    world.put("two")
    async with world.following():
        await world.until(lambda: len(world.told("running")) == 2)
    assert len(world.told("stopped")) == 2
    assert world.told("advice") == world.told("removed") == []


@scenario
async def test_the_status_names_state_ends_and_what_was_moved(world: World) -> None:
    world.put("one", src_uri="amqp://u:s3cret@a1,a2", dest_queue=None, dest_exchange="e")
    async with world.following():
        await world.until(lambda: bool(world.told("running")))
        world.bridges[0].reporter.counters.moved = 12
        state = world.state("one")
        assert (state["state"], state["moved"]) == ("running", 12)
        assert state["from"] == "queue 'q' at a1:5672,a2:5672"
        assert state["to"] == "exchange 'e' at b:5672"
        assert world.told("status") == [
            "running, queue 'q' at a1:5672,a2:5672 -> exchange 'e' at b:5672, moved 12"
        ]
