"""Leases of work queues: taking, reading, settling, ending, and what a restart finds."""

from __future__ import annotations

import pytest

from rhizome.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicConsumeOk,
    ChannelClose,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
)
from rhizome.amqp.properties import Properties
from rhizome.broker.message import Message, Route
from rhizome.broker.queue_leases.lease import Lease, pack, unpack
from rhizome.broker.queue_leases.lease_request import KEEP_MS_DEFAULT
from rhizome.journal.errors import CorruptRecord
from rhizome.server.alarms_and_compaction import Maintenance
from rhizome.testing.in_memory_broker import Core, CoreClient, make_core
from rhizome.testing.queue_lease_client import LeaseClient

PERSISTENT = Properties(delivery_mode=2)


@pytest.fixture
def core() -> Core:
    return make_core()


@pytest.fixture
def client(core: Core) -> CoreClient:
    return core.connect()


@pytest.fixture
def lease(client: CoreClient) -> LeaseClient:
    fill(client, b"a", b"b", b"c", b"d", b"e")
    return LeaseClient(client)


def fill(client: CoreClient, *bodies: bytes, **arguments: object) -> None:
    client.declare("q", durable=True, **arguments)
    for body in bodies:
        client.publish("", "q", body, PERSISTENT)


def rest(client: CoreClient) -> list[tuple[bytes, bool]]:
    """What the queue has ready, and whether it is marked as redelivered."""
    found = []
    while (message := client.get("q")) is not None:
        found.append((message.body, message.redelivered))
    return found


def checkpoint(core: Core) -> None:
    maintenance = Maintenance.__new__(Maintenance)
    maintenance.broker = core.broker
    maintenance.store = core.store
    core.store.checkpoint(maintenance.build_checkpoint())
    core.settle()


# ---- taking and reading ----------------------------------------------------------------------


def test_what_is_taken_counts_as_unacked_and_goes_to_nobody_else(
    core: Core, client: CoreClient, lease: LeaseClient
) -> None:
    assert lease.take(3) == (0, 3)
    queue = core.queue("q")
    assert (queue.ready, queue.unacked) == (2, 3)
    assert rest(client) == [(b"d", False), (b"e", False)]


def test_positions_are_read_in_parallel_and_again(core: Core, lease: LeaseClient) -> None:
    lease.take(5)
    others = [LeaseClient(core.connect()) for _ in range(2)]
    assert others[0].bodies(0, 3) == [b"a", b"b", b"c"]
    assert others[1].bodies(3, 5) == [b"d", b"e"]
    assert others[0].bodies(2, 5) == [b"c", b"d", b"e"]
    assert core.queue("q").unacked == 5


def test_a_take_that_is_repeated_gives_what_it_gave(lease: LeaseClient) -> None:
    assert lease.take(2) == (0, 2)
    assert lease.take(2) == (0, 2), "its answer was lost, perhaps"
    assert lease.take(2, start=2) == (0, 4)
    assert lease.take(10, start=4) == (0, 5)


def test_a_take_stops_at_its_bytes(lease: LeaseClient) -> None:
    headers = lease.told(take=5, bytes=1)
    assert headers["x-lease-next"] == 1, "one message may exceed it"
    assert headers["x-lease-ready"] == 4


def test_first_delivery_tells_what_there_is(lease: LeaseClient) -> None:
    lease.take(2)
    headers = lease.told()
    size = headers.pop("x-lease-bytes")
    assert isinstance(size, int)
    assert size > 2
    assert headers == {
        "x-lease-offset": 0,
        "x-lease-count": 0,
        "x-lease-first": 0,
        "x-lease-next": 2,
        "x-lease-ready": 3,
    }


def test_an_empty_queue_makes_no_lease(core: Core, client: CoreClient) -> None:
    fill(client)
    assert LeaseClient(client).take(3, start=7) == (7, 7)
    assert core.broker.leases.queues == {}


def test_large_ranges_come_in_several_deliveries(core: Core, client: CoreClient) -> None:
    bodies = [bytes([number]) * 100_000 for number in range(8)]
    fill(client, *bodies)
    lease = LeaseClient(client)
    lease.take(8)
    assert lease.bodies(0, 8) == bodies
    assert len(lease.ask(read=0, until=8)) > 3


