"""What a connection wants written: pieces of a bounded size, and a writer that is used again."""

from __future__ import annotations

import pytest

from rhizome.broker.connection.outbox import WRITER_BYTES_KEPT_MAX
from rhizome.testing.in_memory_broker import Core, CoreClient, make_core

BODY = b"x" * 1000
MESSAGES = 400


@pytest.fixture
def core() -> Core:
    return make_core()


def written_in_one_turn(core: Core, consumer: CoreClient, batch: bytes) -> list[bytes]:
    """The chunks that the consumer's connection has for its socket after one turn's input."""
    publisher = core.connect()
    chunks: list[bytes] = []
    consumer.flush = lambda: chunks.extend(consumer.connection.outbox.take())  # type: ignore[method-assign]
    publisher.send_bytes(batch)
    return chunks


def consumed(core: Core, channel: int) -> tuple[CoreClient, str]:
    consumer = core.connect()
    queue = consumer.declare("q")
    if channel != 1:
        consumer.open_channel(channel)
    consumer.consume(queue, no_ack=True, channel=channel)
    return consumer, queue


@pytest.mark.parametrize("channel", [1, 2], ids=["the publisher's channel", "another channel"])
def test_the_deliveries_of_a_large_turn_are_cut_into_pieces(core: Core, channel: int) -> None:
    consumer, queue = consumed(core, channel)
    writer = consumer.connection.outbox.writer
    batch = core.connect().published("", queue, BODY) * MESSAGES
    chunks = written_in_one_turn(core, consumer, batch)
    assert b"".join(chunks).count(BODY) == MESSAGES
    assert all(0 < len(chunk) <= WRITER_BYTES_KEPT_MAX for chunk in chunks)
    assert len(chunks) < 2 * MESSAGES * len(BODY) // WRITER_BYTES_KEPT_MAX
    # A writer that has to grow beyond what is kept is thrown away, and grows again in each turn.
    assert consumer.connection.outbox.writer is writer


def test_a_small_turn_is_one_piece(core: Core) -> None:
    consumer, queue = consumed(core, 1)
    batch = core.connect().published("", queue, BODY) * 3
    assert len(written_in_one_turn(core, consumer, batch)) == 1


def test_large_contents_are_not_copied_and_nothing_empty_is_written(core: Core) -> None:
    consumer, queue = consumed(core, 1)
    client = core.connect()
    small, large = client.published("", queue, BODY), client.published("", queue, b"y" * 5000)
    chunks = written_in_one_turn(core, consumer, (small * 60 + large) * 3)
    assert all(chunks)
    assert b"".join(chunks).count(b"y" * 5000) == 3
