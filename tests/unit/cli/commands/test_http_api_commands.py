"""Commands that talk to the HTTP API, against a scripted one."""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from typer.testing import Result

from rhizome.cli.http_api.api_addresses import Address
from rhizome.cli.http_api.api_client import Endpoint, endpoint, path
from rhizome.cli.http_api.not_found_messages import describe_missing

Rhizome = Callable[..., Result]

LEASE = {
    "name": "spark",
    "state": "active",
    "messages": 12,
    "bytes": 345,
    "first": 5,
    "next": 17,
    "read_up_to": 9,
    "expires_in_ms": 60_000,
}
QUEUE = {
    "name": "orders",
    "vhost": "/",
    "state": "running",
    "messages_ready": 12345,
    "messages_unacknowledged": 7,
    "messages": 12352,
    "consumers": 2,
    "durable": True,
    "auto_delete": False,
    "arguments": {"x-max-length": 10},
    "policy": "cap",
}


def login(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


# --- who asks, and where


def test_paths_quote_every_part() -> None:
    assert path("queues", "/", "a b/c?") == "/api/queues/%2F/a%20b%2Fc%3F"


def test_the_user_comes_from_options_then_address_then_uri_then_guest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RHIZOME_URI", raising=False)
    assert endpoint("h:1") == Endpoint((Address("h", 1),), "guest", "guest")
    monkeypatch.setenv("RHIZOME_URI", "amqp://app:se%40cret@h/")
    assert (endpoint("h:1").user, endpoint("h:1").password) == ("app", "se@cret")
    assert endpoint("http://bob:pw@h:1").user == "bob"
    chosen = endpoint("http://bob:pw@h:1", "carol", "x")
    assert (chosen.user, chosen.password) == ("carol", "x")
    assert endpoint("h").addresses == (Address("h", 15672),)
    assert endpoint("https://[::1]:9").addresses[0].label == "[::1]:9"


def test_a_password_is_never_sent_for_another_user() -> None:
    assert endpoint("http://bob:secret@h:1", "carol").password == ""


def test_refused_credentials_say_which_options_to_give(rhizome: Rhizome, api: Any) -> None:
    api.answer("GET /api/queues", {"error": "not_authorised", "reason": "Login failed"}, 401)
    result = rhizome("queue", "list", "--http", api.address, "--user", "bob", "--password", "x")
    assert result.exit_code == 1
    assert "refused user 'bob' (Login failed); give --user and --password" in result.stderr
    assert api.requests[0].headers["Authorization"] == login("bob", "x")


def test_what_is_no_api_is_recognised(rhizome: Rhizome, api: Any) -> None:
    api.answer("GET /api/queues", b"<html>")
    result = rhizome("queue", "list", "--http", api.address)
    assert result.exit_code == 1
    assert "gave no JSON" in result.stderr


# --- reading


def test_queue_list_is_a_table_sorted_by_name(rhizome: Rhizome, api: Any) -> None:
    rates = {"publish_details": {"rate": 1234.0}, "deliver_get_details": {"rate": 5.0}}
    queue = {**QUEUE, "node": "b2", "message_stats": rates}
    api.answer("GET /api/queues", [queue, {**QUEUE, "name": "a\x1b[31m", "messages_ready": 1}])
    result = rhizome("queue", "list", "--http", api.address)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split()[:5] == ["name", "vhost", "home", "state", "ready"]
    assert lines[1].startswith("a\\x1b[31m")
    shown = ["orders", "/", "b2", "running", "12345", "7", "12352", "2", "1.2k", "5"]
    assert lines[2].split()[:10] == shown
    assert lines[2].endswith("durable x-max-length=10 policy=cap")


def test_queue_list_asks_for_pages_sorted_and_filtered(rhizome: Rhizome, api: Any) -> None:
    def page(number: int) -> str:
        asked = f"page={number}&page_size=500&name=%5Eorders&use_regex=true"
        return f"GET /api/queues?{asked}&sort=messages&sort_reverse=true"

    api.answer(page(1), {"items": [{**QUEUE, "name": "orders-b"}], "page_count": 2})
    api.answer(page(2), {"items": [{**QUEUE, "name": "orders-a"}], "page_count": 2})
    options = ("--filter", "^orders", "--sort", "messages", "--columns", "name,messages")
    result = rhizome("queue", "list", *options, "--http", api.address)
    assert result.stdout == "name      messages\norders-b     12352\norders-a     12352\n"


def test_queue_list_stops_at_its_limit(rhizome: Rhizome, api: Any) -> None:
    items = [{**QUEUE, "name": name} for name in "ab"]
    api.answer("GET /api/queues?page=1&page_size=2", {"items": items, "page_count": 9})
    result = rhizome("queue", "list", "--limit", "2", "--columns", "name", "--http", api.address)
    assert result.stdout == "name\na\nb\n"
    assert len(api.requests) == 1


def test_queue_list_names_the_fields_that_sort(rhizome: Rhizome, api: Any) -> None:
    result = rhizome("queue", "list", "--sort", "age", "--http", api.address)
    assert (result.exit_code, api.requests) == (2, [])
    assert "--sort age: give one of messages, ready, unacked" in result.stderr


def test_queue_show_is_for_people_and_verbose_has_all(rhizome: Rhizome, api: Any) -> None:
    queue = {**QUEUE, "node": "b1", "message_bytes_ready": 2048, "memory": 17}
    api.answer("GET /api/queues/%2F/orders", queue)
    shown = rhizome("queue", "show", "orders", "--http", api.address).stdout
    assert "home       b1\n" in shown
    assert "ready      12,345 (2.0 KiB)\n" in shown
    assert "memory" not in shown
    verbose = rhizome("queue", "show", "orders", "--verbose", "--http", api.address).stdout
    assert "memory" in verbose


def test_channels_and_consumers_are_listed(rhizome: Rhizome, api: Any) -> None:
    channel = {"name": "c1 (1)", "user": "u", "vhost": "/", "state": "running", "confirm": True}
    api.answer("GET /api/channels", [{**channel, "prefetch_count": 5}])
    lines = rhizome("channel", "list", "--http", api.address).stdout.splitlines()
    assert lines[1].split() == ["c1", "(1)", "u", "/", "running", "-", "-", "-", "5", "yes", "-"]
    consumer = {
        "queue": {"name": "q", "vhost": "v"},
        "consumer_tag": "t",
        "prefetch_count": 3,
        "ack_required": True,
        "active": True,
        "exclusive": False,
        "channel_details": {"name": "c1 (1)"},
    }
    api.answer("GET /api/consumers/v", [consumer])
    lines = rhizome("consumer", "list", "--vhost", "v", "--http", api.address).stdout.splitlines()
    assert lines[1].split() == ["q", "v", "t", "3", "yes", "yes", "no", "c1", "(1)"]


def test_damaged_messages_are_listed_and_dropped(rhizome: Rhizome, api: Any) -> None:
    row = {
        "vhost": "/",
        "queue": "orders",
        "index": 17,
        "node": "b1",
        "segment": 3,
        "offset": 64,
        "reason": "odd",
    }
    api.answer("GET /api/rhizome/damaged", [row])
    lines = rhizome("queue", "damaged", "--http", api.address).stdout.splitlines()
    assert lines[1].split() == ["/", "orders", "17", "b1", "3", "64", "odd"]
    api.answer("GET /api/rhizome/queues/%2F/orders/damaged", [])
    result = rhizome("queue", "damaged", "orders", "--http", api.address)
    assert result.stdout == "no message is damaged\n"
    api.answer("DELETE /api/rhizome/queues/%2F/orders/damaged/17", None)
    result = rhizome("queue", "damaged", "orders", "--drop", "17", "--http", api.address)
    assert result.stdout == "dropped message 17 of queue 'orders' in vhost '/'\n"
    result = rhizome("queue", "damaged", "--drop", "17", "--http", api.address)
    assert result.exit_code == 2
    assert "needs the name of the queue" in result.stderr


def test_schedules_are_listed_page_by_page(rhizome: Rhizome, api: Any) -> None:
    row = {
        "id": "invoice-1",
        "user": "app",
        "exchange": "later",
        "routing_key": "k",
        "due_ms": 0,
        "scheduled_ms": 0,
        "payload_bytes": 12,
    }
    target = "GET /api/rhizome/schedules/%2F?"
    api.answer(
        target + "count=2&after=0&exchange=later&user=",
        {"waiting": 5, "schedules": [row], "next": 7},
    )
    api.answer(
        target + "count=1&after=7&exchange=later&user=",
        {"waiting": 5, "schedules": [{**row, "id": "invoice-2"}], "next": None},
    )
    options = ("--exchange", "later", "--count", "2", "--http", api.address)
    lines = rhizome("schedule", "list", *options).stdout.splitlines()
    assert [line.split()[0] for line in lines if "invoice" in line] == ["invoice-1", "invoice-2"]
    assert "0:00:00" in lines[-1]
    api.answer("DELETE /api/rhizome/schedules/%2F/later/a%2Fb?user=app")
    done = rhizome("schedule", "cancel", "later", "a/b", "--by", "app", "--http", api.address)
    assert done.exit_code == 0, done.output
    api.answer("PUT /api/rhizome/schedules/%2F/later/a")
    done = rhizome("schedule", "move", "later", "a", "60", "--http", api.address)
    assert done.exit_code == 0, done.output
    assert api.requests[-1].document == {"delay_ms": 60_000}


@pytest.mark.parametrize(
    ("command", "request_line"),
    [
        ("schedule cancel later a", "DELETE /api/rhizome/schedules/%2F/later/a"),
        ("schedule move later a 60", "PUT /api/rhizome/schedules/%2F/later/a"),
        ("tap orders --remove", "DELETE /api/policies/%2F/tap-orders"),
    ],
)
def test_a_change_is_told_to_programs_as_json(
    rhizome: Rhizome, api: Any, command: str, request_line: str
) -> None:
    api.answer(request_line)
    done = rhizome(*command.split(), "--json", "--http", api.address)
    assert list(json.loads(done.stdout)) == ["done"]


def test_leases_of_a_queue_are_listed_and_ended(rhizome: Rhizome, api: Any) -> None:
    api.answer("GET /api/rhizome/queues/%2F/orders/leases", [LEASE])
    lines = rhizome("queue", "leases", "orders", "--http", api.address).stdout.splitlines()
    assert lines[1].split() == ["spark", "active", "12", "345", "5", "17", "9", "60000"]
    api.answer("GET /api/rhizome/queues/%2F/orders/leases", [])
    result = rhizome("queue", "leases", "orders", "--http", api.address)
    assert result.stdout == "queue 'orders' has no leases\n"
    api.answer("DELETE /api/rhizome/queues/%2F/orders/leases/spark%2F1", None)
    result = rhizome("queue", "end-lease", "orders", "spark/1", "--http", api.address)
    assert (result.exit_code, result.stdout) == (
        0,
        "ended lease 'spark/1' of queue 'orders' in vhost '/'\n",
    )


def test_queue_list_of_a_vhost_asks_for_that_vhost(rhizome: Rhizome, api: Any) -> None:
    api.answer("GET /api/queues/%2Fdev", [])
    result = rhizome("queue", "list", "--vhost", "/dev", "--http", api.address)
    assert (result.exit_code, result.stdout) == (0, "no queues\n")


def test_rabbitmqs_paged_answers_are_understood(rhizome: Rhizome, api: Any) -> None:
    api.answer("GET /api/queues", {"items": [QUEUE], "page": 1})
    result = rhizome("queue", "list", "--http", api.address, "--json")
    assert json.loads(result.stdout) == [QUEUE]


@pytest.mark.parametrize(
    ("arguments", "target", "answer"),
    [
        (["status"], "/api/rhizome/status", {"name": "b1", "status": "ready"}),
        (["queue", "list"], "/api/queues", [QUEUE]),
        (["queue", "show", "orders"], "/api/queues/%2F/orders", QUEUE),
        (["queue", "leases", "orders"], "/api/rhizome/queues/%2F/orders/leases", [LEASE]),
        (["exchange", "list"], "/api/exchanges", [{"name": "", "type": "direct"}]),
        (["connection", "list"], "/api/connections", [{"name": "1:2 -> 3:4", "user": "g"}]),
        (["user", "list"], "/api/users", [{"name": "guest", "tags": ["administrator"]}]),
        (["user", "permissions"], "/api/permissions", [{"user": "guest", "vhost": "/"}]),
        (["policy", "list"], "/api/policies", [{"name": "p", "definition": {"x": 1}}]),
        (["policy", "list", "--operator"], "/api/operator-policies", [{"name": "p"}]),
        (
            ["user", "topic-permissions", "list"],
            "/api/topic-permissions",
            [{"user": "bob", "vhost": "/", "exchange": "e", "write": "^a", "read": ".*"}],
        ),
        (["parameter", "list"], "/api/parameters", [{"component": "c", "vhost": "v", "name": "n"}]),
        (
            ["parameter", "list", "--component", "c", "--vhost", "/"],
            "/api/parameters/c/%2F",
            [{"component": "c", "vhost": "/", "name": "n", "value": {"a": 1}}],
        ),
        (
            ["parameter", "list-global"],
            "/api/global-parameters",
            [{"name": "cluster_name", "value": "local"}],
        ),
        (
            ["browse", "orders", "--count", "3"],
            "/api/rhizome/queues/%2F/orders/messages?offset=0&count=3",
            [{"index": 1, "payload": "hello", "payload_encoding": "string", "size": 5}],
        ),
    ],
)
def test_every_read_command_prints_text_and_json(
    rhizome: Rhizome, api: Any, arguments: list[str], target: str, answer: object
) -> None:
    api.answer(f"GET {target}", answer)
    as_text = rhizome(*arguments, "--http", api.address)
    assert as_text.exit_code == 0, as_text.stderr
    assert as_text.stdout.strip()
    as_json = rhizome(*arguments, "--http", api.address, "--json")
    assert json.loads(as_json.stdout) == answer


def test_browse_shows_payloads_and_their_encoding(rhizome: Rhizome, api: Any) -> None:
    messages = [
        {"index": 4, "routing_key": "k", "payload": "two\nlines", "size": 9},
        {"index": 5, "payload": "x" * 100, "payload_encoding": "base64", "size": 75},
    ]
    api.answer("GET /api/rhizome/queues/%2F/q/messages?offset=2&count=10", messages)
    result = rhizome("browse", "q", "--offset", "2", "--http", api.address)
    assert "two\\nlines" in result.stdout
    assert "base64 " + "x" * 57 + "..." in result.stdout


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("Not administrator user", "Not administrator user; give --user of one who may"),
        ("queue name 'amq.x' is reserved", "queue name 'amq.x' is reserved"),
    ],
)
def test_a_missing_right_is_told_apart_from_a_wrong_password(
    rhizome: Rhizome, api: Any, reason: str, said: str
) -> None:
    api.answer("PUT /api/queues/%2F/q", {"error": "not_authorised", "reason": reason}, 401)
    result = rhizome("queue", "declare", "q", "--http", api.address)
    assert result.exit_code == 1
    assert result.stderr == f"error: user 'guest' may not do that: {said}\n"


