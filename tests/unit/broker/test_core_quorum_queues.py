"""Quorum queues as RabbitMQ 4.x has them: priorities, delivery limit, timeouts, turns."""

from __future__ import annotations

import pytest

from rhizome.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicNack,
    ChannelClose,
    QueueDeclare,
    QueueDeclareOk,
)
from rhizome.amqp.properties import Properties
from rhizome.broker.access.usage_limits import RABBITMQ_3_10, RABBITMQ_4_3
from rhizome.broker.metadata.metadata_commands import PutParameter
from rhizome.broker.metadata.new_queue_arguments import DEFAULT_TYPE, DEFAULTS_COMPONENT
from rhizome.testing.in_memory_broker import Core, CoreClient, make_core


@pytest.fixture
def core() -> Core:
    return make_core()


@pytest.fixture
def client(core: Core) -> CoreClient:
    return core.connect()


def quorum_queue(client: CoreClient, **arguments: object) -> str:
    return client.declare("q", durable=True, x_queue_type="quorum", **arguments)


def publish(client: CoreClient, *priorities: int | None) -> None:
    """A message for each priority, which is its body too."""
    client.send_bytes(
        b"".join(
            client.published(
                "", "q", str(each).encode(), Properties(delivery_mode=2, priority=each)
            )
            for each in priorities
        )
    )


def rest(client: CoreClient) -> list[bytes]:
    found: list[bytes] = []
    while (got := client.get("q")) is not None:
        found.append(got.body)
    return found


# --- priorities


def test_a_quorum_queue_has_priorities_without_being_asked(client: CoreClient) -> None:
    quorum_queue(client)
    publish(client, 0, 5, 9, None, 5, 1)
    assert rest(client) == [b"9", b"5", b"5", b"1", b"0", b"None"]


def test_priorities_above_31_are_31(client: CoreClient) -> None:
    quorum_queue(client)
    publish(client, 30, 40, 31, 255)
    assert rest(client) == [b"40", b"31", b"255", b"30"]


def test_fewer_priorities_may_be_asked_for(client: CoreClient) -> None:
    quorum_queue(client, x_max_priority=2)
    publish(client, 1, 9, 2, 3, 0)
    assert rest(client) == [b"9", b"2", b"3", b"1", b"0"]


def test_a_quorum_queue_may_have_no_priorities(client: CoreClient) -> None:
    quorum_queue(client, x_max_priority=0)
    publish(client, 1, 9, 2)
    assert rest(client) == [b"1", b"9", b"2"]


def test_priorities_may_come_late_and_to_a_queue_that_consumers_hold(client: CoreClient) -> None:
    quorum_queue(client)
    publish(client, None, 0, None)
    held = client.get("q", no_ack=False)
    assert held is not None
    publish(client, 3)
    client.send(BasicNack(held.tag, False, True))
    assert rest(client) == [b"3", b"None", b"0", b"None"]


def test_a_classic_queue_has_no_priorities_unless_asked(client: CoreClient) -> None:
    client.declare("q", durable=True)
    publish(client, 0, 5, 9)
    assert rest(client) == [b"0", b"5", b"9"]


def test_priorities_outlast_a_restart() -> None:
    core = make_core()
    client = core.connect()
    quorum_queue(client)
    publish(client, 1, 7, 3, None)
    held = client.get("q", no_ack=False)
    assert held is not None
    assert held.body == b"7"
    client = core.restarted().connect()
    publish(client, 5)
    assert rest(client) == [b"7", b"5", b"3", b"1", b"None"]


# --- the delivery limit


def deliveries_until_dropped(client: CoreClient, most: int = 30) -> int:
    """How often a message is delivered that is given back each time."""
    for count in range(most):
        got = client.get("q", no_ack=False)
        if got is None:
            return count
        client.send(BasicNack(got.tag, False, True))
    return most


