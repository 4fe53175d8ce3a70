"""Several addresses of one cluster: who is asked, what is never done twice, and what is told."""

from __future__ import annotations

import base64
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from rhizome.cli.errors import CliError
from rhizome.cli.http_api.api_addresses import Address, parse_addresses
from rhizome.cli.http_api.api_client import Api, Endpoint, path
from rhizome.cli.local_cluster.broker_processes import running_places
from rhizome.cli.local_cluster.directory_layout import Layout, Shape

Rhizome = Callable[..., Result]

NOBODY = "127.0.0.1:1"


class Breaking:
    """Takes requests, and breaks the connection instead of answering."""

    def __init__(self) -> None:
        self.requests = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection:
                if not connection.recv(65536):
                    return
                self.requests += 1

    def close(self) -> None:
        host, _, port = self.address.partition(":")
        socket.create_connection((host, int(port))).close()
        self._thread.join()
        self._listener.close()


@pytest.fixture
def breaking() -> Iterator[Breaking]:
    server = Breaking()
    yield server
    server.close()


# --- reading them


@pytest.mark.parametrize(
    ("text", "addresses", "login"),
    [
        ("h", [Address("h", 15672)], None),
        ("b1:1,b2:2", [Address("b1", 1), Address("b2", 2)], None),
        ("b1, b2", [Address("b1", 15672), Address("b2", 15672)], None),
        ("https://b1,b2:2/", [Address("b1", 15672, True), Address("b2", 2, True)], None),
        ("http://b1,http://b2", [Address("b1", 15672), Address("b2", 15672)], None),
        ("b1,https://b2", [Address("b1", 15672), Address("b2", 15672, True)], None),
        ("u:p%2Cq@b1,b2", [Address("b1", 15672), Address("b2", 15672)], ("u", "p,q")),
        ("http://u:p@[::1]:9,b2:8", [Address("::1", 9), Address("b2", 8)], ("u", "p")),
        ("http://u:p,q@h:1", [Address("h", 1)], ("u", "p,q")),
    ],
)
def test_scheme_and_login_stand_before_the_first_address(
    text: str, addresses: list[Address], login: tuple[str, str] | None
) -> None:
    assert parse_addresses(text) == (tuple(addresses), login)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("b1:1,b2:x", r"--http b2:\*\*\*: the port must be a number"),
        ("b1:1,", "give it as HOST:PORT"),
        ("b1,ftp://b2", "--http ftp://b2: give it as HOST:PORT"),
        ("u:secret@b1,u:secret@b2", "give user and password once"),
        ("http://u:secret@b1,http://u:secret@b2", "give user and password once"),
        ("b1,http://u:secret@b2", "give user and password once"),
        ("http://u:secret@b1:x", r"--http b1:\*\*\*: the port"),
    ],
)
def test_what_is_wrong_with_addresses_is_told_without_the_password(text: str, said: str) -> None:
    with pytest.raises(CliError, match=said) as raised:
        parse_addresses(text)
    assert "secret" not in str(raised.value)


# --- who is asked


def test_the_first_that_answers_is_read_from(
    rhizome: Rhizome, api: Any, other_api: Any, breaking: Breaking
) -> None:
    for each in (api, other_api):
        each.answer("GET /api/queues", [])
    several = f"{NOBODY},{breaking.address},{api.address},{other_api.address}"
    result = rhizome("queue", "list", "--http", several)
    assert (result.exit_code, result.stdout) == (0, "no queues\n"), result.stderr
    assert (breaking.requests, len(api.requests), len(other_api.requests)) == (1, 1, 0)


def test_a_refusal_is_an_answer(rhizome: Rhizome, api: Any, other_api: Any) -> None:
    api.answer("GET /api/queues", {"error": "not_authorised", "reason": "Login failed"}, 401)
    result = rhizome("queue", "list", "--http", f"{api.address},{other_api.address}")
    assert result.exit_code == 1
    assert f"{api.address} refused user 'guest'" in result.stderr
    assert other_api.requests == []


def test_the_refusal_names_who_refused(rhizome: Rhizome, api: Any) -> None:
    api.answer("GET /api/queues", {"error": "not_authorised", "reason": "Login failed"}, 401)
    result = rhizome("queue", "list", "--http", f"{NOBODY},{api.address}")
    assert f"{api.address} refused user 'guest'" in result.stderr


def test_a_change_goes_to_the_next_if_no_connection_can_be_made(rhizome: Rhizome, api: Any) -> None:
    api.answer("PUT /api/vhosts/dev", None, 201)
    result = rhizome("vhost", "add", "dev", "--http", f"{NOBODY},{api.address}")
    assert result.exit_code == 0, result.stderr
    assert [each.verb for each in api.requests] == ["PUT"]


