"""Offline stores: what the stores of stopped brokers have of the cluster state and of groups (H10).

Reading one writes and locks nothing. A change is made under the lock that a running broker holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rhizome.broker.metadata.metadata_commands import DeletePolicy
from rhizome.broker.metadata.metadata_commands import decode as decode_command
from rhizome.broker.metadata.metadata_commands import encode as encode_command
from rhizome.broker.metadata.metadata_state import State
from rhizome.cluster.consensus.consensus_registry import decode_snapshot
from rhizome.cluster.consensus.dataclass_codec import decode
from rhizome.cluster.consensus.log.cluster_store import Entry, Image
from rhizome.cluster.consensus.log.log_entry_payloads import (
    APPLICATION,
    REGISTRATION,
    RETIREMENT,
    Registration,
    Retirement,
)
from rhizome.cluster.state.cluster_commands import RegisterBroker, RetireBroker
from rhizome.cluster.state.cluster_state import ClusterState, StateAlone
from rhizome.cluster.state.groups_and_placement import Group
from rhizome.errors import NotFound, RhizomeError
from rhizome.journal.errors import CorruptStore, ForeignStore
from rhizome.journal.recovery import Recovered, recover
from rhizome.journal.store import JournalStore
from rhizome.journal.store_inspection import open_offline
from rhizome.server.clustered_broker.sqlite_cluster_store import read_image
from rhizome.server.data_directory_check import STORE_DIRECTORY


@dataclass(frozen=True, slots=True)
class StoredCopy:
    """What a store has of a group: up to which index, and how many messages are live in it.
    ``whole`` is False if the copy was being caught up: it must not be chosen."""

    group: int
    epoch: int
    index: int
    messages: int
    whole: bool


@dataclass(frozen=True, slots=True)
class OfflineStore:
    """A broker's store. ``term`` and ``last`` are those of the last entry of its state log,
    ``committed`` is how much of it the broker knew to be committed; ``groups`` are as of there."""

    directory: Path
    broker: str = ""
    cluster_uuid: str = ""
    term: int = 0
    last: int = 0
    committed: int = 0
    groups: dict[int, Group] = field(default_factory=dict)
    queues: dict[int, int] = field(default_factory=dict)
    copies: dict[int, StoredCopy] = field(default_factory=dict)
    faults: tuple[str, ...] = ()

    def state_rank(self) -> tuple[int, int, int]:
        """The order in which stores are compared: by the most complete state log (R3)."""
        return (self.term, self.last, self.committed)


def read_store(directory: Path) -> OfflineStore:
    """What the store in ``directory`` has; raises RhizomeError if there is none."""
    faults: list[str] = []
    recovered = _recovered(directory, faults)
    image = read_image(directory / STORE_DIRECTORY)
    if image.damage:
        faults.append(image.damage)
        return OfflineStore(directory, copies=_copies(recovered), faults=tuple(faults))
    state = _state(image, faults)
    names = [each.name for each in state.registry.brokers.values() if each.uuid == image.uuid]
    entries = image.entries
    start = image.log_start
    return OfflineStore(
        directory,
        names[0] if names else "",
        image.cluster_uuid,
        entries[-1].term if entries else start.term,
        entries[-1].index if entries else start.index,
        image.commit,
        dict(state.groups.groups),
        state.groups.queues,
        _copies(recovered),
        tuple(faults),
    )


class _Silence:
    """Ignores the events of a store; failures are raised when it is closed."""

    def durable(self, token: int) -> None:
        pass

    def alarm(self, text: str) -> None:
        pass

    def failed(self, error: BaseException) -> None:
        pass


def delete_policy(directory: Path, vhost: str, name: str, operator: bool) -> None:
    """Delete a policy in a standalone broker's store, as the broker itself would.

    Raises StoreInUse while the broker runs, NotFound if there is no such policy, and ForeignStore
    for a store of a cluster: its policies are entries of a log that all brokers have, and brokers
    whose stores tell of different ones would no longer decide alike.
    """
    if (directory / STORE_DIRECTORY).exists():
        raise ForeignStore(
            f"{directory} is the store of a broker of a cluster, whose policies all brokers must"
            " have alike: start the brokers and use `rhizome policy delete` without --offline (a"
            " pattern that can't be matched fits nothing and keeps no broker from starting)"
        )
    store = JournalStore(directory, b"", _Silence(), _dropped)
    try:
        recovered = store.recovered
        state = State.restore(recovered.snapshot) if recovered.snapshot else State()
        for _, data in recovered.commands:
            state.apply(decode_command(data))
        command = DeletePolicy(vhost, name, operator)
        outcome = state.apply(command)
        if outcome.error is not None:
            raise outcome.error
        if not outcome.changed:
            kind = "operator policy" if operator else "policy"
            raise NotFound(f"no {kind} '{name}' in vhost '{vhost}'")
        last = recovered.commands[-1][0] if recovered.commands else 0
        store.journal.state(last + 1, encode_command(command))
    finally:
        store.close()


def _dropped(work: Callable[[], None]) -> None:
    """There is no loop that the store's threads could hand their work to."""


def _recovered(directory: Path, faults: list[str]) -> Recovered:
    files, identity = open_offline(directory)
    try:
        return recover(files, identity.uuid, repair=False)
    except CorruptStore as error:
        faults.append(f"its journal is damaged: {error}")
        return recover(files, identity.uuid, accept_corruption=True, repair=False)


def _copies(recovered: Recovered) -> dict[int, StoredCopy]:
    messages: dict[int, int] = {}
    for queue in recovered.queues.values():
        messages[queue.group] = messages.get(queue.group, 0) + queue.count
    return {
        number: StoredCopy(
            number,
            int(group.epoch),
            int(group.index),
            messages.get(number, 0),
            not group.installing,
        )
        for number, group in sorted(recovered.groups.items())
        if number
    }


def _state(image: Image, faults: list[str]) -> ClusterState:
    """The cluster state as far as the store knows it to be committed."""
    state = ClusterState(StateAlone())
    try:
        if image.snapshot is not None:
            body = decode_snapshot(image.snapshot.data)
            state.restore(image.snapshot.index, body.application)
        for entry in image.entries:
            if state.index < entry.index <= image.commit:
                _apply(state, entry)
    except RhizomeError as error:
        faults.append(f"its cluster state can't be read to the end: {error}")
    return state


def _apply(state: ClusterState, entry: Entry) -> None:
    if entry.kind == APPLICATION:
        state.apply(entry.index, entry.payload)
    elif entry.kind == REGISTRATION:
        said = decode(Registration, entry.payload)
        state.apply_command(
            entry.index,
            RegisterBroker(
                said.name, said.uuid, said.incarnation, said.role, said.addresses, said.machine
            ),
        )
    elif entry.kind == RETIREMENT:
        gone = decode(Retirement, entry.payload)
        state.apply_command(entry.index, RetireBroker(gone.name, gone.incarnation))
