"""Role machine: the roles inside ``Consensus``, and what changes them.

    searching  -> following   a root of this term or a later one is heard
    following  -> searching   the root was silent for longer than its lease is honoured
    searching  -> candidate   it votes, has started, and keeps to no root's lease (R5, R9)
    candidate  -> root        E votes (R1)
    candidate  -> following   a root is heard
    root       -> searching   a higher term, the lease lost, or the role handed over

Secondaries and brokers outside the membership only ever search and follow.
"""

from __future__ import annotations

from typing import Final

from rhizome.cluster.consensus.broker_leases import HeldLease
from rhizome.cluster.consensus.consensus_events import (
    BecameRoot,
    ClusterNamed,
    IncarnationRetired,
    LeaseGained,
    LeaseLost,
    PeerRefused,
    Resigned,
    RootKnown,
    RootLost,
)
from rhizome.cluster.consensus.consensus_messages import (
    NO_STAMP,
    Abdication,
    Append,
    AppendAnswer,
    Farewell,
    HandOver,
    Heartbeat,
    Message,
    PreVote,
    PreVoteAnswer,
    Register,
    Report,
    SnapshotAnswer,
    SnapshotChunk,
    Vote,
    VoteAnswer,
)
from rhizome.cluster.consensus.consensus_output import Installation, Ready
from rhizome.cluster.consensus.consensus_registry import decode_snapshot
from rhizome.cluster.consensus.election import Candidacy, VoteResponder
from rhizome.cluster.consensus.log.cluster_store import Image
from rhizome.cluster.consensus.log.log_entry_payloads import FOUNDING, MEMBERSHIP
from rhizome.cluster.consensus.log.log_follower import LogFollower
from rhizome.cluster.consensus.log.state_log import size_of
from rhizome.cluster.consensus.node_state import FailoverPolicy, NodeState, Peer
from rhizome.cluster.consensus.root_role import RootRole
from rhizome.cluster.consensus.settings import NEVER_MS
from rhizome.cluster.link.broker_hello import Hello

DEATHS_MAX: Final = 256
"""Certificates of death that are remembered, one for each broker: a root that begins after a death
retires that incarnation."""


