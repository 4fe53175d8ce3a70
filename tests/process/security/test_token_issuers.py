"""Issuers whose keys a running broker fetches: rotation, several of them, one that hangs."""

from __future__ import annotations

import http.client
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rhizome.client import connect
from rhizome.errors import LoginRefused
from rhizome.testing.broker_process import BrokerProcess, wait_until
from tests.process.helpers import call_api, run
from tests.unit.security.issuer_server import DISCOVERY, KEYS, IssuerServer
from tests.unit.security.token_issuer import Issuer

pytestmark = pytest.mark.rhizome_only

CONFIGURATION = """
[oauth]
resource_server = "mq"
scope_prefix = "mq."
fetch_interval = "1d"
keys_expire = "2d"

[oauth.providers.staff]
issuer = "{staff.issuer}"
ca = "{staff.ca}"

[oauth.providers.jobs]
issuer = "the jobs"
jwks_url = "{jobs.jwks_url}"
ca = "{jobs.ca}"
"""
EVERYTHING = "mq.configure:*/* mq.write:*/* mq.read:*/* mq.tag:monitoring"
STRANGERS = 20


class World:
    """Two issuers, of which the second hangs, and a broker that takes the tokens of both."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.staff = IssuerServer(directory / "staff")
        self.jobs = IssuerServer(directory / "jobs")
        self.signer = Issuer()
        self.staff.keys = [self.signer.public_key("ec")]
        self.jobs.keys = [self.signer.public_key("ec")]
        self.jobs.hangs.set()
        self.file = directory / "rhizome.toml"
        self.configure(CONFIGURATION)
        self.broker = BrokerProcess(directory, arguments=["--config", str(self.file), *arguments])

    def configure(self, text: str) -> None:
        self.file.write_text(text.format(staff=self.staff, jobs=self.jobs))

    def token(self, signer: Issuer | None = None, kid: str = "ec", **claims: Any) -> str:
        made = {"iss": self.staff.issuer, "sub": "alice", "aud": "mq", "exp": time.time() + 600}
        made["scope"] = EVERYTHING
        return (signer or self.signer).token("ec", {"kid": kid}, **{**made, **claims}).decode()

    def url(self, token: str) -> str:
        return f"amqp://anybody:{token}@{self.broker.host}:{self.broker.port}/"

    def logs_in(self, token: str) -> bool:
        """Over AMQP."""

        async def attempt() -> bool:
            try:
                async with connect(self.url(token)):
                    return True
            except LoginRefused:
                return False

        return run(attempt())

    def status(self, token: str) -> int:
        """Over HTTP."""
        connection = http.client.HTTPConnection(self.broker.host, self.broker.http_port, timeout=30)
        connection.request("GET", "/api/overview", headers={"authorization": f"Bearer {token}"})
        status = connection.getresponse().status
        connection.close()
        return status

    def issuer(self, name: str) -> dict[str, Any]:
        """What `rhizome doctor` is told of it."""
        told = call_api(self.broker, "GET", "rhizome", "checkup", "own")["issuers"]
        (found,) = [each for each in told if each["name"] == name]
        return dict(found)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    with made.staff, made.jobs, made.broker:
        wait_until(lambda: made.issuer("staff")["keys_count"] == 1, "the keys of the staff")
        yield made


def test_an_issuer_that_hangs_holds_up_no_login_and_no_other_issuer(world: World) -> None:
    def during_one_fetch(login: Callable[[], bool]) -> bool:
        """Whether a login has begun and ended while the broker waited for the issuer."""
        began, ended = world.jobs.held, world.jobs.given_up
        return began > ended and login() and world.jobs.given_up == ended

    async def with_a_password() -> bool:
        async with connect(world.broker.url):
            return True

    of_jobs = world.token(iss="the jobs")
    logins: list[Callable[[], bool]] = [
        lambda: run(with_a_password()),
        lambda: world.logs_in(world.token()),
        lambda: not world.logs_in(of_jobs),
        lambda: world.status(world.token()) == 200,
        lambda: world.status(of_jobs) == 401,
    ]
    for number, login in enumerate(logins):
        wait_until(lambda login=login: during_one_fetch(login), f"login {number}")  # type: ignore[misc]
    assert world.issuer("jobs")["keys_count"] == 0
    assert world.issuer("staff")["trouble"] == ""


def test_a_new_key_is_fetched_when_a_token_names_it(world: World) -> None:
    old, rotated = world.token(), Issuer()
    world.staff.keys = [rotated.public_key("ec", "next")]
    new = world.token(rotated, "next")
    assert world.logs_in(old), "nothing was fetched yet"
    assert not world.logs_in(new)
    for _ in range(STRANGERS):
        assert world.status(world.token(kid=os.urandom(8).hex())) == 401
    # From here on nobody asks: it was remembered that somebody had.
    wait_until(lambda: world.staff.requests.count(KEYS) == 2, "the second fetch")
    wait_until(lambda: world.issuer("staff")["fetches"] == 2, "what it brings")
    assert world.logs_in(new)
    assert world.status(new) == 200
    assert not world.logs_in(old), "its key is gone from the set"
    assert world.status(old) == 401
    assert world.staff.requests == [DISCOVERY, KEYS] * 2, "one fetch for all who named others"


def test_keys_stay_while_their_issuer_is_away_and_while_settings_change(world: World) -> None:
    token, stranger = world.token(), world.token(aud="broker")
    world.staff.answers = {DISCOVERY: lambda request: request.send_error(503)}
    world.configure(
        CONFIGURATION.replace('issuer = "{s', 'resource_server = "broker"\nissuer = "{s')
    )
    os.kill(world.broker.pid, signal.SIGHUP)
    wait_until(lambda: world.logs_in(stranger), "the other audience")
    assert not world.logs_in(token)
    wait_until(lambda: "status 503" in world.issuer("staff")["trouble"], "the failure")
    assert world.issuer("staff")["keys_count"] == 1
    assert world.logs_in(stranger)
    world.broker.wait_until_printed("those that were fetched before count until")
    world.staff.answers = {}
    wait_until(lambda: world.issuer("staff")["trouble"] == "", "the end of the failure")


def test_an_issuer_that_is_added_is_fetched_without_a_restart(world: World) -> None:
    with IssuerServer(world.file.parent / "guests") as guests:
        guests.keys = [world.signer.public_key("ec")]
        token = world.token(iss=guests.issuer)
        assert not world.logs_in(token)
        more = f'[oauth.providers.guests]\nissuer = "{guests.issuer}"\nca = "{guests.ca}"\n'
        world.configure(CONFIGURATION + more)
        os.kill(world.broker.pid, signal.SIGHUP)
        wait_until(lambda: world.logs_in(token), "the keys of the guests")
        world.configure(CONFIGURATION)
        os.kill(world.broker.pid, signal.SIGHUP)
        wait_until(lambda: not world.logs_in(token), "their end")
    assert world.logs_in(world.token())


@pytest.mark.timeout(240)  # a busy machine takes most of a minute to start brokers
def test_each_broker_of_a_cluster_fetches_for_itself(tmp_path: Path) -> None:
    world = World(tmp_path, "--name", "b", "--cores", "2")

    def keys_of_brokers() -> list[int]:
        facts = call_api(world.broker, "GET", "rhizome", "checkup")["facts"].values()
        issuers = [each for told in facts for each in told["issuers"] if each["name"] == "staff"]
        return [each["keys_count"] for each in issuers]

    with world.staff, world.jobs, world.broker:
        wait_until(lambda: keys_of_brokers() == [1, 1], "the keys at both brokers")
        assert world.staff.requests.count(KEYS) == 2
        for _ in range(STRANGERS):
            assert world.logs_in(world.token()), "whichever of the two takes the connection"
