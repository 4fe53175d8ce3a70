"""/api/rhizome/cluster: the picture of a cluster, and changes shown before they are made."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from rhizome.management.cluster_view import (
    BrokerInfo,
    Change,
    ChangeRefused,
    ClusterDocument,
    ClusterInfo,
    CopyInfo,
    FailoverInfo,
    GroupInfo,
    MemberInfo,
    Preview,
    Quorum,
)
from rhizome.security.audit_log import Audit

Api = Any
Core = Any


def broker(name: str, role: str = "primary", status: str = "active") -> BrokerInfo:
    return BrokerInfo(name, role, status, 1, f"m-{name}", (f"amqp://{name}:5672",), 3, linked=True)


WHOLE = Quorum(3, 3, 2)


def document(
    quorum: Quorum = WHOLE, root: str | None = "b2", role: str = "primary"
) -> ClusterDocument:
    successor = FailoverInfo("b2", ("amqp://b2:5672",), "m-b2")
    return ClusterDocument(
        "b1",
        ClusterInfo("c0ffee", "shop", 7, root, quorum, ("b3 catches up",)),
        (broker("b1", role), broker("b2")),
        (
            GroupInfo(
                4,
                "b1",
                2,
                ("b2",),
                (MemberInfo("b2", "a2", "whole", 3),),
                5,
                6,
                2,
                1,
                origin="b1",
                incarnation="a1",
                version=3,
                parent=1,
                index=90,
            ),
        ),
        {"b1": (successor,)},
    )


class FakeView:
    def __init__(self, shown: ClusterDocument) -> None:
        self.shown = shown
        self.copies: dict[int, CopyInfo] = {}

    async def cluster_document(self) -> ClusterDocument:
        return self.shown

    def copy_of(self, group: int) -> CopyInfo | None:
        return self.copies.get(group)


class FakeControl:
    """Knows one basis; remembers what was done."""

    def __init__(self) -> None:
        self.basis = "term 7"
        self.made: list[Change] = []

    def preview(self, change: Change) -> Preview:
        return Preview(
            (f"{change.kind} {change.broker}".strip(),), ("mind the gap",), "", self.basis
        )

    async def execute(self, change: Change, basis: str) -> str:
        if basis != self.basis:
            raise ChangeRefused(f"things have changed since: {self.basis}, not {basis}")
        self.made.append(change)
        return "it is done"


@pytest.fixture
def control(core: Core) -> FakeControl:
    fake = FakeControl()
    core.context.view = FakeView(document())
    core.context.control = fake
    return fake


def test_lone_broker_is_a_cluster_of_one(api: Api) -> None:
    shown = api.get("rhizome", "cluster").json
    name = shown["seen_by"]
    assert shown["cluster"]["root"] == name
    assert shown["cluster"]["quorum"] == {"defined": 1, "active": 1, "needed": 1}
    assert [(each["name"], each["role"], each["status"]) for each in shown["brokers"]] == [
        (name, "primary", "active")
    ]
    assert [group["home"] for group in shown["groups"]] == [name]
    assert shown["failover_map"] == {}


def test_document_has_the_shape_that_status_promises(api: Api, control: FakeControl) -> None:
    shown = api.get("rhizome", "cluster").json
    assert shown == {
        "seen_by": "b1",
        "cluster": {
            "uuid": "c0ffee",
            "name": "shop",
            "term": 7,
            "root": "b2",
            "quorum": {"defined": 3, "active": 3, "needed": 2},
            "notes": ["b3 catches up"],
        },
        "brokers": [
            {
                "name": name,
                "role": "primary",
                "status": "active",
                "seniority": 1,
                "machine": f"m-{name}",
                "addresses": [f"amqp://{name}:5672"],
                "connections": 3,
                "linked": True,
                "draining": False,
                "homes": 0,
                "stuck": 0,
                "copies": 0,
            }
            for name in ("b1", "b2")
        ],
        "groups": [
            {
                "id": 4,
                "home": "b1",
                "epoch": 2,
                "failover": ["b2"],
                "in_sync": [{"broker": "b2", "incarnation": "a2", "copy": "whole", "lag": 3}],
                "queues": 5,
                "messages": 6,
                "copies": 2,
                "min_copies": 1,
                "local": False,
                "origin": "b1",
                "incarnation": "a1",
                "version": 3,
                "parent": 1,
                "moving_to": "",
                "unavailable": "",
                "index": 90,
                "stream": False,
                "pinned": "",
            }
        ],
        "failover_map": {
            "b1": [{"broker": "b2", "addresses": ["amqp://b2:5672"], "machine": "m-b2"}]
        },
    }
    status = api.get("rhizome", "status").json
    assert {key: status[key] for key in shown} == shown


@pytest.mark.parametrize(
    ("path", "asked", "change"),
    [
        (["force-root"], {}, Change("force-root")),
        (["primaries"], {"add": "b4"}, Change("add-primary", "b4")),
        (["primaries"], {"remove": "b3"}, Change("remove-primary", "b3")),
    ],
)
def test_change_is_shown_and_then_made_on_the_same_basis(
    api: Api, control: FakeControl, path: list[str], asked: dict[str, str], change: Change
) -> None:
    shown = api.post("rhizome", "cluster", *path, preview=True, **asked).json
    assert shown == {
        "change": change.kind,
        "broker": change.broker,
        "group": None,
        "steps": [f"{change.kind} {change.broker}".strip()],
        "warnings": ["mind the gap"],
        "refusal": "",
        "basis": "term 7",
    }
    assert control.made == [], "a preview changes nothing"
    made = api.post("rhizome", "cluster", *path, basis=shown["basis"], **asked)
    assert made.json == {"done": "it is done"}
    assert control.made == [change]


def test_change_on_an_outdated_basis_is_refused(api: Api, control: FakeControl) -> None:
    refused = api.post("rhizome", "cluster", "force-root", basis="term 6")
    assert (refused.status, refused.json["error"]) == (409, "conflict")
    assert "things have changed since" in refused.reason
    assert control.made == []


def test_the_audit_log_has_what_was_done_and_not_what_was_shown(
    core: Core, api: Api, control: FakeControl
) -> None:
    lines: list[str] = []
    core.context.audit = Audit("rhizome", lines.append)
    shown = api.post("rhizome", "brokers", "b2", "drain", preview=True).json
    assert [line for line in lines if "drain" in line] == []
    api.post("rhizome", "brokers", "b2", "drain", basis=shown["basis"])
    (line,) = [line for line in lines if "drain" in line]
    assert json.loads(line)["what"] == "POST /api/rhizome/brokers/b2/drain"


def test_change_without_a_preview_is_refused(api: Api, control: FakeControl) -> None:
    refused = api.post("rhizome", "cluster", "force-root")
    assert refused.status == 400
    assert "preview" in refused.reason
    assert control.made == []


@pytest.mark.parametrize("asked", [{}, {"add": "b4", "remove": "b3"}, {"add": 4}])
def test_change_of_primaries_names_one_broker(
    api: Api, control: FakeControl, asked: dict[str, Any]
) -> None:
    assert api.post("rhizome", "cluster", "primaries", preview=True, **asked).status == 400


def test_lone_broker_has_nothing_to_change(api: Api) -> None:
    shown = api.post("rhizome", "cluster", "primaries", add="b2", preview=True).json
    assert "this broker is lone" in shown["refusal"]
    refused = api.post("rhizome", "cluster", "primaries", add="b2", basis="")
    assert refused.status == 409
    assert "this broker is lone" in refused.reason


def test_only_administrators_change_and_managers_look(
    as_user: Callable[[str], Api], control: FakeControl
) -> None:
    assert as_user("manager").get("rhizome", "cluster").status == 200
    assert as_user("nobody").get("rhizome", "cluster").status == 401
    for path in ("force-root", "primaries"):
        for user in ("manager", "monitor", "maker"):
            refused = as_user(user).post("rhizome", "cluster", path, preview=True, add="b4")
            assert refused.status == 401
    assert control.made == []


@pytest.mark.parametrize(
    ("shown", "status", "said"),
    [
        (document(), 200, ""),
        (document(root="b1"), 200, ""),
        (document(Quorum(3, 2, 2)), 503, "without b1 1 of 3 primaries are left, and 2 are needed"),
        (document(Quorum(2, 2, 1), root="b1"), 503, "without b1 1 of 2"),
        (document(Quorum(2, 2, 1)), 200, ""),
        (document(Quorum(3, 2, 2), role="secondary"), 200, ""),
    ],
)
def test_quorum_check_fails_if_the_cluster_needs_this_broker(
    api: Api, core: Core, shown: ClusterDocument, status: int, said: str
) -> None:
    core.context.view = FakeView(shown)
    found = api.get("health", "checks", "node-is-quorum-critical")
    assert found.status == status
    assert said in found.json.get("reason", "")
