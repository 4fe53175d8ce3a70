"""Messages that are searched by condition, and moved, dropped, requeued or redriven."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest

from rhizome.broker.queue.message_cursor import STEP_MESSAGES_MAX
from rhizome.broker.queue.queue import claim
from rhizome.management.rhizome_api.message_actions import IDS_MAX
from rhizome.management.search import queue_search
from tests.unit.management.conftest import Answer, Api, Core

EVEN = "headers.n in (0, 2, 4, 6, 8)"


def search(api: Api, queue: str, where: str, **more: Any) -> Any:
    query = urlencode({"where": where, "count": 1000, **more})
    answer = api.get("rhizome", "queues", "/", queue, "search", query=query)
    assert answer.status == 200, answer.body
    return answer.json


def found(api: Api, queue: str, where: str) -> list[str]:
    return [each["payload"] for each in search(api, queue, where)["messages"]]


def act(api: Api, queue: str, action: str, **more: Any) -> Answer:
    return api.post("rhizome", "queues", "/", queue, "messages", action=action, **more)


def numbered(api: Api, queue: str = "q", count: int = 10, **arguments: Any) -> None:
    api.put("queues", "/", queue, durable=True, arguments=arguments)
    for number in range(count):
        api.publish(queue, str(number), delivery_mode=2, headers={"n": number})


def dead_letters(api: Api, count: int = 4) -> None:
    """Messages that were rejected in `orders`, under exchange `in`, and are in `dead` now."""
    api.put("queues", "/", "dead", durable=True)
    to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    api.put("queues", "/", "orders", durable=True, arguments=to_dead)
    api.put("exchanges", "/", "in", type="topic", durable=True)
    api.post("bindings", "/", "e", "in", "q", "orders", routing_key="#", arguments={})
    for number in range(count):
        api.post(
            *("exchanges", "/", "in", "publish"),
            routing_key=f"new.{number}",
            payload=str(number),
            payload_encoding="string",
            properties={"headers": {"n": number}, "delivery_mode": 2},
        )
    sent = {"count": count, "ackmode": "reject_requeue_false"}
    assert len(api.post("queues", "/", "orders", "get", **sent).json) == count


# ---- searching ----------------------------------------------------------------------------------


def test_a_search_shows_what_meets_its_condition_and_changes_nothing(api: Api) -> None:
    numbered(api)
    before = api.browse("q")
    assert found(api, "q", f"{EVEN} and body like '%4%'") == ["4"]
    assert found(api, "q", "routing_key = 'q' and exchange = '' and size = 1") == list("0123456789")
    assert api.browse("q") == before


def test_a_search_of_messages_on_disk_finds_the_same(runner: asyncio.Runner) -> None:
    api = Api(Core(runner, resident_budget_bytes=1024))
    numbered(api, count=3 * STEP_MESSAGES_MAX)
    assert api.core.queue("q").lane.paged_count > STEP_MESSAGES_MAX
    last = 3 * STEP_MESSAGES_MAX - 1
    assert found(api, "q", f"headers.n in (0, 100, {last})") == ["0", "100", str(last)]
    assert api.core.queue("q").lane.paged_count > STEP_MESSAGES_MAX


def test_a_search_of_priorities_goes_in_the_order_of_delivery(api: Api) -> None:
    api.put("queues", "/", "q", durable=True, arguments={"x-max-priority": 5})
    for number in range(6):
        api.publish("q", str(number), priority=number % 3, headers={"n": number})
    assert found(api, "q", "headers.n is not null") == ["2", "5", "1", "4", "0", "3"]
    first = search(api, "q", "", count=3)
    rest = search(api, "q", "", after=first["next"])
    shown = [each["payload"] for each in (*first["messages"], *rest["messages"])]
    assert shown == ["2", "5", "1", "4", "0", "3"]
    assert rest["next"] is None


def test_a_search_that_has_looked_at_enough_goes_on_where_it_was(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_search, "SCANNED_MAX", 1)
    numbered(api, count=STEP_MESSAGES_MAX + 10)
    first = search(api, "q", "headers.n >= 60")
    assert (first["scanned"], first["messages"][0]["payload"]) == (STEP_MESSAGES_MAX, "60")
    second = search(api, "q", "headers.n >= 60", after=first["next"])
    assert second["messages"][0]["payload"] == str(STEP_MESSAGES_MAX)
    assert second["scanned"] == 10


def test_a_stream_is_searched_too_and_nothing_else_is_done_to_it(api: Api) -> None:
    api.put("queues", "/", "s", durable=True, arguments={"x-queue-type": "stream"})
    for number in range(5):
        api.publish("s", str(number), headers={"n": number})
    assert found(api, "s", "headers.n > 2") == ["3", "4"]
    refused = act(api, "s", "drop", where="headers.n > 2")
    assert (refused.status, "is a stream" in refused.reason) == (400, True)


def test_a_wrong_condition_or_place_is_refused_with_400(api: Api) -> None:
    numbered(api, count=1)
    answer = api.get("rhizome", "queues", "/", "q", "search", query="where=body+is+good")
    assert (answer.status, answer.reason) == (
        400,
        "where: character 9 of the condition: 'null' is expected, not 'good'",
    )
    assert api.get("rhizome", "queues", "/", "q", "search", query="after=x").status == 400
    assert act(api, "q", "drop", where="body is good").status == 400


def test_who_may_not_read_a_queue_may_not_search_it(
    api: Api, as_user: Callable[[str], Api]
) -> None:
    numbered(api, count=1)
    api.put("permissions", "/", "manager", configure="^$", read="^other$", write=".*")
    manager = as_user("manager")
    assert manager.get("rhizome", "queues", "/", "q", "search").status == 401
    assert act(manager, "q", "drop", where="size = 1").status == 401


# ---- acting -------------------------------------------------------------------------------------


def test_messages_are_moved_by_condition_from_the_middle(api: Api) -> None:
    numbered(api)
    api.put("queues", "/", "even", durable=True)
    answer = act(api, "q", "move", where=EVEN, to="even").json
    assert (answer["done"], answer["to"], answer["left"]) == (5, {"even": 5}, 5)
    assert (api.payloads("q"), api.payloads("even")) == (list("13579"), list("02468"))


def test_messages_on_disk_are_dropped_by_condition(runner: asyncio.Runner) -> None:
    api = Api(Core(runner, resident_budget_bytes=1024))
    numbered(api, count=2 * STEP_MESSAGES_MAX)
    assert act(api, "q", "drop", where="headers.n >= 3").json["done"] == 2 * STEP_MESSAGES_MAX - 3
    assert api.payloads("q") == ["0", "1", "2"]


def test_a_dropped_message_is_not_dead_lettered(api: Api) -> None:
    api.put("queues", "/", "dead", durable=True)
    to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    numbered(api, count=3, **to_dead)
    assert act(api, "q", "drop", where="headers.n = 1").json["done"] == 1
    assert (api.payloads("q"), api.payloads("dead")) == (["0", "2"], [])


def test_a_dry_run_counts_and_changes_nothing(api: Api) -> None:
    numbered(api)
    before = api.browse("q")
    answer = act(api, "q", "drop", where=EVEN, dry_run=True).json
    assert (answer["done"], answer["dry_run"], answer["left"]) == (5, True, 10)
    ids = [before[3]["id"], "999999-1"]
    answer = act(api, "q", "drop", ids=ids, dry_run=True).json
    assert (answer["done"], answer["skipped"]) == (1, {"no longer ready": 1})
    assert api.browse("q") == before


def test_single_messages_are_named_by_their_ids(api: Api) -> None:
    numbered(api)
    ids = [each["id"] for each in api.browse("q")]
    assert [each["id"] for each in search(api, "q", "")["messages"]] == ids
    assert act(api, "q", "drop", ids=[ids[4], ids[7]]).json["done"] == 2
    assert api.payloads("q") == list("01235689")
    again = act(api, "q", "drop", ids=[ids[4]]).json
    assert (again["done"], again["skipped"]) == (0, {"no longer ready": 1})


def test_an_index_that_another_message_has_now_names_nothing(api: Api) -> None:
    numbered(api, count=2)
    index, arrived = api.browse("q")[0]["id"].split("-")
    answer = act(api, "q", "drop", ids=[f"{index}-{int(arrived) + 1}"]).json
    assert (answer["done"], api.payloads("q")) == (0, ["0", "1"])


def test_requeued_messages_go_to_the_end_of_their_queue_once(api: Api) -> None:
    """A search that met its own messages again would never end."""
    numbered(api)
    answer = act(api, "q", "requeue", where="headers.n < 3").json
    assert (answer["done"], answer["left"], answer["next"]) == (3, 10, None)
    assert api.payloads("q") == list("3456789012")


def test_an_action_stops_at_its_count_and_goes_on(api: Api) -> None:
    numbered(api)
    first = act(api, "q", "requeue", where=EVEN, count=2).json
    assert first["done"] == 2
    second = act(api, "q", "requeue", where=EVEN, after=first["next"]).json
    assert (second["done"], second["next"]) == (3, None)
    assert api.payloads("q") == list("1357902468")


def test_dead_letters_go_back_to_where_they_died_under_their_own_keys(api: Api) -> None:
    dead_letters(api)
    where = "death.reason = 'rejected' and headers.n >= 2"
    assert act(api, "dead", "redrive", where=where, dry_run=True).json["to"] == {"orders": 2}
    answer = act(api, "dead", "redrive", where=where).json
    assert (answer["done"], answer["to"]) == (2, {"orders": 2})
    assert api.payloads("dead") == ["0", "1"]
    back = api.browse("orders")
    assert [(each["exchange"], each["routing_key"]) for each in back] == [
        ("in", "new.2"),
        ("in", "new.3"),
    ]
    assert back[0]["properties"]["headers"]["x-death"][0]["count"] == 1


TO_DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
REJECT = {"count": 1, "ackmode": "reject_requeue_false"}


def test_a_redrive_leaves_what_it_can_not_bring_back(api: Api) -> None:
    dead_letters(api, 1)
    api.publish("dead", "plain")
    for queue in ("payroll", "nowhere"):
        api.put("queues", "/", queue, durable=True, arguments=TO_DEAD)
        api.publish(queue, queue)
        assert len(api.post("queues", "/", queue, "get", **REJECT).json) == 1
        assert api.delete("queues", "/", queue).status == 204
    api.put("queues", "/", "payroll", durable=True)
    answer = act(api, "dead", "redrive").json
    assert answer["to"] == {"orders": 1}
    assert answer["skipped"] == {
        "no dead letter": 1,
        "queue 'payroll' does not dead-letter": 1,
        "there is no shared queue 'nowhere'": 1,
    }
    assert (api.payloads("payroll"), len(api.payloads("dead"))) == ([], 3)


def test_a_death_that_a_publisher_wrote_leads_nowhere(api: Api) -> None:
    """Else whoever may publish to a queue of dead letters chooses what the redriver's rights do."""
    dead_letters(api, 1)
    api.put("queues", "/", "payroll", durable=True, arguments=TO_DEAD)
    death: dict[str, object] = {"queue": "payroll", "reason": "rejected", "exchange": "bank"}
    for more in ({}, {"claimed": False}, {"claimed": None}, {"count": 3}):
        api.publish("dead", "forged", headers={"x-death": [{**death, **more}]})
    answer = act(api, "dead", "redrive").json
    assert (answer["to"], answer["skipped"]) == (
        {"orders": 1},
        {"its publisher wrote its x-death": 4},
    )
    assert (api.payloads("payroll"), api.payloads("dead")) == ([], ["forged"] * 4)


