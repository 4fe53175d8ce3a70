"""The audit log's lines."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rhizome.broker.access.auth_interface import Peer
from rhizome.security.audit_log import (
    CHANGES,
    KNOWN_MAX,
    KNOWN_MS,
    REFUSALS,
    REFUSALS_OF_ALL,
    TEXT_MAX,
    Audit,
    Author,
)

STRANGER = Peer("10.0.0.66", 4711)
HOME = Peer("::1", 4712, loopback=True)


class Written:
    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_123
        self.lines: list[str] = []
        self.audit = Audit("b1", self.lines.append, lambda: self.now_ms)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


@pytest.fixture
def written() -> Written:
    return Written()


def test_a_login_is_one_line_with_who_where_and_when(written: Written) -> None:
    written.audit.login("amqp", "app", HOME, "/")
    assert written.rows == [
        {
            "time": "2023-11-14T22:13:20.123Z",
            "broker": "b1",
            "event": "login",
            "result": "ok",
            "user": "app",
            "address": "[::1]:4712",
            "via": "amqp",
            "vhost": "/",
        }
    ]


def test_names_cannot_forge_lines(written: Written) -> None:
    forged = 'app"}\n{"event": "login", "result": "ok'
    written.audit.login_refused("amqp", forged, STRANGER, "the password is wrong\r\n\udcff")
    (line,) = written.lines
    assert line.isascii()
    assert "\n" not in line
    assert written.rows[0]["user"] == forged


def test_noise_is_held_back_and_counted(written: Written) -> None:
    for _ in range(1000):
        written.audit.login_refused("amqp", "app", STRANGER, "the password is wrong")
    assert len(written.lines) == REFUSALS
    written.audit.login_refused("amqp", "app", HOME, "the password is wrong")
    assert len(written.lines) == REFUSALS + 1, "nobody else is held back"
    written.now_ms += 1000
    written.audit.access_refused("http", "app", STRANGER, "/", "GET /api/users")
    assert written.rows[-1]["held_back"] == 1000 - REFUSALS


def test_changes_are_never_held_back(written: Written) -> None:
    for number in range(1000):
        written.audit.change("guest", "127.0.0.1:1", "http", f"PUT /api/users/{number}", 201)
    assert [row["result"] for row in written.rows] == [201] * 1000


def test_requests_of_one_user_at_one_address_are_one_login(written: Written) -> None:
    for port in range(10):
        written.audit.request("http", "guest", Peer("10.0.0.1", port))
    written.audit.request("http", "other", Peer("10.0.0.1", 1))
    assert [row["user"] for row in written.rows] == ["guest", "other"]
    written.now_ms += KNOWN_MS
    written.audit.request("http", "guest", Peer("10.0.0.1", 99))
    assert len(written.lines) == 3
    for number in range(KNOWN_MAX + 5):
        written.audit.request("http", "guest", Peer(str(number), 1))
    assert len(written.audit._known) == KNOWN_MAX


def test_lines_are_bounded(written: Written) -> None:
    written.audit.change("guest", "", "http", "PUT /" + "x" * 60_000, 400)
    assert len(written.rows[0]["what"]) == TEXT_MAX


def test_a_stranger_with_many_addresses_cannot_push_a_trace_out(written: Written) -> None:
    for number in range(5000):
        peer = Peer(f"10.0.{number // 250}.{number % 250}", 1)
        written.audit.login_refused("amqp", "app", peer, "the password is wrong")
    assert len(written.lines) == REFUSALS_OF_ALL
    written.now_ms += 1000
    written.audit.login_refused("amqp", "app", HOME, "the password is wrong")
    assert written.rows[-1]["held_back"] == 5000 - REFUSALS_OF_ALL


def test_an_application_in_a_loop_cannot_push_out_what_others_did(written: Written) -> None:
    author = Author("amqp", "app", STRANGER, "/", "c")
    other = Author("amqp", "other", STRANGER, "/", "d")
    for _ in range(CHANGES + 500):
        written.audit.topology_change(author, {"what": "queue.declare", "queue": "q"}, 0)
    assert len(written.lines) == CHANGES
    written.audit.topology_change(other, {"what": "queue.declare", "queue": "q"}, 406)
    assert written.rows[-1]["user"] == "other"
    assert written.rows[-1]["result"] == 406
    written.now_ms += 1000
    written.audit.topology_change(author, {"what": "queue.declare", "queue": "q"}, 0)
    assert written.rows[-1]["held_back"] == 500


def test_a_clock_that_was_set_back_silences_nobody(written: Written) -> None:
    for _ in range(REFUSALS):
        written.audit.login_refused("amqp", "app", STRANGER, "the password is wrong")
    written.now_ms -= 3_600_000
    written.audit.login_refused("amqp", "app", STRANGER, "the password is wrong")
    written.now_ms += 1000
    written.audit.login_refused("amqp", "app", STRANGER, "the password is wrong")
    assert len(written.lines) == REFUSALS + 1


def test_what_another_broker_passes_on_says_which(written: Written) -> None:
    written.audit.change("guest", "10.0.0.7:1", "broker", "DELETE /api/queues/%2F/q", 204, "b2")
    assert (written.rows[0]["origin"], written.rows[0]["address"]) == ("b2", "10.0.0.7:1")
