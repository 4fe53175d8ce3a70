"""Publishes that have begun and not ended: who may begin one, and what they may take of memory."""

from __future__ import annotations

from rhizome.amqp.frames import frame, method_frame
from rhizome.amqp.methods import (
    BasicGet,
    BasicPublish,
    ChannelClose,
    ConnectionBlocked,
    ConnectionUnblocked,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
    TxSelectOk,
)
from rhizome.amqp.properties import Properties, encode_header
from rhizome.amqp.spec import FRAME_BODY, FRAME_HEADER
from rhizome.broker.access.auth_interface import KIND_APPLICATION, Identity, OpenIdentity
from rhizome.broker.channel.channel import LARGE_CONTENT_BYTES
from rhizome.testing.in_memory_broker import Core, CoreClient, make_core

PIECE = b"x" * 100_000
LARGE = 50_000_000


def begun(queue: str, size: int = LARGE, channel: int = 1) -> bytes:
    """A publish and its header: the body is still to come."""
    method = method_frame(channel, BasicPublish("", queue))
    return method + frame(FRAME_HEADER, channel, encode_header(size, Properties()))


def piece(body: bytes = PIECE, channel: int = 1) -> bytes:
    return frame(FRAME_BODY, channel, body)


def powerless(core: Core, client: CoreClient) -> None:
    """Take every permission from a client."""
    client.connection.identity = Identity("mallory", KIND_APPLICATION, (), core.broker.access_epoch)


def test_who_may_not_publish_is_refused_before_any_content_is_kept() -> None:
    core = make_core()
    client = core.connect()
    client.declare("q")
    powerless(core, client)
    client.send_bytes(begun("q"))
    closed = client.expect(ChannelClose)
    assert (closed.reply_code, closed.class_id, closed.method_id) == (403, 60, 40)
    client.send_bytes(piece())
    assert core.broker.contents.total == 0
    assert client.connection.channels[1].content_parts == []


def test_a_publish_to_no_exchange_is_refused_before_its_content_comes() -> None:
    client = make_core().connect()
    client.send_bytes(method_frame(1, BasicPublish("nowhere", "q")))
    client.send_bytes(frame(FRAME_HEADER, 1, encode_header(LARGE, Properties())) + piece())
    assert client.expect(ChannelClose).reply_code == 404


def test_unfinished_contents_are_counted_and_forgotten() -> None:
    core = make_core()
    client = core.connect()
    client.declare("q")
    client.send_bytes(begun("q", 200_000) + piece())
    counted = client.connection.unfinished_bytes
    assert 100_000 < counted < 101_000
    assert core.broker.contents.total == counted
    client.send_bytes(piece())
    assert core.broker.contents.total == client.connection.unfinished_bytes == 0
    taken = client.get("q")
    assert taken is not None
    assert taken.body == PIECE + PIECE


def test_a_channel_that_closes_gives_its_unfinished_content_up() -> None:
    core = make_core()
    client = core.connect()
    client.declare("q")
    client.send_bytes(begun("q") + piece())
    client.close_socket()
    assert core.broker.contents.total == 0
    assert core.broker.contents.users == {}


def test_an_alarm_stalls_connections_in_the_middle_of_a_content() -> None:
    core = make_core()
    client = core.connect()
    client.declare("q")
    client.send_bytes(begun("q", 300_000) + piece())
    core.broker.block("low on memory")
    core.settle()
    assert not client.connection.wants_input()
    assert client.expect(ConnectionBlocked, 0).reason == "low on memory"
    # What the shell had read by then waits; when the alarm is over all goes on where it was.
    client.send_bytes(piece())
    core.broker.unblock()
    core.settle()
    client.expect(ConnectionUnblocked, 0)
    assert client.connection.wants_input()
    client.send_bytes(piece())
    taken = client.get("q")
    assert taken is not None
    assert len(taken.body) == 300_000


def test_a_content_that_begins_in_an_alarm_is_not_read() -> None:
    core = make_core()
    client = core.connect()
    client.declare("q")
    core.broker.block("low on memory")
    client.send_bytes(begun("q"))
    assert not client.connection.wants_input()
    client.send_bytes(piece())
    assert core.broker.contents.total < 1000


def test_a_small_publish_without_its_content_stalls_in_an_alarm_too() -> None:
    core = make_core()
    client = core.connect()
    client.declare("q")
    core.broker.block("low on memory")
    whole = client.published("", "q", b"hello")
    client.send_bytes(whole[:-4])
    assert not client.connection.wants_input()
    client.send_bytes(whole[-4:])
    core.broker.unblock()
    core.settle()
    taken = client.get("q")
    assert taken is not None
    assert taken.body == b"hello"


