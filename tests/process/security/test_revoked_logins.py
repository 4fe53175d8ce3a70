"""Logins in a cluster of real processes: revoked everywhere, and known everywhere.

The tests share three brokers. Each change is made at one of them and looked for at all.
"""

from __future__ import annotations

import hashlib
import json
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from typing import Any

import pytest

from rhizome.amqp import methods
from rhizome.amqp.methods import Method, decode_method
from rhizome.testing.broker_process import BrokerProcess, wait_until
from rhizome.testing.cluster_process import ClusterProcess
from tests.process.helpers import PROTOCOL_HEADER, RawClient, call_api, run

pytestmark = [pytest.mark.rhizome_only, pytest.mark.timeout(600)]

NOTICES = {"capabilities": {"consumer_cancel_notify": True}}
EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}
APPLICATION = "127.0.0.1"
STRANGER = "127.0.0.66"

Unique = Callable[[str], str]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    cluster = ClusterProcess(tmp_path_factory.mktemp("logins"), primaries=3)
    cluster.start()
    yield cluster
    cluster.make_whole()
    assert cluster.stop() == [0] * 3, cluster.printed()


def put_user(broker: BrokerProcess, user: str, **document: Any) -> None:
    call_api(broker, "PUT", "users", user, tags="management", **document)


def make_user(broker: BrokerProcess, user: str) -> None:
    put_user(broker, user, password="right")
    call_api(broker, "PUT", "permissions", "/", user, **EVERYTHING)


async def consuming(broker: BrokerProcess, user: str, queue: str) -> RawClient:
    """A client that is logged in and consumes a queue."""
    client = await RawClient.connected(broker)
    client.write(PROTOCOL_HEADER)
    await client.read_frame()
    login = f"\0{user}\0right".encode()
    client.send(0, methods.ConnectionStartOk(NOTICES, "PLAIN", login, "en_US"))
    await client.read_frame()
    client.send(0, methods.ConnectionTuneOk(2047, 131_072, 0), methods.ConnectionOpen("/"))
    await client.read_frame()
    client.send(1, methods.ChannelOpen(), methods.QueueDeclare(queue, durable=True))
    await client.read_frame()
    await client.read_frame()
    client.send(1, methods.BasicConsume(queue, "mine"))
    assert isinstance(decode_method(await client.read_frame()), methods.BasicConsumeOk)
    return client


def told_everywhere(
    cluster: ClusterProcess, user: str, queue: str, change: Callable[[], object]
) -> list[Method]:
    """What consumers at each broker are told when something is changed."""

    async def scenario() -> list[Method]:
        clients = [await consuming(each, user, queue) for each in cluster.brokers.values()]
        begun = time.monotonic()
        change()
        told = [decode_method(await client.read_frame()) for client in clients]
        print(f"told at {len(told)} brokers after {time.monotonic() - begun:.3f} s")
        for client in clients:
            await client.close()
        return told

    return run(scenario())


def assert_closed(told: list[Method], reason: str) -> None:
    for method in told:
        assert isinstance(method, methods.ConnectionClose), method
        assert method.reply_code == 320
        assert reason in method.reply_text


# ---- revoked


def test_another_password_closes_connections_at_every_broker(
    cluster: ClusterProcess, unique: Unique
) -> None:
    user, b1, b2 = unique("app"), cluster.brokers["b1"], cluster.brokers["b2"]
    make_user(b1, user)
    told = told_everywhere(
        cluster, user, unique("q"), lambda: put_user(b2, user, password="another")
    )
    assert_closed(told, f"the password of user '{user}' was changed")


def test_the_same_password_again_closes_nothing(cluster: ClusterProcess, unique: Unique) -> None:
    user, b1, b2 = unique("app"), cluster.brokers["b1"], cluster.brokers["b2"]
    make_user(b1, user)

    def change() -> None:
        put_user(b2, user, password="right")
        call_api(b2, "DELETE", "users", user)

    assert_closed(told_everywhere(cluster, user, unique("q"), change), "was deleted")


