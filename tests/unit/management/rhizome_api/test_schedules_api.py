"""Schedules over HTTP: seen, taken back and moved by their user, or by who may."""

from __future__ import annotations

import pytest

from tests.unit.management.conftest import Answer, Api

HELD = "amq.delayed"


@pytest.fixture
def later(api: Api) -> Api:
    """The API, with exchange `later` that leads to queue `q`."""
    arguments = {"x-delayed-type": "fanout"}
    api.put("exchanges", "/", "later", type="x-delayed-message", arguments=arguments, durable=True)
    api.put("queues", "/", "q", durable=True)
    api.post("bindings", "/", "e", "later", "q", "q", routing_key="", arguments={})
    return api


def schedule(api: Api, name: str, delay_ms: int = 60_000, user: str = "guest") -> None:
    headers = {"x-delay": delay_ms, "x-schedule-id": name}
    answer = Api(api.core, user).post(
        "exchanges",
        "/",
        "later",
        "publish",
        routing_key="k",
        payload=name,
        payload_encoding="string",
        properties={"headers": headers, "delivery_mode": 2},
    )
    assert answer.status == 200, answer.body


def ids(api: Api, query: str = "") -> list[str]:
    answer = api.get("rhizome", "schedules", "/", query=query)
    assert answer.status == 200, answer.body
    return [each["id"] for each in answer.json["schedules"]]


def take_back(api: Api, name: str, query: str = "") -> Answer:
    return api.delete("rhizome", "schedules", "/", "later", name, query=query)


def test_what_waits_is_listed_page_by_page(later: Api) -> None:
    for number in range(5):
        schedule(later, f"s-{number}")
    answer = later.get("rhizome", "schedules", "/").json
    assert answer["waiting"] == 5
    assert answer["next"] is None
    first = answer["schedules"][0]
    assert first["due_ms"] - first["scheduled_ms"] == 60_000
    assert {name: first[name] for name in ("id", "user", "exchange", "payload_bytes")} == {
        "id": "s-0",
        "user": "guest",
        "exchange": "later",
        "payload_bytes": 3,
    }
    found: list[str] = []
    after = 0
    while after is not None:
        page = later.get("rhizome", "schedules", "/", query=f"count=2&after={after}").json
        found += [each["id"] for each in page["schedules"]]
        after = page["next"]
    assert found == [f"s-{number}" for number in range(5)]
    assert ids(later, "exchange=other") == []


def test_a_schedule_is_taken_back_once(later: Api) -> None:
    schedule(later, "a/b")
    schedule(later, "c")
    assert take_back(later, "a/b").status == 204
    assert ids(later) == ["c"]
    assert take_back(later, "a/b").status == 404
    assert later.core.queue(HELD).ready == 1


def test_a_schedule_gets_another_time(later: Api) -> None:
    schedule(later, "a")
    schedule(later, "b")
    assert later.put("rhizome", "schedules", "/", "later", "a", delay_ms=0).status == 204
    later.core.now_ms += 100
    later.core.shell.tick()
    assert later.payloads("q") == ["a"]
    assert later.put("rhizome", "schedules", "/", "later", "b", delay_ms=5).status == 204
    later.core.now_ms += 100
    later.core.shell.tick()
    assert later.payloads("q") == ["a", "b"]
    assert later.put("rhizome", "schedules", "/", "later", "a", delay_ms=5).status == 404
    assert later.put("rhizome", "schedules", "/", "later", "a", delay_ms=-5).status == 400


def test_others_schedules_take_a_tag(later: Api) -> None:
    schedule(later, "a")
    for user, sees, takes in (("manager", [], 401), ("monitor", ["a"], 401), ("maker", ["a"], 204)):
        other = Api(later.core, user)
        assert ids(other) == sees, user
        assert take_back(other, "a").status in (404, 401), user
        assert take_back(other, "a", "user=guest").status == takes, user
    assert ids(later) == []


def test_in_a_vhost_without_delays_nothing_waits(api: Api) -> None:
    assert ids(api) == []
    assert api.get("rhizome", "schedules", "nowhere").status == 404
