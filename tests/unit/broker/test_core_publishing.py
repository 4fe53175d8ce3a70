"""What a broker core does with what is published: confirms, transactions, returns, contents."""

from __future__ import annotations

import pytest

from rhizome.amqp.frames import (
    body_of,
    content_frames,
    frame,
    header_payload_of,
    method_frame,
)
from rhizome.amqp.methods import (
    BasicAck,
    BasicNack,
    BasicPublish,
    BasicReject,
    BasicReturn,
    ChannelClose,
    ConnectionClose,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueBind,
    QueueBindOk,
    QueueDelete,
    QueueDeleteOk,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
    TxSelectOk,
)
from rhizome.amqp.properties import (
    FLAG_DELIVERY_MODE,
    FLAG_HEADERS,
    FLAG_MESSAGE_ID,
    FLAG_REPLY_TO,
    Properties,
    encode_header,
)
from rhizome.amqp.spec import FRAME_BODY, FRAME_HEADER
from rhizome.testing.in_memory_broker import Content, Core, CoreClient, make_core

PERSISTENT = Properties(delivery_mode=2)


@pytest.fixture
def core() -> Core:
    return make_core()


@pytest.fixture
def client(core: Core) -> CoreClient:
    return core.connect()


def drained(client: CoreClient, queue: str) -> list[bytes]:
    bodies = []
    while (message := client.get(queue)) is not None:
        bodies.append(message.body)
    return bodies


# --- confirms


def test_persistent_message_is_confirmed_only_when_it_is_synced(
    core: Core, client: CoreClient
) -> None:
    queue = client.declare("q", durable=True)
    client.confirm()
    core.hold_syncs = True
    client.publish("", queue, b"safe?", PERSISTENT)
    assert client.take() == []
    core.sync()
    assert client.expect(BasicAck).delivery_tag == 1


def test_transient_message_is_confirmed_without_the_disk(core: Core, client: CoreClient) -> None:
    queue = client.declare("q", durable=True)
    client.confirm()
    core.hold_syncs = True
    client.publish("", queue, b"memory")
    assert client.expect(BasicAck).delivery_tag == 1


def test_persistent_message_for_a_transient_queue_needs_no_disk(
    core: Core, client: CoreClient
) -> None:
    queue = client.declare("q")
    client.confirm()
    core.hold_syncs = True
    client.publish("", queue, b"memory", PERSISTENT)
    assert client.expect(BasicAck).delivery_tag == 1


def test_confirms_come_in_the_order_of_the_publishes(core: Core, client: CoreClient) -> None:
    queue = client.declare("q", durable=True)
    client.confirm()
    core.hold_syncs = True
    client.publish("", queue, b"1", PERSISTENT)
    client.publish("", queue, b"2")
    assert client.take() == []
    core.sync()
    ack = client.expect(BasicAck)
    assert (ack.delivery_tag, ack.multiple) == (2, True)


def test_publishes_of_one_turn_are_confirmed_together(client: CoreClient) -> None:
    queue = client.declare("q")
    client.confirm()
    client.send_bytes(client.published("", queue, b"x") * 300)
    ack = client.expect(BasicAck)
    assert (ack.delivery_tag, ack.multiple) == (300, True)
    assert client.take() == []


def test_one_refused_publish_among_others_is_nacked_alone(client: CoreClient) -> None:
    full = client.declare("full", x_max_length=0, x_overflow="reject-publish")
    queue = client.declare("q")
    client.confirm()
    frames = [client.published("", name, b"x") for name in (queue, full, queue)]
    client.send_bytes(b"".join(frames))
    nack = client.expect(BasicNack)
    assert (nack.delivery_tag, nack.multiple) == (2, False)
    ack = client.expect(BasicAck)
    assert (ack.delivery_tag, ack.multiple) == (3, True)


