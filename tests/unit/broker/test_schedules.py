"""Delayed messages that are taken back, replaced and kept, by their publisher's id."""

from __future__ import annotations

import pytest

from rhizome.amqp.methods import (
    BasicAck,
    BasicConsume,
    BasicGet,
    ChannelClose,
    ConfirmSelect,
    ConfirmSelectOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueBind,
    QueueBindOk,
    TxCommit,
    TxCommitOk,
    TxSelect,
    TxSelectOk,
)
from rhizome.amqp.properties import Properties
from rhizome.broker.access.auth_interface import OpenIdentity
from rhizome.broker.metadata.metadata_commands import PutPolicy
from rhizome.broker.publishing import delayed_messages
from rhizome.build_info import is_compiled
from rhizome.testing.in_memory_broker import Core, CoreClient, make_core

HELD = "amq.delayed"
# Patching doesn't work on compiled code; the suite of interpreted code runs these.
changes_constants = pytest.mark.skipif(is_compiled(), reason="constants are compiled in")


@pytest.fixture
def core() -> Core:
    return make_core()


@pytest.fixture
def client(core: Core) -> CoreClient:
    client = core.connect()
    arguments: dict[str, object] = {"x-delayed-type": "fanout"}
    method = ExchangeDeclare("later", "x-delayed-message", durable=True, arguments=arguments)
    client.call(method, ExchangeDeclareOk)
    client.declare("q", durable=True)
    client.call(QueueBind("q", "later", ""), QueueBindOk)
    return client


def schedule(client: CoreClient, name: str, delay_ms: int, body: bytes, **more: object) -> None:
    headers: dict[str, object] = {"x-delay": delay_ms, "x-schedule-id": name, **more}
    client.publish("later", "", body, Properties(headers=headers, delivery_mode=2))


def cancel(client: CoreClient, name: str) -> None:
    headers: dict[str, object] = {"x-schedule-cancel": name}
    client.publish("later", "", b"", Properties(headers=headers, delivery_mode=2))


def drained(client: CoreClient) -> list[bytes]:
    found = []
    while (message := client.get("q")) is not None:
        found.append(message.body)
    return found


def advance(core: Core, ms: int) -> None:
    while ms > 0:
        core.advance(min(ms, 1_000))
        ms -= 1_000


def held(core: Core) -> int:
    return int(core.queue(HELD).ready)


def test_a_message_that_is_cancelled_never_comes(core: Core, client: CoreClient) -> None:
    schedule(client, "a", 500, b"a")
    schedule(client, "b", 500, b"b")
    cancel(client, "a")
    assert held(core) == 1
    advance(core, 1_000)
    assert drained(client) == [b"b"]
    assert held(core) == 0


def test_a_message_of_the_same_id_replaces_the_one_before(core: Core, client: CoreClient) -> None:
    schedule(client, "a", 500, b"first")
    schedule(client, "a", 1_500, b"second")
    advance(core, 1_000)
    assert drained(client) == []
    schedule(client, "a", 0, b"now")
    advance(core, 100)
    assert drained(client) == [b"now"]
    advance(core, 2_000)
    assert drained(client) == []


def test_an_id_is_free_again_when_its_message_has_come(core: Core, client: CoreClient) -> None:
    schedule(client, "a", 100, b"1")
    advance(core, 200)
    cancel(client, "a")
    schedule(client, "a", 100, b"2")
    advance(core, 200)
    assert drained(client) == [b"1", b"2"]


def test_ids_belong_to_their_user_and_exchange(core: Core, client: CoreClient) -> None:
    arguments: dict[str, object] = {"x-delayed-type": "fanout"}
    method = ExchangeDeclare("other", "x-delayed-message", arguments=arguments)
    client.call(method, ExchangeDeclareOk)
    schedule(client, "a", 500, b"mine")
    stranger = core.connect()
    stranger.connection.identity = OpenIdentity("eve")
    cancel(stranger, "a")
    schedule(stranger, "a", 600, b"of eve")
    schedule(stranger, "b", 600, b"b", **{"x-schedule-by": "guest"})
    headers: dict[str, object] = {"x-schedule-cancel": "a", "x-schedule-by": "guest"}
    stranger.publish("later", "", b"", Properties(headers=headers))
    client.publish("other", "", b"", Properties(headers={"x-schedule-cancel": "a"}))
    cancel(client, "b")
    advance(core, 1_000)
    # Eve took back only her own.
    assert drained(client) == [b"mine", b"b"]


def test_consumers_see_the_id_and_not_who_it_belongs_to(core: Core, client: CoreClient) -> None:
    schedule(client, "a", 10, b"a", n=1)
    advance(core, 100)
    message = client.get("q")
    assert message is not None
    assert message.headers == {"x-delay": 10, "x-schedule-id": "a", "n": 1}


def test_all_of_it_survives_a_crash(core: Core, client: CoreClient) -> None:
    for number in range(300):
        schedule(client, f"{number}", 5_000, b"%d" % number)
    for number in range(0, 300, 3):
        cancel(client, f"{number}")
    schedule(client, "1", 6_000, b"moved")
    again = core.restarted()
    client = again.connect()
    advance(again, 1_000)
    cancel(client, "2")
    advance(again, 4_500)
    found = drained(client)
    kept = [b"%d" % number for number in range(300) if number % 3 and number not in (1, 2)]
    assert sorted(found) == sorted(kept)
    advance(again, 1_000)
    assert drained(client) == [b"moved"]


