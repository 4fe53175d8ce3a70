"""Publisher confirms, and transactions."""

from __future__ import annotations

import pytest

from rhizome.amqp import methods as m
from rhizome.amqp.properties import Properties
from tests.conformance.wire_driver import Channel, Content

from .conftest import Connect, Unique


def settled_up_to(channel: Channel, last: int) -> list[m.BasicAck]:
    """All acks until every tag up to `last` is covered, each exactly once."""
    acks: list[m.BasicAck] = []
    open_tags = set(range(1, last + 1))
    while open_tags:
        ack = channel.expect(m.BasicAck)
        acks.append(ack)
        covered = (
            {tag for tag in open_tags if tag <= ack.delivery_tag}
            if ack.multiple
            else {int(ack.delivery_tag)}
        )
        assert covered <= open_tags, f"{ack.delivery_tag} was confirmed before"
        open_tags -= covered
    return acks


# --- confirms


def test_publishes_are_numbered_from_one_on_each_channel(channel: Channel) -> None:
    queue = channel.declare()
    for one in (channel, channel.connection.channel()):
        one.confirm()
        for number in (1, 2, 3):
            one.publish("", queue)
            assert one.expect(m.BasicAck).delivery_tag == number


def test_numbering_begins_with_select(channel: Channel) -> None:
    queue = channel.declare()
    channel.publish("", queue, b"before")
    channel.confirm()
    channel.publish("", queue, b"after")
    assert channel.expect(m.BasicAck).delivery_tag == 1


def test_select_without_wait_has_no_answer(channel: Channel) -> None:
    queue = channel.declare()
    channel.send(m.ConfirmSelect(no_wait=True))
    channel.publish("", queue)
    assert channel.expect(m.BasicAck).delivery_tag == 1


def test_select_twice_is_no_error_and_does_not_restart_the_numbers(channel: Channel) -> None:
    queue = channel.declare()
    channel.confirm()
    channel.publish_confirmed("", queue)
    channel.confirm()
    channel.publish("", queue)
    assert channel.expect(m.BasicAck).delivery_tag == 2


def test_an_unroutable_message_is_confirmed(channel: Channel, unique: Unique) -> None:
    exchange = channel.declare_exchange(unique("nowhere"))
    channel.confirm()
    channel.publish_confirmed(exchange, "nobody")


def test_a_return_comes_before_its_confirm(channel: Channel) -> None:
    channel.confirm()
    for number in (1, 2, 3):
        channel.publish("", "no-such-queue", str(number).encode(), mandatory=True)
        assert channel.content(m.BasicReturn).body == str(number).encode()
        assert channel.expect(m.BasicAck).delivery_tag == number


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("mode", [1, 2])
def test_every_mix_of_durability_is_confirmed(channel: Channel, durable: bool, mode: int) -> None:
    queue = channel.declare(durable=durable)
    channel.confirm()
    for _ in range(20):
        channel.publish("", queue, b"x", Properties(delivery_mode=mode))
    settled_up_to(channel, 20)


def test_a_burst_is_confirmed_completely_and_partly_in_batches(channel: Channel) -> None:
    queue = channel.declare()
    channel.confirm()
    burst = b"".join(channel.publish_frames("", queue, b"x") for _ in range(1000))
    channel.connection.send(burst)
    acks = settled_up_to(channel, 1000)
    assert any(ack.multiple for ack in acks)


def test_a_persistent_message_that_is_consumed_at_once_is_confirmed(channel: Channel) -> None:
    queue = channel.declare(durable=True)
    taker = channel.connection.channel()
    taker.consume(queue, no_ack=True)
    channel.confirm()
    for _ in range(10):
        channel.publish("", queue, b"x", Properties(delivery_mode=2))
    settled_up_to(channel, 10)
    assert len(taker.deliveries(10)) == 10


def test_a_message_for_many_queues_is_confirmed_once(channel: Channel, unique: Unique) -> None:
    exchange = channel.declare_exchange(unique("many"), "fanout")
    for number in range(10):
        channel.bind(channel.declare(durable=bool(number % 2)), exchange)
    channel.confirm()
    channel.publish(exchange, "", b"x", Properties(delivery_mode=2))
    assert channel.expect(m.BasicAck).delivery_tag == 1
    assert channel.is_quiet()


def test_deliveries_and_confirms_number_independently(channel: Channel) -> None:
    queue = channel.declare()
    channel.consume(queue)
    channel.confirm()
    seen: dict[str, list[int]] = {"delivered": [], "confirmed": []}
    for _ in range(3):
        channel.publish("", queue)
        for _ in range(2):
            got = channel.next()
            if isinstance(got, Content):
                seen["delivered"].append(got.tag)
            else:
                seen["confirmed"].append(int(got.delivery_tag))
    assert seen == {"delivered": [1, 2, 3], "confirmed": [1, 2, 3]}


# --- transactions


@pytest.fixture
def tx(channel: Channel) -> Channel:
    channel.call(m.TxSelect(), m.TxSelectOk)
    return channel


