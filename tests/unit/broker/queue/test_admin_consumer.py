"""Messages that a person has moved: where a crash finds them."""

from __future__ import annotations

from copy import deepcopy

from rhizome.amqp.properties import Properties
from rhizome.broker.channel.channel import Channel
from rhizome.broker.queue.admin_consumer import AdminConsumer
from rhizome.journal.files import MemoryFiles
from rhizome.testing.in_memory_broker import Core, CoreClient, make_core

PERSISTENT = Properties(delivery_mode=2)


def bodies(core: Core, queue: str) -> list[bytes]:
    client = core.connect()
    found: list[bytes] = []
    while (got := client.get(queue, no_ack=False)) is not None:
        found.append(got.body)
    client.close_socket()
    return found


def begun(core: Core) -> tuple[CoreClient, Channel]:
    client = core.connect()
    for queue in ("a", "b"):
        client.declare(queue, durable=True)
    client.publish("", "a", b"m", PERSISTENT)
    core.settle()
    return client, Channel(client.connection, 2)


def test_a_crash_at_any_byte_leaves_a_moved_message_in_one_of_two_queues() -> None:
    core = make_core()
    _, channel = begun(core)
    before = {number: len(content) for number, content in core.files.contents.items()}
    admin_consumer = AdminConsumer(core.broker, "moves")
    message = admin_consumer.take(core.queue("a"))
    assert message is not None
    assert admin_consumer.move(message, core.queue("b"), channel)
    core.settle()
    assert not admin_consumer.holds()
    [number] = before
    whole = len(core.files.contents[number])
    places = set()
    for size in range(before[number], whole + 1):
        files = copied_files(core)
        files.cut(number, size)
        crashed = Core(files, core.config, core.now_ms, bytes(32))
        found = (bodies(crashed, "a"), bodies(crashed, "b"))
        assert found in (([b"m"], []), ([], [b"m"])), size
        places.add(bool(found[0]))
    assert places == {True, False}


def copied_files(core: Core) -> MemoryFiles:
    files = MemoryFiles()
    files.contents = deepcopy(core.files.contents)
    files.named = dict(core.files.named)
    return files


def test_what_is_held_meanwhile_comes_back_as_redelivered_after_a_crash() -> None:
    core = make_core()
    begun(core)
    admin_consumer = AdminConsumer(core.broker, "moves")
    assert admin_consumer.take(core.queue("a")) is not None
    core.advance(2000)
    got = core.restarted().connect().get("a")
    assert got is not None
    assert (got.body, got.redelivered) == (b"m", True)
