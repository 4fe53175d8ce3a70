"""Publishing, getting and browsing messages."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest

from rhizome.broker.group_log.log_port import EVERYTHING
from rhizome.broker.queue.message_browser import browse
from rhizome.management.api_context import ANSWER_BYTES_OF_USER_MAX
from tests.unit.management.conftest import Answer, Api, Core


def test_nothing_is_taken_that_could_not_be_answered(core: Core, api: Api) -> None:
    api.put("queues", "/", "q")
    api.publish("q", "x")
    waiting = core.context.waiting_answers
    waiting.add("guest", ANSWER_BYTES_OF_USER_MAX)
    refused = api.post("queues", "/", "q", "get", count=1, ackmode="ack_requeue_false")
    assert refused.status == 503
    assert core.queue("q").ready == 1
    waiting.remove("guest", ANSWER_BYTES_OF_USER_MAX)
    taken = api.post("queues", "/", "q", "get", count=1, ackmode="ack_requeue_false")
    assert [each["payload"] for each in taken.json] == ["x"]
    assert waiting.total == 0


def test_publish_says_whether_a_queue_took_the_message(api: Api) -> None:
    sent = {"routing_key": "nowhere", "payload": "x", "properties": {}}
    answer = api.post("exchanges", "/", "amq.default", "publish", **sent)
    assert answer.json == {"routed": False}
    missing = api.post("exchanges", "/", "missing", "publish", **sent)
    assert missing.status == 400
    assert missing.reason == "404 NOT_FOUND - no exchange 'missing' in vhost '/'"


def test_properties_and_payload_come_back_as_they_went(api: Api) -> None:
    api.put("queues", "/", "q", durable=True)
    properties = {
        "content_type": "text/plain",
        "headers": {"a": 1, "b": [True, None, "x"], "c": {"d": 1.5}},
        "delivery_mode": 2,
        "priority": 4,
        "correlation_id": "c",
        "message_id": "m",
        "timestamp": 1234567890,
        "app_id": "tests",
    }
    api.publish("q", "h\u00e9llo", **properties)
    message = api.browse("q")[0]
    assert message["properties"] == properties
    assert message["payload"] == "h\u00e9llo"
    assert message["payload_encoding"] == "string"
    assert message["size"] == len("h\u00e9llo".encode())
    got = api.post("queues", "/", "q", "get", ackmode="ack_requeue_false", count=1).json[0]
    assert got["properties"] == properties
    assert got["payload_bytes"] == message["size"]
    assert (got["exchange"], got["routing_key"], got["redelivered"]) == ("", "q", False)
    assert api.browse("q") == []


def test_bytes_that_are_no_text_travel_in_base64(api: Api) -> None:
    api.put("queues", "/", "q")
    payload = base64.b64encode(b"\xff\x00\xce").decode()
    sent = {"routing_key": "q", "payload": payload, "payload_encoding": "base64", "properties": {}}
    api.post("exchanges", "/", "amq.default", "publish", **sent)
    message = api.browse("q")[0]
    assert (message["payload"], message["payload_encoding"]) == (payload, "base64")


@pytest.mark.parametrize(
    "wrong",
    [
        {"properties": {"delivery_mode": "x"}},
        {"properties": {"priority": 256}},
        {"properties": {"headers": {"n": 1 << 70}}},
        {"properties": {"message_id": "m" * 300}},
        {"properties": {"colour": "red"}},
        {"payload_encoding": "rot13"},
        {"payload_encoding": "base64", "payload": "*"},
        {"routing_key": "k" * 300},
        {"properties": {"user_id": "somebody-else"}},
        {"properties": {"expiration": "soon"}},
    ],
)
def test_messages_that_make_no_sense_are_refused(api: Api, wrong: dict[str, object]) -> None:
    api.put("queues", "/", "q")
    sent: dict[str, object] = {"routing_key": "q", "payload": "x", "properties": {}, **wrong}
    answer = api.post("exchanges", "/", "amq.default", "publish", **sent)
    assert (answer.status, answer.json["error"]) == (400, "bad_request"), answer.body
    assert api.browse("q") == []


def test_publishing_is_refused_while_publishers_are_blocked(api: Api, core: Core) -> None:
    api.put("queues", "/", "q")
    core.shell.set_alarm("low on disk: 1 MiB free")
    sent = {"routing_key": "q", "payload": "x", "properties": {}}
    answer = api.post("exchanges", "/", "amq.default", "publish", **sent)
    assert (answer.status, "low on disk" in answer.reason) == (503, True)


@pytest.mark.parametrize(
    ("mode", "left", "counts"),
    [
        ("ack_requeue_true", ["1", "2", "3"], [1, 1, 0]),
        ("reject_requeue_true", ["1", "2", "3"], [1, 1, 0]),
        ("ack_requeue_false", ["3"], [0]),
        ("reject_requeue_false", ["3"], [0]),
    ],
)
def test_get_settles_as_its_mode_says(
    api: Api, core: Core, mode: str, left: list[str], counts: list[int]
) -> None:
    api.put("queues", "/", "q", durable=True)
    for payload in ("1", "2", "3"):
        api.publish("q", payload, delivery_mode=2)
    got = api.post("queues", "/", "q", "get", ackmode=mode, count=2, encoding="auto").json
    assert [message["payload"] for message in got] == ["1", "2"]
    assert [message["message_count"] for message in got] == [2, 1]
    assert api.payloads("q") == left
    assert [message["delivery_count"] for message in api.browse("q")] == counts
    assert core.queue("q").unacked == 0


def test_a_rejected_message_is_dead_lettered(api: Api) -> None:
    api.put("queues", "/", "dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    api.put("queues", "/", "q", arguments=arguments)
    api.publish("q", "x")
    api.post("queues", "/", "q", "get", ackmode="reject_requeue_false", count=1)
    message = api.browse("dead")[0]
    assert message["properties"]["headers"]["x-first-death-queue"] == "q"


def test_get_refuses_what_it_does_not_know(api: Api) -> None:
    api.put("queues", "/", "q")
    assert api.post("queues", "/", "q", "get", count=1).status == 400
    assert api.post("queues", "/", "q", "get", count=1, ackmode="maybe").status == 400
    assert api.post("queues", "/", "q", "get", count=-1, ackmode="ack_requeue_true").status == 400
    assert api.post("queues", "/", "missing", "get", ackmode="ack_requeue_true").status == 404


def test_get_cuts_payloads_if_asked_to(api: Api) -> None:
    api.put("queues", "/", "q")
    api.publish("q", "0123456789")
    wanted = {"ackmode": "ack_requeue_false", "count": 1, "truncate": 4}
    got = api.post("queues", "/", "q", "get", **wanted).json[0]
    assert (got["payload"], got["payload_bytes"]) == ("0123", 10)


# ---- browsing -----------------------------------------------------------------------------------


def test_browsing_changes_nothing(api: Api, core: Core) -> None:
    api.put("queues", "/", "q", durable=True)
    for number in range(10):
        api.publish("q", str(number), delivery_mode=2 if number % 2 else 1)
    api.post("queues", "/", "q", "get", ackmode="ack_requeue_true", count=3)
    queue = core.queue("q")
    before = (
        queue.ready,
        queue.unacked,
        queue.delivered,
        queue.redelivered,
        queue.resident_bytes,
        dict(queue.counts),
        core.broker.pager.resident_bytes,
        core.broker.log.next_index,
    )
    first = api.browse("q")
    assert api.browse("q") == first
    assert before == (
        queue.ready,
        queue.unacked,
        queue.delivered,
        queue.redelivered,
        queue.resident_bytes,
        dict(queue.counts),
        core.broker.pager.resident_bytes,
        core.broker.log.next_index,
    )
    assert [message["payload"] for message in first] == [str(number) for number in range(10)]
    assert [message["redelivered"] for message in first] == [True] * 3 + [False] * 7
    got = api.post("queues", "/", "q", "get", ackmode="ack_requeue_false", count=10).json
    assert [message["payload"] for message in got] == [str(number) for number in range(10)]
    assert [message["redelivered"] for message in got] == [True] * 3 + [False] * 7


def test_browsing_takes_a_window(api: Api) -> None:
    api.put("queues", "/", "q")
    for number in range(6):
        api.publish("q", str(number))
    window = api.browse("q", "offset=2&count=3")
    assert [message["payload"] for message in window] == ["2", "3", "4"]
    assert [message["index"] for message in window] == [2, 3, 4]
    assert api.browse("q", "offset=6") == []
    target = ("rhizome", "queues", "/", "q", "messages")
    for wrong in ("count=0", "count=1001", "offset=-1", "offset=100001", "count=x"):
        assert api.get(*target, query=wrong).status == 400


def test_browsing_goes_by_priority(api: Api) -> None:
    api.put("queues", "/", "q", arguments={"x-max-priority": 5})
    for payload, priority in (("low", 1), ("high", 5), ("middle", 3), ("high too", 9)):
        api.publish("q", payload, priority=priority)
    assert api.payloads("q") == ["high", "high too", "middle", "low"]
    window = api.browse("q", "offset=1&count=2")
    assert [message["payload"] for message in window] == ["high too", "middle"]


def test_a_keyed_queue_tells_how_many_keys_there_are(api: Api) -> None:
    api.put("queues", "/", "plain")
    assert "keys_live" not in api.get("queues", "/", "plain").json
    api.put("queues", "/", "q", arguments={"x-group-key": "tenant"})
    for tenant in ("a", "b", "a"):
        api.publish("q", "x", headers={"tenant": tenant})
    row = api.get("queues", "/", "q").json
    assert (row["keys_live"], row["keys_held"]) == (2, 0)
    taken = api.post("queues", "/", "q", "get", count=9, ackmode="ack_requeue_true")
    assert len(taken.json) == 2, "one of each key"


def test_browsing_leaves_out_values_that_were_superseded(api: Api) -> None:
    api.put("queues", "/", "q", arguments={"x-last-value-key": "key"})
    for payload, key in (("a1", "a"), ("b1", "b"), ("a2", "a")):
        api.publish("q", payload, headers={"key": key})
    assert api.payloads("q") == ["b1", "a2"]


def test_browsing_reads_what_lives_on_disk_and_leaves_it_there(runner: asyncio.Runner) -> None:
    core = Core(runner, resident_budget_bytes=0)
    api = Api(core)
    api.put("queues", "/", "q", durable=True)
    # Each queue keeps 128 KiB in memory while the budget is used up; zero is always used up.
    large = "x" * 100_000
    for number in range(4):
        api.publish("q", f"{number}{large}", delivery_mode=2 if number % 2 else 1)
    queue = core.queue("q")
    paged = sum(lane.paged_count for lane in queue.lanes)
    assert paged == 4
    found = api.browse("q", "offset=1&count=2&truncate=1")
    assert [message["payload"] for message in found] == ["1", "2"]
    assert sum(lane.paged_count for lane in queue.lanes) == paged
    assert queue.resident_bytes == 0
    got = api.post("queues", "/", "q", "get", ackmode="ack_requeue_false", count=4, truncate=1)
    assert [message["payload"] for message in got.json] == ["0", "1", "2", "3"]


def test_browsing_stops_where_it_shows_enough_bytes(api: Api, core: Core) -> None:
    api.put("queues", "/", "q")
    large = "x" * (6 << 20)
    for _ in range(4):
        api.publish("q", large)
    assert len(browse(core.queue("q"), core.broker.pager, 0, 10).found) == 3
    assert len(api.browse("q", "count=10&truncate=1")) == 3


def test_messages_are_moved_from_the_head_with_their_properties(api: Api) -> None:
    for queue in ("dead", "orders"):
        api.put("queues", "/", queue, durable=True)
    for number in range(5):
        api.publish("dead", str(number), headers={"n": number}, delivery_mode=2)
    answer = api.post("rhizome", "queues", "/", "dead", "move", to="orders", count=3)
    assert answer.json == {"moved": 3, "left": 2}
    moved = api.browse("orders")
    assert [each["payload"] for each in moved] == ["0", "1", "2"]
    assert [each["properties"]["headers"] for each in moved] == [{"n": n} for n in range(3)]
    assert [each["payload"] for each in api.browse("dead")] == ["3", "4"]
    answer = api.post("rhizome", "queues", "/", "dead", "move", to="orders")
    assert answer.json == {"moved": 2, "left": 0}


def test_what_a_full_queue_refuses_stays_where_it_is(api: Api) -> None:
    api.put("queues", "/", "dead", durable=True)
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    api.put("queues", "/", "full", durable=True, arguments=full)
    for number in range(3):
        api.publish("dead", str(number))
    answer = api.post("rhizome", "queues", "/", "dead", "move", to="full")
    assert (answer.status, answer.reason) == (400, "moved 1, then queue 'full' refused a message")
    assert [each["payload"] for each in api.browse("dead")] == ["1", "2"]


@pytest.mark.parametrize(
    ("to", "said"),
    [("q", "into itself"), ("missing", "there is no queue 'missing'")],
)
def test_a_move_that_makes_no_sense_is_refused(api: Api, to: str, said: str) -> None:
    api.put("queues", "/", "q")
    answer = api.post("rhizome", "queues", "/", "q", "move", to=to)
    assert answer.status == 400
    assert said in answer.reason


@pytest.mark.parametrize(
    ("method", "path", "sent"),
    [
        ("DELETE", "/api/queues/%2F/q/contents", {}),
        ("DELETE", "/api/queues/%2F/q?if-empty=true", {}),
        ("POST", "/api/queues/%2F/q/get", {"count": 1, "ackmode": "ack_requeue_false"}),
        ("POST", "/api/rhizome/queues/%2F/q/move", {"to": "other", "count": 1}),
    ],
)
def test_a_home_without_a_lease_says_nothing_of_its_queues(
    api: Api, core: Core, method: str, path: str, sent: dict[str, object]
) -> None:
    """R9: another broker may be the home by now."""
    api.put("queues", "/", "q", durable=True)
    api.put("queues", "/", "other", durable=True)
    api.publish("q", "x", delivery_mode=2)
    core.broker.isolate("broker 'b1' is isolated")
    answer = api.ask(method, path, json.dumps(sent).encode())
    assert (answer.status, "broker 'b1' is isolated" in answer.reason) == (503, True)
    core.broker.isolate("")
    assert api.payloads("q") == ["x"]
    assert api.payloads("other") == []


def test_a_message_that_is_not_committed_is_not_given_out(api: Api, core: Core) -> None:
    """L1: it waits until it is on the copies."""
    api.put("queues", "/", "q", durable=True)
    api.publish("q", "x", delivery_mode=2)
    queue = core.queue("q")
    queue.log.visible = 0
    queue.last_used_ms = 0
    sent = json.dumps({"count": 1, "ackmode": "ack_requeue_false"}).encode()

    async def get() -> Answer:
        asked = asyncio.ensure_future(api.asking("POST", "/api/queues/%2F/q/get", sent))
        while queue.last_used_ms == 0:
            await asyncio.sleep(0)
        assert not asked.done()
        queue.log.visible = EVERYTHING
        return await asked

    assert [each["payload"] for each in core.run(get()).json] == ["x"]
