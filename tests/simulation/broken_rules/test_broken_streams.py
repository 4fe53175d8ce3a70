"""Rules of streams broken on purpose in whole brokers: the checkers must see it.

`test_streams.py` has brokers in which nothing is broken.
"""

from __future__ import annotations

import pytest

from tests.simulation.mutants import Mutant

SHOWN_TOO_EARLY = """
from rhizome.broker.streams.stream_reader import StreamReader
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
from rhizome.cluster.replication.replicated_stream_log import ReplicatedStreamLog
set_committed = ReplicatedStreamLog.set_committed
ReplicatedStreamLog.set_committed = lambda self, memory, disk: set_committed(
    self, self.log.durable, self.log.durable
)
"""

NOT_CUT_BACK = """
from rhizome.cluster.replication.stream_standby import StreamStandby
StreamStandby._cut_back = lambda self, first: True
"""

NUMBERS_FORGOTTEN = """
from rhizome.journal.streams.tracking_state import StreamTracking
take_chunk = StreamTracking.take_chunk
def forgetful(self, head, data, at):
    take_chunk(self, head, data, at)
    self.origins.clear()
StreamTracking.take_chunk = forgetful
"""

PLACES_FORGOTTEN = """
from rhizome.broker.streams.stream_reader import StreamReader
StreamReader.go_on_after = lambda self, index: None
"""

POSITIONS_NOT_COPIED = """
from rhizome.journal.streams.tracking_state import StreamTracking
take_notes = StreamTracking._take_notes
def forgetful(self, data, at, end):
    take_notes(self, data, at, end)
    self.offsets.clear()
StreamTracking._take_notes = forgetful
"""

NOTED_TOO_FAR = """
from rhizome.broker.streams.stream_reader import Progress
Progress.settled = lambda self, offset: setattr(self, "floor", offset + 1)
"""

RETIRED_TOO_FAR = """
from rhizome.journal.streams.stream_log import StreamLog
retire = StreamLog.retire
StreamLog.retire = lambda self, now_ms, bytes_max, age_max_ms: retire(
    self, now_ms, bytes_max // 4, age_max_ms
)
"""

NEVER_WOKEN = """
from rhizome.broker.streams.stream import Stream
Stream.dispatch = lambda self: None
"""


# Of the rules G, L and A; the others are for `make soak`.
MUTANTS = [
    Mutant(
        "readers are shown what is not committed",
        SHOWN_TOO_EARLY,
        ("ambush-append", "stall"),
        4,
        ("ShownIsCommitted", "OneMessagePerOffset"),
    ),
    Mutant(
        "confirmed before the copy has answered",
        CONFIRMED_TOO_EARLY,
        ("ambush-kept", "stall", "slow"),
        4,
        ("StreamCopiesAgree", "NoConfirmedAppendLost", "OneMessagePerOffset"),
    ),
    Mutant(
        "nothing is cut off at a new home",
        NOT_CUT_BACK,
        ("ambush-append",),
        5,
        ("StreamCopiesAgree", "CopiesComeBack"),
        18,
    ),
    Mutant(
        "numbers of edges are forgotten",
        NUMBERS_FORGOTTEN,
        ("kill", "ambush-append"),
        4,
        ("AppendedOnce",),
        31,
    ),
]
MORE_MUTANTS = [
    Mutant(
        "a new home begins anew with its readers",
        PLACES_FORGOTTEN,
        ("kill", "move"),
        3,
        ("EachOffsetOnceAndInOrder",),
    ),
    Mutant(
        "more is noted of a name than it has done with",
        NOTED_TOO_FAR,
        ("drop-app",),
        3,
        ("NamedReadersGoOn",),
        8,
    ),
    Mutant(
        "copies don't have the positions of names",
        POSITIONS_NOT_COPIED,
        ("kill", "move"),
        3,
        ("NamedReadersGoOn",),
        2,
    ),
    Mutant(
        "retention takes more than it should",
        RETIRED_TOO_FAR,
        ("drift",),
        1,
        ("RetentionTakesTheFrontOnly",),
    ),
    Mutant("readers get nothing", NEVER_WOKEN, ("drift",), 1, ("NoReaderStuck",)),
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "mutant",
    [
        *[pytest.param(each, id=each.name) for each in MUTANTS],
        *[pytest.param(each, id=each.name, marks=pytest.mark.soak) for each in MORE_MUTANTS],
    ],
)
def test_a_broken_rule_is_seen(mutant: Mutant) -> None:
    mutant.expect_to_be_seen("streams")
