"""The window: order, resends, settlements, and what is recognised when it comes again."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from rhizome.amqp.properties import Properties, encode_header
from rhizome.bridge.in_flight_window import Entry, ExpectedRedeliveries, Settlement, State, Window
from rhizome.client import Message

PREFETCH = 4


def message(
    tag: int, body: bytes = b"", *, redelivered: bool = False, **properties: Any
) -> Message:
    header = encode_header(len(body), Properties(**properties))
    return Message(cast(Any, None), tag, "tag", redelivered, "", "q", header, body)


def window_of(*bodies: bytes) -> tuple[Window, list[Entry], ExpectedRedeliveries]:
    recall = ExpectedRedeliveries(100)
    window = Window(recall)
    entries = [window.add(message(tag, body)) for tag, body in enumerate(bodies, 1)]
    return window, entries, recall


def send_all(window: Window) -> list[Entry]:
    sent = []
    while (entry := window.take_unsent()) is not None:
        sent.append(entry)
    return sent


def test_entries_are_sent_in_the_order_of_delivery() -> None:
    window, entries, _ = window_of(b"a", b"b", b"c")
    assert send_all(window) == entries
    assert all(entry.state is State.SENT for entry in entries)


def test_only_the_front_is_acknowledged_and_at_once() -> None:
    window, (first, second, third), _ = window_of(b"a", b"b", b"c")
    send_all(window)
    second.state = State.TAKEN
    assert window.settle() == []
    first.state = State.TAKEN
    assert window.settle() == [Settlement(2, True)]
    third.state = State.TAKEN
    assert window.settle() == [Settlement(3, True)]
    assert len(window) == 0


def test_a_rejected_entry_is_settled_alone_between_acks() -> None:
    window, entries, _ = window_of(b"a", b"b", b"c", b"d")
    send_all(window)
    for entry in entries:
        entry.state = State.TAKEN
    entries[2].state = State.REJECTED
    assert window.settle() == [Settlement(2, True), Settlement(3, False), Settlement(4, True)]


def test_what_failed_is_sent_again_in_order_and_what_arrived_is_not() -> None:
    window, entries, _ = window_of(b"a", b"b", b"c", b"d")
    send_all(window)
    for entry in entries:
        entry.state = State.WAITING
    entries[1].state = State.TAKEN
    window.rewind()
    assert send_all(window) == [entries[0], entries[2], entries[3]]
    assert [entry.sends for entry in entries] == [2, 1, 2, 2]


def test_at_a_stop_only_what_may_have_arrived_is_waited_for() -> None:
    window, entries, _ = window_of(b"taken", b"sent", b"in doubt", b"refused", b"new")
    for _ in entries[:4]:
        window.take_unsent()
    entries[0].state = State.TAKEN
    entries[2].unanswered()
    entries[3].state = State.WAITING
    assert window.give_up_waiting() == [4, 5]
    assert window.settle() == [Settlement(1, True)]
    assert len(window) == 2
    assert window.take_unsent() is entries[2]
    assert window.take_unsent() is None


def test_a_redelivery_gets_its_entry_back() -> None:
    window, (first, second), recall = window_of(b"a", b"b")
    send_all(window)
    first.state = State.TAKEN
    first.message_id = "given"
    window.close()
    again = Window(recall)
    assert again.add(message(7, b"a", redelivered=True)) is first
    assert again.settle() == [Settlement(7, True)]
    assert again.add(message(8, b"b", redelivered=True)) is second
    assert again.take_unsent() is None, "it is on its way already"
    assert len(recall) == 0


def test_a_counter_that_the_broker_adds_does_not_make_it_another_message() -> None:
    window, (first,), recall = window_of(b"a")
    window.close()
    counted = message(2, b"a", redelivered=True, headers={"x-delivery-count": 1})
    assert Window(recall).add(counted) is first


def test_a_new_message_that_looks_alike_is_a_new_message() -> None:
    """The old one may be gone with a crash of its broker: dropping this one would lose it."""
    window, (first,), recall = window_of(b"a")
    window.close()
    assert Window(recall).add(message(2, b"a")) is not first


def test_a_message_with_an_id_is_known_without_the_mark_of_redelivery() -> None:
    recall = ExpectedRedeliveries(10)
    window = Window(recall)
    first = window.add(message(1, b"a", message_id="m"))
    window.close()
    again = Window(recall)
    assert again.add(message(1, b"a", message_id="other")) is not first
    assert again.add(message(2, b"a", message_id="m")) is first


def test_the_oldest_are_forgotten_beyond_the_maximum() -> None:
    recall = ExpectedRedeliveries(2)
    window = Window(recall)
    entries = [window.add(message(tag, b"%d" % tag)) for tag in range(3)]
    window.close()
    assert len(recall) == 2
    again = Window(recall)
    assert again.add(message(9, b"0", redelivered=True)) not in entries
    assert again.add(message(9, b"1", redelivered=True)) is entries[1]


def test_properties_that_cannot_be_read_can_be_remembered() -> None:
    recall = ExpectedRedeliveries(2)
    broken = Message(cast(Any, None), 1, "tag", True, "", "q", b"\x00\x3c", b"body")
    window = Window(recall)
    entry = window.add(broken)
    window.close()
    assert Window(recall).add(broken) is entry


class Model:
    """A source, a bridge and a destination that drops repeated ids, with chance for a scheduler.

    The source delivers again, in order and marked, what was not acknowledged when a session ended.
    """

    def __init__(self, bodies: list[bytes]) -> None:
        self.queue: deque[tuple[bytes, bool]] = deque((body, False) for body in bodies)
        self.unacked: deque[tuple[int, bytes]] = deque()
        self.recall = ExpectedRedeliveries(2 * PREFETCH)
        self.window = Window(self.recall)
        self.under_way: list[Entry] = []
        self.arrived: list[bytes] = []
        self.publishes = 0
        self.ids: dict[int, Entry] = {}
        self.tag = 0

    def deliver(self) -> None:
        if self.queue and len(self.unacked) < PREFETCH:
            body, redelivered = self.queue.popleft()
            self.tag += 1
            self.unacked.append((self.tag, body))
            self.window.add(message(self.tag, body, redelivered=redelivered))

    def send(self) -> None:
        entry = self.window.take_unsent()
        if entry is not None:
            self.under_way.append(entry)
            self.publishes += 1

    def confirm(self) -> None:
        if self.under_way:
            entry = self.under_way.pop(0)
            self._store(entry)
            entry.state = State.TAKEN

    def _store(self, entry: Entry) -> None:
        if id(entry) not in self.ids:
            self.ids[id(entry)] = entry
            self.arrived.append(entry.message.body)

    def settle(self) -> None:
        for tag, is_ack in self.window.settle():
            assert is_ack
            while self.unacked and self.unacked[0][0] <= tag:
                self.unacked.popleft()

    def lose_source(self) -> None:
        self.window.close()
        self.queue.extendleft((body, True) for _, body in reversed(self.unacked))
        self.unacked.clear()
        self.window = Window(self.recall)

    def lose_destination(self, stored: int = 0) -> None:
        """Some that were under way were stored, though nobody heard of it."""
        for entry in self.under_way[:stored]:
            self._store(entry)
        for entry in self.under_way:
            entry.state = State.WAITING
        self.under_way.clear()
        self.window.rewind()

    def finish(self) -> None:
        while self.queue or self.unacked:
            for step in (self.deliver, self.send, self.confirm, self.settle):
                step()


STEPS = ("deliver", "send", "confirm", "settle", "lose_source", "lose_destination", "lose_late")


@given(
    st.lists(st.sampled_from([b"a", b"b", b"c"]), max_size=12),
    st.lists(st.sampled_from(STEPS), max_size=60),
)
def test_whatever_is_lost_each_message_arrives_once(bodies: list[bytes], steps: list[str]) -> None:
    """Equal bodies on purpose: the number of each must be right."""
    model = Model(bodies)
    for step in steps:
        if step == "lose_late":
            model.lose_destination(stored=len(model.under_way) // 2)
        else:
            getattr(model, step)()
    model.finish()
    assert Counter(model.arrived) == Counter(bodies)


@given(st.integers(0, 12), st.lists(st.sampled_from(STEPS), max_size=60))
def test_whatever_is_lost_messages_arrive_in_order(count: int, steps: list[str]) -> None:
    bodies = [b"%d" % number for number in range(count)]
    model = Model(bodies)
    for step in steps:
        if step == "lose_late":
            model.lose_destination(stored=len(model.under_way) // 2)
        else:
            getattr(model, step)()
    model.finish()
    assert model.arrived == bodies


@given(st.integers(0, 12), st.lists(st.sampled_from(STEPS[:5]), max_size=60))
def test_a_lost_source_alone_causes_no_repeats(count: int, steps: list[str]) -> None:
    model = Model([b"%d" % number for number in range(count)])
    for step in steps:
        getattr(model, step)()
    model.finish()
    assert model.publishes == count
