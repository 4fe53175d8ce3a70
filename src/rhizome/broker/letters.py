"""Dead letters on their way: from the queue that a message died in to where that queue sends it."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from rhizome.amqp.frames import header_payload_of
from rhizome.amqp.properties import decode_properties
from rhizome.broker.deadletters import cc_keys, dead_letter, is_cycle
from rhizome.broker.message import Message, largest_frame
from rhizome.broker.publishing import enqueue, reach_of, send_on
from rhizome.broker.queue import Queue
from rhizome.broker.routing.destination import Destination
from rhizome.broker.steering import routing_headers

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker


@final
class DeadLetter:
    """A message on its way from the queue that it died in."""

    queue: Queue
    message: Message
    reason: str

    def __init__(self, queue: Queue, message: Message, reason: str) -> None:
        self.queue = queue
        self.message = message
        self.reason = reason


def send_letter(broker: Broker, letter: DeadLetter) -> None:
    """Route a dead letter on; without an exchange to go to it is dropped."""
    queue = letter.queue
    old = letter.message
    options = queue.options
    vhost = broker.state.vhosts.get(queue.vhost)
    if vhost is None or options.dead_letter_exchange is None:
        return
    exchange = vhost.router.exchanges.get(options.dead_letter_exchange)
    if exchange is None:
        return
    replaces_key = options.dead_letter_key is not None
    key = options.dead_letter_key if options.dead_letter_key is not None else old.route.key
    content = dead_letter(
        old.content,
        old.route.exchange,
        [old.route.key],
        queue.name,
        letter.reason,
        broker.turn.now_ms // 1000,
        replaces_key,
    )
    keys = [key] if replaces_key else [key, *cc_keys(content)]
    properties = decode_properties(header_payload_of(content))

    def is_new(destination: Destination) -> bool:
        return not (isinstance(destination, Queue) and is_cycle(content, destination.name))

    headers = routing_headers(properties)
    reach = reach_of(vhost.router, broker.cluster, exchange, keys, headers, is_new)
    if reach.is_empty():
        return
    message = Message(
        broker.route_to(exchange.name, key), content, old.channel, largest_frame(content)
    )
    message.arrived_ms = broker.turn.now_ms
    message.persistent = properties.delivery_mode == 2
    message.priority = properties.priority or 0
    send_on(message, reach.targets, None)
    # A letter that comes back to a queue it was in is no duplicate, whatever it says of itself.
    enqueue(broker, message, reach.queues, None)
