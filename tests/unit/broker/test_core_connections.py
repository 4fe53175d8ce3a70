"""Connections and channels of a broker core: life and death, time, alarms, backpressure."""

from __future__ import annotations

import gc

import pytest

from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicGetEmpty,
    BasicNack,
    BasicPublish,
    BasicRecoverAsync,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConfirmSelectOk,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionUnblocked,
    ExchangeBind,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeUnbind,
    ExchangeUnbindOk,
    Method,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueueUnbind,
    QueueUnbindOk,
    TxSelectOk,
)
from rhizome.amqp.properties import Properties
from rhizome.broker.channel.consume_methods import (
    CONSUMER_ARGUMENTS_BYTES_MAX,
    CONSUMERS_BYTES_MAX,
)
from rhizome.broker.channel.topology_methods import QueueDeclared
from rhizome.broker.metadata.metadata_changes import Outcome
from rhizome.broker.periodic_sweep import CLOSE_OK_TIMEOUT_MS
from rhizome.broker.queue.publisher_flow_control import CONGESTED_BYTES
from rhizome.broker.queue.queue import Queue
from rhizome.testing.in_memory_broker import Core, CoreClient, make_core

PERSISTENT = Properties(delivery_mode=2)


@pytest.fixture
def core() -> Core:
    return make_core()


@pytest.fixture
def client(core: Core) -> CoreClient:
    return core.connect()


# --- heartbeats


def test_idle_connection_gets_heartbeats(core: Core) -> None:
    client = core.connect(heartbeat=10)
    core.advance(4000)
    assert client.heartbeats == 0
    core.advance(8000)
    assert client.heartbeats == 2


def test_silent_client_is_dropped_after_two_intervals(core: Core) -> None:
    client = core.connect(heartbeat=10)
    core.advance(19_000)
    assert len(core.broker.connections) == 1
    core.advance(3000)
    assert client.closed
    assert core.broker.connections == {}


def test_heartbeats_of_the_client_keep_it_alive(core: Core) -> None:
    client = core.connect(heartbeat=10)
    for _ in range(10):
        core.advance(9000)
        client.send_bytes(b"\x08\x00\x00\x00\x00\x00\x00\xce")
    assert not client.closed


def test_connection_without_heartbeats_may_be_silent(core: Core, client: CoreClient) -> None:
    core.advance(3_600_000)
    assert not client.closed
    assert client.heartbeats == 0


def test_messages_of_a_dead_client_go_to_others(core: Core, client: CoreClient) -> None:
    dead = core.connect(heartbeat=1)
    queue = client.declare("q")
    dead.consume(queue)
    client.publish("", queue, b"x")
    client.consume(queue)
    assert client.bodies() == []
    core.advance(5000)
    assert client.bodies() == [b"x"]


# --- consumers that don't acknowledge


def test_consumer_timeout_cancels_only_that_consumer(core: Core, client: CoreClient) -> None:
    slow = client.declare("slow", x_consumer_timeout=60_000)
    fine = client.declare("fine")
    client.consume(slow, "sleeper")
    client.consume(fine, "worker")
    client.publish("", slow, b"x")
    assert client.bodies() == [b"x"]
    core.advance(50_000)
    assert client.take() == []
    core.advance(30_000)
    assert client.expect(BasicCancel).consumer_tag == "sleeper"
    client.publish("", fine, b"still here")
    assert client.bodies() == [b"still here"]
    redelivered = client.get(slow)
    assert redelivered is not None
    assert redelivered.redelivered


def test_consumer_that_acknowledges_in_time_is_left_alone(core: Core, client: CoreClient) -> None:
    queue = client.declare("q", x_consumer_timeout=60_000)
    client.prefetch(1)
    client.consume(queue)
    client.send_bytes(client.published("", queue, b"x") * 10)
    for _ in range(10):
        (delivery,) = client.deliveries()
        core.advance(40_000)
        client.send(BasicAck(delivery.tag))
    assert client.take() == []


def test_longer_timeout_on_the_same_channel_counts_for_itself(
    core: Core, client: CoreClient
) -> None:
    for name, timeout_ms in (("short", 60_000), ("long", 300_000)):
        client.declare(name, x_consumer_timeout=timeout_ms)
        client.prefetch(1)
        client.consume(name, name)
    client.publish("", "long", b"x")
    for _ in range(6):
        core.advance(40_000)
    assert client.bodies() == [b"x"]
    assert client.take() == []
    core.advance(40_000)
    core.advance(40_000)
    assert client.expect(BasicCancel).consumer_tag == "long"


