"""/api/rhizome/groups and what people order about homes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from rhizome.management.cluster_view import Change, CopyInfo, StandbyInfo
from rhizome.management.peers.peer_requests import PeerRequest, PeerResponse, PeerUnreachable
from tests.unit.management.conftest import Api, Core
from tests.unit.management.rhizome_api.test_cluster_admin import FakeControl, FakeView, document

STANDBY = StandbyInfo("b2", "following", 2, 100, 0, 50)
OWN = CopyInfo("b1", "a1", "home", 2, 90, True, (STANDBY,))
OTHER = {
    "broker": "b2",
    "incarnation": "a2",
    "role": "standby",
    "epoch": 2,
    "index": 88,
    "usable": True,
    "of_the_next_release": 1,
}


class Colleagues:
    """b2 answers, b3 doesn't."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def names(self) -> list[str]:
        return ["b2", "b3"]

    def home_of(self, queue: object) -> str:
        return ""

    def links(self) -> list[dict[str, object]]:
        return []

    async def ask(self, broker: str, question: PeerRequest, seconds: float) -> PeerResponse:
        self.asked.append(question.target)
        if broker == "b3":
            raise PeerUnreachable("b3 is silent")
        return PeerResponse(200, "application/json", json.dumps(OTHER).encode())


@pytest.fixture
def control(core: Core) -> FakeControl:
    fake = FakeControl()
    view = FakeView(document())
    view.copies[4] = OWN
    core.context.view = view
    core.context.control = fake
    core.context.others = Colleagues()
    return fake


def test_groups_are_listed(api: Api, control: FakeControl) -> None:
    rows = api.get("rhizome", "groups").json
    assert [(row["id"], row["home"], row["copies"]) for row in rows] == [(4, "b1", 2)]
    assert rows[0]["in_sync"] == [{"broker": "b2", "incarnation": "a2", "copy": "whole", "lag": 3}]


def test_group_is_shown_with_what_each_broker_has_of_it(api: Api, control: FakeControl) -> None:
    shown = api.get("rhizome", "groups", "4").json
    assert (shown["id"], shown["silent"]) == (4, ["b3"])
    held = [(each["broker"], each["role"], each["epoch"], each["index"]) for each in shown["held"]]
    assert held == [("b1", "home", 2, 90), ("b2", "standby", 2, 88)]
    sent = [(each["broker"], each["backfill_bytes"]) for each in shown["held"][0]["standbys"]]
    assert sent == [("b2", 50)]


def test_broker_tells_what_it_has_itself(api: Api, control: FakeControl) -> None:
    assert api.get("rhizome", "groups", "4", "own").json["index"] == 90
    assert api.get("rhizome", "groups", "9", "own").json is None


@pytest.mark.parametrize("name", ["9", "four", "1e3", "-1", "99999999999999"])
def test_unknown_group_is_not_found(api: Api, control: FakeControl, name: str) -> None:
    assert api.get("rhizome", "groups", name).status == 404


COPIES = (OWN, CopyInfo("b2", "a2", "standby", 2, 88, True))


@pytest.mark.parametrize(
    ("path", "asked", "change"),
    [
        (("groups", "4", "move"), {"broker": "b2"}, Change("move-home", "b2", 4)),
        (("groups", "4", "unpin"), {}, Change("unpin", "", 4)),
        (
            ("groups", "4", "force-home"),
            {"broker": "b3"},
            Change("force-home", "b3", 4, copies=COPIES),
        ),
        (
            ("brokers", "b2", "drain"),
            {"grace_ms": 5_000},
            Change("drain", "b2", grace_ms=5_000),
        ),
        (("brokers", "b2", "drain"), {}, Change("drain", "b2", grace_ms=60_000)),
        (("brokers", "b2", "undrain"), {}, Change("undrain", "b2")),
        (
            ("cluster", "settings"),
            {"copies": 3, "placement": "root"},
            Change("settings", settings=(("copies", 3), ("placement", "root"))),
        ),
    ],
)
def test_change_is_shown_and_then_made(
    api: Api, control: FakeControl, path: tuple[str, ...], asked: dict[str, Any], change: Change
) -> None:
    shown = api.post("rhizome", *path, preview=True, **asked).json
    assert (shown["change"], shown["broker"]) == (change.kind, change.broker)
    assert shown["group"] == (change.group or None)
    assert control.made == []
    assert api.post("rhizome", *path, **asked).status == 400, "not without having been shown"
    made = api.post("rhizome", *path, basis=shown["basis"], **asked)
    assert made.json == {"done": "it is done"}
    assert control.made == [change]


def test_settings_must_be_named(api: Api, control: FakeControl) -> None:
    assert api.post("rhizome", "cluster", "settings", preview=True, copy=3).status == 400


def test_grace_must_make_sense(api: Api, control: FakeControl) -> None:
    refused = api.post("rhizome", "brokers", "b2", "drain", preview=True, grace_ms=-1)
    assert refused.status == 400


def test_only_administrators_order(as_user: Callable[[str], Api], control: FakeControl) -> None:
    assert as_user("manager").get("rhizome", "groups").status == 200
    for path in (("groups", "4", "force-home"), ("brokers", "b2", "drain")):
        refused = as_user("maker").post("rhizome", *path, preview=True, broker="b2")
        assert refused.status == 401


def test_lone_broker_has_one_group_that_stays(api: Api) -> None:
    rows = api.get("rhizome", "groups").json
    assert [row["local"] for row in rows] == [True]
    shown = api.post("rhizome", "brokers", "b1", "drain", preview=True).json
    assert "this broker is lone" in shown["refusal"]
