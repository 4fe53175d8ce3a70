"""Death notices: this broker hears of certificates of death, and passes each on once (R15).

A certificate goes to every broker with a link, the accused itself included: if that one lives after
all, it hears of it over the link that the others still have with it, and serves no more.
"""

from __future__ import annotations

from typing import Final, Protocol

from rhizome.cluster.consensus import Consensus
from rhizome.cluster.link.broker_hello import DEATHS
from rhizome.cluster.link.cluster_key_proof import ProofError
from rhizome.cluster.link.death_certificate import DeathCertificate, verified
from rhizome.cluster.link.link import Link
from rhizome.cluster.link.link_manager import LinkTable
from rhizome.cluster.node_observer import NodeObserver
from rhizome.cluster.protocol.catalogue import DEATH
from rhizome.cluster.state.cluster_state import ClusterState
from rhizome.errors import AccessRefused

REMEMBERED_MAX: Final = 1024


class NoticedNode(Protocol):
    """What death notices need of the broker."""

    consensus: Consensus
    links: LinkTable
    observer: NodeObserver
    state: ClusterState
    now_ms: int


class DeathNotices:
    """Invariant: each certificate is passed on once, so it ends its way when all have it."""

    def __init__(self, node: NoticedNode) -> None:
        self.node = node
        self._heard: dict[tuple[str, str], None] = {}

    def told(self, link: Link, payload: bytes) -> None:
        """Another broker passes a certificate on."""
        try:
            certificate = verified(self.node.links.keys, payload)
        except ProofError as error:
            raise AccessRefused(f"{link.name} passes on {error}") from None
        self.heard(certificate, payload)

    def heard(self, certificate: DeathCertificate, payload: bytes) -> None:
        """A certificate that was verified; ``payload`` is how it came."""
        node = self.node
        of = (certificate.name, certificate.incarnation)
        known = node.state.registry.brokers.get(certificate.name)
        if of in self._heard or known is None or known.uuid != certificate.uuid:
            return
        self._heard[of] = None
        if len(self._heard) > REMEMBERED_MAX:
            del self._heard[next(iter(self._heard))]
        for link in node.links.open_links():
            if DEATHS in link.peer.features:
                link.send_urgent(DEATH, payload)
        if known.incarnation == certificate.incarnation:
            node.observer.reported(
                f"the process of {certificate.name} has ended, says {certificate.seen_by}: its"
                " groups are taken over at once"
            )
        node.consensus.died(certificate.name, certificate.incarnation, node.now_ms)