def test_consumers_are_read_in_an_alarm() -> None:
    core = make_core()
    publisher, reader = core.connect(), core.connect()
    publisher.declare("q")
    publisher.send_bytes(begun("q") + piece())
    core.broker.block("low on memory")
    core.settle()
    assert reader.connection.wants_input()


def test_a_connection_has_a_limit_of_its_own() -> None:
    core = make_core()
    core.broker.limits.message_bytes_max = 1_000_000
    core.broker.contents.budget = 8_000_000
    client = core.connect()
    client.declare("q")
    for channel in range(2, 8):
        client.open_channel(channel)
        client.send_bytes(begun("q", 900_000, channel))
        for _ in range(8):
            client.send_bytes(piece(channel=channel))
    closed = [number for number in range(2, 8) if client.take(number)]
    assert closed == [6, 7]
    assert client.connection.unfinished_bytes <= core.broker.contents.connection_max()
    # The others go on.
    client.send_bytes(piece(channel=2))
    assert len(client.connection.channels[2].content_parts) == 0


def test_beyond_the_budget_the_content_that_waited_longest_is_refused() -> None:
    core = make_core()
    core.broker.limits.message_bytes_max = 1_000_000
    core.broker.contents.budget = 4_000_000
    idle = [core.connect() for _ in range(8)]
    idle[0].declare("q")
    for client in idle:
        client.send_bytes(begun("q", 900_000) + piece() * 4)
    honest = core.connect()
    honest.send_bytes(begun("q", 1_000_000))
    for _ in range(10):
        honest.send_bytes(piece())
    assert core.broker.contents.total <= core.broker.contents.budget_max()
    refused = [at for at, client in enumerate(idle) if client.take(1)]
    assert refused in ([0], [0, 1])
    taken = honest.get("q")
    assert taken is not None
    assert len(taken.body) == 1_000_000
    assert core.broker.contents.refused == len(refused)


def test_a_user_who_fills_the_budget_and_goes_on_sending_loses_its_own_contents() -> None:
    core = make_core()
    core.broker.limits.message_bytes_max = 1_000_000
    core.broker.contents.budget = 2_000_000
    honest, *greedy = [core.connect() for _ in range(6)]
    for client in greedy:
        client.connection.identity = OpenIdentity("greedy")
    honest.declare("q")
    honest.send_bytes(begun("q", 200_000) + piece())
    # Over its slow link nothing comes now. The others send on and on.
    for client in greedy:
        client.send_bytes(begun("q", 900_000))
    for _ in range(8):
        for client in greedy:
            client.send_bytes(piece())
    assert core.broker.contents.refused > 0
    assert core.broker.contents.total <= core.broker.contents.budget_max()
    honest.send_bytes(piece())
    taken = honest.get("q")
    assert taken is not None
    assert len(taken.body) == 200_000


def test_a_refused_content_says_what_to_do() -> None:
    core = make_core()
    core.broker.limits.message_bytes_max = 1_000_000
    core.broker.contents.budget = 1_000_000
    first, second, third = core.connect(), core.connect(), core.connect()
    first.declare("q")
    for client in (first, second, third):
        client.send_bytes(begun("q", 900_000) + piece() * 8)
    closed = first.expect(ChannelClose)
    assert closed.reply_code == 311
    assert "limits.unfinished_bytes_max" in closed.reply_text
    assert "publish it again" in closed.reply_text


def test_a_largest_message_in_the_smallest_frames_fits_whatever_the_budget_is() -> None:
    core = make_core()
    core.broker.limits.message_bytes_max = 10_000_000
    core.broker.contents.budget = 1
    client = core.connect(frame_max=4096)
    client.declare("q")
    client.publish("", "q", b"x" * 10_000_000)
    taken = client.get("q")
    assert taken is not None
    assert len(taken.body) == 10_000_000


def test_a_body_in_tiny_frames_costs_a_look_per_frame() -> None:
    core = make_core()
    client = core.connect()
    client.declare("q")
    unit = begun("q", 3000) + piece(b"x") * 3000
    # In two reads, so that the unit has to be completed.
    client.send_bytes(unit[:1000])
    assert client.connection.channels[1].content_parts
    assert len(client.connection.tail) < 20
    client.send_bytes(unit[1000:])
    taken = client.get("q")
    assert taken is not None
    assert taken.body == b"x" * 3000


def test_a_client_that_may_resume_leaves_no_unfinished_content_behind() -> None:
    core = make_core()
    capabilities = {"capabilities": {"session.resume": True}, "session": "s1"}
    client = core.connect(properties=capabilities)
    client.declare("q", durable=True)
    client.publish("", "q", b"held")
    client.send(BasicGet("q", False))
    client.send_bytes(begun("q") + piece())
    client.close_socket()
    assert core.broker.contents.total == 0
    assert core.broker.contents.users == {}


# ---- transactions: their contents have ended, and belong to no queue yet


