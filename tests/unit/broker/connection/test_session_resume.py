"""A client that was cut off comes back with what it holds (J12)."""

from __future__ import annotations

import struct

import pytest

from rhizome.amqp.methods import (
    BasicAck,
    BasicNack,
    ChannelClose,
    ConnectionClose,
    ConnectionCloseOk,
    QueueDeclare,
    QueueDeclareOk,
    SessionMessage,
    SessionResume,
    SessionResumed,
    SessionResumeOk,
    SessionSync,
    SessionSyncOk,
)
from rhizome.amqp.properties import Properties
from rhizome.broker.access.auth_interface import OpenAuthenticator
from rhizome.broker.connection.session_resume import KEEP_MS, MOVING
from rhizome.testing.in_memory_broker import CAPABILITIES, Content, Core, CoreClient, make_core

PERSISTENT = Properties(delivery_mode=2)
Held = tuple[int, int, int]

HELD, ACKED, REJECTED, REQUEUED = range(4)


@pytest.fixture
def core() -> Core:
    return make_core()


def resuming(session: str = "s1") -> dict[str, object]:
    return {"capabilities": {**CAPABILITIES, "session.resume": True}, "session": session}


def fill(core: Core, count: int, durable: bool = True, **arguments: object) -> str:
    client = core.connect()
    queue = client.declare("q", durable=durable, **arguments)
    for number in range(1, count + 1):
        client.publish("", queue, b"%d" % number, PERSISTENT)
    client.close_socket()
    return queue


def taken(client: CoreClient) -> tuple[list[bytes], list[Held]]:
    """What was delivered, and what the broker said that it is."""
    events = client.take()
    bodies = [event.body for event in events if isinstance(event, Content)]
    told = [event for event in events if isinstance(event, SessionMessage)]
    return bodies, [(int(each.queue_id), int(each.epoch), int(each.index)) for each in told]


def entries(held: list[Held], kind: int = HELD) -> bytes:
    return b"".join(struct.pack(">QIQB", *each, kind) for each in held)


def resume(client: CoreClient, presented: bytes) -> int:
    """Present what is held; the tag of the first."""
    return int(client.call(SessionResume(presented), SessionResumeOk).first_tag)


def ready(core: Core) -> list[bytes]:
    """What anybody else would get now."""
    other = core.connect()
    found = []
    while (message := other.get("q")) is not None:
        found.append(message.body)
    other.close_socket()
    return found


def test_clients_that_can_resume_are_told_what_they_get(core: Core) -> None:
    queue = fill(core, 3)
    client = core.connect(properties=resuming())
    client.prefetch(2)
    client.consume(queue, "c")
    bodies, held = taken(client)
    assert bodies == [b"1", b"2"]
    assert [each[0] for each in held] == [core.queue(queue).id] * 2
    assert held[0][2] < held[1][2]
    assert client.get(queue, no_ack=True) is not None, "nothing is said of what needs no ack"


def test_others_hear_nothing_of_it(core: Core) -> None:
    queue = fill(core, 1)
    client = core.connect()
    client.consume(queue, "c")
    assert taken(client) == ([b"1"], [])


def test_what_was_held_is_held_again(core: Core) -> None:
    queue = fill(core, 4)
    client = core.connect(properties=resuming())
    client.prefetch(3)
    client.consume(queue, "c")
    _, held = taken(client)
    client.close_socket()
    assert ready(core) == [b"4"], "the others are kept for it"
    client = core.connect(properties=resuming())
    first = resume(client, entries(held))
    client.send(SessionResumed(), channel=0)
    assert core.queue(queue).unacked == 3
    client.send(BasicAck(first + 1))
    client.send(BasicNack(first, False, True))
    assert ready(core) == [b"1"]
    client.close_socket()
    core.advance(KEEP_MS)
    assert ready(core) == [b"3"], "what was acked is gone"


def test_what_the_client_does_not_have_goes_to_others(core: Core) -> None:
    queue = fill(core, 3)
    client = core.connect(properties=resuming())
    client.consume(queue, "c")
    _, held = taken(client)
    client.close_socket()
    client = core.connect(properties=resuming())
    resume(client, entries(held[:1]))
    assert ready(core) == []
    client.send(SessionResumed(), channel=0)
    assert ready(core) == [b"2", b"3"]


