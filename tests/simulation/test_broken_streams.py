"""Rules of streams broken on purpose in whole brokers: the checkers must see it.

An attack is a change of the broker's code and the faults that bring out what the rule prevents;
`first` is a seed that showed it when this was written, where the search begins. The same attack on
unbroken brokers shows nothing (`test_streams.py` has more of that).
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

SEEDS_MAX = 12

MUTATED = """
from rhizome.testing.sim.run import RunOptions
from rhizome.testing.sim.scenarios import run_untraced

{mutation}
options = RunOptions(brokers=(3, 3), minutes=1.0, faults={faults}, pace={pace})
for seed in range({first}, {first} + {seeds}):
    outcome = run_untraced("streams", seed, options)
    if not outcome.passed:
        print(seed, outcome.checker, outcome.text.strip().splitlines()[-1], sep="\\t")
        break
"""
"""Compiled modules call each other's methods directly, so a mutation needs a process without."""

SHOWN_TOO_EARLY = """
from rhizome.broker.streams.reader import StreamReader
pump = StreamReader.pump
def early(self):
    log = self.stream.log
    kept = (log.committed, log.committed_segment, log.committed_position)
    if log.is_written():
        log.committed = log.next
        log.committed_segment, log.committed_position = log.durable_segment, log.durable_position
    try:
        pump(self)
    finally:
        log.committed, log.committed_segment, log.committed_position = kept
StreamReader.pump = early
from rhizome.broker.streams.stream import Stream
synced = Stream.synced
def touching(self, durable):
    done = synced(self, durable)
    if not self.queue.marked:
        self.queue.touch()
    return done
Stream.synced = touching
"""

CONFIRMED_TOO_EARLY = """
from rhizome.cluster.shippedstream import ShippedStream
set_committed = ShippedStream.set_committed
ShippedStream.set_committed = lambda self, memory, disk: set_committed(
    self, self.log.durable, self.log.durable
)
"""

NOT_CUT_BACK = """
from rhizome.cluster.copies.streamstandby import StreamStandby
StreamStandby._cut_back = lambda self, first: True
"""

NUMBERS_FORGOTTEN = """
from rhizome.journal.streamnotes import StreamNotes
take_chunk = StreamNotes.take_chunk
def forgetful(self, head, data, at):
    take_chunk(self, head, data, at)
    self.origins.clear()
StreamNotes.take_chunk = forgetful
"""

PLACES_FORGOTTEN = """
from rhizome.broker.streams.reader import StreamReader
StreamReader.go_on_after = lambda self, index: None
"""

NOTED_TOO_FAR = """
from rhizome.broker.streams.reader import Progress
Progress.settled = lambda self, offset: setattr(self, "floor", offset + 1)
"""

RETIRED_TOO_FAR = """
from rhizome.journal.streamlog import StreamLog
retire = StreamLog.retire
StreamLog.retire = lambda self, now_ms, bytes_max, age_max_ms: retire(
    self, now_ms, bytes_max // 4, age_max_ms
)
"""

NEVER_WOKEN = """
from rhizome.broker.streams.stream import Stream
Stream.dispatch = lambda self: None
"""


@dataclass(frozen=True)
class Attack:
    name: str
    mutation: str
    faults: tuple[str, ...]
    pace: float
    seen_by: tuple[str, ...]
    first: int = 0


# Of the rules G, L and A; the others are for `make soak`.
ATTACKS = [
    Attack(
        "readers are shown what is not committed",
        SHOWN_TOO_EARLY,
        ("ambush-append", "stall"),
        4,
        ("ShownIsCommitted", "OneMessagePerOffset"),
    ),
    Attack(
        "confirmed before the copy has answered",
        CONFIRMED_TOO_EARLY,
        ("ambush-kept", "stall", "slow"),
        4,
        ("StreamCopiesAgree", "NoConfirmedAppendLost", "OneMessagePerOffset"),
    ),
    Attack(
        "nothing is cut off at a new home",
        NOT_CUT_BACK,
        ("ambush-append",),
        5,
        ("StreamCopiesAgree",),
        3,
    ),
    Attack(
        "numbers of edges are forgotten",
        NUMBERS_FORGOTTEN,
        ("kill", "ambush-append"),
        4,
        ("AppendedOnce",),
        4,
    ),
]
MORE_ATTACKS = [
    Attack(
        "a new home begins anew with its readers",
        PLACES_FORGOTTEN,
        ("kill", "move"),
        3,
        ("EachOffsetOnceAndInOrder",),
    ),
    Attack(
        "more is noted of a name than it has done with",
        NOTED_TOO_FAR,
        ("drop-app",),
        3,
        ("NamedReadersGoOn",),
        6,
    ),
    Attack(
        "retention takes more than it should",
        RETIRED_TOO_FAR,
        ("drift",),
        1,
        ("RetentionTakesTheFrontOnly",),
    ),
    Attack("readers get nothing", NEVER_WOKEN, ("drift",), 1, ("NoReaderStuck",)),
]


def seen_in_some_seed(attack: Attack) -> list[str]:
    """The first seed in which it is seen that a broker does something else, and who sees it."""
    script = MUTATED.format(
        mutation=attack.mutation,
        faults=attack.faults,
        pace=attack.pace,
        first=attack.first,
        seeds=SEEDS_MAX,
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "RHIZOME_PURE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip().split("\t")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "attack",
    [
        *[pytest.param(attack, id=attack.name) for attack in ATTACKS],
        *[pytest.param(each, id=each.name, marks=pytest.mark.soak) for each in MORE_ATTACKS],
    ],
)
def test_a_broken_rule_is_seen(attack: Attack) -> None:
    seen = seen_in_some_seed(attack)
    assert len(seen) == 3, f"nobody has seen it that {attack.name}"
    assert seen[1] in attack.seen_by, seen
