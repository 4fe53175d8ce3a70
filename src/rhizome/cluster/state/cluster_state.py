"""Cluster state: what all brokers agree on, fed by the committed entries of the state log.

It holds the registry of brokers, the groups, the failover map and the shared settings, and hands
the broker's own commands on to the broker's state. Brokers that have applied the same entries hold
equal states: nothing here depends on anything but the entries, and tables are walked in the order
in which they were filled.

``apply`` is for entries, ``apply_command`` for what consensus itself commits (registrations and
retirements). After a restart, or when a broker is too far behind, ``restore`` takes in a snapshot.

R10: an entry that is in the log twice counts once (``proposal_dedup.py``).
R11: the size is limited for declares and binds only (``state_size.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from rhizome.broker.metadata.metadata_changes import Fact, Outcome
from rhizome.broker.metadata.metadata_commands import (
    PRIVATE,
    Bind,
    Command,
    DeclareExchange,
    DeclareQueue,
    DeleteQueue,
    Unbind,
)
from rhizome.broker.metadata.metadata_reconciliation import reconcile
from rhizome.broker.metadata.metadata_state import PRIVATE_QUEUE_IDS, State
from rhizome.broker.metadata.queue_policy_user_records import QueueDefinition
from rhizome.cluster.state import state_snapshot
from rhizome.cluster.state.broker_registry import Registry
from rhizome.cluster.state.cluster_commands import (
    PLACEMENTS,
    AppointHome,
    ClusterCommand,
    Envelope,
    ForceHome,
    PinHome,
    PlanMove,
    PutSettings,
    RegisterBroker,
    RetireBroker,
    SetAway,
    SetDraining,
    SetFailoverList,
    SetInSync,
    TransferHome,
    decode,
)
from rhizome.cluster.state.failover_map import (
    RING,
    FailoverMap,
    FailoverPolicy,
    make_map,
    policy_named,
    ring,
)
from rhizome.cluster.state.groups_and_placement import Group, Groups
from rhizome.cluster.state.proposal_dedup import ProposalDedup
from rhizome.cluster.state.state_changes import (
    BrokerChanged,
    BrokerRemoved,
    ClusterFact,
    FailoverMapChanged,
    GroupChanged,
    SettingsChanged,
)
from rhizome.cluster.state.state_size import StateSize
from rhizome.errors import AmqpError, PreconditionFailed, RhizomeError

STATE_FAILED: Final = "state-failed"
"""How people are told that a broker can't follow the cluster's log any more."""
ERROR_CHARS_MAX: Final = 200
DEFAULT_SETTINGS = PutSettings("spread", 2, RING, 64 * 1024 * 1024)


class Host(Protocol):
    """The broker whose state this is: ``apply`` changes it and the live queues with it, and
    ``go_on`` does more of that while the state is unfinished."""

    @property
    def state(self) -> State: ...

    def apply(self, command: Command) -> Outcome: ...

    def go_on(self) -> list[Fact]: ...


class StateAlone:
    """A host with no broker behind it: for who reads a store."""

    def __init__(self) -> None:
        self.state = State()

    def apply(self, command: Command) -> Outcome:
        return self.state.apply(command)

    def go_on(self) -> list[Fact]:
        return []


@dataclass(frozen=True)
class Applied:
    """What an entry did.

    ``envelope`` says whose proposal it was. ``duplicate``: it had been applied before, and
    ``outcome`` is its outcome then. The broker still has to announce ``outcome``.
    """

    index: int
    envelope: Envelope
    outcome: Outcome
    facts: list[ClusterFact] = field(default_factory=list)
    duplicate: bool = False


class StateFailed(RhizomeError):
    """An entry of the cluster's log could not be applied: from there on this broker's state may
    differ from everybody's."""

    def __init__(self, index: int, error: Exception) -> None:
        super().__init__(
            f"{STATE_FAILED}: entry {index} of the cluster's log could not be applied"
            f" ({type(error).__name__}: {str(error)[:ERROR_CHARS_MAX]}); this broker applies and"
            " confirms nothing, votes for nobody and serves nobody until it is started again"
        )
        self.index = index


