"""`rhizome doctor`: each thing that can be wrong is told, with what to do about it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import Result

from rhizome.cli.commands.cluster.doctor_checks import CHECKS, diagnose
from rhizome.cli.output.printer import OK, PROBLEM, WARNING

Rhizome = Callable[..., Result]
NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000


def facts() -> dict[str, Any]:
    return {
        "version": "1.0",
        "clock_ms": NOW_MS,
        "uptime_ms": 1000,
        "alarm": "",
        "disk_free_bytes": 100 << 30,
        "disk_free_min_bytes": 256 << 20,
        "memory_bytes": 1 << 27,
        "memory_max_bytes": 1 << 30,
        "files_open": 20,
        "files_max": 65536,
        "connections": 3,
        "connections_max": 100_000,
        "certificates": [],
        "stalls": [],
    }


def broker(name: str) -> dict[str, Any]:
    return {"name": name, "status": "active"}


def healthy() -> dict[str, Any]:
    member = {"broker": "b2", "copy": "whole", "lag": 0}
    group = {"id": 1, "home": "b1", "queues": 2, "in_sync": [member], "copies": 2}
    return {
        "seen_by": "b1",
        "cluster": {"root": "b1", "quorum": {"defined": 3, "active": 3, "needed": 2}},
        "brokers": [broker("b1"), broker("b2"), broker("b3")],
        "groups": [{**group, "min_copies": 1, "local": False, "unavailable": ""}],
        "asked_ms": NOW_MS - 10,
        "answered_ms": NOW_MS + 10,
        "facts": {"b1": facts(), "b2": facts(), "b3": facts()},
        "silent": [],
        "stalls": [],
    }


def no_root(d: Any) -> None:
    d["cluster"]["root"] = None


def broker_missing(d: Any) -> None:
    d["cluster"]["quorum"]["active"] = 2


def two_primaries(d: Any) -> None:
    d["cluster"]["quorum"] = {"defined": 2, "active": 2, "needed": 1}


def stopped(d: Any) -> None:
    d["brokers"][1]["status"] = "stopped"


def isolated(d: Any) -> None:
    d["brokers"][1]["status"] = "isolated"


def silent(d: Any) -> None:
    d["silent"] = ["b2"]


def catching_up(d: Any) -> None:
    d["brokers"][1]["status"] = "catching-up"


def no_home(d: Any) -> None:
    d["groups"][0]["home"] = None


def copy_missing(d: Any) -> None:
    d["groups"][0]["in_sync"] = []


def below_min_copies(d: Any) -> None:
    d["groups"][0] |= {"in_sync": [], "min_copies": 2}


def stalled_copy(d: Any) -> None:
    stall = {"broker": "b2", "kind": "copy", "what": "confirms of group 1", "why": "b3 is silent"}
    d["facts"]["b2"]["stalls"] = [stall]


def transaction_in_doubt(d: Any) -> None:
    stall = {"broker": "b2", "kind": "transaction", "what": "transaction a.1", "why": "it waits"}
    d["facts"]["b2"]["stalls"] = [stall]


def salvaged(d: Any) -> None:
    saved = {"name": "group-1-epoch-1", "group": 1, "messages": 4, "saved_ms": NOW_MS}
    d["facts"]["b2"]["salvaged"] = [saved]


def damaged(d: Any) -> None:
    d["facts"]["b2"]["damaged"] = [
        {"vhost": "/", "queue": "orders", "index": 17, "reason": "no valid record"}
    ]


def damaged_copy(d: Any) -> None:
    row = {"vhost": "/", "queue": "orders", "index": 18, "reason": "no valid record"}
    d["facts"]["b2"]["damaged_copies"] = [row]


def fault(d: Any) -> None:
    row = {"kind": "queue", "count": 3, "where": "queue 'orders'", "text": "ValueError: odd"}
    d["facts"]["b2"]["faults"] = [row]


def disabled(d: Any) -> None:
    d["facts"]["b2"]["disabled"] = "this broker serves nobody until it is started again"


def state_failed(d: Any) -> None:
    d["facts"]["b2"]["disabled"] = "state-failed: entry 7 of the cluster's log could not be applied"


def vhost_nearly_full(d: Any) -> None:
    full = {"name": "tenant", "state_bytes": 95, "state_bytes_max": 100}
    for facts in d["facts"].values():
        facts["full_vhosts"] = [full]


def vhost_full(d: Any) -> None:
    vhost_nearly_full(d)
    for facts in d["facts"].values():
        facts["full_vhosts"][0]["state_bytes"] = 300


def stopped_unsynced(d: Any) -> None:
    d["facts"]["b2"] |= {"stopped_unsynced": True, "torn_bytes": 2048}


def unseen(d: Any) -> None:
    d["facts"]["b2"]["unseen_groups"] = [1]


def slow_turns(work: int, waited: int, longest_ms: int) -> Callable[[Any], None]:
    def change(d: Any) -> None:
        turn = {
            "number": 1,
            "ended_ms": NOW_MS,
            "lasted_ms": longest_ms,
            "ran_ms": longest_ms,
            "cause": "work",
            "what": "HTTP GET /api/queues",
            "where": "management/http/json_responses.py:214 matching < broker/broker.py:9 listed",
        }
        d["facts"]["b2"]["slow_turns"] = {
            "limit_ms": 100,
            "work": work,
            "waited": waited,
            "longest_ms": longest_ms,
            "longest_recently_ms": 0,
            "latest": [turn] * work,
        }

    return change


def alarm(d: Any) -> None:
    d["facts"]["b2"]["alarm"] = "low on disk"


def disk_low(d: Any) -> None:
    d["facts"]["b2"]["disk_free_bytes"] = 300 << 20


def disk_full(d: Any) -> None:
    d["facts"]["b2"]["disk_free_bytes"] = 200 << 20


def clock_ahead(d: Any) -> None:
    d["facts"]["b2"]["clock_ms"] += 5_000


def clock_far_behind(d: Any) -> None:
    d["facts"]["b2"]["clock_ms"] -= 60_000


def files_full(d: Any) -> None:
    d["facts"]["b2"]["files_open"] = 60_000


def few_files(d: Any) -> None:
    d["facts"]["b2"]["files_max"] = 1024


def many_connections(d: Any) -> None:
    d["facts"]["b2"]["connections"] = 90_000


def certificate(ends_ms: int | None) -> Callable[[Any], None]:
    def wrong(d: Any) -> None:
        row = {"file": "b2.pem", "ends_ms": ends_ms, "error": "no such file"}
        d["facts"]["b2"]["certificates"] = [row]

    return wrong


def versions(d: Any) -> None:
    d["facts"]["b2"]["version"] = "1.1"


def faulty_pattern(d: Any) -> None:
    fault = "pattern '(a)\\1' refers back with \\1"
    row = {"kind": "policy", "vhost": "v", "name": "twice", "exchange": "", "fault": fault}
    d["facts"]["b1"]["faulty_patterns"] = d["facts"]["b2"]["faulty_patterns"] = [row]


def faulty_permission(d: Any) -> None:
    row = {"kind": "permission", "vhost": "v", "name": "app", "exchange": "", "fault": "no good"}
    d["facts"]["b2"]["faulty_patterns"] = [row]


def troubled_home(why: str) -> Callable[[Any], None]:
    def wrong(d: Any) -> None:
        d["facts"]["b2"]["troubled_homes"] = [f"{why}: group 3 moves to b1"]

    return wrong


def reader_at_risk(d: Any) -> None:
    row = {"vhost": "/", "stream": "events", "reader": "archive", "unread": 30}
    d["facts"]["b2"]["readers_at_risk"] = [row]


def log(lost: int, stuck_ms: int) -> Callable[[Any], None]:
    def wrong(d: Any) -> None:
        row = {"log": "audit", "lost_lines": lost, "waiting_lines": 7, "stuck_ms": stuck_ms}
        d["facts"]["b2"]["logs"] = [row]

    return wrong


def issuer(**changes: Any) -> Callable[[Any], None]:
    """An issuer of access tokens, as broker b2 sees it."""
    row = {"name": "a", "url": "https://a.example", "keys_count": 2, "trouble": "", "left_out": []}

    def wrong(d: Any) -> None:
        d["facts"]["b2"]["issuers"] = [{**row, "age_ms": 90_000, **changes}]

    return wrong


def test_a_healthy_cluster_passes_every_check() -> None:
    found = diagnose(healthy())
    assert {each.level for each in found} == {OK}
    assert [each.check for each in found] == list(CHECKS)


@pytest.mark.parametrize(
    ("wrong", "level", "check", "told"),
    [
        (no_root, PROBLEM, "quorum", "no root"),
        (broker_missing, WARNING, "quorum", "2 of 3"),
        (two_primaries, WARNING, "quorum", "two primaries"),
        (stopped, PROBLEM, "brokers", "stopped"),
        (isolated, PROBLEM, "brokers", "isolated"),
        (silent, PROBLEM, "brokers", "doesn't answer"),
        (catching_up, WARNING, "brokers", "catching-up"),
        (no_home, PROBLEM, "groups", "unavailable"),
        (copy_missing, WARNING, "groups", "1 of 2 copies"),
        (below_min_copies, PROBLEM, "groups", "1 of 2 copies"),
        (stalled_copy, WARNING, "stalls", "b3 is silent"),
        (alarm, PROBLEM, "alarms", "low on disk"),
        (transaction_in_doubt, WARNING, "stalls", "transaction a.1: it waits"),
        (salvaged, PROBLEM, "salvage", "salvage/group-1-epoch-1"),
        (unseen, WARNING, "salvage", "from before its home was forced"),
        (vhost_nearly_full, WARNING, "state", "vhost 'tenant' has 95 of 100 bytes"),
        (vhost_full, PROBLEM, "state", "parameters that add to it are refused"),
        (stopped_unsynced, WARNING, "flush", "a torn end of 2.0 KiB was cut off"),
        (damaged, PROBLEM, "damage", "message 17 of queue 'orders' in vhost '/'"),
        (damaged_copy, WARNING, "damage", "in the copy kept there"),
        (fault, PROBLEM, "faults", "3 faults of kind 'queue'"),
        (disabled, PROBLEM, "faults", "serves nobody"),
        (state_failed, PROBLEM, "faults", "state-failed: entry 7"),
        (disk_low, WARNING, "disk", "300.0 MiB"),
        (disk_full, PROBLEM, "disk", "200.0 MiB"),
        (clock_ahead, WARNING, "clocks", "5.0 s ahead of"),
        (clock_far_behind, PROBLEM, "clocks", "60.0 s behind"),
        (files_full, PROBLEM, "file limits", "60000 of 65536"),
        (few_files, WARNING, "file limits", "1024 files"),
        (many_connections, WARNING, "file limits", "90000 of 100000"),
        (certificate(NOW_MS + 20 * DAY_MS), WARNING, "certificates", "in 20 days"),
        (certificate(NOW_MS + 2 * DAY_MS), PROBLEM, "certificates", "in 2 days"),
        (certificate(NOW_MS - DAY_MS), PROBLEM, "certificates", "has ended"),
        (certificate(None), PROBLEM, "certificates", "no such file"),
        (versions, WARNING, "versions", "b2 1.1"),
        (faulty_pattern, WARNING, "patterns", "the policy 'twice' in vhost 'v' fits nothing"),
        (faulty_permission, WARNING, "patterns", "the permission of user 'app' in vhost 'v'"),
        (slow_turns(2, 0, 412), WARNING, "slow turns", "2 turns held everybody up"),
        (
            slow_turns(1, 0, 68_080),
            PROBLEM,
            "slow turns",
            "68080 ms: HTTP GET /api/queues at management/http/json_responses.py:214 matching",
        ),
        (troubled_home("b2 and b3 can't reach each other"), PROBLEM, "homes", "moves to b1"),
        (troubled_home("the disk of b2 is full"), PROBLEM, "homes", "moves to b1"),
        (reader_at_risk, WARNING, "readers", "about to drop 30 messages of stream 'events'"),
        (log(5, 0), PROBLEM, "logs", "5 lines of its audit log are lost"),
        (log(0, 9_000), PROBLEM, "logs", "has taken 9 s already; 7 lines wait"),
        (slow_turns(0, 3, 900), WARNING, "slow turns", "3 times it stood still"),
        (
            issuer(keys_count=0, age_ms=None, trouble="it is away"),
            PROBLEM,
            "token keys",
            "'a' (https://a.example) are not there, and its tokens are refused: it is away",
        ),
        (issuer(keys_count=0), PROBLEM, "token keys", "it publishes none that can be used"),
        (issuer(trouble="it is away"), WARNING, "token keys", "those of 90 s ago are used"),
        (issuer(left_out=["key 2: no"]), WARNING, "token keys", "is not used: key 2: no"),
    ],
)
def test_what_is_wrong_is_told(wrong: Any, level: str, check: str, told: str) -> None:
    document = healthy()
    wrong(document)
    bad = [each for each in diagnose(document) if each.level != OK]
    assert [(each.level, each.check) for each in bad] == [(level, check)]
    assert told in bad[0].what
    assert bad[0].remedy


def test_an_issuer_whose_keys_are_there_is_fine() -> None:
    document = healthy()
    issuer()(document)
    assert {each.level for each in diagnose(document)} == {OK}


def test_a_problem_makes_the_exit_code_1_and_a_warning_does_not(rhizome: Rhizome, api: Any) -> None:
    document = healthy()
    versions(document)
    api.answer("GET /api/rhizome/checkup", copy.deepcopy(document))
    assert rhizome("doctor", "--http", api.address).exit_code == 0
    stopped(document)
    api.answer("GET /api/rhizome/checkup", document)
    result = rhizome("doctor", "--http", api.address)
    assert result.exit_code == 1
    assert "PROBLEM brokers" in result.stdout
    assert "1 problem, 1 warning" in result.stdout
    rows = json.loads(rhizome("doctor", "--http", api.address, "--json").stdout)
    assert {"level", "check", "broker", "what", "remedy"} == set(rows[0])
