"""Broker composition: a broker core and its cluster node, put together from configuration.

The server, the simulator and tests compose brokers with this, so they all run the same code; only
the driver differs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from random import Random

from rhizome.broker.access.application_cluster_token import ApplicationTokens
from rhizome.broker.access.auth_interface import AccessEpoch, AuthDone, Authenticator, Peer
from rhizome.broker.broker import Broker
from rhizome.broker.group_log.local_group_log import LocalGroupLog
from rhizome.broker.metadata.metadata_commands import Command
from rhizome.broker.observer import Observer
from rhizome.cluster.clients.connect_policy import AdmissionRules
from rhizome.cluster.consensus import ALL_RULES, Consensus, Rules
from rhizome.cluster.consensus.log.cluster_store import ClusterStore, Image
from rhizome.cluster.home.unreplicated_message_migration import UnreplicatedMessageReturn
from rhizome.cluster.link.accept_handshake import LinkAuthenticator
from rhizome.cluster.link.broker_hello import FEATURES, SECONDARY, Hello
from rhizome.cluster.link.cluster_key_proof import LinkKeys
from rhizome.cluster.link.link_manager import LinkTable
from rhizome.cluster.link.peers import LinkSettings
from rhizome.cluster.node import Node
from rhizome.cluster.node_observer import NodeHandler, NodeObserver
from rhizome.cluster.state.cluster_state import ClusterState
from rhizome.cluster.state.failover_map import (
    ENTRY_POINTS,
    FailoverPolicy,
    load_policies,
    policy_named,
)
from rhizome.cluster.takeover.forced_home_salvage import Salvager
from rhizome.errors import RhizomeError
from rhizome.journal.store import Store
from rhizome.server.broker_bootstrap import first_definitions, make_empty_broker
from rhizome.server.config.broker_config import Config
from rhizome.server.config.consensus_and_home_settings import (
    consensus_settings,
    home_settings,
    primaries_hash,
    root_settings,
    shared_settings,
)


class DamagedStoreError(RhizomeError):
    """A cluster store that must not be used; the text says why, and what to do."""


@dataclass
class Clustered:
    """A broker in a cluster."""

    broker: Broker
    node: Node
    links: LinkTable


@dataclass(frozen=True)
class World:
    """What a broker needs from outside. ``seed``: at least 16 bytes that no other start of a broker
    has used; ``chance`` is for jitter and nonces."""

    store: Store
    log: LocalGroupLog
    cluster_store: ClusterStore
    observer: Observer
    node_observer: NodeObserver
    seed: bytes
    chance: Random
    wall_ms: int
    now_ms: int
    rules: Rules = ALL_RULES
    """Only tests break a rule, to show what it is for."""


class ReadyGate(Authenticator):
    """Makes applications wait until the broker has joined its cluster."""

    def __init__(self, applications: Authenticator) -> None:
        super().__init__()
        self.applications = applications
        self.node: Node | None = None

    def mechanisms(self, tls: bool) -> str:
        return self.applications.mechanisms(tls)

    def begin(self, mechanism: str, response: bytes, peer: Peer, done: AuthDone) -> None:
        node = self.node
        if node is None or node.ready:
            self.applications.begin(mechanism, response, peer, done)
            return

        def later() -> None:
            self.applications.begin(mechanism, response, peer, done)

        node.when_ready.append(later)


@cache
def _installed_policies() -> dict[str, FailoverPolicy]:
    """Searching all installed packages takes longer than making a broker, so it is done once."""
    return load_policies(entry_points(group=ENTRY_POINTS))


def _load(store: ClusterStore, failover_policy: str) -> Image:
    """What a store has; raises DamagedStoreError, and UnknownPolicyError for a new one whose broker
    may be the first root: its settings are those of the cluster."""
    image = store.load()
    if image.damage:
        raise DamagedStoreError(image.damage)
    if not image.cluster_uuid:
        policy_named(_installed_policies(), failover_policy)
    return image


def compose(
    config: Config,
    world: World,
    applications: Authenticator,
    epoch: AccessEpoch,
    keys: tuple[bytes, ...],
    machine: str,
    addresses: tuple[str, ...],
    link_settings: LinkSettings,
) -> Clustered:
    """Compose a broker of a cluster. The driver calls ``node.recover`` before anything else."""
    section = config.cluster
    image = _load(world.cluster_store, section.failover_policy)
    gate = ReadyGate(applications)
    broker = make_empty_broker(
        config,
        world.store,
        world.log,
        gate,
        epoch,
        world.observer,
        world.wall_ms,
        world.seed,
    )
    me = Hello(
        name=config.broker.name,
        uuid=image.uuid,
        incarnation=broker.incarnation,
        role=section.role,
        addresses=addresses,
        machine=machine,
        cluster_uuid=image.cluster_uuid,
        primaries_hash=primaries_hash(section),
        features=FEATURES,
    )
    founds = section.role != SECONDARY and config.broker.name in section.primary_names
    consensus = Consensus(
        me,
        image,
        consensus_settings(section),
        world.chance,
        world.now_ms,
        section.primary_names if founds else None,
        starting=True,
        rules=world.rules,
    )
    state = ClusterState(broker, dict(_installed_policies()))
    handler = NodeHandler()
    links = LinkTable(me, LinkKeys(*keys), link_settings, handler, world.chance, world.now_ms)
    node = Node(
        broker,
        me,
        consensus,
        state,
        world.cluster_store,
        world.node_observer,
        shared_settings(section),
        _first_commands(config, world.seed, founds and image.is_empty()),
        world.store.recovered,
        AdmissionRules(section.connect_policy, ApplicationTokens(section.demand_key, keys)),
        root_settings(section),
        home_settings(section),
        world.now_ms,
    )
    node.roles.link.salvager = Salvager(broker, world.store.salvage)
    node.roles.returning = UnreplicatedMessageReturn(node, Salvager(broker, world.store.kept))
    node.attach(links)
    handler.node = node
    gate.node = node
    broker.cluster = node
    broker.authenticator = LinkAuthenticator(links, gate)
    for primary in section.primaries:
        if primary.name != config.broker.name:
            links.configure(primary.name, (str(primary.address),), "primary")
    return Clustered(broker, node, links)


def _first_commands(config: Config, seed: bytes, founds: bool) -> Callable[[], list[Command]]:
    """The commands that a founding root proposes.

    Passwords are hashed now, while nobody waits: a root that hashes for a second loses its role.
    """
    if not founds:
        return lambda: first_definitions(config, seed)
    made = first_definitions(config, seed)
    return lambda: made