def test_what_is_not_there_is_named(rhizome: Rhizome, api: Any) -> None:
    result = rhizome("queue", "show", "nope", "--http", api.address)
    assert result.exit_code == 1
    assert "there is no queue 'nope' in vhost '/'; see `rhizome queue list`" in result.stderr


@pytest.mark.parametrize(
    ("verb", "target", "said"),
    [
        ("DELETE", path("queues", "/", "q", "contents"), "there is no queue 'q' in vhost '/'"),
        ("GET", path("queues", "dev"), "there is no vhost 'dev'; see `rhizome vhost list`"),
        ("PUT", path("queues", "dev", "q"), "there is no vhost 'dev'"),
        ("DELETE", path("users", "bob"), "there is no user 'bob'; see `rhizome user list`"),
        ("POST", path("rhizome", "groups", "9", "move"), "there is no group '9'"),
        ("GET", path("rhizome", "streams", "/", "s"), "there is no stream 's' in vhost '/'"),
        ("GET", path("weather", "today"), "not found: weather/today"),
        (
            "DELETE",
            path("operator-policies", "/", "p"),
            "there is no operator policy 'p' in vhost '/'; see `rhizome policy list --operator`",
        ),
        (
            "DELETE",
            path("topic-permissions", "/", "bob", "e"),
            "user 'bob' has no topic permissions for exchange 'e' in vhost '/'; see `rhizome user",
        ),
        ("DELETE", path("topic-permissions", "/", "bob"), "user 'bob' has no topic permissions in"),
        (
            "DELETE",
            path("parameters", "shovel", "/", "s"),
            "there is no parameter 's' of shovel in vhost '/'; see `rhizome parameter list`",
        ),
        (
            "DELETE",
            path("rhizome", "schedules", "/", "later", "a"),
            "no message 'a' of yours waits at exchange 'later' in vhost '/';",
        ),
        ("PUT", path("parameters", "shovel", "dev", "s"), "there is no vhost 'dev'"),
        ("GET", path("parameters", "shovel", "dev"), "there is no vhost 'dev'"),
        (
            "DELETE",
            path("global-parameters", "g"),
            "there is no global parameter 'g'; see `rhizome parameter list-global`",
        ),
        (
            "DELETE",
            path("rhizome", "queues", "/", "q", "leases", "l"),
            "there is no lease 'l' or no queue 'q' in vhost '/'",
        ),
        (
            "POST",
            path("bindings", "/", "e", "x", "q", "y"),
            "there is no exchange 'x' or no queue 'y' in vhost '/'; see `rhizome exchange list`",
        ),
    ],
)
def test_what_is_missing_is_said_in_words(verb: str, target: str, said: str) -> None:
    assert describe_missing(verb, target).startswith(said)


