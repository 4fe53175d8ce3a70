"""Access tokens as passwords, at a running broker: over AMQP and HTTP, until they expire."""

from __future__ import annotations

import http.client
import json
import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rhizome.amqp import methods
from rhizome.amqp.methods import decode_method
from rhizome.client import connect
from rhizome.errors import AccessRefused, LoginRefused, NotAllowed
from rhizome.testing.broker_process import BrokerProcess, wait_until
from tests.process.helpers import PROTOCOL_HEADER, RawClient, run
from tests.unit.security.token_issuer import Issuer

pytestmark = pytest.mark.rhizome_only

CONFIGURATION = """
[oauth]
resource_server = "mq"
keys = ["{keys}"]
clock_skew = "0s"
"""
EVERYTHING = "mq.configure:*/* mq.write:*/* mq.read:*/*"


class TokenBroker(BrokerProcess):
    """A broker that takes the tokens of an issuer."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.issuer = Issuer()
        self.keys = self.issuer.write_keys(directory)
        configuration = directory / "rhizome.toml"
        configuration.write_text(CONFIGURATION.format(keys=self.keys))
        super().__init__(directory, arguments=["--config", str(configuration)])

    def token(self, scope: str, seconds: float = 600, **claims: Any) -> str:
        made = {"sub": "alice", "aud": "mq", "exp": time.time() + seconds, "scope": scope}
        return self.issuer.token(**{**made, **claims}).decode()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenBroker]:
    with TokenBroker(tmp_path_factory.mktemp("oauth")) as process:
        yield process


def url(broker: TokenBroker, token: str) -> str:
    return f"amqp://anybody:{token}@{broker.host}:{broker.port}/"


def test_a_token_permits_what_its_scopes_say(broker: TokenBroker) -> None:
    async def scenario() -> None:
        token = broker.token("mq.configure:%2F/mine-* mq.write:%2F/amq.default")
        async with connect(url(broker, token)) as connection:
            async with connection.channel() as channel:
                await channel.declare_queue("mine-1", exclusive=True)
            with pytest.raises(AccessRefused, match=r"'yours-1'.*refused for user 'alice'"):
                async with connection.channel() as channel:
                    await channel.declare_queue("yours-1", exclusive=True)
            with pytest.raises(AccessRefused, match="'mine-1'"):
                async with connection.channel() as channel:
                    await channel.get("mine-1")
        with pytest.raises(NotAllowed, match="access to vhost '/' refused"):
            async with connect(url(broker, broker.token("mq.read:other/*"))):
                pass

    run(scenario())


def test_bad_tokens_are_refused_and_the_log_says_why(broker: TokenBroker) -> None:
    async def attempt(token: str) -> None:
        with pytest.raises(LoginRefused):
            async with connect(url(broker, token)):
                pass

    stranger = Issuer()
    good = {"sub": "alice", "aud": "mq", "exp": time.time() + 60}
    for token, reason in (
        (broker.token(EVERYTHING, seconds=-1), "the token has expired"),
        (broker.token(EVERYTHING, aud="other"), "for somebody else"),
        (stranger.token(**good).decode(), "signature is wrong"),
        (broker.issuer.token("rsa", {"alg": "none"}, **good).decode(), "no key fits"),
    ):
        run(attempt(token))
        wait_until(lambda why=reason: why in broker.printed(), reason)  # type: ignore[misc]
        assert token.rpartition(".")[2] not in broker.output.read_text()
        assert token not in (broker.data / "audit.log").read_text()


async def logged_in(broker: TokenBroker, token: str) -> RawClient:
    client = await RawClient.connected(broker)
    client.write(PROTOCOL_HEADER)
    await client.read_frame()
    login = f"\0anybody\0{token}".encode()
    client.send(0, methods.ConnectionStartOk({}, "PLAIN", login, "en_US"))
    await client.read_frame()
    client.send(0, methods.ConnectionTuneOk(2047, 131_072, 0), methods.ConnectionOpen("/"))
    await client.read_frame()
    return client


def test_a_connection_ends_with_its_token_unless_it_is_renewed(broker: TokenBroker) -> None:
    async def scenario() -> None:
        short = await logged_in(broker, broker.token(EVERYTHING, seconds=3))
        renewed = await logged_in(broker, broker.token(EVERYTHING, seconds=3))
        fresh = broker.token(EVERYTHING).encode()
        renewed.send(0, methods.ConnectionUpdateSecret(fresh, "it expires soon"))
        answer = decode_method(await renewed.read_frame())
        assert isinstance(answer, methods.ConnectionUpdateSecretOk)
        closed = decode_method(await short.read_frame())
        assert isinstance(closed, methods.ConnectionClose)
        assert closed.reply_code == 320
        assert "token has expired" in closed.reply_text
        renewed.send(1, methods.ChannelOpen())
        assert isinstance(decode_method(await renewed.read_frame()), methods.ChannelOpenOk)
        wrong = broker.token(EVERYTHING, sub="bob").encode()
        renewed.send(0, methods.ConnectionUpdateSecret(wrong, "somebody else"))
        refused = decode_method(await renewed.read_frame())
        assert isinstance(refused, methods.ConnectionClose)
        assert refused.reply_text == "NOT_ALLOWED - New secret was refused by one of the backends"
        for client in (short, renewed):
            await client.close()

    run(scenario())


def ask(broker: TokenBroker, target: str, body: Any = None, **headers: str) -> Any:
    connection = http.client.HTTPConnection(broker.host, broker.http_port, timeout=30)
    sent = {"content-type": "application/json", **headers}
    connection.request("GET" if body is None else "POST", target, body and json.dumps(body), sent)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer


def test_tokens_open_the_api_and_the_console(broker: TokenBroker) -> None:
    token = broker.token(EVERYTHING + " mq.tag:management")
    basic = b64encode(f"alice:{token}".encode()).decode()
    for login in (f"Bearer {token}", f"Basic {basic}"):
        assert ask(broker, "/api/overview", authorization=login).status == 200
        assert ask(broker, "/api/users", authorization=login).status == 401, "no administrator"
    bare = broker.token(EVERYTHING)
    assert ask(broker, "/api/overview", authorization=f"Bearer {bare}").status == 401
    answer = ask(broker, "/api/rhizome/session", {"user": "alice", "password": token})
    assert answer.status == 201
    cookie = answer.headers["set-cookie"].partition(";")[0]
    assert ask(broker, "/api/overview", cookie=cookie).status == 200
    assert ask(broker, "/api/users", cookie=cookie).status == 401


def test_new_keys_are_read_when_their_file_changes(broker: TokenBroker) -> None:
    old = broker.token(EVERYTHING)
    broker.issuer = Issuer()
    broker.issuer.write_keys(Path(broker.keys).parent)
    new = broker.token(EVERYTHING + " mq.tag:management")

    def works() -> bool:
        return bool(ask(broker, "/api/overview", authorization=f"Bearer {new}").status == 200)

    wait_until(works, "the new keys", 30)
    assert ask(broker, "/api/overview", authorization=f"Bearer {old}").status == 401