def transactional(core: Core, user: str = "", **properties: object) -> CoreClient:
    client = core.connect(properties=properties) if properties else core.connect()
    if user:
        client.connection.identity = OpenIdentity(user)
    client.declare("q", durable=True)
    client.send(TxSelect())
    client.expect(TxSelectOk)
    return client


def test_contents_of_a_transaction_count_until_it_ends() -> None:
    core = make_core()
    client = transactional(core)
    for end, answer in ((TxCommit(), TxCommitOk), (TxRollback(), TxRollbackOk)):
        client.publish("", "q", PIECE)
        client.send_bytes(begun("q", 200_000) + piece() + piece())
        assert 300_000 < core.broker.contents.total < 310_000
        assert client.connection.unfinished_bytes == core.broker.contents.total
        client.send(end)
        client.expect(answer)
        assert core.broker.contents.total == client.connection.unfinished_bytes == 0
        assert core.broker.contents.users == {}


def test_a_content_that_goes_on_counts_beside_its_transaction() -> None:
    core = make_core()
    client = transactional(core)
    client.publish("", "q", PIECE)
    client.send_bytes(begun("q", 200_000) + piece())
    assert 200_000 < core.broker.contents.total < 210_000
    client.send_bytes(piece())
    assert 300_000 < core.broker.contents.total < 310_000
    client.close_socket()
    assert core.broker.contents.total == 0
    assert core.broker.contents.users == {}


def test_a_transaction_has_the_limit_of_its_connection() -> None:
    core = make_core()
    core.broker.limits.message_bytes_max = 1_000_000
    core.broker.contents.budget = 8_000_000
    client = transactional(core)
    for _ in range(60):
        client.publish("", "q", PIECE)
    closed = client.expect(ChannelClose)
    assert closed.reply_code == 311
    assert "commit more often" in closed.reply_text
    assert core.broker.contents.total == 0
    other = core.connect()
    assert other.get("q") is None, "nothing of it was published"


def test_a_transaction_of_many_small_messages_has_it_too() -> None:
    core = make_core()
    core.broker.limits.message_bytes_max = 1000
    core.broker.contents.budget = 1000
    client = transactional(core)
    for _ in range(10_000):
        client.publish("", "q", b"")
    assert client.expect(ChannelClose).reply_code == 311


def test_transactions_that_fill_the_budget_cost_their_own_user() -> None:
    core = make_core()
    core.broker.limits.message_bytes_max = 1_000_000
    core.broker.contents.budget = 2_000_000
    honest = core.connect()
    honest.declare("q", durable=True)
    honest.send_bytes(begun("q", 200_000) + piece())
    greedy = [transactional(core, "greedy") for _ in range(5)]
    for _ in range(10):
        for client in greedy:
            client.publish("", "q", PIECE)
    assert core.broker.contents.refused > 0
    assert core.broker.contents.total <= core.broker.contents.budget_max()
    honest.send_bytes(piece())
    taken = honest.get("q")
    assert taken is not None
    assert len(taken.body) == 200_000


def test_a_client_that_may_resume_leaves_no_transaction_behind() -> None:
    core = make_core()
    client = transactional(core, capabilities={"session.resume": True}, session="s1")
    client.publish("", "q", PIECE)
    client.close_socket()
    assert core.broker.contents.total == 0
    assert core.broker.contents.users == {}


def test_a_large_content_is_collected_in_one_buffer_so_that_its_end_copies_nothing() -> None:
    """To join all frames at the end would take a broker 100 ms for 128 MiB."""
    core = make_core()
    core.broker.limits.message_bytes_max = 2 * LARGE_CONTENT_BYTES
    client = core.connect()
    client.declare("q")
    size = LARGE_CONTENT_BYTES + 3 * len(PIECE)
    client.send_bytes(begun("q", size))
    channel = client.connection.channels[1]
    for at in range(0, size - 1, len(PIECE)):
        client.send_bytes(piece(PIECE[: size - 1 - at]))
    assert channel.content_parts == []
    assert channel.content_large is not None
    client.send_bytes(piece(b"!"))
    assert channel.content_large is None
    found = client.get("q")
    assert found is not None
    assert found.body == b"x" * (size - 1) + b"!"


def test_a_large_content_that_ends_early_leaves_nothing() -> None:
    core = make_core()
    core.broker.limits.message_bytes_max = 2 * LARGE_CONTENT_BYTES
    client = core.connect()
    client.declare("q")
    client.send_bytes(begun("q") + piece() * (LARGE_CONTENT_BYTES // len(PIECE) + 2))
    channel = client.connection.channels[1]
    assert channel.content_large is not None
    client.send_bytes(method_frame(1, ChannelClose(200, "", 0, 0)))
    assert channel.content_large is None
    assert core.broker.contents.total == 0