def test_unroutable_message_is_confirmed(client: CoreClient) -> None:
    client.confirm()
    client.publish("", "nowhere", b"x")
    assert client.expect(BasicAck).delivery_tag == 1


def test_returned_message_is_confirmed_after_its_return(client: CoreClient) -> None:
    client.confirm()
    client.publish("", "nowhere", b"back", Properties(message_id="m"), mandatory=True)
    returned, ack = client.take()
    assert isinstance(returned, Content)
    assert isinstance(returned.method, BasicReturn)
    assert (returned.method.reply_code, returned.method.routing_key) == (312, "nowhere")
    assert (returned.body, returned.properties.message_id) == (b"back", "m")
    assert isinstance(ack, BasicAck)


def test_mandatory_message_that_reaches_a_queue_does_not_return(client: CoreClient) -> None:
    queue = client.declare("q")
    client.publish("", queue, b"x", mandatory=True)
    assert client.take() == []


def test_persistent_message_survives_a_crash_and_a_transient_one_does_not(
    core: Core, client: CoreClient
) -> None:
    queue = client.declare("q", durable=True)
    client.confirm()
    client.publish("", queue, b"kept", PERSISTENT)
    client.publish("", queue, b"lost")
    client.take()
    assert drained(core.restarted().connect(), queue) == [b"kept"]


# --- transactions


def test_transaction_does_nothing_before_its_commit(core: Core, client: CoreClient) -> None:
    queue = client.declare("q")
    client.publish("", queue, b"old")
    held = client.get(queue, no_ack=False)
    assert held is not None
    client.call(TxSelect(), TxSelectOk)
    client.publish("", queue, b"new")
    client.send(BasicAck(held.tag))
    assert (core.queue(queue).ready, core.queue(queue).unacked) == (0, 1)
    client.call(TxCommit(), TxCommitOk)
    assert (core.queue(queue).ready, core.queue(queue).unacked) == (1, 0)


def test_rolled_back_transaction_leaves_everything_as_it_was(
    core: Core, client: CoreClient
) -> None:
    queue = client.declare("q")
    client.publish("", queue, b"old")
    held = client.get(queue, no_ack=False)
    assert held is not None
    client.call(TxSelect(), TxSelectOk)
    client.publish("", queue, b"new")
    client.send(BasicAck(held.tag))
    client.call(TxRollback(), TxRollbackOk)
    assert (core.queue(queue).ready, core.queue(queue).unacked) == (0, 1)
    client.send(BasicAck(held.tag))
    client.call(TxCommit(), TxCommitOk)
    assert core.queue(queue).unacked == 0


def test_commit_is_answered_only_when_it_is_synced(core: Core, client: CoreClient) -> None:
    queue = client.declare("q", durable=True)
    client.call(TxSelect(), TxSelectOk)
    client.publish("", queue, b"x", PERSISTENT)
    core.hold_syncs = True
    client.send(TxCommit())
    assert client.take() == []
    core.sync()
    client.expect(TxCommitOk)


def test_commit_waits_for_the_sync_of_its_own_record(core: Core, client: CoreClient) -> None:
    queue = client.declare("q", durable=True)
    client.call(TxSelect(), TxSelectOk)
    client.publish("", queue, b"x", PERSISTENT)
    core.hold_syncs = True
    core.connect().publish("", queue, b"somebody else's", PERSISTENT)
    client.send(TxCommit())
    core.sync(batches=1)
    assert client.take() == []
    core.sync(batches=1)
    client.expect(TxCommitOk)


def test_transaction_that_was_not_committed_is_gone_with_its_channel(
    core: Core, client: CoreClient
) -> None:
    queue = client.declare("q")
    other = core.connect()
    other.call(TxSelect(), TxSelectOk)
    other.publish("", queue, b"never")
    other.close_socket()
    assert core.queue(queue).ready == 0