def test_a_message_that_died_comes_back_as_it_was_and_not_as_it_says(api: Api) -> None:
    """A second death of one kind keeps what the first entry says of exchange and keys."""
    dead_letters(api, 0)
    death = {"queue": "orders", "reason": "rejected", "exchange": "bank", "routing-keys": ["paid"]}
    sent = {
        "routing_key": "new.1",
        "payload": "x",
        "payload_encoding": "string",
        "properties": {"headers": {"x-death": [{"queue": "a", "reason": "expired"}, death]}},
    }
    api.post("exchanges", "/", "in", "publish", **sent)
    for count in (2, 3):
        assert len(api.post("queues", "/", "orders", "get", **REJECT).json) == 1
        deaths = api.browse("dead")[0]["properties"]["headers"]["x-death"]
        assert (deaths[0]["queue"], deaths[0]["count"]) == ("orders", count)
        assert (deaths[0]["exchange"], deaths[0]["routing-keys"]) == ("in", ["new.1"])
        assert ["claimed" in each for each in deaths] == [False, True]
        assert act(api, "dead", "redrive").json["to"] == {"orders": 1}
        back = api.browse("orders")[0]
        assert (back["exchange"], back["routing_key"]) == ("in", "new.1")


def test_a_redrive_needs_the_right_to_write_where_it_leads(
    api: Api, as_user: Callable[[str], Api]
) -> None:
    dead_letters(api, 1)
    api.put("permissions", "/", "manager", configure="^$", read=".*", write="^dead$")
    answer = act(as_user("manager"), "dead", "redrive").json
    assert (answer["done"], answer["skipped"]) == (0, {"queue 'orders' may not be written": 1})
    assert (api.payloads("dead"), api.payloads("orders")) == (["0"], [])


