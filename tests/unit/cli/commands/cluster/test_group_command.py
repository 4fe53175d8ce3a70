"""`group` and `broker drain`: what they show, and that nothing is done that was not shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import Result

from rhizome.cli.commands.cluster import drain_progress

Rhizome = Callable[..., Result]

GROUP: dict[str, Any] = {
    "id": 2,
    "home": "b2",
    "epoch": 5,
    "failover": ["b3"],
    "in_sync": [
        {"broker": "b3", "incarnation": "a3", "copy": "whole", "lag": 4},
        {"broker": "b4", "incarnation": "a4", "copy": "disk", "lag": None},
    ],
    "queues": 4,
    "messages": 5,
    "copies": 3,
    "min_copies": 2,
    "local": False,
    "origin": "b1",
    "moving_to": "",
    "unavailable": "",
}
HELD = [
    {"broker": "b3", "role": "standby", "epoch": 5, "index": 86, "usable": True},
    {"broker": "b2", "role": "home", "epoch": 5, "index": 90, "usable": True},
]
PREVIEW = {
    "steps": ["b3 becomes the home"],
    "warnings": ["b1 does not answer"],
    "refusal": "",
    "basis": "epoch 5",
}


def documents(api: Any, line: str) -> list[Any]:
    return [each.document for each in api.requests if f"{each.verb} {each.target}" == line]


def test_groups_are_listed(rhizome: Rhizome, api: Any) -> None:
    api.answer("GET /api/rhizome/groups", [GROUP])
    shown = rhizome("group", "list", "--http", api.address).stdout.splitlines()
    assert shown[1].split() == ["2", "b2", "5", "b3", "b3", "b4", "(disk)", "3", "4", "5"]
    as_json = rhizome("group", "list", "--http", api.address, "--json")
    assert json.loads(as_json.stdout) == [GROUP]


def test_home_tells_what_it_sent_to_each_copy(rhizome: Rhizome, api: Any) -> None:
    standby = {"broker": "b3", "stage": "catching up", "lag": 4, "records_bytes": 2048}
    standby |= {"listing_bytes": 10, "backfill_bytes": 3 << 20}
    document = {**GROUP, "held": [HELD[0], {**HELD[1], "standbys": [standby]}], "silent": []}
    api.answer("GET /api/rhizome/groups/2", document)
    shown = rhizome("group", "inspect", "2", "--http", api.address).stdout.splitlines()
    assert shown[-1].split() == ["b3", "catching", "up", "4", "2.0", "KiB", "10", "B", "3.0", "MiB"]


def test_group_is_shown_with_its_copies_the_best_first(rhizome: Rhizome, api: Any) -> None:
    document = {**GROUP, "unavailable": "its home b2 is down", "moving_to": "b3"}
    document |= {"pinned": "b3", "held": HELD, "silent": ["b4"]}
    api.answer("GET /api/rhizome/groups/2", document)
    assert rhizome("group", "inspect", "2", "--http", api.address).stdout == (
        "group        2\n"
        "home         b2\n"
        "UNAVAILABLE  its home b2 is down\n"
        "epoch        5\n"
        "came from    b1\n"
        "copies       3 wanted, 2 needed\n"
        "failover     b3\n"
        "queues       4\n"
        "messages     5\n"
        "moving to    b3\n"
        "pinned to    b3\n"
        "\n"
        "broker  role     epoch  record  usable  in sync  behind\n"
        "b2      home         5      90  yes     -             -\n"
        "b3      standby      5      86  yes     whole         4\n"
        "b4      -            -       -  -       disk          -\n"
        "b4 did not answer\n"
    )


@pytest.mark.parametrize("command", ["force-home", "move"])
def test_home_is_forced_or_moved_as_shown(rhizome: Rhizome, api: Any, command: str) -> None:
    line = f"POST /api/rhizome/groups/2/{command}"
    api.answer(line, {**PREVIEW, "done": "b3 is the home of group 2"})
    arguments = ("group", command, "2", "--broker", "b3", "--http", api.address)
    refused = rhizome(*arguments, input="n\n")
    assert refused.exit_code == 1
    assert "WARNING: b1 does not answer" in refused.stdout
    assert documents(api, line) == [{"broker": "b3", "preview": True}]
    done = rhizome(*arguments, "--yes")
    assert done.stdout.endswith("b3 is the home of group 2\n")
    assert documents(api, line)[-1] == {"broker": "b3", "basis": "epoch 5"}


def test_pins_are_listed_and_taken_back(rhizome: Rhizome, api: Any) -> None:
    api.answer("GET /api/rhizome/groups", [{**GROUP, "pinned": "b3"}])
    listed = rhizome("group", "list", "--http", api.address).stdout
    assert "group 2 is pinned to b3" in listed
    line = "POST /api/rhizome/groups/2/unpin"
    api.answer(line, {**PREVIEW, "done": "group 2 is no longer pinned"})
    done = rhizome("group", "unpin", "2", "--http", api.address, "--yes")
    assert done.stdout.endswith("group 2 is no longer pinned\n")
    assert documents(api, line) == [{"preview": True}, {"basis": "epoch 5"}]


def test_group_is_a_number(rhizome: Rhizome, api: Any) -> None:
    assert rhizome("group", "inspect", "two", "--http", api.address).exit_code == 2


# --- drain

DRAIN = "POST /api/rhizome/brokers/b2/drain"


def cluster(**row: object) -> dict[str, Any]:
    broker = {"name": "b2", "draining": True, "homes": 0, "stuck": 0, "copies": 0}
    return {"brokers": [{"name": "b1"}, {**broker, "connections": 0, **row}]}


def test_drain_returns_when_the_broker_is_empty(rhizome: Rhizome, api: Any) -> None:
    api.answer(DRAIN, {**PREVIEW, "done": "b2 is being drained"})
    api.answer("GET /api/rhizome/cluster", cluster(homes=1, stuck=1))
    result = rhizome("broker", "drain", "b2", "--grace", "5s", "--yes", "--http", api.address)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.endswith("b2 is being drained\nb2 is empty: stop it\n")
    assert documents(api, DRAIN) == [
        {"grace_ms": 5_000, "preview": True},
        {"grace_ms": 5_000, "basis": "epoch 5"},
    ]


def test_drain_tells_programs_all_in_one_document(rhizome: Rhizome, api: Any) -> None:
    api.answer(DRAIN, {**PREVIEW, "done": "b2 is being drained"})
    api.answer("GET /api/rhizome/cluster", cluster())
    arguments = ("broker", "drain", "b2", "--json", "--http", api.address)
    asked = rhizome(*arguments)
    assert (asked.exit_code, api.requests) == (2, [])
    assert "--yes or --dry-run" in asked.stderr
    shown = json.loads(rhizome(*arguments, "--dry-run").stdout)
    assert shown == {"steps": PREVIEW["steps"], "warnings": PREVIEW["warnings"], "done": None}
    done = json.loads(rhizome(*arguments, "--yes").stdout)
    assert done == {**shown, "done": "b2 is empty: stop it"}


def test_drain_tells_what_is_left(
    rhizome: Rhizome, api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain_progress, "PATIENCE_S", -60.0)
    api.answer(DRAIN, {**PREVIEW, "done": "b2 is being drained"})
    api.answer("GET /api/rhizome/cluster", cluster(homes=2, copies=1, connections=7))
    result = rhizome("broker", "drain", "b2", "--grace", "1s", "--yes", "--http", api.address)
    assert result.exit_code == 1
    assert "b2 still has 2 homes, 1 copy, 7 connections\n" in result.stdout
    assert "goes on being drained" in result.stderr


def test_drain_does_not_wait_if_told_so(rhizome: Rhizome, api: Any) -> None:
    api.answer(DRAIN, {**PREVIEW, "done": "b2 is being drained"})
    result = rhizome("broker", "drain", "b2", "--no-wait", "--yes", "--http", api.address)
    assert result.exit_code == 0
    assert documents(api, "GET /api/rhizome/cluster") == []
    shown = rhizome("broker", "drain", "b2", "--dry-run", "--http", api.address)
    assert shown.exit_code == 0
    assert len(documents(api, DRAIN)) == 3


def test_drain_that_somebody_else_ended_is_told(rhizome: Rhizome, api: Any) -> None:
    api.answer(DRAIN, {**PREVIEW, "done": "b2 is being drained"})
    api.answer("GET /api/rhizome/cluster", cluster(draining=False))
    result = rhizome("broker", "drain", "b2", "--yes", "--http", api.address)
    assert result.stderr == "error: b2 is not drained any more: somebody has undrained it\n"


def test_grace_needs_a_unit(rhizome: Rhizome, api: Any) -> None:
    result = rhizome("broker", "drain", "b2", "--grace", "60", "--http", api.address)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: --grace: ")


def test_undrain_is_shown_first_too(rhizome: Rhizome, api: Any) -> None:
    line = "POST /api/rhizome/brokers/b2/undrain"
    api.answer(line, {**PREVIEW, "done": "b2 is not drained any more"})
    result = rhizome("broker", "undrain", "b2", "--yes", "--http", api.address)
    assert result.stdout.endswith("b2 is not drained any more\n")
    assert documents(api, line) == [{"preview": True}, {"basis": "epoch 5"}]
