"""Delayed retries: what consumers give back comes again later, and later each time."""

from __future__ import annotations

import pytest

from rhizome.amqp.methods import (
    BasicAck,
    BasicNack,
    BasicReject,
    ChannelClose,
    QueueDeclare,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
)
from rhizome.amqp.properties import Properties
from rhizome.broker.metadata.declare_and_consume_arguments import (
    RETRY_DELAY_MS_MAX,
    QueueArguments,
    check_queue_arguments,
)
from rhizome.testing.in_memory_broker import Content, Core, CoreClient, make_core


@pytest.fixture
def core() -> Core:
    return make_core()


@pytest.fixture
def client(core: Core) -> CoreClient:
    return core.connect()


def retrying_queue(client: CoreClient, kind: str = "quorum", **arguments: object) -> str:
    given: dict[str, object] = {"x_delayed_retry_type": "all", "x_delayed_retry_min": 1_000}
    return client.declare("q", durable=True, x_queue_type=kind, **{**given, **arguments})


def publish(client: CoreClient, *bodies: bytes) -> None:
    persistent = Properties(delivery_mode=2)
    client.send_bytes(b"".join([client.published("", "q", each, persistent) for each in bodies]))


def get(client: CoreClient) -> Content:
    got = client.get("q", no_ack=False)
    assert got is not None
    return got


# --- how long


def options(**arguments: object) -> QueueArguments:
    given = {name.replace("_", "-"): value for name, value in arguments.items()}
    given["x-queue-type"] = "quorum"
    return check_queue_arguments("/", "q", given, True, False, False)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"x_delayed_retry_max": 2_500}, [1_000, 2_000, 2_500, 2_500]),
        ({}, [1_000, 1_000, 1_000, 1_000]),
        ({"x_delayed_retry_max": 100}, [100, 100, 100, 100]),
        ({"x_delayed_retry_max": 0}, [0, 0, 0, 0]),
        ({"x_delayed_retry_multiplier": 3}, [1_000, 3_000, 9_000, 27_000]),
        ({"x_delayed_retry_multiplier": 1}, [1_000, 1_000, 1_000, 1_000]),
        (
            {"x_delayed_retry_multiplier": 3, "x_delayed_retry_max": 5_000},
            [1_000, 3_000, 5_000, 5_000],
        ),
        (
            {"x_delayed_retry_multiplier": (1 << 63) - 1},
            [1_000, RETRY_DELAY_MS_MAX, RETRY_DELAY_MS_MAX, RETRY_DELAY_MS_MAX],
        ),
    ],
)
def test_delays_grow_as_asked(arguments: dict[str, object], expected: list[int]) -> None:
    found = options(x_delayed_retry_type="all", x_delayed_retry_min=1_000, **arguments)
    assert [int(found.retry_delay_ms(count)) for count in (1, 2, 3, 4)] == expected


def test_delays_never_overflow() -> None:
    found = options(
        x_delayed_retry_type="all", x_delayed_retry_min=1 << 62, x_delayed_retry_max=1 << 62
    )
    assert found.retry_delay_ms(1 << 62) == RETRY_DELAY_MS_MAX


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, False),
        ({"x_delayed_retry_type": "all"}, False),
        ({"x_delayed_retry_min": 5}, False),
        ({"x_delayed_retry_min": 5, "x_delayed_retry_multiplier": 2}, True),
        ({"x_delayed_retry_type": "disabled", "x_delayed_retry_min": 5}, False),
        ({"x_delayed_retry_type": "failed", "x_delayed_retry_min": 5}, True),
        ({"x_delayed_retry_type": "returned", "x_delayed_retry_min": 5}, True),
        ({"x_delayed_retry_type": "nonsense", "x_delayed_retry_min": 5}, False),
    ],
)
def test_retries_are_delayed_if_asked(arguments: dict[str, object], expected: bool) -> None:
    assert options(**arguments).delays_retries() == expected


def test_policies_delay_retries_too() -> None:
    policy: dict[str, object] = {
        "delayed-retry-type": "all",
        "delayed-retry-min": 7,
        "delayed-retry-max": 20,
    }
    merged = options(x_delayed_retry_min=5).merged(policy)
    assert merged.delays_retries()
    assert [int(merged.retry_delay_ms(count)) for count in (1, 2, 5)] == [5, 10, 20]


# --- what happens


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_what_is_given_back_comes_after_its_delay(
    core: Core, client: CoreClient, kind: str
) -> None:
    retrying_queue(client, kind, x_delayed_retry_max=10_000)
    publish(client, b"a", b"b")
    client.send(BasicReject(get(client).tag, requeue=True))
    assert get(client).body == b"b"
    core.advance(900)
    assert client.get("q") is None
    core.advance(200)
    again = get(client)
    assert (again.body, again.redelivered) == (b"a", True)
    client.send(BasicNack(again.tag, False, True))
    core.advance(1_500)
    assert client.get("q") is None
    core.advance(600)
    assert get(client).body == b"a"


