"""Who may do what, operation by operation: exactly what RabbitMQ lets them do.

See permission_matrix.py. An endpoint that is new needs a row in permissions_http.txt: `* ` and the
operation, two spaces, and a sign for each type of user.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from rhizome.amqp import methods as m
from rhizome.management.asgi_application import ENDPOINTS
from rhizome.testing.broker_process import Broker, wait_until
from tests.conformance import differences
from tests.conformance.http_api_client import Api
from tests.conformance.wire_driver import Connection, ConnectionClosed, EndOfStream, Wire

from . import permission_matrix as matrix

RECORDS = bool(os.environ.get("RHIZOME_RECORD_PERMISSIONS"))
HTTP_HEADING = f"""What RabbitMQ 3.10 answers; what begins with * only Rhizome has or answers so.
{" ".join(matrix.COLUMNS)}
- refused, + allowed, o allowed but sees nothing of the vhost"""
AMQP_HEADING = "What an operation is refused without, in RabbitMQ 3.10."


@pytest.fixture(scope="module")
def admin(broker: Broker) -> Iterator[Api]:
    api = Api(broker)
    matrix.clean_up(api)
    matrix.set_up(api)
    matrix.set_up_amqp(api)
    yield api
    matrix.clean_up(api)


class Kept:
    """A connection of the user `owner` with a consumer, opened again if it was closed."""

    def __init__(self, broker: Broker, admin: Api) -> None:
        self._broker = broker
        self._admin = admin
        self._connection: Connection | None = None
        self._name = ""

    def __call__(self) -> str:
        if self._connection is None or self._is_closed(self._connection):
            self._open()
        return self._name

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _is_closed(self, connection: Connection) -> bool:
        connection.socket.setblocking(False)
        try:
            return bool(connection.socket.recv(1))
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _open(self) -> None:
        self.close()
        opened = Connection(
            self._broker, user="owner", password=matrix.PASSWORD, vhost=matrix.VHOST
        )
        opened.channel().call(m.BasicConsume("q"), m.BasicConsumeOk)
        host, port = opened.socket.getsockname()[:2]

        def listed() -> str:
            rows = self._admin.rows("connections")
            names = [row["name"] for row in rows if row["name"].startswith(f"{host}:{port} ")]
            return names[0] if names and self._admin.rows("consumers") else ""

        # RabbitMQ lists a connection after some seconds.
        self._name = wait_until(listed, "the connection to be listed", 30)
        self._connection = opened


@pytest.mark.timeout(300)
@pytest.mark.lone_only("a caller keeps its connection to one broker")
@differences.HTTP_PERMISSIONS
def test_http_operations_are_allowed_as_in_rabbitmq(
    broker: Broker, admin: Api, request: pytest.FixtureRequest
) -> None:
    kept = Kept(broker, admin)
    found = matrix.try_http(broker, kept)
    kept.close()
    expected = matrix.read_table(matrix.HTTP_TABLE)
    if RECORDS:
        own = matrix.own_rows(matrix.HTTP_TABLE)
        rows = {name: expected[name] if name in own else found[name] for name in found}
        matrix.write_table(matrix.HTTP_TABLE, HTTP_HEADING, rows, own)
        return
    if os.environ.get("RHIZOME_TEST_AMQP") or request.config.getoption("--against"):
        found = {name: signs for name, signs in found.items() if name not in own_names()}
    assert matrix.differences(expected, found) == []


def own_names() -> set[str]:
    return matrix.own_rows(matrix.HTTP_TABLE)


@pytest.mark.rhizome_only
def test_every_operation_is_in_the_table() -> None:
    names = [f"{endpoint.method} {endpoint.path}" for endpoint in ENDPOINTS]
    assert set(matrix.read_table(matrix.HTTP_TABLE)) == set(names)


@pytest.mark.lone_only("a change of permissions is made at one broker and felt at another")
@differences.AMQP_PERMISSIONS
def test_amqp_operations_ask_what_they_ask_in_rabbitmq(broker: Broker, admin: Api) -> None:
    connection = Connection(
        broker, user=matrix.AMQP_USER, password=matrix.PASSWORD, vhost=matrix.VHOST
    )
    caller = matrix.Caller(broker, broker.user, broker.password)
    found = {
        name: ", ".join(matrix.needs_of(caller, connection, attempt, names)) or "nothing"
        for name, (attempt, names) in matrix.AMQP_OPERATIONS.items()
    }
    connection.close()
    caller.close()
    if RECORDS:
        matrix.write_table(matrix.AMQP_TABLE, AMQP_HEADING, found, set())
    assert found == matrix.read_table(matrix.AMQP_TABLE)


def test_tags_open_no_vhost(broker: Broker, admin: Api) -> None:
    for each in matrix.USER_TYPES:
        login = {"user": each.name, "password": matrix.PASSWORD, "vhost": matrix.VHOST}
        if each.rights is not None:
            Connection(broker, **login).close()
            continue
        with pytest.raises(ConnectionClosed) as closed:
            Connection(broker, **login)
        assert closed.value.code == 530, each.name


@pytest.mark.rhizome_only
@pytest.mark.parametrize(
    ("kind", "amqp", "http"),
    [("application", True, True), ("console", False, True), ("cluster", False, False)],
)
def test_kinds_of_users_log_in_where_they_belong(
    broker: Broker, admin: Api, kind: str, amqp: bool, http: bool
) -> None:
    name = f"kind-{kind}"
    body = {"password": matrix.PASSWORD, "tags": "administrator", "type": kind}
    matrix.do(admin, "PUT", f"/api/users/{name}", body)
    matrix.do(admin, "PUT", f"/api/permissions/%2F/{name}", matrix.EVERYTHING)

    def enters() -> bool:
        try:
            Connection(broker, user=name, password=matrix.PASSWORD).close()
        except (ConnectionClosed, EndOfStream):
            return False
        return True

    assert enters() == amqp
    caller = matrix.Caller(broker, name)
    assert (caller.ask("GET", "/api/overview").status == 200) == http
    caller.close()
    matrix.do(admin, "DELETE", f"/api/users/{name}", None)


def test_nothing_is_answered_before_the_login(broker: Broker) -> None:
    """Every method of a class that a running connection may use, sent too early."""
    early = [
        (0, m.ConnectionOpen("/")),
        (0, m.ConnectionTuneOk(0, 0, 0)),
        (1, m.ChannelOpen()),
        (1, m.QueueDeclare("q")),
        (1, m.BasicGet("q")),
    ]
    for channel, method in early:
        wire = Wire(broker.host, broker.port)
        wire.send(b"AMQP\x00\x00\x09\x01")
        wire.expect(m.ConnectionStart)
        wire.send_method(channel, method)
        with pytest.raises((ConnectionClosed, EndOfStream)):
            wire.expect(m.ConnectionOpenOk)
        wire.close()