def test_nobody_comes_back(core: Core) -> None:
    queue = fill(core, 1)
    client = core.connect(properties=resuming())
    client.consume(queue, "c")
    client.close_socket()
    core.advance(KEEP_MS - 100)
    assert ready(core) == []
    core.advance(200)
    message = core.connect().get(queue)
    assert message is not None
    assert message.redelivered


def test_a_client_that_says_goodbye_leaves_everything(core: Core) -> None:
    queue = fill(core, 1)
    client = core.connect(properties=resuming())
    client.consume(queue, "c")
    client.take()
    client.send(ConnectionClose(200, "bye", 0, 0), channel=0)
    assert ready(core) == [b"1"]


def test_a_client_that_moves_comes_back(core: Core) -> None:
    queue = fill(core, 1)
    client = core.connect(properties=resuming())
    client.consume(queue, "c")
    _, held = taken(client)
    client.send(ConnectionClose(MOVING, "moving", 0, 0), channel=0)
    client.expect(ConnectionCloseOk, 0)
    assert ready(core) == []
    client = core.connect(properties=resuming())
    client.send(BasicAck(resume(client, entries(held))))
    core.advance(KEEP_MS + 100)
    assert core.queue(queue).unacked == 0
    assert ready(core) == []


def test_what_was_settled_without_an_answer_is_settled(core: Core) -> None:
    letters = core.connect().declare("letters")
    queue = fill(core, 3, x_dead_letter_exchange="", x_dead_letter_routing_key="letters")
    client = core.connect(properties=resuming())
    client.consume(queue, "c")
    _, held = taken(client)
    client.close_socket()
    client = core.connect(properties=resuming())
    told = entries(held[:1], ACKED) + entries(held[1:2], REJECTED) + entries(held[2:], REQUEUED)
    resume(client, told)
    assert ready(core) == [b"3"]
    assert core.queue(letters).ready == 1
    assert core.queue(queue).unacked == 0


def test_settling_twice_means_nothing_the_second_time(core: Core) -> None:
    queue = fill(core, 2)
    client = core.connect(properties=resuming())
    client.consume(queue, "c")
    _, held = taken(client)
    client.send(BasicAck(1))
    client.close_socket()
    client = core.connect(properties=resuming())
    first = resume(client, entries(held[:1], ACKED) + entries(held))
    client.send(BasicAck(first + 1))
    assert not [event for event in client.take() if isinstance(event, ChannelClose)]
    client.send(BasicAck(first + 2))
    assert core.queue(queue).unacked == 0
    assert ready(core) == []


def test_what_was_held_over_a_restart_is_claimed(core: Core) -> None:
    queue = fill(core, 3)
    client = core.connect(properties=resuming())
    client.prefetch(2)
    client.consume(queue, "c")
    _, held = taken(client)
    again = core.restarted()
    client = again.connect(properties=resuming())
    first = resume(client, entries(held[:1], ACKED) + entries(held[1:]))
    assert ready(again) == [b"3"]
    client.send(BasicAck(first + 1))
    assert again.queue(queue).unacked == 0
    assert ready(again.restarted()) == []


def test_an_index_that_was_lost_and_given_again_is_another_message(core: Core) -> None:
    queue = fill(core, 0)
    publisher = core.connect()
    publisher.publish("", queue, b"transient")
    client = core.connect(properties=resuming())
    client.consume(queue, "c")
    _, held = taken(client)
    again = core.restarted()
    publisher = again.connect()
    publisher.publish("", queue, b"another", PERSISTENT)
    assert int(again.log.next_index) - 1 == held[0][2], "it has the same index"
    client = again.connect(properties=resuming())
    resume(client, entries(held, ACKED))
    assert ready(again) == [b"another"]


