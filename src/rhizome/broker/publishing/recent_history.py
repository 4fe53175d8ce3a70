"""Recent history: what is bound to an x-recent-history exchange gets the exchange's last messages.

The home of the history sends them when it learns of the binding. A private queue of another broker
is known to that broker only: it asks the home, by a message to the history under the default
exchange and the private queue's name. No client can send such a message, because no exchange leads
to a history, whatever keys a message has (`Queue.of_broker`).

A binding that is made while the history has no home gets nothing, because nobody could say later
what was recent then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from rhizome.amqp.frames import content_frames, frame_end, header_payload_of
from rhizome.amqp.properties import (
    DELIVERY_MODE_PERSISTENT,
    Properties,
    decode_properties,
    encode_header,
    scan,
)
from rhizome.broker.cluster_port import Histories
from rhizome.broker.message import HEADER_FLAGS_OFFSET, Message, Route, largest_frame
from rhizome.broker.metadata.metadata_commands import (
    Command,
    DeclareExchange,
    DeclareQueue,
    DeleteQueue,
)
from rhizome.broker.metadata.metadata_state import State
from rhizome.broker.publishing.forward_port import Target
from rhizome.broker.publishing.message_options import routing_headers
from rhizome.broker.publishing.publish_path import enqueue, recipients_of, send_on
from rhizome.broker.publishing.remote_targets import Recipients
from rhizome.broker.queue.queue import Queue
from rhizome.broker.routing.bindings_and_destinations import Binding, Destination
from rhizome.broker.routing.exchange import Exchange
from rhizome.broker.routing.recent_history_exchange import (
    HISTORY_LENGTH,
    HISTORY_PREFIX,
    LENGTH_ARGUMENT,
    RECENT_HISTORY_KIND,
    RecentHistoryExchange,
    history_name,
)
from rhizome.broker.turn import STEPS_PER_WORK, Chore, decoding_work
from rhizome.errors import PreconditionFailed
from rhizome.journal.errors import CorruptRecord

if TYPE_CHECKING:
    from rhizome.broker.broker_context import BrokerContext
    from rhizome.broker.routing.router import Router

HISTORY_BYTES_MAX: Final = 16 << 20
"""How many bytes of bodies a history has at most, and how many bytes with headers a binding gets:
the newest. All of them are sent in one turn."""
DECODED_BYTES_MAX: Final = 4 << 20
"""The same for an exchange that routes by headers, which have to be decoded."""
SENT_WORK: Final = 4
SENT_BYTES_PER_WORK: Final = 1024


def history_of(state: State, command: Command) -> DeclareQueue | None:
    """The declaration of the history that a new exchange needs; None if a command makes none that
    needs one."""
    if not isinstance(command, DeclareExchange) or command.kind != RECENT_HISTORY_KIND:
        return None
    vhost = state.vhosts.get(command.vhost)
    existing = None if vhost is None else vhost.router.exchanges.get(command.name)
    if existing is not None and existing.kind != RECENT_HISTORY_KIND:
        return None
    length = command.arguments.get(LENGTH_ARGUMENT, HISTORY_LENGTH)
    arguments: dict[str, object] = {
        "x-max-length": length,
        "x-max-length-bytes": HISTORY_BYTES_MAX,
    }
    return DeclareQueue(
        command.vhost, history_name(command.name), durable=command.durable, arguments=arguments
    )


@final
class _Proposal(Chore):
    """A command that follows from another one, which must have been applied everywhere first."""

    broker: BrokerContext
    command: DeleteQueue

    def __init__(self, broker: BrokerContext, command: DeleteQueue) -> None:
        super().__init__()
        self.broker = broker
        self.command = command

    def run(self) -> bool:
        self.broker.cluster.propose(self.command, None)
        return True


@final
class RecentHistories(Histories):
    """Those of one broker."""

    broker: BrokerContext

    def __init__(self, broker: BrokerContext) -> None:
        super().__init__()
        self.broker = broker

    def bound(self, vhost: str, binding: Binding) -> None:
        broker = self.broker
        router = broker.state.vhosts[vhost].router
        source = router.exchanges.get(binding.source)
        if not isinstance(source, RecentHistoryExchange):
            return
        history = router.queues.get(source.history)
        destination = binding.destination
        if not isinstance(history, Queue) or not broker.may_deliver:
            return
        if history.away is None:
            send_history(broker, history, destination)
        elif isinstance(destination, Queue) and destination.definition.is_private():
            _ask_home(broker, history, destination)

    def dropped(self, exchange: Exchange) -> None:
        """The history goes with its exchange, once everything that follows is done."""
        vhost = self.broker.state.vhosts.get(exchange.vhost)
        queue = None if vhost is None else vhost.destinations.get(exchange.history)
        if isinstance(queue, Queue):
            command = DeleteQueue(exchange.vhost, queue.name, queue.definition.id)
            self.broker.turn.chores.append(_Proposal(self.broker, command))


def _ask_home(broker: BrokerContext, history: Queue, destination: Queue) -> None:
    assert history.away is not None
    header = encode_header(0, Properties())
    content = content_frames(1, header, b"", int(broker.limits.frame_max))
    message = Message(broker.route_to("", destination.name), content, 1, largest_frame(content))
    message.arrived_ms = broker.turn.now_ms
    target = Target(history.away.forward(), history.vhost, [])
    target.queue_ids.append(history.id)
    send_on(message, [target], None)


def asks_for_history(route: Route, queues: list[Queue]) -> bool:
    """Whether a message asks for the history that it is sent to, for the queue that its key
    names."""
    if len(queues) != 1 or route.exchange != "":
        return False
    return queues[0].name.startswith(HISTORY_PREFIX) and route.key != queues[0].name


def answer_request(broker: BrokerContext, history: Queue, name: str) -> None:
    """Another broker has a private queue that was bound to the exchange of this history; or this
    one, if it has become the home since it asked."""
    destination = broker.state.vhosts[history.vhost].destinations.get(name)
    if not isinstance(destination, Queue) or not destination.definition.is_private():
        destination = broker.cluster.private_elsewhere(history.vhost, name)
    if destination is not None:
        send_history(broker, history, destination)


def send_history(broker: BrokerContext, history: Queue, destination: Destination) -> None:
    """Send what a history has to a destination, oldest first."""
    if history.log.still:
        return
    decodes = isinstance(destination, Exchange) and _router_of(broker, destination).needs_headers(
        destination
    )
    turn = broker.turn
    for kept in _kept(broker, history, DECODED_BYTES_MAX if decodes else HISTORY_BYTES_MAX):
        copy = Message(kept.route, kept.content, kept.channel, kept.frame_bytes_max)
        copy.arrived_ms = turn.now_ms
        copy.expiration_ms = kept.expiration_ms
        copy.priority = kept.priority
        copy.persistent = _is_persistent(kept.content)
        turn.work += SENT_WORK + len(kept.content) // SENT_BYTES_PER_WORK
        if decodes:
            turn.work += decoding_work(kept.content)
        try:
            recipients = _recipients(broker, destination, copy, decodes)
        except PreconditionFailed as refused:
            broker.observer.letter_dropped(history.vhost, history.name, refused)
            return
        send_on(copy, recipients.targets, None)
        enqueue(broker, copy, recipients.queues, None)


def _is_persistent(content: bytes) -> bool:
    spans = scan(content, HEADER_FLAGS_OFFSET, frame_end(content, 0) - 1)
    return spans.delivery_mode == DELIVERY_MODE_PERSISTENT


def _kept(broker: BrokerContext, history: Queue, bytes_max: i64) -> list[Message]:
    """The newest messages of a history with up to so many bytes, oldest first."""
    found: list[Message] = []
    left = bytes_max
    for lane in reversed(history.lanes):
        for _, position in reversed(lane.paged.positions()):
            try:
                kept = broker.pager.read_one(position)
            except (CorruptRecord, OSError):
                # It is set aside when it becomes the first.
                continue
            left -= len(kept.content)
            if left < 0:
                return found[::-1]
            found.append(kept)
        for kept in reversed(lane.resident()):
            left -= len(kept.content)
            if left < 0:
                return found[::-1]
            found.append(kept)
    return found[::-1]


def _router_of(broker: BrokerContext, exchange: Exchange) -> Router:
    return broker.state.vhosts[exchange.vhost].router


def _recipients(
    broker: BrokerContext, destination: Destination, message: Message, decodes: bool
) -> Recipients:
    if not isinstance(destination, Exchange):
        recipients = Recipients([])
        if not isinstance(destination, Queue) or not destination.of_broker:
            recipients.add(destination)
        return recipients
    router = _router_of(broker, destination)
    headers = None
    if decodes:
        headers = routing_headers(decode_properties(header_payload_of(message.content)))
    try:
        return recipients_of(router, broker.cluster, destination, [message.route.key], headers)
    finally:
        broker.turn.work += router.take_steps() // STEPS_PER_WORK