def commit(channel: Channel) -> None:
    channel.call(m.TxCommit(), m.TxCommitOk)


def rollback(channel: Channel) -> None:
    channel.call(m.TxRollback(), m.TxRollbackOk)


def test_publishes_appear_on_commit_in_order(tx: Channel, connect: Connect) -> None:
    queue = tx.declare()
    for number in range(5):
        tx.publish("", queue, str(number).encode())
    assert tx.get(queue) is None
    commit(tx)
    assert tx.bodies(queue) == [b"0", b"1", b"2", b"3", b"4"]


def test_publishes_vanish_on_rollback(tx: Channel) -> None:
    queue = tx.declare()
    tx.publish("", queue, b"x")
    rollback(tx)
    commit(tx)
    assert tx.get(queue) is None


def test_publishes_vanish_when_the_channel_closes(tx: Channel) -> None:
    queue = tx.declare()
    tx.publish("", queue, b"x")
    tx.close()
    assert tx.connection.channel().get(queue) is None


def test_acks_take_effect_on_commit(tx: Channel) -> None:
    queue = tx.declare()
    tx.publish("", queue, b"x")
    commit(tx)
    got = tx.get(queue, no_ack=False)
    assert got is not None
    tx.send(m.BasicAck(got.tag))
    commit(tx)
    tx.close()
    assert tx.connection.channel().get(queue) is None


def test_uncommitted_acks_are_undone_when_the_channel_closes(tx: Channel) -> None:
    queue = tx.declare()
    tx.publish("", queue, b"x")
    commit(tx)
    got = tx.get(queue, no_ack=False)
    assert got is not None
    tx.send(m.BasicAck(got.tag))
    tx.close()
    again = tx.connection.channel().get_wait(queue)
    assert (again.body, again.method.redelivered) == (b"x", True)


def test_a_rolled_back_ack_leaves_the_message_unacked(tx: Channel) -> None:
    queue = tx.declare()
    tx.publish("", queue, b"x")
    commit(tx)
    got = tx.get(queue, no_ack=False)
    assert got is not None
    tx.send(m.BasicAck(got.tag))
    rollback(tx)
    assert tx.get(queue) is None  # still held, not redelivered
    tx.send(m.BasicAck(got.tag))
    commit(tx)
    assert tx.get(queue) is None


def test_rejects_are_part_of_the_transaction(tx: Channel) -> None:
    queue = tx.declare()
    tx.publish("", queue, b"x")
    commit(tx)
    got = tx.get(queue, no_ack=False)
    assert got is not None
    tx.send(m.BasicReject(got.tag, True))
    assert tx.get(queue) is None
    commit(tx)
    assert tx.get_wait(queue).method.redelivered


def test_publishes_and_acks_commit_together(tx: Channel) -> None:
    source, sink = tx.declare(), tx.declare()
    tx.publish("", source, b"x")
    commit(tx)
    got = tx.get(source, no_ack=False)
    assert got is not None
    tx.publish("", sink, b"y")
    tx.send(m.BasicAck(got.tag))
    commit(tx)
    assert tx.bodies(sink) == [b"y"]


def test_an_unroutable_mandatory_message_is_returned_at_commit(tx: Channel) -> None:
    tx.publish("", "no-such-queue", b"x", mandatory=True)
    tx.send(m.TxCommit())
    got = [tx.next() for _ in range(2)]
    assert isinstance(got[0], Content)
    assert isinstance(got[0].method, m.BasicReturn)
    assert isinstance(got[1], m.TxCommitOk)


def test_a_missing_exchange_fails_at_once(tx: Channel, unique: Unique) -> None:
    tx.publish(unique("missing"), "k", b"x")
    assert tx.closed().code == 404


def test_select_twice_keeps_the_transaction(tx: Channel) -> None:
    queue = tx.declare()
    tx.publish("", queue, b"x")
    tx.call(m.TxSelect(), m.TxSelectOk)
    commit(tx)
    assert tx.bodies(queue) == [b"x"]


def test_transactions_follow_one_another_without_select(tx: Channel) -> None:
    queue = tx.declare()
    for number in range(10):
        tx.publish("", queue, str(number).encode())
        if number % 2:
            commit(tx)
        else:
            rollback(tx)
    assert tx.bodies(queue) == [b"1", b"3", b"5", b"7", b"9"]


def test_deliveries_are_not_part_of_the_transaction(tx: Channel) -> None:
    queue = tx.declare()
    tx.consume(queue, no_ack=True)
    tx.connection.channel().publish("", queue, b"x")
    assert tx.delivery().body == b"x"


def test_a_large_transaction_commits(tx: Channel) -> None:
    queue = tx.declare(durable=True)
    persistent = Properties(delivery_mode=2)
    body = b"x" * 1000
    tx.connection.send(
        b"".join(tx.publish_frames("", queue, body, persistent) for _ in range(2000))
    )
    assert tx.count(queue) == 0
    commit(tx)
    assert tx.count(queue) == 2000