def test_an_amqp_port_is_recognised(rhizome: Rhizome) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def answer() -> None:
            connection, _ = listener.accept()
            connection.recv(1000)
            connection.sendall(b"AMQP\0\0\x09\x01")
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        result = rhizome("queue", "list", "--http", f"127.0.0.1:{port}")
        thread.join()
    assert "it speaks AMQP, not HTTP" in result.stderr


# --- changing


@pytest.mark.parametrize(
    ("arguments", "line", "document"),
    [
        (["queue", "purge", "q"], "DELETE /api/queues/%2F/q/contents", None),
        (["queue", "delete", "q"], "DELETE /api/queues/%2F/q", None),
        (
            ["queue", "delete", "q", "--if-empty", "--vhost", "v"],
            "DELETE /api/queues/v/q?if-empty=true",
            None,
        ),
        (
            ["queue", "declare", "q", "-a", "x-message-ttl=60000", "-a", "x-overflow=drop-head"],
            "PUT /api/queues/%2F/q",
            {
                "durable": True,
                "auto_delete": False,
                "arguments": {"x-message-ttl": 60000, "x-overflow": "drop-head"},
            },
        ),
        (
            ["connection", "close", "a:1 -> b:2"],
            "DELETE /api/connections/a%3A1%20-%3E%20b%3A2",
            None,
        ),
        (
            ["user", "add", "bob", "--new-password", "pw", "--tags", "monitoring"],
            "PUT /api/users/bob",
            {"password": "pw", "tags": "monitoring"},
        ),
        (["user", "delete", "bob"], "DELETE /api/users/bob", None),
        (
            ["user", "permit", "bob", "--write", "^a"],
            "PUT /api/permissions/%2F/bob",
            {"configure": ".*", "write": "^a", "read": ".*"},
        ),
        (
            ["user", "limit", "bob", "--channels", "7"],
            "PUT /api/user-limits/bob/max-channels",
            {"value": 7},
        ),
        (["user", "forbid", "bob"], "DELETE /api/permissions/%2F/bob", None),
        (
            ["policy", "set", "cap", "^q", '{"max-length": 5}', "--apply-to", "queues"],
            "PUT /api/policies/%2F/cap",
            {
                "pattern": "^q",
                "definition": {"max-length": 5},
                "priority": 0,
                "apply-to": "queues",
            },
        ),
        (["policy", "delete", "cap"], "DELETE /api/policies/%2F/cap", None),
        (
            ["policy", "set", "cap", "^q", '{"max-length": 5}', "--operator"],
            "PUT /api/operator-policies/%2F/cap",
            {
                "pattern": "^q",
                "definition": {"max-length": 5},
                "priority": 0,
                "apply-to": "queues",
            },
        ),
        (
            ["policy", "delete", "cap", "--operator", "--vhost", "v"],
            "DELETE /api/operator-policies/v/cap",
            None,
        ),
        (
            ["user", "topic-permissions", "set", "bob", "events", "--write", "^bob\\."],
            "PUT /api/topic-permissions/%2F/bob",
            {"exchange": "events", "write": "^bob\\.", "read": ".*"},
        ),
        (
            ["user", "topic-permissions", "clear", "bob"],
            "DELETE /api/topic-permissions/%2F/bob",
            None,
        ),
        (
            ["user", "topic-permissions", "clear", "bob", "--exchange", "events"],
            "DELETE /api/topic-permissions/%2F/bob/events",
            None,
        ),
        (
            ["parameter", "set", "shovel", "s/1", '{"a": 1}', "--vhost", "v"],
            "PUT /api/parameters/shovel/v/s%2F1",
            {"component": "shovel", "vhost": "v", "name": "s/1", "value": {"a": 1}},
        ),
        (["parameter", "clear", "shovel", "s"], "DELETE /api/parameters/shovel/%2F/s", None),
        (
            ["parameter", "set-global", "g", "5"],
            "PUT /api/global-parameters/g",
            {"name": "g", "value": 5},
        ),
        (["parameter", "clear-global", "g"], "DELETE /api/global-parameters/g", None),
        (["vhost", "add", "dev"], "PUT /api/vhosts/dev", {}),
        (
            ["vhost", "add", "dev", "--default-queue-type", "quorum"],
            "PUT /api/vhosts/dev",
            {"default_queue_type": "quorum"},
        ),
        (
            ["vhost", "limit", "dev", "--queues", "5"],
            "PUT /api/vhost-limits/dev/max-queues",
            {"value": 5},
        ),
        (
            ["exchange", "declare", "e", "--type", "topic", "-a", "alternate-exchange=other"],
            "PUT /api/exchanges/%2F/e",
            {
                "type": "topic",
                "durable": True,
                "auto_delete": False,
                "internal": False,
                "arguments": {"alternate-exchange": "other"},
            },
        ),
        (
            ["exchange", "delete", "e", "--if-unused"],
            "DELETE /api/exchanges/%2F/e?if-unused=true",
            None,
        ),
        (
            ["exchange", "bind", "e", "q", "--key", "a.#"],
            "POST /api/bindings/%2F/e/e/q/q",
            {"routing_key": "a.#", "arguments": {}},
        ),
        (
            ["exchange", "bind", "e", "f", "--to-exchange"],
            "POST /api/bindings/%2F/e/e/e/f",
            {"routing_key": "", "arguments": {}},
        ),
    ],
)
def test_changes_are_sent_as_rabbitmqs_api_wants_them(
    rhizome: Rhizome, api: Any, arguments: list[str], line: str, document: object
) -> None:
    api.answer(line, None, 204)
    result = rhizome(*arguments, "--http", api.address)
    assert result.exit_code == 0, result.stderr
    request = api.requests[0]
    assert f"{request.verb} {request.target}" == line
    assert request.document == document


