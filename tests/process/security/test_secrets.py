"""Passwords, keys and tokens are nowhere to be read: not in logs, answers, errors or process lists.

A broker is used with secrets that are easy to find, rightly and wrongly in many ways, at the level
of the log that has most detail. Then everything that it has written and answered is searched.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import json
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from rhizome.amqp import methods
from rhizome.amqp.field_table import encode_table
from rhizome.client import ConnectFailed, ConnectionLost, connect
from rhizome.errors import LoginRefused
from rhizome.management.asgi_application import ENDPOINTS
from rhizome.testing.broker_process import BrokerProcess, wait_until
from tests.process.helpers import PROTOCOL_HEADER, RawClient, run

pytestmark = pytest.mark.rhizome_only

PASSWORD: Final = "pa55word-of-guest-3f9c"
WRONG: Final = "pa55word-that-is-wrong-81d2"
NEW: Final = "pa55word-of-new-7e21"
KEY: Final = "k3y-of-the-cluster-that-nobody-sees-5b8a1c"
HEADER: Final = "h3ader-secret-44aa"
SECRETS: Final = (PASSWORD, WRONG, NEW, KEY, HEADER)

CONFIGURATION: Final = """
[users.guest]
password = "{PASSWORD}"
tags = ["administrator"]
permissions."/" = {{ configure = ".*", write = ".*", read = ".*" }}
[cluster]
key = "{KEY}"
primaries = ["rhizome=127.0.0.1:{port}"]
[listen]
links = ["unix:{links}"]
[log]
level = "debug"
"""


class Kept:
    """Everything that the broker has answered."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("secrets")
    file = directory / "rhizome.toml"
    process = BrokerProcess(directory, arguments=["--config", str(file)])
    settings = CONFIGURATION.format(
        PASSWORD=PASSWORD, KEY=KEY, port=process.port, links=directory / "links"
    )
    file.write_text(settings)
    file.chmod(0o600)
    with process:
        yield process


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def ask(
    broker: BrokerProcess, kept: Kept, method: str, target: str, body: Any, headers: dict[str, str]
) -> int:
    connection = http.client.HTTPConnection(broker.host, broker.http_port, timeout=30)
    text = body if isinstance(body, str) or body is None else json.dumps(body)
    connection.request(method, target, text, {"Content-Type": "application/json", **headers})
    answer = connection.getresponse()
    kept.answers += [answer.read(), str(answer.getheaders()).encode()]
    connection.close()
    return answer.status


def use_http(broker: BrokerProcess, kept: Kept) -> None:
    right = basic("guest", PASSWORD)
    for endpoint in ENDPOINTS:
        if endpoint.method == "GET":
            names = {"vhost": "%2F", "name": "guest", "user": "guest"}
            target = endpoint.path
            for name, value in names.items():
                target = target.replace("{" + name + "}", value)
            ask(broker, kept, "GET", target, None, right)
    for bad in (
        basic("guest", WRONG),
        basic(WRONG, WRONG),
        {"Authorization": f"Basic {WRONG}"},
        {"Authorization": f"Bearer {WRONG}"},
        {"Authorization": f"{WRONG} {WRONG}"},
        {"Cookie": f"rhizome_{broker.http_port}={HEADER}"},
    ):
        assert ask(broker, kept, "GET", "/api/overview", None, bad) == 401
    for body in (
        {"password": NEW, "tags": ""},
        {"password": NEW, "password_hash": NEW, "tags": ""},
        {"password_hash": NEW, "tags": ""},
        {"password_hash": f"$scrypt${NEW}", "tags": ""},
        {"password": [NEW], "tags": ""},
        {"password": NEW},
        json.dumps({"password": NEW})[:-1],
    ):
        ask(broker, kept, "PUT", "/api/users/new", body, right)
    users = [{"name": "other", "password": NEW, "tags": ""}, {"name": 5, "password": NEW}]
    for one in users:
        ask(broker, kept, "POST", "/api/definitions", {"users": [one]}, right)
    for password in (PASSWORD, WRONG):
        login = {"user": "guest", "password": password}
        ask(broker, kept, "POST", "/api/rhizome/session", login, {})
        ask(broker, kept, "POST", "/api/rhizome/session", json.dumps(login)[:-1], {})
    ask(broker, kept, "GET", "/metrics", None, {})
    ask(broker, kept, "GET", "/", None, right)


