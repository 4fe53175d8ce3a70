"""Root role: orders entries, commits them, and holds the cluster together.

The role begins with an empty entry (R2), preceded by the founding entry if there is no cluster yet
(R7). It ends with a higher term, with the lease (R9), or by handing over.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rhizome.cluster.consensus.broker_leases import GivenLeases, RootLease
from rhizome.cluster.consensus.consensus_events import RootReady
from rhizome.cluster.consensus.consensus_messages import (
    AppendAnswer,
    HandOver,
    Report,
    SnapshotAnswer,
)
from rhizome.cluster.consensus.dataclass_codec import decode
from rhizome.cluster.consensus.log.cluster_store import Entry
from rhizome.cluster.consensus.log.follower_progress import FollowerProgress
from rhizome.cluster.consensus.log.log_entry_payloads import (
    APPLICATION,
    EMPTY,
    FOUNDING,
    REGISTRATION,
    RETIREMENT,
    Founding,
    Registration,
    Retirement,
    Tenure,
    payload,
)
from rhizome.cluster.consensus.log.state_log import size_of
from rhizome.cluster.consensus.membership import Membership, Voter, one_vote_per_machine
from rhizome.cluster.consensus.node_state import FailoverPolicy, NodeState
from rhizome.cluster.consensus.settings import NEVER_MS
from rhizome.cluster.link.broker_hello import SECONDARY, Hello

ABSENTEES_EVERY_MS: Final = 1_000
"""How often the root looks for brokers that stay away."""


class RootRole:
    """This broker as root, for one term.

    Invariant: every entry of this term in any log was appended here, in this order. What was
    submitted to this root was appended, in that order, or waits.
    """

    def __init__(self, state: NodeState, failover_policy: FailoverPolicy) -> None:
        self.state = state
        self.failover_policy = failover_policy
        self.term = state.term
        self.lease = RootLease(state)
        self.progress: dict[str, FollowerProgress] = {}
        self.heir = ""
        self.heir_until_ms = NEVER_MS
        self.handed_over = False
        self.is_ready = False
        self._uncommitted_bytes = 0
        self._waiting: dict[bytes, None] = {}
        self._registering: dict[str, str] = {}
        self._away_since_ms: dict[str, int] = {}
        self._retiring: dict[str, str] = {}
        self._dead: dict[str, str] = {}
        """Incarnations with a certificate of death that still have a link and a lease (R15)."""
        self._reported_ms: dict[str, int] = {}
        self._to_flush: dict[str, None] = {}
        self._told_all = (-1, -1, -1)
        """Last entry, commit and settled index when all brokers were last sent what they lack;
        ``_to_flush`` are those that may lack something since then, though these are the same."""
        self._beats = 0
        self._absentees_ms = state.now_ms
        self._heartbeat_ms = state.now_ms
        self._began_ms = state.now_ms
        self.first_index = self._begin()
        self.given = GivenLeases(state, self.first_index)
        self.register(state.me)
        for name in state.up_names():
            self._note_progress(name, FollowerProgress(state, name))

    def _note_progress(self, name: str, progress: FollowerProgress) -> None:
        self.progress[name] = progress
        self._to_flush[name] = None

    def _begin(self) -> int:
        state = self.state
        if state.persistent.log.last_index == 0:
            cluster_uuid = f"{state.chance.getrandbits(128):032x}"
            founding = Founding(cluster_uuid, "", self._first_membership())
            self.append(FOUNDING, payload(founding))
        tenure = Tenure(state.me.name, state.me.incarnation)
        return self.append(EMPTY, payload(tenure)).index

    def _first_membership(self) -> Membership:
        """The configured list, with the UUIDs of the brokers that are here with an empty store
        (R7)."""
        state = self.state
        listed = state.electorate.newest
        voters = []
        for voter in listed.voters:
            hello = state.hello_of(voter.name)
            here = voter.name == state.me.name or state.is_up(voter.name)
            if here and hello is not None and state.counts(listed, voter):
                voters.append(Voter(voter.name, hello.uuid, hello.machine))
            elif state.rules.founding_quorum:
                voters.append(voter)
        return Membership(one_vote_per_machine(voters, state.me.name, state.rules))

    # Entries.

    def append(self, kind: int, data: bytes) -> Entry:
        entry = self.state.persistent.append(kind, data)
        self._uncommitted_bytes += size_of(entry)
        return entry

    def takes(self, reserve: bool) -> bool:
        """Whether a command may be appended now: not while the successor catches up, nor without
        room.

        The reserve is for what the root proposes about groups and brokers, takeovers above all
        (R11).
        """
        settings = self.state.settings
        limit = settings.uncommitted_bytes_max + (settings.reserve_bytes if reserve else 0)
        return not self.heir and self._uncommitted_bytes < limit

    def submit(self, data: bytes) -> None:
        """Append a command now, or as soon as that may be.

        The proposer sends it again to another root only. If it got lost here, and this root stayed
        because its successor never caught up, nobody would hear of it again. A command that comes
        again while it waits is kept once, so no more wait than brokers have proposals open.
        """
        self._waiting[data] = None
        self.take_waiting()

    def submit_next(self, batch: list[bytes]) -> bool:
        """Append commands if nothing waits and everything in the log has been applied here."""
        is_next = self.state.applied == self.state.persistent.log.last_index
        if not self.is_ready or self._waiting or not is_next or not self.takes(reserve=False):
            return False
        for data in batch:
            self.append(APPLICATION, data)
        return True

    def take_waiting(self) -> None:
        """Append the waiting commands, in the order in which they came."""
        if not self._waiting or not self.takes(reserve=False):
            return
        for data in list(self._waiting):
            if not self.takes(reserve=False):
                return
            del self._waiting[data]
            self.append(APPLICATION, data)

    def register(self, hello: Hello) -> None:
        """Enter an incarnation into the registry, once, if its name is its own (R7)."""
        registry = self.state.registry
        if self.state.is_registered(hello.name, hello.incarnation):
            return
        if hello.incarnation in registry.retired:
            return
        if self._registering.get(hello.name) == hello.incarnation or self._name_is_taken(hello):
            return
        self._registering[hello.name] = hello.incarnation
        bare = Registration(
            hello.name, hello.uuid, hello.incarnation, hello.role, hello.addresses, hello.machine
        )
        failover = self.failover_policy(bare, self.state.registry)
        self.append(REGISTRATION, payload(replace(bare, failover=failover)))

    def _name_is_taken(self, hello: Hello) -> bool:
        """Whether the name is taken: by a voter that it isn't, or isn't yet again; or by a broker
        that may hold a lease."""
        voter = self.state.electorate.newest.get(hello.name)
        if voter is not None and voter.uuid and voter.uuid != hello.uuid:
            return True
        known = self.state.registered(hello.name)
        if known is None or known.registration.uuid == hello.uuid:
            return False
        return hello.name in self.given.leases

    def retire(self, name: str, incarnation: str) -> None:
        if self._retiring.get(name) == incarnation:
            return
        if self.state.is_registered(name, incarnation):
            self._retiring[name] = incarnation
            self.append(RETIREMENT, payload(Retirement(name, incarnation)))

    def died(self, name: str, incarnation: str) -> None:
        """An incarnation has ended for certain (R15). Its retirement ends its lease when that is
        committed; the certificate of an earlier incarnation changes nothing."""
        known = self.state.registered(name)
        if known is None or name == self.state.me.name:
            return
        if not self.state.rules.death_of_one_incarnation:
            incarnation = known.registration.incarnation
        if known.registration.incarnation == incarnation:
            self._dead[name] = incarnation
            self._retire_dead()

    def _retire_dead(self) -> None:
        for name, incarnation in list(self._dead.items()):
            if self._is_fenced(name, incarnation) or not self.state.rules.accused_is_fenced:
                del self._dead[name]
                self.retire(name, incarnation)

    def _is_fenced(self, name: str, incarnation: str) -> bool:
        """Whether an incarnation that may live in spite of its certificate has no link with this
        root, or no lease; it gets no other one."""
        peer = self.state.peers.get(name)
        if peer is None or not peer.up or peer.hello.incarnation != incarnation:
            return True
        given = self.given.leases.get(name)
        return given is None or given.incarnation != incarnation

    def commit_point(self) -> int:
        """The highest index that may be committed now; the present one if none is higher."""
        state = self.state
        voters = [name for name in state.electorate.names() if name in self.progress]
        matches = {name: self.progress[name].match for name in voters}
        matches[state.me.name] = state.persistent.synced_index
        reached = state.electorate.reached(matches, state.counts, state.rules)
        if reached <= state.persistent.commit:
            return state.persistent.commit
        if (
            state.persistent.log.term_at(reached) != self.term
            and state.rules.only_own_term_by_counting
        ):
            return state.persistent.commit
        return reached

    def committed(self, entries: list[Entry]) -> None:
        """Entries have just been committed, and the registry has been told."""
        for entry in entries:
            if entry.term == self.term:
                self._uncommitted_bytes = max(0, self._uncommitted_bytes - size_of(entry))
            if entry.kind == REGISTRATION:
                self._registering.pop(decode(Registration, entry.payload).name, None)
        if not self.is_ready and self.state.persistent.commit >= self.first_index:
            self.is_ready = True
            self.state.emit(RootReady(self.term))
        if any(entry.kind in (REGISTRATION, RETIREMENT) for entry in entries):
            for name, given in list(self.given.leases.items()):
                if not self.state.is_registered(name, given.incarnation):
                    self.given.end(name, given.incarnation)

    # Brokers.

    def peer_up(self, name: str) -> None:
        known = self.progress.get(name)
        self.lease.forget(name)
        self._away_since_ms.pop(name, None)
        hello = self.state.peers[name].hello
        if known is not None and known.bearer == (hello.uuid, hello.incarnation):
            known.relinked()
            self._to_flush[name] = None
        else:
            self._note_progress(name, FollowerProgress(self.state, name))

    def peer_down(self, name: str) -> None:
        self._away_since_ms[name] = self.state.now_ms
        self._retire_dead()

    def away_ms(self, name: str) -> int:
        """How long a broker has had no link; one that had none when this root began is counted from
        the first question on."""
        state = self.state
        if name == state.me.name or state.is_up(name):
            return 0
        return state.now_ms - self._away_since_ms.setdefault(name, state.now_ms)

    def reported(self, name: str, report: Report) -> None:
        self._reported_ms[name] = self.state.now_ms
        if self.state.peers[name].hello.votes() or not self.state.rules.secondaries_never_vote:
            self.lease.answered(name, report.stamp_ms)
        progress = self.progress[name]
        incarnation = self.state.peers[name].hello.incarnation
        retiring = incarnation in (self._retiring.get(name), self._dead.get(name))
        held = self.is_ready and self.lease.is_held() and not retiring
        had_lease = self._has_lease_of_mine(name)
        if self.given.asked(name, report.asked_ms, report.applied, held):
            progress.granted_ms = report.asked_ms
            progress.tell_now = progress.tell_now or not had_lease
            self._to_flush[name] = None

    def hears(self, name: str) -> bool:
        """Whether a linked broker answers, with a lease or without; when this root has just begun,
        whether it may still do so."""
        state = self.state
        heard_ms = self._reported_ms.get(name, self._began_ms)
        return state.is_up(name) and state.now_ms - heard_ms <= state.settings.election_patience_ms

    def _has_lease_of_mine(self, name: str) -> bool:
        given = self.given.leases.get(name)
        return given is not None and given.renews

    def append_answered(self, name: str, answer: AppendAnswer) -> None:
        self.progress[name].answered(answer)
        self._to_flush[name] = None

    def snapshot_answered(self, name: str, answer: SnapshotAnswer) -> None:
        self.progress[name].snapshot_answered(answer)
        self._to_flush[name] = None

    def left(self, name: str) -> None:
        """A broker said farewell: its lease is over now, and a secondary's incarnation too."""
        hello = self.state.peers[name].hello
        self._reported_ms[name] = -NEVER_MS
        self.given.end(name, hello.incarnation)
        self._retire_dead()
        if hello.role == SECONDARY:
            self.retire(name, hello.incarnation)

    # Time.

    def tick(self) -> None:
        if self.lease.is_held():
            # Without a lease of its own this root may have a successor, which has granted others.
            self.given.expire()
        self._retire_dead()
        self._retire_absentees()
        state = self.state
        if state.now_ms >= self.heir_until_ms:
            self.heir, self.heir_until_ms = "", NEVER_MS
        if state.now_ms >= self._heartbeat_ms:
            self._heartbeat_ms = state.now_ms + state.settings.heartbeat_ms
            self._probe_disk()
            self.given.settle()
            self._beats += 1
            for name in state.up_names():
                if self._has_turn(name):
                    self.progress[name].heartbeat(state.now_ms, self.given.settled)

    def _has_turn(self, name: str) -> bool:
        """Whether a broker gets this heartbeat. Secondaries get every other one, half of them each
        time, if that is often enough: there may be many, and the root's own lease (R9) and
        elections need none of them."""
        state = self.state
        settings = state.settings
        if state.peers[name].hello.votes() or settings.root_lease_ms < 6 * settings.heartbeat_ms:
            return True
        return (self._beats + sum(name.encode("utf-8", "surrogateescape"))) % 2 == 0

    def _probe_disk(self) -> None:
        """Write something every other heartbeat: the lease needs a disk that takes it (R9)."""
        persistent = self.state.persistent
        due_ms = persistent.disk_ms + 2 * self.state.settings.heartbeat_ms
        if not persistent.is_writing() and self.state.now_ms >= due_ms:
            persistent.touch()

    def _retire_absentees(self) -> None:
        """Retire brokers that don't vote and stay away. One whose link went down before this root
        began is counted from that beginning."""
        state = self.state
        if state.now_ms < self._absentees_ms:
            return
        self._absentees_ms = state.now_ms + min(ABSENTEES_EVERY_MS, state.settings.retire_ms // 100)
        members = state.electorate.newest
        for broker in state.registry.brokers:
            registration = broker.registration
            if members.get(registration.name) is not None or state.is_up(registration.name):
                continue
            since_ms = self._away_since_ms.setdefault(registration.name, state.now_ms)
            gone = state.now_ms - since_ms >= state.settings.retire_ms
            if gone and registration.name not in self.given.leases:
                self.retire(registration.name, registration.incarnation)

    def flush(self) -> None:
        """Send what the brokers lack: entries first, then news."""
        self.given.settle()
        persistent = self.state.persistent
        news = (persistent.log.last_index, persistent.commit, self.given.settled)
        names = list(self._to_flush) if news == self._told_all else self.state.up_names()
        self._told_all = news
        self._to_flush.clear()
        for name in names:
            if self.state.is_up(name):
                progress = self.progress[name]
                progress.replicate()
                progress.tell(self.given.settled)
        self._hand_over_if_due()

    def deadline_ms(self) -> int:
        deadline = min(self._heartbeat_ms, self.lease.resigns_ms, self.heir_until_ms)
        if self.lease.is_held():
            deadline = min(deadline, self.lease.until_ms, self.given.deadline_ms())
        return deadline

    # Handing over.

    def begin_hand_over(self, heir: str) -> None:
        self.heir = heir
        self.heir_until_ms = self.state.now_ms + self.state.settings.home_lease_ms

    def _hand_over_if_due(self) -> None:
        """Hand over once the successor has the whole log: nothing is appended meanwhile."""
        progress = self.progress.get(self.heir)
        if not self.heir or progress is None or not self.state.is_up(self.heir):
            return
        if progress.match == self.state.persistent.log.last_index:
            self.state.send(self.heir, HandOver(self.term))
            self.handed_over = True
