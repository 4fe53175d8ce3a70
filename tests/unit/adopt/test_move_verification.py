"""What is left at the side that is to be empty, and what of it keeps the adoption open."""

from __future__ import annotations

from typing import Any

from rhizome.adopt.adoption_state import AdoptionState
from rhizome.adopt.move_verification import Evidence, Remainder, remainders
from rhizome.adopt.queue_crossing import Moved
from rhizome.adopt.queue_direction import Direction
from rhizome.adopt.queue_listing import Listing, QueueCounts, QueueKey

KEY = QueueKey("/", "q")
EMPTY = QueueCounts()


def found(
    source: QueueCounts | None = EMPTY,
    target: QueueCounts | None = EMPTY,
    *,
    ready: int = 0,
    connections: tuple[dict[str, Any], ...] = (),
    state: AdoptionState | None = None,
    goal: Direction = Direction.FORWARD,
) -> list[Remainder]:
    listing = Listing({KEY: source} if source else {}, {KEY: target} if target else {})
    return remainders(Evidence(listing, {KEY: ready}, connections, state), goal)


def connection(name: str = "", user: str = "app") -> dict[str, Any]:
    properties = {"product": "pika", "version": "1.3.2", "connection_name": name}
    return {"user": user, "peer_host": "10.0.0.7", "client_properties": properties}


def test_empty_queues_and_no_connections_are_the_end() -> None:
    assert found() == []
    assert found(connections=(connection("rhizome bridge adopt.q"),)) == []


def test_messages_that_are_ready_or_held_are_left() -> None:
    (ready,) = found(ready=3)
    assert (ready.what, ready.is_open) == ("messages", True)
    assert ready.text == "3 messages are ready; --move 'q' moves them without a consumer"
    (held,) = found(QueueCounts(unacked=2))
    assert held.text == "2 messages are not acknowledged"


def test_the_count_of_the_http_api_alone_keeps_nothing_open() -> None:
    """It may be seconds old: what counts was asked over AMQP."""
    assert found(QueueCounts(messages=9)) == []


def test_consumers_are_left_and_their_messages_need_no_hint() -> None:
    messages, consumers = found(QueueCounts(consumers=2), ready=1)
    assert "--move" not in messages.text
    assert consumers.text == "2 consumers are left"


def test_connections_are_counted_by_who_has_them() -> None:
    left = found(connections=(connection(), connection(), connection(user="cron")))
    assert [(each.name, each.text) for each in left] == [
        ("app", "2 from 10.0.0.7 (pika 1.3.2)"),
        ("cron", "1 from 10.0.0.7 (pika 1.3.2)"),
    ]


def test_a_shovel_of_the_broker_itself_is_known_by_having_no_address() -> None:
    (link,) = found(connections=({"user": "none", "peer_host": None},))
    assert link.text == "1 from within the broker (a shovel or a federation link)"


def test_a_queue_that_the_other_side_lacks_keeps_it_open() -> None:
    (missing,) = found(target=None)
    assert (missing.what, missing.is_open) == ("queue", True)
    assert found(QueueCounts(is_private=True), None) == []


def test_a_stream_is_told_of_and_keeps_nothing_open() -> None:
    (stream,) = found(QueueCounts(kind="stream"), None, ready=5)
    assert (stream.what, stream.is_open) == ("stream", False)


def test_on_the_way_back_the_other_side_is_looked_at() -> None:
    assert found(QueueCounts(consumers=1), goal=Direction.BACK) == []
    (left,) = found(target=QueueCounts(consumers=1), goal=Direction.BACK)
    assert left.what == "consumers"


def test_what_is_under_way_or_in_trouble_keeps_it_open_while_it_runs() -> None:
    row = {"vhost": "/", "name": "q", "under_way": 2, "trouble": "no queue"}
    state = AdoptionState("a", "b", is_running=True, rows=[row])
    assert [each.what for each in found(state=state)] == ["under way", "trouble"]
    state.is_running = False
    assert found(state=state) == []


def test_what_was_taken_and_not_brought_is_lost() -> None:
    balanced = Moved(forward=3, back=1, dropped=1, taken=5)
    assert found(state=AdoptionState("a", "b", moved={KEY: balanced})) == []
    short = Moved(forward=3, back=1, taken=5)
    (lost,) = found(state=AdoptionState("a", "b", moved={KEY: short}))
    assert (lost.what, lost.is_open) == ("lost", True)


def test_what_may_have_come_twice_is_told_and_keeps_nothing_open() -> None:
    state = AdoptionState("a", "b", ends_unclean=1, moved={KEY: Moved(in_doubt=4, sent_again=2)})
    left = found(state=state)
    assert [each.is_open for each in left] == [False, False]
    assert left[0].text.startswith("6 were sent without an answer")
