"""Broker registry: the brokers of a cluster as the cluster state knows them.

A broker is addressed by its name, and the name is bound to the UUID that registered it first (R7).
Seniority is the index of that first registration; a new incarnation keeps it (R6).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from rhizome.cluster.link.broker_hello import PRIMARY, ROLES, SECONDARY
from rhizome.cluster.state.cluster_commands import RegisterBroker, SetAway
from rhizome.errors import NotFound, PreconditionFailed

PAST_INCARNATIONS_MAX: Final = 64


@dataclass(frozen=True)
class BrokerRecord:
    """A registered broker. ``incarnation`` is "" while it has none that may come back.

    ``past`` are the latest of its former incarnations: a registration of one of them comes late.
    ``away``: the root knows that this incarnation holds no lease; ``lost``: it hasn't for long.
    ``grace_ms`` is how long the sessions of a draining broker have to leave.
    """

    name: str
    uuid: str
    incarnation: str
    role: str
    addresses: tuple[str, ...]
    machine: str
    seniority: int
    draining: bool = False
    past: tuple[str, ...] = ()
    away: bool = False
    grace_ms: int = 0
    lost: bool = False

    def holds_queues(self) -> bool:
        """Whether groups can have their home here: secondaries and witnesses keep no messages."""
        return self.role == PRIMARY

    def votes(self) -> bool:
        return self.role != SECONDARY


class Registry:
    """The brokers of the cluster, by name.

    Invariant: names, UUIDs and incarnations other than "" are each unique.
    """

    brokers: dict[str, BrokerRecord]
    _by_incarnation: dict[str, str]

    def __init__(self) -> None:
        self.brokers = {}
        self._by_incarnation = {}

    def get(self, name: str) -> BrokerRecord:
        """The broker of that name; raises NotFound."""
        found = self.brokers.get(name)
        if found is None:
            raise NotFound(f"no broker '{name}' is registered")
        return found

    def view(self) -> list[BrokerRecord]:
        """All brokers, the oldest first."""
        return sorted(self.brokers.values(), key=lambda broker: broker.seniority)

    def is_current(self, incarnation: str) -> bool:
        """Whether an incarnation is registered and was not followed by another."""
        return incarnation in self._by_incarnation

    def check_current(self, name: str, incarnation: str) -> BrokerRecord:
        """The broker, if that is its incarnation; raises PreconditionFailed (G1)."""
        broker = self.get(name)
        if broker.incarnation != incarnation:
            raise PreconditionFailed(
                f"broker '{name}' is in incarnation '{broker.incarnation}', not '{incarnation}'"
            )
        return broker

    def register(self, index: int, command: RegisterBroker) -> BrokerRecord:
        """Add a broker or its new incarnation; raises PreconditionFailed."""
        known = self._check(command)
        broker = BrokerRecord(
            command.name,
            command.uuid,
            command.incarnation,
            command.role,
            command.addresses,
            command.machine,
            index if known is None else known.seniority,
        )
        if known is not None:
            broker = replace(
                broker,
                draining=known.draining,
                past=_past(known, command),
                away=known.away and known.incarnation == command.incarnation,
                grace_ms=known.grace_ms,
                lost=known.lost and known.incarnation == command.incarnation,
            )
        self.put(broker)
        return broker

    def namesakes(self, command: RegisterBroker) -> list[BrokerRecord]:
        """Other brokers that have the name, or the UUID, of one that registers."""
        return [
            broker
            for broker in self.brokers.values()
            if (broker.name == command.name) != (broker.uuid == command.uuid)
        ]

    def _check(self, command: RegisterBroker) -> BrokerRecord | None:
        """The record of the broker that registers, if it registered before."""
        if command.role not in ROLES:
            raise PreconditionFailed(
                f"broker '{command.name}' has the role '{command.role}'; "
                f"it must be one of {', '.join(ROLES)}"
            )
        if not command.name or not command.uuid or not command.incarnation:
            raise PreconditionFailed("a broker must have a name, a UUID and an incarnation")
        for broker in self.namesakes(command):
            raise PreconditionFailed(
                f"broker '{command.name}' with UUID {command.uuid} can't register: "
                f"'{broker.name}' has UUID {broker.uuid}; remove that one first"
            )
        known = self.brokers.get(command.name)
        holder = self._by_incarnation.get(command.incarnation, command.name)
        if holder != command.name or (known is not None and command.incarnation in known.past):
            raise PreconditionFailed(
                f"incarnation '{command.incarnation}' of broker '{command.name}' is over: "
                "start the broker again"
            )
        return known

    def retire(self, name: str, incarnation: str) -> BrokerRecord | None:
        """End an incarnation, or with "" a broker; returns it as it was, None if it is not there.

        A secondary comes and goes without leaving anything behind; a primary that only lost its
        incarnation stays known, with its seniority and its groups.
        """
        broker = self.brokers.get(name)
        if broker is None or incarnation not in ("", broker.incarnation):
            return None
        self._by_incarnation.pop(broker.incarnation, None)
        if incarnation == "" or not broker.votes():
            del self.brokers[name]
        else:
            past = (*broker.past, incarnation)[-PAST_INCARNATIONS_MAX:]
            self.brokers[name] = replace(broker, incarnation="", past=past)
        return broker

    def put(self, broker: BrokerRecord) -> None:
        """Set a record, its place in the table included if there is one of its name."""
        before = self.brokers.get(broker.name)
        if before is not None:
            self._by_incarnation.pop(before.incarnation, None)
        self.brokers[broker.name] = broker
        if broker.incarnation:
            self._by_incarnation[broker.incarnation] = broker.name

    def drain(self, name: str, draining: bool, grace_ms: int) -> bool:
        """Set the flag; False if it is so already. Raises PreconditionFailed if the cluster could
        not do without the broker: half of the voters must stay, and be present (R1, G11)."""
        broker = self.get(name)
        if draining and not broker.draining:
            self.check_drainable(name)
        changed = replace(broker, draining=draining, grace_ms=grace_ms if draining else 0)
        if changed == broker:
            return False
        self.put(changed)
        return True

    def check_drainable(self, name: str) -> None:
        """Raise PreconditionFailed if the cluster could not do without a broker (R1)."""
        if not self.get(name).votes():
            return
        voters = [each for each in self.brokers.values() if each.votes()]
        others = [each for each in voters if each.name != name]
        staying = sum(not each.draining and not each.away for each in others)
        needed = (len(voters) + 1) // 2
        if staying < needed:
            raise PreconditionFailed(
                f"broker '{name}' can't be drained: of {len(voters)} that vote {staying} would "
                f"stay, and {needed} must; undrain, start or add another first"
            )

    def set_away(self, command: SetAway) -> bool:
        """Set the flags; False if they are so already, or that incarnation is over."""
        broker = self.brokers.get(command.broker)
        if broker is None or broker.incarnation != command.incarnation:
            return False
        changed = replace(broker, away=command.away, lost=command.away and command.lost)
        self.put(changed)
        return changed != broker


def _past(known: BrokerRecord, command: RegisterBroker) -> tuple[str, ...]:
    if known.incarnation in ("", command.incarnation):
        return known.past
    return (*known.past, known.incarnation)[-PAST_INCARNATIONS_MAX:]