def test_a_reader_that_is_slow_goes_on_when_it_can(core: Core, client: CoreClient) -> None:
    bodies = [bytes([number]) * 500_000 for number in range(20)]
    fill(client, *bodies)
    LeaseClient(client).take(20)
    slow = core.connect()
    slow.stop_reading()
    arguments: dict[str, object] = {"x-lease": "lease", "x-lease-read": 0, "x-lease-until": 20}
    slow.send(BasicConsume("q", "t", no_ack=True, arguments=arguments))
    (reader,) = core.broker.leases.readers.values()
    assert reader.next < 20
    slow.go_on_reading()
    assert reader.next == 20


def test_messages_come_in_the_order_of_the_queue(core: Core, client: CoreClient) -> None:
    fill(client, x_max_priority=5)
    for body, priority in ((b"low", 0), (b"high", 5), (b"low2", 0)):
        client.publish("", "q", body, Properties(delivery_mode=2, priority=priority))
    lease = LeaseClient(client)
    lease.take(3)
    assert lease.bodies(0, 3) == [b"high", b"low", b"low2"]
    again = LeaseClient(core.restarted().connect())
    assert again.bodies(0, 3) == [b"high", b"low", b"low2"], "a position stays what it is"


# ---- settling and ending ---------------------------------------------------------------------


def test_what_is_settled_is_gone(core: Core, client: CoreClient, lease: LeaseClient) -> None:
    lease.take(4)
    assert lease.told(settle=3)["x-lease-first"] == 3
    assert (core.queue("q").unacked, core.queue("q").acked) == (1, 3)
    assert lease.told(settle=2)["x-lease-first"] == 3, "it is settled already"
    assert lease.bodies(3, 4) == [b"d"]
    lease.told(end=True)
    assert rest(client) == [(b"d", True), (b"e", False)]


def test_settle_and_take_in_one_go(lease: LeaseClient) -> None:
    lease.take(2)
    assert lease.take(2, start=2, settle=2) == (2, 4)
    assert lease.bodies(2, 4) == [b"c", b"d"]


def test_ended_lease_gives_back_in_place(client: CoreClient, lease: LeaseClient) -> None:
    lease.take(4)
    lease.read(0, 2)
    lease.told(end=True)
    assert rest(client) == [
        (b"a", True),
        (b"b", True),
        (b"c", False),
        (b"d", False),
        (b"e", False),
    ], "only what somebody read is marked"


def test_what_is_settled_with_the_end_is_not_given_back(
    core: Core, client: CoreClient, lease: LeaseClient
) -> None:
    lease.take(4)
    lease.told(settle=3, end=True)
    assert core.queue("q").acked == 3
    lease.told(settle=3, end=True)
    assert rest(client) == [(b"d", False), (b"e", False)]


def test_the_end_of_an_expired_lease_settles_nothing(core: Core, lease: LeaseClient) -> None:
    lease.take(4, keep_ms=60_000)
    core.advance(70_000)
    assert "has expired" in lease.error(settle=3, end=True)
    assert core.queue("q").ready == 5


def test_the_reader_of_a_lease_that_somebody_ended_is_told(
    core: Core, client: CoreClient, lease: LeaseClient
) -> None:
    lease.take(2)
    assert lease.bodies(0, 2) == [b"a", b"b"]
    queue, leases = core.queue("q"), core.broker.leases
    found = leases.find(queue, "lease")
    assert found is not None
    leases.revoke(queue, found)
    core.settle()
    restarted = core.restarted()
    again = LeaseClient(restarted.connect())
    text = again.error(settle=2, take=2, **{"from": 2})
    assert "was ended by somebody else, and the 2 messages from position 0 on went back" in text
    assert restarted.queue("q").ready == 5


def test_lease_without_a_sign_of_life_expires(
    core: Core, client: CoreClient, lease: LeaseClient
) -> None:
    lease.take(3, keep_ms=60_000)
    core.advance(40_000)
    lease.told(keep_ms=60_000)
    core.advance(40_000)
    assert core.queue("q").unacked == 3, "it was heard of"
    core.advance(40_000)
    assert (core.queue("q").unacked, core.queue("q").ready) == (0, 5)
    text = lease.error(settle=2)
    assert "lease 'lease'" in text
    assert "has expired: nothing was heard of its reader for 60 s" in text
    assert "the 3 messages from position 0 on went back" in text
    assert "has expired" in lease.error(take=2, **{"from": 3})
    assert rest(client)[0] == (b"a", False)
    lease.told(end=True)
    assert lease.take(1, start=3) == (3, 3), "once it is ended it may begin anew"


def test_an_empty_lease_is_forgotten_when_it_expires(core: Core, lease: LeaseClient) -> None:
    lease.take(3)
    lease.told(settle=3)
    core.advance(KEEP_MS_DEFAULT + 1000)
    assert core.broker.leases.queues == {}
    assert lease.take(1, start=3) == (3, 4)


