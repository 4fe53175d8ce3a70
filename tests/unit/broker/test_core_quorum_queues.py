"""What quorum queues have beyond others, as RabbitMQ 4.x has it: priorities without being asked."""

from __future__ import annotations

import pytest

from rhizome.amqp.methods import BasicNack
from rhizome.amqp.properties import Properties
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
