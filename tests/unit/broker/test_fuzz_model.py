"""Random histories of a broker core compared with a naive model of queues, crashes included."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rhizome.amqp import methods as m
from rhizome.amqp.frames import body_of, header_payload_of
from rhizome.amqp.properties import Properties, decode_properties
from rhizome.broker.queue.message_browser import COUNT_MAX, Browsed, browse
from rhizome.broker.queue.queue import Queue
from rhizome.broker.queue.redelivered_flag import was_delivered
from rhizome.journal.files import MemoryFiles
from rhizome.testing.in_memory_broker import Content, Core, CoreClient, Event, make_core
from tests.fuzz.queue_model import (
    ACK,
    REJECT,
    REQUEUE,
    Entry,
    Model,
    ModelChannel,
    ModelConsumer,
    ModelQueue,
    Publish,
    Shape,
)

EXAMPLES = settings.default.max_examples if settings.default is not None else 100
CONFIRMING, PLAIN, TRANSACTIONAL = 1, 2, 3
CHANNELS = (CONFIRMING, PLAIN, TRANSACTIONAL)
NAMES = ("a", "b", "c", "d")
EVERYWHERE = "amq.fanout"
TICK_MS = 25

channels = st.sampled_from(CHANNELS)
names = st.sampled_from(NAMES)
ttls = st.sampled_from((None, None, None, None, 0, 40, 200))
lengths = st.sampled_from((None, None, None, None, 0, 1, 3))
overflows = st.sampled_from(("drop-head", "reject-publish", "reject-publish-dlx"))
sends = st.tuples(
    st.sampled_from((*NAMES, *NAMES, EVERYWHERE)),
    st.booleans(),
    st.integers(0, 3),
    st.sampled_from((None, None, None, None, 0, 30, 100)),
)


@st.composite
def shapes(draw: st.DrawFn) -> list[Shape]:
    """Three queues whose dead letters go round, and one that counts deliveries."""
    found = []
    for name, target in (("a", "b"), ("b", "c"), ("c", "a")):
        length = draw(lengths)
        found.append(
            Shape(
                name,
                durable=draw(st.integers(0, 3)) > 0,
                ttl_ms=draw(ttls),
                length_max=length,
                overflow=draw(overflows) if length is not None else "drop-head",
                # What a bound drops first when priorities mix within a turn is the broker's affair.
                priority_max=draw(st.sampled_from((0, 2))) if length is None else 0,
                dead_to=draw(st.sampled_from((target, target, None))),
            )
        )
    limit = draw(st.sampled_from((0, 1, 2)))
    return [*found, Shape("d", ttl_ms=draw(ttls), delivery_limit=limit)]


def shapes_on_disk(shapes: list[Shape]) -> list[Shape]:
    """Without what would depend on when a message that is written to disk can be read again.

    Until then it fills its queue although a consumer waits for it, and a dead letter of a higher
    priority may overtake it.
    """
    ranked = {shape.name for shape in shapes if shape.priority_max > 0}
    return [
        replace(
            shape,
            overflow="drop-head",
            dead_to=None if shape.dead_to in ranked else shape.dead_to,
        )
        for shape in shapes
    ]


class Listener(CoreClient):
    """A client that keeps everything in the order in which it came, whatever the channel."""

    log: list[tuple[int, Event]] | None = None

    def _frame(self, kind: int, channel: int, payload: bytes) -> None:
        super()._frame(kind, channel, payload)
        if self.log is not None:
            events = self.take(channel)
            self.log.extend((channel, event) for event in events)


class Histories(RuleBasedStateMachine):
    """Every rule does one thing to both, then compares what came of it."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies = itertools.count(1)
        self.tags = itertools.count(1)
        self.shapes: dict[str, Shape] = {}
        self.answers: list[tuple[int, m.Method]] = []
        self.consumers: dict[str, ModelConsumer] = {}

    # --- life

    @initialize(shapes=shapes(), budget_bytes=st.sampled_from((0, 0, 1, 1500)))
    def begin(self, shapes: list[Shape], budget_bytes: int) -> None:
        self.core = make_core(budget_bytes)
        self.model = Model(self.core.now_ms)
        if budget_bytes > 0:
            shapes = shapes_on_disk(shapes)
        self.shapes = {shape.name: shape for shape in shapes}
        self.connect()
        for name in NAMES:
            self.declare(name)

    def connect(self) -> None:
        """A client with three channels on a core that knows nobody."""
        self.client = Listener(self.core)
        self.client.open_channel(2)
        self.client.open_channel(3)
        self.client.confirm(CONFIRMING)
        self.client.call(m.TxSelect(), m.TxSelectOk, TRANSACTIONAL)
        self.client.log = []
        self.model.channels = {number: ModelChannel(number) for number in CHANNELS}
        self.model.channels[TRANSACTIONAL].transactional = True
        self.consumers = {}
        self.published = 0
        self.unconfirmed: dict[int, bool] = {}
        self.refused: set[int] = set()
        self.holding = False
        self.kept: MemoryFiles | None = None
        self.kept_model: dict[str, list[Entry]] = {}
        self.present: set[tuple[str, bytes]] = set()
        self.gone: set[tuple[str, bytes]] = set()

    def declare(self, name: str) -> None:
        shape = self.shapes[name]
        method = m.QueueDeclare(name, durable=shape.durable, arguments=shape.arguments())
        self.client.send(method, m.QueueBind(name, EVERYWHERE, ""), channel=PLAIN)
        self.model.queues[name] = ModelQueue(shape)
        declared, bound = self.finish(2)
        assert isinstance(declared, m.QueueDeclareOk)
        assert (declared.message_count, declared.consumer_count) == (0, 0)
        assert isinstance(bound, m.QueueBindOk)

    def finish(self, answers: int) -> list[m.Method]:
        """Let the model finish, compare what came with it; the answers, so many of them."""
        self.model.finish_action()
        found: list[m.Method] = []
        log, self.client.log = self.client.log or [], []
        for number, event in log:
            if isinstance(event, Content) and isinstance(event.method, m.BasicDeliver):
                self.delivered(number, event.method, event)
            elif isinstance(event, (m.BasicAck, m.BasicNack)):
                assert number == CONFIRMING
                self.confirmed(event)
            elif isinstance(event, Content):
                found.append(event.method)
                self.pulled = event
            else:
                found.append(event)
        for queue in self.model.queues.values():
            queue.hurried = False
            assert not queue.expected, f"{queue.shape.name} did not deliver {queue.expected}"
        assert len(found) == answers, found
        if self.holding:
            self.note_changes()
        else:
            assert not self.unconfirmed, "publishes were not confirmed"
        return found

    def note_changes(self) -> None:
        """While the disk is slow: what has gone."""
        present = {(name, e.body) for name, kept in self.model.durable().items() for e in kept}
        self.gone |= self.present - present
        self.present = present

    def delivered(self, number: int, method: m.BasicDeliver, content: Content) -> None:
        consumer = self.consumers[method.consumer_tag]
        queue = consumer.queue
        assert queue.expected, f"{queue.shape.name} delivered {content.body!r} out of the blue"
        entry = queue.expected.pop(0)
        assert number == consumer.channel
        assert consumer.room() > 0, "a consumer got more than its prefetch"
        for other in queue.consumers if not queue.hurried else ():
            assert other.priority <= consumer.priority or other.room() <= 0, "a higher one waits"
        self.check_content(content, entry)
        self.given(number, queue, entry, consumer, consumer.no_ack)

    def given(
        self,
        number: int,
        queue: ModelQueue,
        entry: Entry,
        consumer: ModelConsumer | None,
        no_ack: bool,
    ) -> None:
        """A client got a message."""
        channel = self.model.channels[number]
        channel.tag += 1
        if no_ack:
            return
        queue.unacked.append(entry)
        entry.handed = True
        channel.held[channel.tag] = (entry, queue, consumer)
        if consumer is not None:
            consumer.unacked += 1

    def check_content(self, content: Content, entry: Entry) -> None:
        assert content.body == entry.body
        expected = entry.count > 0 or entry.shown
        assert content.redelivered == expected, "the redelivered flag is wrong"
        deaths = content.headers.get("x-death", [])
        assert isinstance(deaths, list)
        shown = [(death["queue"], death["reason"], death["count"]) for death in deaths]
        assert shown == entry.deaths
        if entry.deaths:
            assert content.properties.expiration is None

    def confirmed(self, event: m.BasicAck | m.BasicNack) -> None:
        last = int(event.delivery_tag)
        tags = [tag for tag in self.unconfirmed if tag <= last] if event.multiple else [last]
        for tag in tags:
            must_wait = self.unconfirmed.pop(tag)
            is_refused = isinstance(event, m.BasicNack)
            assert is_refused == (tag in self.refused)
            assert is_refused or not (must_wait and self.holding), "confirmed before it was safe"

    # --- publishing

    @rule(number=channels, batch=st.lists(sends, min_size=2, max_size=6))
    def publish_many(self, number: int, batch: list[tuple[str, bool, int, int | None]]) -> None:
        self.publish(number, batch)

    @rule(number=channels, name=names, persistent=st.booleans(), count=st.integers(1, 5))
    def publish_alike(self, number: int, name: str, persistent: bool, count: int) -> None:
        self.publish(number, [(name, persistent, 0, None)] * count)

    def publish(self, number: int, batch: list[tuple[str, bool, int, int | None]]) -> None:
        channel = self.model.channels[number]
        data = b""
        for target, persistent, priority, expiration_ms in batch:
            body = b"%d" % next(self.bodies)
            properties = Properties(
                delivery_mode=2 if persistent else 1,
                priority=priority or None,
                expiration=None if expiration_ms is None else str(expiration_ms),
            )
            exchange = target if target == EVERYWHERE else ""
            data += self.client.published(exchange, target, body, properties, number)
            queues = [name for name in self.model.queues if target in (EVERYWHERE, name)]
            one = Publish(body, tuple(queues), persistent, priority, expiration_ms)
            if channel.transactional:
                channel.publishes.append(one)
            else:
                self.publish_model(number, one)
        self.client.send_bytes(data)
        self.finish(0)

    def publish_model(self, number: int, one: Publish) -> None:
        accepted = self.model.publish(one)
        if number == CONFIRMING:
            self.published += 1
            is_durable = any(self.shapes[name].durable for name in one.queues)
            self.unconfirmed[self.published] = one.persistent and is_durable and accepted
            if not accepted:
                self.refused.add(self.published)

    # --- consuming

    @rule(
        number=channels,
        name=names,
        no_ack=st.integers(0, 3),
        prefetch=st.integers(0, 3),
        priority=st.integers(0, 1),
    )
    def start_consumer(
        self, number: int, name: str, no_ack: int, prefetch: int, priority: int
    ) -> None:
        self.consume(number, name, no_ack, prefetch, priority)

    @rule(name=names, prefetch=st.integers(1, 3))
    def start_plain_consumer(self, name: str, prefetch: int) -> None:
        self.consume(PLAIN, name, 1, prefetch, 0)

    def consume(self, number: int, name: str, no_ack: int, prefetch: int, priority: int) -> None:
        queue = self.model.queues.get(name)
        if queue is None or len(queue.consumers) > 3:
            return
        tag = f"t{next(self.tags)}"
        method = m.BasicConsume(
            name, tag, no_ack=no_ack == 0, arguments={"x-priority": priority} if priority else {}
        )
        consumer = ModelConsumer(tag, number, queue, no_ack == 0, prefetch, priority)
        self.consumers[tag] = consumer
        queue.consumers.append(consumer)
        self.client.send(m.BasicQos(0, prefetch, False), method, channel=number)
        qos, consumed = self.finish(2)
        assert isinstance(qos, m.BasicQosOk)
        assert isinstance(consumed, m.BasicConsumeOk)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        running = [c for queue in self.model.queues.values() for c in queue.consumers]
        if running:
            consumer = data.draw(st.sampled_from(running), "consumer")
            consumer.queue.consumers.remove(consumer)
            self.client.send(m.BasicCancel(consumer.tag), channel=consumer.channel)
            (answer,) = self.finish(1)
            assert isinstance(answer, m.BasicCancelOk)

    @rule(number=channels, name=names, no_ack=st.booleans())
    def get(self, number: int, name: str, no_ack: bool) -> None:
        queue = self.model.queues.get(name)
        if queue is None:
            return
        entry = self.model.take(queue)
        count = len(queue.ready)
        if entry is not None:
            self.given(number, queue, entry, None, no_ack)
        # What died on the way may come after it, to a consumer of the same channel.
        tag = self.model.channels[number].tag
        self.client.send(m.BasicGet(name, no_ack), channel=number)
        (answer,) = self.finish(1)
        if entry is None:
            assert isinstance(answer, m.BasicGetEmpty)
        else:
            assert isinstance(answer, m.BasicGetOk)
            assert answer.message_count == count
            assert answer.delivery_tag == tag
            self.check_content(self.pulled, entry)

    @rule(
        number=channels,
        data=st.data(),
        multiple=st.booleans(),
        kind=st.sampled_from((ACK, ACK, REJECT, REQUEUE, REQUEUE)),
    )
    def settle(self, number: int, data: st.DataObject, multiple: bool, kind: int) -> None:
        channel = self.model.channels[number]
        free = [tag for tag in sorted(channel.held) if tag not in channel.settled]
        if not free:
            return
        tag = data.draw(st.sampled_from(free), "tag")
        tags = [held for held in free if held <= tag] if multiple else [tag]
        for held in tags:
            if channel.transactional:
                channel.settled[held] = kind
            else:
                self.model.settle(channel, held, kind)
        self.send_settlement(number, tag, multiple, kind)

    def send_settlement(self, number: int, tag: int, multiple: bool, kind: int) -> None:
        ack = m.BasicAck(tag, multiple)
        nack = m.BasicNack(tag, multiple, kind == REQUEUE)
        self.client.send(ack if kind == ACK else nack, channel=number)
        self.finish(0)

    @rule(
        name=names,
        pulls=st.integers(1, 4),
        kind=st.sampled_from((REQUEUE, REJECT)),
        data=st.data(),
    )
    def pull_and_give_one_back(self, name: str, pulls: int, kind: int, data: st.DataObject) -> None:
        """Whatever was pulled meanwhile, it is back at its own place, or goes where it is dead."""
        channel = self.model.channels[PLAIN]
        before = channel.tag
        for _ in range(pulls):
            self.get(PLAIN, name, False)
        pulled = [tag for tag in channel.held if tag > before]
        if pulled:
            tag = data.draw(st.sampled_from(pulled), "tag")
            self.model.settle(channel, tag, kind)
            self.send_settlement(PLAIN, tag, False, kind)

    @rule(number=channels)
    def recover(self, number: int) -> None:
        channel = self.model.channels[number]
        if channel.transactional:
            return
        for tag in sorted(channel.held):
            self.model.settle(channel, tag, REQUEUE)
        self.client.send(m.BasicRecover(True), channel=number)
        (answer,) = self.finish(1)
        assert isinstance(answer, m.BasicRecoverOk)

    @rule(is_commit=st.integers(0, 2))
    def end_transaction(self, is_commit: int) -> None:
        channel = self.model.channels[TRANSACTIONAL]
        is_empty = not channel.publishes and not channel.settled
        if is_commit:
            self.model.commit(channel)
        else:
            channel.publishes, channel.settled = [], {}
        method = m.TxCommit() if is_commit else m.TxRollback()
        self.client.send(method, channel=TRANSACTIONAL)
        if self.holding and is_commit:
            told = [event for _, event in self.client.log or [] if isinstance(event, m.TxCommitOk)]
            assert is_empty or not told, "committed before it was safe"
            self.holding = self.core.hold_syncs = False
            self.core.sync()
        (answer,) = self.finish(1)
        assert isinstance(answer, m.TxCommitOk if is_commit else m.TxRollbackOk)

    @rule(chance=st.integers(0, 2))
    def close_plain_channel(self, chance: int) -> None:
        if chance:
            return
        self.model.close(self.model.channels[PLAIN])
        self.model.channels[PLAIN] = ModelChannel(PLAIN)
        self.client.send(m.ChannelClose(200, "", 0, 0), m.ChannelOpen(), channel=PLAIN)
        closed, opened = self.finish(2)
        assert isinstance(closed, m.ChannelCloseOk)
        assert isinstance(opened, m.ChannelOpenOk)

    # --- queues

    @precondition(lambda self: not self.holding)
    @rule(name=names)
    def purge(self, name: str) -> None:
        queue = self.model.queues.get(name)
        if queue is not None:
            count = len(queue.ready)
            queue.ready = []
            self.client.send(m.QueuePurge(name), channel=PLAIN)
            (answer,) = self.finish(1)
            assert isinstance(answer, m.QueuePurgeOk)
            assert answer.message_count == count

    @precondition(lambda self: not self.holding)
    @rule(name=names, chance=st.integers(0, 2))
    def delete_or_declare(self, name: str, chance: int) -> None:
        if chance and name in self.model.queues:
            return
        queue = self.model.queues.pop(name, None)
        if queue is None:
            # Whether a new queue gets what was published to an old one is not laid down.
            if not self.model.channels[TRANSACTIONAL].publishes:
                self.declare(name)
            return
        queue.deleted = True
        count = len(queue.ready)
        self.client.send(m.QueueDelete(name), channel=PLAIN)
        *cancels, answer = sorted(
            self.finish(len(queue.consumers) + 1), key=lambda one: isinstance(one, m.QueueDeleteOk)
        )
        assert isinstance(answer, m.QueueDeleteOk)
        assert answer.message_count == count
        cancelled = {one.consumer_tag for one in cancels if isinstance(one, m.BasicCancel)}
        assert cancelled == {consumer.tag for consumer in queue.consumers}

    @rule(name=names)
    def count(self, name: str) -> None:
        queue = self.model.queues.get(name)
        if queue is not None:
            self.client.send(m.QueueDeclare(name, passive=True), channel=PLAIN)
            (answer,) = self.finish(1)
            assert isinstance(answer, m.QueueDeclareOk)
            assert answer.message_count == len(queue.ready)
            assert answer.consumer_count == len(queue.consumers)

    @rule(ticks=st.sampled_from((1, 1, 2, 5, 20)))
    def advance(self, ticks: int) -> None:
        for _ in range(ticks):
            self.model.tick(self.core.now_ms + TICK_MS)
            self.core.advance(TICK_MS)
            self.finish(0)

    # --- disks and crashes

    @precondition(lambda self: not self.holding)
    @rule()
    def slow_disk(self) -> None:
        """From here on nothing that is written counts as safe."""
        self.holding = True
        self.core.hold_syncs = True
        self.kept = copied(self.core.files)
        self.kept_model = self.model.durable()
        self.model.places = {}
        self.note_changes()

    @precondition(lambda self: self.holding)
    @rule()
    def disk_catches_up(self) -> None:
        self.holding = False
        self.core.hold_syncs = False
        self.core.sync()
        self.finish(0)

    @precondition(lambda self: not self.holding)
    @rule(chance=st.integers(0, 5))
    def crash(self, chance: int) -> None:
        """Everything that a client was told is on disk."""
        if chance == 0:
            self.reboot(self.core.files, self.model.durable())

    @precondition(lambda self: not self.holding)
    @rule(name=names, chance=st.integers(0, 1))
    def purge_around_a_pulled_one_and_crash(self, name: str, chance: int) -> None:
        """What a client holds is not purged."""
        if chance == 0:
            self.publish(PLAIN, [(name, True, 0, None)] * 2 if name in self.model.queues else [])
            self.get(PLAIN, name, False)
            self.purge(name)
            self.reboot(self.core.files, self.model.durable())

    @precondition(lambda self: self.holding)
    @rule(chance=st.integers(0, 2))
    def crash_without_what_was_not_synced(self, chance: int) -> None:
        if chance == 0:
            assert self.kept is not None
            self.reboot(self.kept, self.kept_model)

    @precondition(lambda self: self.holding)
    @rule(data=st.data(), chance=st.integers(0, 2))
    def crash_amid_a_write(self, data: st.DataObject, chance: int) -> None:
        """A part of what was not synced is on disk: the beginning, up to any byte."""
        if chance:
            return
        assert self.kept is not None
        # One message can be in a queue twice, as published and as a dead letter: the former counts.
        entries = [(name, e) for name, some in self.kept_model.items() for e in some]
        entries.sort(key=lambda pair: not pair[1].deaths)
        kept = {(name, entry.body): entry.seq for name, entry in entries}
        safe = kept.keys() - self.gone
        known = self.model.places | kept
        files = copied(self.core.files)
        last = max(files.contents)
        synced_bytes = len(self.kept.contents.get(last, b""))
        files.cut(last, data.draw(st.integers(synced_bytes, files.size(last)), "bytes left"))
        self.reboot(files, {name: [] for name in self.kept_model})
        for name, queue in self.model.queues.items():
            found_in = self.core.queue(name)
            ready = browse(found_in, self.core.broker.pager, 0, COUNT_MAX).found
            queue.ready = [recovered_entry(at, one, found_in) for at, one in enumerate(ready)]
        found = {(name, e.body) for name, queue in self.model.queues.items() for e in queue.ready}
        for name, body in sorted(safe - found):
            self.check_trimmed(name, kept[(name, body)], known, f"{name} lost {body!r}")
        possible = known.keys() | self.letters_of(known)
        assert found <= possible, f"came from nowhere: {found - possible}"
        for name, queue in self.model.queues.items():
            # What died elsewhere may have come here more than once.
            born = [entry for entry in queue.ready if not entry.deaths]
            order = [(-queue.lane(entry), known[(name, entry.body)]) for entry in born]
            assert order == sorted(order), "messages changed places"

    def check_trimmed(
        self, name: str, lost: int, places: Mapping[tuple[str, bytes], int], what: str
    ) -> None:
        """What clients held may be too much for a bound: then the oldest go, and no more."""
        queue = self.model.queues[name]
        assert queue.shape.overflow == "drop-head", what
        assert len(queue.ready) == queue.shape.length_max, what
        assert all(e.deaths or places[(name, e.body)] > lost for e in queue.ready), what

    def letters_of(self, places: Iterable[tuple[str, bytes]]) -> set[tuple[str, bytes]]:
        """Where messages may have come to that were too many for a bound after a restart."""
        found: set[tuple[str, bytes]] = set()
        for place, body in places:
            name: str | None = place
            while name is not None and self.shapes[name].length_max is not None:
                name = self.shapes[name].dead_to
                if name is None or (name, body) in found:
                    break
                found.add((name, body))
        return found

    def reboot(self, files: MemoryFiles, durable: dict[str, list[Entry]]) -> None:
        self.core = Core(files, self.core.config, self.core.now_ms)
        self.model.restart(durable, self.shapes)
        for name, queue in self.model.queues.items():
            self.mark_shown(self.core.queue(name), queue.ready)
        self.connect()

    def mark_shown(self, real: Queue, entries: list[Entry]) -> None:
        """What somebody had when the broker crashed is marked; of the rest it doesn't know."""
        ready = browse(real, self.core.broker.pager, 0, COUNT_MAX).found
        for one, entry in zip(ready, entries, strict=False):
            marked = was_delivered(real, one.message)
            assert marked or not entry.handed, "somebody had this message"
            if marked and entry.count == 0:
                entry.shown = True

    # --- what must hold

    @invariant()
    def queues_are_equal(self) -> None:
        if not self.shapes:
            return
        pager = self.core.broker.pager
        assert set(self.core.broker.state.vhosts["/"].destinations) == set(self.model.queues)
        for name, queue in self.model.queues.items():
            real = self.core.queue(name)
            shown = browse(real, pager, 0, COUNT_MAX).found
            found = [(body_of(one.message.content), one.delivery_count) for one in shown]
            wanted = [(entry.body, entry.count) for entry in queue.ready]
            assert found == wanted, f"{name} holds {found}, not {wanted}"
            assert real.ready == len(queue.ready)
            assert real.unacked == len(queue.unacked)
            assert real.consumer_count == len(queue.consumers)

    def teardown(self) -> None:
        """When all is deleted nothing is left behind."""
        if not self.shapes:
            return
        self.core.hold_syncs = False
        self.core.sync()
        self.client.log = None
        for name in self.model.queues:
            self.client.send(m.QueueDelete(name), channel=PLAIN)
        self.client.close_socket()
        assert self.core.broker.connections == {}
        assert self.core.broker.pager.resident_bytes == 0
        assert self.core.store.journal.live_references() == {}
        assert self.core.store.spill.live_references() == {}


def recovered_entry(at: int, one: Browsed, queue: Queue) -> Entry:
    """An entry of the model from a message that a restart has found."""
    message = one.message
    properties = decode_properties(header_payload_of(message.content))
    deaths = (properties.headers or {}).get("x-death", [])
    assert isinstance(deaths, list)
    return Entry(
        at - COUNT_MAX,
        body_of(message.content),
        message.persistent,
        properties.priority or 0,
        None if properties.expiration is None else int(properties.expiration),
        int(message.arrived_ms),
        int(one.delivery_count),
        True,
        was_delivered(queue, message),
        True,
        [(death["queue"], death["reason"], death["count"]) for death in deaths],
    )


def copied(files: MemoryFiles) -> MemoryFiles:
    found = MemoryFiles()
    found.contents = copy.deepcopy(files.contents)
    found.named = dict(files.named)
    return found


TestHistories = pytest.mark.timeout(3600)(Histories.TestCase)
TestHistories.settings = settings(
    max_examples=max(EXAMPLES // 2, 1),
    stateful_step_count=60,
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.filter_too_much),
)
