"""Dead letters on their way: from the queue that a message died in to where that queue sends it.

Queues of the same group get a letter at once; those of other groups by post (`post.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from mypy_extensions import i64

from rhizome.amqp.frames import header_payload_of
from rhizome.amqp.properties import Properties, decode_properties
from rhizome.broker.deadletters import cycle_queues, dead_letter, stored_cc_keys
from rhizome.broker.fault_log import FAULT_QUEUE
from rhizome.broker.log import TX_RECORD_BYTES
from rhizome.broker.message import Message, largest_frame
from rhizome.broker.names import check_length
from rhizome.broker.port import GroupLog
from rhizome.broker.post import post_of, take_by_post
from rhizome.broker.publishing import enqueue, reach_of, send_on
from rhizome.broker.queue import REASON_REJECTED, Queue
from rhizome.broker.routing.destination import Destination
from rhizome.broker.routing.exchange import Exchange
from rhizome.broker.routing.router import Router
from rhizome.broker.steering import routing_headers
from rhizome.broker.targets import Reach
from rhizome.broker.together import begin_all, commit_all
from rhizome.broker.turn import STEPS_PER_WORK
from rhizome.errors import PreconditionFailed

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


def send_letters(broker: Broker) -> None:
    """Send what has died; more may die meanwhile."""
    letters = broker.dead_letters
    broker.dead_letters = []
    for letter in letters:
        try:
            _send(broker, letter)
        except PreconditionFailed as refused:
            broker.observer.letter_dropped(letter.queue.vhost, letter.queue.name, refused)
        except Exception as error:
            where = f"a dead letter of queue '{letter.queue.name}'"
            broker.report_bug(error, where, FAULT_QUEUE)


def _send(broker: Broker, letter: DeadLetter) -> None:
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
    keys = [key] if replaces_key else [key, *stored_cc_keys(content)]
    properties = decode_properties(header_payload_of(content))
    reach = _reach_of_letter(broker, vhost.router, exchange, keys, content, properties)
    if reach.is_empty():
        return
    message = Message(
        broker.route_to(exchange.name, key), content, old.channel, largest_frame(content)
    )
    message.arrived_ms = broker.turn.now_ms
    message.persistent = properties.delivery_mode == 2
    message.priority = properties.priority or 0
    post = post_of(broker, queue)
    if post is not None:
        ids = take_by_post(queue, reach)
        if len(ids) > 0:
            post.put(message, queue.vhost, ids)
    send_on(message, reach.targets, None)
    # A letter that comes back to a queue it was in is no duplicate, whatever it says of itself.
    enqueue(broker, message, reach.queues, None)


def _reach_of_letter(
    broker: Broker,
    router: Router,
    exchange: Exchange,
    keys: list[str],
    content: bytes,
    properties: Properties,
) -> Reach:
    """Where a dead letter goes, but for queues that it would go round through."""
    # Not every way to set one was checked in earlier releases.
    check_length("dead letter routing key", keys[0])
    cycle = cycle_queues(content)

    def is_new(destination: Destination) -> bool:
        return not (isinstance(destination, Queue) and destination.name in cycle)

    headers = routing_headers(properties)
    try:
        return reach_of(router, broker.cluster, exchange, keys, headers, is_new)
    finally:
        broker.turn.work += router.take_steps() // STEPS_PER_WORK


def bury_apart(broker: Broker) -> None:
    """Bury as a transaction of its own; a lone broker needs none."""
    if len(broker.internal) == 0:
        send_letters(broker)
        return
    size: i64 = 0
    for letter in broker.dead_letters:
        size += len(letter.message.content) + TX_RECORD_BYTES
    begin_all(broker, size)
    bury(broker)
    commit_all(broker)


def bury(broker: Broker) -> None:
    """Send what has died and settle what it was, within a transaction: a log has both or neither.

    If this broker is replaced before that is committed, whoever is home next does it again itself;
    it only has to be told what was rejected.
    """
    buried: list[DeadLetter] = []
    while len(broker.dead_letters) > 0:
        buried.extend(broker.dead_letters)
        deriving: list[GroupLog] = []
        for log in broker.logs.values():
            if not log.derived:
                log.derived = True
                deriving.append(log)
        send_letters(broker)
        for log in deriving:
            log.derived = False
    broker.write_settled()
    for letter in buried:
        rejected = letter.reason == REASON_REJECTED
        letter.queue.log.buried(letter.queue.id, letter.message.index, rejected)