class RoleMachine:
    """The role of this broker in consensus.

    Invariant: at most one of ``root_role`` and ``candidacy`` exists, and with a ``root_role``
    ``root`` is this broker. While ``touched`` is False there is nothing to do for the driver: every
    input raises it, and the driver lowers it when it looks and finds nothing.
    """

    def __init__(self, state: NodeState, image: Image, failover_policy: FailoverPolicy) -> None:
        self.state = state
        self.vote_responder = VoteResponder(state)
        self.held = HeldLease(state)
        self.following = LogFollower(state)
        self.failover_policy = failover_policy
        self.root_role: RootRole | None = None
        self.candidacy: Candidacy | None = None
        self.root = ""
        self.settled_index = 0
        self.retired = False
        self.pending = Ready()
        self.touched = True
        self.quiet_until_ms = 0
        """Until then this broker is no candidate: it voted for another, or handed over the role of
        root."""
        self.bytes_since_snapshot = 0
        self.deaths: dict[str, str] = {}
        """The latest incarnation of each broker that has a certificate of death (R15)."""
        self._lost_root = ""
        self._registered = False
        self._had_lease = False
        self._named = image.cluster_uuid
        if image.snapshot is not None:
            body = decode_snapshot(image.snapshot.data)
            self.pending.snapshot = Installation(image.snapshot.index, body.application)
        first = 1 if image.snapshot is None else image.snapshot.index + 1
        self._deliver(first, image.commit)

    def lease_until_ms(self) -> int:
        """The end of this broker's lease, on its own clock (R9).

        A root has none before it has applied its first entry: until then it may not know all that
        was settled before (R10).
        """
        root_role = self.root_role
        if root_role is None:
            return self.held.until_ms
        current = self.state.applied >= root_role.first_index
        if not root_role.is_ready or (not current and self.state.rules.current_before_lease):
            return 0
        return root_role.lease.until_ms

    def deadline_ms(self) -> int:
        deadline = self.lease_until_ms() if self._had_lease else NEVER_MS
        if self.root_role is not None:
            return min(deadline, self.root_role.deadline_ms())
        if self.root:
            return min(deadline, self.vote_responder.honours_ms)
        if self.candidacy is not None:
            return min(deadline, self.candidacy.deadline_ms())
        if self.stands():
            return min(deadline, max(self.vote_responder.honours_ms, self.quiet_until_ms))
        return deadline

    # Between inputs.

    def begin(self, now_ms: int) -> None:
        """First of all, end what time has ended: nothing is done on a lease that is over."""
        self.touched = True
        self.state.now_ms = max(self.state.now_ms, now_ms)
        if self.root_role is not None:
            if self.root_role.lease.is_lost():
                self.resign("too few primaries, or its own disk, answered within its lease")
        elif self.root and not self.vote_responder.is_bound():
            self._lose_root()

    def excuse(self, away_ms: int) -> None:
        """Input that came while this broker stood still isn't read yet: no peer counts as silent
        until now."""
        self.touched = True
        if self.root_role is not None:
            self.root_role.lease.excuse()
            self.root_role.given.excuse(away_ms)
        elif self.root:
            self.vote_responder.excuse()
        elif self.candidacy is not None:
            self.candidacy.excuse()

    def _lose_root(self) -> None:
        self.state.emit(RootLost(self.root))
        self._lost_root = self.root
        self.root = ""

    def end(self) -> None:
        if self.candidacy is not None and self.candidacy.won:
            self.take_office()
        self._commit()
        self._look_around()
        self.notice_lease()

    def _commit(self) -> None:
        while self.root_role is not None:
            index = self.root_role.commit_point()
            if index == self.state.persistent.commit:
                return
            self._advance_commit(index)

    def _advance_commit(self, index: int) -> None:
        persistent = self.state.persistent
        if index <= persistent.commit:
            return
        first = persistent.commit + 1
        kinds = {entry.kind for entry in persistent.log.between(first, index)}
        persistent.advance_commit(index, remember=bool(kinds & {FOUNDING, MEMBERSHIP}))
        self._deliver(first, index)

    def _deliver(self, first: int, last: int) -> None:
        """Hand committed entries to the registry and to the application."""
        state = self.state
        entries = state.persistent.log.between(first, last)
        for entry in entries:
            state.registry = state.registry.applied(entry)
            self.bytes_since_snapshot += size_of(entry)
        self.pending.committed.extend(entries)
        self._notice_registry()
        if self.root_role is not None:
            self.root_role.committed(entries)

    def _notice_registry(self) -> None:
        state = self.state
        registry = state.registry
        if registry.cluster_uuid != self._named:
            self._named = registry.cluster_uuid
            state.persistent.name_cluster(registry.cluster_uuid)
            state.emit(ClusterNamed(registry.cluster_uuid, registry.parent_uuid))
        gone = state.me.incarnation in registry.retired
        if registry.is_registered(state.me.name, state.me.incarnation):
            self._registered = True
        elif (self._registered or gone) and not self.retired:
            self.retired = True
            self.held.give_up()
            state.emit(IncarnationRetired(state.me.incarnation))

    def notice_lease(self) -> None:
        has_lease = self.state.now_ms < self.lease_until_ms()
        if has_lease != self._had_lease:
            self._had_lease = has_lease
            self.state.emit(LeaseGained() if has_lease else LeaseLost())

    # Elections.

    def stands(self) -> bool:
        """Whether this broker may be elected at all. One whose disk hangs can't even vote."""
        return self._is_electable() and not self._is_stuck()

    def _is_electable(self) -> bool:
        if self.state.starting or self.retired or not self.state.i_stand():
            return False
        return not self.is_joining()

    def _is_stuck(self) -> bool:
        state = self.state
        return state.persistent.is_stuck(state.now_ms, state.settings.election_patience_ms)

    def is_joining(self) -> bool:
        """Whether this broker has no cluster and sees one: then it joins that, and founds none."""
        state = self.state
        if state.registry.cluster_uuid:
            return False
        own = ("", state.founding_uuid())
        return any(peer.up and peer.hello.cluster_uuid not in own for peer in state.peers.values())

    def _look_around(self) -> None:
        """Stand for election, if there is no root and nothing prevents it; or stop doing so."""
        if self.root_role is not None or self.root:
            return
        voting = self.candidacy is not None and self.candidacy.voting
        if not self._is_electable() or (self._is_stuck() and not voting):
            # A campaign under way has cost a term: its end is waited for.
            self.candidacy = None
        elif self.candidacy is None and not self.vote_responder.honours():
            if self.state.now_ms >= self.quiet_until_ms:
                self.candidacy = Candidacy(self.state, silent=self._lost_root)
        if self.candidacy is not None and self.candidacy.won:
            self.take_office()
            self._commit()

    def take_office(self) -> None:
        """Become root. The lease held until now came from an earlier root, and later ones won't
        wait for it."""
        self.candidacy = None
        self.held.give_up()
        self.root = self.state.me.name
        self.state.emit(BecameRoot(self.state.term))
        self.root_role = RootRole(self.state, self.failover_policy)
        self.vote_responder.in_office = True
        for name, incarnation in self.deaths.items():
            self.root_role.died(name, incarnation)

    def resign(self, reason: str) -> None:
        """Resign as root, and tell the others, so that nobody need wait for the lease of this root
        (R9).

        After a hand-over nothing is told: the successor has this root's consent, and the others
        shall not get in its way.
        """
        if self.root_role is not None:
            self.state.emit(Resigned(self.root_role.term, reason))
            if not self.root_role.handed_over:
                for name in self.state.up_names():
                    self.state.send(name, Abdication(self.root_role.term))
            self.root_role = None
            self.root = ""
            self.vote_responder.in_office = False

    def leave(self, reason: str) -> None:
        """Give up every lease, for ever, and say so, so that nobody waits for it (R9)."""
        if self.root_role is not None:
            self.resign(reason)
        self.held.give_up()
        self.retired = True
        if self.state.is_up(self.root):
            self.state.send(self.root, Farewell(self.state.term))

    # Deaths.

    def died(self, name: str, incarnation: str) -> None:
        """An incarnation has a certificate of death (R15)."""
        me = self.state.me
        if (name, incarnation) == (me.name, me.incarnation):
            if not self.retired:
                self.leave("this broker lives, and was declared dead")
                self.state.emit(IncarnationRetired(incarnation))
            return
        self.deaths.pop(name, None)
        self.deaths[name] = incarnation
        if len(self.deaths) > DEATHS_MAX:
            del self.deaths[next(iter(self.deaths))]
        if self.root_role is not None:
            self.root_role.died(name, incarnation)
        else:
            self._leave_dead_root()

    def _leave_dead_root(self) -> None:
        """Keep to the lease of a root that is dead no longer, once its link is gone: a living one
        hears of its certificate over that link, and resigns by itself (R15)."""
        peer = self.state.peers.get(self.root)
        dead = self.deaths.get(self.root)
        if peer is None or dead is None:
            return
        rules = self.state.rules
        if peer.hello.incarnation != dead and rules.death_of_one_incarnation:
            return
        if not peer.up or not rules.accused_is_fenced:
            self.vote_responder.release()
            self._lose_root()

    def _adopt(self, term: int) -> None:
        """Take a higher term, which deposes a root (R2)."""
        self.resign(f"term {term} has begun")
        self.candidacy = None
        self.root = ""
        self.state.persistent.enter_term(term)

    # Messages.

    def handle(self, sender: str, message: Message) -> None:
        if isinstance(message, PreVote):
            self.vote_responder.answer_pre_vote(sender, message, self.stands())
        elif isinstance(message, Vote):
            self._handle_vote(sender, message)
        elif isinstance(message, (Heartbeat, Append, SnapshotChunk)):
            self._handle_root(sender, message)
        elif message.term > self.state.term:
            self._adopt(message.term)
        elif isinstance(message, PreVoteAnswer):
            if self.candidacy is not None:
                self.candidacy.pre_vote_answered(sender, message)
        elif message.term == self.state.term:
            self._handle_of_this_term(sender, message)

    def _handle_of_this_term(self, sender: str, message: Message) -> None:
        root_role = self.root_role
        if isinstance(message, VoteAnswer):
            if self.candidacy is not None:
                self.candidacy.vote_answered(sender, message)
        elif isinstance(message, Abdication):
            if sender == self.root:
                self.vote_responder.release()
                self._lose_root()
        elif isinstance(message, HandOver):
            if sender == self.root and self.stands():
                self.root = ""
                self.candidacy = Candidacy(self.state, consent=message.term)
        elif root_role is None:
            return
        elif isinstance(message, Report):
            root_role.reported(sender, message)
        elif isinstance(message, AppendAnswer):
            root_role.append_answered(sender, message)
        elif isinstance(message, SnapshotAnswer):
            root_role.snapshot_answered(sender, message)
        elif isinstance(message, Register):
            root_role.register(self.state.peers[sender].hello)
        elif isinstance(message, Farewell):
            root_role.left(sender)

    def _handle_vote(self, sender: str, message: Vote) -> None:
        if self.vote_responder.refuses_term(sender, message):
            return
        if message.term > self.state.term:
            self._adopt(message.term)
        if self.vote_responder.answer_vote(sender, message):
            self.candidacy = None
            patience_ms = self.state.settings.election_patience_ms
            jitter_ms = self.state.chance.randrange(patience_ms)
            self.quiet_until_ms = self.state.now_ms + patience_ms + jitter_ms

    def _handle_root(self, sender: str, message: Heartbeat | Append | SnapshotChunk) -> None:
        """A message from a broker that is root in its term, or was."""
        if message.term < self.state.term:
            self.state.send(sender, Report(self.state.term, NO_STAMP, NO_STAMP, 0))
            return
        if message.term > self.state.term:
            self._adopt(message.term)
        if self.root_role is not None:
            return
        self.candidacy = None
        self._lost_root = ""
        self.quiet_until_ms = 0
        if self.root != sender:
            self.root = sender
            self.state.emit(RootKnown(sender, message.term))
        if isinstance(message, Heartbeat):
            self._handle_heartbeat(message)
        elif isinstance(message, Append):
            self.vote_responder.honour(self.state.settings.root_lease_ms)
            self._advance_commit(self.following.append(sender, message))
        else:
            self.vote_responder.honour(self.state.settings.root_lease_ms)
            self._handle_chunk(sender, message)

    def _handle_heartbeat(self, message: Heartbeat) -> None:
        self.vote_responder.honour(message.root_lease_ms)
        self._advance_commit(min(message.commit, self.state.persistent.log.last_index))
        self.note_settled(message.settled)
        if message.granted_ms != NO_STAMP and not self.retired:
            self.held.granted(message.granted_ms, message.home_lease_ms)
        if message.stamp_ms != NO_STAMP:
            self.report(message.stamp_ms)

    def note_settled(self, index: int) -> None:
        """What was settled once stays so: a new root that begins to count anew takes nothing
        back."""
        self.settled_index = max(self.settled_index, index)

    def report(self, stamp_ms: int) -> None:
        """Answer the root, ask for the lease, or ask to be registered first."""
        state = self.state
        registered = state.is_registered(state.me.name, state.me.incarnation)
        asks = registered and not self.retired
        asked_ms = state.now_ms if asks else NO_STAMP
        state.send(self.root, Report(state.term, stamp_ms, asked_ms, state.applied))
        if not registered and not self.retired and stamp_ms != NO_STAMP:
            state.send(self.root, Register(state.term))

    def _handle_chunk(self, sender: str, message: SnapshotChunk) -> None:
        installed = self.following.chunk(sender, message)
        if installed is None:
            return
        snapshot, body = installed
        self.state.registry = body.registry
        self.pending.snapshot = Installation(snapshot.index, body.application)
        self.pending.committed.clear()
        self.bytes_since_snapshot = 0
        self._notice_registry()

    # Links.

    def peer_up(self, hello: Hello) -> None:
        """A peer has linked on a fresh connection. A store of another cluster is refused, with both
        named (R7)."""
        state, name = self.state, hello.name
        if state.is_up(name):
            self.peer_down(name)
        if self._is_of_another_cluster(hello):
            reason = (
                f"{name} belongs to the cluster {hello.cluster_uuid} and this broker to "
                f"{state.founding_uuid()}: have one of them rejoin with its store set aside, or "
                "take it out of the configuration"
            )
            state.peers.pop(name, None)
            state.emit(PeerRefused(name, reason))
            return
        state.peers[name] = Peer(hello, up=True)
        if self.root_role is not None:
            self.root_role.peer_up(name)
        elif self.candidacy is not None:
            self.candidacy.peer_changed(name)

    def peer_down(self, name: str) -> None:
        self.state.peers[name].up = False
        self.state.forget_messages_to(name)
        if self.root_role is not None:
            self.root_role.peer_down(name)
        elif self.candidacy is not None:
            self.candidacy.peer_changed(name)
        elif name == self.root:
            self._leave_dead_root()

    def _is_of_another_cluster(self, hello: Hello) -> bool:
        """Whether a peer belongs to another cluster. A founding entry that lost to another one of
        the same list is given up for it; that is no reason to give it up for a cluster of other
        primaries."""
        state = self.state
        ours = state.founding_uuid()
        if not ours or not hello.cluster_uuid or ours == hello.cluster_uuid:
            return False
        return bool(state.registry.cluster_uuid) or hello.primaries_hash != state.me.primaries_hash
