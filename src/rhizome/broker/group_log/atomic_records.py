"""Atomic records: what is recorded in several steps and must be kept whole or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from rhizome.broker.group_log.log_port import GroupLog

if TYPE_CHECKING:
    from rhizome.broker.broker_context import BrokerContext


def begin_all(broker: BrokerContext, bytes_expected: i64) -> None:
    """Begin a transaction in every log: what is recorded until `commit_all` is kept whole or not at
    all.

    The local log begins first and ends last, so the journal has everything as one record.
    """
    for log in broker.logs.values():
        log.begin(bytes_expected)
    broker.begin_streams()


def commit_all(broker: BrokerContext) -> dict[GroupLog, int]:
    """Commit in every log; return the index in each that must be on disk before the answer may be
    sent."""
    needed: dict[GroupLog, int] = {}
    broker.commit_streams(needed)
    for log in reversed(list(broker.logs.values())):
        index = log.commit()
        if index > 0:
            needed[log] = index
    return needed
