"""Messages that are moved from queue to queue: put there as they are, for whoever may do that."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.management.conftest import Answer, Api, Core


def move(api: Api, source: str, to: str, **more: Any) -> Answer:
    return api.post("rhizome", "queues", "/", source, "move", to=to, **more)


def dead_lettered(api: Api, **properties: Any) -> None:
    """A message that was in `orders` and is in `dead` now, because its time was over."""
    api.put("queues", "/", "dead", durable=True)
    to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    api.put("queues", "/", "orders", durable=True, arguments=to_dead)
    api.publish("orders", "m", delivery_mode=2, **properties)
    sent = {"count": 1, "ackmode": "reject_requeue_false"}
    assert len(api.post("queues", "/", "orders", "get", **sent).json) == 1
    assert (api.payloads("orders"), api.payloads("dead")) == ([], ["m"])


def test_a_numbered_message_goes_back_to_the_queue_that_has_seen_its_number(api: Api) -> None:
    """It was lost: the queue called it a duplicate, and it was removed from where it was."""
    dead_lettered(api, headers={"x-producer": "p", "x-sequence": 7})
    assert move(api, "dead", "orders").json == {"moved": 1, "left": 0}
    assert (api.payloads("orders"), api.payloads("dead")) == (["m"], [])


def test_a_number_that_was_moved_stays_known_and_is_not_noted_again(api: Api, core: Core) -> None:
    api.put("queues", "/", "a", durable=True)
    api.put("queues", "/", "b", durable=True)
    api.publish("a", "m", headers={"x-producer": "p", "x-sequence": 7})
    move(api, "a", "b")
    assert core.queue("b").seen is None
    api.publish("b", "the producer itself", headers={"x-producer": "p", "x-sequence": 7})
    assert api.payloads("b") == ["m", "the producer itself"]


def test_a_message_goes_back_to_a_queue_that_looks_at_ids(api: Api) -> None:
    api.put("queues", "/", "a", durable=True)
    api.put("queues", "/", "once", durable=True, arguments={"x-dedup": "message-id"})
    api.publish("once", "m", message_id="1")
    move(api, "once", "a")
    assert move(api, "a", "once").json == {"moved": 1, "left": 0}
    assert api.payloads("once") == ["m"]


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_other_keys_of_a_message_lead_nowhere_when_it_is_moved(api: Api, header: str) -> None:
    """Whoever sent it may not be allowed to write there; the operator who moves it is."""
    for queue in ("inbox", "quarantine", "payroll"):
        api.put("queues", "/", queue, durable=True)
    api.put("exchanges", "/", "in", type="fanout", durable=True)
    api.post("bindings", "/", "e", "in", "q", "inbox", routing_key="", arguments={})
    api.put("exchanges", "/", "in", type="fanout", durable=True)
    sent = {"routing_key": "x", "payload": "m", "payload_encoding": "string"}
    headers = {header: ["payroll"]}
    api.post("exchanges", "/", "in", "publish", **sent, properties={"headers": headers})
    before = api.browse("inbox")[0]
    assert move(api, "inbox", "quarantine").json == {"moved": 1, "left": 0}
    assert api.payloads("payroll") == []
    [moved] = api.browse("quarantine")
    kept = ("payload", "properties", "exchange", "routing_key")
    assert [moved[key] for key in kept] == [before[key] for key in kept]


def test_a_message_of_a_user_is_moved_by_another(api: Api, as_user: Callable[[str], Api]) -> None:
    """It stood in the way of everything behind it, with 400."""
    for queue in ("a", "b"):
        api.put("queues", "/", queue, durable=True)
    as_user("maker").publish("a", "of maker", user_id="maker")
    api.publish("a", "next")
    assert move(api, "a", "b").json == {"moved": 2, "left": 0}
    assert [each["properties"].get("user_id") for each in api.browse("b")] == ["maker", None]


def test_what_a_message_has_behind_it_stays_in_its_headers(api: Api) -> None:
    dead_lettered(api, headers={"n": 1}, expiration="60000", priority=3, message_id="i")
    [before] = api.browse("dead")
    assert before["properties"]["headers"]["x-death"][0]["queue"] == "orders"
    move(api, "dead", "orders")
    [after] = api.browse("orders")
    assert after["properties"] == before["properties"]


def test_time_to_live_begins_again(api: Api, core: Core) -> None:
    for queue in ("a", "b"):
        api.put("queues", "/", queue, durable=True)
    api.publish("a", "m", expiration="1000")
    core.now_ms += 900
    move(api, "a", "b")
    core.now_ms += 900
    assert api.payloads("b") == ["m"]
    core.now_ms += 200
    assert api.post("queues", "/", "b", "get", count=1, ackmode="ack_requeue_true").json == []


def test_what_is_refused_stays_and_is_not_dead_lettered(api: Api) -> None:
    for queue in ("a", "letters"):
        api.put("queues", "/", queue, durable=True)
    arguments = {
        "x-max-length": 1,
        "x-overflow": "reject-publish-dlx",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "letters",
    }
    api.put("queues", "/", "full", durable=True, arguments=arguments)
    for payload in ("0", "1", "2"):
        api.publish("a", payload)
    answer = move(api, "a", "full")
    assert (answer.status, answer.reason) == (400, "moved 1, then queue 'full' refused a message")
    assert (api.payloads("a"), api.payloads("full"), api.payloads("letters")) == (
        ["1", "2"],
        ["0"],
        [],
    )


def test_the_first_message_of_a_queue_makes_room_where_that_is_its_rule(api: Api) -> None:
    api.put("queues", "/", "a", durable=True)
    api.put("queues", "/", "last", durable=True, arguments={"x-max-length": 1})
    api.publish("a", "0")
    api.publish("a", "1")
    assert move(api, "a", "last").json == {"moved": 2, "left": 0}
    assert api.payloads("last") == ["1"]


@pytest.mark.parametrize(
    ("read", "write", "status"),
    [("^a$", "^b$", 200), ("^a$", "^c$", 401), ("^b$", "^b$", 401)],
)
def test_moving_needs_the_right_to_read_one_and_to_write_the_other(
    api: Api, as_user: Callable[[str], Api], read: str, write: str, status: int
) -> None:
    for queue in ("a", "b"):
        api.put("queues", "/", queue, durable=True)
    api.publish("a", "m")
    api.put("permissions", "/", "manager", configure="^$", read=read, write=write)
    assert move(as_user("manager"), "a", "b").status == status
    assert (api.payloads("a"), api.payloads("b")) == (([], ["m"]) if status == 200 else (["m"], []))


def test_nothing_is_moved_to_where_delayed_messages_wait(api: Api) -> None:
    arguments = {"x-delayed-type": "fanout"}
    api.put("exchanges", "/", "later", type="x-delayed-message", arguments=arguments, durable=True)
    sent = {"routing_key": "x", "payload": "m", "payload_encoding": "string"}
    properties = {"headers": {"x-delay": 60000}}
    api.post("exchanges", "/", "later", "publish", **sent, properties=properties)
    api.put("queues", "/", "a", durable=True)
    api.publish("a", "m")
    answer = move(api, "a", "amq.delayed")
    assert (answer.status, "what exchanges delay" in answer.reason) == (400, True)


def test_nothing_is_moved_into_what_an_exchange_remembers(api: Api) -> None:
    api.put("exchanges", "/", "recent", type="x-recent-history", durable=True)
    api.put("queues", "/", "a", durable=True)
    api.publish("a", "m")
    answer = move(api, "a", "amq.recent-history.recent")
    assert (answer.status, "the broker's own" in answer.reason) == (400, True)
    assert api.payloads("a") == ["m"]


def test_a_move_body_is_asked_for_what_it_needs(api: Api) -> None:
    api.put("queues", "/", "a", durable=True)
    answer = api.ask("POST", "/api/rhizome/queues/%2F/a/move", json.dumps({"count": 1}).encode())
    assert answer.status == 400
