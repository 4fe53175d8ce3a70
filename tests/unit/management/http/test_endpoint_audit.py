"""What of HTTP requests is in the audit log."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rhizome.management.peers.peer_request_handler import respond
from rhizome.management.peers.peer_requests import PeerRequest
from rhizome.security.audit_log import Audit
from tests.unit.management.conftest import Api, Core

SECRET = "a-password-that-nobody-sees"


@pytest.fixture
def lines(core: Core) -> list[str]:
    found: list[str] = []
    core.context.audit = Audit("rhizome", found.append)
    return found


def events(lines: list[str], event: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in lines]
    return [row for row in rows if row["event"] == event]


def test_changes_are_written_with_who_what_and_result(core: Core, lines: list[str]) -> None:
    api = Api(core)
    api.ask("PUT", "/api/users/new", json.dumps({"password": SECRET, "tags": ""}).encode())
    api.ask("PUT", "/api/users/new", b"no JSON")
    api.ask("DELETE", "/api/users/missing")
    assert [(row["user"], row["what"], row["result"]) for row in events(lines, "change")] == [
        (api.user, "PUT /api/users/new", 201),
        (api.user, "PUT /api/users/new", 400),
        (api.user, "DELETE /api/users/missing", 404),
    ]
    assert all(row["address"].startswith("127.0.0.1:") for row in events(lines, "change"))
    assert SECRET not in "".join(lines)


def test_a_missing_right_is_written_for_reading_too(core: Core, lines: list[str]) -> None:
    api = Api(core, user="manager")
    assert api.ask("GET", "/api/users").status == 401
    assert api.ask("PUT", "/api/vhosts/mine", b"{}").status == 401
    (row,) = events(lines, "access")
    assert (row["user"], row["reason"]) == ("manager", "GET /api/users")
    (row,) = events(lines, "change")
    assert (row["what"], row["result"]) == ("PUT /api/vhosts/mine", 401)


def test_messages_are_no_changes(core: Core, lines: list[str]) -> None:
    api = Api(core)
    body = {"routing_key": "k", "payload": SECRET, "payload_encoding": "string", "properties": {}}
    answer = api.ask("POST", "/api/exchanges/%2F/amq.direct/publish", json.dumps(body).encode())
    assert answer.status == 200
    assert events(lines, "change") == []


def test_logins_are_written_once_and_refusals_with_the_reason(core: Core, lines: list[str]) -> None:
    api = Api(core)
    for _ in range(3):
        api.ask("GET", "/api/overview")
    assert [row["result"] for row in events(lines, "login")] == ["ok"]
    assert api.ask("GET", "/api/overview", password=SECRET).status == 401
    refused = events(lines, "login")[-1]
    assert refused["result"] == "refused"
    assert "the password is wrong" in refused["reason"]
    assert SECRET not in "".join(lines)


def test_a_login_to_the_console_is_a_login(core: Core, lines: list[str]) -> None:
    for password, result in (("guest", "ok"), (SECRET, "refused")):
        body = json.dumps({"user": "guest", "password": password}).encode()
        sent = {"content-type": "application/json"}
        Api(core, user="").ask("POST", "/api/rhizome/session", body, sent)
        row = events(lines, "login")[-1]
        assert (row["via"], row["result"], row["user"]) == ("console", result, "guest")


def test_what_another_broker_passes_on_is_written_with_its_name(
    core: Core, lines: list[str]
) -> None:
    body = b'{"password": "new", "tags": ""}'
    question = PeerRequest("PUT", "/api/users/new", "guest", body, origin="s1 through b2")
    assert core.run(respond(core.application, question)).status == 201
    (row,) = events(lines, "change")
    assert (row["via"], row["origin"], row["user"]) == ("broker", "s1 through b2", "guest")


def test_a_refusal_of_what_another_broker_passes_on_says_for_whom(
    core: Core, lines: list[str]
) -> None:
    place = "10.0.0.7:41822"
    question = PeerRequest("GET", "/api/users", "manager", origin="b2", address=place)
    assert core.run(respond(core.application, question)).status == 401
    (row,) = events(lines, "access")
    assert (row["via"], row["origin"], row["address"]) == ("broker", "b2", place)
    assert (row["user"], row["result"]) == ("manager", "refused")
