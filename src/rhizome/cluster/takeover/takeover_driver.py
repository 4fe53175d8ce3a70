"""Takeover driver: connects the root's decisions about homes (``takeover.py``) to this broker."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from rhizome.cluster.consensus.consensus_events import (
    BrokerLeaseLive,
    BrokerLeaseOver,
    Event,
    Resigned,
    RootReady,
)
from rhizome.cluster.consensus.membership_changes import ChangeRefused
from rhizome.cluster.protocol.catalogue import ASK_COPY_PROGRESS, COPY_PROGRESS
from rhizome.cluster.protocol.copy_progress_codec import (
    decode_answer,
    decode_question,
    encode_answer,
    encode_question,
)
from rhizome.cluster.state.cluster_commands import AppointHome, ClusterCommand, Envelope, encode
from rhizome.cluster.takeover.root_port import UNKNOWN
from rhizome.cluster.takeover.settings import RootSettings
from rhizome.cluster.takeover.takeover import Takeover, preference

if TYPE_CHECKING:
    from rhizome.cluster.consensus import Consensus
    from rhizome.cluster.gossip import Gossip
    from rhizome.cluster.group_roles import GroupRoles
    from rhizome.cluster.link.broker_hello import Hello
    from rhizome.cluster.link.link import Link
    from rhizome.cluster.link.link_manager import LinkTable
    from rhizome.cluster.node_observer import NodeObserver
    from rhizome.cluster.private_queues.meta_bindings import MetaBindings
    from rhizome.cluster.state.cluster_state import ClusterState


class RootNode(Protocol):
    """What the root's decisions about homes need of the node."""

    me: Hello
    state: ClusterState
    consensus: Consensus
    links: LinkTable
    roles: GroupRoles
    gossip: Gossip
    meta_bindings: MetaBindings
    observer: NodeObserver
    now_ms: int


class TakeoverDriver:
    """Implements `RootPort` for the broker that is root, and answers a root that asks."""

    def __init__(self, node: RootNode, settings: RootSettings) -> None:
        self.node = node
        me = node.me
        self.takeover = Takeover(
            me.name, me.incarnation, node.state, self, settings, int(node.now_ms)
        )

    # ---- inputs ---------------------------------------------------------------------------------

    def begin(self, now_ms: int) -> None:
        self.takeover.begin(now_ms)

    def tick(self) -> None:
        self.takeover.tick(self.node.now_ms)
        self._tell_leased()

    def deadline_ms(self) -> int:
        return self.takeover.deadline_ms()

    def react(self, event: Event) -> None:
        if isinstance(event, BrokerLeaseLive):
            self.takeover.lease_live(event.name, event.incarnation)
        elif isinstance(event, BrokerLeaseOver):
            self.takeover.lease_over(event.name, event.incarnation)
        elif isinstance(event, RootReady):
            self.takeover.became_root()
        elif isinstance(event, Resigned):
            self.takeover.resigned()

    def _tell_leased(self) -> None:
        """As root: tell whose lease isn't known to be over (A3)."""
        if not self.node.meta_bindings.is_root:
            return
        lease_holders = self.takeover.lease_holders
        names = tuple(
            broker.name
            for broker in self.node.state.registry.brokers.values()
            if broker.holds_queues()
            and broker.incarnation
            and not lease_holders.is_over(broker.name, broker.incarnation)
        )
        self.node.meta_bindings.tell_leased(names)

    def state_changed(self) -> None:
        node = self.node
        node.consensus.prefer(
            preference(node.state, node.me.name, node.me.incarnation, node.consensus.root)
        )
        self.takeover.state_changed()
        self._tell_leased()

    def asked(self, link: Link, payload: bytes) -> None:
        """The root asks how far the copies here are."""
        roles = self.node.roles
        copy_progresses = {
            number: roles.copy_progress(number) for number in decode_question(payload)
        }
        link.send_urgent(COPY_PROGRESS, encode_answer(copy_progresses))

    def answered(self, link: Link, payload: bytes) -> None:
        """A broker answers this root."""
        self.takeover.copy_progresses(link.name, decode_answer(payload))

    # ---- the port of the root -------------------------------------------------------------------

    def propose(self, command: ClusterCommand) -> int:
        node = self.node
        payload = encode(Envelope(command))
        index = node.consensus.propose(payload, node.now_ms, reserve=True) or 0
        if index and isinstance(command, AppointHome):
            # The old home may get a lease again any moment: it must not serve in its old epoch.
            node.consensus.need_applied(node.state.groups.groups[command.group].home, index)
        return index

    def ask_copy_progress(self, broker: str, groups: list[int]) -> None:
        if broker == self.node.me.name:
            roles = self.node.roles
            self.takeover.note_copy_progress(
                broker, {group: roles.copy_progress(group) for group in groups}
            )
            return
        link = self.node.links.link_to(broker)
        if link is not None:
            link.send_urgent(ASK_COPY_PROGRESS, encode_question(groups))

    def hears(self, broker: str) -> bool:
        return self.node.consensus.hears(broker)

    def hand_over(self, broker: str) -> None:
        try:
            self.node.consensus.transfer_root(broker, self.node.now_ms)
        except ChangeRefused:
            return  # asked again later, if there is still a reason to

    def records_of(self, group: int) -> int:
        own = self.node.roles.homes.get(group)
        if own is not None:
            return int(own.log.next_index) - 1
        known = self.node.state.groups.groups.get(group)
        news = self.node.gossip.heard.get(known.home, {}) if known is not None else {}
        records = news.get("records")
        count = records.get(str(group)) if isinstance(records, dict) else None
        return count if isinstance(count, int) else UNKNOWN

    def links_of(self, broker: str) -> Collection[str] | None:
        links = self._news_of(broker).get("links")
        return links if isinstance(links, list) else None

    def has_full_disk(self, broker: str) -> bool:
        return self._news_of(broker).get("disk_full") is True

    def failed_homes(self) -> Mapping[int, int]:
        found: dict[int, int] = {}
        for broker in (self.node.me.name, *self.node.gossip.heard):
            told = self._news_of(broker).get("failed_homes")
            for group, epoch in told.items() if isinstance(told, dict) else ():
                known = self.node.state.groups.groups.get(int(group))
                if known is not None and known.home == broker and isinstance(epoch, int):
                    found[known.id] = epoch
        return found

    def _news_of(self, broker: str) -> Mapping[str, object]:
        gossip = self.node.gossip
        return gossip.reach() if broker == self.node.me.name else gossip.heard.get(broker, {})

    def report(self, text: str) -> None:
        self.node.observer.reported(text)
