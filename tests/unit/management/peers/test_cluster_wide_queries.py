"""Lists of the whole cluster: two brokers that ask each other, without a link between them."""

from __future__ import annotations

import asyncio

import pytest

from rhizome.broker.cluster_port import Away
from rhizome.broker.queue.queue import Queue
from rhizome.management.peers.peer_request_handler import respond
from rhizome.management.peers.peer_requests import PeerRequest, PeerResponse, PeerUnreachable
from tests.unit.management.conftest import Api, Core


class FakeOthers:
    """The other broker is in this process; ``silent`` keeps it from answering."""

    def __init__(self, other: Core) -> None:
        self.other = other
        self.silent = False
        self.asked: list[PeerRequest] = []

    def names(self) -> list[str]:
        return [self.other.context.name]

    def home_of(self, queue: Queue) -> str:
        return self.other.context.name

    def links(self) -> list[dict[str, object]]:
        return [{"broker": self.other.context.name, "congested": False, "backlog_bytes": 0}]

    async def ask(self, broker: str, question: PeerRequest, seconds: float) -> PeerResponse:
        self.asked.append(question)
        if self.silent:
            raise PeerUnreachable(f"broker '{broker}' can't be reached")
        return await respond(self.other.application, question)


@pytest.fixture
def other(runner: asyncio.Runner) -> Core:
    return Core(runner, name="b2")


@pytest.fixture
def others(core: Core, other: Core) -> FakeOthers:
    core.context.others = FakeOthers(other)
    other.context.others = FakeOthers(core)
    return core.context.others


def share(core: Core, other: Core, name: str) -> None:
    """A queue whose home is the other broker."""
    for each in (core, other):
        Api(each).put("queues", "/", name, durable=True)
    core.queue(name).away = Away()


def names(rows: list[dict[str, object]]) -> list[object]:
    return [row["name"] for row in rows]


def test_queues_of_all_brokers_are_listed_once_each_by_whoever_is_asked(
    api: Api, core: Core, other: Core, others: FakeOthers
) -> None:
    api.put("queues", "/", "here")
    share(core, other, "there")
    Api(other).publish("there", "x")
    rows = api.get("queues").json
    assert [(row["name"], row["node"], row["messages"]) for row in rows] == [
        ("here", "rhizome", 0),
        ("there", "b2", 1),
    ]
    assert api.get("queues", "/", "there").json["messages"] == 1


def test_the_broker_that_is_asked_by_another_asks_nobody(
    api: Api, core: Core, other: Core, others: FakeOthers
) -> None:
    for parts in (["queues"], ["connections"], ["bindings"], ["overview"], ["nodes"], ["vhosts"]):
        assert api.get(*parts).status == 200
    assert api.get("rhizome", "live").status == 200
    assert len(others.asked) >= 7
    assert isinstance(other.context.others, FakeOthers)
    assert other.context.others.asked == []


def test_a_queue_whose_home_is_silent_is_down_and_the_answer_says_who_is(
    api: Api, core: Core, other: Core, others: FakeOthers
) -> None:
    share(core, other, "there")
    others.silent = True
    answer = api.get("queues")
    assert [(row["name"], row["state"], row["node"]) for row in answer.json] == [
        ("there", "down", "b2")
    ]
    assert answer.headers["x-rhizome-silent"] == "b2"
    assert api.get("queues", "/", "there").json["state"] == "down"
    assert api.delete("queues", "/", "there", "contents").status == 503
    assert api.get("nodes").json[0]["running"] is True


def test_pages_sorting_columns_and_filters_hold_for_the_whole(
    api: Api, core: Core, other: Core, others: FakeOthers
) -> None:
    for number in (1, 3, 5):
        api.put("queues", "/", f"q{number}")
    for number in (2, 4):
        share(core, other, f"q{number}")
    share(core, other, "else")
    query = "page=1&page_size=3&sort=name&sort_reverse=true&name=q&columns=name"
    page = api.get("queues", query=query).json
    assert page == {
        "page": 1,
        "page_count": 2,
        "page_size": 3,
        "item_count": 3,
        "filtered_count": 5,
        "total_count": 6,
        "items": [{"name": "q5"}, {"name": "q4"}, {"name": "q3"}],
    }


