"""Node observer: what a node hears of its links, and who hears of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rhizome.broker.fault_log import FAULT_LINK
from rhizome.cluster.consensus.consensus_events import Event
from rhizome.cluster.consensus.log.cluster_store import Entry
from rhizome.cluster.link.death_certificate import DeathCertificate
from rhizome.cluster.link.link import Link, LinkHandler
from rhizome.journal.salvaged_messages import SalvageManifest

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.cluster.death_notices import DeathNotices


class NodeObserver:
    """Hears what happens to a node, for logs, metrics and checkers."""

    def event(self, event: Event) -> None:
        """Something of ``consensus/consensus_events.py``."""

    def applied(self, entry: Entry) -> None:
        """A committed entry was applied."""

    def link_up(self, name: str) -> None:
        pass

    def link_down(self, name: str, reason: str) -> None:
        pass

    def link_problem(self, name: str, address: str, reason: str) -> None:
        pass

    def reported(self, text: str) -> None:
        """The root reports what it does about a home that can't serve everybody, and why."""

    def salvaged(self, about: SalvageManifest) -> None:
        """Messages that a copy had to give up were saved aside (G8)."""

    def bug(self, error: BaseException, where: str) -> None:
        pass


class LinkedNode(Protocol):
    """What links report to."""

    broker: Broker
    observer: NodeObserver
    deaths: DeathNotices

    def link_up(self, link: Link) -> None: ...
    def link_down(self, link: Link, reason: str) -> None: ...


class NodeHandler(LinkHandler):
    """Takes what links report to the node, which can't have two native bases."""

    node: LinkedNode | None

    def __init__(self) -> None:
        super().__init__()
        self.node = None

    def link_up(self, link: Link) -> None:
        assert self.node is not None
        self.node.link_up(link)

    def link_down(self, link: Link, reason: str) -> None:
        assert self.node is not None
        self.node.link_down(link, reason)

    def died(self, certificate: DeathCertificate, payload: bytes) -> None:
        assert self.node is not None
        self.node.deaths.heard(certificate, payload)

    def link_problem(self, name: str, address: str, reason: str) -> None:
        assert self.node is not None
        self.node.observer.link_problem(name, address, reason)

    def bug(self, error: BaseException, where: str) -> None:
        assert self.node is not None
        broker = self.node.broker
        broker.faults.note(FAULT_LINK, error, where, broker.turn.now_ms)
        self.node.observer.bug(error, where)