def test_a_refusal_shows_the_brokers_reason(rhizome: Rhizome, api: Any) -> None:
    reason = {"error": "bad_request", "reason": "inequivalent arg 'durable'"}
    api.answer("PUT /api/queues/%2F/q", reason, 400)
    result = rhizome("queue", "declare", "q", "--http", api.address)
    assert result.exit_code == 1
    assert result.stderr == "error: inequivalent arg 'durable'\n"


def test_a_script_writes_the_password_of_a_new_user_into_standard_input(
    rhizome: Rhizome, api: Any
) -> None:
    api.answer("GET /api/users", [])
    api.answer("PUT /api/users/bob", None, 204)
    result = rhizome("user", "add", "bob", "--http", api.address, input="secret\n")
    assert result.exit_code == 0, result.stderr
    assert api.requests[-1].document["password"] == "secret"
    assert "secret" not in result.output
    result = rhizome("user", "add", "bob", "--http", api.address, input="")
    assert result.exit_code == 1
    assert "no password for 'bob': give --new-password, or write it" in result.stderr


def test_another_password_takes_no_tags_away(rhizome: Rhizome, api: Any) -> None:
    api.answer("GET /api/users", [{"name": "bob", "tags": ["administrator", "monitoring"]}])
    api.answer("PUT /api/users/bob", None, 204)
    given = ["user", "add", "bob", "--new-password", "x", "--http", api.address]
    assert rhizome(*given).exit_code == 0
    assert api.requests[-1].document == {"password": "x", "tags": "administrator,monitoring"}
    assert rhizome(*given, "--tags", "", "--type", "console").exit_code == 0
    assert api.requests[-1].document == {"password": "x", "tags": "", "type": "console"}


