"""Consensus: one broker's part in electing a root and keeping the cluster state's log."""

from __future__ import annotations

from rhizome.cluster.consensus import membership_changes
from rhizome.cluster.consensus.consensus_messages import NO_STAMP, Message
from rhizome.cluster.consensus.consensus_output import Ready, Status
from rhizome.cluster.consensus.consensus_registry import Registry, encode_snapshot
from rhizome.cluster.consensus.consensus_status_text import describe
from rhizome.cluster.consensus.log.cluster_store import Image, Snapshot
from rhizome.cluster.consensus.log.log_entry_payloads import (
    APPLICATION,
    FOUNDING,
    Founding,
    Registration,
    payload,
)
from rhizome.cluster.consensus.log.state_log import size_of
from rhizome.cluster.consensus.membership import Membership, Voter
from rhizome.cluster.consensus.node_state import Chance, FailoverPolicy, NodeState
from rhizome.cluster.consensus.role_machine import RoleMachine
from rhizome.cluster.consensus.root_role import RootRole
from rhizome.cluster.consensus.rule_switches import ALL_RULES, Rules
from rhizome.cluster.consensus.settings import STALL_MS, ConsensusSettings
from rhizome.cluster.link.broker_hello import Hello
from rhizome.errors import RhizomeError


class NotRoot(RhizomeError):
    """Only the root can do this; the text names it."""


def no_failover(registration: Registration, registry: Registry) -> tuple[str, ...]:
    return ()


