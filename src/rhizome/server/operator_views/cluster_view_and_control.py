"""The view and control of a cluster that a broker offers to operators."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any, Final

from rhizome.cluster.consensus import ChangeRefused as Refused
from rhizome.cluster.consensus import NotRoot
from rhizome.cluster.home.home_group import HomeGroup
from rhizome.cluster.link.broker_hello import PINS
from rhizome.cluster.node import Node
from rhizome.cluster.transactions.transaction_status import TransactionStatus, doubts
from rhizome.management.cluster_view import (
    ADD_PRIMARY,
    DRAIN,
    FORCE_HOME,
    FORCE_ROOT,
    MOVE_HOME,
    SETTINGS,
    UNDRAIN,
    UNPIN,
    Change,
    ChangeRefused,
    ClusterDocument,
    CopyInfo,
    FailoverInfo,
    GroupCopies,
    Preview,
    StandbyInfo,
    TxPart,
)
from rhizome.management.state_proposals import Proposal
from rhizome.server.config.broker_config import Config
from rhizome.server.operator_views.cluster_change_preview import basis_of, preview_of
from rhizome.server.operator_views.cluster_info import ClusterKnowledge, broker_infos, cluster_info
from rhizome.server.operator_views.group_info import duties_of, group_infos
from rhizome.server.operator_views.home_change_preview import (
    KINDS,
    PlannedChange,
    planned_change_for,
)

COMMIT_POLL_S = 0.02
COMMIT_PATIENCE_S = 10.0

CHANGED: Final = "the cluster has changed since that was shown: look again"
NOT_COMMITTED: Final = "the change was proposed and is not committed yet: look at the status"
DONE: Final = {
    DRAIN: "{broker} is being drained",
    UNDRAIN: "{broker} is not drained any more",
    MOVE_HOME: "group {group} moves to {broker}",
    UNPIN: "group {group} is no longer pinned",
    FORCE_HOME: "{broker} is the home of group {group}",
    SETTINGS: "the settings of the cluster are changed",
}

# The role of a broker in a group, in `CopyInfo.role`.
HOME: Final = "home"
STANDBY: Final = "standby"
SPARE: Final = "spare"


def tx_part(doubt: TransactionStatus) -> TxPart:
    told: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in asdict(doubt).items()
    }
    return TxPart(**told)


def known_to(node: Node) -> ClusterKnowledge:
    """What the node knows now."""
    hellos = {node.me.name: node.me}
    connections: dict[str, int] = {}
    news = node.gossip.all_news()
    for link in node.links.open_links():
        hellos[link.name] = link.peer
    for name, told in news.items():
        count = told.get("connections", 0)
        connections[name] = count if isinstance(count, int) else 0
    draining = [each.name for each in node.state.registry.view() if each.draining]
    return ClusterKnowledge(
        node.consensus.status(), hellos, connections, duties_of(node.state), tuple(draining)
    )


class NodeView:
    """Implements ``ClusterView``."""

    def __init__(self, node: Node, config: Config) -> None:
        self._node = node
        self._name = config.cluster.name or config.broker.name

    async def cluster_document(self) -> ClusterDocument:
        node = self._node
        known = known_to(node)
        news = node.gossip.all_news()
        reached = {name: news.get(name, {}) for name in known.hellos}
        return ClusterDocument(
            node.me.name,
            cluster_info(known, self._name),
            broker_infos(known),
            group_infos(node.state, reached),
            {
                name: tuple(
                    FailoverInfo(info.broker, info.addresses, info.machine) for info in infos
                )
                for name, infos in node.state.failover_map.items()
            },
        )

    def group_copies(self) -> list[GroupCopies]:
        return [
            GroupCopies(
                group.id,
                group.home,
                group.epoch,
                group.version,
                tuple(member.broker for member in group.in_sync),
                group.stream,
            )
            for group in self._node.state.groups.groups.values()
        ]

    def doubts(self) -> list[TxPart]:
        return [tx_part(each) for each in doubts(self._node.roles.tx_transport)]

    def key_fingerprints(self) -> list[str]:
        return list(self._node.links.keys.fingerprints)

    def link_fingerprints(self) -> dict[str, str]:
        return {link.name: link.guard.fingerprint for link in self._node.links.open_links()}

    def exposed_links(self) -> list[str]:
        return [
            link.name
            for link in self._node.links.open_links()
            if link.guard.is_lacking and not link.guard.is_local
        ]

    def troubled_homes(self) -> list[str]:
        return self._node.takeover_driver.takeover.moves.impaired_homes.notices(self._node.now_ms)

    def unseen_groups(self) -> list[int]:
        node = self._node
        return [
            number
            for number, group in node.state.groups.groups.items()
            if node.roles.has_unseen(group)
        ]

    def copy_of(self, group: int) -> CopyInfo | None:
        node = self._node
        home = node.roles.homes.get(group)
        me = node.me
        if home is not None:
            last = int(home.log.next_index) - 1
            epoch = int(home.log.epoch)
            return CopyInfo(me.name, me.incarnation, HOME, epoch, last, True, _standbys(home))
        known = node.state.groups.groups.get(group)
        role = SPARE if known is None or known.member(me.name) is None else STANDBY
        if known is not None and known.stream:
            copy_progress = node.roles.copy_progress(group)
            if not copy_progress.is_usable():
                return None
            return CopyInfo(
                me.name, me.incarnation, role, copy_progress.epoch, copy_progress.index, True
            )
        copy = node.roles.copies.get(group)
        if copy is None:
            return None
        whole = not copy.installing
        return CopyInfo(me.name, me.incarnation, role, int(copy.epoch), int(copy.index), whole)


def _standbys(home: HomeGroup) -> tuple[StandbyInfo, ...]:
    return tuple(
        StandbyInfo(
            each.name,
            each.stage,
            each.lag,
            each.records_bytes,
            each.live_bytes,
            each.backfill_bytes,
        )
        for each in home.copies.status().standbys
    )


class NodeControl:
    """Implements ``ClusterControl``."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def preview(self, change: Change) -> Preview:
        if change.kind in KINDS:
            return self._orders(change).preview
        found = preview_of(change, known_to(self._node))
        if change.kind == FORCE_ROOT or found.refusal:
            return found
        try:
            self._node.consensus.check_primary_change(change.broker, change.kind == ADD_PRIMARY)
        except (Refused, NotRoot) as error:
            return Preview((), refusal=str(error))
        return found

    def _orders(self, change: Change) -> PlannedChange:
        node = self._node
        known = known_to(node)
        connections = known.connections.get(change.broker, 0)
        unaware = [each.name for each in known.hellos.values() if PINS not in each.features]
        return planned_change_for(change, node.state, known.status.root, connections, unaware)

    async def execute(self, change: Change, basis: str) -> str:
        if change.kind in KINDS:
            return await self._carry_out(change, basis)
        return await self._change_members(change, basis)

    async def _carry_out(self, change: Change, basis: str) -> str:
        """Have the command committed that was previewed; any broker may propose it."""
        orders = self._orders(change)
        if orders.preview.refusal:
            raise ChangeRefused(orders.preview.refusal)
        if orders.preview.basis != basis or orders.command is None:
            raise ChangeRefused(CHANGED)
        proposal = Proposal()
        self._node.propose(orders.command, proposal)
        try:
            outcome = await asyncio.wait_for(proposal.answer, COMMIT_PATIENCE_S)
        except TimeoutError:
            raise ChangeRefused(NOT_COMMITTED) from None
        if outcome.error is not None:
            raise ChangeRefused(outcome.error.text)
        return DONE[change.kind].format(broker=change.broker, group=change.group)

    async def _change_members(self, change: Change, basis: str) -> str:
        node = self._node
        if basis_of(change, node.consensus.status()) != basis:
            raise ChangeRefused(CHANGED)
        refusal = self.preview(change).refusal
        if refusal:
            raise ChangeRefused(refusal)
        try:
            if change.kind == FORCE_ROOT:
                node.consensus.force_root(node.now_ms)
                return f"{node.me.name} is the root of a new cluster"
            if change.kind == ADD_PRIMARY:
                index = node.consensus.add_primary(change.broker, node.now_ms)
                done = f"{change.broker} is a primary now"
            else:
                index = node.consensus.remove_primary(change.broker, node.now_ms)
                done = f"{change.broker} is no longer a primary"
        except (Refused, NotRoot) as error:
            raise ChangeRefused(str(error)) from error
        await self._committed(index)
        return done

    async def _committed(self, index: int) -> None:
        waited_s = 0.0
        while self._node.applied.index < index:
            if waited_s >= COMMIT_PATIENCE_S:
                raise ChangeRefused(NOT_COMMITTED)
            await asyncio.sleep(COMMIT_POLL_S)
            waited_s += COMMIT_POLL_S
