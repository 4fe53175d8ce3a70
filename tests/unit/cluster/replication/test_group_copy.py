"""The passive copy against a simple model, with restarts between."""

from __future__ import annotations

import copy as copying

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhizome.cluster.replication.epoch_history import common_end
from rhizome.cluster.replication.group_copy import GroupCopy
from rhizome.journal.errors import CorruptRecord
from tests.unit.cluster.replication.broker_disk import GROUP, Place, references
from tests.unit.cluster.replication.log_model import Content, Log, check

STEP = st.tuples(st.integers(0, 20), st.integers(0, 40), st.integers(0, 40))
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("apply"), st.lists(STEP, min_size=1, max_size=12)),
        st.tuples(st.just("apply"), st.lists(STEP, min_size=1, max_size=12)),
        st.tuples(st.just("transaction"), st.lists(STEP, min_size=1, max_size=6)),
        st.tuples(st.just("sync"), st.lists(STEP, max_size=2)),
        st.tuples(st.just("checkpoint"), st.just([])),
        st.tuples(st.just("compact"), st.just([])),
        st.tuples(st.just("restart"), st.just([])),
    ),
    max_size=40,
)


class Scene:
    """A home that is never wrong, and a copy that follows it on a disk that may lose its tail.

    `states[i]` is what the durable records up to the i-th submit amount to, with the log's end.
    """

    def __init__(self, segment_bytes: int = 4096) -> None:
        self.place = Place(segment_bytes=segment_bytes)
        self.copy = GroupCopy(GROUP, self.place.journal, self.place.spill)
        self.log = Log()
        self.copy.begin_epoch(1, 1)
        self.expected = Content()
        self.submitted: list[tuple[int, Content, int]] = []
        self.synced = (Content(), 0)
        self.submit()
        self.synced_up_to(self.place.sync())

    def apply(self, data: bytes) -> None:
        self.copy.apply(data, 0, len(data))
        assert self.copy.index == self.log.next_index - 1

    def submit(self) -> None:
        token = self.place.submit()
        self.copy.handed_over(token)
        state = (token, copying.deepcopy(self.log.kept), int(self.copy.index))
        self.submitted.append(state)

    def synced_up_to(self, position: int) -> None:
        disk = self.copy.synced(position)
        while self.submitted and self.submitted[0][0] <= position:
            _, content, index = self.submitted.pop(0)
            self.synced = (content, index)
        assert disk >= self.synced[1] or disk == self.copy.index

    def restart(self) -> None:
        self.place = self.place.restart()
        self.copy = self.place.copy()
        content, index = self.synced
        self.log.all = copying.deepcopy(content)
        self.log.kept = copying.deepcopy(content)
        # The log itself went on; the copy is cut off where its disk was. As a new home would, it
        # goes on from there.
        self.log.next_index = index + 1
        assert self.copy.index <= index, "records without a durable one may be missing at the end"
        self.copy.advance(index)
        self.submitted = []

    def check(self) -> None:
        self.submit()
        check(self.copy, self.place, self.log.all)
        counted = references(self.copy)
        held = self.place.journal.live_references() | self.place.spill.live_references()
        assert counted == held


@settings(max_examples=150, deadline=None)
@given(ACTIONS)
def test_a_copy_has_what_the_records_amount_to_and_recovery_finds_the_same(
    actions: list[tuple[str, list[tuple[int, int, int]]]],
) -> None:
    scene = Scene()
    for name, steps in actions:
        if name == "apply":
            for step in steps:
                scene.log.step(*step)
            scene.apply(scene.log.take())
        elif name == "transaction":
            scene.log.transaction(steps)
            scene.apply(scene.log.take())
        elif name == "sync":
            scene.submit()
            scene.synced_up_to(scene.place.sync(len(steps) + 1))
        elif name == "checkpoint":
            scene.log.checkpointed()
            scene.place.checkpoint([scene.copy])
            scene.submit()
            scene.synced_up_to(scene.place.sync())
        elif name == "compact":
            scene.submit()
            scene.place.compact(scene.copy)
            scene.submit()
            scene.synced_up_to(scene.place.sync())
        else:
            scene.restart()
        scene.check()


def filled(count: int, durable: bool = True, size: int = 100) -> Scene:
    scene = Scene()
    for _ in range(count):
        scene.log.enqueue([1], b"x" * size, durable)
    scene.apply(scene.log.take())
    return scene