def test_rows_of_others_can_be_sorted_by_a_column_that_is_not_shown(
    api: Api, core: Core, other: Core, others: FakeOthers
) -> None:
    api.put("queues", "/", "a")
    share(core, other, "b")
    api.publish("a", "x")
    for _ in range(2):
        Api(other).publish("b", "x")
    query = "sort=messages&sort_reverse=true&columns=name"
    assert api.get("queues", query=query).json == [{"name": "b"}, {"name": "a"}]


def test_what_is_to_be_done_with_a_queue_is_done_at_its_home(
    api: Api, core: Core, other: Core, others: FakeOthers
) -> None:
    share(core, other, "there")
    for payload in ("one", "two"):
        Api(other).publish("there", payload)
    assert api.payloads("there") == ["one", "two"]
    got = api.post(
        "queues", "/", "there", "get", count=1, ackmode="ack_requeue_false", encoding="auto"
    )
    assert [row["payload"] for row in got.json] == ["one"]
    assert api.delete("queues", "/", "there", query="if-empty=true").status == 400
    assert api.delete("queues", "/", "there", "contents").status == 204
    assert int(other.queue("there").ready) == 0
    assert api.get("rhizome", "queues", "/", "there", "history").json["ready"] == []


def test_a_private_queue_is_found_wherever_it_is(
    api: Api, core: Core, other: Core, others: FakeOthers
) -> None:
    Api(other).put("queues", "/", "only-there")
    assert api.get("queues", "/", "only-there").json["node"] == "b2"
    assert api.get("queues", "/", "nowhere").status == 404
    assert len(api.get("queues", "/", "only-there", "bindings").json) == 1
    assert api.get("queues", "/", "nowhere", "bindings").status == 404


def test_the_user_is_the_same_for_the_other_broker(
    core: Core, other: Core, others: FakeOthers
) -> None:
    share(core, other, "there")
    assert Api(core, "stranger").get("queues").json == []
    assert Api(core, "monitor").get("queues", "/", "there").status == 200
    Api(other).delete("users", "monitor")
    assert Api(core, "monitor").get("queues", "/", "there").status == 200
    assert Api(core, "monitor").delete("queues", "/", "there", "contents").status == 401


def test_sums_are_of_all_brokers(api: Api, core: Core, other: Core, others: FakeOthers) -> None:
    api.put("queues", "/", "here")
    share(core, other, "there")
    api.publish("here", "x")
    Api(other).publish("there", "x")
    row = api.get("overview").json
    assert row["object_totals"]["queues"] == 2
    assert row["object_totals"]["exchanges"] == 8
    assert row["queue_totals"]["messages"] == 2
    assert {listener["node"] for listener in row["listeners"]} == {"rhizome", "b2"}
    columns = "columns=cluster_name,object_totals.queues"
    assert api.get("overview", query=columns).json["object_totals"] == {"queues": 2}
    assert api.get("vhosts").json[0]["messages"] == 2
    assert api.get("vhosts", "/").json["messages"] == 2
    live = api.get("rhizome", "live").json
    assert sorted(live["loads"]) == ["b2", "rhizome"]


def test_alarms_of_all_brokers_count(api: Api, core: Core, other: Core, others: FakeOthers) -> None:
    path = ("health", "checks")
    assert api.get(*path, "alarms").status == 200
    other.shell.set_alarm("low on disk: publishers wait")
    failed = api.get(*path, "alarms")
    assert failed.status == 503
    assert failed.json["alarms"][0]["node"] == "b2"
    assert api.get(*path, "local-alarms").status == 200
    stalls = api.get("rhizome", "stalls").json
    assert {"broker": "b2", "kind": "alarm"}.items() <= stalls[0].items()


def test_nobody_can_ask_as_a_broker_over_http(core: Core) -> None:
    headers = {"rhizome.asked": "guest", "x-rhizome-asked": "guest"}
    assert Api(core, user="").ask("GET", "/api/queues", headers=headers).status == 401


@pytest.mark.parametrize("path", ["/", "/console/main.js", "/metrics", "/api/rhizome/session"])
def test_brokers_ask_the_api_and_nothing_else(core: Core, path: str) -> None:
    reply = core.run(respond(core.application, PeerRequest("GET", path, "guest")))
    assert reply.status in (401, 404)
