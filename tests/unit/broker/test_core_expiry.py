"""What leaves a queue without being consumed, and where it goes: on a virtual clock."""

from __future__ import annotations

import pytest

from rhizome.amqp.methods import (
    BasicAck,
    BasicNack,
    BasicReject,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueBind,
    QueueBindOk,
)
from rhizome.amqp.properties import Properties
from rhizome.testing.in_memory_broker import Content, Core, CoreClient, make_core


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


def deaths(message: Content | None) -> list[tuple[object, object, object]]:
    assert message is not None
    entries = message.headers["x-death"]
    assert isinstance(entries, list)
    return [(entry["queue"], entry["reason"], entry["count"]) for entry in entries]


# --- time to live


def test_message_expires_when_the_ttl_of_its_queue_is_over(core: Core, client: CoreClient) -> None:
    queue = client.declare("q", x_message_ttl=1000)
    client.publish("", queue, b"old")
    core.advance(900)
    client.publish("", queue, b"young")
    assert core.queue(queue).ready == 2
    core.advance(200)
    assert drained(client, queue) == [b"young"]


def test_message_expires_when_its_own_ttl_is_over(core: Core, client: CoreClient) -> None:
    queue = client.declare("q")
    client.publish("", queue, b"short", Properties(expiration="100"))
    client.publish("", queue, b"long", Properties(expiration="10000"))
    core.advance(200)
    assert drained(client, queue) == [b"long"]


def test_lower_of_both_ttls_counts(core: Core, client: CoreClient) -> None:
    queue = client.declare("q", x_message_ttl=500)
    client.publish("", queue, b"long", Properties(expiration="10000"))
    core.advance(600)
    assert core.queue(queue).ready == 0


def test_delivered_message_does_not_expire(core: Core, client: CoreClient) -> None:
    queue = client.declare("q", x_message_ttl=100)
    client.publish("", queue, b"held")
    held = client.get(queue, no_ack=False)
    assert held is not None
    core.advance(5000)
    assert core.queue(queue).unacked == 1
    client.send(BasicAck(held.tag))
    assert core.queue(queue).unacked == 0


def test_message_requeued_too_late_expires(core: Core, client: CoreClient) -> None:
    queue = client.declare("q", x_message_ttl=100)
    client.publish("", queue, b"late")
    held = client.get(queue, no_ack=False)
    assert held is not None
    core.advance(200)
    client.send(BasicReject(held.tag, True))
    core.advance(50)
    assert drained(client, queue) == []


def test_message_with_ttl_zero_goes_to_a_consumer_that_waits(client: CoreClient) -> None:
    queue = client.declare("q", x_message_ttl=0)
    client.consume(queue, no_ack=True)
    client.publish("", queue, b"now")
    assert client.bodies() == [b"now"]


def test_message_with_ttl_zero_waits_for_nobody(client: CoreClient) -> None:
    queue = client.declare("q", x_message_ttl=0)
    client.publish("", queue, b"now or never")
    assert client.get(queue) is None


def test_unused_queue_expires(core: Core, client: CoreClient) -> None:
    queue = client.declare("q", x_expires=1000)
    core.advance(900)
    assert core.has_queue(queue)
    core.advance(200)
    assert not core.has_queue(queue)


def test_queue_with_a_consumer_does_not_expire(core: Core, client: CoreClient) -> None:
    queue = client.declare("q", x_expires=1000)
    other = core.connect()
    other.consume(queue)
    core.advance(5000)
    other.close_socket()
    core.advance(900)
    assert core.has_queue(queue)
    core.advance(200)
    assert not core.has_queue(queue)


def test_pulling_keeps_a_queue_from_expiring(core: Core, client: CoreClient) -> None:
    queue = client.declare("q", x_expires=1000)
    core.advance(900)
    client.get(queue)
    core.advance(900)
    assert core.has_queue(queue)


# --- length


def test_full_queue_drops_from_its_head(client: CoreClient) -> None:
    queue = client.declare("q", x_max_length=2)
    for body in (b"1", b"2", b"3", b"4"):
        client.publish("", queue, body)
    assert drained(client, queue) == [b"3", b"4"]


