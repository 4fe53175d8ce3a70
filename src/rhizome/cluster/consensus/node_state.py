"""Node state: what every role of a broker works with: its persistent state, registry, peers, clock
and outbox."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from rhizome.cluster.consensus.consensus_events import Event
from rhizome.cluster.consensus.consensus_messages import Message
from rhizome.cluster.consensus.consensus_registry import Registered, Registry, decode_snapshot
from rhizome.cluster.consensus.log.cluster_store import Image
from rhizome.cluster.consensus.log.log_entry_payloads import Registration
from rhizome.cluster.consensus.log.persistent_state import PersistentState
from rhizome.cluster.consensus.membership import Electorate, Membership, Voter
from rhizome.cluster.consensus.rule_switches import Rules
from rhizome.cluster.consensus.settings import ConsensusSettings
from rhizome.cluster.link.broker_hello import WITNESS, Hello

FailoverPolicy: TypeAlias = Callable[[Registration, Registry], tuple[str, ...]]
"""Chooses the failover list that a broker is registered with (J3)."""

SENIORITY_NONE = 1 << 62
"""The seniority of a broker that isn't registered: behind all that are."""


class Chance(Protocol):
    """The source of randomness: a ``random.Random``, seeded by the driver of the core."""

    def randrange(self, stop: int, /) -> int: ...

    def getrandbits(self, k: int, /) -> int: ...


@dataclass(slots=True)
class Peer:
    """A broker that has linked at least once; ``up`` while it is linked."""

    hello: Hello
    up: bool