def test_delivery_limit_counts_what_was_read(client: CoreClient, core: Core) -> None:
    fill(client, b"a", x_delivery_limit=1, x_queue_type="quorum")
    for _ in range(2):
        lease = LeaseClient(client)
        lease.take(1)
        lease.read(0, 1)
        lease.told(end=True)
    assert rest(client) == []


def test_purge_and_other_consumers_leave_it_alone(
    core: Core, client: CoreClient, lease: LeaseClient
) -> None:
    lease.take(2)
    held = client.get("q", no_ack=False)
    assert held is not None
    client.call(QueuePurge("q"), QueuePurgeOk)
    client.send(BasicAck(held.tag))
    again = core.restarted()
    assert LeaseClient(again.connect()).bodies(0, 2) == [b"a", b"b"]
    assert again.queue("q").ready == 0


def test_deleted_queue_ends_its_leases(core: Core, client: CoreClient, lease: LeaseClient) -> None:
    lease.take(3)
    reader = core.connect()
    arguments: dict[str, object] = {"x-lease": "lease", "x-lease-read": 0, "x-lease-until": 9}
    reader.send(BasicConsume("q", "t", no_ack=True, arguments=arguments))
    reader.take()
    client.call(QueueDelete("q"), QueueDeleteOk)
    assert core.broker.leases.queues == {}
    assert core.broker.leases.readers == {}
    assert reader.pick(BasicCancel).consumer_tag == "t"
    assert core.broker.pager.resident_bytes == 0


# ---- restarts --------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpointed", [False, True])
def test_lease_outlives_a_restart(core: Core, lease: LeaseClient, checkpointed: bool) -> None:
    lease.take(4)
    lease.told(settle=1)
    if checkpointed:
        checkpoint(core)
    again = core.restarted()
    client = again.connect()
    queue = again.queue("q")
    assert (queue.ready, queue.unacked) == (1, 3)
    lease = LeaseClient(client)
    assert lease.bodies(1, 4) == [b"b", b"c", b"d"]
    assert lease.take(4, start=1) == (1, 5)
    lease.told(settle=5)
    assert rest(again.restarted().connect()) == []


def test_lease_is_told_only_when_it_is_safe(core: Core, lease: LeaseClient) -> None:
    core.hold_syncs = True
    arguments: dict[str, object] = {"x-lease": "lease", "x-lease-take": 2}
    lease.client.send(BasicConsume("q", "t", no_ack=True, arguments=arguments))
    lease.client.pick(BasicConsumeOk)
    assert lease.client.deliveries() == []
    core.hold_syncs = False
    core.sync()
    assert [each.headers["x-lease-next"] for each in lease.client.deliveries()] == [2]


def test_expired_lease_is_known_after_a_restart(core: Core, lease: LeaseClient) -> None:
    lease.take(2)
    core.advance(KEEP_MS_DEFAULT + 1000)
    again = core.restarted()
    assert "has expired" in LeaseClient(again.connect()).error(take=1)
    assert again.queue("q").ready == 5


def test_lease_expires_after_a_restart_too(core: Core, lease: LeaseClient) -> None:
    lease.take(2)
    again = core.restarted()
    again.advance(KEEP_MS_DEFAULT + 1000)
    found = rest(again.connect())
    assert [body for body, _ in found] == [b"a", b"b", b"c", b"d", b"e"]
    assert found[0][1], "nobody knows any more whether it was read"


def test_transient_messages_leave_holes(core: Core, client: CoreClient) -> None:
    client.declare("q", durable=True)
    client.publish("", "q", b"transient")
    client.publish("", "q", b"persistent", PERSISTENT)
    lease = LeaseClient(client)
    lease.take(2)
    again = core.restarted()
    (entry,) = LeaseClient(again.connect()).read(0, 2)
    assert (entry.position, entry.body) == (1, b"persistent")
    assert LeaseClient(again.connect()).told(settle=2)["x-lease-first"] == 2
    assert again.queue("q").unacked == 0


def test_paged_messages_are_leased_as_well() -> None:
    core = make_core(resident_budget_bytes=1)
    client = core.connect()
    bodies = [b"%d" % number * 200_000 for number in range(10)]
    fill(client, *bodies)
    lease = LeaseClient(client)
    assert lease.take(6) == (0, 6)
    assert lease.bodies(0, 6) == bodies[:6]
    again = core.restarted()
    assert LeaseClient(again.connect()).bodies(0, 6) == bodies[:6]
    assert [body for body, _ in rest(again.connect())] == bodies[6:]