def test_committed_transaction_survives_a_crash_whole(core: Core, client: CoreClient) -> None:
    names = [client.declare(name, durable=True) for name in ("a", "b")]
    client.publish("", "a", b"taken", PERSISTENT)
    held = client.get("a", no_ack=False)
    assert held is not None
    client.call(TxSelect(), TxSelectOk)
    for name in names:
        client.publish("", name, name.encode(), PERSISTENT)
    client.send(BasicAck(held.tag))
    client.call(TxCommit(), TxCommitOk)
    again = core.restarted().connect()
    assert [drained(again, name) for name in names] == [[b"a"], [b"b"]]


def test_rejection_in_a_transaction_waits_for_the_commit(client: CoreClient) -> None:
    dead = client.declare("dead")
    queue = client.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key=dead)
    client.publish("", queue, b"no")
    held = client.get(queue, no_ack=False)
    assert held is not None
    client.call(TxSelect(), TxSelectOk)
    client.send(BasicReject(held.tag, False))
    assert client.get(dead) is None
    client.call(TxCommit(), TxCommitOk)
    assert drained(client, dead) == [b"no"]


def test_queue_that_is_deleted_before_the_commit_gets_nothing(
    core: Core, client: CoreClient
) -> None:
    kept, gone = client.declare("kept", durable=True), client.declare("gone", durable=True)
    client.call(TxSelect(), TxSelectOk)
    client.publish("", kept, b"x", PERSISTENT)
    client.publish("", gone, b"x", PERSISTENT, mandatory=True)
    core.connect().call(QueueDelete(gone), QueueDeleteOk)
    client.send(TxCommit())
    returned, answer = client.take()
    assert isinstance(returned, Content)
    assert isinstance(answer, TxCommitOk)
    assert drained(client, kept) == [b"x"]
    assert core.broker.pager.resident_bytes == 0


# --- queues that choose


def test_last_value_queue_keeps_the_newest_of_each_key(client: CoreClient) -> None:
    queue = client.declare("q", x_last_value_key="symbol")
    for symbol, body in (("a", b"a1"), ("b", b"b1"), ("a", b"a2"), ("b", b"b2"), ("a", b"a3")):
        client.publish("", queue, body, Properties(headers={"symbol": symbol}))
    client.publish("", queue, b"no key")
    assert drained(client, queue) == [b"b2", b"a3", b"no key"]


def test_requeued_value_gives_way_to_a_newer_one(client: CoreClient) -> None:
    queue = client.declare("q", x_last_value_key="symbol")
    properties = Properties(headers={"symbol": "a"})
    client.publish("", queue, b"old", properties)
    held = client.get(queue, no_ack=False)
    assert held is not None
    client.publish("", queue, b"new", properties)
    client.send(BasicReject(held.tag, True))
    assert drained(client, queue) == [b"new"]


def test_duplicate_within_the_window_is_confirmed_and_dropped(client: CoreClient) -> None:
    queue = client.declare("q", x_dedup="message-id", x_dedup_window=2)
    client.confirm()
    for message_id in ("1", "1", "2", "3", "1"):
        client.publish("", queue, message_id.encode(), Properties(message_id=message_id))
    tags = [event.delivery_tag for event in client.take() if isinstance(event, BasicAck)]
    assert tags == [1, 2, 3, 4, 5]
    assert drained(client, queue) == [b"1", b"2", b"3", b"1"]


def test_duplicate_after_the_window_is_new(core: Core, client: CoreClient) -> None:
    queue = client.declare("q", x_dedup="message-id", x_dedup_window="1s")
    properties = Properties(message_id="same")
    client.publish("", queue, b"1", properties)
    core.advance(900)
    client.publish("", queue, b"2", properties)
    core.advance(200)
    client.publish("", queue, b"3", properties)
    assert drained(client, queue) == [b"1", b"3"]


