"""FaultLog: unexpected exceptions, by what they were about.

A fault in one queue, group, link, connection or timer must not keep the others from their turn. So
the caller catches the exception, notes it here, and goes on with the next. The counts are a metric,
and `rhizome doctor` shows the last fault of each kind.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

FAULT_CONNECTION: Final = "connection"
FAULT_QUEUE: Final = "queue"
FAULT_TIMER: Final = "timer"
FAULT_TURN: Final = "turn"
FAULT_LINK: Final = "link"
FAULT_GROUP: Final = "group"
FAULT_STANDBY: Final = "standby"
FAULT_TASK: Final = "task"
FAULT_KINDS: Final = (
    FAULT_CONNECTION,
    FAULT_QUEUE,
    FAULT_TIMER,
    FAULT_TURN,
    FAULT_LINK,
    FAULT_GROUP,
    FAULT_STANDBY,
    FAULT_TASK,
)

TEXT_CHARS_MAX: Final = 300


@final
class Fault:
    """The last fault of its kind, and how many there were."""

    kind: str
    count: i64
    where: str
    text: str
    last_ms: i64

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.count = 0
        self.where = ""
        self.text = ""
        self.last_ms = 0


@final
class FaultLog:
    faults: dict[str, Fault]

    def __init__(self) -> None:
        self.faults = {}

    def note(self, kind: str, error: BaseException, where: str, now_ms: i64) -> None:
        fault = self.faults.get(kind)
        if fault is None:
            fault = Fault(kind)
            self.faults[kind] = fault
        fault.count += 1
        fault.where = where
        fault.text = f"{type(error).__name__}: {error}"[:TEXT_CHARS_MAX]
        fault.last_ms = now_ms

    def count(self, kind: str) -> i64:
        fault = self.faults.get(kind)
        return 0 if fault is None else fault.count
