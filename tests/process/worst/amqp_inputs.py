"""The worst input of each AMQP method: the largest that its limits allow, as many in a row as one
read takes, or the one that touches most."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Final

from rhizome.amqp import methods, spec
from rhizome.amqp.field_table import encode_table
from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import Method
from rhizome.broker.metadata.vhost_metadata_byte_quota import BINDINGS_MAX
from tests.process.worst.talker import FRAME_MAX, PROTOCOL_HEADER, Talker
from tests.process.worst.world import CROWD, DURABLE, PLAIN, World, published

Input = Callable[[World], Iterator[None]]
INPUTS: Final[list[tuple[str, str, Input]]] = []
"""Name of the method, what it is sent, and the input."""

CHANNELS: Final = 2047
WIDE_MAX: Final = 1000
"""Queues with 255 priorities in one read; each costs 0.5 ms and more."""
CONSUMERS_MAX: Final = 30_000
"""A little less than a connection may have."""
HEADER_BINDINGS_MAX: Final = 900
LONG_PATTERNS_MAX: Final = BINDINGS_MAX // 16
"""Bindings of 121 words to one queue: each counts as 16."""
"""With 100 arguments each, a little less than the steps that one route may take."""
TRANSACTION_PARTS: Final = 100_000
"""What `limits.transaction_parts_max` allows by default."""
HEADERS_FLAG: Final = b"\x20\x00"
HANDSHAKE_BYTES: Final = 15_000
"""Frames before tune are at most 16 KiB."""


def worst(name: str, what: str) -> Callable[[Input], Input]:
    def add(made: Input) -> Input:
        INPUTS.append((name, what, made))
        return made

    return add


def bursts(name: str, what: str, make: Callable[[int, str], bytes], vhost: str = "/") -> None:
    """As many of a unit as a read takes; it is given its number and a queue of its own."""

    def made(world: World) -> Iterator[None]:
        talker = world.talker(vhost)
        queue = world.queue(talker)
        data = world.burst(lambda at: make(at, queue))
        yield
        talker.socket.sendall(data)
        world.wait_for(talker)
        yield
        talker.close()

    INPUTS.append((name, f"{what}, as many as a read takes", made))


def one(method: Method) -> bytes:
    return method_frame(1, method)


def wide_table(size: int) -> dict[str, object]:
    """A table of about so many bytes, in the smallest entries."""
    return {f"{at}": {} for at in range(size // 11)}


def deep_table(size: int) -> dict[str, object]:
    """Tables within tables, as deep as it goes, many of them."""
    deep: dict[str, object] = {}
    for _ in range(120):
        deep = {"a": deep}
    return {f"{at}": deep for at in range(size // 900)}


# ---- connections --------------------------------------------------------------------------------


def greeted(world: World) -> Talker:
    """A talker that has been sent connection.start, and nothing more."""
    talker = Talker.__new__(Talker)
    talker.socket = socket.create_connection((world.broker.host, world.broker.port), timeout=60)
    talker.kept, talker.at = bytearray(), 0
    world.talkers.append(talker)
    talker.socket.sendall(PROTOCOL_HEADER)
    talker.expect(methods.ConnectionStart)
    return talker


def to_the_end(talker: Talker, *sent: Method) -> None:
    for method in sent:
        talker.send(method, 0)
    talker.socket.shutdown(socket.SHUT_WR)
    talker.read_to_end()
    talker.close()


@worst("connection.start-ok", "client properties of 15 KB, nested")
def start_ok(world: World) -> Iterator[None]:
    talkers = [greeted(world) for _ in range(50)]
    yield
    for talker in talkers:
        table = deep_table(HANDSHAKE_BYTES)
        to_the_end(talker, methods.ConnectionStartOk(table, "PLAIN", b"\0a\0b", "en_US"))


@worst("connection.start-ok", "AMQPLAIN with a table of 15 KB")
def start_ok_amqplain(world: World) -> Iterator[None]:
    talkers = [greeted(world) for _ in range(50)]
    yield
    for talker in talkers:
        login = encode_table(wide_table(HANDSHAKE_BYTES))[4:]
        to_the_end(talker, methods.ConnectionStartOk({}, "AMQPLAIN", login, "en_US"))


@worst("connection.secure-ok", "without being asked, 15 KB")
def secure_ok(world: World) -> Iterator[None]:
    talker = greeted(world)
    yield
    to_the_end(talker, methods.ConnectionSecureOk(b"x" * HANDSHAKE_BYTES))


@worst("connection.tune-ok", "twice, the second without limits")
def tune_ok(world: World) -> Iterator[None]:
    talker = world.talker()
    yield
    to_the_end(talker, methods.ConnectionTuneOk(0, 0, 0))


@worst("connection.open", "again and again, of a vhost with the longest name")
def connection_open(world: World) -> Iterator[None]:
    talker = world.talker()
    data = world.burst(lambda _: method_frame(0, methods.ConnectionOpen("x" * 255)))
    yield
    talker.socket.sendall(data[:4096])
    talker.read_to_end()
    talker.close()


@worst("connection.close", "with 2,047 channels, each with consumers and unacked messages")
def connection_close(world: World) -> Iterator[None]:
    talker = world.talker(channel=False)
    numbers = range(1, CHANNELS + 1)
    talker.socket.sendall(b"".join(method_frame(at, methods.ChannelOpen()) for at in numbers))
    for _ in numbers:
        talker.expect(methods.ChannelOpenOk)
    queue = world.queue(talker)
    world.fill(talker, queue, world.sizes.messages)
    consume = methods.BasicConsume(queue, "c", no_wait=True)
    talker.socket.sendall(
        b"".join(
            method_frame(at, methods.BasicQos(0, world.sizes.messages // CHANNELS + 1))
            + method_frame(at, consume)
            for at in numbers
        )
    )
    left = world.sizes.messages
    while left:
        kind, payload = talker.read_frame()
        left -= kind == 1 and payload[:4] == b"\x00\x3c\x00\x3c"
    yield
    talker.send(methods.ConnectionClose(200, "x" * 255, 0, 0), 0)
    talker.expect(methods.ConnectionCloseOk)
    yield
    talker.close()


@worst("connection.close", "none: the socket of a connection with many consumers is closed")
def consumers_lost(world: World) -> Iterator[None]:
    talker = world.talker()
    queue = world.queue(talker)
    numbers = range(world.sizes.objects * 2)
    world.pipeline(talker, (methods.BasicConsume(queue, f"c{at}", no_wait=True) for at in numbers))
    yield
    talker.close()
    world.wait_for(world.talker())


@worst("connection.close", "none: the socket of the owner of many bound exclusive queues is closed")
def owner_lost(world: World) -> Iterator[None]:
    talker = world.talker()
    numbers = range(world.sizes.objects)
    world.pipeline(
        talker,
        (methods.QueueDeclare(f"own{at}", exclusive=True, no_wait=True) for at in numbers),
    )
    world.pipeline(
        talker, (methods.QueueBind(f"own{at}", "amq.fanout", "", True) for at in numbers)
    )
    yield
    talker.close()
    world.wait_for(world.talker())


@worst("connection.close-ok", "without being asked")
def close_ok(world: World) -> Iterator[None]:
    talker = world.talker()
    yield
    to_the_end(talker, methods.ConnectionCloseOk())


@worst("connection.update-secret", "of a whole frame, again and again")
def update_secret(world: World) -> Iterator[None]:
    talker = world.talker()
    secret = methods.ConnectionUpdateSecret(b"x" * (FRAME_MAX - 300), "x" * 255)
    data = world.burst(lambda _: method_frame(0, secret))
    yield
    talker.socket.sendall(data)
    to_the_end(talker)


# ---- channels -----------------------------------------------------------------------------------


bursts(
    "channel.open",
    "opened and closed",
    lambda at, queue: (
        method_frame(2, methods.ChannelOpen())
        + method_frame(2, methods.ChannelClose(200, "x" * 255, 0, 0))
    ),
)
bursts("channel.flow", "active", lambda at, queue: one(methods.ChannelFlow(True)))
bursts("channel.flow-ok", "not asked for", lambda at, queue: one(methods.ChannelFlowOk(True)))
bursts(
    "channel.close-ok",
    "on a channel that is not open",
    lambda at, queue: method_frame(9, methods.ChannelCloseOk()),
)


@worst("channel.close", "of one that has many messages unacked")
def channel_close(world: World) -> Iterator[None]:
    talker, other = world.talker(), world.talker()
    queue = world.queue(talker)
    world.fill(talker, queue, world.sizes.messages)
    world.hold(other, queue, world.sizes.messages)
    yield
    other.send(methods.ChannelClose(200, "", 0, 0))
    other.expect(methods.ChannelCloseOk)
    yield
    talker.call(methods.QueueDelete(queue))
    talker.close()
    other.close()


# ---- exchanges ----------------------------------------------------------------------------------


bursts(
    "exchange.declare",
    "new ones",
    lambda at, queue: one(
        methods.ExchangeDeclare(f"{queue}{at}", "topic", auto_delete=True, no_wait=True)
    ),
)
bursts(
    "exchange.declare",
    "with the largest arguments",
    lambda at, queue: one(
        methods.ExchangeDeclare(
            "amq.topic", "topic", passive=True, no_wait=True, arguments=wide_table(100_000)
        )
    ),
)
bursts(
    "exchange.delete",
    "declared and deleted",
    lambda at, queue: (
        one(methods.ExchangeDeclare(queue, "headers", no_wait=True))
        + one(methods.ExchangeDelete(queue, no_wait=True))
    ),
)


@worst("exchange.delete", "of one with many bindings")
def exchange_delete(world: World) -> Iterator[None]:
    talker = world.talker(CROWD)
    name = world.name("exchange")
    talker.call(methods.ExchangeDeclare(name, "topic"))
    numbers = range(world.sizes.objects)
    world.pipeline(
        talker, (methods.QueueBind(f"q{at}", name, f"a.{at}.*.#", True) for at in numbers)
    )
    yield
    talker.call(methods.ExchangeDelete(name))
    yield
    talker.close()


bursts(
    "exchange.bind",
    "bound and unbound",
    lambda at, queue: (
        one(methods.ExchangeBind("amq.fanout", "amq.topic", f"{at}.#.*", True))
        + one(methods.ExchangeUnbind("amq.fanout", "amq.topic", f"{at}.#.*", True))
    ),
)
bursts(
    "exchange.unbind",
    "what is not bound",
    lambda at, queue: one(methods.ExchangeUnbind("amq.fanout", "amq.direct", f"{at}", True)),
)


# ---- queues -------------------------------------------------------------------------------------


bursts(
    "queue.declare",
    "new ones",
    lambda at, queue: one(methods.QueueDeclare(f"{queue}.{at}", exclusive=True, no_wait=True)),
)
bursts(
    "queue.declare",
    "the same again",
    lambda at, queue: one(methods.QueueDeclare(queue, no_wait=True)),
)
bursts(
    "queue.declare",
    "with as many nested arguments as a frame has room for",
    lambda at, queue: one(
        methods.QueueDeclare(queue, passive=True, no_wait=True, arguments=deep_table(100_000))
    ),
)
bursts(
    "queue.delete",
    "declared and deleted, with 255 priorities",
    lambda at, queue: (
        one(methods.QueueDeclare(f"{queue}p", no_wait=True, arguments={"x-max-priority": 255}))
        + one(methods.QueueDelete(f"{queue}p", no_wait=True))
        if at < WIDE_MAX
        else one(methods.BasicQos(0, 1))
    ),
)
bursts(
    "queue.bind",
    "new ones, with arguments",
    lambda at, queue: one(
        methods.QueueBind(queue, "amq.headers", "", True, {f"a{n}": at for n in range(20)})
    ),
)
bursts(
    "queue.bind",
    "patterns of the longest key",
    lambda at, queue: one(methods.QueueBind(queue, "amq.topic", f"{at}" + ".#.*" * 60, True)),
)
bursts(
    "queue.unbind",
    "what is not bound",
    lambda at, queue: one(methods.QueueUnbind(queue, "amq.direct", f"{at}")),
)
bursts("queue.purge", "of an empty queue", lambda at, queue: one(methods.QueuePurge(queue, True)))


def emptied(name: str, what: str, sent: Callable[[str], Method], properties: bytes) -> None:
    """One method that makes a queue of many messages empty."""

    def made(world: World) -> Iterator[None]:
        talker = world.talker()
        queue = world.queue(talker, durable=True)
        world.fill(talker, queue, world.sizes.messages * 5, properties)
        yield
        talker.call(sent(queue))
        yield
        talker.close()

    INPUTS.append((name, what, made))


emptied("queue.purge", "of many messages", methods.QueuePurge, PLAIN)
emptied("queue.purge", "of many on disk", methods.QueuePurge, DURABLE)
emptied("queue.delete", "of many messages", methods.QueueDelete, PLAIN)


@worst("queue.delete", "of one with the longest patterns")
def queue_delete_patterns(world: World) -> Iterator[None]:
    talker = world.talker()
    queue = world.queue(talker)
    numbers = range(min(world.sizes.objects * 2, LONG_PATTERNS_MAX))
    world.pipeline(
        talker,
        (methods.QueueBind(queue, "amq.topic", f"{at}" + ".a" * 120, True) for at in numbers),
    )
    yield
    talker.send(methods.QueueDelete(queue))
    talker.expect(methods.QueueDeleteOk)
    yield
    talker.close()


@worst("queue.delete", "of one with many consumers and bindings")
def queue_delete(world: World) -> Iterator[None]:
    talker = world.talker()
    queue = world.queue(talker)
    numbers = range(world.sizes.objects * 2)
    world.pipeline(talker, (methods.BasicConsume(queue, f"c{at}", no_wait=True) for at in numbers))
    world.pipeline(
        talker, (methods.QueueBind(queue, "amq.direct", f"{at}", True) for at in numbers)
    )
    yield
    talker.send(methods.QueueDelete(queue))
    talker.expect(methods.QueueDeleteOk)
    yield
    talker.close()


# ---- basic --------------------------------------------------------------------------------------


bursts(
    "basic.qos", "a new limit each time", lambda at, queue: one(methods.BasicQos(0, at % 999, True))
)
bursts(
    "basic.consume",
    "new consumers, with arguments",
    lambda at, queue: one(
        methods.BasicConsume(queue, f"{at}", no_wait=True, arguments={"x-priority": at})
        if at < CONSUMERS_MAX
        else methods.BasicQos(0, 1)
    ),
)
bursts(
    "basic.cancel",
    "consumed and cancelled",
    lambda at, queue: (
        one(methods.BasicConsume(queue, "c", no_wait=True)) + one(methods.BasicCancel("c", True))
    ),
)
bursts("basic.get", "of an empty queue", lambda at, queue: one(methods.BasicGet(queue)))
bursts("basic.recover-async", "of nothing", lambda at, queue: one(methods.BasicRecoverAsync(True)))


@worst("basic.get", "of a queue whose messages have all expired")
def get_expired(world: World) -> Iterator[None]:
    talker = world.talker()
    dead = world.queue(talker)
    name = world.queue(
        talker, x_message_ttl=3_000, x_dead_letter_exchange="", x_dead_letter_routing_key=dead
    )
    unit = published("", name, b"x")
    talker.socket.sendall(unit * world.sizes.messages)
    world.wait_for(talker)
    yield
    answer: Method = methods.BasicGetOk()
    while not isinstance(answer, methods.BasicGetEmpty):
        answer = talker.call(methods.BasicGet(name, True))
    yield
    talker.call(methods.QueueDelete(dead))
    talker.close()


def settled(name: str, what: str, dead_letters: bool, sent: list[Method]) -> None:
    """One method that settles many deliveries."""

    def made(world: World) -> Iterator[None]:
        talker, other = world.talker(), world.talker()
        arguments: dict[str, object] = {}
        if dead_letters:
            arguments["x_dead_letter_exchange"] = ""
            arguments["x_dead_letter_routing_key"] = dead = world.queue(talker)
        queue = world.queue(talker, False, **arguments)
        count = world.sizes.messages
        if name.startswith("tx."):
            count = min(count, TRANSACTION_PARTS)
        world.fill(talker, queue, count)
        world.hold(other, queue, count)
        yield
        other.send_all(sent)
        world.wait_for(other)
        yield
        talker.call(methods.QueueDelete(queue))
        if dead_letters:
            talker.call(methods.QueueDelete(dead))
        talker.close()
        other.close()

    INPUTS.append((name, what, made))


settled("basic.ack", "of many deliveries", False, [methods.BasicAck(0, True)])
settled("basic.nack", "of many deliveries, to be requeued", False, [methods.BasicNack(0, True)])
settled(
    "basic.nack",
    "of many deliveries, which are dead-lettered",
    True,
    [methods.BasicNack(0, True, False)],
)
settled("basic.recover", "of many deliveries", False, [methods.BasicRecover(True)])
settled("basic.recover-async", "of many deliveries", False, [methods.BasicRecoverAsync(True)])
settled(
    "tx.commit",
    "of many acks",
    False,
    [methods.TxSelect(), methods.BasicAck(0, True), methods.TxCommit()],
)
settled(
    "tx.rollback",
    "of many acks",
    False,
    [methods.TxSelect(), methods.BasicAck(0, True), methods.TxRollback()],
)


@worst("basic.reject", "of each of many deliveries, which are dead-lettered")
def reject(world: World) -> Iterator[None]:
    talker, other = world.talker(), world.talker()
    dead = world.queue(talker)
    queue = world.queue(talker, x_dead_letter_exchange="", x_dead_letter_routing_key=dead)
    world.fill(talker, queue, world.sizes.messages)
    world.hold(other, queue, world.sizes.messages)
    tags = range(1, world.sizes.messages + 1)
    data = b"".join(one(methods.BasicReject(tag, False)) for tag in tags)
    yield
    other.socket.sendall(data)
    world.wait_for(other)
    yield
    talker.call(methods.QueueDelete(dead))
    talker.close()


def publishes(what: str, prepare: Callable[[World, Talker], bytes]) -> None:
    """A burst of one publish, which ``prepare`` makes."""

    def made(world: World) -> Iterator[None]:
        talker = world.talker(CROWD)
        unit = prepare(world, talker)
        data = world.burst(lambda _: unit)
        yield
        with contextlib.suppress(OSError):  # the route may need more steps than are allowed
            talker.socket.sendall(data)
        wait_or_closed(world, talker)

    INPUTS.append(("basic.publish", what, made))


def to_short_queue(world: World, talker: Talker) -> bytes:
    dead = world.queue(talker)
    name = world.queue(
        talker, x_max_length=1, x_dead_letter_exchange="", x_dead_letter_routing_key=dead
    )
    return published("", name, b"x")


def to_headers(world: World, talker: Talker) -> bytes:
    exchange, queue = world.name("headers"), world.queue(talker)
    talker.call(methods.ExchangeDeclare(exchange, "headers"))
    for first in range(0, min(world.sizes.objects // 5, HEADER_BINDINGS_MAX), 50):
        world.pipeline(
            talker,
            (
                methods.QueueBind(
                    queue,
                    exchange,
                    "",
                    True,
                    {"x-match": "any", **{f"h{n}": f"{at}" for n in range(100)}},
                )
                for at in range(first, first + 50)
            ),
        )
    headers = encode_table({f"h{n}": "x" for n in range(100)})
    return published(exchange, "", b"x", HEADERS_FLAG + headers)


def with_wide_headers(world: World, talker: Talker) -> bytes:
    table = encode_table(wide_table(FRAME_MAX - 2000))
    return published("", world.queue(talker), b"x", HEADERS_FLAG + table)


def to_patterns(world: World, talker: Talker) -> bytes:
    exchange, queue = world.name("topic"), world.queue(talker)
    talker.call(methods.ExchangeDeclare(exchange, "topic"))
    world.pipeline(
        talker,
        (
            methods.QueueBind(queue, exchange, f"#{'.*.#' * (at % 60)}.{at}", True)
            for at in range(world.sizes.objects // 10)
        ),
    )
    return published(exchange, ".".join("ab" * 60), b"x")


publishes("to a queue of length 1 that dead-letters", to_short_queue)
publishes("to a headers exchange with many bindings", to_headers)
publishes("with headers of a whole frame", with_wide_headers)
publishes("to a topic exchange with the worst patterns", to_patterns)


@worst("basic.publish", "to many queues, again and again in one read")
def publish_fan(world: World) -> Iterator[None]:
    talker = world.talker(CROWD)
    count = 25 * world.sizes.messages // world.sizes.objects
    data = published("fan", "", b"x") * count
    yield
    talker.socket.sendall(data)
    world.wait_for(talker)
    yield
    talker.close()


@worst("basic.publish", "with many CC keys, each to a topic exchange")
def publish_cc(world: World) -> Iterator[None]:
    talker = world.talker(CROWD)
    exchange, queue = world.name("topic"), world.queue(talker)
    talker.call(methods.ExchangeDeclare(exchange, "topic"))
    world.pipeline(
        talker,
        (methods.QueueBind(queue, exchange, f"#{'.*' * (at % 100)}", True) for at in range(200)),
    )
    keys: list[object] = [".".join("a" * 120) + f".{at}" for at in range(400)]
    headers = encode_table({"CC": keys})
    unit = published(exchange, "a", b"x", HEADERS_FLAG + headers)
    yield
    talker.socket.sendall(unit)
    wait_or_closed(world, talker)


def wait_or_closed(world: World, talker: Talker) -> None:
    """It is done, or was refused."""
    talker.send(methods.BasicQos(0, 0, False))
    while True:
        method = talker.read_method()
        if isinstance(method, (methods.BasicQosOk, methods.ChannelClose, methods.ConnectionClose)):
            talker.close()
            return


@worst("basic.publish", "of the largest message")
def publish_large(world: World) -> Iterator[None]:
    talker = world.talker()
    queue = world.queue(talker)
    size = 128 << 20 if world.sizes.messages > 100_000 else 16 << 20
    header = struct.pack(">HHQ", 60, 0, size) + PLAIN
    frames = one(methods.BasicPublish("", queue))
    frames += struct.pack(">BHI", 2, 1, len(header)) + header + b"\xce"
    body = b"x" * (FRAME_MAX - 8)
    whole, rest = divmod(size, len(body))
    frame = struct.pack(">BHI", 3, 1, len(body)) + body + b"\xce"
    last = struct.pack(">BHI", 3, 1, rest) + body[:rest] + b"\xce" if rest else b""
    yield
    talker.socket.sendall(frames)
    for _ in range(whole):
        talker.socket.sendall(frame)
    talker.socket.sendall(last)
    world.wait_for(talker)
    yield
    talker.call(methods.QueueDelete(queue))
    talker.close()


@worst("basic.publish", "of many that expire at once and are dead-lettered")
def publish_expiring(world: World) -> Iterator[None]:
    talker = world.talker()
    dead = world.queue(talker)
    queue = world.queue(
        talker, x_message_ttl=500, x_dead_letter_exchange="", x_dead_letter_routing_key=dead
    )
    unit = published("", queue, b"x")
    yield
    talker.socket.sendall(unit * world.sizes.messages)
    while True:
        answer = talker.call(methods.QueueDeclare(dead, passive=True))
        assert isinstance(answer, methods.QueueDeclareOk)
        if answer.message_count >= world.sizes.messages:
            break
    yield
    talker.call(methods.QueueDelete(dead))
    talker.close()


@worst("basic.publish", "of many past consumers that hold all they may")
def publish_past_consumers(world: World) -> Iterator[None]:
    talker, other = world.talker(), world.talker()
    queue = world.queue(talker)
    count = world.sizes.objects * 2
    talker.call(methods.BasicQos(0, 1))
    numbers = range(count)
    world.pipeline(talker, (methods.BasicConsume(queue, f"{at}", no_wait=True) for at in numbers))
    unit = published("", queue, b"x")
    other.socket.sendall(unit * count)
    left = count
    while left:
        kind, payload = talker.read_frame()
        left -= kind == 1 and payload[:4] == b"\x00\x3c\x00\x3c"
    free = world.talker()
    free.call(methods.BasicConsume(queue, "free", no_ack=True))
    yield
    other.socket.sendall(unit * 1_000)
    left = 1_000
    while left:
        kind, payload = free.read_frame()
        left -= kind == 1 and payload[:4] == b"\x00\x3c\x00\x3c"
    yield
    free.close()
    other.close()
    talker.close()


# ---- confirms, transactions, sessions -----------------------------------------------------------


bursts("confirm.select", "again", lambda at, queue: one(methods.ConfirmSelect(True)))
bursts(
    "tx.select",
    "and an empty commit",
    lambda at, queue: one(methods.TxSelect()) + one(methods.TxCommit()),
)


def transaction(name: str, sent: Method, answer: type[Method]) -> None:
    def made(world: World) -> Iterator[None]:
        talker = world.talker()
        queue = world.queue(talker)
        talker.call(methods.TxSelect())
        unit = published("", queue, b"x" * 16)
        talker.socket.sendall(unit * min(world.sizes.messages, TRANSACTION_PARTS))
        world.wait_for(talker)
        yield
        talker.send(sent)
        talker.expect(answer)
        yield
        talker.call(methods.QueueDelete(queue))
        talker.close()

    INPUTS.append((name, "of many publishes", made))


transaction("tx.commit", methods.TxCommit(), methods.TxCommitOk)
transaction("tx.rollback", methods.TxRollback(), methods.TxRollbackOk)


@worst("session.resume", "with entries of a whole frame")
def session_resume(world: World) -> Iterator[None]:
    talker = world.talker()
    entries = bytes(FRAME_MAX - 100)
    data = world.burst(lambda _: one(methods.SessionResume(entries)))
    yield
    talker.socket.sendall(data)
    to_the_end(talker)


@worst("session.sync", "as many as a read takes")
def session_sync(world: World) -> Iterator[None]:
    talker = world.talker()
    data = world.burst(lambda _: one(methods.SessionSync()))
    yield
    talker.socket.sendall(data)
    to_the_end(talker)


def of_the_server(name: str, code: int) -> None:
    """A method that only a broker sends, with a frame full of anything."""

    def made(world: World) -> Iterator[None]:
        talker = world.talker()
        payload = struct.pack(">I", code) + b"\x20" * (FRAME_MAX - 12)
        frame = struct.pack(">BHI", 1, 1, len(payload)) + payload + b"\xce"
        yield
        talker.socket.sendall(frame)
        to_the_end(talker)

    INPUTS.append((name, "which only brokers send, with a frame of anything", made))


ANSWERS: Final = frozenset(
    name
    for name in spec.METHOD_NAMES.values()
    if name.endswith("-ok") and name.split(".")[0] not in ("connection", "channel")
)
OF_BROKERS: Final = ANSWERS | {
    "connection.start",
    "connection.secure",
    "connection.tune",
    "connection.open-ok",
    "connection.redirect",
    "connection.blocked",
    "connection.unblocked",
    "connection.update-secret-ok",
    "channel.open-ok",
    "basic.return",
    "basic.deliver",
    "basic.get-empty",
    "confirm.level",
    "session.failover-map",
    "session.move",
    "session.message",
    "session.resumed",
}
"""Methods that clients never send, unless they mean harm."""

for _code, _name in spec.METHOD_NAMES.items():
    if _name in OF_BROKERS:
        of_the_server(_name, _code)
