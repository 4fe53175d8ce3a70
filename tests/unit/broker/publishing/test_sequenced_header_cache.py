"""Messages whose headers differ in the sequence alone mean what each would mean by itself (L5)."""

from __future__ import annotations

import pytest

from rhizome.amqp.frames import frame
from rhizome.amqp.methods import (
    BasicAck,
    ChannelClose,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueBind,
    QueueBindOk,
    TxCommit,
    TxCommitOk,
    TxSelect,
    TxSelectOk,
)
from rhizome.amqp.properties import Properties, encode_header
from rhizome.amqp.spec import FRAME_HEADER
from rhizome.broker.access.auth_interface import OpenIdentity
from rhizome.broker.publishing.sequenced_header_cache import NumberedHeader
from rhizome.journal.journal import COPY_BYTES_MAX
from rhizome.testing.in_memory_broker import Core, CoreClient, make_core

FAR = 1 << 40
"""From here on a client sends a sequence in eight bytes, as those do that number a lot."""


@pytest.fixture
def core() -> Core:
    return make_core()


@pytest.fixture
def client(core: Core) -> CoreClient:
    return core.connect()


def numbered(sequence: int, producer: str = "p", **more: object) -> Properties:
    headers = {"x-producer": producer, "x-sequence": FAR + sequence}
    return Properties(headers=headers, **{"delivery_mode": 2, **more})  # type: ignore[arg-type]


def send(client: CoreClient, queue: str, *sequences: int) -> None:
    for sequence in sequences:
        client.publish("", queue, b"%d" % sequence, numbered(sequence))


def drained(client: CoreClient, queue: str) -> list[bytes]:
    client.take()
    bodies = []
    while (message := client.get(queue)) is not None:
        bodies.append(message.body)
    return bodies


def is_known(client: CoreClient) -> bool:
    """Whether the next message like the last one is known by its header."""
    return client.connection.channels[1].numbered is not None


def test_each_sequence_is_taken_once(core: Core, client: CoreClient) -> None:
    client.declare("q", durable=True)
    client.confirm()
    send(client, "q", 1, 2, 2, 1, 3)
    assert is_known(client)
    assert [int(each.delivery_tag) for each in client.take() if isinstance(each, BasicAck)][-1] == 5
    assert drained(client, "q") == [b"1", b"2", b"3"]
    again = core.restarted().connect()
    send(again, "q", 3, 2, 4)
    assert drained(again, "q") == [b"4"], "their records have their identities"


def test_a_duplicate_is_confirmed_with_its_original_and_not_before(
    core: Core, client: CoreClient
) -> None:
    client.declare("q", durable=True)
    client.confirm()
    core.hold_syncs = True
    send(client, "q", 1, 2, 2)
    assert not [each for each in client.take() if isinstance(each, BasicAck)]
    core.sync()
    tags = [int(each.delivery_tag) for each in client.take() if isinstance(each, BasicAck)]
    assert tags[-1] == 3


def test_bodies_of_any_size_are_recorded_with_their_identity(
    core: Core, client: CoreClient
) -> None:
    client.declare("q", durable=True)
    sizes = (0, 1, COPY_BYTES_MAX, 3 * COPY_BYTES_MAX, 300_000)
    for sequence, size in enumerate(sizes):
        client.publish("", "q", b"x" * size, numbered(sequence))
    restarted = core.restarted()
    again = restarted.connect()
    for sequence, size in enumerate(sizes):
        again.publish("", "q", b"y" * size, numbered(sequence))
    assert drained(again, "q") == [b"x" * size for size in sizes]


def test_every_queue_of_a_fanout_takes_it_once(client: CoreClient) -> None:
    client.call(ExchangeDeclare(exchange="all", type="fanout"), ExchangeDeclareOk)
    for name, durable in (("first", True), ("second", False)):
        client.declare(name, durable=durable)
        client.call(QueueBind(name, "all", ""), QueueBindOk)
    for sequence in (1, 2, 2):
        client.publish("all", "", b"%d" % sequence, numbered(sequence))
    assert is_known(client)
    assert drained(client, "first") == drained(client, "second") == [b"1", b"2"]


def test_transactions_hold_them_back(core: Core, client: CoreClient) -> None:
    client.declare("q", durable=True)
    send(client, "q", 1)
    client.call(TxSelect(), TxSelectOk)
    send(client, "q", 2)
    assert drained(core.connect(), "q") == [b"1"]
    client.call(TxCommit(), TxCommitOk)
    assert drained(core.connect(), "q") == [b"2"]


def test_what_a_later_message_asks_for_counts(core: Core, client: CoreClient) -> None:
    client.declare("q", durable=True)
    client.declare("copies")
    send(client, "q", 1)
    client.publish("", "q", b"transient", numbered(2, delivery_mode=1))
    client.publish("", "q", b"urgent", numbered(3, priority=1))
    client.publish("", "q", b"other", numbered(1, producer="o"))
    client.publish("", "q", b"longer", numbered(1, producer="longer"))
    for sequence in (4, 5, 5):
        copied = numbered(sequence)
        assert copied.headers is not None
        copied.headers["CC"] = ["copies"]
        client.publish("", "q", b"copied", copied)
    assert drained(client, "copies") == [b"copied"] * 2
    bodies = drained(core.restarted().connect(), "q")
    assert bodies == [b"1", b"urgent", b"other", b"longer", b"copied", b"copied"]


def test_a_sequence_below_zero_closes_the_channel(client: CoreClient) -> None:
    client.declare("q")
    send(client, "q", 1)
    client.publish("", "q", b"", numbered(-(1 << 60)))
    closed = [event for event in client.take() if isinstance(event, ChannelClose)]
    assert [int(close.reply_code) for close in closed] == [406]


def test_the_producer_is_that_of_the_user_of_the_moment(client: CoreClient) -> None:
    client.declare("q")
    for user in ("first", "second"):
        client.connection.identity = OpenIdentity(user)
        send(client, "q", 1)
    assert drained(client, "q") == [b"1", b"1"]


def test_any_other_byte_around_the_sequence_is_read_anew() -> None:
    header = encode_header(3, numbered(5))
    content = frame(FRAME_HEADER, 1, header)
    at = content.index(b"x-sequencel") + len(b"x-sequencel")
    known = NumberedHeader(content, at, True, b"owner", b"ownerp")
    found = known.identity_of(content, b"owner")
    assert found is not None
    assert (found.producer, int(found.sequence)) == (b"ownerp", FAR + 5)
    assert known.identity_of(content, b"another") is None
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 0x40
        # Kind, channel, class, weight and the size of the body are the connection's to read.
        is_free = place < 3 or 7 <= place < 19 or at < place < at + 8
        if place == at:
            is_free = True
        assert (known.identity_of(bytes(changed), b"owner") is not None) == is_free, place