class ClusterState:
    """The state that all brokers agree on.

    Invariant: ``index`` is that of the last entry applied; ``failover_map`` is what the policy in
    ``settings`` makes of the registry, and each group's failover list is its home's (J1).

    ``settings_given`` is False while nobody has set any and the defaults count: the first root then
    proposes what its configuration says.
    """

    index: int
    settings: PutSettings
    settings_given: bool
    registry: Registry
    groups: Groups
    failover_map: FailoverMap
    failover_lists: dict[str, tuple[str, ...]]
    dedup: ProposalDedup
    size: StateSize
    _host: Host
    _policies: Mapping[str, FailoverPolicy]
    _placed: list[ClusterFact]

    def __init__(self, host: Host, policies: Mapping[str, FailoverPolicy] | None = None) -> None:
        """``host.state`` stays the same object from here on: its placement is set."""
        self.index = 0
        self.settings = DEFAULT_SETTINGS
        self.settings_given = False
        self.registry = Registry()
        self.groups = Groups()
        self.failover_map = {}
        self.failover_lists = {}
        self.dedup = ProposalDedup()
        self.size = StateSize()
        self._host = host
        self._policies = {RING: ring} if policies is None else policies
        self._placed = []
        host.state.place = self._place
        host.state.sizes.bytes_max = self.settings.state_size_max_bytes
        self._recount()

    # --- lookups

    def group_of(self, definition: QueueDefinition) -> Group | None:
        """The group of a shared queue; None for a private one."""
        return self.groups.groups.get(definition.group)

    def outcome_of(self, incarnation: str, number: int) -> Outcome | None:
        """The outcome of a proposal; None if it has not been applied, or is not known any more.

        For proposals that a snapshot may have answered.
        """
        answer = self.dedup.find(incarnation, number)
        return None if answer is None else answer.outcome()

    # --- entries

    def check(self, payload: bytes) -> None:
        """See whether this broker could apply a proposal; raises what `apply` would raise.

        The root asks before it appends. What is in the log must be applied by every broker, now and
        after each restart: an entry that none of them could apply would stop all of them for good.
        """
        command = decode(payload).command
        if isinstance(command, PutSettings) and command.failover_policy:
            policy_named(self._policies, command.failover_policy)

    def apply(self, index: int, payload: bytes) -> Applied:
        """Apply a committed entry.

        Raises DamagedCommandError for an entry that this release can't understand and
        UnknownPolicyError for a policy that this broker lacks: then it can't go on.
        """
        return self._apply(index, decode(payload))

    def is_unfinished(self) -> bool:
        """Whether the last entry is not applied as a whole: until it is, no other one may be, and
        there is no snapshot."""
        return self._host.state.is_unfinished()

    def go_on(self) -> list[ClusterFact]:
        """Apply more of the last entry."""
        facts: list[ClusterFact] = []
        self.groups.observe(self._host.go_on(), self.settings, facts)
        if facts:
            self._follow(facts)
        return facts

    def apply_command(self, index: int, command: ClusterCommand) -> Applied:
        """Apply the command of an entry of another kind.

        Consensus has checked the identity of the broker that it registers (R7): if the name had
        another UUID or the UUID another name, that broker is gone, and is removed first.
        """
        facts: list[ClusterFact] = []
        if isinstance(command, RegisterBroker):
            for broker in self.registry.namesakes(command):
                self._retire(RetireBroker(broker.name), facts)
        applied = self._apply(index, Envelope(command))
        return replace(applied, facts=facts + applied.facts)

    def _apply(self, index: int, envelope: Envelope) -> Applied:
        assert index > self.index, (index, self.index)
        assert not self.is_unfinished(), index
        self.index = index
        command = envelope.command
        if envelope.incarnation == "":
            outcome, facts = self._run(index, command)
            return Applied(index, envelope, outcome, facts)
        before = self.dedup.find(envelope.incarnation, envelope.number)
        if before is not None:
            again = before.outcome()
            again.queue = self._declared(command, again)
            return Applied(index, envelope, again, duplicate=True)
        if not self._may_propose(envelope):
            late = PreconditionFailed(
                f"incarnation '{envelope.incarnation}' is not registered: it proposes nothing"
            )
            return Applied(index, envelope, Outcome(error=late))
        outcome, facts = self._run(index, command)
        if self.registry.is_current(envelope.incarnation):
            self.dedup.remember(envelope.incarnation, envelope.number, envelope.answered, outcome)
        return Applied(index, envelope, outcome, facts)

    def _may_propose(self, envelope: Envelope) -> bool:
        """Proposals of incarnations that are over are refused: nobody knows any more which of them
        were applied."""
        command = envelope.command
        if isinstance(command, RegisterBroker) and command.incarnation == envelope.incarnation:
            return True
        return self.registry.is_current(envelope.incarnation)

    def _declared(self, command: Command, outcome: Outcome) -> QueueDefinition | None:
        """The queue that a declare declared, if it is still there."""
        if not isinstance(command, DeclareQueue) or outcome.error is not None:
            return None
        vhost = self._host.state.vhosts.get(command.vhost)
        return None if vhost is None else vhost.queues.get(command.name)

    def _run(self, index: int, command: Command) -> tuple[Outcome, list[ClusterFact]]:
        facts: list[ClusterFact] = []
        if not isinstance(command, ClusterCommand):
            return self._run_broker_command(command, facts), facts
        try:
            self._run_cluster_command(index, command, facts)
        except AmqpError as error:
            assert not facts, (command, facts)
            return Outcome(error=error), []
        return Outcome(changed=bool(facts)), facts

    # --- commands of the broker

    def _run_broker_command(self, command: Command, facts: list[ClusterFact]) -> Outcome:
        state = self._host.state
        try:
            _check_shared(command)
            self.size.check(command, state, self.settings.state_size_max_bytes)
        except AmqpError as error:
            return Outcome(error=error)
        outcome = self._host.apply(command)
        facts += self._placed
        self._placed.clear()
        self.groups.observe(outcome.facts, self.settings, facts)
        if facts:
            self._follow(facts)
        self.size.follow(state)
        return outcome

    def _place(self, definition: QueueDefinition) -> int:
        """Called while the host applies a declare; what that changes is reported afterwards."""
        placement = self.settings.placement
        return self.groups.place(definition, self.registry, placement, self._placed)

    # --- commands about brokers and groups: each refuses before it changes anything

    def _run_cluster_command(
        self, index: int, command: ClusterCommand, facts: list[ClusterFact]
    ) -> None:
        if isinstance(command, RegisterBroker):
            self._register(index, command, facts)
        elif isinstance(command, RetireBroker):
            self._retire(command, facts)
        elif isinstance(command, SetFailoverList):
            self._set_failover_list(command, facts)
        elif isinstance(command, PutSettings):
            self._put_settings(command, facts)
        elif isinstance(command, SetDraining):
            if self.registry.drain(command.broker, command.draining, command.grace_ms):
                facts.append(BrokerChanged(self.registry.get(command.broker)))
                self._follow(facts)
        elif isinstance(command, SetAway):
            if self.registry.set_away(command):
                facts.append(BrokerChanged(self.registry.get(command.broker)))
                self._follow(facts)
        else:
            self._run_group_command(command, facts)

    def _run_group_command(self, command: ClusterCommand, facts: list[ClusterFact]) -> None:
        if isinstance(command, SetInSync):
            self.groups.set_in_sync(command, self.registry, facts)
        elif isinstance(command, PlanMove):
            self.groups.plan_move(command, self.registry, facts)
        elif isinstance(command, PinHome):
            self.groups.pin(command, self.registry, facts)
        elif isinstance(command, AppointHome):
            self.groups.appoint(command, self.registry, facts)
            self._follow(facts)
        elif isinstance(command, TransferHome):
            self.groups.transfer(command, self.registry, facts)
            self._follow(facts)
        elif isinstance(command, ForceHome):
            self.groups.force(command, self.registry, facts)
            self._follow(facts)
        else:
            raise TypeError(f"the cluster state knows no command {type(command).__name__}")

    def _register(self, index: int, command: RegisterBroker, facts: list[ClusterFact]) -> None:
        before = self.registry.brokers.get(command.name)
        broker = self.registry.register(index, command)
        if broker == before:
            return
        retired = ""
        if before is not None and before.incarnation != broker.incarnation:
            retired = before.incarnation
            self.dedup.retire(retired)
        facts.append(BrokerChanged(broker, retired))
        self.groups.restarted(broker, facts)
        self._arrange(facts)

    def _retire(self, command: RetireBroker, facts: list[ClusterFact]) -> None:
        broker = self.registry.retire(command.name, command.incarnation)
        if broker is None:
            return
        self.dedup.retire(broker.incarnation)
        known = self.registry.brokers.get(command.name)
        if known is not None:
            facts.append(BrokerChanged(known, broker.incarnation))
        else:
            self.failover_lists.pop(broker.name, None)
            facts.append(BrokerRemoved(broker))
            self.groups.removed(broker, facts)
        self._follow(facts)

    def _set_failover_list(self, command: SetFailoverList, facts: list[ClusterFact]) -> None:
        self.registry.get(command.broker)
        for name in command.failover:
            if not self.registry.get(name).holds_queues() or name == command.broker:
                raise PreconditionFailed(f"broker '{name}' can't take over from '{command.broker}'")
        if command.failover:
            self.failover_lists[command.broker] = command.failover
        else:
            self.failover_lists.pop(command.broker, None)
        self._follow(facts)

    def check_settings(self, command: PutSettings) -> None:
        """Raise PreconditionFailed for settings that make no sense."""
        if command.placement not in PLACEMENTS:
            raise PreconditionFailed(
                f"the placement is '{command.placement}'; it must be one of {', '.join(PLACEMENTS)}"
            )
        if command.copies < 1 or command.state_size_max_bytes < 1 or not command.failover_policy:
            raise PreconditionFailed(
                "the settings need at least one copy, a failover policy and a size of the state"
            )
        if not 1 <= command.min_copies <= command.copies:
            raise PreconditionFailed(
                f"min_copies is {command.min_copies}; it must be from 1 to copies, {command.copies}"
            )

    def _put_settings(self, command: PutSettings, facts: list[ClusterFact]) -> None:
        self.check_settings(command)
        if self.settings_given and command == self.settings:
            return
        self.settings = command
        self.settings_given = True
        self._host.state.sizes.bytes_max = command.state_size_max_bytes
        facts.append(SettingsChanged())
        self._arrange(facts)

    def _arrange(self, facts: list[ClusterFact]) -> None:
        self.groups.arrange(self.registry, self.settings.placement, facts)
        self.groups.settle_copies(self.settings, facts)
        self._follow(facts)

    def _follow(self, facts: list[ClusterFact]) -> None:
        """Bring failover map and failover lists up to date (J1)."""
        failover_map = self._make_map()
        among = [fact.group.id for fact in facts if isinstance(fact, GroupChanged)]
        if failover_map != self.failover_map:
            self.failover_map = failover_map
            facts.append(FailoverMapChanged())
            among = list(self.groups.groups)
        self.groups.follow(failover_map, among, facts)

    def _make_map(self) -> FailoverMap:
        """Make the map, with lists as long as the settings and the group that wants most copies
        need."""
        settings = self.settings
        copies = max(settings.copies, self.groups.index.most_copies())
        return make_map(
            self._policies,
            settings.failover_policy,
            self.registry.view(),
            copies,
            self.failover_lists,
        )

    # --- snapshots

    def snapshot(self) -> bytes:
        """Everything that was agreed on, transient objects included, private ones not."""
        return state_snapshot.write(self._image(), self._host.state.snapshot(transient=True))

    def _image(self) -> state_snapshot.Image:
        return state_snapshot.Image(
            self.settings,
            self.settings_given,
            list(self.registry.brokers.values()),
            list(self.groups.groups.values()),
            self.groups.next_id,
            self.groups.last_stream,
            self.groups.stream_epoch,
            self.failover_lists,
            self.dedup.windows,
        )

    def restore(self, index: int, data: bytes) -> list[Outcome]:
        """Become the state of a snapshot; the broker has to announce the outcomes.

        Queues that are still there stay as they are (H13). Raises DamagedCommandError before
        anything is changed. Whatever is derived from brokers and groups must be looked at again.
        """
        image, broker_part = state_snapshot.read(data)
        while self.is_unfinished():
            self._host.go_on()
        difference = reconcile(self._host.state, broker_part)
        self._take_in(index, image)
        # Brokers and groups come first: the code that makes a queue asks where its home is.
        outcomes = [self._host.apply(command) for command in difference.commands]
        while self.is_unfinished():
            self._host.go_on()
        refused = [outcome.error for outcome in outcomes if outcome.error is not None]
        assert not refused, refused
        self._host.state.next_queue_id = difference.next_queue_id
        self._host.state.next_exchange_id = difference.next_exchange_id
        self._recount()
        return outcomes

    def _take_in(self, index: int, image: state_snapshot.Image) -> None:
        self.index = index
        self.settings = image.settings
        self.settings_given = image.settings_given
        self._host.state.sizes.bytes_max = image.settings.state_size_max_bytes
        self.registry = Registry()
        for broker in image.brokers:
            self.registry.put(broker)
        self.groups = Groups()
        self.groups.take_in(image.groups)
        self.groups.next_id = image.next_group_id
        self.groups.last_stream = image.last_stream
        self.groups.stream_epoch = image.stream_epoch
        self.failover_lists = dict(image.failover_lists)
        self.dedup = ProposalDedup()
        self.dedup.windows = image.windows
        self.failover_map = self._make_map()

    def _recount(self) -> None:
        self.groups.recount(self._host.state)
        self.size.recount(self._host.state)


def _check_shared(command: Command) -> None:
    """Raise PreconditionFailed for a command that means something on one broker only.

    Each broker numbers its private queues for itself, and the state gives the numbers of shared
    things: with such a command the states of the brokers would diverge.
    """
    if isinstance(command, DeclareQueue):
        foreign = command.exclusive_owner != "" or command.queue_id != 0 or command.group != 0
    elif isinstance(command, DeclareExchange):
        foreign = command.exchange_id != 0
    elif isinstance(command, (Bind, Unbind)):
        foreign = command.destination_kind == PRIVATE
    else:
        foreign = isinstance(command, DeleteQueue) and command.queue_id >= PRIVATE_QUEUE_IDS
    if foreign:
        raise PreconditionFailed(
            f"{type(command).__name__} is about something that only one broker has"
        )
