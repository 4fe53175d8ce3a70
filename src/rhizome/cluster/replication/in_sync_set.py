"""In-sync set: whose answers count at the home of a group, and who should join and leave. Compiled.

The set is changed only by commit, one proposal at a time, conditional on its version (G5):

- a standby is added once it is whole, its answers have been waited for since before it is proposed,
  and it has reached the committed indexes and the end of the log at which the epoch began (G4);
- a member of a new incarnation, in the set for its disk only, is added again as whole (G2);
- a whole member that must catch up by live sets is kept for its disk only, before it begins: an
  incomplete copy can't take over, and the root appoints a whole member without asking;
- a standby that doesn't answer for `sync_timeout_ms`, or has no link for `unlinked_ms`, is left
  out; until that is committed the home goes on waiting for it;
- a standby that isn't wanted any more is left out once all wanted ones are whole.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from rhizome.cluster.protocol.replication_codec import WHOLE
from rhizome.cluster.replication.replicable_log import ReplicableLog
from rhizome.cluster.replication.replicator_port import ReplicatorPort, ReplicatorSettings
from rhizome.cluster.replication.resend_window import ResendWindow
from rhizome.cluster.replication.standby_tracker import HELD, STREAMING, StandbyTracker
from rhizome.cluster.state.cluster_commands import DISK, Member
from rhizome.cluster.state.cluster_commands import WHOLE as MEMBER_WHOLE
from rhizome.cluster.state.groups_and_placement import Group

JOIN_BYTES_MAX: Final = 1024 * 1024
"""Standbys further behind than this are not in the in-sync set, so confirms don't wait for them."""
REST_MS: Final = 500
"""How long nothing is tried with a standby that refused, or that turned out too slow to add."""


