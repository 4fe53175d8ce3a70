"""`rhizome adopt` between two brokers while applications under load switch, and return.

The old side is a Rhizome broker here, and RabbitMQ where one has been prepared
(`python tools/rabbitmq.py prepare --version 4.3`); the soak prepares both versions.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

import pytest
from rabbitmq import is_prepared, rabbitmq_node

from rhizome.cli.commands.messages.adopt_command import PREFETCH_DEFAULT
from rhizome.client import Channel, connect
from rhizome.testing.broker_process import BrokerProcess
from tests.process.adoption_load import (
    AdoptProcess,
    Application,
    Consumer,
    Ledger,
    Party,
    Publisher,
    login,
)
from tests.process.helpers import PERSISTENT, call_api, run

pytestmark = pytest.mark.timeout(300)

VERSIONS: Final = ("3.10", "4.3")
QUEUES: Final = ("orders", "events-audit", "events-mail")
CONSUMERS_PER_QUEUE: Final = 2
MOVE_SECONDS_MAX: Final = 1500.0
PATIENCE_SECONDS: Final = 60.0
"""RabbitMQ tells of new consumers every five seconds."""
PASSWORD: Final = "s3cret-of-the-app"


def ready(version: str) -> bool:
    return os.geteuid() == 0 and is_prepared(version)


def against(version: str) -> Any:
    reason = f"no RabbitMQ {version} here: python tools/rabbitmq.py prepare --version {version}"
    marks = pytest.mark.skipif(not ready(version), reason=reason)
    return pytest.param(version, marks=marks, id=f"rabbitmq-{version}")


SOURCES: Final = (pytest.param("", id="rhizome"), *map(against, VERSIONS))


@pytest.fixture
def target(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path / "target")
    broker.start()
    yield broker
    broker.close()


@pytest.fixture
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Party]:
    """The old side: of the version that the test has as a parameter, or a Rhizome broker."""
    version = request.param
    if version:
        with rabbitmq_node(version) as node:
            yield node
        return
    broker = BrokerProcess(tmp_path / "source")
    broker.start()
    yield broker
    broker.close()


def admin(party: Party, vhost: str = "") -> str:
    return login(party, "guest", "guest", vhost)


def app(party: Party) -> str:
    return login(party, "app", PASSWORD, "shop")


def put(party: Party, path: str, document: str) -> None:
    host, _, port = party.http_url.removeprefix("http://").partition(":")
    connection = HTTPConnection(host, int(port), timeout=30)
    headers = {"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q=", "Content-Type": "application/json"}
    connection.request("PUT", f"/api/{path}", document, headers)
    answer = connection.getresponse()
    assert answer.status < 300, (path, answer.status, answer.read())
    connection.close()


ALL: Final = '{"configure": ".*", "write": ".*", "read": ".*"}'


def furnish(party: Party) -> None:
    """What an installation has: a vhost, a user, exchanges, queues."""
    put(party, "vhosts/shop", "{}")
    put(party, "users/app", f'{{"password": "{PASSWORD}", "tags": ""}}')
    put(party, "permissions/shop/app", ALL)
    put(party, "permissions/shop/guest", ALL)

    async def declare(channel: Channel) -> None:
        await channel.declare_exchange("events", "topic", durable=True)
        for queue in (*QUEUES, "parked"):
            await channel.declare_queue(queue, durable=True)
        await channel.bind_queue("events-audit", "events", "audit.#")
        await channel.bind_queue("events-mail", "events", "mail.#")

    async def scenario() -> None:
        async with connect(admin(party, "shop")) as connection, connection.channel() as channel:
            await declare(channel)

    run(scenario())


def adoption(tmp_path: Path, source: Party, target: Party) -> AdoptProcess:
    https = [party.http_url.removeprefix("http://") for party in (source, target)]
    return AdoptProcess(tmp_path, admin(source), admin(target), https)


def crowd(url: str, ledger: Ledger, rate: float) -> tuple[list[Application], list[Application]]:
    """Publishers and consumers of all queues."""
    routes = {"orders": ("", "orders"), "events-audit": ("events", "audit.login")}
    routes["events-mail"] = ("events", "mail.sent")
    publishers: list[Application] = [
        Publisher(f"{queue}.{number}", url, *routes[queue], ledger, rate)
        for queue in QUEUES
        for number in range(2)
    ]
    consumers: list[Application] = [
        Consumer(queue, url, ledger) for queue in QUEUES for _ in range(CONSUMERS_PER_QUEUE)
    ]
    return publishers, consumers


async def until(condition: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"no {what} within {PATIENCE_SECONDS} s") from None


async def more_messages(ledger: Ledger, count: int) -> None:
    """Have the load go on for a while: the misfortune of a switch needs messages to meet."""
    enough = ledger.got.total() + count
    await until(lambda: ledger.got.total() >= enough, f"{count} more messages")


@dataclass
class Load:
    """How the applications behave: messages per second of each publisher, and how many messages
    go by between two switches. `disturb` happens to the adoption halfway through a switch of all.
    """

    rate: float = 100.0
    between: int = 100
    rounds: int = 1
    disturb: Callable[[AdoptProcess], None] = lambda adopt: None


def restart(adopt: AdoptProcess) -> None:
    assert adopt.stop() == 0, adopt.printed()
    adopt.start()


def kill_and_start(adopt: AdoptProcess) -> None:
    adopt.kill()
    adopt.start()


class Move:
    """Applications under load, and the adoption that they switch sides with."""

    def __init__(self, adopt: AdoptProcess, source: Party, target: Party, load: Load) -> None:
        self.ledger = Ledger()
        self._adopt = adopt
        self._source, self._target = app(source), app(target)
        self._load = load
        self._chance = random.Random(7)
        self._publishers, self._consumers = crowd(self._source, self.ledger, load.rate)

    async def there_and_back(self) -> dict[str, Any]:
        """What became of the messages in the end. There consumers go first, which has most to be
        brought over; and back everybody goes as it comes."""
        apps = self._publishers + self._consumers
        tasks = [asyncio.create_task(each.run()) for each in apps]
        await more_messages(self.ledger, self._load.between)
        for _ in range(self._load.rounds):
            await asyncio.to_thread(self._adopt.start)
            await self._switch_all(self._target, self._consumers + self._publishers)
            await verified(self._adopt)
            self._chance.shuffle(apps)
            await self._switch_all(self._source, apps)
            await verified(self._adopt, "--back")
            assert await asyncio.to_thread(self._adopt.stop) == 0
        for each in self._publishers:
            each.finish()
        await all_got(self.ledger)
        for each in self._consumers:
            each.finish()
        await asyncio.gather(*tasks)
        return {**self.ledger.report(), **self._adopt.events("status")[-1]["totals"]}

    async def _switch_all(self, url: str, apps: list[Application]) -> None:
        """One by one."""
        for number, each in enumerate(apps):
            await each.switch(url)
            await more_messages(self.ledger, self._load.between)
            if number == len(apps) // 2:
                await asyncio.to_thread(self._load.disturb, self._adopt)


def moved(adopt: AdoptProcess, source: Party, target: Party, load: Load) -> dict[str, Any]:
    """What became of the messages of applications that moved there and back.

    Some of them were brought over and some back, else the test would show nothing.
    """
    furnish(source)
    try:
        report = run(Move(adopt, source, target, load).there_and_back(), MOVE_SECONDS_MAX)
    finally:
        adopt.end()
    print(report)
    assert report["forward"], report
    assert report["back"], report
    return report


async def all_got(ledger: Ledger) -> None:
    def nothing_is_missing() -> bool:
        return not ledger.lost()

    try:
        await until(nothing_is_missing, "complete set")
    except AssertionError:
        raise AssertionError(f"lost: {ledger.lost()[:10]} of {ledger.report()}") from None


async def verified(adopt: AdoptProcess, *arguments: str) -> None:
    """Wait until nothing is left at the side that the applications have left."""
    left: list[Any] = []
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                code, document, said = await asyncio.to_thread(adopt.command, "verify", *arguments)
                left = document.get("left", [said])
                if code == 0:
                    return
                await asyncio.sleep(0.5)
    except TimeoutError:
        raise AssertionError(f"left: {left}") from None


# --- under load


@pytest.mark.parametrize("source", SOURCES, indirect=True)
def test_applications_move_there_and_back_under_load(
    source: Party, target: BrokerProcess, tmp_path: Path
) -> None:
    """The adoption is restarted on the way: a stop lets arrive what is under way."""
    report = moved(adoption(tmp_path, source, target), source, target, Load(disturb=restart))
    assert (report["lost"], report["duplicated"]) == (0, 0), report


@pytest.mark.parametrize("source", SOURCES, indirect=True)
def test_an_adoption_that_is_killed_loses_nothing(
    source: Party, target: BrokerProcess, tmp_path: Path
) -> None:
    """What was under way may come twice then: at most a window of each queue, at each kill."""
    report = moved(adoption(tmp_path, source, target), source, target, Load(disturb=kill_and_start))
    assert report["lost"] == 0, report
    assert report["duplicated"] <= 2 * len(QUEUES) * PREFETCH_DEFAULT, report


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.skipif(os.geteuid() != 0, reason="RabbitMQ is run in a chroot, which needs root")
@pytest.mark.parametrize("source", VERSIONS, indirect=True)
def test_applications_move_there_and_back_again_and_again(
    source: Party, target: BrokerProcess, tmp_path: Path
) -> None:
    load = Load(rate=300, between=1000, rounds=5, disturb=restart)
    report = moved(adoption(tmp_path, source, target), source, target, load)
    assert (report["lost"], report["duplicated"]) == (0, 0), report


# --- what is in the way


@pytest.fixture
def calm(tmp_path: Path, target: BrokerProcess) -> Iterator[tuple[BrokerProcess, AdoptProcess]]:
    """A Rhizome broker as the old side, furnished, without load."""
    broker = BrokerProcess(tmp_path / "source")
    broker.start()
    furnish(broker)
    adopt = adoption(tmp_path, broker, target)
    yield broker, adopt
    adopt.end()
    broker.close()


def publish(party: Party, queue: str, numbers: range) -> None:
    async def scenario() -> None:
        async with (
            connect(admin(party, "shop")) as connection,
            connection.channel(confirms=True) as channel,
        ):
            for number in numbers:
                channel.publish_soon(
                    b"%d" % number, routing_key=queue, properties=PERSISTENT, mandatory=True
                )
            await channel.confirmed()

    run(scenario())


def numbers_in(party: Party, queue: str) -> list[int]:
    async def scenario() -> list[int]:
        found: list[int] = []
        async with connect(admin(party, "shop")) as connection, connection.channel() as channel:
            while (message := await channel.get(queue, no_ack=True)) is not None:
                found.append(int(message.body))
        return found

    return run(scenario())


def test_a_queue_that_nobody_consumes_is_moved_in_order_when_it_is_named(
    calm: tuple[BrokerProcess, AdoptProcess], target: BrokerProcess
) -> None:
    source, adopt = calm
    publish(source, "parked", range(500))
    adopt.start()
    code, document, _ = adopt.command("verify")
    assert code == 1
    assert [each["name"] for each in document["left"]] == ["shop/parked"]
    assert "--move 'parked'" in document["left"][0]["text"]
    assert adopt.stop() == 0
    adopt.start("--move", "park*")
    run(verified(adopt))
    assert adopt.stop() == 0
    assert numbers_in(source, "parked") == []
    assert numbers_in(target, "parked") == list(range(500))
    totals = adopt.events("status")[-1]["totals"]
    assert totals.pop("forward") == totals.pop("taken") == 500
    assert set(totals.values()) == {0}


def test_what_was_brought_over_returns_in_order_and_goes_again(
    calm: tuple[BrokerProcess, AdoptProcess], target: BrokerProcess
) -> None:
    """Bridges that see a circle in it would end."""
    source, adopt = calm
    publish(source, "parked", range(300))
    for arguments in (["--move", "parked"], ["--move", "parked", "--back"], ["--move", "parked"]):
        adopt.start(*arguments)
        run(verified(adopt, *arguments[2:]))
        assert adopt.stop() == 0
    assert numbers_in(target, "parked") == list(range(300))
    totals = adopt.events("status")[-1]["totals"]
    assert (totals["forward"], totals["back"], totals["taken"]) == (600, 300, 900)


def test_what_is_published_there_first_comes_back_to_consumers_that_stay(
    calm: tuple[BrokerProcess, AdoptProcess], target: BrokerProcess
) -> None:
    source, adopt = calm

    async def scenario() -> list[int]:
        async with connect(app(source)) as connection, connection.channel() as channel:
            consumer = channel.consume("orders")
            await consumer.subscribe()
            await asyncio.to_thread(adopt.start)
            await asyncio.to_thread(publish, target, "orders", range(100))
            found: list[int] = []
            while len(found) < 100:
                found += [int(message.body) for message in await consumer.batch()]
            return found

    assert run(scenario()) == list(range(100))


def test_a_plan_changes_nothing(
    calm: tuple[BrokerProcess, AdoptProcess], target: BrokerProcess
) -> None:
    _, adopt = calm
    code, document, said = adopt.command("plan")
    assert code == 0, said
    assert document["counts"]["queues"] == len(QUEUES) + 1
    assert {each["name"]: each["moved"] for each in document["queues"]}["parked"]
    assert call_api(target, "GET", "vhosts", "shop") is None


def test_definitions_that_are_refused_stop_it_before_anything_is_changed(
    calm: tuple[BrokerProcess, AdoptProcess], target: BrokerProcess
) -> None:
    _, adopt = calm
    put(target, "vhosts/shop", "{}")
    put(target, "vhost-limits/shop/max-queues", '{"value": 2}')
    code, document, _ = adopt.command("plan")
    assert code == 1
    refused = [each for each in document["findings"] if each["outcome"] == "refused"]
    assert {each["kind"] for each in refused} == {"queues", "bindings"}
    code, _, said = adopt.command("run")
    assert code == 1
    assert "limit" in said
    assert call_api(target, "GET", "users", "app") is None
    adopt.start("--skip-refused")
    assert call_api(target, "GET", "users", "app") is not None
    _, document, _ = adopt.command("verify")
    missing = {each["name"] for each in document["left"] if each["what"] == "queue"}
    assert missing == {f"shop/{each['name']}" for each in refused if each["kind"] == "queues"}


def test_it_goes_on_when_a_side_comes_back(
    calm: tuple[BrokerProcess, AdoptProcess], target: BrokerProcess
) -> None:
    """What the killed source had not written as acknowledged comes twice, however much that is."""
    source, adopt = calm
    publish(source, "parked", range(5000))
    adopt.start("--move", "parked", "--retry-max", "0.5", "--prefetch", "20")
    for count, broker in enumerate((target, source), 1):
        run(until(lambda count=count: len(adopt.events("running")) >= count, "bridge"))
        broker.kill()
        run(until(lambda count=count: len(adopt.events("lost")) >= count, "loss"))
        broker.start()
    run(verified(adopt))
    assert adopt.stop() == 0
    found = numbers_in(target, "parked")
    assert list(dict.fromkeys(found)) == list(range(5000))


def test_two_runs_of_one_adoption_are_one_too_many(
    calm: tuple[BrokerProcess, AdoptProcess],
) -> None:
    _, adopt = calm
    adopt.start()
    code, _, said = adopt.command("run")
    assert code == 1
    assert "another process moves messages" in said


def test_a_wrong_password_is_told_without_repeating_it(
    calm: tuple[BrokerProcess, AdoptProcess], target: BrokerProcess, tmp_path: Path
) -> None:
    source, _ = calm
    https = [party.http_url.removeprefix("http://") for party in (source, target)]
    wrong = AdoptProcess(tmp_path, login(source, "guest", "hunter2"), admin(target), https)
    code, _, said = wrong.command("plan")
    assert code == 1
    assert "refused user 'guest'" in said
    assert "hunter2" not in said
