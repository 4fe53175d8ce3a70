"""Message actions: move, drop, requeue or redrive the messages of a queue that meet a condition,
or single ones by their ids.

- move: to the end of another queue;
- drop: gone for good, not dead-lettered;
- requeue: to the end of the same queue;
- redrive: dead letters go back to the queue that they died in, under the exchange and routing key
  that they had there.

Each message is held by an admin consumer and put elsewhere as a move does (`message_move.py`):
whatever fails between the two, the message is in one of the queues. Publishers can write x-death
themselves: a redrive goes by deaths alone that a queue has seen (`CLAIMED`). It asks for the
caller's right to write each queue that it leads to, which must be one that dead-letters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final

from librt.strings import BytesWriter
from starlette.responses import Response

from rhizome.amqp.primitives import put_shortstr
from rhizome.broker.channel.channel import Channel
from rhizome.broker.channel.resource_lookup import check_read, check_write
from rhizome.broker.message import Message, copy_of
from rhizome.broker.metadata.metadata_commands import QUEUE
from rhizome.broker.queue.admin_consumer import AdminConsumer
from rhizome.broker.queue.message_cursor import look_at
from rhizome.broker.queue.queue import Queue
from rhizome.broker.streams.stream_restrictions import is_stream
from rhizome.errors import AccessRefused
from rhizome.management.api_context import Context
from rhizome.management.direct_channel import check_open, until_confirmed
from rhizome.management.errors import ApiError, BadRequest
from rhizome.management.http.api_call import BODY_BYTES_MAX, Call
from rhizome.management.http.auth import MANAGEMENT
from rhizome.management.http.cooperative_yield import Pace
from rhizome.management.http.endpoint import POST
from rhizome.management.http.json_body import Document, parse_document
from rhizome.management.http.json_responses import answer
from rhizome.management.openapi import rabbitmq_schemas, request_schemas
from rhizome.management.openapi.endpoint_shapes import row_of
from rhizome.management.peers.cluster_wide_queries import at_home
from rhizome.management.rabbitmq_api.queues import check_told, usable_queue
from rhizome.management.rhizome_api.message_move import move_held, move_target
from rhizome.management.search.message_condition import Condition, SearchedMessage
from rhizome.management.search.queue_search import QueueSearch, read_condition, read_id

COUNT_MAX: Final = 1000
IDS_MAX: Final = 200
ACTIONS: Final = ("move", "drop", "requeue", "redrive")
REASONS_MAX: Final = 20
QUEUE_NAME_BYTES_MAX: Final = 255
GONE: Final = "no longer ready"


@dataclass(slots=True)
class Order:
    """What a request asks for."""

    action: str
    condition: Condition
    ids: list[tuple[int, int]] | None
    to: str
    count: int
    after: str
    dry_run: bool


@dataclass(slots=True)
class Outcome:
    """What was done: how many messages, where to, and why others were left."""

    done: int = 0
    to: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)

    def skip(self, reason: str) -> None:
        """Count a message that is left, with its reason. Reasons name queues, and messages say
        which: there can be many."""
        known = reason in self.skipped or len(self.skipped) < REASONS_MAX
        self.skipped[reason if known else "other reasons"] += 1


def _read_order(document: Document) -> Order:
    action = document.text("action")
    if action not in ACTIONS:
        raise BadRequest(f"action is {action[:40]!r}; it must be one of {', '.join(ACTIONS)}")
    count = document.number("count", COUNT_MAX)
    if not 1 <= count <= COUNT_MAX:
        raise BadRequest(f"count is {count}; it must be from 1 to {COUNT_MAX}")
    where = document.text("where", "")
    ids = [read_id(each) for each in document.words("ids")] if "ids" in document else None
    if ids is not None and (where or len(ids) > IDS_MAX):
        raise BadRequest(f"give a condition ('where') or up to {IDS_MAX} 'ids'")
    if action == "drop" and ids is None and not where.strip():
        raise BadRequest("drop needs 'where' or 'ids'; purging drops everything")
    to = document.text("to", "")
    if (action == "move") != bool(to):
        raise BadRequest(f"{action} {'needs' if action == 'move' else 'takes no'} 'to'")
    after, dry_run = document.text("after", ""), document.flag("dry_run")
    return Order(action, read_condition(where), ids, to, count, after, dry_run)


async def act_on_messages(call: Call) -> Response:
    channel, queue = usable_queue(call)
    check_read(channel, QUEUE, queue.name)
    body = await call.body(BODY_BYTES_MAX)
    order = _read_order(parse_document(body))
    elsewhere = await at_home(call, queue, body)
    if elsewhere is not None:
        return elsewhere
    check_told(queue)
    if is_stream(queue.options):
        raise BadRequest(f"queue '{queue.name}' is a stream: its messages stay; read them instead")
    work = _Work(call.context, channel, queue, order)
    search = QueueSearch(call.context, queue, order.condition, order.after)
    place = await work.run(search)
    outcome = work.outcome
    return answer(
        {
            "action": order.action,
            "dry_run": order.dry_run,
            "done": outcome.done,
            "scanned": search.scanned,
            "left": int(queue.ready),
            "to": dict(outcome.to),
            "skipped": dict(outcome.skipped),
            "next": place or None,
        }
    )


class _Work:
    """One request that acts on messages, one after the other."""

    def __init__(self, context: Context, channel: Channel, queue: Queue, order: Order) -> None:
        self.outcome = Outcome()
        self._context = context
        self._channel = channel
        self._queue = queue
        self._order = order
        self._target: Queue | None = None
        if order.action == "move":
            self._target = move_target(channel, queue, order.to)
        elif order.action == "requeue":
            check_write(channel, QUEUE, queue.name)
            self._target = queue
        title = f"{order.action}s messages of queue '{queue.name}'"
        self._admin_consumer = AdminConsumer(context.broker, title)

    async def run(self, search: QueueSearch) -> str:
        """Act on all that is asked for; where the next request is to go on, or nothing."""
        outcome, order = self.outcome, self._order
        try:
            async for index, arrived_ms in self._chosen(search):
                await self._act(index, arrived_ms)
                if outcome.done >= order.count:
                    return search.place
        except ApiError as error:
            raise type(error)(f"{outcome.done} done, then {error.reason}") from None
        finally:
            self._context.shell.begin_turn()
            self._admin_consumer.end()
        return search.place

    async def _chosen(self, search: QueueSearch) -> AsyncIterator[tuple[int, int]]:
        if self._order.ids is not None:
            pace = Pace()
            for index, arrived_ms in self._order.ids:
                yield index, arrived_ms
                if pace.is_due():
                    await pace.rest()
            return
        async for found in search.run():
            yield found.index, found.arrived_ms

    async def _act(self, index: int, arrived_ms: int) -> None:
        """Act on one message. It is looked at before it is taken: what stays keeps its place."""
        check_told(self._queue)
        check_open(self._context.broker)
        self._context.shell.begin_turn()
        message = self._looked_at(index, arrived_ms)
        if message is None:
            self.outcome.skip(GONE)
            return
        seen = SearchedMessage(message.content, {})
        target = self._origin(seen)
        if target is None and self._order.action != "drop":
            return
        if not self._order.dry_run and not await self._do(message, seen, target):
            self.outcome.skip(GONE)
            return
        self.outcome.done += 1
        if target is not None:
            self.outcome.to[target.name] += 1

    def _looked_at(self, index: int, arrived_ms: int) -> Message | None:
        """The message, if it is still the one that was chosen, and has not expired."""
        broker, queue = self._context.broker, self._queue
        message = look_at(queue, broker.pager, index)
        if message is None or message.arrived_ms != arrived_ms:
            return None
        return None if queue.is_expired(message, broker.turn.now_ms) else message

    async def _do(self, message: Message, seen: SearchedMessage, target: Queue | None) -> bool:
        """Take a message, and put it where it goes; False if it can't be taken now."""
        if target is not None and target.away is None and not target.accepts(message):
            raise BadRequest(f"queue '{target.name}' refused a message")
        admin_consumer = self._admin_consumer
        taken = admin_consumer.take_this(self._queue, message.index)
        if taken is None:
            return False
        if target is None:
            admin_consumer.drop(self._channel)
            await until_confirmed(self._channel)
            return True
        moved = self._restored(taken, seen) if self._order.action == "redrive" else taken
        await move_held(self._context, self._channel, admin_consumer, moved, target)
        return True

    def _origin(self, seen: SearchedMessage) -> Queue | None:
        """The queue that a message goes to. None if it is to be dropped; or if it can't be
        redriven, which is counted with its reason."""
        if self._order.action != "redrive":
            return self._target
        name = seen.value("death.queue")
        if not isinstance(name, str):
            self.outcome.skip("no dead letter")
            return None
        if seen.is_claimed():
            self.outcome.skip("its publisher wrote its x-death")
            return None
        queue = self._context.broker.state.vhosts[self._queue.vhost].destinations.get(name)
        if not isinstance(queue, Queue) or queue.definition.is_private():
            self.outcome.skip(f"there is no shared queue '{name[:QUEUE_NAME_BYTES_MAX]}'")
            return None
        if queue.options.dead_letter_exchange is None:
            self.outcome.skip(f"queue '{name}' does not dead-letter")
            return None
        try:
            check_write(self._channel, QUEUE, name)
        except AccessRefused:
            # Whoever publishes here chooses the name: it must not keep the others where they are.
            self.outcome.skip(f"queue '{name}' may not be written")
            return None
        return queue

    def _restored(self, message: Message, seen: SearchedMessage) -> Message:
        """A dead letter with the exchange and routing key that it had where it died."""
        exchange, key = seen.value("death.exchange"), seen.value("death.routing_key")
        if not isinstance(exchange, str) or not isinstance(key, str):
            return message
        writer = BytesWriter()
        try:
            put_shortstr(writer, exchange)
            put_shortstr(writer, key)
        except ValueError:
            return message
        restored = copy_of(message)
        restored.route = self._context.broker.pager.route(writer.getvalue())
        return restored


ENDPOINTS: Final = (
    POST(
        "/api/rhizome/queues/{vhost}/{name}/messages",
        MANAGEMENT,
        act_on_messages,
        row_of(rabbitmq_schemas.ACTED),
        request_schemas.ACT_ON_MESSAGES,
    ),
)