def test_a_permission_that_is_taken_away_closes_connections_at_every_broker(
    cluster: ClusterProcess, unique: Unique
) -> None:
    user, b1, b3 = unique("app"), cluster.brokers["b1"], cluster.brokers["b3"]
    make_user(b1, user)
    told = told_everywhere(
        cluster, user, unique("q"), lambda: call_api(b3, "DELETE", "permissions", "/", user)
    )
    assert_closed(told, f"user '{user}' may no longer enter vhost '/'")


def test_consumers_of_what_may_no_longer_be_read_are_cancelled_at_every_broker(
    cluster: ClusterProcess, unique: Unique
) -> None:
    user, b1, b3 = unique("app"), cluster.brokers["b1"], cluster.brokers["b3"]
    make_user(b1, user)
    narrowed = {**EVERYTHING, "read": "^nothing$"}
    told = told_everywhere(
        cluster,
        user,
        unique("q"),
        lambda: call_api(b3, "PUT", "permissions", "/", user, **narrowed),
    )
    assert [type(each) for each in told] == [methods.BasicCancel] * 3


# ---- known


def ask(
    broker: BrokerProcess, user: str, password: str, address: str = APPLICATION
) -> tuple[int, Any]:
    """Who am I, from one of the addresses of this machine."""
    connection = HTTPConnection(
        broker.host, broker.http_port, timeout=60, source_address=(address, 0)
    )
    login = b64encode(f"{user}:{password}".encode()).decode()
    connection.request("GET", "/api/whoami", headers={"authorization": f"Basic {login}"})
    answer = connection.getresponse()
    document = json.loads(answer.read())
    connection.close()
    return answer.status, document


def is_known(broker: BrokerProcess, user: str) -> bool:
    """Whether a broker has written down that it knows a user here."""
    file = broker.data / "known-logins.json"
    return file.exists() and [user, APPLICATION] in json.loads(file.read_text())["known"]


def let_in_under_attack(broker: BrokerProcess, user: str) -> int:
    """How many of ten logins with the right password work while a stranger guesses."""
    for number in range(25):
        ask(broker, user, f"guess {number}", STRANGER)
    let_in = 0
    for number in range(10):
        let_in += ask(broker, user, "right")[0] == 200
        for again in range(3):
            ask(broker, user, f"guess {number} {again}", STRANGER)
    return let_in


def test_strangers_lock_nobody_out_after_a_failover_or_a_restart(
    cluster: ClusterProcess, unique: Unique
) -> None:
    user = unique("app")
    make_user(cluster.brokers["b1"], user)
    assert ask(cluster.brokers["b1"], user, "right")[0] == 200
    for broker in cluster.brokers.values():
        wait_until(lambda each=broker: is_known(each, user), "everybody to know it", 60)  # type: ignore[misc]
        assert (broker.data / "known-logins.json").stat().st_mode & 0o777 == 0o600
    assert let_in_under_attack(cluster.brokers["b2"], user) == 10
    b3 = cluster.brokers["b3"]
    b3.stop_cleanly()
    cluster.make_whole()
    assert let_in_under_attack(b3, user) == 10


# ---- imported


def imported(password: str) -> str:
    return b64encode(b"salt" + hashlib.sha256(b"salt" + password.encode()).digest()).decode()


def test_an_imported_hash_is_replaced_everywhere_once_its_password_is_proved(
    cluster: ClusterProcess, unique: Unique
) -> None:
    user = unique("imported")
    put_user(cluster.brokers["b1"], user, password_hash=imported("right"))
    call_api(cluster.brokers["b1"], "PUT", "permissions", "/", user, **EVERYTHING)

    def hashes() -> set[tuple[str, str]]:
        found = [call_api(each, "GET", "users", user) for each in cluster.brokers.values()]
        return {(each["hashing_algorithm"], each["password_hash"]) for each in found}

    ((algorithm, _),) = wait_until(lambda: hashes() if len(hashes()) == 1 else None, "the user")
    assert algorithm == "rabbit_password_hashing_sha256"

    def change() -> None:
        wait_until(lambda: all("scrypt" in each for each, _ in hashes()), "another hash", 60)
        call_api(cluster.brokers["b3"], "DELETE", "users", user)

    told = told_everywhere(cluster, user, unique("q"), change)
    assert_closed(told, "was deleted")  # and not before