# ---- refusals --------------------------------------------------------------------------------


def test_positions_that_are_not_there_are_refused(lease: LeaseClient) -> None:
    assert "no lease 'lease'" in lease.error(read=0, until=1)
    lease.take(3)
    lease.told(settle=1)
    assert "has the positions 1 to 2, and not 0" in lease.error(read=0, until=2)
    assert "has the positions 1 to 2, and not 3" in lease.error(read=2, until=5)
    assert "can't go on from 0" in lease.error(take=1, **{"from": 0})
    assert "can't go on from 5" in lease.error(take=1, **{"from": 5})
    assert "nothing can be settled up to 9" in lease.error(settle=9)


def test_limits(core: Core, client: CoreClient, lease: LeaseClient) -> None:
    core.broker.limits.leased_messages_max = 3
    assert lease.take(9) == (0, 3)
    other = LeaseClient(client, name="other")
    assert "has 3 leased messages" in other.error(take=1)
    core.broker.limits.leased_messages_max = 9
    core.broker.limits.leases_max = 1
    assert "has 1 leases, which is the limit (limits.leases_max)" in other.error(take=1)
    lease.told(end=True)
    assert other.take(1) == (0, 1)
    core.broker.limits.leased_bytes_max = 1
    assert other.take(5) == (0, 1)
    core.broker.limits.leases_max = 2
    assert "limits.leased_bytes_max" in lease.error(take=1)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"x-lease": ""}, "a name of 1 to 255 bytes"),
        ({"x-lease": 5}, "a name of 1 to 255 bytes"),
        ({"x-lease": "l", "x-lease-take": -1}, "invalid arg 'x-lease-take'"),
        ({"x-lease": "l", "x-lease-settle": True}, "invalid arg 'x-lease-settle'"),
        ({"x-lease": "l", "x-lease-read": 3}, "'x-lease-until' beside it"),
        ({"x-lease": "l", "x-lease-keep-ms": 5}, "1000 to 604800000 milliseconds"),
        ({"x-lease": "l", "x-lease-end": 1}, "true or false"),
    ],
)
def test_wrong_arguments_are_refused(
    client: CoreClient, arguments: dict[str, object], text: str
) -> None:
    fill(client)
    client.send(BasicConsume("q", "t", no_ack=True, arguments=arguments))
    closed = client.pick(ChannelClose)
    assert closed.reply_code == 406
    assert text in closed.reply_text


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        ({"x-queue-type": "stream"}, "is a stream"),
        ({"x-single-active-consumer": True}, "has a single active consumer"),
    ],
)
def test_queues_that_have_no_leases(
    client: CoreClient, declared: dict[str, object], text: str
) -> None:
    client.declare("q", durable=True, **{key.replace("-", "_"): v for key, v in declared.items()})
    client.prefetch(1)
    client.send(BasicConsume("q", "t", no_ack=True, arguments={"x-lease": "l"}))
    assert text in client.pick(ChannelClose).reply_text


def test_a_lease_is_read_without_acks(client: CoreClient) -> None:
    fill(client)
    client.send(BasicConsume("q", "t", arguments={"x-lease": "l"}))
    assert "is read with no-ack" in client.pick(ChannelClose).reply_text


# ---- the format ------------------------------------------------------------------------------


def test_packed_leases_have_these_bytes() -> None:
    lease = Lease("ab", 5, 60_000)
    for index in (300, 301, 7, 0):
        message = Message(Route("", "", b""), b"", 1, 0)
        message.index = index
        lease.add(message if index else None)
    gone = Lease("x", 9, 1000)
    gone.expired = True
    gone.given_back = 2
    packed = pack([lease, gone])
    assert packed.hex() == (
        "010002"
        "026162" "00" "000000000000ea60" "0000000000000005" "0000000000000004"
        "00000003" "ac02" "02" "07" "01" "00" "01"
        "0178" "01" "00000000000003e8" "0000000000000009" "0000000000000002" "00000000"
    )  # fmt: skip
    first, second = unpack(packed)
    assert (first.lease.name, first.lease.base, first.lease.keep_ms) == ("ab", 5, 60_000)
    assert first.runs == [300, 2, 7, 1, 0, 1]
    assert (second.lease.expired, second.lease.end()) == (True, 11)
    with pytest.raises(CorruptRecord, match="version 9"):
        unpack(b"\x09" + packed[1:])
