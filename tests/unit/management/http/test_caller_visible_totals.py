"""What users without the tag monitoring or administrator see of sums: the vhosts that they may
enter, and their own connections. Of vhost / there are two messages, of a closed one three."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from rhizome.management.cluster_view import ClusterDocument, CopyInfo, StandbyInfo
from tests.unit.management.conftest import Api, Core, connect
from tests.unit.management.peers.test_cluster_wide_queries import FakeOthers
from tests.unit.management.rhizome_api.test_cluster_admin import FakeView, document

ALL = ("guest", "monitor")
SOME = ("maker", "manager")
EXCHANGES = 8
"""Those that every vhost begins with."""


def shown(core: Core, user: str, *parts: str) -> Any:
    answer = Api(core, user).get(*parts)
    assert answer.status == 200
    return answer.json


def overview(core: Core, user: str) -> Any:
    return shown(core, user, "overview")


def parametrized(everything: int, some: int, nothing: int = 0) -> pytest.MarkDecorator:
    """Who is told which number."""
    numbers = [(user, everything) for user in ALL] + [(user, some) for user in SOME]
    return pytest.mark.parametrize(("user", "number"), [*numbers, ("stranger", nothing)])


# ---- /api/overview ------------------------------------------------------------------------------


@parametrized(5, 2)
def test_the_overview_counts_messages_of_open_vhosts(
    two_vhosts: Core, user: str, number: int
) -> None:
    row = overview(two_vhosts, user)
    assert row["queue_totals"]["messages"] == number
    assert row["queue_totals"]["messages_ready"] == number
    assert row["message_stats"]["publish"] == number


@parametrized(2, 1)
def test_the_overview_counts_objects_of_open_vhosts(
    two_vhosts: Core, user: str, number: int
) -> None:
    totals = overview(two_vhosts, user)["object_totals"]
    assert (totals["queues"], totals["exchanges"]) == (number, number * EXCHANGES)


def test_rates_of_the_overview_are_those_of_open_vhosts(two_vhosts: Core, api: Api) -> None:
    two_vhosts.context.rates.samples[0].at -= 100.0
    api.post("queues", "closed", "q", "get", ackmode="ack_requeue_false", count=3)

    def rates(user: str) -> tuple[float, float, float]:
        row = overview(two_vhosts, user)
        stats, depths = row["message_stats"], row["queue_totals"]
        names = ("publish_details", "deliver_get_details")
        published, delivered = (stats[name]["rate"] for name in names)
        return published, delivered, depths["messages_details"]["rate"]

    assert rates("monitor") == (0.02, 0.03, -0.01)
    assert rates("manager") == (0.01, 0.0, 0.01)
    assert rates("stranger") == (0.0, 0.0, 0.0)


@parametrized(3, 0)
def test_the_overview_counts_own_connections(core: Core, user: str, number: int) -> None:
    owners = ("nobody", "nobody", "nobody")
    for at, owner in enumerate(owners):
        connect(core, at, owner)
    totals = overview(core, user)["object_totals"]
    assert (totals["connections"], totals["channels"]) == (number, number)
    connect(core, len(owners), user)
    assert overview(core, user)["object_totals"]["connections"] == number + 1


@parametrized(1, 0)
def test_the_overview_names_listeners_to_who_monitors(core: Core, user: str, number: int) -> None:
    row = overview(core, user)
    assert bool(row["listeners"]) == bool(number)
    assert len(row["contexts"]) == number


def test_the_overview_asks_other_brokers_for_no_more(
    two_vhosts: Core, runner: asyncio.Runner
) -> None:
    other = Core(runner, name="b2")
    Api(other).put("vhosts", "closed")
    Api(other).put("queues", "closed", "theirs")
    two_vhosts.context.others = FakeOthers(other)
    assert overview(two_vhosts, "monitor")["object_totals"]["queues"] == 3
    assert overview(two_vhosts, "manager")["object_totals"]["queues"] == 1


# ---- /api/rhizome/status ------------------------------------------------------------------------


@parametrized(5, 2)
def test_the_status_counts_messages_of_open_vhosts(
    two_vhosts: Core, user: str, number: int
) -> None:
    broker = shown(two_vhosts, user, "rhizome", "status")["broker"]
    assert (broker["messages"], broker["messages_ready"]) == (number, number)
    assert broker["queues"] == {5: 2, 2: 1, 0: 0}[number]
    assert broker["memory_bytes"] > 0


@parametrized(2, 0)
def test_the_status_counts_own_connections(core: Core, user: str, number: int) -> None:
    for at in range(2):
        connect(core, at, "nobody")
    broker = shown(core, user, "rhizome", "status")["broker"]
    assert (broker["connections"], broker["channels"]) == (number, number)


def test_what_is_stored_is_told_to_who_monitors(two_vhosts: Core) -> None:
    told = shown(two_vhosts, "monitor", "rhizome", "status")["broker"]
    assert told["resident_bytes"] > 0
    assert told["store"]["journal_bytes"] is not None
    less = shown(two_vhosts, "manager", "rhizome", "status")["broker"]
    assert less["resident_bytes"] is None
    numbers = ("segments", "journal_bytes", "spill_bytes", "backlog_bytes", "written_bytes")
    assert [less["store"][name] for name in (*numbers, "syncs")] == [None] * 6
    assert (less["store"]["kind"], less["store"]["free_bytes"] > 0) == ("memory", True)


# ---- /api/rhizome/cluster, and what the others say of it ----------------------------------------


@pytest.fixture
def clustered(core: Core) -> Core:
    """A cluster with one group, which has 5 queues, 6 messages and 90 records."""
    view = FakeView(document())
    standby = StandbyInfo("b2", "following", 2, 100, 0, 50)
    view.copies[4] = CopyInfo("b1", "a1", "home", 2, 90, True, (standby,))
    core.context.view = view
    return core


@pytest.mark.parametrize("path", ["cluster", "status", "live"])
def test_who_monitors_is_told_what_is_in_the_cluster(clustered: Core, path: str) -> None:
    for user in ALL:
        row = shown(clustered, user, "rhizome", path)
        assert [each["connections"] for each in row["brokers"]] == [3, 3]
        (group,) = row["groups"]
        assert (group["queues"], group["messages"], group["index"]) == (5, 6, 90)
        assert [each["lag"] for each in group["in_sync"]] == [3]


@pytest.mark.parametrize("path", ["cluster", "status", "live"])
def test_others_are_told_what_the_cluster_is_and_not_what_is_in_it(
    clustered: Core, path: str
) -> None:
    everything = shown(clustered, "guest", "rhizome", path)
    for user in (*SOME, "stranger"):
        row = shown(clustered, user, "rhizome", path)
        own = 0 if path == "live" else None
        assert [each["connections"] for each in row["brokers"]] == [own, own]
        (group,) = row["groups"]
        assert (group["queues"], group["messages"], group["index"]) == (None, None, None)
        assert [each["lag"] for each in group["in_sync"]] == [None]
        for name in ("seen_by", "cluster", "failover_map"):
            assert row[name] == everything[name]
        for name in ("home", "epoch", "failover", "version", "copies", "min_copies"):
            assert group[name] == everything["groups"][0][name]
        assert [each["broker"] for each in group["in_sync"]] == ["b2"]


@parametrized(1, 0)
def test_a_lone_broker_counts_its_connections_for_who_monitors(
    core: Core, user: str, number: int
) -> None:
    connect(core, 1, "nobody")
    (broker,) = shown(core, user, "rhizome", "cluster")["brokers"]
    assert broker["connections"] == (number or None)


# ---- /api/rhizome/groups ------------------------------------------------------------------------


@parametrized(6, 0)
def test_lists_of_groups_count_for_who_monitors(clustered: Core, user: str, number: int) -> None:
    (group,) = shown(clustered, user, "rhizome", "groups")
    assert (group["queues"], group["messages"]) == ((5, 6) if number else (None, None))
    one = shown(clustered, user, "rhizome", "groups", "4")
    assert {name: one[name] for name in group} == group


@parametrized(90, 0)
def test_copies_count_for_who_monitors(clustered: Core, user: str, number: int) -> None:
    (held,) = shown(clustered, user, "rhizome", "groups", "4")["held"]
    assert shown(clustered, user, "rhizome", "groups", "4", "own") == held
    assert held["index"] == (number or None)
    (standby,) = held["standbys"]
    assert (standby["lag"], standby["records_bytes"]) == ((2, 100) if number else (None, None))
    assert (held["epoch"], held["role"], standby["stage"]) == (2, "home", "following")


def test_groups_are_not_sorted_by_what_is_not_told(clustered: Core) -> None:
    view = clustered.context.view
    assert isinstance(view, FakeView)
    fewer = replace(view.shown.groups[0], id=5, messages=1)
    view.shown = replace(view.shown, groups=(*view.shown.groups, fewer))

    def order(user: str) -> list[int]:
        rows = Api(clustered, user).get("rhizome", "groups", query="sort=messages").json
        return [row["id"] for row in rows]

    assert order("monitor") == [5, 4]
    assert order("manager") == [4, 5]


def test_the_copy_of_another_broker_is_no_exception(
    clustered: Core, runner: asyncio.Runner
) -> None:
    other = Core(runner, name="b2")
    view = FakeView(document())
    view.copies[4] = CopyInfo("b2", "a2", "standby", 2, 88, True)
    other.context.view = view
    clustered.context.others = FakeOthers(other)

    def held(user: str) -> list[tuple[str, int | None]]:
        rows = shown(clustered, user, "rhizome", "groups", "4")["held"]
        return [(row["broker"], row["index"]) for row in rows]

    assert held("monitor") == [("b1", 90), ("b2", 88)]
    assert held("manager") == [("b1", None), ("b2", None)]


# ---- /api/rhizome/live --------------------------------------------------------------------------


def without_a_home(shown_before: ClusterDocument) -> ClusterDocument:
    (group,) = shown_before.groups
    return replace(shown_before, groups=(replace(group, home=None),))


def test_stalls_of_groups_have_no_counts_for_who_does_not_monitor(clustered: Core) -> None:
    clustered.context.view = FakeView(without_a_home(document()))

    def stalls(user: str) -> list[str]:
        return [each["what"] for each in shown(clustered, user, "rhizome", "live")["stalls"]]

    assert stalls("monitor") == ["5 queues of group 4"]
    assert stalls("manager") == ["queues of group 4"]


def test_links_have_no_counts_for_who_does_not_monitor(core: Core, runner: asyncio.Runner) -> None:
    core.context.others = FakeOthers(Core(runner, name="b2"))

    def backlog(user: str) -> list[tuple[str, int | None]]:
        links = shown(core, user, "rhizome", "load")["links"]
        return [(each["broker"], each["backlog_bytes"]) for each in links]

    assert backlog("monitor") == [("b2", 0)]
    assert backlog("manager") == [("b2", None)]
