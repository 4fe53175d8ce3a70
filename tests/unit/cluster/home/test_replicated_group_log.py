"""The log of a group with standbys, under the queues of a broker core."""

from __future__ import annotations

import pytest

from rhizome.amqp.methods import (
    BasicAck,
    BasicGet,
    Method,
    QueueBind,
    QueueBindOk,
    TxCommit,
    TxCommitOk,
    TxSelect,
    TxSelectOk,
)
from rhizome.amqp.properties import Properties
from rhizome.broker.queue.queue import Queue
from rhizome.cluster.home.replicated_group_log import ReplicatedGroupLog
from rhizome.journal.record_replay import Replay
from rhizome.testing.in_memory_broker import Content, Core, CoreClient, make_core

PERSISTENT = Properties(delivery_mode=2)
GROUP = 7


def give_log(core: Core, *names: str) -> ReplicatedGroupLog:
    log = ReplicatedGroupLog(core.store.journal, GROUP, 3, 101, [(3, 101)], {})
    core.broker.logs[GROUP] = log
    for name in names:
        core.queue(name).use_log(log)
    core.broker.state.vhosts["/"].router.epoch += 1
    return log


def wait_for_standby(log: ReplicatedGroupLog) -> None:
    log.alone = False
    log.shipping = True
    log.update_visible()


def replay(log: ReplicatedGroupLog) -> Replay:
    """What a standby makes of everything that was shipped."""
    found = Replay()
    batch = log.take_batch()
    if batch is not None:
        data = b"".join(batch.parts)
        found.scan(data, 0, 1, 0)
    return found


def live(found: Replay, queue: Queue) -> list[int]:
    replayed = found.queues.get(int(queue.id))
    if replayed is None:
        return []
    return [index for level in replayed.levels.values() for index, _ in level.positions()]


def took(client: CoreClient, kind: type[Method]) -> list[Method]:
    return [event for event in client.take() if isinstance(event, kind)]


def acks(client: CoreClient) -> list[int]:
    return [int(ack.delivery_tag) for ack in took(client, BasicAck) if isinstance(ack, BasicAck)]


@pytest.fixture
def core() -> Core:
    return make_core()


@pytest.fixture
def client(core: Core) -> CoreClient:
    return core.connect()


def test_without_standbys_it_behaves_like_any_log(core: Core, client: CoreClient) -> None:
    client.declare("q", durable=True)
    log = give_log(core, "q")
    client.confirm()
    client.publish("", "q", b"one", PERSISTENT)
    client.publish("", "q", b"two")
    assert acks(client) == [1, 2]
    message = client.get("q")
    assert message is not None
    assert message.body == b"one"
    assert log.committed_disk >= 101


def test_nothing_is_shown_or_confirmed_before_it_is_committed(
    core: Core, client: CoreClient
) -> None:
    client.declare("q", durable=True)
    log = give_log(core, "q")
    wait_for_standby(log)
    client.confirm()
    client.consume("q")
    client.publish("", "q", b"persistent", PERSISTENT)
    client.publish("", "q", b"transient")
    assert not client.deliveries()
    log.set_committed(102, 100)
    core.broker.committed()
    core.settle()
    assert client.bodies() == [b"persistent", b"transient"]
    assert not acks(client), "the first is not on all disks yet"
    log.set_committed(102, 101)
    core.broker.committed()
    core.settle()
    assert acks(client) == [2]


def test_a_pull_waits_for_the_commit(core: Core, client: CoreClient) -> None:
    client.declare("q")
    log = give_log(core, "q")
    wait_for_standby(log)
    client.publish("", "q", b"x")
    client.send(BasicGet("q"))
    assert not client.take()
    log.set_committed(101, 100)
    core.broker.committed()
    core.settle()
    assert [event.body for event in client.take() if isinstance(event, Content)] == [b"x"]


def test_a_message_for_two_logs_waits_for_both(core: Core, client: CoreClient) -> None:
    client.declare("here", durable=True)
    client.declare("copied", durable=True)
    client.call(QueueBind("here", "amq.fanout", ""), QueueBindOk)
    client.call(QueueBind("copied", "amq.fanout", ""), QueueBindOk)
    log = give_log(core, "copied")
    wait_for_standby(log)
    client.confirm()
    client.publish("amq.fanout", "", b"x", PERSISTENT)
    assert not acks(client)
    log.set_committed(101, 101)
    core.broker.committed()
    core.settle()
    assert acks(client) == [1]
    assert client.get("here") is not None
    assert client.get("copied") is not None