def test_the_address_may_come_from_the_environment(rhizome: Rhizome, api: Any) -> None:
    api.answer("GET /api/queues", [])
    result = rhizome("queue", "list", env={"RHIZOME_HTTP": f"http://bob:pw@127.0.0.1:{api.port}"})
    assert result.exit_code == 0
    assert api.requests[0].headers["Authorization"] == login("bob", "pw")


@pytest.mark.parametrize(
    ("arguments", "line", "done"),
    [
        (("queue", "declare", "q"), "PUT /api/queues/%2F/q", "declared queue 'q' in vhost '/'"),
        (
            ("queue", "purge", "q"),
            "DELETE /api/queues/%2F/q/contents",
            "purged queue 'q' in vhost '/'",
        ),
        (("user", "delete", "ann"), "DELETE /api/users/ann", "deleted user 'ann'"),
        (
            ("policy", "set", "cap", "^q$", '{"max-length": 1}'),
            "PUT /api/policies/%2F/cap",
            "policy 'cap' is set in vhost '/'",
        ),
        (
            ("stream", "create", "s", "--partitions", "2"),
            "PUT /api/rhizome/streams/%2F/s",
            "created stream 's' with 2 partitions in vhost '/';"
            " publish to exchange 's', read from s-0 to s-1",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_what_was_done_is_told_to_people_and_programs(
    rhizome: Rhizome, api: Any, arguments: tuple[str, ...], line: str, done: str
) -> None:
    api.answer(line, None, 204)
    told = rhizome(*arguments, "--http", api.address)
    assert (told.exit_code, told.stdout) == (0, done + "\n")
    assert json.loads(rhizome(*arguments, "--json", "--http", api.address).stdout) == {"done": done}


def test_parameters_of_one_vhost_are_chosen_from_all(rhizome: Rhizome, api: Any) -> None:
    rows = [{"component": "c", "vhost": vhost, "name": vhost} for vhost in ("a", "b")]
    api.answer("GET /api/parameters", rows)
    result = rhizome("parameter", "list", "--vhost", "b", "--json", "--http", api.address)
    assert json.loads(result.stdout) == rows[1:]


# --- several requests


def test_a_queue_is_unbound_by_its_key(rhizome: Rhizome, api: Any) -> None:
    binding = {"destination": "q", "destination_type": "queue", "routing_key": "k"}
    rows = [{**binding, "properties_key": "k~1"}, {**binding, "routing_key": "l"}]
    api.answer("GET /api/exchanges/%2F/e/bindings/source", rows)
    api.answer("DELETE /api/bindings/%2F/e/e/q/q/k~1", None, 204)
    result = rhizome("exchange", "unbind", "e", "q", "--key", "k", "--http", api.address)
    assert (result.exit_code, len(api.requests)) == (0, 2), result.stderr
    result = rhizome("exchange", "unbind", "e", "q", "--key", "nope", "--http", api.address)
    assert "queue 'q' is not bound to 'e' with key 'nope'" in result.stderr


def test_a_vhost_is_deleted_when_it_was_said_what_is_lost(rhizome: Rhizome, api: Any) -> None:
    api.answer("GET /api/queues/dev", [{"messages": 3}, {"messages": 4}])
    api.answer("DELETE /api/vhosts/dev", None, 204)
    delete = ["vhost", "delete", "dev", "--http", api.address]
    result = rhizome(*delete, input="n\n")
    assert "2 queues with 7 messages" in result.stdout
    assert (result.exit_code, len(api.requests)) == (1, 1)
    assert rhizome(*delete, "--json").exit_code == 1
    assert rhizome(*delete, "--yes").exit_code == 0
    assert api.requests[-1].verb == "DELETE"


def test_all_messages_are_moved_a_thousand_at_a_time(rhizome: Rhizome, api: Any) -> None:
    api.answer("GET /api/queues/%2F/dead", {"messages_ready": 1500})
    api.answer("POST /api/rhizome/queues/%2F/dead/move", {"moved": 1000, "left": 500})
    result = rhizome("queue", "move", "dead", "work", "--http", api.address)
    asked = [each.document for each in api.requests if each.verb == "POST"]
    assert asked == [{"to": "work", "count": 1000}, {"to": "work", "count": 500}], result.stderr
    result = rhizome("queue", "move", "dead", "work", "--count", "7", "--http", api.address)
    assert api.requests[-1].document == {"to": "work", "count": 7}


def acted(done: int, place: str | None, **more: Any) -> dict[str, Any]:
    return {"done": done, "scanned": 5, "to": {}, "skipped": {}, "next": place, **more}


@pytest.mark.parametrize(
    ("words", "order"),
    [
        (["drop", "q", "--where", "size > 1"], {"action": "drop", "where": "size > 1"}),
        (["drop", "q", "--id", "1-1"], {"action": "drop", "ids": ["1-1"]}),
        (["requeue", "q", "--id", "1-1"], {"action": "requeue", "ids": ["1-1"]}),
        (["move", "q", "to", "--id", "1-1"], {"action": "move", "to": "to", "ids": ["1-1"]}),
        (["redrive", "q", "--dry-run"], {"action": "redrive", "where": "", "dry_run": True}),
    ],
)
def test_messages_are_acted_on_by_condition_or_id(
    rhizome: Rhizome, api: Any, words: list[str], order: dict[str, Any]
) -> None:
    api.answer("POST /api/rhizome/queues/%2F/q/messages", acted(2, None, to={"orders": 2}))
    result = rhizome("queue", *words, "--http", api.address)
    assert result.exit_code == 0, result.stderr
    wanted = {"dry_run": False, "count": 1000, "after": "", **order}
    assert api.requests[-1].document == wanted
    assert "2 messages of 'q'" in result.stdout
    assert "2 to 'orders'" in result.stdout


def test_an_action_goes_on_until_nothing_is_left(rhizome: Rhizome, api: Any) -> None:
    api.answer("POST /api/rhizome/queues/%2F/q/messages", acted(3, "0-4-9", skipped={"gone": 1}))
    result = rhizome("queue", "redrive", "q", "--count", "5", "--http", api.address, "--json")
    asked = [(each.document["count"], each.document["after"]) for each in api.requests]
    assert asked == [(5, ""), (2, "0-4-9")]
    assert json.loads(result.stdout)["skipped"] == {"gone": 2}
    api.answer("POST /api/rhizome/queues/%2F/q/messages", acted(1, None, skipped={"gone": 1}))
    result = rhizome("queue", "redrive", "q", "--http", api.address)
    assert "left 1: gone\n`rhizome queue move` takes what is left" in result.stdout


@pytest.mark.parametrize("action", ["redrive", "move", "drop", "requeue"])
def test_a_dry_run_says_what_it_would_do(rhizome: Rhizome, api: Any, action: str) -> None:
    api.answer("POST /api/rhizome/queues/%2F/q/messages", acted(2, None))
    words = {"redrive": [], "move": ["to"], "drop": ["--where", "size > 1"]}
    asked = ["q", *words.get(action, ["--id", "1-1"]), "--dry-run"]
    result = rhizome("queue", action, *asked, "--http", api.address)
    assert result.stdout == f"would {action} 2 messages of 'q'\n"


def test_nothing_is_dropped_without_being_named(rhizome: Rhizome, api: Any) -> None:
    assert rhizome("queue", "drop", "q", "--http", api.address).exit_code == 2
    both = ("--where", "size > 1", "--id", "1-1")
    assert rhizome("queue", "requeue", "q", *both, "--http", api.address).exit_code == 2
    assert api.requests == []


def test_browsing_by_condition_asks_on_until_it_has_enough(rhizome: Rhizome, api: Any) -> None:
    one = {"id": "7-1", "exchange": "", "routing_key": "k", "size": 2, "payload": "hi"}
    where = "headers.tenant = 'a'"
    for count, after, place in ((2, "", "0-8-9"), (1, "0-8-9", "0-9-9")):
        query = urlencode({"where": where, "count": count, "after": after})
        answer = {"messages": [one], "scanned": 100, "next": place}
        api.answer(f"GET /api/rhizome/queues/%2F/q/search?{query}", answer)
    result = rhizome("browse", "q", "--where", where, "-n", "2", "--http", api.address)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("7-1") == 2
    assert len(api.requests) == 2


def test_a_vhost_is_traced_and_not_made_by_mistake(rhizome: Rhizome, api: Any) -> None:
    api.answer("GET /api/vhosts/dev", {"name": "dev"})
    api.answer("PUT /api/vhosts/dev", None, 204)
    for words, wanted in (((), True), (("--off",), False)):
        result = rhizome("vhost", "trace", "dev", *words, "--http", api.address)
        assert result.exit_code == 0, result.stderr
        assert api.requests[-1].document == {"tracing": wanted}
    assert rhizome("vhost", "trace", "other", "--http", api.address).exit_code != 0
    assert api.requests[-1].verb == "GET"


def test_vhosts_are_listed_with_their_limits(rhizome: Rhizome, api: Any) -> None:
    api.answer("GET /api/vhosts", [{"name": "dev", "messages": 5}])
    api.answer("GET /api/vhost-limits", [{"vhost": "dev", "value": {"max-queues": 9}}])
    lines = rhizome("vhost", "list", "--http", api.address).stdout.splitlines()
    assert lines[1].split() == ["dev", "-", "0", "0", "5", "max-queues=9"]


def test_users_are_listed_with_their_limits(rhizome: Rhizome, api: Any) -> None:
    rows = [{"name": "bob", "tags": [], "type": "application", "limits": {"max-channels": 7}}]
    api.answer("GET /api/users", rows)
    lines = rhizome("user", "list", "--http", api.address).stdout.splitlines()
    assert lines[1].split() == ["bob", "application", "max-channels=7"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["user", "limit", "bob"], "give --connections, --channels or --queues"),
        (["vhost", "limit", "dev"], "give --connections or --queues"),
        (["user", "limit", "bob", "--queues", "1"], "there is no user 'bob'"),
        (["vhost", "limit", "dev", "--queues", "1"], "there is no vhost 'dev'"),
    ],
)
def test_a_limit_of_nothing_or_nobody_is_explained(
    rhizome: Rhizome, api: Any, arguments: list[str], said: str
) -> None:
    result = rhizome(*arguments, "--http", api.address)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {said}")


def test_definitions_go_to_a_file_of_their_own_and_come_back(
    rhizome: Rhizome, api: Any, tmp_path: Path
) -> None:
    known = {"vhosts": [{"name": "/"}], "queues": [{"name": "é"}, {"name": "\udc80\x01"}]}
    api.answer("GET /api/definitions", known)
    api.answer("POST /api/definitions/dev", None, 204)
    file = tmp_path / "definitions.json"
    result = rhizome("definitions", "export", str(file), "--http", api.address)
    assert result.stdout == f"wrote 1 vhosts, 2 queues to {file}\n"
    assert file.stat().st_mode & 0o777 == 0o600
    imported = ["definitions", "import", str(file), "--vhost", "dev", "--http", api.address]
    assert rhizome(*imported).exit_code == 0
    assert api.requests[-1].document == known
    file.write_text("no json")
    assert "is no JSON" in rhizome(*imported).stderr


@pytest.mark.parametrize(
    ("mirrors", "copies"),
    [
        ({"ha-mode": "all"}, 3),
        ({"ha-mode": "exactly", "ha-params": 2}, 2),
        ({"ha-mode": "exactly", "ha-params": 9}, 3),
        ({"ha-mode": "nodes", "ha-params": ["a", "b"]}, 2),
        ({"ha-mode": "all", "copies": 1}, 1),
    ],
)
def test_policies_that_mirror_queues_ask_for_copies_when_they_are_imported(
    rhizome: Rhizome, api: Any, tmp_path: Path, mirrors: dict[str, Any], copies: int
) -> None:
    api.answer("GET /api/rhizome/status", {"cluster": {"quorum": {"defined": 3}}})
    api.answer("POST /api/definitions", None, 204)
    file = tmp_path / "definitions.json"
    policies = [{"name": "ha", "definition": mirrors}, {"name": "plain", "definition": {}}]
    file.write_text(json.dumps({"policies": policies}))
    result = rhizome("definitions", "import", str(file), "--http", api.address)
    assert result.exit_code == 0
    sent = api.requests[-1].document["policies"]
    assert sent[0]["definition"] == {**mirrors, "copies": copies}
    assert sent[1]["definition"] == {}
    told = f"policy 'ha': ha-mode '{mirrors['ha-mode']}' became {copies} copies"
    assert (told in result.stderr) == ("copies" not in mirrors)