def test_late_ack_of_a_consumer_that_timed_out_is_no_error(core: Core, client: CoreClient) -> None:
    queue = client.declare("q", x_consumer_timeout=60_000)
    client.consume(queue)
    client.publish("", queue, b"x")
    (delivery,) = client.deliveries()
    core.advance(80_000)
    client.expect(BasicCancel)
    client.send(BasicAck(delivery.tag))
    assert client.take() == []
    client.send(BasicAck(delivery.tag))
    assert client.expect(ChannelClose).reply_code == 406


def test_pulled_message_is_taken_back_after_the_timeout(core: Core, client: CoreClient) -> None:
    queue = client.declare("q", x_consumer_timeout=60_000)
    client.publish("", queue, b"x")
    assert client.get(queue, no_ack=False) is not None
    core.advance(80_000)
    assert (core.queue(queue).ready, core.queue(queue).unacked) == (1, 0)


def test_cancelled_consumer_times_out_too(core: Core, client: CoreClient) -> None:
    queue = client.declare("q")
    tag = client.consume(queue)
    client.publish("", queue, b"x")
    assert client.bodies() == [b"x"]
    client.call(BasicCancel(tag), BasicCancelOk)
    core.advance(core.broker.limits.consumer_timeout_ms)
    core.advance(core.broker.limits.consumer_timeout_ms)
    assert (core.queue(queue).ready, core.queue(queue).unacked) == (1, 0)
    assert client.take() == []


def test_a_cancelled_consumer_with_a_timeout_of_its_own_times_out_too(
    core: Core, client: CoreClient
) -> None:
    queue = client.declare("q")
    arguments: dict[str, object] = {"x-consumer-timeout": 60_000}
    client.call(BasicConsume(queue, "c", arguments=arguments), BasicConsumeOk)
    client.publish("", queue, b"x")
    assert client.bodies() == [b"x"]
    client.call(BasicCancel("c"), BasicCancelOk)
    core.advance(core.broker.limits.consumer_timeout_ms)
    core.advance(core.broker.limits.consumer_timeout_ms)
    assert (core.queue(queue).ready, core.queue(queue).unacked) == (1, 0)


# --- queues that go with somebody


def test_exclusive_queue_goes_with_its_connection(core: Core, client: CoreClient) -> None:
    client.call(QueueDeclare("mine", exclusive=True), QueueDeclareOk)
    other = core.connect()
    other.send(QueueDeclare("mine", passive=True))
    assert other.expect(ChannelClose).reply_code == 405
    client.close_socket()
    assert not core.has_queue("mine")


def test_exclusive_queue_stays_when_only_its_channel_goes(core: Core, client: CoreClient) -> None:
    client.call(QueueDeclare("mine", exclusive=True), QueueDeclareOk)
    client.call(ChannelClose(200, "", 0, 0), ChannelCloseOk)
    assert core.has_queue("mine")


def test_auto_deleted_queue_goes_with_its_last_consumer(core: Core, client: CoreClient) -> None:
    client.call(QueueDeclare("q", auto_delete=True), QueueDeclareOk)
    assert core.has_queue("q")
    first = client.consume("q")
    second = client.consume("q")
    client.call(BasicCancel(first), BasicCancelOk)
    assert core.has_queue("q")
    client.call(BasicCancel(second), BasicCancelOk)
    assert not core.has_queue("q")


def test_auto_deleted_exchange_goes_with_its_last_binding(core: Core, client: CoreClient) -> None:
    client.call(ExchangeDeclare("e", "fanout", auto_delete=True), ExchangeDeclareOk)
    queue = client.declare("q")
    client.call(QueueBind(queue, "e"), QueueBindOk)
    client.call(QueueUnbind(queue, "e"), QueueUnbindOk)
    assert "e" not in core.broker.state.vhosts["/"].router.exchanges


@pytest.mark.parametrize("durable", [False, True])
def test_delete_ok_comes_before_the_cancellation(client: CoreClient, durable: bool) -> None:
    queue = client.declare("q", durable=durable)
    client.consume(queue, "mine")
    client.send(QueueDelete(queue))
    client.expect(QueueDeleteOk)
    assert client.expect(BasicCancel).consumer_tag == "mine"


def test_consumer_is_told_even_if_the_delete_is_not_answered(client: CoreClient) -> None:
    queue = client.declare("q")
    client.consume(queue, "mine")
    client.send(QueueDelete(queue, no_wait=True))
    assert client.expect(BasicCancel).consumer_tag == "mine"
    assert client.take() == []


