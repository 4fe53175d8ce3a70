"""The last minutes of queues, bounded."""

from __future__ import annotations

from rhizome.management.metrics import queue_history
from rhizome.management.metrics.queue_history import ALL, SAMPLES_MAX, History
from tests.unit.management.conftest import Api, Core


def rounds(kept: History, count: int, queue_id: int, ready: int) -> None:
    for number in range(count):
        kept.begin(number * 5000)
        kept.add(queue_id, (ready, 0, ready, 0, 0, 0), ready > 0)


def test_samples_come_back_in_columns_with_their_times() -> None:
    kept = History()
    kept.begin(1000)
    kept.add(7, (1, 2, 3, 4, 5, 60), True)
    kept.begin(6000)
    kept.add(7, (6, 7, 8, 9, 10, 61), True)
    assert kept.row(7) == {
        "times_ms": [1000, 6000],
        "ready": [1, 6],
        "unacked": [2, 7],
        "published": [3, 8],
        "delivered": [4, 9],
        "acked": [5, 10],
        "age_ms": [60, 61],
    }
    assert kept.depths(7) == [3, 13]


def test_a_queue_that_came_later_has_later_times_only() -> None:
    kept = History()
    kept.begin(1000)
    kept.begin(6000)
    kept.add(7, (1, 0, 1, 0, 0, 0), True)
    assert kept.row(7)["times_ms"] == [6000]
    assert kept.row(8)["times_ms"] == []


def test_old_samples_go() -> None:
    kept = History()
    rounds(kept, SAMPLES_MAX + 5, 7, 1)
    row = kept.row(7)
    assert len(kept.depths(7)) == SAMPLES_MAX
    assert row["times_ms"] == [number * 5000 for number in range(5, SAMPLES_MAX + 5)]


def test_idle_queues_cost_nothing() -> None:
    kept = History()
    rounds(kept, 3, 7, 0)
    assert kept.depths(7) == []
    rounds(kept, 1, 7, 1)
    rounds(kept, SAMPLES_MAX, 7, 0)
    assert len(kept.depths(7)) == SAMPLES_MAX
    rounds(kept, 2, 7, 0)
    assert kept.depths(7) == []


def test_only_so_many_queues_have_a_history() -> None:
    kept = History()
    kept.begin(0)
    for queue_id in range(queue_history.QUEUES_MAX + 10):
        kept.add(queue_id, (1, 0, 0, 0, 0), True)
    assert kept.depths(queue_history.QUEUES_MAX - 1) == [1]
    assert kept.depths(queue_history.QUEUES_MAX) == []


def test_the_sampler_fills_it(core: Core, api: Api) -> None:
    api.put("queues", "/", "q")
    api.put("queues", "/", "idle")
    api.publish("q", "x")
    core.run(core.context.rates.sample())
    core.now_ms += 5000
    api.publish("q", "x")
    core.run(core.context.rates.sample())
    row = api.get("rhizome", "queues", "/", "q", "history").json
    assert row["ready"] == [1, 2]
    assert row["times_ms"] == [1_000_000, 1_005_000]
    listed = {each["name"]: each["depths"] for each in api.get("queues", query="history=true").json}
    assert listed == {"q": [1, 2], "idle": []}
    assert core.context.rates.history.row(ALL)["published"] == [1, 2]
    api.delete("queues", "/", "q")
    core.run(core.context.rates.sample())
    assert core.context.rates.history.depths(int(core.context.rates.samples[0].at)) == []