def test_unacked_messages_do_not_count_for_the_length(client: CoreClient) -> None:
    queue = client.declare("q", x_max_length=1)
    client.publish("", queue, b"1")
    client.get(queue, no_ack=False)
    client.publish("", queue, b"2")
    assert drained(client, queue) == [b"2"]


def test_what_clients_held_is_trimmed_to_the_length_after_a_restart(
    core: Core, client: CoreClient
) -> None:
    """It is ready again and would count; nobody has to touch the queue for that."""
    dead = client.declare("dead", durable=True)
    queue = client.declare(
        "q",
        durable=True,
        x_max_length=2,
        x_dead_letter_exchange="",
        x_dead_letter_routing_key=dead,
    )
    client.prefetch(2)
    client.consume(queue)
    for body in (b"1", b"2", b"3", b"4"):
        client.publish("", queue, body, Properties(delivery_mode=2))
    assert client.bodies() == [b"1", b"2"]
    again = core.restarted()
    assert again.queue(queue).ready == 2
    after = again.connect()
    assert drained(after, queue) == [b"3", b"4"]
    assert drained(after, dead) == [b"1", b"2"]


def test_length_in_bytes_counts_bodies(client: CoreClient) -> None:
    queue = client.declare("q", x_max_length_bytes=10)
    for body in (b"12345", b"67890", b"abc"):
        client.publish("", queue, body, Properties(content_type="text/plain" * 10))
    assert drained(client, queue) == [b"67890", b"abc"]


def test_full_queue_refuses_if_it_should(client: CoreClient) -> None:
    queue = client.declare("q", x_max_length=1, x_overflow="reject-publish")
    client.confirm()
    client.publish("", queue, b"in")
    assert client.expect(BasicAck).delivery_tag == 1
    client.publish("", queue, b"out")
    assert client.expect(BasicNack).delivery_tag == 2
    assert drained(client, queue) == [b"in"]


def test_refused_message_is_dead_lettered_if_it_should(client: CoreClient) -> None:
    dead = client.declare("dead")
    queue = client.declare(
        "q",
        x_max_length=1,
        x_overflow="reject-publish-dlx",
        x_dead_letter_exchange="",
        x_dead_letter_routing_key=dead,
    )
    client.confirm()
    client.publish("", queue, b"in")
    client.publish("", queue, b"out")
    assert [type(event) for event in client.take()] == [BasicAck, BasicNack]
    letter = client.get(dead)
    assert letter is not None
    assert letter.body == b"out"
    assert deaths(letter) == [("q", "maxlen", 1)]


# --- dead letters


def test_rejected_message_is_dead_lettered_with_its_story(client: CoreClient) -> None:
    dead = client.declare("dead")
    queue = client.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key=dead)
    client.publish("", queue, b"no")
    held = client.get(queue, no_ack=False)
    assert held is not None
    client.send(BasicReject(held.tag, False))
    letter = client.get(dead)
    assert deaths(letter) == [("q", "rejected", 1)]
    assert letter is not None
    assert letter.headers["x-first-death-queue"] == "q"


def test_dead_letters_of_one_turn_keep_their_order(core: Core, client: CoreClient) -> None:
    dead = client.declare("dead")
    queue = client.declare(
        "q", x_message_ttl=10, x_dead_letter_exchange="", x_dead_letter_routing_key=dead
    )
    for number in range(20):
        client.publish("", queue, b"%d" % number)
    core.advance(50)
    assert drained(client, dead) == [b"%d" % number for number in range(20)]


def test_message_dies_through_a_chain_of_queues(core: Core, client: CoreClient) -> None:
    last = client.declare("c")
    client.declare("b", x_message_ttl=20, x_dead_letter_exchange="", x_dead_letter_routing_key="c")
    client.declare("a", x_message_ttl=20, x_dead_letter_exchange="", x_dead_letter_routing_key="b")
    client.publish("", "a", b"wanderer", Properties(expiration="10"))
    core.advance(500)
    letter = client.get(last)
    assert deaths(letter) == [("b", "expired", 1), ("a", "expired", 1)]
    assert letter is not None
    assert letter.properties.expiration is None