def test_refused_message_may_be_published_again(client: CoreClient) -> None:
    queue = client.declare("q", x_dedup="message-id", x_max_length=1, x_overflow="reject-publish")
    client.publish("", queue, b"first", Properties(message_id="1"))
    client.publish("", queue, b"second", Properties(message_id="2"))
    assert drained(client, queue) == [b"first"]
    client.publish("", queue, b"second", Properties(message_id="2"))
    assert drained(client, queue) == [b"second"]


# --- direct replies


def test_reply_goes_straight_to_the_channel_that_asked(core: Core, client: CoreClient) -> None:
    requests = client.declare("requests")
    client.consume("amq.rabbitmq.reply-to", "replies", no_ack=True)
    client.publish("", requests, b"question", Properties(reply_to="amq.rabbitmq.reply-to"))
    server = core.connect()
    question = server.get(requests)
    assert question is not None
    address = question.properties.reply_to
    assert address is not None
    assert address.startswith("amq.rabbitmq.reply-to.")
    server.publish("", address, b"answer", mandatory=True)
    assert client.bodies() == [b"answer"]
    assert server.take() == []


def test_request_keeps_everything_but_its_reply_address(core: Core, client: CoreClient) -> None:
    requests = client.declare("requests")
    client.consume("amq.rabbitmq.reply-to", no_ack=True)
    table = b"\x03oneb\x01\x03twof\x3f\x80\x00\x00\x03BCCA\x00\x00\x00\x00"
    properties = len(table).to_bytes(4, "big") + table + b"\x15amq.rabbitmq.reply-to\x02id"
    flags = FLAG_HEADERS | FLAG_REPLY_TO | FLAG_MESSAGE_ID
    client.send_bytes(with_flags(requests, flags, properties))
    content = core.queue(requests).lane.resident()[0].content
    name = f"amq.rabbitmq.reply-to.{client.connection.channels[1].reply_token}".encode()
    left = table[: -len(b"\x03BCCA\x00\x00\x00\x00")]
    expected = len(left).to_bytes(4, "big") + left + bytes([len(name)]) + name + b"\x02id"
    assert header_payload_of(content)[14:] == expected
    assert body_of(content) == b"x"


def test_reply_for_nobody_returns(core: Core, client: CoreClient) -> None:
    asking = core.connect()
    requests = client.declare("requests")
    asking.consume("amq.rabbitmq.reply-to", no_ack=True)
    asking.publish("", requests, b"question", Properties(reply_to="amq.rabbitmq.reply-to"))
    question = client.get(requests)
    asking.close_socket()
    assert question is not None
    client.publish("", question.properties.reply_to or "", b"late", mandatory=True)
    (returned,) = client.take()
    assert isinstance(returned, Content)
    assert isinstance(returned.method, BasicReturn)


# --- contents


def test_contents_of_channels_may_be_interleaved(client: CoreClient) -> None:
    queue = client.declare("q")
    client.open_channel(2)
    header = encode_header(4, Properties())
    pieces = {
        number: [
            method_frame(number, BasicPublish("", queue)),
            frame(FRAME_HEADER, number, header),
            frame(FRAME_BODY, number, b"%d-" % number),
            frame(FRAME_BODY, number, b"%d." % number),
        ]
        for number in (1, 2)
    }
    mixed = [piece for pair in zip(pieces[1], pieces[2], strict=True) for piece in pair]
    client.send_bytes(b"".join(mixed))
    assert drained(client, queue) == [b"1-1.", b"2-2."]


def test_content_may_be_split_at_every_byte() -> None:
    core = make_core()
    client = core.connect()
    queue = client.declare("q")
    whole = client.published("", queue, b"first", Properties(headers={"a": 1}))
    whole += client.published("", queue, b"second")
    for cut in range(len(whole) + 1):
        client.send_bytes(whole[:cut])
        client.send_bytes(whole[cut:])
        assert drained(client, queue) == [b"first", b"second"], cut