class Consensus:
    """The consensus core of one broker. ``Ready`` says how to drive it, ``RoleMachine`` how it
    works."""

    def __init__(
        self,
        me: Hello,
        image: Image,
        settings: ConsensusSettings,
        chance: Chance,
        now_ms: int,
        bootstrap: tuple[str, ...] | None = None,
        *,
        failover_policy: FailoverPolicy = no_failover,
        starting: bool = False,
        rules: Rules = ALL_RULES,
    ) -> None:
        assert me.uuid == image.uuid, "a broker's UUID is that of its store (R7)"
        self.state = NodeState(me, image, settings, chance, now_ms, bootstrap, rules)
        self.state.starting = starting
        self.machine = RoleMachine(self.state, image, failover_policy)
        self.machine.begin(now_ms)
        self.machine.end()
        self._deadline_ms = now_ms

    # The present state.

    @property
    def is_root(self) -> bool:
        return self.machine.root_role is not None

    @property
    def root(self) -> str:
        """The root's name; empty while none is known."""
        return self.machine.root

    @property
    def term(self) -> int:
        return self.state.term

    @property
    def cluster_uuid(self) -> str:
        return self.state.registry.cluster_uuid

    @property
    def registry(self) -> Registry:
        return self.state.registry

    @property
    def commit_index(self) -> int:
        return self.state.persistent.commit

    @property
    def settled_index(self) -> int:
        """What every broker with a live lease has applied (R10)."""
        return self.machine.settled_index

    @property
    def retired(self) -> bool:
        """Whether this incarnation may never have a lease again."""
        return self.machine.retired

    @property
    def applied_index(self) -> int:
        return self.state.applied

    def holds_lease(self, now_ms: int) -> bool:
        """Whether this broker may deliver, confirm and admit publishes at this time (R9)."""
        return now_ms < self.lease_until_ms()

    def lease_until_ms(self) -> int:
        return self.machine.lease_until_ms()

    def status(self) -> Status:
        return describe(self.machine)

    @property
    def snapshot_due(self) -> bool:
        """Whether the log has grown enough to be replaced by the application's state."""
        persistent, settings = self.state.persistent, self.state.settings
        if self.state.applied != persistent.commit or self.machine.pending.committed:
            return False
        snapshot_index = persistent.snapshot.index if persistent.snapshot else 0
        if persistent.commit - snapshot_index >= settings.log_entries_max:
            return True
        return self.machine.bytes_since_snapshot >= settings.log_bytes_max

    # Inputs.

    def peer_up(self, hello: Hello, now_ms: int) -> None:
        """A broker has linked on a fresh connection; PeerRefused if it isn't welcome."""
        self.machine.begin(now_ms)
        self.machine.peer_up(hello)
        self.machine.end()

    def peer_down(self, name: str, now_ms: int) -> None:
        self.machine.begin(now_ms)
        if self.state.is_up(name):
            self.machine.peer_down(name)
        self.machine.end()

    def step(self, sender: str, message: Message, now_ms: int) -> None:
        """A message from a linked broker; one from a broker that isn't linked is dropped."""
        self.machine.begin(now_ms)
        if self.state.is_up(sender):
            self.machine.handle(sender, message)
        self.machine.end()

    def woken(self, before_ms: int, now_ms: int) -> bool:
        """A wake-up begins; the last one was at ``before_ms``. Returns whether the lease is over,
        so that nothing of this wake-up is done without one (R9)."""
        if now_ms - before_ms > STALL_MS:
            self.stalled(now_ms)
        if self.holds_lease(now_ms):
            return False
        self.machine.touched = True
        self.state.now_ms = max(self.state.now_ms, now_ms)
        self.machine.notice_lease()
        return True

    def stalled(self, now_ms: int) -> None:
        """The driver was away for so long that it may have missed a deadline. This is called before
        anything else of this wake-up: nobody is taken for silent before what has come is read.
        Leases end all the same (R9)."""
        away_ms = max(0, now_ms - self.state.now_ms)
        self.state.now_ms = max(self.state.now_ms, now_ms)
        self.machine.excuse(away_ms)

    def tick(self, now_ms: int) -> None:
        self.machine.begin(now_ms)
        if self.machine.root_role is not None:
            self.machine.root_role.tick()
        elif self.machine.candidacy is not None:
            self.machine.candidacy.tick()
        self.machine.end()

    def written(self, token: int, now_ms: int) -> None:
        """The store has synced the batch of this token and all before it."""
        self.machine.begin(now_ms)
        self.state.written(token)
        if self.machine.candidacy is not None:
            self.machine.candidacy.written(token)
        if self.machine.root_role is not None:
            self.machine.root_role.lease.renew()
        self.machine.end()

    def applied(self, index: int, now_ms: int) -> None:
        """The application has applied everything up to ``index``; the root is told now (R10)."""
        self.machine.begin(now_ms)
        assert index <= self.state.persistent.commit or self.state.rules != ALL_RULES
        if index > self.state.applied:
            self.state.applied = index
            if self.machine.root_role is None and self.machine.root:
                self.machine.report(NO_STAMP)
        self.machine.end()

    def started(self, now_ms: int) -> None:
        """This broker has recovered and may take part in elections (R5)."""
        self.machine.begin(now_ms)
        self.state.starting = False
        self.machine.end()

    def prefer(self, preference: int) -> None:
        """Note for how many groups of a lost root this broker is in sync (R5)."""
        self.state.preference = preference

    def snapshot_taken(self, data: bytes) -> None:
        """The application's state after everything that it has applied (R8)."""
        state = self.state
        self.machine.touched = True
        index = state.persistent.commit
        assert state.applied == index, "a snapshot holds all that is committed"
        body = encode_snapshot(state.registry, data)
        snapshot = Snapshot(index, state.persistent.log.term_at(index), body)
        state.persistent.keep_snapshot(snapshot, self._log_start(index))
        self.machine.bytes_since_snapshot = 0

    def _log_start(self, snapshot_index: int) -> int:
        """Where the log begins after a snapshot: some entries are kept for brokers a little
        behind."""
        log, settings = self.state.persistent.log, self.state.settings
        start, size = snapshot_index, 0
        while start > max(log.start.index, snapshot_index - settings.log_entries_kept):
            size += size_of(log.entry(start))
            if size > settings.log_bytes_max // 4:
                break
            start -= 1
        return start

    # Requests of people and of the application.

    def propose(self, data: bytes, now_ms: int, reserve: bool = False) -> int | None:
        """Append a command; returns its index, or None if this broker isn't root, hands over or has
        no room.

        ``reserve``: one of those that must not be refused for lack of room (R11).
        """
        self.machine.begin(now_ms)
        root_role = self.machine.root_role
        index = None
        if root_role is not None and root_role.takes(reserve):
            index = root_role.append(APPLICATION, data).index
        self.machine.end()
        return index

    def submit(self, data: bytes, now_ms: int) -> None:
        """Append a command as soon as this root takes any. It is dropped if this broker isn't root,
        or ceases to be: RootKnown or RootReady tell its proposer to submit it again."""
        self.machine.begin(now_ms)
        if self.machine.root_role is not None:
            self.machine.root_role.submit(data)
        self.machine.end()

    def submit_next(self, batch: list[bytes], now_ms: int) -> bool:
        """At the root: append commands right behind what this broker has applied.

        A caller that made them from the state of this moment knows then that every broker applies
        them to just that state. False, and nothing is appended or kept, if other commands are under
        way or this broker isn't a root that takes any.
        """
        self.machine.begin(now_ms)
        root_role = self.machine.root_role
        done = root_role is not None and root_role.submit_next(batch)
        self.machine.end()
        return done

    def need_applied(self, name: str, index: int) -> None:
        """At the root: a broker without a lease gets none before it has applied this entry."""
        if self.machine.root_role is not None:
            self.machine.touched = True
            self.machine.root_role.given.need(name, index)

    def hears(self, name: str) -> bool:
        """At the root: whether a broker answers at this time; it may have a lease again soon."""
        root_role = self.machine.root_role
        return root_role is not None and root_role.hears(name)

    def add_primary(self, name: str, now_ms: int) -> int:
        """Raises ChangeRefused or NotRoot. Returns the index of the entry that admits the
        primary."""
        self.machine.begin(now_ms)
        index = membership_changes.add_voter(self._root_role(), name)
        self.machine.end()
        return index

    def remove_primary(self, name: str, now_ms: int) -> int:
        """Raises ChangeRefused or NotRoot. Returns the index of the entry that removes the
        primary."""
        self.machine.begin(now_ms)
        index = membership_changes.remove_voter(self._root_role(), name)
        self.machine.end()
        return index

    def check_primary_change(self, name: str, adds: bool) -> None:
        """Raises ChangeRefused or NotRoot if `add_primary` or `remove_primary` would."""
        check = membership_changes.with_added if adds else membership_changes.without_removed
        check(self._root_role(), name)

    def transfer_root(self, name: str, now_ms: int) -> None:
        """Hand the role of root to another primary once its log is complete; given up after a
        while.

        Raises ChangeRefused or NotRoot.
        """
        self.machine.begin(now_ms)
        root_role = self._root_role()
        if name not in self.state.linked_voters():
            raise membership_changes.ChangeRefused(f"{name} isn't a linked primary that votes")
        root_role.begin_hand_over(name)
        self.machine.end()

    def force_root(self, now_ms: int) -> None:
        """Leave the cluster that has no quorum, as the only primary of a new one (R12).

        Whatever this broker's log holds is committed. Every link must be closed: see ClusterNamed.
        """
        self.machine.begin(now_ms)
        state = self.state
        if not state.registry.cluster_uuid:
            raise membership_changes.ChangeRefused(
                "this broker belongs to no cluster yet: nothing to leave"
            )
        if not state.me.votes():
            raise membership_changes.ChangeRefused("a secondary can't be root")
        self.machine.resign("forced to begin a new cluster")
        for name in state.up_names():
            self.machine.peer_down(name)
        state.peers.clear()
        self.machine.held.give_up()
        state.persistent.enter_term(state.term + 1, state.me.uuid)
        alone = Membership((Voter(state.me.name, state.me.uuid, state.me.machine),))
        uuid = f"{state.chance.getrandbits(128):032x}"
        state.persistent.append(
            FOUNDING, payload(Founding(uuid, state.registry.cluster_uuid, alone))
        )
        self.machine.take_office()
        self.machine.end()

    def leave(self, now_ms: int) -> None:
        """Give up the lease before stopping, so that nobody waits for it."""
        self.machine.begin(now_ms)
        self.machine.leave("leaving")
        self.machine.end()

    def died(self, name: str, incarnation: str, now_ms: int) -> None:
        """Somebody who knows the cluster key has seen that an incarnation has ended (R15). If it is
        this one, it lives and must not go on."""
        self.machine.begin(now_ms)
        self.machine.died(name, incarnation)
        self.machine.end()

    # Outputs.

    @property
    def touched(self) -> bool:
        """Whether ``ready`` may have something: False if it had nothing and no input came since."""
        return self.machine.touched

    def ready(self) -> Ready:
        """What the driver must do now; see Ready."""
        if self.machine.root_role is not None:
            self.machine.root_role.take_waiting()
            membership_changes.run(self.machine.root_role)
            self.machine.root_role.flush()
            self.machine.note_settled(self.machine.root_role.given.settled)
            if self.machine.root_role.handed_over:
                patience_ms = self.state.settings.election_patience_ms
                self.machine.quiet_until_ms = self.state.now_ms + 2 * patience_ms
                self.machine.resign("handed over")
                self.machine.notice_lease()
        ready = self.machine.pending
        self.machine.pending = Ready()
        taken = self.state.persistent.take(self.state.now_ms)
        if taken is not None:
            ready.token, ready.batch = taken
        ready.messages = self.state.take_messages()
        ready.events = self.state.events
        self.state.events = []
        self.machine.touched = not ready.is_empty()
        self._deadline_ms = self.machine.deadline_ms()
        return ready

    def next_deadline_ms(self) -> int:
        """When ``tick`` must be called at the latest; NEVER_MS if nothing is due."""
        return self.machine.deadline_ms() if self.machine.touched else self._deadline_ms

    def _root_role(self) -> RootRole:
        if self.machine.root_role is None:
            where = f"ask {self.root}" if self.root else "there is none now"
            raise NotRoot(f"{self.state.me.name} isn't the root: {where}")
        return self.machine.root_role
