"""The heap of due times and the table of ids, against plain ones of Python's."""

from __future__ import annotations

import heapq
import random

from rhizome.broker.publishing import schedule_ids
from rhizome.broker.publishing.schedule_ids import ScheduleIds
from rhizome.broker.queue import due_heap
from rhizome.broker.queue.due_heap import NEVER_DUE_MS, DueHeap


def test_the_heap_does_what_a_plain_one_does() -> None:
    chance = random.Random(7)
    heap, other = DueHeap(), DueHeap()
    model: list[tuple[int, int]] = []
    for index in range(3 * due_heap.CHUNK_ENTRIES):
        due_ms = chance.randrange(1_000)
        heap.push(due_ms, index)
        heapq.heappush(model, (due_ms, index))
        if chance.random() < 0.3:
            assert heap.first_ms() == model[0][0]
            assert heap.pop() == heapq.heappop(model)[1]
    assert len(heap) == len(model)
    for _ in range(len(model) // 2):
        heap.move_last(other)
    found = []
    while len(heap) + len(other) > 0:
        first = heap if heap.first_ms() <= other.first_ms() else other
        if heap.first_ms() == other.first_ms() and other.first_index() < heap.first_index():
            first = other
        found.append((int(first.first_ms()), int(first.pop())))
    assert found == sorted(model)
    assert heap.first_ms() == NEVER_DUE_MS


def test_ids_are_found_and_forgotten_as_in_a_dict() -> None:
    chance = random.Random(8)
    ids = ScheduleIds()
    model: dict[int, int] = {}
    top = (1 << 40) + 5_000
    for number in range(30_000):
        key = chance.randrange(1 << 62)
        ids.add(key, top - 30_000 + number)
        model[key] = top - 30_000 + number
        if chance.random() < 0.5:
            gone = chance.choice(list(model)[-20:])
            assert ids.remove(gone, model[gone])
            assert not ids.remove(gone, model.pop(gone))
    assert len(ids) == len(model)
    for key, index in model.items():
        assert index in ids.find(key, top + 1)
    assert sum(len(ids.find(chance.randrange(1 << 62), top)) for _ in range(1_000)) < 10


def test_ids_that_meet_in_one_place_stay_apart() -> None:
    ids = ScheduleIds()
    keys = [number * schedule_ids.PARTS for number in range(40)]
    for index, key in enumerate(keys):
        ids.add(key, index)
    for index, key in enumerate(keys[::2]):
        assert ids.remove(key, index * 2)
    for index, key in enumerate(keys):
        assert (index in ids.find(key, 100)) == (index % 2 == 1)