def test_content_may_come_byte_by_byte(client: CoreClient) -> None:
    queue = client.declare("q")
    client.confirm()
    for octet in client.published("", queue, b"slowly", PERSISTENT) * 2:
        client.send_bytes(bytes([octet]))
    assert [type(event) for event in client.take()] == [BasicAck, BasicAck]
    assert drained(client, queue) == [b"slowly", b"slowly"]


@pytest.mark.parametrize("cut", [1, 20, 60, 4096, 4200, 100_000, 200_000])
def test_large_content_may_be_split_anywhere(client: CoreClient, cut: int) -> None:
    queue = client.declare("q")
    body = bytes(range(256)) * 1200
    data = client.published("", queue, body) + client.published("", queue, b"after")
    client.send_bytes(data[:cut])
    client.send_bytes(data[cut:])
    assert drained(client, queue) == [body, b"after"]


def test_content_is_delivered_in_frames_that_fit(core: Core, client: CoreClient) -> None:
    queue = client.declare("q")
    small = core.connect(frame_max=4096)
    small.consume(queue, no_ack=True)
    body = bytes(20_000)
    client.publish("", queue, body)
    assert small.bodies() == [body]


def with_flags(queue: str, flags: int, properties: bytes) -> bytes:
    """The frames of a publish with properties of the test's own making."""
    header = encode_header(1, Properties())[:12] + flags.to_bytes(2, "big") + properties
    return method_frame(1, BasicPublish("", queue)) + content_frames(1, header, b"x", 4096)


@pytest.mark.parametrize(
    "table",
    [
        b"\x01aS\x00\x00\x00\x09short",
        b"\x01a?",
        b"\x09a",
        b"\x01aF\x00\x00\x00\x03\x01a?",
        b"\x01aA\x00\x00\x00\x01?",
    ],
)
@pytest.mark.parametrize("dead_letters", [False, True])
def test_garbled_headers_never_reach_a_queue(
    core: Core, client: CoreClient, table: bytes, dead_letters: bool
) -> None:
    queue = client.declare("q", x_dead_letter_exchange="") if dead_letters else client.declare("q")
    properties = len(table).to_bytes(4, "big") + table
    client.send_bytes(with_flags(queue, FLAG_HEADERS, properties))
    close = client.expect(ConnectionClose, 0)
    assert (close.reply_code, close.class_id, close.method_id) == (502, 60, 40)
    assert core.queue(queue).ready == 0


@pytest.mark.parametrize("more", [0, FLAG_HEADERS])
def test_unknown_delivery_mode_is_refused(core: Core, client: CoreClient, more: int) -> None:
    queue = client.declare("q")
    table = bytes(4) if more else b""
    client.send_bytes(with_flags(queue, FLAG_DELIVERY_MODE | more, table + b"\x07"))
    close = client.expect(ChannelClose)
    assert close.reply_text == "PRECONDITION_FAILED - invalid message: {delivery_mode_unknown,7}"
    assert (close.class_id, close.method_id) == (60, 40)
    assert core.queue(queue).ready == 0


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("message_id", lambda text: Properties(message_id=text)),
        ("correlation_id", lambda text: Properties(correlation_id=text)),
        ("timestamp", lambda text: Properties(timestamp=int(text))),
    ],
)
def test_property_decides_where_a_hashed_message_goes(
    core: Core, client: CoreClient, name: str, make: type
) -> None:
    arguments: dict[str, object] = {"hash-property": name}
    client.call(ExchangeDeclare("h", "x-consistent-hash", arguments=arguments), ExchangeDeclareOk)
    queues = [client.declare(f"q{number}") for number in range(3)]
    for queue in queues:
        client.call(QueueBind(queue, "h", "1"), QueueBindOk)
    for number in range(60):
        for _ in range(2):
            client.publish("h", f"any key {number}", b"%d" % number, make(str(number)))
    found = [drained(client, queue) for queue in queues]
    assert all(found), "every queue has a share"
    for bodies in found:
        assert bodies[::2] == bodies[1::2], "messages with one value stay together"
