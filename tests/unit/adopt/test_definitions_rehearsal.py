"""What becomes of definitions, before anything is changed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from rhizome.adopt.definitions_rehearsal import (
    POLICY_SETTINGS,
    Outcome,
    Rehearsal,
    rehearse,
)

FILE = Path(__file__).parents[1] / "management" / "rabbitmq_api" / "rabbitmq-3.10-definitions.json"
EMPTY: dict[str, Any] = {"vhosts": [{"name": "/"}], "users": [{"name": "guest", "tags": []}]}


def rehearsed(source: dict[str, Any], target: dict[str, Any] | None = None) -> Rehearsal:
    return asyncio.run(rehearse(source, target or EMPTY, "guest", 3))


def texts(found: Rehearsal, outcome: Outcome) -> list[str]:
    chosen = [each for each in found.findings if each.outcome is outcome]
    return [f"{each.kind} {each.name}: {each.why}" for each in chosen]


def queue(name: str, **arguments: Any) -> dict[str, Any]:
    return {
        "vhost": "/",
        "name": name,
        "durable": True,
        "auto_delete": False,
        "arguments": arguments,
    }


def policy(**definition: Any) -> dict[str, Any]:
    return {"vhost": "/", "name": "p", "pattern": ".*", "definition": definition}


def with_vhost(**sections: Any) -> dict[str, Any]:
    return {"vhosts": [{"name": "/"}], **sections}


def test_a_file_of_rabbitmq_comes_over_but_for_the_own_login() -> None:
    document = json.loads(FILE.read_text())
    found = rehearsed(document)
    assert found.refused == []
    for kind in ("vhosts", "topic_permissions", "policies", "exchanges", "queues", "bindings"):
        assert found.definitions[kind] or not document[kind], kind
        assert len(found.definitions[kind]) == len(document[kind])
    names = {each["name"] for each in document["users"]} - {"guest"}
    users = {each["name"]: each for each in found.definitions["users"]}
    assert set(users) == names
    assert all(each["password_hash"] for each in users.values())
    assert texts(found, Outcome.KEPT)[0].startswith("users guest: the adoption logs in with it")


def test_what_is_refused_is_left_out_with_all_that_needs_it_and_nothing_else() -> None:
    odd = {"vhost": "/", "name": "odd", "type": "x-odd", "durable": True, "arguments": {}}
    bound = {"vhost": "/", "source": "odd", "destination": "q", "destination_type": "queue"}
    source = with_vhost(
        exchanges=[odd], queues=[queue("q"), queue("bad", **{"x-max-length": -5})], bindings=[bound]
    )
    found = rehearsed(source)
    refused = texts(found, Outcome.REFUSED)
    assert [text.partition(":")[0] for text in refused] == [
        "exchanges odd",
        "queues bad",
        "bindings odd -> q ()",
    ]
    assert [each["name"] for each in found.definitions["queues"]] == ["q"]
    assert "exchanges" not in found.definitions


def test_what_is_there_in_another_form_stays_and_is_told() -> None:
    there = {**EMPTY, "queues": [queue("q"), queue("same")]}
    found = rehearsed(with_vhost(queues=[queue("q", **{"x-max-length": 5}), queue("same")]), there)
    assert found.refused == []
    (kept,) = texts(found, Outcome.KEPT)
    assert kept.startswith("queues q: ")
    assert "x-max-length" in kept


def test_mirrors_become_copies_and_their_other_settings_are_told() -> None:
    source = with_vhost(policies=[policy(**{"ha-mode": "all", "ha-sync-mode": "automatic"})])
    found = rehearsed(source)
    assert found.definitions["policies"][0]["definition"]["copies"] == 3
    assert "copies" not in source["policies"][0]["definition"], "the caller's document is changed"
    assert texts(found, Outcome.CHANGED) == [
        "policies p: policy 'p': ha-mode 'all' became 3 copies"
    ]
    assert texts(found, Outcome.IGNORED) == [
        "policies p: ha-sync-mode: queues have copies instead of mirrors"
    ]


@pytest.mark.parametrize("setting", POLICY_SETTINGS)
def test_every_setting_that_is_said_to_be_ignored_is_taken(setting: str) -> None:
    key = setting + "x" if setting.endswith("-") else setting
    found = rehearsed(with_vhost(policies=[policy(**{key: 1})]))
    assert found.refused == []
    assert len(texts(found, Outcome.IGNORED)) == 1


def test_shovels_and_federation_are_told_of() -> None:
    shovel = {"component": "shovel", "vhost": "/", "name": "s", "value": {"src-queue": "q"}}
    (told,) = texts(rehearsed(with_vhost(parameters=[shovel])), Outcome.IGNORED)
    assert "rhizome bridge --parameters" in told


def test_the_login_may_enter_vhosts_that_come_over_and_keeps_its_permissions_elsewhere() -> None:
    own = {"user": "guest", "vhost": "/", "configure": "^$", "write": "^$", "read": "^$"}
    theirs = {"user": "guest", "vhost": "v", "configure": "", "write": "", "read": ""}
    source = {"vhosts": [{"name": "/"}, {"name": "v"}], "permissions": [theirs]}
    found = rehearsed(source, {**EMPTY, "permissions": [own]})
    assert found.definitions["permissions"] == [
        {"user": "guest", "vhost": "v", "configure": ".*", "write": ".*", "read": ".*"}
    ]


def test_a_user_whose_hash_is_unknown_is_refused_with_its_permissions() -> None:
    user = {
        "name": "old",
        "password_hash": "AAAA",
        "hashing_algorithm": "rabbit_password_hashing_md5",
    }
    right = {"user": "old", "vhost": "/", "configure": "", "write": "", "read": ""}
    found = rehearsed(with_vhost(users=[user | {"tags": ""}], permissions=[right]))
    assert [each.kind for each in found.refused] == ["users", "permissions"]