def test_a_standby_has_what_the_queue_has(core: Core, client: CoreClient) -> None:
    client.declare("q", durable=True)
    client.declare("transient")
    log = give_log(core, "q", "transient")
    log.shipping = True
    for number in range(6):
        client.publish("", "q", b"%d" % number, PERSISTENT if number % 2 else Properties())
    client.publish("", "transient", b"t")
    for _ in range(2):
        assert client.get("q", no_ack=True) is not None
    found = replay(log)
    assert live(found, core.queue("q")) == [103, 104, 105, 106]
    assert live(found, core.queue("transient")) == [107]


def test_a_transaction_is_one_record_for_the_standbys(core: Core, client: CoreClient) -> None:
    client.declare("q", durable=True)
    log = give_log(core, "q")
    wait_for_standby(log)
    client.call(TxSelect(), TxSelectOk)
    client.publish("", "q", b"a", PERSISTENT)
    client.publish("", "q", b"b", PERSISTENT)
    client.send(TxCommit())
    assert not took(client, TxCommitOk)
    batch = log.take_batch()
    assert batch is not None
    assert len(batch.parts) == 1
    found = Replay()
    found.scan(batch.parts[0], 0, 1, 0)
    assert live(found, core.queue("q")) == [101, 102]
    log.set_committed(batch.last, batch.last)
    core.broker.committed()
    core.settle()
    assert took(client, TxCommitOk)


def test_the_journal_has_what_is_durable(core: Core, client: CoreClient) -> None:
    client.declare("q", durable=True)
    give_log(core, "q")
    client.publish("", "q", b"kept", PERSISTENT)
    client.publish("", "q", b"lost")
    again = core.restarted()
    assert again.store.recovered.groups[GROUP].epoch == 3
    assert again.queue("q").ready == 1


def test_numbers_of_edges_are_part_of_the_records(core: Core, client: CoreClient) -> None:
    client.declare("q", durable=True)
    log = give_log(core, "q")
    log.shipping = True
    log.note_number(0xABC, 4)
    log.note_number(0xDEF, 9)
    log.note_number(0xDEF, 0)
    found = replay(log)
    assert found.groups[GROUP].origins == {0xABC: 4}


def numbered(sequence: int) -> Properties:
    headers: dict[str, object] = {"x-producer": "p", "x-sequence": sequence}
    return Properties(headers=headers, delivery_mode=2)


def test_standbys_know_what_queues_have_accepted() -> None:
    core = make_core()
    client = core.connect()
    queue = client.declare("q", durable=True)
    log = give_log(core, queue)
    wait_for_standby(log)
    for sequence in (1, 2, 2, 4):
        client.publish("", queue, b"", numbered(sequence))
    seen = replay(log).queues[int(core.queue(queue).id)].seen
    assert seen is not None
    assert [n for n in range(1, 6) if seen.has_sequence(b"p", n)] == [1, 2, 4]


def test_a_duplicate_is_not_confirmed_before_the_copies_have_its_original() -> None:
    core = make_core()
    client = core.connect()
    queue = client.declare("q", durable=True)
    log = give_log(core, queue)
    wait_for_standby(log)
    client.confirm()
    for _ in range(2):
        client.publish("", queue, b"", numbered(1))
    assert took(client, BasicAck) == []
    log.set_committed(log.next_index - 1, log.next_index - 1)
    core.broker.committed()
    core.settle()
    assert took(client, BasicAck) != []


def test_a_new_home_confirms_no_duplicate_of_what_its_copies_may_lack() -> None:
    core = make_core()
    client = core.connect()
    queue = client.declare("q", durable=True)
    log = give_log(core, queue)
    client.publish("", queue, b"", numbered(1))
    log = ReplicatedGroupLog(core.store.journal, GROUP, 4, 102, [(3, 101), (4, 102)], {})
    log.alone = False
    log.forget_committed()
    log.restrict(still=True, silent=True)
    core.broker.logs[GROUP] = log
    core.queue(queue).use_log(log)
    core.broker.state.vhosts["/"].router.epoch += 1
    client.confirm()
    client.publish("", queue, b"", numbered(1))
    assert took(client, BasicAck) == []
    log.restrict(still=False, silent=False)
    log.set_committed(101, 101)
    core.broker.committed()
    core.settle()
    assert took(client, BasicAck) != []