def test_message_that_goes_round_by_itself_is_dropped(core: Core, client: CoreClient) -> None:
    client.declare("a", x_message_ttl=20, x_dead_letter_exchange="", x_dead_letter_routing_key="b")
    client.declare("b", x_message_ttl=20, x_dead_letter_exchange="", x_dead_letter_routing_key="a")
    client.publish("", "a", b"round and round")
    core.advance(1000)
    assert (core.queue("a").ready, core.queue("b").ready) == (0, 0)


def test_message_that_is_rejected_may_go_round(client: CoreClient) -> None:
    queue = client.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="q")
    client.publish("", queue, b"again")
    for count in range(1, 6):
        held = client.get(queue, no_ack=False)
        assert held is not None
        client.send(BasicReject(held.tag, False))
        letter = client.get(queue, no_ack=False)
        assert deaths(letter) == [("q", "rejected", count)]
        assert letter is not None
        client.send(BasicNack(letter.tag, False, True))


def test_dead_letter_for_a_missing_exchange_is_dropped(core: Core, client: CoreClient) -> None:
    queue = client.declare("q", x_message_ttl=10, x_dead_letter_exchange="nowhere")
    client.publish("", queue, b"lost")
    core.advance(100)
    assert core.queue(queue).ready == 0


# --- delayed exchanges


def delayed_exchange(client: CoreClient, kind: str = "direct") -> str:
    arguments: dict[str, object] = {"x-delayed-type": kind}
    method = ExchangeDeclare("later", "x-delayed-message", durable=True, arguments=arguments)
    client.call(method, ExchangeDeclareOk)
    return "later"


def bound(client: CoreClient, exchange: str, queue: str, key: str, durable: bool = False) -> str:
    client.declare(queue, durable=durable)
    client.call(QueueBind(queue, exchange, key), QueueBindOk)
    return queue


def test_delayed_message_comes_when_its_time_has_come(core: Core, client: CoreClient) -> None:
    exchange = delayed_exchange(client)
    queue = bound(client, exchange, "q", "k")
    client.publish(exchange, "k", b"later", Properties(headers={"x-delay": 1000}))
    client.publish(exchange, "k", b"sooner", Properties(headers={"x-delay": 500}))
    client.publish(exchange, "k", b"now")
    assert drained(client, queue) == [b"now"]
    core.advance(600)
    assert drained(client, queue) == [b"sooner"]
    core.advance(600)
    assert drained(client, queue) == [b"later"]


def test_delayed_message_goes_where_bindings_lead_when_it_is_due(
    core: Core, client: CoreClient
) -> None:
    exchange = delayed_exchange(client)
    client.publish(exchange, "k", b"x", Properties(headers={"x-delay": 100}))
    queue = bound(client, exchange, "q", "k")
    core.advance(200)
    assert drained(client, queue) == [b"x"]


def test_delayed_message_goes_to_its_copy_keys_too(core: Core, client: CoreClient) -> None:
    exchange = delayed_exchange(client)
    for name in ("to", "cc", "bcc"):
        bound(client, exchange, name, name)
    headers: dict[str, object] = {"x-delay": 100, "CC": ["cc"], "BCC": ["bcc"]}
    client.publish(exchange, "to", b"all", Properties(headers=headers))
    core.advance(200)
    for name in ("to", "cc", "bcc"):
        message = client.get(name)
        assert message is not None, name
        assert "CC" in message.headers
        assert "BCC" not in message.headers


def test_persistent_delayed_message_survives_a_restart(core: Core, client: CoreClient) -> None:
    exchange = delayed_exchange(client)
    queue = bound(client, exchange, "q", "k", durable=True)
    client.publish(exchange, "k", b"kept", Properties(headers={"x-delay": 1000}, delivery_mode=2))
    core.advance(500)
    again = core.restarted()
    client = again.connect()
    assert drained(client, queue) == []
    again.advance(600)
    assert drained(client, queue) == [b"kept"]
