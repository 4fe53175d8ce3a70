"""`rhizome stream` and `rhizome tap`, against a scripted HTTP API."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import Result

from rhizome.cli.commands.messages.consume_command import stream_arguments
from rhizome.cli.commands.resources.stream_command import time_ms, time_text

Rhizome = Callable[..., Result]

STREAM = {
    "name": "events",
    "vhost": "/",
    "kind": "stream",
    "first": 10,
    "next": 250,
    "messages": 240,
    "bytes": 4096,
    "segments": 2,
    "consumers": 1,
    "first_timestamp": 1_700_000_000_000,
    "last_timestamp": 1_700_000_060_000,
    "arguments": {"x-queue-type": "stream"},
}
DETAILS = {
    **STREAM,
    "offset_at": 17,
    "offsets": {"app": 99},
    "consumer_details": [
        {
            "consumer_tag": "tag",
            "name": "app",
            "next": 120,
            "lag": 130,
            "unacknowledged": 20,
            "prefetch_count": 50,
        }
    ],
    "segment_details": [
        {
            "segment": 3,
            "first": 10,
            "next": 100,
            "bytes": 2048,
            "first_timestamp": 1_700_000_000_000,
            "last_timestamp": 1_700_000_001_500,
        }
    ],
}


def test_a_partitioned_stream_is_one_line(rhizome: Rhizome, api: Any) -> None:
    parts = [{**STREAM, "name": f"p-{number}"} for number in range(2)]
    whole = {"name": "p", "vhost": "/", "partitions": 2, "messages": 480, "streams": parts}
    api.answer("GET /api/rhizome/streams", [STREAM, whole])
    result = rhizome("stream", "list", "--http", api.address)
    lines = result.stdout.splitlines()
    assert lines[0].split() == [
        *("name", "vhost", "partitions", "first", "next", "messages", "size", "consumers")
    ]
    assert lines[1].split() == ["events", "/", "-", "10", "250", "240", "4.0", "KiB", "1"]
    assert lines[2].split() == ["p", "/", "2", "-", "-", "480", "-", "2"]


def test_inspect_shows_bounds_readers_and_what_is_remembered(rhizome: Rhizome, api: Any) -> None:
    api.answer("GET /api/rhizome/streams/%2F/events", DETAILS)
    result = rhizome("stream", "inspect", "events", "--segments", "--http", api.address)
    assert result.exit_code == 0
    text = " ".join(result.stdout.split())
    assert "first offset 10 next offset 250" in text
    assert "from 2023-11-14T22:13:20.000Z to 2023-11-14T22:14:20.000Z" in text
    assert "events app tag 120 130 20 50" in text
    assert "events app 99" in text
    assert "3 10 100 2.0 KiB 2023-11-14T22:13:20.000Z 2023-11-14T22:13:21.500Z" in text
    as_json = rhizome("stream", "inspect", "events", "--json", "--http", api.address)
    assert json.loads(as_json.stdout) == DETAILS


def test_inspect_at_a_time_asks_in_milliseconds(rhizome: Rhizome, api: Any) -> None:
    api.answer("GET /api/rhizome/streams/%2F/events?timestamp=1700000000500", DETAILS)
    moment = "2023-11-14T22:13:20.500Z"
    result = rhizome("stream", "inspect", "events", "--at", moment, "--http", api.address)
    assert f"at {moment}: offset 17 of events" in result.stdout


def test_times_may_be_an_age(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = int(time.time() * 1000)
    assert abs(now_ms - 3_600_000 - time_ms("1h")) < 5_000
    assert time_ms("2023-11-14T22:13:20Z") == 1_700_000_000_000
    assert time_text(None) == "-"


def test_a_time_that_is_none_is_explained(rhizome: Rhizome, api: Any) -> None:
    result = rhizome("stream", "inspect", "events", "--at", "yesterday", "--http", api.address)
    assert result.exit_code == 1
    assert "2026-05-01T12:00:00Z" in result.stderr


def test_create_sends_retention_and_partitions(rhizome: Rhizome, api: Any) -> None:
    api.answer("PUT /api/rhizome/streams/%2F/p", status=201)
    result = rhizome(
        *("stream", "create", "p", "--partitions", "3", "--max-age", "7D", "--max-bytes", "1000"),
        *("--segment-bytes", "500", "-a", "x-group=b2", "--http", api.address),
    )
    assert result.exit_code == 0
    assert "read from p-0 to p-2" in result.stdout
    assert api.requests[-1].document == {
        "partitions": 3,
        "arguments": {
            "x-group": "b2",
            "x-max-age": "7D",
            "x-max-length-bytes": 1000,
            "x-stream-max-segment-size-bytes": 500,
        },
    }


def test_a_stream_without_partitions_is_one_stream(rhizome: Rhizome, api: Any) -> None:
    api.answer("PUT /api/rhizome/streams/%2F/events", status=201)
    result = rhizome("stream", "create", "events", "--max-age", "7D", "--http", api.address)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == "created stream 'events' in vhost '/'\n"
    assert api.requests[-1].document == {"arguments": {"x-max-age": "7D"}}


def test_offsets_are_listed_set_and_forgotten(rhizome: Rhizome, api: Any) -> None:
    where = "/api/rhizome/streams/%2F/events/offsets"
    api.answer(f"GET {where}", {"app": 99})
    api.answer(f"PUT {where}/app", status=204)
    api.answer(f"DELETE {where}/app", status=204)
    listed = rhizome("stream", "offset", "list", "events", "--http", api.address)
    assert listed.stdout.splitlines()[1].split() == ["app", "99"]
    done = rhizome("stream", "offset", "set", "events", "app", "41", "--http", api.address)
    assert "goes on with offset 42" in done.stdout
    assert api.requests[-1].document == {"offset": 41}
    forgotten = rhizome("stream", "offset", "forget", "events", "app", "--http", api.address)
    assert forgotten.exit_code == 0
    assert api.requests[-1].verb == "DELETE"


READER = {
    "name": "archive",
    "stream": "events",
    "vhost": "/",
    "next": 120,
    "lag": 130,
    "behind_retention": 0,
    "kept": True,
    "connected": False,
    "used_ms": 1_700_000_000_000,
    "at_risk": 30,
}


def test_readers_are_listed_with_their_lag(rhizome: Rhizome, api: Any) -> None:
    api.answer("GET /api/rhizome/stream-readers", [READER])
    listed = rhizome("stream", "readers", "--http", api.address)
    assert listed.exit_code == 0, listed.stderr
    assert listed.stdout.splitlines()[1].split() == [
        "events", "archive", "120", "130", "2023-11-14T22:13:20.000Z", "yes", "-", "30",
    ]  # fmt: skip
    api.answer("GET /api/rhizome/streams/%2F/events", {**DETAILS, "reader_details": [READER]})
    one = rhizome("stream", "readers", "events", "--json", "--http", api.address)
    assert json.loads(one.stdout) == [READER]


def test_a_tap_is_a_policy_and_makes_its_stream(rhizome: Rhizome, api: Any) -> None:
    api.answer("GET /api/exchanges/%2F/or.ders", {"name": "or.ders", "policy": None})
    api.answer("GET /api/rhizome/streams/%2F", [])
    api.answer("PUT /api/rhizome/streams/%2F/copy", status=201)
    api.answer("PUT /api/policies/%2F/tap-or.ders", status=201)
    result = rhizome("tap", "or.ders", "--to", "copy", "--http", api.address)
    assert result.exit_code == 0, result.stderr
    assert [request.target for request in api.requests][-2:] == [
        "/api/rhizome/streams/%2F/copy",
        "/api/policies/%2F/tap-or.ders",
    ]
    assert api.requests[-1].document == {
        "pattern": r"^or\.ders$",
        "definition": {"tap": "copy"},
        "priority": 0,
        "apply-to": "exchanges",
    }


def test_a_tap_keeps_what_the_policy_in_force_says(rhizome: Rhizome, api: Any) -> None:
    api.answer("GET /api/exchanges/%2F/x", {"name": "x", "policy": "lost"})
    policy = {"name": "lost", "priority": 5, "definition": {"alternate-exchange": "unrouted"}}
    api.answer("GET /api/policies/%2F/lost", policy)
    api.answer("GET /api/rhizome/streams/%2F", [STREAM])
    api.answer("PUT /api/policies/%2F/tap-x", status=201)
    assert rhizome("tap", "x", "--to", "events", "--http", api.address).exit_code == 0
    document = api.requests[-1].document
    assert document["definition"] == {"alternate-exchange": "unrouted", "tap": "events"}
    assert document["priority"] == 6


def test_taps_are_listed_and_removed(rhizome: Rhizome, api: Any) -> None:
    taps = [
        {"name": "tap-x", "pattern": "^x$", "priority": 1, "definition": {"tap": "events"}},
        {"name": "other", "pattern": ".*", "priority": 0, "definition": {"max-length": 5}},
    ]
    api.answer("GET /api/policies/%2F", taps)
    api.answer("DELETE /api/policies/%2F/tap-x", status=204)
    listed = rhizome("tap", "--http", api.address).stdout.splitlines()
    assert [line.split() for line in listed[1:]] == [["^x$", "events", "tap-x", "1"]]
    removed = rhizome("tap", "x", "--remove", "--http", api.address)
    assert "no longer tapped" in removed.stdout
    assert rhizome("tap", "x", "--http", api.address).exit_code == 1


def test_a_consumer_of_a_stream_asks_for_a_place_a_name_and_values() -> None:
    assert stream_arguments("17", "app", ["invoices", "orders"]) == {
        "x-stream-offset": 17,
        "x-stream-consumer-name": "app",
        "x-stream-filter": ["invoices", "orders"],
    }
    assert stream_arguments("", "", []) == {}
