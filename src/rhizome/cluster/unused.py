"""Auto-delete exchanges that have lost their last binding, and when they may go.

Whether other brokers have private queues bound is known from their links only. One that is out of
reach for a moment may have some; one that stays away has no say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rhizome.broker.commands import DeleteExchange
from rhizome.cluster.identity import SECONDARY

if TYPE_CHECKING:
    from rhizome.cluster.node import Node

UNHEARD_MS: Final = 10_000
"""So long after its link went down a broker may be thought to have private queues still."""


def drop_unused(node: Node) -> None:
    """Have the exchanges deleted that nobody has bound, once all brokers are heard."""
    if not _hears_all(node):
        return
    unused = node.interests.unused
    node.interests.unused = {}
    for exchange in unused:
        vhost = node.broker.state.vhosts.get(exchange.vhost)
        here = vhost is not None and vhost.router.exchanges.get(exchange.name) is exchange
        if here and exchange.is_unused():
            command = DeleteExchange(exchange.vhost, exchange.name, True, exchange.id)
            node.propose(command, None)


def _hears_all(node: Node) -> bool:
    for record in node.state.registry.view():
        if record.name == node.me.name or record.role == node.me.role == SECONDARY:
            continue
        told = node.interests.told.get(record.name)
        if told is not None:
            if not told.heard:
                return False
        elif node.now_ms - node.down_since_ms.get(record.name, 0) < UNHEARD_MS:
            return False
    return True
