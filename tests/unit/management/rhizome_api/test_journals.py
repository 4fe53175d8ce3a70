"""/api/rhizome/journals: who may read journals, of what, how fast, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rhizome.journal.record_walk import walk
from rhizome.journal.records import SEGMENT_HEADER_BYTES, crc32c
from rhizome.management.errors import Unavailable
from rhizome.management.journal_readers import (
    RANGE_BYTES_MAX,
    WAIT_SECONDS_MAX,
    JournalReaders,
    ReadRate,
)
from rhizome.security.audit_log import Audit
from tests.unit.management.conftest import Answer, Api, Core

PINS = ("rhizome", "journals", "rhizome", "pins")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(core: Core) -> Clock:
    clock = Clock()
    core.context.journal_readers = JournalReaders(core.store, clock)
    return clock


def set_limits(core: Core, **limits: Any) -> None:
    config: Any = core.context.config
    core.context.config = replace(config, journal=replace(config.journal, **limits))


def make_pin(api: Api) -> Any:
    answer = api.post(*PINS)
    assert answer.status == 201, answer.body
    return answer.json


def read(api: Api, pin: Any, part: str, query: str = "") -> Answer:
    return api.get(*PINS, pin["pin"], part, query=query)


def fill(api: Api, queue: str = "q", count: int = 20) -> None:
    api.put("queues", "/", queue, durable=True)
    for number in range(count):
        api.publish(queue, f"message {number}", delivery_mode=2)


def sweep(core: Core) -> None:
    config = core.context.config
    core.run(core.context.journal_readers.sweep(config.journal, config.disk.free_min_bytes))


# ---- what is read -------------------------------------------------------------------------------


def test_pin_has_the_committed_records_and_ranges_have_checksums(api: Api, core: Core) -> None:
    fill(api)
    pin = make_pin(api)
    assert pin["broker"] == "rhizome"
    (part,) = [each for each in pin["parts"] if each["kind"] == "segment"]
    assert part["sealed"] is False
    assert part["size"] == part["committed"] > SEGMENT_HEADER_BYTES
    whole = read(api, pin, part["name"])
    assert whole.headers["content-type"] == "application/octet-stream"
    assert len(whole.body) == part["size"]
    assert int(whole.headers["x-rhizome-crc32c"], 16) == crc32c(whole.body)
    _, stop = walk(whole.body, SEGMENT_HEADER_BYTES)
    assert stop == part["size"], "only whole records"
    assert whole.body.count(b"message ") == 20
    pieces = [
        read(api, pin, part["name"], f"from={at}&bytes=100").body
        for at in range(0, part["size"], 100)
    ]
    assert b"".join(pieces) == whole.body
    assert read(api, pin, part["name"], f"from={part['size']}").body == b""


def test_pin_does_not_grow_with_the_journal(api: Api) -> None:
    fill(api)
    pin = make_pin(api)
    (part,) = pin["parts"]
    before = read(api, pin, part["name"]).body
    fill(api)
    assert read(api, pin, part["name"]).body == before
    assert make_pin(api)["parts"][0]["size"] > part["size"]


def test_streams_are_parts_too(api: Api, core: Core) -> None:
    api.put("rhizome", "streams", "/", "events")
    api.publish("events", "hello stream")
    pin = make_pin(api)
    (part,) = [each for each in pin["parts"] if each["kind"] == "stream"]
    stream = core.queue("events").definition.id
    assert part["name"] == f"stream-{stream}-{part['number']}"
    assert part["stream"] == stream
    assert b"hello stream" in read(api, pin, part["name"]).body


def test_state_names_queues_and_streams(api: Api, core: Core) -> None:
    fill(api, "orders", 1)
    api.put("rhizome", "streams", "/", "events")
    state = api.get("rhizome", "journals", "rhizome", "state").json
    assert state["broker"] == "rhizome"
    assert state["groups"] == []
    assert {
        (each["id"], each["vhost"], each["name"], each["stream"]) for each in state["queues"]
    } == {
        (core.queue("orders").definition.id, "/", "orders", False),
        (core.queue("events").definition.id, "/", "events", True),
    }


def test_lone_broker_tells_its_own_address(api: Api) -> None:
    assert api.get("rhizome", "journals").json == [
        {"broker": "rhizome", "reachable": True, "http": ["http://127.0.0.1:15672"]}
    ]


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("from=-1", "whole number"),
        ("bytes=0", "from 1 to"),
        (f"bytes={RANGE_BYTES_MAX + 1}", "from 1 to"),
        ("from=99999999", "has"),
    ],
)
def test_range_outside_of_a_part_is_refused(api: Api, query: str, reason: str) -> None:
    fill(api)
    pin = make_pin(api)
    answer = read(api, pin, pin["parts"][0]["name"], query)
    assert answer.status == 400
    assert reason in answer.reason


# ---- who may read -------------------------------------------------------------------------------


@pytest.mark.parametrize("user", ["monitor", "maker", "manager", "nobody", "stranger"])
def test_others_are_refused_and_told_which_tag_it_takes(
    as_user: Callable[[str], Api], user: str
) -> None:
    for answer in (as_user(user).get("rhizome", "journals"), as_user(user).post(*PINS)):
        assert answer.status == 401
        assert "tag auditor" in answer.reason


def test_auditor_reads_journals_and_nothing_else(api: Api, as_user: Callable[[str], Api]) -> None:
    api.put("users", "eve", password="eve", tags="auditor")
    eve = as_user("eve")
    pin = make_pin(eve)
    assert read(eve, pin, pin["parts"][0]["name"]).status == 200
    assert eve.get("rhizome", "journals").status == 200
    assert eve.get("rhizome", "journals", "rhizome", "state").status == 200
    for path in (("queues",), ("users",), ("overview",), ("rhizome", "cluster")):
        assert eve.get(*path).status == 401
    assert eve.delete(*PINS, pin["pin"]).status == 204


def test_making_and_ending_pins_is_in_the_audit_log(api: Api, core: Core) -> None:
    noted: list[tuple[str, str, int]] = []

    class Noting(Audit):
        def change(
            self, user: str, place: str, via: str, what: str, status: int, origin: str = ""
        ) -> None:
            noted.append((user, what, status))

    core.context.audit = Noting()
    pin = make_pin(api)
    api.delete(*PINS, pin["pin"])
    path = "/api/rhizome/journals/rhizome/pins"
    assert noted == [
        ("guest", f"POST {path}", 201),
        ("guest", f"DELETE {path}/{pin['pin']}", 204),
    ]


# ---- how long -----------------------------------------------------------------------------------


def test_part_stays_readable_when_the_store_removes_its_file(api: Api, core: Core) -> None:
    fill(api)
    pin = make_pin(api)
    (part,) = pin["parts"]
    whole = read(api, pin, part["name"]).body
    core.store._files.remove(part["number"])
    assert read(api, pin, part["name"]).body == whole


def test_pin_ends_when_it_is_told_to(api: Api) -> None:
    fill(api)
    pin = make_pin(api)
    (row,) = api.get(*PINS).json
    assert (row["pin"], row["user"], row["parts"]) == (pin["pin"], "guest", len(pin["parts"]))
    assert api.get(*PINS, pin["pin"]).json == pin
    assert api.delete(*PINS, pin["pin"]).status == 204
    answer = read(api, pin, pin["parts"][0]["name"])
    assert answer.status == 404
    assert "make another one" in answer.reason
    assert api.get(*PINS).json == []


def test_pin_that_nobody_reads_ends(api: Api, core: Core, clock: Clock) -> None:
    idle_s = core.context.config.journal.pin_idle_ms / 1000
    fill(api)
    pin, unread = make_pin(api), make_pin(api)
    clock.now += idle_s - 1
    assert read(api, pin, pin["parts"][0]["name"]).status == 200
    clock.now += 2
    sweep(core)
    assert [row["pin"] for row in api.get(*PINS).json] == [pin["pin"]]
    assert read(api, unread, unread["parts"][0]["name"]).status == 404


def test_pin_ends_at_its_lifetime_however_much_it_is_read(
    api: Api, core: Core, clock: Clock
) -> None:
    set_limits(core, pin_idle_ms=10_000, pin_lifetime_ms=15_000)
    fill(api)
    pin = make_pin(api)
    for _ in range(2):
        clock.now += 9
        assert read(api, pin, pin["parts"][0]["name"]).status == 200
    sweep(core)
    assert api.get(*PINS).json == []


def test_oldest_pins_end_when_they_hold_too_much(api: Api, core: Core, clock: Clock) -> None:
    fill(api)
    first, second = make_pin(api), make_pin(api)
    (part,) = first["parts"]
    set_limits(core, pinned_bytes_max=part["size"])
    sweep(core)
    assert len(api.get(*PINS).json) == 2, "nothing is held as long as the store has the files"
    core.store._files.remove(part["number"])
    sweep(core)
    assert [row["pin"] for row in api.get(*PINS).json] == [second["pin"]]
    assert read(api, second, part["name"]).status == 200


def test_all_pins_end_when_the_disk_is_nearly_full(api: Api, core: Core) -> None:
    make_pin(api)
    free = core.store.free_bytes()
    readers = core.context.journal_readers
    core.run(readers.sweep(core.context.config.journal, free))
    assert len(readers.pins()) == 1
    core.run(readers.sweep(core.context.config.journal, free + 1))
    assert readers.pins() == []


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_number_of_pins_has_a_limit(api: Api, core: Core, limit: int) -> None:
    set_limits(core, pins_max=limit)
    for _ in range(limit):
        make_pin(api)
    answer = api.post(*PINS)
    assert answer.status == 503
    assert "journal.pins_max" in answer.reason


# ---- how fast -----------------------------------------------------------------------------------


def test_readers_get_no_more_than_the_rate() -> None:
    clock = Clock()
    rate = ReadRate(clock)
    assert [rate.wait_seconds(100, 1000) for _ in range(4)] == pytest.approx([0, 0.1, 0.2, 0.3])
    clock.now += 10
    assert [rate.wait_seconds(100, 1000) for _ in range(2)] == pytest.approx([0, 0.1])


def test_who_would_wait_for_too_long_is_told_to_try_again() -> None:
    rate = ReadRate(Clock())
    rate.wait_seconds(int(WAIT_SECONDS_MAX * 1000) + 1000, 1000)
    with pytest.raises(Unavailable, match=r"journal\.read_rate"):
        rate.wait_seconds(1, 1000)
