"""/api/rhizome/live: what is going on, as far as it is the caller's business."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rhizome.management.metrics.queue_history import History
from tests.unit.management.conftest import Api, Core, connect
from tests.unit.management.peers.test_cluster_wide_queries import FakeOthers

NOTHING = {"queues": 0, "consumers": 0, "ready": 0, "unacked": 0, "ready_bytes": 0}


def live(core: Core, user: str) -> Any:
    answer = Api(core, user).get("rhizome", "live", query="history=true")
    assert answer.status == 200
    return answer.json


@pytest.mark.parametrize(
    ("user", "queues", "ready"),
    [("guest", 2, 5), ("monitor", 2, 5), ("maker", 1, 2), ("manager", 1, 2), ("stranger", 0, 0)],
)
def test_who_does_not_monitor_sees_the_load_of_open_vhosts(
    two_vhosts: Core, user: str, queues: int, ready: int
) -> None:
    load = live(two_vhosts, user)["loads"]["rhizome"]
    assert (load["queues"], load["ready"]) == (queues, ready)
    assert load["history"]["ready"][-1:] == [ready]
    own = Api(two_vhosts, user).get("rhizome", "load").json
    assert (own["queues"], own["ready"]) == (queues, ready)


def test_rates_are_those_of_open_vhosts(two_vhosts: Core) -> None:
    rates = two_vhosts.context.rates
    rates.samples[0].at -= 100.0
    everything = live(two_vhosts, "monitor")["loads"]["rhizome"]["rates"]["published"]
    share = live(two_vhosts, "manager")["loads"]["rhizome"]["rates"]["published"]
    assert 0 < share < everything
    nothing = live(two_vhosts, "stranger")["loads"]["rhizome"]["rates"]
    assert nothing == {"published": 0.0, "delivered": 0.0, "acked": 0.0}


def test_what_is_in_a_group_is_told_to_who_monitors(two_vhosts: Core) -> None:
    (group,) = live(two_vhosts, "monitor")["groups"]
    assert (group["queues"], group["messages"]) == (2, 5)
    (group,) = live(two_vhosts, "manager")["groups"]
    assert (group["queues"], group["messages"]) == (None, None)
    assert group["home"] == "rhizome"


@pytest.mark.parametrize(("user", "connections"), [("monitor", 3), ("manager", 1), ("maker", 0)])
def test_who_does_not_monitor_sees_its_own_connections(
    core: Core, user: str, connections: int
) -> None:
    for number, owner in enumerate(("manager", "guest", "guest")):
        connect(core, number, owner)
    shown = live(core, user)
    load = shown["loads"]["rhizome"]
    assert (load["connections"], load["channels"]) == (connections, connections)
    assert [each["connections"] for each in shown["brokers"]] == [connections]


def test_a_user_without_a_vhost_sees_the_brokers_and_no_load(two_vhosts: Core) -> None:
    shown = live(two_vhosts, "stranger")
    assert [each["name"] for each in shown["brokers"]] == ["rhizome"]
    load = shown["loads"]["rhizome"]
    assert {name: load[name] for name in NOTHING} == NOTHING
    assert load["memory_bytes"] > 0


def test_other_brokers_tell_no_more_than_this_one(two_vhosts: Core, runner: asyncio.Runner) -> None:
    other = Core(runner, name="b2")
    Api(other).put("vhosts", "closed")
    Api(other).put("queues", "closed", "theirs")
    two_vhosts.context.others = FakeOthers(other)
    assert live(two_vhosts, "monitor")["loads"]["b2"]["queues"] == 1
    assert live(two_vhosts, "manager")["loads"]["b2"]["queues"] == 0


def test_histories_are_added_up_without_jumps() -> None:
    kept = History()
    for number, early in enumerate((1, 2, 4)):
        kept.begin(number * 5000)
        kept.add(1, (early, 0, early, 0, 0, 9), True)
        if number:
            kept.add(2, (10, 1, 1000 + number, 5, 5, 9), True)
    together = asyncio.run(kept.together([1, 2, 3]))
    assert together["times_ms"] == [0, 5000, 10000]
    assert together["ready"] == [1, 12, 14]
    assert together["unacked"] == [0, 1, 1]
    assert together["published"] == [1002, 1003, 1006]
    assert together["delivered"] == [5, 5, 5]
    assert asyncio.run(History().together([1]))["ready"] == []
