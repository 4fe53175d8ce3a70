"""x-recent-history: what is bound to the exchange gets its last messages."""

from __future__ import annotations

import pytest

from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import (
    BasicReturn,
    ChannelClose,
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    QueueBind,
    QueueBindOk,
)
from rhizome.amqp.properties import Properties
from rhizome.broker.publishing.recent_history import HISTORY_BYTES_MAX
from rhizome.broker.queue.queue import Queue
from rhizome.broker.routing.recent_history_exchange import history_name
from rhizome.testing.in_memory_broker import Content, Core, CoreClient, make_core

PERSISTENT = Properties(delivery_mode=2)


@pytest.fixture
def core() -> Core:
    return make_core()


def declare(client: CoreClient, name: str = "recent", **arguments: object) -> None:
    given = {word.replace("_", "-"): value for word, value in arguments.items()}
    method = ExchangeDeclare(name, "x-recent-history", durable=True, arguments=given)
    client.call(method, ExchangeDeclareOk)


def bind(client: CoreClient, queue: str) -> None:
    client.call(QueueBind(queue, "recent", ""), QueueBindOk)


def publish(client: CoreClient, *numbers: int, **options: object) -> None:
    for number in numbers:
        properties = Properties(delivery_mode=2, headers=dict(options) or None)
        client.publish("recent", f"key-{number}", b"%d" % number, properties)


def taken(client: CoreClient, queue: str) -> list[int]:
    found = []
    while (message := client.get(queue)) is not None:
        found.append(int(message.body))
    return found


def test_a_queue_gets_the_last_messages_when_it_is_bound(core: Core) -> None:
    client = core.connect()
    declare(client)
    publish(client, *range(30))
    client.declare("late")
    bind(client, "late")
    publish(client, 30)
    assert taken(client, "late") == [*range(10, 30), 30]


def test_a_second_binding_of_the_same_kind_brings_nothing_again(core: Core) -> None:
    client = core.connect()
    declare(client, x_recent_history_length=2)
    publish(client, 1, 2, 3)
    client.declare("q")
    bind(client, "q")
    bind(client, "q")
    assert taken(client, "q") == [2, 3]


def test_messages_keep_their_routing_keys_and_properties(core: Core) -> None:
    client = core.connect()
    declare(client)
    client.publish("recent", "k", b"m", Properties(message_id="m1", headers={"a": 1}))
    client.declare("q")
    bind(client, "q")
    found = client.get("q")
    assert found is not None
    assert (found.method.exchange, found.method.routing_key) == ("recent", "k")  # type: ignore[attr-defined]
    assert (found.properties.message_id, found.headers) == ("m1", {"a": 1})


def test_a_message_that_asks_for_it_is_not_kept(core: Core) -> None:
    client = core.connect()
    declare(client)
    client.declare("early")
    bind(client, "early")
    publish(client, 1)
    publish(client, 2, **{"x-recent-history-no-store": True})
    publish(client, 3, **{"x-recent-history-no-store": False})
    client.declare("late")
    bind(client, "late")
    assert taken(client, "early") == [1, 2, 3]
    assert taken(client, "late") == [1, 3]


def test_an_exchange_that_is_bound_routes_them_on(core: Core) -> None:
    client = core.connect()
    declare(client)
    publish(client, 1, 2)
    client.call(ExchangeDeclare("next", "direct"), ExchangeDeclareOk)
    client.declare("q")
    client.call(QueueBind("q", "next", "key-2"), QueueBindOk)
    client.call(ExchangeBind("next", "recent", ""), ExchangeBindOk)
    assert taken(client, "q") == [2]


def test_what_is_only_kept_counts_as_unroutable(core: Core) -> None:
    client = core.connect()
    declare(client)
    client.publish("recent", "k", b"m", mandatory=True)
    found = [each for each in client.take() if isinstance(each, Content)]
    assert [type(each.method) for each in found] == [BasicReturn]
    client.declare("q")
    bind(client, "q")
    assert client.get("q") is not None