def test_a_forged_dead_letter_holds_no_redrive_up(api: Api, as_user: Callable[[str], Api]) -> None:
    """Publishers write x-death themselves, with names of any length."""
    api.put("queues", "/", "salaries", durable=True, arguments=TO_DEAD)
    api.put("queues", "/", "dead", durable=True)
    for queue in ("salaries", "z" * 10_000):
        api.publish("dead", "forged", headers={"x-death": [{"queue": queue}]})
    dead_letters(api, 2)
    api.put("permissions", "/", "manager", configure="^$", read=".*", write="^orders$")
    answer = act(as_user("manager"), "dead", "redrive").json
    assert answer["to"] == {"orders": 2}
    assert answer["skipped"] == {"its publisher wrote its x-death": 2}
    assert api.payloads("salaries") == []


def test_a_queue_that_refuses_ends_the_action_and_the_message_stays(api: Api) -> None:
    numbered(api, count=3)
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    api.put("queues", "/", "full", durable=True, arguments=full)
    answer = act(api, "q", "move", where="headers.n > 0", to="full")
    assert (answer.status, answer.reason) == (400, "1 done, then queue 'full' refused a message")
    assert (api.payloads("q"), api.payloads("full")) == (["0", "2"], ["1"])


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ({"action": "eat"}, "must be one of move, drop, requeue, redrive"),
        ({"action": "drop"}, "drop needs 'where' or 'ids'"),
        ({"action": "move"}, "move needs 'to'"),
        ({"action": "requeue", "to": "x"}, "requeue takes no 'to'"),
        ({"action": "redrive", "count": 0}, "count is 0"),
        ({"action": "redrive", "ids": ["x"]}, "id 'x' is none"),
        ({"action": "redrive", "ids": ["1-1"], "where": "size = 1"}, "give a condition"),
        ({"action": "move", "to": "q"}, "can't be moved into itself"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(api: Api, order: Any, said: str) -> None:
    numbered(api, count=1)
    answer = act(api, "q", **order)
    assert answer.status == 400
    assert said in answer.reason


def test_expired_messages_are_not_brought_back_to_life(api: Api, core: Core) -> None:
    api.put("queues", "/", "q", durable=True)
    api.put("queues", "/", "other", durable=True)
    api.publish("q", "first")
    api.publish("q", "late", expiration="100")
    core.now_ms += 1000
    assert act(api, "q", "move", where="body = 'late'", to="other").json["done"] == 0
    assert api.payloads("other") == []


@pytest.mark.parametrize("budget", [64 << 20, 1024])
def test_a_search_sees_what_came_back_from_the_middle_in_its_place(
    runner: asyncio.Runner, budget: int
) -> None:
    """It stands before those that were before it; a place by index must not lose these."""
    api = Api(Core(runner, resident_budget_bytes=budget))
    numbered(api, count=100)
    queue = api.core.queue("q")
    wanted = api.browse("q")[70]["id"].split("-")[0]
    api.core.shell.begin_turn()
    taken = claim(queue, int(wanted))
    assert taken is not None
    queue.take_back(taken)
    assert found(api, "q", "") == [str(number) for number in range(100)]


def test_single_messages_are_looked_at_a_few_in_each_round_of_the_loop(api: Api) -> None:
    """Two hundred ids of one large message held everybody up for half a second."""
    api.put("queues", "/", "q", durable=True)
    api.publish("q", "large", headers={f"{number}": True for number in range(2_000)})
    name = search(api, "q", "size > 0")["messages"][0]["id"]
    loop = api.core.runner.get_loop()
    rounds = 0
    is_over = False

    def count() -> None:
        nonlocal rounds
        rounds += 1
        if not is_over:
            loop.call_soon(count)

    def asked(ids: list[str]) -> int:
        nonlocal rounds
        rounds = 0
        assert act(api, "q", "redrive", ids=ids).json["skipped"] == {"no dead letter": len(ids)}
        return rounds

    loop.call_soon(count)
    few, many = asked([name]), asked([name] * IDS_MAX)
    is_over = True
    assert many > few + 20