# --- removing what isn't there


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        (QueueUnbind("none", "amq.direct", "k"), QueueUnbindOk),
        (QueueUnbind("none", "nowhere", "k"), QueueUnbindOk),
        (QueueUnbind("q", "nowhere", "k"), QueueUnbindOk),
        (QueueUnbind("q", "amq.direct", "k"), QueueUnbindOk),
        (ExchangeUnbind("amq.direct", "amq.topic", "k"), ExchangeUnbindOk),
        (ExchangeUnbind("nowhere", "amq.topic", "k"), ExchangeUnbindOk),
        (ExchangeUnbind("amq.topic", "nowhere", "k"), ExchangeUnbindOk),
        (QueueDelete("none"), QueueDeleteOk),
    ],
)
def test_removing_what_is_not_there_succeeds(
    client: CoreClient, method: Method, answer: type[Method]
) -> None:
    client.declare("q")
    client.call(method, answer)


def test_binding_of_a_locked_queue_is_not_removed(core: Core, client: CoreClient) -> None:
    client.call(QueueDeclare("mine", exclusive=True), QueueDeclareOk)
    client.call(QueueBind("mine", "amq.direct", "k"), QueueBindOk)
    other = core.connect()
    other.call(QueueUnbind("mine", "amq.direct", "another key"), QueueUnbindOk)
    other.send(QueueUnbind("mine", "amq.direct", "k"))
    close = other.expect(ChannelClose)
    assert (close.reply_code, close.class_id, close.method_id) == (405, 50, 50)
    client.publish("amq.direct", "k", b"x")
    assert client.get("mine") is not None


def test_binding_names_the_missing_end(client: CoreClient) -> None:
    client.send(ExchangeBind("amq.direct", "nowhere", "k"))
    assert (
        client.expect(ChannelClose).reply_text == "NOT_FOUND - no exchange 'nowhere' in vhost '/'"
    )


def test_quorum_queue_needs_a_name_of_its_own(client: CoreClient) -> None:
    client.send(QueueDeclare("", durable=True, arguments={"x-queue-type": "quorum"}))
    assert client.expect(ChannelClose).reply_text == (
        "PRECONDITION_FAILED - Cannot declare a server-named queue for type rabbit_quorum_queue"
    )


# --- what only brokers say


@pytest.mark.parametrize(
    "method",
    [
        BasicGetEmpty(),
        BasicConsumeOk("t"),
        QueueDeclareOk("q", 1, 1),
        ExchangeDeclareOk(),
        TxSelectOk(),
        ConfirmSelectOk(),
        ChannelOpenOk(),
        ConnectionOpen("/"),
    ],
    ids=lambda method: str(method.name()),
)
def test_method_that_only_brokers_send_is_refused(client: CoreClient, method: Method) -> None:
    client.send(method)
    close = client.expect(ConnectionClose, 0)
    assert (close.reply_code, close.reply_text) == (503, "COMMAND_INVALID - unimplemented method")
    assert (close.class_id << 16 | close.method_id) == method.code()


def test_unknown_delivery_tag_is_told_unsigned(client: CoreClient) -> None:
    client.send(BasicAck(-1))
    assert client.expect(ChannelClose).reply_text == (
        "PRECONDITION_FAILED - unknown delivery tag 18446744073709551615"
    )


def test_recovery_without_requeue_names_its_own_method(client: CoreClient) -> None:
    client.send(BasicRecoverAsync(False))
    close = client.expect(ConnectionClose, 0)
    assert (close.reply_code, close.class_id, close.method_id) == (540, 60, 100)


@pytest.mark.timeout(10)
@pytest.mark.parametrize("method", [BasicAck(1), BasicPublish("", "q"), QueueDeclare("q")])
def test_method_on_a_channel_that_is_not_open_ends_the_connection(
    client: CoreClient, method: Method
) -> None:
    close = method_frame(0, ConnectionClose(200, "bye", 0, 0))
    client.send_bytes(method_frame(9, method) * 3 + close)
    fault = client.expect(ConnectionClose, 0)
    assert (fault.reply_code, fault.reply_text) == (504, "CHANNEL_ERROR - expected 'channel.open'")
    assert (fault.class_id << 16 | fault.method_id) == method.code()
    client.expect(ConnectionCloseOk, 0)


def test_error_on_one_channel_leaves_the_others_alone(client: CoreClient) -> None:
    queue = client.declare("q")
    client.open_channel(2)
    client.send_bytes(
        method_frame(2, BasicNack(77)) + client.published("", queue, b"on channel one")
    )
    assert client.expect(ChannelClose, 2).reply_code == 406
    message = client.get(queue)
    assert message is not None
    client.send(ChannelCloseOk(), channel=2)
    client.open_channel(2)


