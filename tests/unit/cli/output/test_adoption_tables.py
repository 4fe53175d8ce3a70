"""What `rhizome adopt` shows."""

from __future__ import annotations

from typing import Any

from rhizome.adopt.adoption_state import AdoptionState
from rhizome.adopt.definitions_rehearsal import Finding, Outcome, Rehearsal
from rhizome.adopt.move_verification import Remainder
from rhizome.adopt.queue_crossing import Moved
from rhizome.adopt.queue_listing import Listing, QueueCounts, QueueKey
from rhizome.cli.output.adoption_tables import (
    plan_document,
    plan_lines,
    queue_lines,
    remainder_lines,
    summary,
)

KEYS = [QueueKey("/", f"q{number}") for number in range(7)]


def side(messages: int, consumers: int) -> dict[str, Any]:
    return {"messages": messages, "unacked": 1, "consumers": consumers, "publish_rate": 1500.0}


def row(name: str, direction: str, **fields: Any) -> dict[str, Any]:
    plain = {"why": "no consumers", "forward": 0, "back": 0, "under_way": 0, "trouble": ""}
    ends = {"source": side(0, 0), "target": None}
    return {"vhost": "/", "name": name, "direction": direction, **plain, **ends, **fields}


def test_a_plan_begins_with_what_comes_over_and_then_with_what_is_refused() -> None:
    refused = Finding(Outcome.REFUSED, "exchanges", "/", "odd", "unknown exchange type 'x-odd'")
    ignored = Finding(Outcome.IGNORED, "policies", "/", "p", "ha-sync-mode: copies")
    rehearsal = Rehearsal({"vhosts": [{}], "queues": [{}, {}]}, [ignored, refused])
    lines = plan_lines(rehearsal, Listing())
    assert lines[0] == "Rhizome takes 1 vhosts, 2 queues"
    assert lines[2].startswith("Refused")
    assert lines[4].split() == ["exchanges", "/", "odd", "unknown", "exchange", "type", "'x-odd'"]
    assert lines[6].startswith("Taken, and without effect")
    (first, second) = plan_document(rehearsal, Listing())["findings"]
    assert (first["outcome"], second["outcome"]) == ("ignored", "refused")


def test_a_plan_names_queues_that_need_attention_and_no_more_than_a_few() -> None:
    source = dict.fromkeys(KEYS, QueueCounts(messages=1))
    source[QueueKey("v", "log")] = QueueCounts(kind="stream")
    source[QueueKey("v", "mine")] = QueueCounts(is_private=True)
    lines = plan_lines(Rehearsal(), Listing(source))
    assert "1 streams, whose entries are not moved: v/log" in lines
    assert "7 queues with messages and no consumers; --move moves them:" in lines[-1]
    assert lines[-1].endswith("q0, q1, q2, q3, q4 and 2 more")


def test_queues_stand_side_by_side_with_the_trouble_before_the_reason() -> None:
    rows = [row("calm", "rest"), row("q", "forward", forward=12, trouble="queue is full")]
    assert len(queue_lines(rows)) == 3
    heading, busy = queue_lines(rows, only_busy=True)
    assert heading.split()[:2] == ["queue", "direction"]
    assert busy.split() == [
        *("q", "forward", "0", "1", "0", "1.5k"),
        *("-", "-", "-", "-", "12", "0", "queue", "is", "full"),
    ]
    assert queue_lines([row("calm", "rest")], only_busy=True) == []


def test_a_summary_adds_up_both_sides() -> None:
    rows = [row("a", "back", source=side(3, 1), target=side(4, 0)), row("b", "rest")]
    state = AdoptionState("x", "y", rows=rows, moved={KEYS[0]: Moved(5, 6), KEYS[1]: Moved(1, 0)})
    assert summary(state) == (
        "2 queues: 0 forward, 1 back, 1 rest; messages at RabbitMQ 3, at Rhizome 4;"
        " brought over 6, brought back 6"
    )


def test_what_is_open_comes_before_notes() -> None:
    note = Remainder("stream", "log", "its entries are not moved", is_open=False)
    lines = remainder_lines([note, Remainder("consumers", "q", "2 consumers are left")])
    assert [line.split()[0] for line in lines[1:]] == ["open", "note"]
    assert remainder_lines([]) == []
