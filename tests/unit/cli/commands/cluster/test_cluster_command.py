"""`status`, `cluster` and `broker`: what they show, and that nothing is done that was not shown."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from rhizome.journal.files import DirectoryLock

Rhizome = Callable[..., Result]

CLUSTER: dict[str, Any] = {
    "seen_by": "b2",
    "cluster": {
        "uuid": "c0ffee",
        "name": "shop",
        "term": 7,
        "root": "b1",
        "quorum": {"defined": 3, "active": 2, "needed": 2},
        "notes": ["b3 shares its machine with b1 and doesn't vote"],
    },
    "brokers": [
        {
            "name": "b1",
            "role": "primary",
            "status": "active",
            "seniority": 2,
            "machine": "m1",
            "addresses": ["amqp://h1:5672", "http://h1:15672"],
            "connections": 12,
            "linked": True,
        },
        {
            "name": "s1",
            "role": "secondary",
            "status": "joining",
            "seniority": 0,
            "machine": "m2",
            "addresses": [],
            "connections": 0,
            "linked": False,
        },
    ],
    "groups": [
        {
            "id": 1,
            "home": "b1",
            "epoch": 3,
            "failover": ["b2", "b3"],
            "in_sync": [
                {"broker": "b2", "incarnation": "a2", "copy": "whole", "lag": 0},
                {"broker": "b3", "incarnation": "a3", "copy": "disk", "lag": None},
            ],
            "copies": 3,
            "queues": 4,
            "messages": 5,
        },
        {
            "id": 2,
            "home": None,
            "epoch": 1,
            "local": True,
            "unavailable": "its home b2 is down, and its queues are not replicated: start b2",
        },
        {"id": 3, "home": "b1", "epoch": 1, "copies": 1, "moving_to": "b2"},
    ],
    "failover_map": {"b1": [{"broker": "b2"}, {"broker": "b3"}]},
}
BROKER = {"name": "b2", "status": "ready", "memory_bytes": 2048, "store": {"kind": "journal"}}
SHOWN = """\
cluster     shop (c0ffee)
root        b1, term 7
quorum      2 of 3 primaries active, 2 needed
as seen by  b2
note        b3 shares its machine with b1 and doesn't vote

broker  role            status   seniority  machine  connections  linked  addresses
b1      primary (root)  active           2  m1                12  yes     amqp://h1:5672 http://h1:15672
s1      secondary       joining          -  m2                 0  no      -

group  home  epoch  failover  in sync       copies          queues  messages
    1  b1        3  b2 b3     b2 b3 (disk)  3                    4         5
    2  -         1  -         -             not replicated       -         -
    3  b1        1  -         -             1                    -         -
group 2 is UNAVAILABLE: its home b2 is down, and its queues are not replicated: start b2
group 3 moves to b2

if it fails  these take over, in order
b1           b2 b3
"""
VERDICT = """\
impaired: group 2 is unavailable (its home b2 is down, and its queues are not replicated: start b2)\
; s1 is joining
what to do: rhizome doctor

"""
SHORT = """\
cluster  shop
root     b1, term 7
quorum   2 of 3 primaries active, 2 needed
note     b3 shares its machine with b1 and doesn't vote

broker  role       status   linked  connections  homes  copies  address
b1      root       active   yes              12      -       -  amqp://h1:5672
s1      secondary  joining  no                0      -       -  -

group    home       copies            queues  messages
1        b1         3/3 b2 b3              4         5
2        -          not replicated         -         -  UNAVAILABLE
3        b1         1/1                    -         -  moves to b2
32770    b1         1/2                    -         -  lacks copies
streams  b1:1 b2:1  all of 2 streams       2        30