def test_everything_on_a_failed_channel_is_ignored_until_its_close_is_answered(
    core: Core, client: CoreClient
) -> None:
    queue = client.declare("q")
    client.send_bytes(method_frame(1, BasicAck(77)) + client.published("", queue, b"too late"))
    client.expect(ChannelClose)
    assert core.queue(queue).ready == 0
    client.send(ChannelCloseOk())
    client.open_channel(1)
    assert client.take() == []


def test_polite_close_is_answered_and_ends_the_connection(core: Core, client: CoreClient) -> None:
    client.send(ConnectionClose(200, "bye", 0, 0), channel=0)
    client.expect(ConnectionCloseOk, 0)
    assert not client.closed  # the client closes the socket when it has read close-ok
    client.send(ConnectionClose(200, "bye again", 0, 0), channel=0)
    client.expect(ConnectionCloseOk, 0)
    core.advance(CLOSE_OK_TIMEOUT_MS + 1000)
    assert client.closed
    assert core.broker.connections == {}


def test_channel_number_can_be_used_again(client: CoreClient) -> None:
    for _ in range(3):
        client.call(ChannelClose(200, "", 0, 0), ChannelCloseOk)
        client.call(ChannelOpen(), ChannelOpenOk)


# --- waiting


def test_declare_is_answered_only_when_it_is_synced(core: Core, client: CoreClient) -> None:
    core.hold_syncs = True
    client.send(QueueDeclare("q", durable=True))
    assert client.take() == []
    core.sync()
    assert client.expect(QueueDeclareOk).queue == "q"


def test_what_follows_a_waiting_declare_keeps_its_order(core: Core, client: CoreClient) -> None:
    core.hold_syncs = True
    frames = method_frame(1, QueueDeclare("q", durable=True))
    for number in range(3):
        frames += client.published("", "q", b"%d" % number)
    client.send_bytes(frames[:-5])
    client.send_bytes(frames[-5:])
    client.send_bytes(client.published("", "q", b"last") + method_frame(1, BasicGet("q", True)))
    assert client.take() == []
    core.sync()
    client.expect(QueueDeclareOk)
    (first,) = client.take()
    assert getattr(first, "body", None) == b"0"
    assert core.queue("q").ready == 3


@pytest.mark.parametrize("cut", range(1, 130, 7))
def test_bytes_that_come_while_a_connection_waits_are_kept(cut: int) -> None:
    core = make_core()
    client = core.connect()
    core.hold_syncs = True
    data = method_frame(1, QueueDeclare("q", durable=True))
    data += client.published("", "q", b"one") + client.published("", "q", b"two")
    client.send_bytes(data[:cut])
    client.send_bytes(data[cut:])
    core.hold_syncs = False
    core.sync()
    client.expect(QueueDeclareOk)
    client.consume("q", no_ack=True)
    assert client.bodies() == [b"one", b"two"]


def test_waiting_connection_does_not_hold_up_others(core: Core, client: CoreClient) -> None:
    other = core.connect()
    queue = other.declare("quick")
    core.hold_syncs = True
    client.send(QueueDeclare("slow", durable=True))
    other.publish("", queue, b"x")
    assert other.get(queue) is not None


# --- alarms


def test_alarm_blocks_publishers_until_it_is_over(core: Core, client: CoreClient) -> None:
    queue = client.declare("q")
    core.broker.block("low on memory")
    core.settle()
    assert client.take(0) == []
    client.publish("", queue, b"the one that shows it")
    assert client.expect(ConnectionBlocked, 0).reason == "low on memory"
    assert not client.connection.wants_input()
    client.publish("", queue, b"held back")
    assert core.queue(queue).ready == 1
    core.broker.unblock()
    core.settle()
    client.expect(ConnectionUnblocked, 0)
    assert core.queue(queue).ready == 2
    assert client.connection.wants_input()


def test_alarm_leaves_consumers_alone(core: Core, client: CoreClient) -> None:
    queue = client.declare("q")
    client.publish("", queue, b"before")
    consumer = core.connect()
    core.broker.block("low on disk")
    consumer.consume(queue)
    (delivery,) = consumer.deliveries()
    consumer.send(BasicAck(delivery.tag))
    assert core.queue(queue).unacked == 0
    assert consumer.take(0) == []