@changes_constants
def test_a_cancel_that_was_only_recorded_counts_after_a_crash(
    core: Core, client: CoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule(client, "a", 1_000, b"a")
    # As if the broker died between the record of the cancel and those of what it does.
    monkeypatch.setattr(delayed_messages.HeldMessages, "take", lambda held, message: None)
    cancel(client, "a")
    monkeypatch.undo()
    assert held(core) == 2
    again = core.restarted()
    client = again.connect()
    advance(again, 2_000)
    assert drained(client) == []
    assert held(again) == 0


@changes_constants
def test_what_is_cancelled_while_a_new_home_still_reads_does_not_come(
    core: Core, client: CoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayed_messages, "SCAN_MESSAGES", 1)
    monkeypatch.setattr(delayed_messages, "SCAN_WORK", 10_000)
    for number in range(40):
        schedule(client, f"{number}", 100, b"%d" % number)
    again = core.restarted()
    again.now_ms += 500
    client = again.connect()
    cancel(client, "0")
    cancel(client, "39")
    delayed = again.broker.delayed
    for _ in range(3):
        # Ticks that come before the scan is through.
        again.broker.turn.work = 0
        delayed.release_due(again.now_ms)
    assert delayed.held_by(again.queue(HELD)).scanning
    for _ in range(5):
        advance(again, 1_000)
    assert sorted(drained(client)) == sorted(b"%d" % number for number in range(1, 39))


def test_a_cancel_is_confirmed_when_it_is_safe(core: Core, client: CoreClient) -> None:
    client.call(ConfirmSelect(), ConfirmSelectOk)
    schedule(client, "a", 500, b"a")
    cancel(client, "a")
    cancel(client, "unknown")
    core.settle()
    acks = [each for each in client.take() if isinstance(each, BasicAck)]
    assert max(each.delivery_tag for each in acks) == 3


def test_a_transaction_schedules_and_cancels_when_it_commits(
    core: Core, client: CoreClient
) -> None:
    schedule(client, "a", 500, b"a")
    client.call(TxSelect(), TxSelectOk)
    cancel(client, "a")
    schedule(client, "b", 500, b"b")
    assert held(core) == 1
    client.call(TxCommit(), TxCommitOk)
    advance(core, 1_000)
    assert drained(client) == [b"b"]


@pytest.mark.parametrize("value", ["", "x" * 256, 5, None, True])
def test_ids_that_are_none_are_refused(core: Core, client: CoreClient, value: object) -> None:
    client.publish("later", "", b"", Properties(headers={"x-schedule-id": value, "x-delay": 1}))
    assert client.pick(ChannelClose).reply_code == 406


def test_headers_mean_nothing_elsewhere(core: Core, client: CoreClient) -> None:
    client.publish("", "q", b"m", Properties(headers={"x-schedule-id": "a", "x-delay": 1}))
    message = client.get("q")
    assert message is not None
    assert message.headers == {"x-schedule-id": "a", "x-delay": 1}


def test_nobody_consumes_what_waits(core: Core, client: CoreClient) -> None:
    schedule(client, "a", 500, b"a")
    for method in (BasicGet(HELD), BasicConsume(HELD, "tag")):
        other = core.connect()
        other.send(method)
        assert other.pick(ChannelClose).reply_code == 403
    assert held(core) == 1


def test_policies_do_not_drop_what_waits(core: Core, client: CoreClient) -> None:
    definition: dict[str, object] = {"max-length": 1, "message-ttl": 1, "expires": 10}
    core.broker.cluster.propose(PutPolicy("/", "all", "^amq", definition, "queues"), None)
    schedule(client, "a", 500, b"a")
    schedule(client, "b", 500, b"b")
    advance(core, 1_000)
    assert drained(client) == [b"a", b"b"]


def test_a_purge_takes_everything_back(core: Core, client: CoreClient) -> None:
    schedule(client, "a", 500, b"a")
    core.queue(HELD).purge()
    core.settle()
    schedule(client, "b", 500, b"b")
    advance(core, 1_000)
    assert drained(client) == [b"b"]


@changes_constants
def test_entries_of_what_was_taken_back_do_not_pile_up(
    core: Core, client: CoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayed_messages, "SWEPT_MIN", 10)
    schedule(client, "kept", 900_000, b"kept")
    for number in range(200):
        schedule(client, "again", 1_000_000, b"%d" % number)
        if number % 20 == 0:
            core.advance(50)
    core.advance(100)
    found = core.broker.delayed.held_by(core.queue(HELD))
    assert len(found.due) + len(found.old) < 60
    assert held(core) == 2


def test_transient_messages_wait_on_disk_and_are_dropped_from_there(
    core: Core, client: CoreClient
) -> None:
    for name in ("a", "b"):
        headers: dict[str, object] = {"x-delay": 500, "x-schedule-id": name}
        client.publish("later", "", name.encode(), Properties(headers=headers))
    client.publish("later", "", b"", Properties(headers={"x-schedule-cancel": "a"}))
    assert core.queue(HELD).resident_bytes == 0
    advance(core, 1_000)
    assert drained(client) == [b"b"]
    assert core.queue(HELD).resident_bytes == 0


def test_no_publish_leads_to_the_held_messages_by_their_name(
    core: Core, client: CoreClient
) -> None:
    schedule(client, "a", 500, b"a")
    headers: dict[str, object] = {"x-delay": 10}
    client.publish("", HELD, b"direct", Properties(headers=headers))
    copies: dict[str, object] = {"CC": [HELD]}
    client.publish("", "q", b"copied", Properties(headers=copies))
    client.send(QueueBind(HELD, "later", ""))
    assert client.pick(ChannelClose).reply_code == 403
    assert held(core) == 1
    advance(core, 1_000)
    assert drained(core.connect()) == [b"copied", b"a"]
    assert held(core) == 0