def test_the_history_survives_a_crash_and_does_not_come_twice(core: Core) -> None:
    client = core.connect()
    declare(client, x_recent_history_length=3)
    client.declare("early", durable=True)
    bind(client, "early")
    publish(client, *range(5))
    assert taken(client, "early") == [*range(5)]
    again = core.restarted()
    client = again.connect()
    client.declare("late")
    bind(client, "late")
    assert taken(client, "late") == [2, 3, 4]
    history = again.broker.state.vhosts["/"].destinations[history_name("recent")]
    assert isinstance(history, Queue)
    assert history.ready == 3


def test_the_history_goes_with_its_exchange(core: Core) -> None:
    client = core.connect()
    declare(client)
    publish(client, 1)
    client.call(ExchangeDelete("recent"), ExchangeDeleteOk)
    core.settle()
    assert history_name("recent") not in core.broker.state.vhosts["/"].destinations
    declare(client)
    client.declare("q")
    bind(client, "q")
    assert taken(client, "q") == []


@pytest.mark.parametrize("length", [0, -1, "20", True, 1001])
def test_a_length_that_is_none_is_refused(core: Core, length: object) -> None:
    client = core.connect()
    arguments = {"x-recent-history-length": length}
    client.send(ExchangeDeclare("recent", "x-recent-history", arguments=arguments))
    close = client.pick(ChannelClose)
    assert close.reply_code == 406
    assert "'x-recent-history-length' must be" in close.reply_text


def test_the_longest_name_of_an_exchange_has_a_history_too(core: Core) -> None:
    name = "x" * 255
    client = core.connect()
    declare(client, name)
    assert len(history_name(name)) <= 255
    assert history_name(name) in core.broker.state.vhosts["/"].destinations
    assert history_name(name) != history_name("x" * 254)


LARGE = 100_000


def test_a_binding_gets_the_newest_up_to_a_limit_of_bytes_with_headers(core: Core) -> None:
    """A maximum length counts bodies: a history of headers alone had no limit of bytes."""
    client = core.connect()
    declare(client, x_recent_history_length=1_000)
    count = HISTORY_BYTES_MAX // LARGE + 20
    for number in range(count):
        headers: dict[str, object] = {"large": "x" * LARGE}
        client.publish("recent", "k", b"%d" % number, Properties(headers=headers))
    client.declare("late")
    bind(client, "late")
    found = taken(client, "late")
    assert found == list(range(count - len(found), count))
    assert HISTORY_BYTES_MAX - 2 * LARGE < len(found) * LARGE <= HISTORY_BYTES_MAX


def test_bindings_that_bring_much_have_turns_of_their_own(core: Core) -> None:
    client = core.connect()
    declare(client, x_recent_history_length=1_000)
    headers: dict[str, object] = {"large": "x" * LARGE}
    for _ in range(HISTORY_BYTES_MAX // LARGE):
        client.publish("recent", "k", b"", Properties(headers=headers))
    queues = [client.declare(f"late-{number}") for number in range(5)]
    core.one_turn()
    client.connection.receive(
        b"".join(method_frame(1, QueueBind(queue, "recent", "")) for queue in queues)
    )
    assert [core.queue(queue).ready > 0 for queue in queues] == [True] + [False] * 4
    core.settle()
    assert all(core.queue(queue).ready > 0 for queue in queues)


def test_headers_are_decoded_only_for_exchanges_that_look_at_them(core: Core) -> None:
    """Decoding thousands of headers for each binding held everybody up for a second."""
    client = core.connect()
    declare(client, x_recent_history_length=100)
    many: dict[str, object] = {f"{number:04}": True for number in range(10_000)}
    for number in range(100):
        client.publish("recent", "k", b"%d" % number, Properties(headers=many))
    for kind in ("fanout", "headers"):
        client.call(ExchangeDeclare(kind, kind), ExchangeDeclareOk)
        client.declare(f"of-{kind}")
        client.call(QueueBind(f"of-{kind}", kind, ""), QueueBindOk)
        client.send(ExchangeBind(kind, "recent", ""))
        client.expect(ExchangeBindOk)
    assert taken(client, "of-fanout") == list(range(100))
    found = taken(client, "of-headers")
    assert found == list(range(100 - len(found), 100))
    assert 0 < len(found) < 100