def test_new_publisher_is_blocked_while_the_alarm_lasts(core: Core, client: CoreClient) -> None:
    queue = client.declare("q")
    core.broker.block("low on disk")
    late = core.connect()
    late.publish("", queue, b"x")
    assert late.expect(ConnectionBlocked, 0).reason == "low on disk"


def test_congested_queue_pauses_its_publisher_while_its_consumer_is_busy(core: Core) -> None:
    client, consumer = core.connect(), core.connect()
    queue = client.declare("q")
    consumer.consume(queue, no_ack=True)
    consumer.stop_reading()
    piece = client.published("", queue, bytes(64 * 1024))
    pieces = CONGESTED_BYTES // (64 * 1024) + 2
    client.send_bytes(piece * pieces)
    client.send_bytes(piece)
    assert core.queue(queue).flow_control.congested
    assert not client.connection.wants_input()
    consumer.go_on_reading()
    core.advance(50)
    assert client.connection.wants_input()
    assert len(consumer.bodies()) == pieces + 1


def test_consumer_that_has_stopped_reading_holds_nobody_up(core: Core) -> None:
    client, consumer = core.connect(), core.connect()
    queue = client.declare("q")
    consumer.consume(queue, no_ack=True)
    consumer.stop_reading()
    core.advance(1000)
    piece = client.published("", queue, bytes(64 * 1024))
    for _ in range(2 * CONGESTED_BYTES // (64 * 1024)):
        client.send_bytes(piece)
    assert client.connection.wants_input()


# --- memory


def test_backlog_beyond_the_budget_comes_back_from_disk_in_order() -> None:
    core = make_core(resident_budget_bytes=64 * 1024)
    client = core.connect()
    durable = client.declare("durable", durable=True)
    transient = client.declare("transient")
    bodies = [b"%06d" % number + bytes(4000) for number in range(200)]
    for body in bodies:
        client.publish("", durable, body, PERSISTENT)
        client.publish("", transient, body)
    assert core.broker.pager.resident_bytes < 400 * 1024
    for queue in (durable, transient):
        client.consume(queue, no_ack=True)
        assert client.bodies() == bodies
    assert core.broker.pager.resident_bytes == 0


def test_a_queue_that_is_deleted_before_its_declaration_is_answered_was_declared(
    core: Core, client: CoreClient
) -> None:
    """In a cluster an answer waits until everybody knows (R10), and others may be quicker."""
    channel = client.connection.channels[1]
    QueueDeclared(channel, "gone", QueueDeclare("gone")).resolved(Outcome(changed=True))
    core.settle()
    answer = client.pick(QueueDeclareOk)
    assert (answer.queue, answer.message_count, answer.consumer_count) == ("gone", 0, 0)


def test_private_queues_are_freed_without_a_collection(core: Core) -> None:
    """A full collection practically never happens: what is in a cycle stays for ever."""

    def queues() -> int:
        return sum(isinstance(each, Queue) for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = queues()
        client = core.connect()
        for _ in range(20):
            name = client.call(QueueDeclare("", exclusive=True), QueueDeclareOk).queue
            client.consume(name)
            client.take()
        assert queues() == before + 20
        client.close_socket()
        core.settle()
        del client
        assert queues() <= before + 1, "a turn remembers what it did last"
    finally:
        gc.enable()


def test_arguments_of_consumers_have_a_maximal_size(core: Core) -> None:
    client = core.connect()
    client.declare("q")
    large: dict[str, object] = {"x": "y" * CONSUMER_ARGUMENTS_BYTES_MAX}
    client.send(BasicConsume("q", "c", arguments=large))
    assert "the arguments of a consumer have 16" in client.expect(ChannelClose).reply_text


def test_arguments_of_all_consumers_of_a_connection_have_a_maximal_size(core: Core) -> None:
    client = core.connect()
    client.declare("q")
    arguments: dict[str, object] = {"x": "y" * (CONSUMER_ARGUMENTS_BYTES_MAX - 100)}
    count = CONSUMERS_BYTES_MAX // CONSUMER_ARGUMENTS_BYTES_MAX + 20
    for _ in range(2):  # those that are gone don't count
        for number in range(count // 2):
            client.send(BasicConsume("q", f"c{number}", no_wait=True, arguments=arguments))
        for number in range(count // 2):
            client.send(BasicCancel(f"c{number}", no_wait=True))
    assert not client.take()
    for number in range(count):
        client.send(BasicConsume("q", f"c{number}", no_wait=True, arguments=arguments))
    assert "of this connection's consumers" in client.expect(ChannelClose).reply_text
