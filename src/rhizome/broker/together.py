"""Together: what is recorded in several steps and must be there whole or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from rhizome.broker.port import GroupLog

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker


def begin_all(broker: Broker, bytes_expected: i64) -> None:
    """Have whatever is recorded until `commit_all` kept whole or not at all, log by log.

    The local log comes first and ends last: the journal has all of it as one record.
    """
    for log in broker.logs.values():
        log.begin(bytes_expected)
    broker.streams.begin()


def commit_all(broker: Broker) -> dict[GroupLog, int]:
    """The index in each log that must be on disk before the transaction may be answered."""
    needed: dict[GroupLog, int] = {}
    broker.streams.commit(needed)
    for log in reversed(list(broker.logs.values())):
        index = log.commit()
        if index > 0:
            needed[log] = index
    return needed
