"""The root's office: ordering entries, committing them, and holding the cluster together.

The office begins with an empty entry (R2), preceded by the founding entry if there is no cluster
yet (R7). It ends with a higher term, with the lease (R9), or by handing over.
"""

from __future__ import annotations

from dataclasses import replace

from rhizome.cluster.consensus.codec import decode
from rhizome.cluster.consensus.desk import Desk, FailoverPolicy
from rhizome.cluster.consensus.entries import (
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
from rhizome.cluster.consensus.events import RootReady
from rhizome.cluster.consensus.leases import GivenLeases, RootLease
from rhizome.cluster.consensus.log import size_of
from rhizome.cluster.consensus.membership import Membership, Voter, one_vote_per_machine
from rhizome.cluster.consensus.messages import (
    AppendAnswer,
    HandOver,
    Report,
    SnapshotAnswer,
)
from rhizome.cluster.consensus.replication import Progress
from rhizome.cluster.consensus.settings import NEVER_MS
from rhizome.cluster.identity import SECONDARY, Hello
from rhizome.cluster.storage import Entry


class Office:
    """Invariant: every entry of this term in any log was appended here, in this order. What was
    submitted to this office was appended, in that order, or waits."""

    def __init__(self, desk: Desk, failover_policy: FailoverPolicy) -> None:
        self.desk = desk
        self.failover_policy = failover_policy
        self.term = desk.term
        self.lease = RootLease(desk)
        self.progress: dict[str, Progress] = {}
        self.heir = ""
        self.heir_until_ms = NEVER_MS
        self.handed_over = False
        self.is_ready = False
        self._uncommitted_bytes = 0
        self._waiting: dict[bytes, None] = {}
        self._registering: dict[str, str] = {}
        self._away_since_ms: dict[str, int] = {}
        self._retiring: dict[str, str] = {}
        self._reported_ms: dict[str, int] = {}
        self._heartbeat_ms = desk.now_ms
        self._began_ms = desk.now_ms
        self.first_index = self._begin()
        self.given = GivenLeases(desk, self.first_index)
        self.register(desk.me)
        for name in desk.up_names():
            self.progress[name] = Progress(desk, name)

    def _begin(self) -> int:
        desk = self.desk
        if desk.ledger.log.last_index == 0:
            cluster_uuid = f"{desk.chance.getrandbits(128):032x}"
            founding = Founding(cluster_uuid, "", self._first_membership())
            self.append(FOUNDING, payload(founding))
        tenure = Tenure(desk.me.name, desk.me.incarnation)
        return self.append(EMPTY, payload(tenure)).index

    def _first_membership(self) -> Membership:
        """The configured list, with the UUIDs of those who are here with an empty store (R7)."""
        desk = self.desk
        listed = desk.electorate.newest
        voters = []
        for voter in listed.voters:
            hello = desk.hello_of(voter.name)
            here = voter.name == desk.me.name or desk.is_up(voter.name)
            if here and hello is not None and desk.counts(listed, voter):
                voters.append(Voter(voter.name, hello.uuid, hello.machine))
            elif desk.rules.founding_quorum:
                voters.append(voter)
        return Membership(one_vote_per_machine(voters, desk.me.name, desk.rules))

    # Entries.

    def append(self, kind: int, data: bytes) -> Entry:
        entry = self.desk.ledger.append(kind, data)
        self._uncommitted_bytes += size_of(entry)
        return entry

    def takes(self, reserve: bool) -> bool:
        """Whether a command may be appended now: not while the heir catches up, nor without room.

        The reserve is for what must not be refused: deletes, takeovers, membership (R11).
        """
        settings = self.desk.settings
        limit = settings.uncommitted_bytes_max + (settings.reserve_bytes if reserve else 0)
        return not self.heir and self._uncommitted_bytes < limit

    def submit(self, data: bytes) -> None:
        """Append a command now, or as soon as that may be.

        Whoever proposed it sends it again to another root only. If it got lost here, and this root
        stayed, because its heir never caught up, nobody would hear of it again. What comes again
        while it waits waits once, so no more waits than brokers have proposals open.
        """
        self._waiting[data] = None
        self.take_waiting()

    def submit_next(self, batch: list[bytes]) -> bool:
        """Append commands if nothing waits and everything in the log has been applied here."""
        is_next = self.desk.applied == self.desk.ledger.log.last_index
        if not self.is_ready or self._waiting or not is_next or not self.takes(reserve=False):
            return False
        for data in batch:
            self.append(APPLICATION, data)
        return True

    def take_waiting(self) -> None:
        """Append what waits, in the order in which it came."""
        if not self._waiting or not self.takes(reserve=False):
            return
        for data in list(self._waiting):
            if not self.takes(reserve=False):
                return
            del self._waiting[data]
            self.append(APPLICATION, data)

    def register(self, hello: Hello) -> None:
        """Enter an incarnation into the registry, once, if its name is its own (R7)."""
        registry = self.desk.registry
        if registry.is_registered(hello.name, hello.incarnation):
            return
        if hello.incarnation in registry.retired:
            return
        if self._registering.get(hello.name) == hello.incarnation or self._name_is_taken(hello):
            return
        self._registering[hello.name] = hello.incarnation
        bare = Registration(
            hello.name, hello.uuid, hello.incarnation, hello.role, hello.addresses, hello.machine
        )
        failover = self.failover_policy(bare, self.desk.registry)
        self.append(REGISTRATION, payload(replace(bare, failover=failover)))

    def _name_is_taken(self, hello: Hello) -> bool:
        """By a voter that it isn't, or isn't yet again; or by a broker that may hold a lease."""
        voter = self.desk.electorate.newest.get(hello.name)
        if voter is not None and voter.uuid and voter.uuid != hello.uuid:
            return True
        known = self.desk.registry.get(hello.name)
        if known is None or known.registration.uuid == hello.uuid:
            return False
        return hello.name in self.given.leases

    def retire(self, name: str, incarnation: str) -> None:
        if self._retiring.get(name) == incarnation:
            return
        if self.desk.registry.is_registered(name, incarnation):
            self._retiring[name] = incarnation
            self.append(RETIREMENT, payload(Retirement(name, incarnation)))

    def commit_point(self) -> int:
        """The highest index that may be committed now; the present one if none is higher."""
        desk = self.desk
        matches = {name: progress.match for name, progress in self.progress.items()}
        matches[desk.me.name] = desk.ledger.synced_index
        reached = desk.electorate.reached(matches, desk.counts, desk.rules)
        if reached <= desk.ledger.commit:
            return desk.ledger.commit
        if desk.ledger.log.term_at(reached) != self.term and desk.rules.only_own_term_by_counting:
            return desk.ledger.commit
        return reached

    def committed(self, entries: list[Entry]) -> None:
        """Told of entries that have just been committed, after the registry was."""
        for entry in entries:
            if entry.term == self.term:
                self._uncommitted_bytes = max(0, self._uncommitted_bytes - size_of(entry))
            if entry.kind == REGISTRATION:
                self._registering.pop(decode(Registration, entry.payload).name, None)
        if not self.is_ready and self.desk.ledger.commit >= self.first_index:
            self.is_ready = True
            self.desk.emit(RootReady(self.term))
        for broker in self.desk.registry.brokers:
            given = self.given.leases.get(broker.registration.name)
            if given is not None and given.incarnation != broker.registration.incarnation:
                self.given.end(broker.registration.name, given.incarnation)
        for name, given in list(self.given.leases.items()):
            if self.desk.registry.get(name) is None:
                self.given.end(name, given.incarnation)

    # Brokers.

    def peer_up(self, name: str) -> None:
        known = self.progress.get(name)
        self.lease.forget(name)
        self._away_since_ms.pop(name, None)
        hello = self.desk.peers[name].hello
        if known is not None and known.bearer == (hello.uuid, hello.incarnation):
            known.relinked()
        else:
            self.progress[name] = Progress(self.desk, name)

    def peer_down(self, name: str) -> None:
        self._away_since_ms[name] = self.desk.now_ms

    def away_ms(self, name: str) -> int:
        """How long a broker has had no link; one that had none when this office began is counted
        from the first question on."""
        desk = self.desk
        if name == desk.me.name or desk.is_up(name):
            return 0
        return desk.now_ms - self._away_since_ms.setdefault(name, desk.now_ms)

    def reported(self, name: str, report: Report) -> None:
        self._reported_ms[name] = self.desk.now_ms
        self.lease.answered(name, report.stamp_ms)
        progress = self.progress[name]
        retiring = self._retiring.get(name) == self.desk.peers[name].hello.incarnation
        held = self.is_ready and self.lease.is_held() and not retiring
        had_lease = self._has_lease_of_mine(name)
        if self.given.asked(name, report.asked_ms, report.applied, held):
            progress.granted_ms = report.asked_ms
            progress.tell_now = progress.tell_now or not had_lease

    def hears(self, name: str) -> bool:
        """Whether a linked broker answers, be it with a lease or without; at the beginning of the
        office, whether it may still do so."""
        desk = self.desk
        heard_ms = self._reported_ms.get(name, self._began_ms)
        return desk.is_up(name) and desk.now_ms - heard_ms <= desk.settings.election_patience_ms

    def _has_lease_of_mine(self, name: str) -> bool:
        given = self.given.leases.get(name)
        return given is not None and given.renews

    def append_answered(self, name: str, answer: AppendAnswer) -> None:
        self.progress[name].answered(answer)

    def snapshot_answered(self, name: str, answer: SnapshotAnswer) -> None:
        self.progress[name].snapshot_answered(answer)

    def left(self, name: str) -> None:
        """A broker said farewell: its lease is over now, and a secondary's incarnation too."""
        hello = self.desk.peers[name].hello
        self._reported_ms[name] = -NEVER_MS
        self.given.end(name, hello.incarnation)
        if hello.role == SECONDARY:
            self.retire(name, hello.incarnation)

    # Time.

    def tick(self) -> None:
        if self.lease.is_held():
            # Without a lease of its own it may have a successor, who has granted others.
            self.given.expire()
        self._retire_absentees()
        desk = self.desk
        if desk.now_ms >= self.heir_until_ms:
            self.heir, self.heir_until_ms = "", NEVER_MS
        if desk.now_ms >= self._heartbeat_ms:
            self._heartbeat_ms = desk.now_ms + desk.settings.heartbeat_ms
            self._probe_disk()
            self.given.settle()
            for name in desk.up_names():
                self.progress[name].heartbeat(desk.now_ms, self.given.settled)

    def _probe_disk(self) -> None:
        """Write something every other heartbeat: the lease needs a disk that takes it (R9)."""
        ledger = self.desk.ledger
        due_ms = ledger.disk_ms + 2 * self.desk.settings.heartbeat_ms
        if not ledger.is_writing() and self.desk.now_ms >= due_ms:
            ledger.touch()

    def _retire_absentees(self) -> None:
        """Of brokers that don't vote and stay away. One whose link went down before this office
        began is counted from its beginning."""
        desk = self.desk
        members = desk.electorate.newest
        for broker in desk.registry.brokers:
            registration = broker.registration
            if members.get(registration.name) is not None or desk.is_up(registration.name):
                continue
            since_ms = self._away_since_ms.setdefault(registration.name, desk.now_ms)
            gone = desk.now_ms - since_ms >= desk.settings.retire_ms
            if gone and registration.name not in self.given.leases:
                self.retire(registration.name, registration.incarnation)

    def flush(self) -> None:
        """Send what the brokers lack: entries first, then news."""
        self.given.settle()
        for name in self.desk.up_names():
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
        self.heir_until_ms = self.desk.now_ms + self.desk.settings.home_lease_ms

    def _hand_over_if_due(self) -> None:
        """Once the heir has the whole log: nothing is appended meanwhile."""
        progress = self.progress.get(self.heir)
        if not self.heir or progress is None or not self.desk.is_up(self.heir):
            return
        if progress.match == self.desk.ledger.log.last_index:
            self.desk.send(self.heir, HandOver(self.term))
            self.handed_over = True
