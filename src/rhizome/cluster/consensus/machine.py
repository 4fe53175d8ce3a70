"""The machine inside ``Consensus``: roles, and what changes them.

    searching  -> following   a root of this term or a later one is heard
    following  -> searching   the root was silent for longer than its lease is honoured
    searching  -> candidate   it votes, has started, and keeps to no root's lease (R5, R9)
    candidate  -> root        E votes (R1)
    candidate  -> following   a root is heard
    root       -> searching   a higher term, the lease lost, or the office handed over

Secondaries and brokers outside the membership only ever search and follow.
"""

from __future__ import annotations

from rhizome.cluster.consensus.desk import Desk, FailoverPolicy, Peer
from rhizome.cluster.consensus.election import Candidacy, Judge
from rhizome.cluster.consensus.entries import FOUNDING, MEMBERSHIP
from rhizome.cluster.consensus.events import (
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
from rhizome.cluster.consensus.following import Following
from rhizome.cluster.consensus.leases import HeldLease
from rhizome.cluster.consensus.log import size_of
from rhizome.cluster.consensus.messages import (
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
from rhizome.cluster.consensus.office import Office
from rhizome.cluster.consensus.ready import Installation, Ready
from rhizome.cluster.consensus.registry import decode_snapshot
from rhizome.cluster.consensus.settings import NEVER_MS
from rhizome.cluster.identity import Hello
from rhizome.cluster.storage import Image


class Machine:
    """Invariant: at most one of ``office`` and ``candidacy`` is there, and with an office ``root``
    is this broker. While ``touched`` is False there is nothing to do for the driver: every input
    raises it, whoever takes what there is and finds nothing lowers it."""

    def __init__(self, desk: Desk, image: Image, failover_policy: FailoverPolicy) -> None:
        self.desk = desk
        self.judge = Judge(desk)
        self.held = HeldLease(desk)
        self.following = Following(desk)
        self.failover_policy = failover_policy
        self.office: Office | None = None
        self.candidacy: Candidacy | None = None
        self.root = ""
        self.settled_index = 0
        self.retired = False
        self.pending = Ready()
        self.touched = True
        self.quiet_until_ms = 0
        """No candidacy before: somebody else was voted for, or handed the office."""
        self.bytes_since_snapshot = 0
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
        office = self.office
        if office is None:
            return self.held.until_ms
        current = self.desk.applied >= office.first_index
        if not office.is_ready or (not current and self.desk.rules.current_before_lease):
            return 0
        return office.lease.until_ms

    def deadline_ms(self) -> int:
        deadline = self.lease_until_ms() if self._had_lease else NEVER_MS
        if self.office is not None:
            return min(deadline, self.office.deadline_ms())
        if self.root:
            return min(deadline, self.judge.honours_ms)
        if self.candidacy is not None:
            return min(deadline, self.candidacy.deadline_ms())
        if self.stands():
            return min(deadline, max(self.judge.honours_ms, self.quiet_until_ms))
        return deadline

    # Between inputs.

    def begin(self, now_ms: int) -> None:
        """First of all, end what time has ended: nothing is done on a lease that is over."""
        self.touched = True
        self.desk.now_ms = max(self.desk.now_ms, now_ms)
        if self.office is not None:
            if self.office.lease.is_lost():
                self.resign("too few primaries, or its own disk, answered within its lease")
        elif self.root and not self.judge.is_bound():
            self._lose_root()

    def excuse(self, away_ms: int) -> None:
        """What came while this broker stood still isn't read yet: silence until now is nobody's."""
        self.touched = True
        if self.office is not None:
            self.office.lease.excuse()
            self.office.given.excuse(away_ms)
        elif self.root:
            self.judge.excuse()
        elif self.candidacy is not None:
            self.candidacy.excuse()

    def _lose_root(self) -> None:
        self.desk.emit(RootLost(self.root))
        self._lost_root = self.root
        self.root = ""

    def end(self) -> None:
        if self.candidacy is not None and self.candidacy.won:
            self.take_office()
        self._commit()
        self._look_around()
        self.notice_lease()

    def _commit(self) -> None:
        while self.office is not None:
            index = self.office.commit_point()
            if index == self.desk.ledger.commit:
                return
            self._advance_commit(index)

    def _advance_commit(self, index: int) -> None:
        ledger = self.desk.ledger
        if index <= ledger.commit:
            return
        first = ledger.commit + 1
        kinds = {entry.kind for entry in ledger.log.between(first, index)}
        ledger.advance_commit(index, remember=bool(kinds & {FOUNDING, MEMBERSHIP}))
        self._deliver(first, index)

    def _deliver(self, first: int, last: int) -> None:
        """Hand committed entries to the registry and to the application."""
        desk = self.desk
        entries = desk.ledger.log.between(first, last)
        for entry in entries:
            desk.registry = desk.registry.applied(entry)
            self.bytes_since_snapshot += size_of(entry)
        self.pending.committed.extend(entries)
        self._notice_registry()
        if self.office is not None:
            self.office.committed(entries)

    def _notice_registry(self) -> None:
        desk = self.desk
        registry = desk.registry
        if registry.cluster_uuid != self._named:
            self._named = registry.cluster_uuid
            desk.ledger.name_cluster(registry.cluster_uuid)
            desk.emit(ClusterNamed(registry.cluster_uuid, registry.parent_uuid))
        gone = desk.me.incarnation in registry.retired
        if registry.is_registered(desk.me.name, desk.me.incarnation):
            self._registered = True
        elif (self._registered or gone) and not self.retired:
            self.retired = True
            self.held.give_up()
            desk.emit(IncarnationRetired(desk.me.incarnation))

    def notice_lease(self) -> None:
        has_lease = self.desk.now_ms < self.lease_until_ms()
        if has_lease != self._had_lease:
            self._had_lease = has_lease
            self.desk.emit(LeaseGained() if has_lease else LeaseLost())

    # Elections.

    def stands(self) -> bool:
        """Whether this broker may be elected at all. One whose disk hangs can't even vote."""
        return self._is_electable() and not self._is_stuck()

    def _is_electable(self) -> bool:
        if self.desk.starting or self.retired or not self.desk.i_stand():
            return False
        return not self.is_joining()

    def _is_stuck(self) -> bool:
        desk = self.desk
        return desk.ledger.is_stuck(desk.now_ms, desk.settings.election_patience_ms)

    def is_joining(self) -> bool:
        """Whether this broker has no cluster and sees one: then it joins that, and founds none."""
        desk = self.desk
        if desk.registry.cluster_uuid:
            return False
        own = ("", desk.founding_uuid())
        return any(peer.up and peer.hello.cluster_uuid not in own for peer in desk.peers.values())

    def _look_around(self) -> None:
        """Stand for election, if there is no root and nothing against it; or stop doing so."""
        if self.office is not None or self.root:
            return
        voting = self.candidacy is not None and self.candidacy.voting
        if not self._is_electable() or (self._is_stuck() and not voting):
            # A campaign under way has cost a term: its end is waited for.
            self.candidacy = None
        elif self.candidacy is None and not self.judge.honours():
            if self.desk.now_ms >= self.quiet_until_ms:
                self.candidacy = Candidacy(self.desk, silent=self._lost_root)
        if self.candidacy is not None and self.candidacy.won:
            self.take_office()
            self._commit()

    def take_office(self) -> None:
        """The lease held until now came from an earlier root, and later ones won't wait for it."""
        self.candidacy = None
        self.held.give_up()
        self.root = self.desk.me.name
        self.desk.emit(BecameRoot(self.desk.term))
        self.office = Office(self.desk, self.failover_policy)
        self.judge.in_office = True

    def resign(self, reason: str) -> None:
        """Nobody need wait for the lease of a root that says so (R9). After a hand-over the heir
        has its consent, and the others shall not get in its way."""
        if self.office is not None:
            self.desk.emit(Resigned(self.office.term, reason))
            if not self.office.handed_over:
                for name in self.desk.up_names():
                    self.desk.send(name, Abdication(self.office.term))
            self.office = None
            self.root = ""
            self.judge.in_office = False

    def _adopt(self, term: int) -> None:
        """A higher term deposes (R2)."""
        self.resign(f"term {term} has begun")
        self.candidacy = None
        self.root = ""
        self.desk.ledger.enter_term(term)

    # Messages.

    def handle(self, sender: str, message: Message) -> None:
        if isinstance(message, PreVote):
            self.judge.answer_pre_vote(sender, message, self.stands())
        elif isinstance(message, Vote):
            self._handle_vote(sender, message)
        elif isinstance(message, (Heartbeat, Append, SnapshotChunk)):
            self._handle_root(sender, message)
        elif message.term > self.desk.term:
            self._adopt(message.term)
        elif isinstance(message, PreVoteAnswer):
            if self.candidacy is not None:
                self.candidacy.pre_vote_answered(sender, message)
        elif message.term == self.desk.term:
            self._handle_of_this_term(sender, message)

    def _handle_of_this_term(self, sender: str, message: Message) -> None:
        office = self.office
        if isinstance(message, VoteAnswer):
            if self.candidacy is not None:
                self.candidacy.vote_answered(sender, message)
        elif isinstance(message, Abdication):
            if sender == self.root:
                self.judge.release()
                self._lose_root()
        elif isinstance(message, HandOver):
            if sender == self.root and self.stands():
                self.root = ""
                self.candidacy = Candidacy(self.desk, consent=message.term)
        elif office is None:
            return
        elif isinstance(message, Report):
            office.reported(sender, message)
        elif isinstance(message, AppendAnswer):
            office.append_answered(sender, message)
        elif isinstance(message, SnapshotAnswer):
            office.snapshot_answered(sender, message)
        elif isinstance(message, Register):
            office.register(self.desk.peers[sender].hello)
        elif isinstance(message, Farewell):
            office.left(sender)

    def _handle_vote(self, sender: str, message: Vote) -> None:
        if self.judge.refuses_term(sender, message):
            return
        if message.term > self.desk.term:
            self._adopt(message.term)
        if self.judge.answer_vote(sender, message):
            self.candidacy = None
            patience_ms = self.desk.settings.election_patience_ms
            jitter_ms = self.desk.chance.randrange(patience_ms)
            self.quiet_until_ms = self.desk.now_ms + patience_ms + jitter_ms

    def _handle_root(self, sender: str, message: Heartbeat | Append | SnapshotChunk) -> None:
        """From a broker that is root in its term, or was."""
        if message.term < self.desk.term:
            self.desk.send(sender, Report(self.desk.term, NO_STAMP, NO_STAMP, 0))
            return
        if message.term > self.desk.term:
            self._adopt(message.term)
        if self.office is not None:
            return
        self.candidacy = None
        self._lost_root = ""
        self.quiet_until_ms = 0
        if self.root != sender:
            self.root = sender
            self.desk.emit(RootKnown(sender, message.term))
        if isinstance(message, Heartbeat):
            self._handle_heartbeat(message)
        elif isinstance(message, Append):
            self.judge.honour(self.desk.settings.root_lease_ms)
            self._advance_commit(self.following.append(sender, message))
        else:
            self.judge.honour(self.desk.settings.root_lease_ms)
            self._handle_chunk(sender, message)

    def _handle_heartbeat(self, message: Heartbeat) -> None:
        self.judge.honour(message.root_lease_ms)
        self._advance_commit(min(message.commit, self.desk.ledger.log.last_index))
        self.note_settled(message.settled)
        if message.granted_ms != NO_STAMP and not self.retired:
            self.held.granted(message.granted_ms, message.home_lease_ms)
        if message.stamp_ms != NO_STAMP:
            self.report(message.stamp_ms)

    def note_settled(self, index: int) -> None:
        """What was settled once stays so: a new root that begins to count anew takes none back."""
        self.settled_index = max(self.settled_index, index)

    def report(self, stamp_ms: int) -> None:
        """Answer the root, ask for the lease, or to be registered first."""
        desk = self.desk
        registered = desk.registry.is_registered(desk.me.name, desk.me.incarnation)
        asks = registered and not self.retired
        asked_ms = desk.now_ms if asks else NO_STAMP
        desk.send(self.root, Report(desk.term, stamp_ms, asked_ms, desk.applied))
        if not registered and not self.retired and stamp_ms != NO_STAMP:
            desk.send(self.root, Register(desk.term))

    def _handle_chunk(self, sender: str, message: SnapshotChunk) -> None:
        installed = self.following.chunk(sender, message)
        if installed is None:
            return
        snapshot, body = installed
        self.desk.registry = body.registry
        self.pending.snapshot = Installation(snapshot.index, body.application)
        self.pending.committed.clear()
        self.bytes_since_snapshot = 0
        self._notice_registry()

    # Links.

    def peer_up(self, hello: Hello) -> None:
        """On a fresh connection. A store of another cluster is refused, with both named (R7)."""
        desk, name = self.desk, hello.name
        if desk.is_up(name):
            self.peer_down(name)
        if self._is_of_another_cluster(hello):
            reason = (
                f"{name} belongs to the cluster {hello.cluster_uuid} and this broker to "
                f"{desk.founding_uuid()}: have one of them rejoin with its store set aside, or "
                "take it out of the configuration"
            )
            desk.peers.pop(name, None)
            desk.emit(PeerRefused(name, reason))
            return
        desk.peers[name] = Peer(hello, up=True)
        if self.office is not None:
            self.office.peer_up(name)
        elif self.candidacy is not None:
            self.candidacy.peer_changed(name)

    def peer_down(self, name: str) -> None:
        self.desk.peers[name].up = False
        self.desk.forget_messages_to(name)
        if self.office is not None:
            self.office.peer_down(name)
        elif self.candidacy is not None:
            self.candidacy.peer_changed(name)

    def _is_of_another_cluster(self, hello: Hello) -> bool:
        """A founding entry that lost to another one of the same list is given up for it; that is
        no reason to give it up for a cluster of other primaries."""
        desk = self.desk
        ours = desk.founding_uuid()
        if not ours or not hello.cluster_uuid or ours == hello.cluster_uuid:
            return False
        return bool(desk.registry.cluster_uuid) or hello.primaries_hash != desk.me.primaries_hash
