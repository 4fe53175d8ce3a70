"""Root relay: the root passes on a secondary's publishes that match other secondaries'
meta-bindings (O32).

Secondaries have no links with each other. A message comes to the root marked for relaying, and goes
to every other secondary whose private bindings match, once, and never back (O33).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rhizome.amqp.frames import header_payload_of
from rhizome.amqp.properties import decode_properties
from rhizome.broker.message import Message
from rhizome.broker.publishing.message_options import routing_headers
from rhizome.broker.publishing.remote_targets import MetaExchange, Recipients

if TYPE_CHECKING:
    from rhizome.cluster.home.forward_receiver import RouteSlot
    from rhizome.cluster.linked_peer import LinkedPeer
    from rhizome.cluster.private_queues.meta_bindings import MetaBindings


def relay(
    meta_bindings: MetaBindings, origin: LinkedPeer, message: Message, slot: RouteSlot
) -> bool:
    """Pass a message on to the matching secondaries except its origin; False if there are none.

    A broker that isn't root any more, or has no lease, refuses. Another broker may relay by now,
    and what this one would pass on is old; so nothing is relayed twice or out of order (A3).
    """
    if not meta_bindings.is_root or not meta_bindings.broker.may_deliver:
        assert origin.forward_receiver is not None
        origin.forward_receiver.refuse_last()
        return True
    vhost = meta_bindings.broker.state.vhosts.get(slot.vhost)
    route_target = slot.private
    if vhost is None or route_target is None:
        return False
    router = vhost.router
    headers: dict[str, object] | None = None
    if route_target.by_headers:
        headers = routing_headers(decode_properties(header_payload_of(message.content)))
    recipients = Recipients(slot.keys[1:])
    for name in route_target.names:
        named = meta_bindings.private_elsewhere(slot.vhost, name)
        if named is not None and named.forward is not origin.way:
            recipients.add(named)
    for name in route_target.exchanges:
        exchange = router.exchanges.get(name)
        if exchange is None:
            continue
        for key in slot.keys:
            for destination in router.bound(exchange, key, headers):
                if (
                    isinstance(destination, MetaExchange)
                    and destination.forward is not origin.way
                    and meta_bindings.is_secondary(destination.forward.broker_name)
                ):
                    recipients.add(destination)
    confirms = route_target.attached.confirms
    for target in recipients.targets:
        # The origin's application gets its confirm when the brokers that the message was meant for
        # have it.
        confirms.wait_for(target.forward, target.forward.send(message, target, None, 0))
    return len(recipients.targets) > 0