def test_one_session_does_not_get_what_another_holds(core: Core) -> None:
    queue = fill(core, 1)
    client = core.connect(properties=resuming("one"))
    client.consume(queue, "c")
    _, held = taken(client)
    client.close_socket()
    thief = core.connect(properties=resuming("two"))
    first = resume(thief, entries(held))
    thief.send(BasicAck(first))
    assert core.queue(queue).unacked == 1, "it is kept for its own client"
    client = core.connect(properties=resuming("one"))
    client.send(BasicAck(resume(client, entries(held))))
    assert core.queue(queue).unacked == 0


@pytest.mark.parametrize(
    ("victim", "attacker"),
    [
        (("team/app", "x"), ("team", "app/x")),
        (("team%2Fapp", "x"), ("team/app", "x")),
        (("team", "x"), ("team/", "x")),
    ],
)
def test_nobody_is_taken_for_another_user_by_the_name_of_a_session(
    core: Core, victim: tuple[str, str], attacker: tuple[str, str]
) -> None:
    queue = fill(core, 1)
    core.broker.authenticator = OpenAuthenticator(victim[0])
    holder = core.connect(properties=resuming(victim[1]))
    holder.consume(queue, "c")
    bodies, held = taken(holder)
    assert bodies == [b"1"]
    core.broker.authenticator = OpenAuthenticator(attacker[0])
    other = core.connect(properties=resuming(attacker[1]))
    resume(other, entries(held, ACKED))
    assert not holder.closed
    assert core.queue(queue).unacked == 1


def test_the_old_connection_is_ended(core: Core) -> None:
    """The client has given it up; the broker has not noticed yet."""
    queue = fill(core, 1)
    old = core.connect(properties=resuming())
    old.consume(queue, "c")
    _, held = taken(old)
    client = core.connect(properties=resuming())
    first = resume(client, entries(held))
    assert [event for event in old.take(0) if isinstance(event, ConnectionClose)]
    client.send(BasicAck(first))
    assert core.queue(queue).unacked == 0
    assert ready(core) == []


def test_connections_of_a_session_are_known_until_they_are_gone(core: Core) -> None:
    """Whoever resumes looks for others of its session, not through all connections."""
    queue = fill(core, 1)
    connected = core.broker.suspended_sessions.connected
    core.connect()
    assert connected == {}
    lost, parting, old = (core.connect(properties=resuming(each)) for each in ("a", "b", "c"))
    assert sorted(connected) == ["guest/a", "guest/b", "guest/c"]
    lost.close_socket()
    parting.send(ConnectionClose(200, "goodbye", 0, 0), channel=0)
    parting.close_socket()
    assert list(connected) == ["guest/c"]
    old.consume(queue, "c")
    _, held = taken(old)
    client = core.connect(properties=resuming("c"))
    assert len(connected["guest/c"]) == 2
    resume(client, entries(held))
    old.close_socket()
    assert list(connected["guest/c"].values()) == [client.connection]


def test_an_auto_delete_queue_waits_for_its_consumer(core: Core) -> None:
    client = core.connect(properties=resuming())
    client.call(QueueDeclare("brief", auto_delete=True), QueueDeclareOk)
    client.publish("", "brief", b"1")
    client.consume("brief", "c")
    client.close_socket()
    core.advance(KEEP_MS - 100)
    assert core.has_queue("brief")
    core.advance(200)
    assert not core.has_queue("brief")


def test_a_sync_is_answered_when_what_was_settled_is_on_disk(core: Core) -> None:
    queue = fill(core, 2)
    client = core.connect(properties=resuming())
    client.consume(queue, "c")
    client.take()
    core.hold_syncs = True
    client.send(BasicAck(1))
    client.send(SessionSync())
    assert not client.take()
    core.sync()
    assert [type(event) for event in client.take()] == [SessionSyncOk]
    client.send(SessionSync())
    assert [type(event) for event in client.take()] == [SessionSyncOk]


def test_who_did_not_ask_for_it_cannot_resume(core: Core) -> None:
    client = core.connect()
    client.send(SessionResume(b""))
    assert client.closed or [e for e in client.take(0) if isinstance(e, ConnectionClose)]


def test_entries_that_are_cut_short_are_refused(core: Core) -> None:
    client = core.connect(properties=resuming())
    client.send(SessionResume(b"123"))
    (close,) = [event for event in client.take(0) if isinstance(event, ConnectionClose)]
    assert close.reply_code == 502