@final
class InSyncSet:
    """The in-sync set of one group, at its home.

    Invariant: `members` is the committed set of version `version`; `proposed` is the set that was
    asked for and is not decided, None if nothing is.
    """

    log: ReplicableLog
    port: ReplicatorPort
    settings: ReplicatorSettings
    window: ResendWindow
    followers: dict[str, StandbyTracker]
    members: list[Member]
    version: i64
    min_copies: i64
    proposed: list[Member] | None
    wanted: list[str]

    def __init__(
        self,
        log: ReplicableLog,
        port: ReplicatorPort,
        settings: ReplicatorSettings,
        window: ResendWindow,
        followers: dict[str, StandbyTracker],
    ) -> None:
        self.log = log
        self.port = port
        self.settings = settings
        self.window = window
        self.followers = followers
        self.members = []
        self.version = 0
        self.min_copies = 1
        self.proposed = None
        self.wanted = []

    def changed(self, group: Group) -> None:
        """The group as it is committed."""
        if group.version != int(self.version):
            # Whatever was proposed under another version is decided.
            self.proposed = None
        self.version = group.version
        self.members = list(group.in_sync)
        self.min_copies = group.min_copies
        for member in self.members:
            follower = self.followers.get(member.broker)
            if follower is not None:
                follower.joins_since_ms = -1

    def refused(self, version: i64, now_ms: i64) -> None:
        """The proposal for a version was refused."""
        if version != self.version or self.proposed is None:
            # A later version has already shown that.
            return
        self.proposed = None
        for follower in self.followers.values():
            if follower.joins_since_ms >= 0:
                self._let_rest(follower, now_ms)

    def member(self, name: str) -> Member | None:
        for member in self.members:
            if member.broker == name:
                return member
        return None

    def has_whole(self) -> bool:
        """Whether a standby counts for transient messages, too."""
        return any(member.copy == MEMBER_WHOLE for member in self.members)

    def outlives_home_in_memory(self) -> bool:
        """Whether a whole standby takes over if this home ends now, whether or not the proposed
        set is decided by then (G3, G5). A standby that is only joining does not."""
        if not self.has_whole():
            return False
        proposed = self.proposed
        return proposed is None or any(member.copy == MEMBER_WHOLE for member in proposed)

    def needs(self, name: str) -> bool:
        """Whether there should be a copy at that broker, or there is one that counts."""
        return name in self.wanted or self.member(name) is not None

    def too_few(self) -> bool:
        """Whether there are fewer copies than there must be (G10)."""
        return 1 + len(self.members) < self.min_copies

    def waited_for(self) -> list[Member]:
        """Whose answers count: the set, the proposed set, and the standbys that join (G4, G5)."""
        found = list(self.members)
        proposed = self.proposed
        if proposed is not None:
            for member in proposed:
                if member not in found:
                    found.append(member)
        for follower in self.followers.values():
            if follower.joins_since_ms >= 0:
                found.append(follower.as_whole())
        return found

    # ---- who joins -------------------------------------------------------------------------------

    def update_joining(self, now_ms: i64) -> None:
        """See which standbys are near enough to be waited for, and which turned out not to be."""
        for follower in self.followers.values():
            if follower.joins_since_ms < 0:
                if self._may_join(follower, now_ms):
                    follower.joins_since_ms = now_ms
            elif self.proposed is None:
                if now_ms - follower.joins_since_ms > self.settings.sync_timeout_ms:
                    self._let_rest(follower, now_ms)

    def _may_join(self, follower: StandbyTracker, now_ms: i64) -> bool:
        if follower.stage != STREAMING or follower.kept != WHOLE or self.proposed is not None:
            return False
        if follower.stored is not None:
            # The standby is further behind than the window reaches.
            return False
        if follower.name not in self.wanted or now_ms < follower.rests_until_ms:
            return False
        if follower.as_whole() in self.members:
            return False
        return self.window.size_above(follower.safe()) <= JOIN_BYTES_MAX

    def _let_rest(self, follower: StandbyTracker, now_ms: i64) -> None:
        follower.joins_since_ms = -1
        follower.rests_until_ms = now_ms + REST_MS

    def counts_as_whole(self, follower: StandbyTracker) -> bool:
        """Whether the root may take a standby for whole, now or once the proposal is decided."""
        if follower.as_whole() in self.members:
            return True
        return self.proposed is not None and follower.as_whole() in self.proposed

    def propose_changed(self) -> None:
        """Propose standbys that have reached what is committed as whole (G4), and those that have
        to begin anew as what they will be."""
        members = list(self.members)
        for follower in self.followers.values():
            if follower.stage == HELD and follower.as_whole() in members:
                at = members.index(follower.as_whole())
                members[at] = Member(follower.name, follower.incarnation, DISK)
            if follower.joins_since_ms >= 0 and self._has_reached_committed(follower):
                members = [each for each in members if each.broker != follower.name]
                members.append(follower.as_whole())
        self._propose(members)

    def _has_reached_committed(self, follower: StandbyTracker) -> bool:
        log = self.log
        began: i64 = i64(log.starts[-1][1]) - 1
        return (
            follower.kept == WHOLE
            and follower.memory >= max(log.committed_memory, began)
            and follower.disk >= max(log.committed_disk, began)
        )

    # ---- who leaves ------------------------------------------------------------------------------

    def propose_left_out(self, now_ms: i64) -> None:
        """Propose the set without those that don't answer, or whose place is taken."""
        members = [each for each in self.members if not self._is_silent(each, now_ms)]
        if len(members) == len(self.members) and self._all_wanted_are_whole():
            members = [each for each in members if each.broker in self.wanted]
        self._propose(members)

    def _is_silent(self, member: Member, now_ms: i64) -> bool:
        follower = self.followers.get(member.broker)
        if follower is None:
            return False
        if not follower.linked:
            return now_ms - follower.linked_ms >= self.settings.unlinked_ms
        return follower.waited_ms(now_ms) >= self.settings.sync_timeout_ms

    def _all_wanted_are_whole(self) -> bool:
        names = [each.broker for each in self.members if each.copy == MEMBER_WHOLE]
        return all(name in names for name in self.wanted)

    def _propose(self, members: list[Member]) -> None:
        if self.proposed is None and members != self.members:
            self.proposed = members
            self.port.propose(members, self.version)
