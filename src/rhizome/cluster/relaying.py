"""Relaying: the root passes on what one secondary publishes and others are interested in (O32).

Secondaries have no links with each other. A message comes to the root marked for relaying, and goes
to every other secondary whose private bindings match, once, and never back (O33).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rhizome.amqp.frames import header_payload_of
from rhizome.amqp.properties import decode_properties
from rhizome.broker.message import Message
from rhizome.broker.steering import routing_headers
from rhizome.broker.targets import MetaExchange, Reach

if TYPE_CHECKING:
    from rhizome.cluster.interests import Interests
    from rhizome.cluster.neighbour import Neighbour
    from rhizome.cluster.taking import Slot


def relay(interests: Interests, origin: Neighbour, message: Message, slot: Slot) -> bool:
    """Pass a message on to the secondaries, but its origin, that it leads to; False if to none.

    Who isn't root any more, or has no lease, refuses: another may relay by now, and what it would
    pass on is old; nothing is relayed twice or out of order (A3).
    """
    if not interests.is_root or not interests.broker.may_deliver:
        assert origin.taking is not None
        origin.taking.refuse_last()
        return True
    vhost = interests.broker.state.vhosts.get(slot.vhost)
    leg = slot.private
    if vhost is None or leg is None:
        return False
    router = vhost.router
    headers: dict[str, object] | None = None
    if leg.by_headers:
        headers = routing_headers(decode_properties(header_payload_of(message.content)))
    reach = Reach(slot.keys[1:])
    for name in leg.names:
        named = interests.private_elsewhere(slot.vhost, name)
        if named is not None and named.forward is not origin.way:
            reach.add(named)
    for name in leg.exchanges:
        exchange = router.exchanges.get(name)
        if exchange is None:
            continue
        for key in slot.keys:
            for destination in router.bound(exchange, key, headers):
                if (
                    isinstance(destination, MetaExchange)
                    and destination.forward is not origin.way
                    and interests.is_secondary(destination.forward.broker_name)
                ):
                    reach.add(destination)
    confirms = leg.attached.confirms
    for target in reach.targets:
        # The origin's application is told that it is safe when those whom it was meant for have it.
        confirms.wait_for(target.forward, target.forward.send(message, target, None, 0))
    return len(reach.targets) > 0