class NodeState:
    def __init__(
        self,
        me: Hello,
        image: Image,
        settings: ConsensusSettings,
        chance: Chance,
        now_ms: int,
        bootstrap: tuple[str, ...] | None,
        rules: Rules,
    ) -> None:
        self.me = me
        self.settings = settings
        self.rules = rules
        self.chance = chance
        self.now_ms = now_ms
        self.started_ms = now_ms
        self.starting = False
        self.preference = 0
        self.applied = 0
        self.peers: dict[str, Peer] = {}
        self.events: list[Event] = []
        self.registry, self.persistent = _restored(image, bootstrap, rules)
        self._indexed = self.registry.brokers
        self._registered: dict[str, Registered] = {}
        self._outbox: list[tuple[str, Message]] = []
        self._held: list[tuple[int, str, Message]] = []

    @property
    def term(self) -> int:
        return self.persistent.term

    @property
    def electorate(self) -> Electorate:
        return self.persistent.electorate()

    def registered(self, name: str) -> Registered | None:
        """A broker in the registry. There may be a thousand, and each asks again and again."""
        if self._indexed is not self.registry.brokers or not self._registered:
            self._indexed = self.registry.brokers
            self._registered = {each.registration.name: each for each in self._indexed}
        return self._registered.get(name)

    def is_registered(self, name: str, incarnation: str) -> bool:
        found = self.registered(name)
        return found is not None and found.registration.incarnation == incarnation

    def heard_by_ms(self) -> int:
        """By when everything that has come is read, if this broker has just stood still."""
        return self.now_ms + 2 * self.settings.heartbeat_ms

    def is_up(self, name: str) -> bool:
        peer = self.peers.get(name)
        return peer is not None and peer.up

    def up_names(self) -> list[str]:
        return [name for name, peer in self.peers.items() if peer.up]

    def hello_of(self, name: str) -> Hello | None:
        if name == self.me.name:
            return self.me
        peer = self.peers.get(name)
        return None if peer is None else peer.hello

    def counts(self, membership: Membership, voter: Voter) -> bool:
        """Whether the broker that bears a voter's name is the one meant: the same UUID (R7).

        Before the founding this is any empty store with the same list of primaries; of several here
        from one machine only the first listed (R13).
        """
        hello = self.hello_of(voter.name)
        if hello is None or (not hello.votes() and self.rules.secondaries_never_vote):
            return False
        if membership.founding:
            empty = hello.cluster_uuid in ("", self.founding_uuid())
            same_list = hello.primaries_hash == self.me.primaries_hash
            return empty and same_list and not self._shares_machine(membership, hello)
        if not self.rules.wiped_store_is_new:
            return True
        return voter.uuid == hello.uuid

    def _shares_machine(self, membership: Membership, hello: Hello) -> str:
        """The broker that is listed earlier and is here from the same machine; empty if none is."""
        if not hello.machine or not self.rules.one_vote_per_machine:
            return ""
        for name in membership.names():
            if name == hello.name:
                return ""
            other = self.hello_of(name)
            if other is not None and (name == self.me.name or self.is_up(name)):
                if other.machine == hello.machine and other.votes():
                    return name
        return ""

    def uncounted(self) -> list[str]:
        """Why voters that are here don't count, in words for people."""
        newest = self.electorate.newest
        here = [v for v in newest.voters if v.name == self.me.name or self.is_up(v.name)]
        return [
            f"{voter.name} doesn't count: {self._why_uncounted(newest, voter)}"
            for voter in here
            if not voter.votes or not self.counts(newest, voter)
        ]

    def _why_uncounted(self, membership: Membership, voter: Voter) -> str:
        hello = self.hello_of(voter.name)
        assert hello is not None
        if not hello.votes():
            return "it is a secondary"
        if voter.name in membership.resting():
            return "it was away, and votes again when it has caught up"
        if not voter.votes:
            return "another voter has its machine id"
        if not membership.founding:
            return "the root hasn't admitted its store yet"
        if hello.primaries_hash != self.me.primaries_hash:
            return f"it is configured with another list of primaries than {self.me.name}"
        twin = self._shares_machine(membership, hello)
        return f"it has the machine id of {twin}" if twin else "it belongs to a cluster already"

    def i_vote(self) -> bool:
        """Whether this broker is a voter of the newest membership that it knows."""
        newest = self.electorate.newest
        voter = newest.get(self.me.name)
        return voter is not None and voter.votes and self.counts(newest, voter)

    def i_stand(self) -> bool:
        """Whether this broker may be elected: by the membership in use, or by the one before while
        the newest isn't known to be committed (R4). The only broker that has a change in its log
        may be the one that the change removes."""
        return self._counts_somewhere(self.me.name)

    def founding_uuid(self) -> str:
        """The cluster that the log belongs to, though its founding may not be committed yet."""
        return self.persistent.log.founding_uuid or self.registry.cluster_uuid

    def linked_voters(self) -> list[str]:
        """The other voters that this broker can ask: linked, and the ones that are meant."""
        asked = [
            name
            for name in self.electorate.names()
            if name != self.me.name and self.is_up(name) and self._counts_somewhere(name)
        ]
        if not self.rules.secondaries_never_vote:
            asked += [n for n, p in self.peers.items() if p.up and not p.hello.votes()]
        return asked

    def _counts_somewhere(self, name: str) -> bool:
        for membership in self.electorate.memberships:
            voter = membership.get(name)
            if voter is not None and voter.votes and self.counts(membership, voter):
                return True
        return False

    def rank_preference(self) -> int:
        """A witness holds no messages: anybody else is preferred (R5, R14)."""
        return -1 if self.me.role == WITNESS else self.preference

    def seniority(self) -> int:
        """The seniority of this incarnation (R6)."""
        found = self.registered(self.me.name)
        if found is None or found.registration.incarnation != self.me.incarnation:
            return SENIORITY_NONE
        return found.seniority

    def send(self, name: str, message: Message) -> None:
        """Send when the term that the message carries is durable (R3): almost always at once."""
        if self.persistent.durable_term < self.persistent.term and self.rules.vote_durable:
            self.send_durable(name, message)
        elif self.is_up(name):
            self._outbox.append((name, message))

    def send_durable(self, name: str, message: Message) -> None:
        """Send when everything that was decided up to now is durable (R2, R3)."""
        token = self.persistent.token_to_wait_for()
        if token:
            self._held.append((token, name, message))
        elif self.is_up(name):
            self._outbox.append((name, message))

    def written(self, token: int) -> None:
        self.persistent.written(token)
        waiting = self._held
        self._held = []
        for needed, name, message in waiting:
            if needed > token:
                self._held.append((needed, name, message))
            elif message.term == self.term and self.is_up(name):
                self._outbox.append((name, message))

    def forget_messages_to(self, name: str) -> None:
        """The link is down; messages that wait for it must not go out on the next one."""
        self._held = [held for held in self._held if held[1] != name]
        self._outbox = [sent for sent in self._outbox if sent[0] != name]

    def take_messages(self) -> list[tuple[str, Message]]:
        messages = self._outbox
        self._outbox = []
        return messages

    def emit(self, event: Event) -> None:
        self.events.append(event)


def _restored(
    image: Image, bootstrap: tuple[str, ...] | None, rules: Rules
) -> tuple[Registry, PersistentState]:
    """The registry at the snapshot and the persistent state, as they were before the restart."""
    if image.snapshot is not None:
        registry = decode_snapshot(image.snapshot.data).registry
        # The log may begin before the snapshot's end. All of that is committed, so no quorum is
        # ever taken again in a membership older than the snapshot's.
        base_index = min(registry.membership_index, image.log_start.index)
        return registry, PersistentState(image, registry.membership, base_index, rules)
    listed = Membership(tuple(Voter(name) for name in bootstrap or ()), founding=True)
    return Registry(), PersistentState(image, listed, 0, rules)