async def use_amqp(broker: BrokerProcess, kept: Kept) -> None:
    where = f"{broker.host}:{broker.port}/"
    right = connect(f"amqp://guest:{PASSWORD}@{where}")
    async with right as connection, connection.channel() as channel:
        await channel.declare_queue(exclusive=True)
    with pytest.raises(LoginRefused) as refused:
        async with connect(f"amqp://guest:{WRONG}@{where}"):
            pass
    kept.answers.append(str(refused.value).encode())
    amqplain = encode_table({"LOGIN": "guest", "PASSWORD": WRONG})[4:]
    for mechanism, response in (
        ("PLAIN", f"{WRONG}".encode()),
        ("PLAIN", f"\0guest\0{WRONG}\0".encode()),
        ("PLAIN", f"{WRONG}\0guest\0{WRONG}".encode()),
        ("AMQPLAIN", amqplain),
        ("AMQPLAIN", amqplain[:-3]),
        ("EXTERNAL", WRONG.encode()),
        ("RHIZOME-CLUSTER", WRONG.encode()),
        ("OTHER", WRONG.encode()),
    ):
        client = await RawClient.connected(broker)
        client.write(PROTOCOL_HEADER)
        kept.answers.append(await client.read_frame())
        capabilities: dict[str, object] = {"authentication_failure_close": True}
        client.send(
            0,
            methods.ConnectionStartOk({"capabilities": capabilities}, mechanism, response, "en_US"),
        )
        with contextlib.suppress(asyncio.IncompleteReadError):
            kept.answers.append(await client.read_frame())
        await client.close()
    with contextlib.suppress(ConnectFailed, ConnectionLost, LoginRefused):
        async with connect(f"amqp://{WRONG}:{WRONG}@{where}"):
            pass


def forms_of(secret: str) -> Iterator[bytes]:
    """A secret as it could have been written."""
    yield secret.encode()
    yield secret.encode().hex().encode()
    for padding in range(3):  # what is before it shifts base64
        encoded = base64.b64encode(b"\0" * padding + secret.encode())
        yield encoded[4:-4]


def found_in(text: bytes) -> list[str]:
    return [secret for secret in SECRETS for form in forms_of(secret) if form in text]


def test_secrets_are_found_in_every_form() -> None:
    for text in (
        f"user guest has {PASSWORD}!".encode(),
        base64.b64encode(f"guest:{WRONG}".encode()),
        base64.b64encode(f"gues:{WRONG}".encode()),
        KEY.encode().hex().encode(),
    ):
        assert len(found_in(text)) == 1, text


def test_no_secret_is_written_answered_or_shown(broker: BrokerProcess, tmp_path: Path) -> None:
    kept = Kept()
    run(use_amqp(broker, kept))
    use_http(broker, kept)
    assert found_in(b"\n".join(kept.answers)) == []
    process = Path(f"/proc/{broker.pid}")
    assert found_in((process / "cmdline").read_bytes()) == []
    assert found_in((process / "environ").read_bytes()) == []
    wait_until(lambda: broker.output.read_bytes().count(b"login refused") >= 9, "the log")
    audit = broker.data / "audit.log"
    wait_until(lambda: b'"result": "refused"' in audit.read_bytes(), "the audit log")
    logged = broker.output.read_bytes()
    # A user name that somebody took for the password field is a name: it is in the log.
    names = logged.replace(f"user {WRONG!r}".encode(), b"")
    assert found_in(names) == []
    audited = audit.read_bytes()
    assert (
        found_in(
            audited.replace(f'"user": "{WRONG}"'.encode(), b"").replace(
                f"user '{WRONG}'".encode(), b""
            )
        )
        == []
    )
    assert (broker.data / "audit.log").stat().st_mode & 0o137 == 0


def test_nobody_else_can_look_into_the_store(broker: BrokerProcess) -> None:
    """Messages are in it, and password hashes."""
    directories = [each for each in broker.data.iterdir() if each.is_dir()]
    assert {"cluster", "journal"} <= {each.name for each in directories}
    for each in [broker.data, *directories]:
        assert each.stat().st_mode & 0o007 == 0, each


def test_nobody_else_may_connect_to_the_socket_of_links(
    broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "secrets0" / "links"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_no_secret_is_in_the_store(broker: BrokerProcess) -> None:
    for path in sorted(broker.data.rglob("*")):
        if path.is_file() and path.name != "audit.log":
            assert found_in(path.read_bytes()) == [], path


@pytest.mark.parametrize(
    "wrong",
    [
        f'[users.app]\npassword = ["{NEW}"]',
        f'[users.app]\npassword_hash = "{NEW}"',
        f'[users.app]\npassword_hash = "$scrypt${NEW}"',
        f'[users.app]\npasword = "{NEW}"',
        f'[users.app]\npassword = "{NEW}',
        f'[users.app]\npassword = "{NEW}"\npassword_hash = "{NEW}"',
        f'[cluster]\nkey = ["{KEY}"]',
        f'[cluster]\nkey = "{KEY}"\nkey_file = "{KEY}"',
        f'[cluster]\nkye = "{KEY}"',
    ],
)
def test_errors_of_a_configuration_quote_no_secret(wrong: str, tmp_path: Path) -> None:
    file = tmp_path / "rhizome.toml"
    file.write_text(wrong)
    command = [sys.executable, "-m", "rhizome", "config", "check", str(file)]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert done.returncode == 1, done
    assert found_in(done.stdout + done.stderr) == []
