"""Post: what a group forwards to queues of other groups: dead letters, and delayed messages.

A group is itself an edge for these (A1). The record that takes a message out of its queue also puts
the letter into the group's post: one transaction, so a copy has both or neither. A letter is sent
when that record is committed, on disk as well, and leaves the post when all queues that it is for
have it committed. Whoever is home meanwhile sends what the post has, in the same order and under
the same names: the group and epoch of the letter's record are its producer, the index of the record
its sequence, and each queue accepts that once (L5). So a letter is neither lost nor doubled,
whichever home dies.

A letter in the post is a message of this route (`tail`):

    shortstr vhost | shortstr exchange | shortstr routing key | u16 n | n * u64 queue id

The queues are those that the message was routed to when it died; private ones are not among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from librt.strings import BytesWriter, read_i64_be
from mypy_extensions import i64

from rhizome.amqp.wire import put_shortstr, put_u16, put_u64, u16_at
from rhizome.broker.confirms import Confirms
from rhizome.broker.message import Message, copy_of
from rhizome.broker.port import Forward, GroupLog
from rhizome.broker.publishing import enqueue
from rhizome.broker.targets import Reach, bundle
from rhizome.broker.worker import POST_IDS, Worker, make_internal
from rhizome.journal.seen import Identity

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.queue import Queue

UNDER_WAY_BYTES_MAX: Final = 4 << 20
"""What of one post may be under way at a time; the rest waits on disk."""

LETTER_BYTES: Final = 256
"""What a letter costs beyond its content."""


@final
class PostRules:
    """The rules of letters that can be broken, one by one, to show what each is for. Nobody but a
    test turns one off."""

    kept: bool
    """A1: a letter is kept by the group that sends it; else it is lost with its home."""

    committed_first: bool
    """A1: only what is committed is sent; else the message may be in its queue all the same."""

    named: bool
    """A1: letters have names, by which they are known again; else they come twice."""

    def __init__(self) -> None:
        self.kept = True
        self.committed_first = True
        self.named = True


@final
class Post(Worker):
    """Invariant: ``letters`` were sent, in order, and are waited for in ``confirms``, where the
    first has the tag after ``confirms.sent``; ``under_way_bytes`` is what they cost. ``ways`` are
    those that letters were sent on last.
    """

    queue: Queue
    rules: PostRules
    confirms: Confirms
    letters: list[Message]
    under_way_bytes: i64
    ways: dict[Forward, None]
    sent: i64

    def __init__(self, queue: Queue, rules: PostRules) -> None:
        super().__init__()
        self.queue = queue
        self.rules = rules
        self.sent = 0
        self.let_go()

    def let_go(self) -> None:
        self.confirms = Confirms()
        self.letters = []
        self.under_way_bytes = 0
        self.ways = {}

    def held(self) -> list[Message]:
        return self.letters

    def waits(self) -> bool:
        return len(self.letters) > 0

    def wait_elsewhere(
        self, log: GroupLog, forward: Forward, indexes: list[int], numbers: list[int]
    ) -> None:
        self.confirms.wait_elsewhere(log, forward, indexes, numbers)

    # ---- letters --------------------------------------------------------------------------------

    def put(self, letter: Message, vhost: str, queue_ids: list[int]) -> None:
        """Keep a letter for these queues; whoever calls this settles the message that it is of in
        the same transaction."""
        queue = self.queue
        writer = BytesWriter()
        put_shortstr(writer, vhost)
        put_shortstr(writer, letter.route.exchange)
        put_shortstr(writer, letter.route.key)
        put_u16(writer, len(queue_ids))
        for queue_id in queue_ids:
            put_u64(writer, queue_id)
        kept = copy_of(letter)
        kept.route = queue.broker.pager.route(writer.getvalue())
        kept.identity = None
        ids: list[int] = [queue.id]
        queue.log.append(kept, ids, True)
        queue.push(kept)

    def run(self) -> None:
        queue = self.queue
        if queue.away is not None or queue.log.still or not queue.broker.may_deliver:
            return
        self._settle()
        while queue.ready > 0 and self._has_room() and self._may_send_first():
            letter = queue.next_message(-1)
            if letter is None:
                break
            queue.unacked += 1
            self.letters.append(letter)
            self.under_way_bytes += len(letter.content) + LETTER_BYTES
            self._send(letter)
        self.confirms.close_turn()
        self._settle()

    def _has_room(self) -> bool:
        if self.under_way_bytes >= UNDER_WAY_BYTES_MAX:
            return False
        return not any(way.congested for way in self.ways)

    def _may_send_first(self) -> bool:
        """Whether no takeover and no power cut can undo what the first letter is due to."""
        log = self.queue.log
        first = self.queue.lane.first_index()
        if not self.rules.committed_first:
            return True
        if first <= log.committed_memory and first <= log.committed_disk:
            return True
        log.waiting.append(self.queue)
        return False

    def _send(self, letter: Message) -> None:
        broker = self.queue.broker
        tail = letter.route.tail
        key_at: i64 = 1 + tail[0]
        key_at += 1 + tail[key_at]
        exchange_at: i64 = 1 + tail[0]
        ids_at: i64 = key_at + 1 + tail[key_at]
        message = copy_of(letter)
        message.route = broker.pager.route(tail[exchange_at:ids_at])
        message.arrived_ms = broker.turn.now_ms
        if self.rules.named:
            message.identity = self._name(letter.index)
        reach = Reach([])
        at = ids_at + 2
        count = u16_at(tail, ids_at)
        while count > 0:
            queue = broker.shared.get(read_i64_be(tail, at))
            if queue is not None:
                reach.add(queue)
            at += 8
            count -= 1
        bundle(reach.targets)
        confirms = self.confirms
        confirms.published += 1
        self.sent += 1
        for target in reach.targets:
            number = target.forward.send(message, target, None, 0)
            confirms.wait_for(target.forward, number)
            self.ways[target.forward] = None
        enqueue(broker, message, reach.queues, confirms)

    def _name(self, index: i64) -> Identity:
        """By what queues know the letter of this index again."""
        log = self.queue.log
        writer = BytesWriter()
        writer.append(0)
        put_u16(writer, log.group)
        put_u64(writer, log.epoch_of(index))
        return Identity(writer.getvalue(), index, b"")

    def _settle(self) -> None:
        """Let go of what is safe where it belongs."""
        confirms = self.confirms
        safe = confirms.ready()
        if safe == 0:
            return
        done = safe - confirms.sent
        confirms.sent = safe
        for letter in self.letters[:done]:
            self.under_way_bytes -= len(letter.content) + LETTER_BYTES
            self.queue.ack(letter)
        del self.letters[:done]
        if len(self.letters) == 0:
            self.ways = {}


def open_post(broker: Broker, group: i64, rules: PostRules) -> None:
    """Give a group its post, wherever its home is."""
    queue_id = POST_IDS | group
    if queue_id not in broker.internal:
        queue = make_internal(broker, queue_id, f"amq.post.{group}", group)
        queue.worker = Post(queue, rules)


def post_of(broker: Broker, queue: Queue) -> Post | None:
    """The post of a queue's group; None if the queue has no group."""
    found = broker.internal.get(POST_IDS | queue.log.group)
    if found is None:
        return None
    worker = found.worker
    return worker if isinstance(worker, Post) and worker.rules.kept else None


def take_by_post(queue: Queue, reach: Reach) -> list[int]:
    """Take those out of ``reach`` that what leaves ``queue`` goes to by post: shared queues of
    other groups. Answers their ids."""
    ids: list[int] = []
    queues: list[Queue] = []
    for each in reach.queues:
        if each.log is queue.log or each.definition.is_private():
            queues.append(each)
        else:
            ids.append(each.id)
    targets = []
    for target in reach.targets:
        if target.forward.group == 0:
            targets.append(target)
        else:
            ids.extend(target.queue_ids)
    if len(ids) > 0:
        reach.queues = queues
        reach.targets = targets
        for target in targets:
            target.bundle = None
        bundle(targets)
    return ids
