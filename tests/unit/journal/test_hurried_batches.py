"""Which batches of the journal somebody may wait for: all but acks and marks of deliveries."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rhizome.broker.group_log.local_group_log import LocalGroupLog
from rhizome.journal.journal import Journal
from rhizome.testing.in_memory_broker import make_core

UUID = bytes(range(16))


def message(journal: Journal) -> None:
    journal.enqueue(0, 1, 1, [1], b"", 0, -1, 0, 0, b"x")


def ack(journal: Journal) -> None:
    journal.dequeue(0, 1, 1, [1])


def requeue(journal: Journal) -> None:
    journal.requeue(0, 1, 1, 1, 1)


def ack_in_transaction(journal: Journal) -> None:
    journal.begin_tx()
    journal.dequeue(0, 1, 1, [1])
    journal.end_tx()


def message_behind_an_aborted_ack(journal: Journal) -> None:
    journal.begin_tx()
    journal.dequeue(0, 1, 1, [1])
    journal.abort_tx()
    message(journal)


def drop(journal: Journal) -> None:
    journal.drop_queue(0, 1, 1)


def test_acks_alone_are_not_waited_for() -> None:
    journal = Journal(UUID)
    ack(journal)
    ack(journal)
    assert not journal.is_hurried()


@pytest.mark.parametrize(
    "append", [message, requeue, drop, ack_in_transaction, message_behind_an_aborted_ack]
)
@pytest.mark.parametrize("acks", [0, 1, 2])
def test_everything_else_is_waited_for_whatever_comes_with_it(
    append: Callable[[Journal], None], acks: int
) -> None:
    journal = Journal(UUID)
    for _ in range(acks):
        ack(journal)
    append(journal)
    ack(journal)
    assert journal.is_hurried()
    journal.take()
    ack(journal)
    assert not journal.is_hurried()


def test_acks_that_somebody_waits_for_are_hurried() -> None:
    core = make_core()
    log = core.log
    assert isinstance(log, LocalGroupLog)
    log.dequeue(1, [1], True)
    assert not log.journal.is_hurried()
    log.mark()
    assert log.journal.is_hurried()