@pytest.mark.parametrize(
    ("release", "arguments", "expected"),
    [
        (RABBITMQ_3_10, {}, 30),
        (RABBITMQ_4_3, {}, 21),
        (RABBITMQ_4_3, {"x_delivery_limit": 3}, 4),
        (RABBITMQ_4_3, {"x_delivery_limit": -1}, 30),
        (RABBITMQ_3_10, {"x_delivery_limit": 3}, 4),
    ],
)
def test_the_default_delivery_limit_is_that_of_the_release_to_follow(
    core: Core, release: str, arguments: dict[str, object], expected: int
) -> None:
    core.broker.limits.be_compatible(release)
    client = core.connect()
    quorum_queue(client, **arguments)
    publish(client, None)
    assert deliveries_until_dropped(client) == expected


def test_classic_queues_have_no_default_delivery_limit(core: Core) -> None:
    core.broker.limits.be_compatible(RABBITMQ_4_3)
    client = core.connect()
    client.declare("q", durable=True)
    publish(client, None)
    assert deliveries_until_dropped(client) == 30


@pytest.mark.parametrize("release", [RABBITMQ_3_10, RABBITMQ_4_3])
def test_redeliveries_tell_how_often_they_were_with_a_consumer(core: Core, release: str) -> None:
    core.broker.limits.be_compatible(release)
    client = core.connect()
    quorum_queue(client)
    publish(client, None)
    for count in range(3):
        got = client.get("q", no_ack=False)
        assert got is not None
        told = {"x-delivery-count": count}
        if release == RABBITMQ_4_3:
            told["x-acquired-count"] = count
        assert got.headers == (told if count else {})
        client.send(BasicNack(got.tag, False, True))


# --- consumer timeouts


def times_out(core: Core, client: CoreClient) -> bool:
    """Whether the consumer of a message is cancelled within some seconds; the channel lives."""
    publish(client, None)
    for _ in range(6):
        core.advance(1_000)
    events = client.take()
    assert not any(isinstance(event, ChannelClose) for event in events)
    return any(isinstance(event, BasicCancel) for event in events)


@pytest.mark.parametrize(
    ("release", "queue_type", "declared", "consumed", "expected"),
    [
        (RABBITMQ_3_10, "classic", -1, -1, True),
        (RABBITMQ_3_10, "quorum", -1, -1, True),
        (RABBITMQ_4_3, "classic", -1, -1, False),
        (RABBITMQ_4_3, "quorum", -1, -1, True),
        (RABBITMQ_4_3, "classic", 2_000, -1, True),
        (RABBITMQ_4_3, "quorum", 60_000, -1, False),
        (RABBITMQ_4_3, "quorum", 60_000, 2_000, True),
        (RABBITMQ_4_3, "quorum", 2_000, 60_000, False),
    ],
)
def test_consumers_have_the_timeout_that_is_nearest_to_them(
    core: Core, release: str, queue_type: str, declared: int, consumed: int, expected: bool
) -> None:
    core.broker.limits.consumer_timeout_ms = 2_000
    core.broker.limits.be_compatible(release)
    client = core.connect()
    arguments: dict[str, object] = {} if declared < 0 else {"x_consumer_timeout": declared}
    client.declare("q", durable=True, x_queue_type=queue_type, **arguments)
    own: dict[str, object] = {} if consumed < 0 else {"x-consumer-timeout": consumed}
    client.send(BasicConsume("q", "slow", arguments=own))
    client.pick(BasicConsumeOk)
    assert times_out(core, client) == expected
    back = core.connect().get("q")
    assert (back is not None) == expected


@pytest.mark.parametrize("wrong", [-1, "soon", True])
def test_a_wrong_timeout_of_a_consumer_is_refused(client: CoreClient, wrong: object) -> None:
    quorum_queue(client)
    client.send(BasicConsume("q", "t", arguments={"x-consumer-timeout": wrong}))
    assert "invalid arg 'x-consumer-timeout'" in client.pick(ChannelClose).reply_text


# --- single active consumer