@pytest.mark.parametrize("durable", [True, False])
def test_segments_become_free_while_a_copy_is_passive(durable: bool) -> None:
    scene = Scene()
    for _ in range(50):
        for _ in range(20):
            scene.log.enqueue([1, 2], b"x" * 100, durable)
        for queue in (1, 2):
            scene.log.dequeue(queue, sorted(scene.log.all.queues[queue]))
        scene.apply(scene.log.take())
        scene.place.checkpoint([scene.copy])
    assert len(scene.place.files.segments()) <= 3
    assert len(scene.place.spill_files.segments()) <= 3


def test_records_that_follow_each_other_are_appended_in_one_piece() -> None:
    scene = Scene(segment_bytes=1 << 20)
    for _ in range(100):
        scene.log.enqueue([1], b"x" * 100, True)
    data = scene.log.take()
    scene.place.submit()
    before = scene.place.journal.records_appended
    scene.copy.apply(data, 0, len(data))
    assert scene.place.journal.records_appended - before == 100
    chunks = scene.place.journal.take()
    assert [piece for chunk in chunks for piece in chunk.pieces if len(piece) > 1000] == [data]


def test_part_of_a_buffer_is_applied() -> None:
    scene = Scene()
    scene.log.enqueue([1], b"body", True)
    scene.log.enqueue([1], b"body", False)
    data = scene.log.take()
    scene.copy.apply(b"before" + data + b"after", 6, 6 + len(data))
    scene.check()


def test_damaged_and_foreign_records_are_refused() -> None:
    scene = filled(3)
    scene.log.enqueue([1], b"good", True)
    good = scene.log.take()
    for at in range(len(good)):
        damaged = bytearray(good)
        damaged[at] ^= 1
        with pytest.raises(CorruptRecord):
            scene.copy.apply(bytes(damaged), 0, len(damaged))
    foreign = GroupCopy(GROUP + 1, scene.place.journal, scene.place.spill)
    with pytest.raises(CorruptRecord, match="group"):
        foreign.apply(good, 0, len(good))
    with pytest.raises(CorruptRecord):
        scene.copy.apply(good, 0, len(good) - 1)
    assert scene.copy.index == 3
    scene.apply(good)
    scene.check()


def test_transient_messages_of_a_transaction_do_not_come_back_with_a_restart() -> None:
    scene = Scene()
    scene.log.transaction([(0, 0, 1), (1, 0, 1), (0, 1, 1)])
    scene.apply(scene.log.take())
    scene.check()
    transient = [i for i, body in scene.log.all.queues[1].items() if not body.durable]
    assert len(transient) == 1
    scene.log.dequeue(1, transient)
    scene.apply(scene.log.take())
    scene.submit()
    scene.synced_up_to(scene.place.sync())
    scene.restart()
    scene.check()


def test_what_is_on_disk_is_told_by_index() -> None:
    scene = filled(5)
    assert scene.copy.disk == 0
    scene.submit()
    assert scene.copy.disk == 0
    scene.log.enqueue([1], b"transient", False)
    scene.apply(scene.log.take())
    scene.submit()
    scene.synced_up_to(scene.place.sync())
    assert scene.copy.disk == 6, "what need not be on disk counts as if it were"
    scene.log.enqueue([1], b"durable", True)
    scene.apply(scene.log.take())
    scene.synced_up_to(scene.place.sync())
    assert scene.copy.disk == 6


def test_truncation_drops_what_is_above_and_marks_the_copy() -> None:
    scene = filled(10)
    scene.copy.begin_epoch(2, 11)
    scene.log.enqueue([1], b"transient", False)
    scene.log.enqueue([1], b"durable", True)
    scene.apply(scene.log.take())
    assert (scene.copy.whole, scene.copy.installing) == (True, False)
    scene.copy.truncate(8, 3)
    assert (scene.copy.whole, scene.copy.installing) == (False, True)
    assert (scene.copy.epoch, scene.copy.index) == (3, 8)
    assert scene.copy.starts == [(1, 1), (3, 9)]
    scene.submit()
    assert scene.copy.synced(scene.place.sync()) == 8
    for found in (scene.copy, scene.place.restart().copy()):
        assert [i for i, _ in found.queues[1].levels[0].positions()] == list(range(1, 9))
        assert (found.epoch, found.index, found.installing) == (3, 8, True)
    assert references(scene.copy) == scene.place.journal.live_references()
    assert not scene.place.spill.live_references()


def test_the_mark_of_an_install_survives_until_it_is_lifted() -> None:
    scene = filled(3)
    scene.copy.begin_install()
    scene.copy.begin_install()
    scene.submit()
    scene.place.sync()
    assert scene.place.restart().copy().installing
    scene.place.checkpoint([scene.copy])
    assert scene.place.restart().copy().installing
    scene.copy.end_install()
    assert scene.copy.disk == 0, "until that is on disk nothing counts"
    assert scene.copy.installing
    scene.submit()
    assert scene.copy.synced(scene.place.sync()) == 3
    assert not scene.copy.installing
    restarted = scene.place.restart().copy()
    assert not restarted.installing
    assert not restarted.whole, "transient messages were lost"


