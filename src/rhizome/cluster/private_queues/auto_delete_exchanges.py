"""Auto-delete exchanges that have lost their last binding, and when they are deleted.

Links are the only source of whether other brokers have private queues bound. A broker that is out
of reach for a moment may have some; one that stays away is not considered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from rhizome.broker.metadata.metadata_commands import DeleteExchange
from rhizome.cluster.link.broker_hello import SECONDARY

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.cluster_port import Waiter
    from rhizome.broker.metadata.metadata_commands import Command
    from rhizome.cluster.link.broker_hello import Hello
    from rhizome.cluster.private_queues.meta_bindings import MetaBindings
    from rhizome.cluster.state.cluster_state import ClusterState

UNHEARD_MS: Final = 10_000
"""How long after its link went down a broker is assumed to have private queues still."""


class ExchangesNode(Protocol):
    """What the end of unused exchanges needs of the node."""

    broker: Broker
    me: Hello
    state: ClusterState
    meta_bindings: MetaBindings
    down_since_ms: dict[str, int]
    now_ms: int

    def propose(self, command: Command, waiter: Waiter | None) -> None: ...


def drop_unused_exchanges(node: ExchangesNode) -> None:
    """Have the exchanges deleted that nobody has bound, once all brokers are heard."""
    if not _hears_all(node):
        return
    unused = node.meta_bindings.unused
    node.meta_bindings.unused = {}
    for exchange in unused:
        vhost = node.broker.state.vhosts.get(exchange.vhost)
        here = vhost is not None and vhost.router.exchanges.get(exchange.name) is exchange
        if here and exchange.is_unused():
            command = DeleteExchange(exchange.vhost, exchange.name, True, exchange.id)
            node.propose(command, None)


def _hears_all(node: ExchangesNode) -> bool:
    for record in node.state.registry.view():
        if record.name == node.me.name or record.role == node.me.role == SECONDARY:
            continue
        told = node.meta_bindings.told.get(record.name)
        if told is not None:
            if not told.heard:
                return False
        elif node.now_ms - node.down_since_ms.get(record.name, 0) < UNHEARD_MS:
            return False
    return True
