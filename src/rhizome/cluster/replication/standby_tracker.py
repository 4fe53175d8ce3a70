"""Standby tracker: what the home of a group knows of one standby. Compiled.

away       there is no link, or no invitation on it
invited    INVITE was sent
listing    the home tells what is alive; records follow behind
streaming  records only

away to invited        the link is up and a copy is wanted there
invited to streaming   FOLLOW, and the window has all that the copy lacks
invited to listing     FOLLOW otherwise
streaming to listing   the window has lost records that were not sent yet
listing to streaming   everything has been told
any to away            the link is lost, a refusal, or no copy is wanted there
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from rhizome.cluster.consensus.settings import EXCUSES_MAX
from rhizome.cluster.protocol.replication_codec import INSTALLING, ON_DISK, WHOLE
from rhizome.cluster.replication.catch_up_sender import CatchUpSender
from rhizome.cluster.state.cluster_commands import WHOLE as MEMBER_WHOLE
from rhizome.cluster.state.cluster_commands import Member
from rhizome.journal.streams.chunk_cursor import ChunkCursor

AWAY: Final = 0
INVITED: Final = 1
HELD: Final = 2
LISTING: Final = 3
STREAMING: Final = 4

STAGES: Final = ["away", "invited", "held", "catching up", "following"]


@final
class StandbyTracker:
    """What the home of a group knows of one standby.

    Invariant: `memory` and `disk` are answers of `incarnation` in this epoch; with `kept`
    INSTALLING neither counts, with ON_DISK only `disk`. Answers from before `listing_number` was
    begun count no more: with it the copy has become incomplete. Records below `cursor` have been
    sent on this link. While there is ``stored`` they come from the home's store, and those below
    ``stored_mark`` have been answered or were sent before the last of these frames. `offset` is
    where its copy of a stream ended when it followed. With `refusals` it can be told what was
    refused.

    `memory_waits_ms`, `disk_waits_ms`: since when something is due in memory or on disk, and
    nothing new that counts was answered; -1 if nothing is. `joins_since_ms`: since when its answers
    are waited for before it is proposed (G4). `excuses`: how often the home has stood still since
    it was heard.
    """

    name: str
    incarnation: str
    linked: bool
    linked_ms: i64
    stage: i64
    cursor: i64
    memory: i64
    disk: i64
    kept: i64
    resumes: bool
    followed: bool
    listing: CatchUpSender | None
    listings: i64
    offset: i64
    refusals: bool
    stored: ChunkCursor | None
    stored_mark: i64
    listing_number: i64
    listed: bool
    wanted: list[int]
    memory_waits_ms: i64
    disk_waits_ms: i64
    joins_since_ms: i64
    rests_until_ms: i64
    excuses: i64
    records_bytes: i64
    live_bytes: i64
    backfill_bytes: i64
    backfill_messages: i64

    def __init__(self, name: str) -> None:
        self.name = name
        self.incarnation = ""
        self.linked = False
        self.linked_ms = 0
        self.stage = AWAY
        self.cursor = 0
        self.memory = 0
        self.disk = 0
        self.kept = INSTALLING
        self.resumes = False
        self.followed = False
        self.listing = None
        self.listings = 0
        self.offset = 0
        self.refusals = False
        self.stored = None
        self.stored_mark = 0
        self.listing_number = 0
        self.listed = True
        self.wanted = []
        self.memory_waits_ms = -1
        self.disk_waits_ms = -1
        self.joins_since_ms = -1
        self.rests_until_ms = 0
        self.excuses = 0
        self.records_bytes = 0
        self.live_bytes = 0
        self.backfill_bytes = 0
        self.backfill_messages = 0

    def link_up(self, incarnation: str, now_ms: i64) -> None:
        self.linked = True
        self.linked_ms = now_ms
        self.excuses = 0
        self.rests_until_ms = 0
        if incarnation != self.incarnation:
            # The answers of an earlier incarnation say nothing about this one (G2).
            self.incarnation = incarnation
            self.memory = 0
            self.disk = 0
            self.kept = INSTALLING

    def link_down(self, now_ms: i64) -> None:
        self.linked = False
        self.linked_ms = now_ms
        self.leave()

    def leave(self) -> None:
        self.stage = AWAY
        self.followed = False
        self.listing = None
        self.listed = True
        self.stored = None
        self.wanted = []
        self.joins_since_ms = -1

    def has_followed(self) -> bool:
        """Whether its frames are about this invitation."""
        return self.followed or self.stage > INVITED

    def sends(self) -> bool:
        """Whether records are sent to it."""
        return self.stage == LISTING or self.stage == STREAMING

    def counted_memory(self, incarnation: str) -> i64:
        """What that incarnation is known to have in memory."""
        return self.memory if self.kept == WHOLE and self.incarnation == incarnation else 0

    def counted_disk(self, incarnation: str) -> i64:
        """What that incarnation is known to have on disk."""
        return self.disk if self.kept >= ON_DISK and self.incarnation == incarnation else 0

    def as_whole(self) -> Member:
        """The member that it would be as whole."""
        return Member(self.name, self.incarnation, MEMBER_WHOLE)

    def safe(self) -> i64:
        """The index up to which it needs nothing any more, whatever happens to its link."""
        if self.kept == WHOLE:
            return min(self.memory, self.disk)
        return self.memory

    def hold(self) -> None:
        """The standby must catch up by live sets, but not yet."""
        self.stage = HELD
        self.listing = None
        self.wanted = []
        self.joins_since_ms = -1

    def begin_listing(self, index: i64) -> None:
        """Catch up by live sets, from the end `index` of the log on."""
        self.stage = LISTING
        self.listings += 1
        self.listing_number = self.listings
        self.listing = CatchUpSender(self.listings, self.refusals)
        self.listed = True
        self.wanted = []
        self.cursor = index + 1
        self.joins_since_ms = -1
        self.kept = INSTALLING

    def answer(self, memory: i64, disk: i64, kept: i64, now_ms: i64) -> None:
        """REPLICATED. Only what counts is progress: an incomplete copy keeps confirms waiting."""
        if kept == WHOLE and (self.kept != WHOLE or memory > self.memory):
            self.memory_waits_ms = now_ms
        if kept >= ON_DISK and (self.kept < ON_DISK or disk > self.disk):
            self.disk_waits_ms = now_ms
        self.memory = memory
        self.disk = disk
        self.kept = kept
        self.listed = True
        self.excuses = 0

    def update_waiting(self, memory_due: bool, disk_due: bool, now_ms: i64) -> None:
        """Note since when something is due."""
        if not memory_due:
            self.memory_waits_ms = -1
        elif self.memory_waits_ms < 0:
            self.memory_waits_ms = now_ms
        if not disk_due:
            self.disk_waits_ms = -1
        elif self.disk_waits_ms < 0:
            self.disk_waits_ms = now_ms

    def stood_still(self, away_ms: i64) -> None:
        """The home stood still: what was answered meanwhile isn't read yet, so that time isn't
        counted."""
        if self.excuses >= EXCUSES_MAX:
            return
        self.excuses += 1
        self.linked_ms += away_ms
        if self.memory_waits_ms >= 0:
            self.memory_waits_ms += away_ms
        if self.disk_waits_ms >= 0:
            self.disk_waits_ms += away_ms
        if self.joins_since_ms >= 0:
            self.joins_since_ms += away_ms

    def waited_ms(self, now_ms: i64) -> i64:
        """For how long something has been due on this link."""
        since: i64 = now_ms
        if self.memory_waits_ms >= 0:
            since = self.memory_waits_ms
        if 0 <= self.disk_waits_ms < since:
            since = self.disk_waits_ms
        return now_ms - max(since, self.linked_ms)