@pytest.mark.parametrize(
    ("own", "index", "home", "end"),
    [
        ([(1, 1)], 20, [(1, 1)], 20),
        ([(1, 1)], 20, [(1, 1), (2, 10)], 9),
        ([(1, 1)], 5, [(1, 1), (2, 10)], 5),
        ([(1, 1), (2, 10)], 15, [(1, 1), (3, 13)], 9),
        ([(1, 1), (2, 10)], 15, [(1, 1), (2, 10), (3, 13)], 12),
        ([(1, 1), (2, 10)], 9, [(1, 1), (3, 10)], 9),
        ([(1, 1), (2, 10)], 12, [(1, 1), (3, 20)], 9),
        ([(1, 1), (3, 10), (4, 12)], 30, [(1, 1), (2, 5), (5, 9)], 4),
        ([], 0, [(1, 1)], 0),
        ([], 7, [(1, 1)], 0),
        ([(2, 5)], 7, [(1, 1), (2, 5)], 0),
    ],
)
def test_histories_part_where_their_epochs_differ(
    own: list[tuple[int, int]], index: int, home: list[tuple[int, int]], end: int
) -> None:
    assert common_end(own, index, home) == end
    place = Place()
    copy = GroupCopy(GROUP, place.journal, place.spill)
    for epoch, start in own:
        copy.begin_epoch(epoch, start)
    copy.advance(index)
    copy.follow(home)
    assert copy.starts == home
    assert copy.epoch == home[-1][0]
    went_on = end == index and index >= home[-1][1] - 1
    assert copy.whole == went_on
    place.submit()
    place.sync()
    restarted = place.restart().copy()
    assert (restarted.starts, restarted.installing) == (home, not went_on)


def test_a_queue_is_taken_out_with_its_references() -> None:
    scene = Scene()
    for number in range(20):
        scene.log.enqueue([1, 2], b"x" * number, number % 2 == 0, number % 3)
    scene.log.requeue(1, 5, 3)
    scene.log.dequeue(1, [1, 2])
    scene.apply(scene.log.take())
    taken = scene.copy.recovered(1)
    assert taken is not None
    assert scene.copy.recovered(1) is None
    assert (taken.queue_id, taken.group, taken.count) == (1, GROUP, 18)
    assert taken.delivery_counts == {5: 3}
    assert taken.content_bytes == sum(range(20)) - 1
    assert list(taken.levels) == [0, 1, 2]
    held = scene.place.journal.live_references() | scene.place.spill.live_references()
    assert sum(held.values()) == 38, "they go with the queue"
    scene.copy.adopt(taken)
    scene.check()
    again = scene.copy.recovered(1)
    assert again is not None
    assert again.content_bytes == sum(range(20)) - 1


def test_sizes_after_a_restart_are_estimated_and_never_wrong_when_nothing_is_left() -> None:
    scene = filled(20, size=100)
    scene.submit()
    scene.synced_up_to(scene.place.sync())
    scene.place.checkpoint([scene.copy])
    scene.restart()
    for _ in range(10):
        scene.log.enqueue([1], b"x" * 1000, True)
    scene.log.dequeue(1, list(range(1, 11)))
    scene.apply(scene.log.take())
    assert scene.copy.queues[1].bytes_below(1 << 62) == 10 * 100 + 10 * 1000
    scene.log.dequeue(1, list(range(11, 31)))
    scene.apply(scene.log.take())
    assert scene.copy.queues[1].bytes_below(1 << 62) == 0
    scene.check()


def test_a_copy_that_is_discarded_leaves_nothing_and_does_not_come_back() -> None:
    scene = filled(30)
    scene.log.enqueue([2], b"transient", False, origin=0xA)
    scene.log.number(0xB)
    scene.apply(scene.log.take())
    scene.copy.discard()
    assert scene.copy.installing
    assert not scene.place.journal.live_references()
    assert not scene.place.spill.live_references()
    scene.submit()
    scene.place.sync()
    restarted = scene.place.restart().copy()
    assert restarted.count() == 0
    assert restarted.origins == {}
    assert restarted.installing


def test_a_message_that_comes_twice_is_there_once() -> None:
    scene = Scene()
    record = scene.log.enqueue([1, 2], b"body", True)
    scene.apply(scene.log.take())
    scene.copy.apply(record, 0, len(record))
    scene.check()
