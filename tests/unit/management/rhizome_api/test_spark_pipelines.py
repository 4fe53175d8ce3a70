"""/api/rhizome/pipelines."""

from __future__ import annotations

import asyncio
from typing import Any

from rhizome.management.api_context import PIPELINES_MAX
from tests.unit.management.conftest import Api, Core
from tests.unit.management.peers.test_cluster_wide_queries import FakeOthers

FLOW = {
    "name": "archive",
    "state": "running",
    "batch": 7,
    "rows": 1000,
    "rows_per_second": 99.5,
    "lag": {"orders": 5},
    "lag_total": 5,
}


def report(api: Api, name: str, **more: Any) -> Any:
    where = ("rhizome", "pipelines", "/", name, "report")
    return api.post(*where, **{"state": "running", "flows": [FLOW], **more})


def test_report_is_shown_until_the_service_is_silent_for_long(api: Api, core: Core) -> None:
    assert report(api, "orders", host="h1").status == 204
    (row,) = api.get("rhizome", "pipelines").json
    assert (row["name"], row["vhost"], row["host"]) == ("orders", "/", "h1")
    assert row["state"] == "running"
    (flow,) = row["flows"]
    assert (flow["name"], flow["batch"], flow["lag"]) == ("archive", 7, {"orders": 5})
    assert flow["restarts"] == 0
    assert api.get("rhizome", "pipelines", "/").json == [row]
    core.now_ms += 61_000
    assert api.get("rhizome", "pipelines").json[0]["state"] == "silent"
    core.now_ms += 24 * 3_600_000
    assert api.get("rhizome", "pipelines").json == []


def test_stopped_service_is_not_called_silent(api: Api, core: Core) -> None:
    report(api, "orders", state="stopped")
    core.now_ms += 3_600_000
    assert api.get("rhizome", "pipelines").json[0]["state"] == "stopped"


def test_service_that_turned_to_another_broker_is_shown_once_as_it_is_now(
    api: Api, core: Core, runner: asyncio.Runner
) -> None:
    other = Core(runner, name="b2")
    core.context.others = FakeOthers(other)
    report(api, "orders", host="h1")
    report(api, "left", state="stopped")
    for each in (core, other):
        each.now_ms += 61_000
    newer = {**FLOW, "rows": 2000}
    assert report(Api(other), "orders", host="h1", flows=[newer]).status == 204
    left, orders = api.get("rhizome", "pipelines").json
    assert (left["name"], left["node"]) == ("left", core.context.name)
    assert (orders["node"], orders["state"]) == ("b2", "running")
    assert orders["flows"][0]["rows"] == 2000
    (named,) = api.get("rhizome", "pipelines", query="page=1&name=orders").json["items"]
    assert named["node"] == "b2"
    core.context.others.silent = True
    answer = api.get("rhizome", "pipelines")
    assert answer.headers["x-rhizome-silent"] == "b2"
    assert [row["state"] for row in answer.json] == ["stopped", "silent"]


def test_report_that_is_wrong_is_refused(api: Api) -> None:
    for wrong in (
        {"state": "dancing"},
        {"flows": [{**FLOW, "state": "dancing"}]},
        {"flows": [{**FLOW, "rows": -1}]},
        {"flows": [{**FLOW, "rows_per_second": "fast"}]},
        {"flows": [{**FLOW, "lag": {"orders": "much"}}]},
        {"flows": [{**FLOW, "lag": dict.fromkeys(map(str, range(101)), 1)}]},
        {"flows": [FLOW] * 65},
        {"host": "h" * 300},
    ):
        assert report(api, "orders", **wrong).status == 400, wrong
    assert api.get("rhizome", "pipelines").json == []


def test_one_vhost_does_not_keep_the_pipelines_of_others_out(api: Api) -> None:
    assert api.put("vhosts", "other").status == 201
    for number in range(PIPELINES_MAX):
        assert report(api, f"p{number}").status == 204
    where = ("rhizome", "pipelines", "other")
    for name in ("one", "two"):
        assert api.post(*where, name, "report", state="running", flows=[]).status == 204
    assert [row["name"] for row in api.get(*where).json] == ["one", "two"]
    assert report(api, "p0").status == 409  # it made room, and its vhost still has most
    assert len(api.get("rhizome", "pipelines").json) == PIPELINES_MAX


def test_number_of_pipelines_has_a_limit(api: Api, core: Core) -> None:
    for number in range(PIPELINES_MAX):
        assert report(api, f"p{number}").status == 204
    assert report(api, "more").status == 409
    core.now_ms += 61_000
    assert report(api, "more").status == 204  # in the place of one that is silent
    assert len(api.get("rhizome", "pipelines").json) == PIPELINES_MAX
