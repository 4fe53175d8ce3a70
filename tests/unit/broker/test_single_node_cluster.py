"""A broker without a cluster does at once, and in order, what follows from a proposal."""

from __future__ import annotations

from rhizome.amqp.methods import (
    ChannelClose,
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueueUnbind,
    QueueUnbindOk,
)
from rhizome.amqp.properties import Properties
from rhizome.testing.in_memory_broker import Core, CoreClient, make_core


def exchanges(core: Core) -> list[str]:
    found = core.broker.state.vhosts["/"].router.exchanges
    return [name for name in found if name and not name.startswith("amq.")]


def declare_exchange(client: CoreClient, name: str, durable: bool = False) -> None:
    method = ExchangeDeclare(name, "fanout", durable=durable, auto_delete=True)
    client.call(method, ExchangeDeclareOk)


def test_durable_auto_delete_exchange_stays_deleted_after_its_last_private_binding() -> None:
    core = make_core()
    client = core.connect()
    declare_exchange(client, "x", durable=True)
    client.call(QueueDeclare("mine", exclusive=True), QueueDeclareOk)
    client.call(QueueBind("mine", "x"), QueueBindOk)
    client.call(QueueUnbind("mine", "x"), QueueUnbindOk)
    assert exchanges(core) == []
    assert exchanges(core.restarted()) == []


def test_durable_auto_delete_exchange_goes_with_the_connection_of_its_last_queue() -> None:
    core = make_core()
    client = core.connect()
    declare_exchange(client, "x", durable=True)
    client.call(QueueDeclare("mine", exclusive=True), QueueDeclareOk)
    client.call(QueueBind("mine", "x"), QueueBindOk)
    client.close_socket()
    assert exchanges(core) == []
    assert exchanges(core.restarted()) == []


def test_a_restart_finds_cause_and_consequence_in_order() -> None:
    """Were the exchange's end recorded before its cause, a restart would find it still in use."""
    core = make_core()
    client = core.connect()
    for name in ("low", "high"):
        declare_exchange(client, name, durable=True)
    client.declare("q", durable=True)
    client.call(ExchangeBind("low", "high"), ExchangeBindOk)
    client.call(QueueBind("q", "low"), QueueBindOk)
    client.call(QueueDelete("q"), QueueDeleteOk)
    assert exchanges(core) == []
    assert exchanges(core.restarted()) == []


def test_a_chain_of_auto_delete_exchanges_goes_with_its_queue() -> None:
    length = 1500  # deeper than the interpreter can recurse
    core = make_core()
    client = core.connect()
    client.declare("q", durable=True)
    for at in range(length):
        declare_exchange(client, f"x{at}", durable=True)
        if at > 0:
            client.call(ExchangeBind(f"x{at - 1}", f"x{at}"), ExchangeBindOk)
    client.call(QueueBind("q", "x0"), QueueBindOk)
    client.call(QueueDelete("q"), QueueDeleteOk)
    assert exchanges(core) == []
    assert exchanges(core.restarted()) == []


def test_private_bindings_keep_an_exchange_in_use() -> None:
    core = make_core()
    client = core.connect()
    declare_exchange(client, "x")
    client.call(QueueDeclare("mine", exclusive=True), QueueDeclareOk)
    client.call(QueueBind("mine", "x"), QueueBindOk)
    closed = client.call(ExchangeDelete("x", if_unused=True), ChannelClose)
    assert closed.reply_text == "PRECONDITION_FAILED - exchange 'x' in vhost '/' in use"
    assert exchanges(core) == ["x"]


def test_a_last_value_queue_is_the_same_after_a_restart() -> None:
    core = make_core()
    client = core.connect()
    client.declare("q", durable=True, x_last_value_key="symbol")
    for number, symbol in enumerate("abab"):
        headers: dict[str, object] = {"symbol": symbol}
        properties = Properties(delivery_mode=2, headers=headers)
        client.publish("", "q", b"%d" % number, properties)
    again = core.restarted()
    other = again.connect()
    newer = Properties(delivery_mode=2, headers={"symbol": "a"})
    other.publish("", "q", b"4", newer)
    found = [other.get("q"), other.get("q")]
    assert [each.body for each in found if each is not None] == [b"3", b"4"]