def taken(*clients: CoreClient) -> list[list[bytes]]:
    return [client.bodies() for client in clients]


def test_a_consumer_of_higher_priority_becomes_the_active_one(core: Core) -> None:
    client, low, high, middle = core.connect(), core.connect(), core.connect(), core.connect()
    quorum_queue(client, x_single_active_consumer=True)
    low.consume("q", "low")
    high.consume("q", "high", priority=10)
    middle.consume("q", "middle", priority=5)
    publish(client, 1)
    assert taken(low, high, middle) == [[], [b"1"], []]
    high.call(BasicCancel("high"), BasicCancelOk)
    publish(client, 2)
    assert taken(low, high, middle) == [[], [], [b"2"]]


def test_the_active_consumer_first_settles_what_it_holds(core: Core) -> None:
    client, low, high = core.connect(), core.connect(), core.connect()
    quorum_queue(client, x_single_active_consumer=True)
    low.consume("q", "low")
    publish(client, 1)
    (held,) = low.deliveries()
    high.consume("q", "high", priority=10)
    publish(client, 2)
    assert taken(low, high) == [[], []]
    low.send(BasicAck(held.tag))
    core.settle()
    assert taken(low, high) == [[], [b"2"]]


def test_the_higher_one_may_go_before_its_turn(core: Core) -> None:
    client, low, high = core.connect(), core.connect(), core.connect()
    quorum_queue(client, x_single_active_consumer=True)
    low.consume("q", "low")
    publish(client, 1)
    assert len(low.deliveries()) == 1
    high.consume("q", "high", priority=10)
    publish(client, 2)
    high.close_socket()
    core.settle()
    assert taken(low) == [[b"2"]]


def test_in_classic_queues_the_first_consumer_stays_the_active_one(core: Core) -> None:
    client, low, high = core.connect(), core.connect(), core.connect()
    client.declare("q", durable=True, x_single_active_consumer=True)
    low.consume("q", "low")
    high.consume("q", "high", priority=10)
    publish(client, 1)
    assert taken(low, high) == [[b"1"], []]


# --- the default type


def test_queues_without_a_type_have_that_of_their_vhost(core: Core, client: CoreClient) -> None:
    client.declare("before", durable=True)
    default = PutParameter(DEFAULTS_COMPONENT, "/", DEFAULT_TYPE, "quorum")
    core.broker.cluster.propose(default, None)
    core.advance(1_500)
    for name in ("q", "q", "before"):
        client.declare(name, durable=True)
    client.declare("chosen", durable=True, x_queue_type="classic")
    client.declare("brief")
    client.call(QueueDeclare("mine", durable=True, exclusive=True), QueueDeclareOk)
    kinds = [core.queue(name).options.queue_type for name in ("q", "before", "chosen", "brief")]
    assert kinds == ["quorum", "classic", "classic", "classic"]
    assert core.queue("q").definition.arguments == {"x-queue-type": "quorum"}


# --- dead letters


@pytest.mark.parametrize("release", [RABBITMQ_3_10, RABBITMQ_4_3])
def test_dead_letters_tell_their_last_death_as_the_release_to_follow(
    core: Core, release: str
) -> None:
    core.broker.limits.be_compatible(release)
    client = core.connect()
    client.declare("last", durable=True)
    to_last: dict[str, object] = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "last"}
    client.declare("second", durable=True, x_message_ttl=10, **to_last)
    to_second: dict[str, object] = {**to_last, "x_dead_letter_routing_key": "second"}
    quorum_queue(client, **to_second)
    publish(client, None)
    got = client.get("q", no_ack=False)
    assert got is not None
    client.send(BasicNack(got.tag, False, False))
    core.advance(100)
    letter = client.get("last")
    assert letter is not None
    assert letter.headers["x-first-death-queue"] == "q"
    told = [letter.headers.get(f"x-last-death-{what}") for what in ("queue", "reason", "exchange")]
    assert told == (["second", "expired", ""] if release == RABBITMQ_4_3 else [None] * 3)