def test_consumers_get_it_when_it_is_due(core: Core, client: CoreClient) -> None:
    retrying_queue(client)
    client.consume("q", "c")
    publish(client, b"a")
    (first,) = client.deliveries()
    client.send(BasicNack(first.tag, False, True))
    core.advance(900)
    assert client.deliveries() == []
    core.advance(200)
    (second,) = client.deliveries()
    assert second.headers["x-delivery-count"] == 1
    client.send(BasicAck(second.tag))
    core.advance(1_500)
    assert client.deliveries() == []
    assert core.queue("q").unacked == 0


def test_a_channel_that_closes_gives_back_with_a_delay(core: Core, client: CoreClient) -> None:
    retrying_queue(client)
    other = core.connect()
    publish(client, b"a")
    get(other)
    other.close_socket()
    core.advance(500)
    assert client.get("q") is None
    core.advance(700)
    assert get(client).body == b"a"


def test_the_delivery_limit_ends_retries(core: Core, client: CoreClient) -> None:
    client.declare("dead", durable=True)
    retrying_queue(
        client, x_delivery_limit=1, x_dead_letter_exchange="", x_dead_letter_routing_key="dead"
    )
    publish(client, b"a")
    client.send(BasicReject(get(client).tag, requeue=True))
    core.advance(1_100)
    client.send(BasicReject(get(client).tag, requeue=True))
    core.advance(100)
    letter = client.get("dead")
    assert letter is not None
    assert letter.body == b"a"
    assert core.queue("q").held == 0


def test_a_purge_takes_what_waits(core: Core, client: CoreClient) -> None:
    retrying_queue(client)
    publish(client, b"a", b"b")
    client.send(BasicReject(get(client).tag, requeue=True))
    core.settle()
    assert client.call(QueuePurge("q"), QueuePurgeOk).message_count == 2
    core.advance(1_500)
    assert client.get("q") is None
    assert core.queue("q").unacked == 0


def test_a_queue_may_be_deleted_while_messages_wait(core: Core, client: CoreClient) -> None:
    retrying_queue(client)
    publish(client, b"a")
    client.send(BasicReject(get(client).tag, requeue=True))
    core.settle()
    client.call(QueueDelete("q"), QueueDeleteOk)
    retrying_queue(client)
    core.advance(1_500)
    assert client.get("q") is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"x-delayed-retry-type": "sometimes"},
        {"x-delayed-retry-type": 5},
        {"x-delayed-retry-min": "soon"},
        {"x-delayed-retry-min": -1},
        {"x-delayed-retry-max": True},
        {"x-delayed-retry-multiplier": "2"},
        {"x-consumer-disconnected-timeout": -1},
        {"x-consumer-disconnected-timeout": "a"},
        {"x-delayed-retry-min": 5, "x-queue-type": "stream"},
    ],
)
def test_wrong_arguments_are_refused(client: CoreClient, wrong: dict[str, object]) -> None:
    client.send(QueueDeclare("q", durable=True, arguments={"x-queue-type": "quorum", **wrong}))
    close = client.pick(ChannelClose)
    assert int(close.reply_code) == 406
    assert f"invalid arg '{next(iter(wrong))}'" in close.reply_text


# --- one broker


def test_a_restart_makes_it_wait_again() -> None:
    core = make_core()
    client = core.connect()
    retrying_queue(client)
    publish(client, b"a", b"b")
    client.send(BasicReject(get(client).tag, requeue=True))
    again = core.restarted()
    client = again.connect()
    assert get(client).body == b"b"
    assert client.get("q") is None
    again.advance(900)
    assert client.get("q") is None
    again.advance(200)
    assert get(client).body == b"a"


def test_what_waits_is_bounded() -> None:
    core = make_core()
    core.broker.limits.retries_held_max = 2
    client = core.connect()
    retrying_queue(client)
    client.prefetch(1)
    client.consume("q", "c")
    publish(client, b"0", b"1", b"2", b"3", b"4")
    for _ in range(3):
        (held,) = client.deliveries()
        client.send(BasicNack(held.tag, False, True))
    assert client.deliveries() == []
    assert (core.queue("q").held, core.queue("q").ready) == (3, 2)
    core.advance(1_100)
    assert len(client.deliveries()) == 1
    assert core.queue("q").held == 0


def test_what_is_pulled_and_given_back_is_bounded_too() -> None:
    core = make_core()
    core.broker.limits.retries_held_max = 2
    client = core.connect()
    retrying_queue(client)
    publish(client, *[b"%d" % number for number in range(8)])
    for _ in range(20):
        client.send(BasicNack(get(client).tag, False, True))
    assert (core.queue("q").held, core.queue("q").ready) == (5, 3)
    core.advance(1_100)
    assert [get(client).body for _ in range(8)] == [b"%d" % number for number in range(8)]
