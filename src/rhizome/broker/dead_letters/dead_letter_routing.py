"""Dead-letter routing: from the queue where a message died to the queues that it is sent to.

Queues of the same group get a dead letter at once. Queues of other groups get it through the group
outbox (`group_outbox.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from rhizome.amqp.frames import header_payload_of
from rhizome.amqp.properties import Properties, decode_properties
from rhizome.broker.dead_letters.dead_letter import DeadLetter
from rhizome.broker.dead_letters.dead_letter_headers import (
    cycle_queues,
    dead_letter,
    stored_cc_keys,
)
from rhizome.broker.dead_letters.group_outbox import outbox_of, take_for_outbox
from rhizome.broker.fault_log import FAULT_QUEUE
from rhizome.broker.group_log.atomic_records import begin_all, commit_all
from rhizome.broker.group_log.local_group_log import TX_RECORD_BYTES
from rhizome.broker.group_log.log_port import GroupLog
from rhizome.broker.message import Message, largest_frame
from rhizome.broker.metadata.resource_names import check_length
from rhizome.broker.publishing.message_options import routing_headers
from rhizome.broker.publishing.publish_path import enqueue, recipients_of, send_on
from rhizome.broker.publishing.remote_targets import Recipients
from rhizome.broker.queue.queue import REASON_REJECTED, Queue
from rhizome.broker.routing.bindings_and_destinations import Destination
from rhizome.broker.routing.exchange import Exchange
from rhizome.broker.routing.router import Router
from rhizome.broker.turn import STEPS_PER_WORK
from rhizome.errors import PreconditionFailed

if TYPE_CHECKING:
    from rhizome.broker.broker_context import BrokerContext


def noted(broker: BrokerContext, queue: Queue, message: Message, reason: str) -> DeadLetter:
    """A message has died: the letter to send at the end of the turn."""
    letter = DeadLetter(queue, message, reason)
    _prepare(broker, letter)
    return letter


def _prepare(broker: BrokerContext, letter: DeadLetter) -> None:
    letter.copy = None
    letter.refusal = None
    try:
        _address(broker, letter)
    except Exception as error:
        letter.refusal = error


def _is_stale(broker: BrokerContext, letter: DeadLetter) -> bool:
    """Whether bindings have changed since the route was computed."""
    vhost = broker.state.vhosts.get(letter.queue.vhost)
    if vhost is None or vhost.router.epoch != letter.epoch:
        return True
    if letter.recipients is not None:
        for queue in letter.recipients.queues:
            if queue.away is not None:
                return True
    return False


def send_letters(broker: BrokerContext) -> None:
    """Send the dead letters of this turn; sending may produce more."""
    letters = broker.dead_letters
    broker.dead_letters = []
    for letter in letters:
        try:
            if _is_stale(broker, letter):
                _prepare(broker, letter)
            if letter.refusal is not None:
                raise letter.refusal
            _send(broker, letter)
        except PreconditionFailed as refused:
            broker.observer.letter_dropped(letter.queue.vhost, letter.queue.name, refused)
        except Exception as error:
            where = f"a dead letter of queue '{letter.queue.name}'"
            broker.report_bug(error, where, FAULT_QUEUE)


def _address(broker: BrokerContext, letter: DeadLetter) -> None:
    """Make the copy of a dead letter and compute its route. Without a dead-letter exchange the
    message is dropped."""
    queue = letter.queue
    old = letter.message
    options = queue.options
    vhost = broker.state.vhosts.get(queue.vhost)
    if vhost is None:
        return
    letter.epoch = vhost.router.epoch
    if options.dead_letter_exchange is None:
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
        broker.limits.tells_last_death,
    )
    keys = [key] if replaces_key else [key, *stored_cc_keys(content)]
    properties = decode_properties(header_payload_of(content))
    letter.recipients = _recipients_of_letter(
        broker, vhost.router, exchange, keys, content, properties
    )
    message = Message(
        broker.route_to(exchange.name, key), content, old.channel, largest_frame(content)
    )
    message.persistent = properties.delivery_mode == 2
    message.priority = properties.priority or 0
    letter.copy = message


def _send(broker: BrokerContext, letter: DeadLetter) -> None:
    queue, message, recipients = letter.queue, letter.copy, letter.recipients
    if message is None or recipients is None or recipients.is_empty():
        return
    message.arrived_ms = broker.turn.now_ms
    outbox = outbox_of(broker, queue)
    if outbox is not None:
        ids = take_for_outbox(queue, recipients)
        if len(ids) > 0:
            outbox.put(message, queue.vhost, ids)
    send_on(message, recipients.targets, None)
    # A dead letter that returns to a queue it was in is no duplicate, whatever its headers say.
    enqueue(broker, message, recipients.queues, None)


def _recipients_of_letter(
    broker: BrokerContext,
    router: Router,
    exchange: Exchange,
    keys: list[str],
    content: bytes,
    properties: Properties,
) -> Recipients:
    """The recipients of a dead letter, without the queues that would make it cycle."""
    # Earlier releases did not check this argument everywhere that it could be set.
    check_length("dead letter routing key", keys[0])
    cycle = cycle_queues(content)

    def is_new(destination: Destination) -> bool:
        return not (isinstance(destination, Queue) and destination.name in cycle)

    headers = routing_headers(properties)
    try:
        return recipients_of(router, broker.cluster, exchange, keys, headers, is_new)
    finally:
        broker.turn.work += router.take_steps() // STEPS_PER_WORK


def bury_apart(broker: BrokerContext) -> None:
    """Send dead letters in a transaction of their own. A single-node broker needs none."""
    if len(broker.internal) == 0:
        send_letters(broker)
        return
    size: i64 = 0
    for letter in broker.dead_letters:
        size += len(letter.message.content) + TX_RECORD_BYTES
    begin_all(broker, size)
    bury(broker)
    commit_all(broker)


def bury(broker: BrokerContext) -> None:
    """Send dead letters and settle the originals within one transaction: a log has both or neither.

    If this broker is replaced before the transaction is committed, the next home does the same
    again by itself. It only has to be told which messages were rejected.
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