asked   b2, ready
memory  2.0 KiB
store   journal
"""
STREAM = {"copies": 1, "stream": True, "queues": 1, "messages": 15}
STREAMS = [
    {"id": 32768, "home": "b1", **STREAM},
    {"id": 32769, "home": "b2", **STREAM},
    {"id": 32770, "home": "b1", "copies": 2, "stream": True},
]
PREVIEW = {
    "change": "add-primary",
    "broker": "b4",
    "steps": ["b4 catches up", "b4 votes: 4 primaries, 3 elect a root"],
    "warnings": ["an even number of primaries"],
    "refusal": "",
    "basis": "term 7, membership 3",
}
PRIMARIES = "POST /api/rhizome/cluster/primaries"
SETTINGS = "POST /api/rhizome/cluster/settings"
FORCE = "POST /api/rhizome/cluster/force-root"


def test_cluster_status_shows_root_quorum_brokers_and_groups(rhizome: Rhizome, api: Any) -> None:
    api.answer("GET /api/rhizome/cluster", CLUSTER)
    assert rhizome("cluster", "status", "--http", api.address).stdout == SHOWN
    as_json = rhizome("cluster", "status", "--http", api.address, "--json")
    assert json.loads(as_json.stdout) == CLUSTER


def test_status_shows_the_cluster_and_the_broker_that_was_asked(rhizome: Rhizome, api: Any) -> None:
    document = {"broker": BROKER, **CLUSTER}
    api.answer("GET /api/rhizome/status", document)
    shown = rhizome("status", "--verbose", "--http", api.address).stdout
    assert shown == VERDICT + SHOWN + (
        "\nbroker        b2\nstatus        ready\n"
        "memory_bytes  2048 (2.0 KiB)\nstore.kind    journal\n"
    )
    assert json.loads(rhizome("status", "--http", api.address, "--json").stdout) == document


def test_status_begins_with_the_verdict_and_folds_streams(rhizome: Rhizome, api: Any) -> None:
    document = {"broker": BROKER, **CLUSTER, "groups": [*CLUSTER["groups"], *STREAMS]}
    api.answer("GET /api/rhizome/status", document)
    shown = rhizome("status", "--http", api.address).stdout
    verdict, _, rest = shown.partition("\nwhat to do: rhizome doctor\n\n")
    assert verdict.startswith("impaired: group 2 is unavailable")
    assert "; stream 32770 has 1 of 2 copies; " in verdict
    assert rest == SHORT
    assert max(map(len, rest.splitlines())) <= 80


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, "healthy: 1 broker, 1 group; all copies in sync"),
        ({"stopped": "b3"}, "degraded: b3 is stopped"),
        ({"copies": 2}, "degraded: group 1 has 1 of 2 copies"),
        ({"alarms": ["disk"]}, "degraded: b1 has an alarm (disk)"),
        ({"active": 1}, "impaired: no quorum (1 of 3 primaries active, 2 needed), changes are"),
        ({"root": None}, "impaired: no root is elected"),
    ],
)
def test_the_verdict_names_what_is_wrong(
    change: dict[str, Any], verdict: str, rhizome: Rhizome, api: Any
) -> None:
    quorum = {"defined": 3, "active": change.get("active", 3), "needed": 2}
    brokers = [{"name": "b1", "status": "active"}]
    if "stopped" in change:
        brokers.append({"name": change["stopped"], "status": "stopped"})
    document = {
        "cluster": {"name": "c", "root": change.get("root", "b1"), "quorum": quorum},
        "brokers": brokers,
        "groups": [{"id": 1, "home": "b1", "copies": change.get("copies", 1), "in_sync": []}],
        "broker": {"name": "b1", "alarms": change.get("alarms", [])},
    }
    api.answer("GET /api/rhizome/status", document)
    first = rhizome("status", "--http", api.address).stdout.splitlines()[0]
    assert first.startswith(verdict)


def test_missing_quorum_and_root_are_hard_to_overlook(rhizome: Rhizome, api: Any) -> None:
    document = copy.deepcopy(CLUSTER)
    document["cluster"]["root"] = None
    document["cluster"]["quorum"]["active"] = 1
    document["groups"] = []
    api.answer("GET /api/rhizome/cluster", document)
    shown = rhizome("cluster", "status", "--http", api.address).stdout
    assert "root        none\n" in shown
    assert "1 of 3 primaries active, 2 needed: NO QUORUM, changes are refused" in shown
    assert "no groups" in shown


def test_brokers_are_listed_as_text_and_json(rhizome: Rhizome, api: Any) -> None:
    api.answer("GET /api/rhizome/cluster", CLUSTER)
    lines = rhizome("broker", "list", "--http", api.address).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["broker", "b1", "s1"]
    as_json = rhizome("broker", "list", "--http", api.address, "--json")
    assert json.loads(as_json.stdout) == CLUSTER["brokers"]


# --- changes


def documents(api: Any, line: str) -> list[Any]:
    return [each.document for each in api.requests if f"{each.verb} {each.target}" == line]


@pytest.mark.parametrize(
    ("arguments", "line", "request_made"),
    [
        (["add-primary", "b4"], PRIMARIES, {"add": "b4"}),
        (["remove-primary", "b3"], PRIMARIES, {"remove": "b3"}),
        (["force-root"], FORCE, {}),
        (
            ["settings", "--copies", "3", "--min-copies", "2"],
            SETTINGS,
            {"copies": 3, "min_copies": 2},
        ),
        (["settings", "--placement", "root"], SETTINGS, {"placement": "root"}),
    ],
)
def test_change_is_shown_confirmed_and_made_on_its_basis(
    rhizome: Rhizome, api: Any, arguments: list[str], line: str, request_made: dict[str, object]
) -> None:
    api.answer(line, {**PREVIEW, "done": "b4 is a primary"})
    result = rhizome("cluster", *arguments, "--http", api.address, input="y\n")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith(
        "This will be done:\n"
        "  1. b4 catches up\n"
        "  2. b4 votes: 4 primaries, 3 elect a root\n"
        "  WARNING: an even number of primaries\n"
        "Do it?"
    )
    assert result.stdout.endswith("b4 is a primary\n")
    assert documents(api, line) == [
        {**request_made, "preview": True},
        {**request_made, "basis": "term 7, membership 3"},
    ]


@pytest.mark.parametrize("typed", ["n\n", ""])
def test_change_that_is_not_confirmed_is_not_made(rhizome: Rhizome, api: Any, typed: str) -> None:
    api.answer(PRIMARIES, PREVIEW)
    result = rhizome("cluster", "add-primary", "b4", "--http", api.address, input=typed)
    assert result.exit_code == 1
    assert "nothing was changed" in result.stderr
    assert len(documents(api, PRIMARIES)) == 1


def test_yes_does_not_ask_and_dry_run_does_not_do(rhizome: Rhizome, api: Any) -> None:
    api.answer(PRIMARIES, {**PREVIEW, "done": "b4 is a primary"})
    result = rhizome("cluster", "add-primary", "b4", "--dry-run", "--http", api.address)
    assert result.exit_code == 0
    assert len(documents(api, PRIMARIES)) == 1
    result = rhizome("cluster", "add-primary", "b4", "--yes", "--http", api.address)
    assert result.exit_code == 0
    assert "Do it?" not in result.stdout
    assert len(documents(api, PRIMARIES)) == 3


def test_change_that_is_refused_says_why(rhizome: Rhizome, api: Any) -> None:
    api.answer(FORCE, {**PREVIEW, "refusal": "b1 is the root, and has its quorum"})
    result = rhizome("cluster", "force-root", "--yes", "--http", api.address)
    assert result.exit_code == 1
    assert result.stderr == "error: this can't be done: b1 is the root, and has its quorum\n"
    assert len(documents(api, FORCE)) == 1


def test_settings_that_are_not_named_are_not_changed(rhizome: Rhizome, api: Any) -> None:
    assert "give --copies" in rhizome("cluster", "settings", "--http", api.address).stderr


# --- beginning anew


@pytest.fixture
def store(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    (directory / "journal").mkdir(parents=True)
    (directory / "store.json").write_text("{}")
    return directory


def test_rejoin_moves_the_whole_store_aside(rhizome: Rhizome, store: Path) -> None:
    result = rhizome("broker", "rejoin", "--set-aside", "--data", str(store), "--yes")
    assert result.exit_code == 0, result.stderr
    assert not store.exists()
    (aside,) = store.parent.iterdir()
    assert aside.name.startswith("data.set-aside-")
    assert (aside / "store.json").exists()
    assert str(aside) in result.stdout


def test_rejoin_leaves_a_running_brokers_store_alone(rhizome: Rhizome, store: Path) -> None:
    lock = DirectoryLock(store)
    result = rhizome("broker", "rejoin", "--set-aside", "--data", str(store), "--yes")
    lock.release()
    assert result.exit_code == 1
    assert "stop it first" in result.stderr
    assert (store / "store.json").exists()


def test_rejoin_asks_first_and_wants_a_store(rhizome: Rhizome, store: Path) -> None:
    data = ["--data", str(store)]
    assert "--set-aside" in rhizome("broker", "rejoin", *data, "--yes").stderr
    refused = rhizome("broker", "rejoin", "--set-aside", *data, input="n\n")
    assert refused.stderr == "error: nothing was changed\n"
    assert store.exists()
    other = rhizome("broker", "rejoin", "--set-aside", "--data", str(store / "journal"), "--yes")
    assert "is no broker's store" in other.stderr