def test_a_change_that_was_sent_is_not_sent_again(
    rhizome: Rhizome, api: Any, breaking: Breaking
) -> None:
    api.answer("PUT /api/vhosts/dev", None, 201)
    result = rhizome("vhost", "add", "dev", "--http", f"{breaking.address},{api.address}")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: HTTP API at {breaking.address} failed (")
    assert "it may have been done or not: look, and repeat it if it wasn't" in result.stderr
    assert (breaking.requests, api.requests) == (1, [])


def test_the_one_that_answered_is_asked_first_from_then_on(api: Any, breaking: Breaking) -> None:
    api.answer("GET /api/queues", [])
    host, _, port = breaking.address.partition(":")
    addresses = (Address(host, int(port)), Address("127.0.0.1", api.port))
    several = Api(Endpoint(addresses, "guest", "guest"))
    for _ in range(3):
        assert several.rows(path("queues")) == []
    assert (breaking.requests, len(api.requests)) == (1, 3)


def test_if_none_answers_each_is_named_with_its_reason(
    rhizome: Rhizome, breaking: Breaking
) -> None:
    result = rhizome("status", "--http", f"{NOBODY},{breaking.address}")
    assert result.exit_code == 1
    first, second = f"{NOBODY} (connection refused)", f"{breaking.address} (Remote end closed"
    assert result.stderr.startswith(f"error: none of the brokers answers: {first}, {second}")
    assert "; start one of them, or give --http HOST:PORT of another" in result.stderr
    assert result.stderr.count("\n") == 1


def test_doctor_goes_on_at_the_next_address(rhizome: Rhizome, api: Any) -> None:
    result = rhizome("doctor", "--http", f"{NOBODY},{api.address}")
    assert "this broker has no /api/rhizome/checkup: it is RabbitMQ" in result.stderr
    assert [each.target for each in api.requests] == ["/api/rhizome/checkup"]


def test_the_root_is_not_forced_at_whichever_broker_answers(rhizome: Rhizome, api: Any) -> None:
    several = f"{api.address},{NOBODY}"
    result = rhizome("cluster", "force-root", "--yes", "--http", several)
    assert "--http names 2 brokers; give the one that becomes the root" in result.stderr
    assert (result.exit_code, api.requests) == (2, [])


# --- contexts


@pytest.mark.parametrize("before", ["", "http://ops:s3%20cret@"])
def test_a_context_remembers_several_addresses_with_one_login(
    rhizome: Rhizome, api: Any, before: str
) -> None:
    api.answer("GET /api/queues", [])
    given = f"{before}{NOBODY},{api.address}"
    user = () if before else ("--user", "ops")
    added = rhizome("context", "add", "prod", "--http", given, *user, input="s3 cret\n")
    assert added.exit_code == 0, added.output
    result = rhizome("queue", "list")
    assert result.exit_code == 0, result.stderr
    sent = api.requests[0].headers["Authorization"].removeprefix("Basic ")
    assert base64.b64decode(sent).decode() == "ops:s3 cret"


def test_a_context_with_addresses_that_no_command_can_read_is_refused(rhizome: Rhizome) -> None:
    result = rhizome("context", "add", "prod", "--http", "b1:15672,b2:http")
    assert (result.exit_code, "the port must be a number" in result.stderr) == (2, True)


# --- a local cluster


@pytest.fixture
def local_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Layout]:
    """The files of `rhizome up`, as if b2 ran and b1 had been killed."""
    monkeypatch.chdir(tmp_path)
    layout = Layout(tmp_path / "data" / "cluster", Shape(brokers=2))
    layout.write()
    dead, alive = layout.places.values()
    lives = "print('it runs', flush=True); input()"
    command = [sys.executable, "-c", lives, "serve", "--config", str(alive.config)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout is not None
        process.stdout.readline()  # until then its arguments may not be there to be seen
        alive.write_pid(process.pid)
        dead.write_pid(process.pid)  # its number was given to another
        yield layout
        process.communicate(b"\n")


def test_the_brokers_that_run_are_found_by_their_processes(local_cluster: Layout) -> None:
    assert [each.name for each in running_places(local_cluster.directory)] == ["b2"]
    assert running_places(local_cluster.directory / "b1") == []


def test_the_brokers_of_a_local_cluster_are_named_when_nothing_listens(
    rhizome: Rhizome, local_cluster: Layout
) -> None:
    result = rhizome("status", "--http", NOBODY)
    assert result.stderr == (
        f"error: no HTTP API at {NOBODY}; start a broker or give --http HOST:PORT,"
        " like --http 127.0.0.1:15673 for the cluster in data/cluster\n"
    )
    (local_cluster.directory / "up.json").write_text("{")
    assert "data/cluster" not in rhizome("status", "--http", NOBODY).stderr
