"""A home dies and its standby goes on: nothing confirmed is lost, nothing comes twice (G, A)."""

from __future__ import annotations

import pytest

from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import (
    BasicAck,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicGetEmpty,
    BasicNack,
    ConfirmSelect,
    ConfirmSelectOk,
    QueueDeclare,
    QueueDeclareOk,
    TxCommit,
    TxCommitOk,
    TxSelect,
    TxSelectOk,
)
from rhizome.amqp.properties import Properties
from rhizome.cluster.consensus.settings import EXCUSES_MAX
from rhizome.cluster.protocol.replication_codec import INSTALLING
from rhizome.cluster.replication.standby_tracker import StandbyTracker
from rhizome.cluster.state.cluster_commands import AppointHome, PlanMove, SetDraining
from rhizome.server.operator_views.copy_and_transaction_stalls import STALL_MS, copy_stalls
from rhizome.testing.in_memory_broker import Content, CoreClient
from rhizome.testing.in_memory_cluster import CoreCluster, make_cluster
from tests.unit.cluster.node.small_cluster import (
    PERSISTENT,
    WithheldTransfers,
    bind,
    confirmed,
    group_of,
    hand_over_in_vain,
    queue_at,
    wait_for_copy,
    wait_for_new_home,
)
from tests.unit.cluster.node.small_cluster import drain as contents_of

TRANSIENT = Properties(delivery_mode=1)


@pytest.fixture
def cluster() -> CoreCluster:
    return make_cluster(3, 1)


def publish(client: CoreClient, queue: str, bodies: list[bytes], properties: Properties) -> None:
    client.send_bytes(b"".join(client.published("", queue, body, properties) for body in bodies))


def bodies_of(contents: list[Content]) -> list[bytes]:
    return [each.body for each in contents]


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


@pytest.mark.parametrize("properties", [PERSISTENT, TRANSIENT])
@pytest.mark.parametrize("at", ["b2", "b3", "s1"])
def test_what_was_confirmed_is_there_when_the_home_dies(
    cluster: CoreCluster, at: str, properties: Properties
) -> None:
    client = cluster[at].connect()
    queue_at(client, "q", "b1", durable=True)
    wait_for_copy(cluster, "q")
    client.confirm()
    publish(client, "q", numbers(0, 20), properties)
    cluster.settle()
    assert confirmed(client) == 20
    cluster["b1"].kill()
    home = wait_for_new_home(cluster, "q", "b1")
    assert cluster[home].queue("q").ready == 20
    client.consume("q")
    cluster.settle()
    assert client.bodies() == numbers(0, 20)


@pytest.mark.parametrize("at", ["b2", "b3", "s1"])
def test_a_client_of_a_living_broker_sees_a_pause_and_nothing_else(
    cluster: CoreCluster, at: str
) -> None:
    client = cluster[at].connect()
    queue_at(client, "q", "b1", durable=True)
    wait_for_copy(cluster, "q")
    client.confirm()
    client.prefetch(5)
    client.consume("q")
    publish(client, "q", numbers(0, 20), PERSISTENT)
    cluster.settle()
    first = client.deliveries()
    assert bodies_of(first) == numbers(0, 5)
    cluster["b1"].kill()
    publish(client, "q", numbers(20, 30), PERSISTENT)
    client.send(BasicAck(first[2].tag, True))
    wait_for_new_home(cluster, "q", "b1")
    cluster.settle()
    more = client.deliveries()
    assert bodies_of(more) == numbers(5, 8)
    assert not any(each.redelivered for each in more)
    got = [*first, *more]
    while len(got) < 30:
        client.send(BasicAck(got[-1].tag, True))
        cluster.settle()
        got.extend(client.deliveries())
    client.send(BasicAck(got[-1].tag, True))
    cluster.settle()
    assert bodies_of(got) == numbers(0, 30)
    assert confirmed(client) == 30
    home = group_of(cluster, "q").home
    assert cluster[home].queue("q").ready == 0
    assert cluster[home].queue("q").unacked == 0


def mute(cluster: CoreCluster, name: str, to: str) -> None:
    """Nothing that a broker says reaches another one any more."""
    for end in cluster[name].ends:
        if end.other is not None and end.other.owner.name == to:
            end.other.ended = True


def answers_to(client: CoreClient) -> list[tuple[type, int]]:
    """What a publisher was told, in order."""
    told = [each for each in client.take() if isinstance(each, (BasicAck, BasicNack))]
    return [(type(each), int(each.delivery_tag)) for each in told]


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
@pytest.mark.parametrize("at", ["b2", "s1"])
def test_what_a_home_refused_before_it_died_is_refused(
    cluster: CoreCluster, at: str, overflow: str
) -> None:
    """It had recorded that, and told b3, its standby, alone: the next home must not confirm it
    (A1)."""
    client = cluster[at].connect()
    queue_at(client, "q", "b1", durable=True, x_max_length=1, x_overflow=overflow)
    queue_at(client, "open", "b1", durable=True)
    bind(client, "q", "amq.fanout")
    bind(client, "open", "amq.fanout")
    wait_for_copy(cluster, "q")
    client.call(ConfirmSelect(), ConfirmSelectOk)
    publish(client, "q", [b"taken"], PERSISTENT)
    assert confirmed(client) == 1
    mute(cluster, "b1", at)
    publish(client, "q", [b"refused"], PERSISTENT)
    client.publish("amq.fanout", "", b"refused by one of two", PERSISTENT)
    publish(client, "open", [b"last"], PERSISTENT)
    assert client.take() == []
    cluster["b1"].kill()
    wait_for_new_home(cluster, "q", "b1")
    cluster.advance(1_000)
    assert answers_to(client) == [(BasicNack, 2), (BasicNack, 3), (BasicAck, 4)]
    assert contents_of(client, "q") == [b"taken"]
    assert contents_of(client, "open") == [b"refused by one of two", b"last"]


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("at", ["b2", "s1"])
def test_what_was_refused_is_refused_again_over_the_next_link(at: str, copies: int) -> None:
    """The home had told that what came after it is safe, into a link that brought nothing to the
    edge any more: it may forget a refusal when the edge knows, not when it was told."""
    cluster = make_cluster(3, 2, copies=copies)
    client = cluster[at].connect()
    queue_at(client, "q", "b1", durable=True, x_max_length=1, x_overflow="reject-publish")
    queue_at(client, "open", "b1", durable=True)
    if copies > 1:
        wait_for_copy(cluster, "q")
    client.call(ConfirmSelect(), ConfirmSelectOk)
    publish(client, "q", [b"taken"], PERSISTENT)
    assert confirmed(client) == 1
    mute(cluster, "b1", at)
    publish(client, "q", [b"refused"], PERSISTENT)
    publish(client, "open", [b"last"], PERSISTENT)
    assert client.take() == []
    cluster.cut("b1", at)
    cluster.heal()
    cluster.advance_until_ready()
    assert answers_to(client) == [(BasicNack, 2), (BasicAck, 3)]
    assert contents_of(client, "q") == [b"taken"]


def test_a_copy_that_was_away_knows_what_was_refused_meanwhile(cluster: CoreCluster) -> None:
    """It caught up by what is alive, which has no record of a refusal; then it is home."""
    client = cluster["b2"].connect()
    queue_at(client, "q", "b1", durable=True, x_max_length=1, x_overflow="reject-publish")
    queue_at(client, "open", "b1", durable=True)
    wait_for_copy(cluster, "q")
    client.call(ConfirmSelect(), ConfirmSelectOk)
    publish(client, "q", [b"taken"], PERSISTENT)
    assert confirmed(client) == 1
    cluster["b3"].kill()
    cluster.advance_until(lambda: not group_of(cluster, "q").in_sync)
    cluster.part("b1", "b2")
    mute(cluster, "b1", "b2")
    publish(client, "q", [b"refused"], PERSISTENT)
    publish(client, "open", [b"last"], PERSISTENT)
    cluster["b3"].start()
    wait_for_copy(cluster, "q")
    assert client.take() == []
    assert [each.broker for each in group_of(cluster, "q").in_sync] == ["b3"]
    cluster["b1"].kill()
    cluster.heal()
    assert wait_for_new_home(cluster, "q", "b1") == "b3"
    cluster.advance_until(lambda: len(client.events[1]) > 1)
    assert answers_to(client) == [(BasicNack, 2), (BasicAck, 3)]
    assert contents_of(client, "q") == [b"taken"]


def test_a_killed_home_comes_back_as_a_standby(cluster: CoreCluster) -> None:
    client = cluster["b2"].connect()
    queue_at(client, "q", "b1", durable=True)
    wait_for_copy(cluster, "q")
    client.confirm()
    publish(client, "q", numbers(0, 10), PERSISTENT)
    cluster.settle()
    cluster["b1"].kill()
    home = wait_for_new_home(cluster, "q", "b1")
    publish(client, "q", numbers(10, 20), PERSISTENT)
    cluster["b1"].start()
    cluster.advance_until_ready()
    wait_for_copy(cluster, "q")
    cluster[home].kill()
    last = wait_for_new_home(cluster, "q", home)
    assert last != home
    other = cluster[last].connect()
    other.consume("q", no_ack=True)
    cluster.settle()
    assert other.bodies() == numbers(0, 20)


def test_all_brokers_lose_power_and_everything_persistent_is_there(cluster: CoreCluster) -> None:
    client = cluster["b3"].connect()
    queue_at(client, "q", "b1", durable=True)
    wait_for_copy(cluster, "q")
    client.confirm()
    publish(client, "q", numbers(0, 10), PERSISTENT)
    cluster.settle()
    assert confirmed(client) == 10
    names = [each.name for each in cluster.running()]
    for name in names:
        cluster[name].kill()
    for name in names:
        cluster[name].start()
    cluster.advance_until_ready()
    wait_for_copy(cluster, "q")
    again = cluster["b3"].connect()
    again.consume("q", no_ack=True)
    cluster.settle()
    assert again.bodies() == numbers(0, 10)


def drain(cluster: CoreCluster, name: str) -> None:
    """Have a broker emptied, as its operator would."""
    cluster[cluster.root()].node.propose(SetDraining(name, True, 0), None)
    cluster.settle()


@pytest.mark.parametrize("at", ["b1", "b2", "b3", "s1"])
def test_a_drained_home_hands_over_and_nobody_notices(cluster: CoreCluster, at: str) -> None:
    client = cluster[at].connect()
    queue_at(client, "q", "b1", durable=True)
    wait_for_copy(cluster, "q")
    client.confirm()
    client.prefetch(5)
    client.consume("q")
    publish(client, "q", numbers(0, 10), PERSISTENT)
    publish(client, "q", numbers(10, 20), TRANSIENT)
    cluster.settle()
    got = client.deliveries()
    assert bodies_of(got) == numbers(0, 5)
    drain(cluster, "b1")
    begun_ms = cluster.elapsed_ms
    home = wait_for_new_home(cluster, "q", "b1")
    assert home != "b1"
    assert cluster.elapsed_ms - begun_ms < 3_000
    publish(client, "q", numbers(20, 30), PERSISTENT)
    while len(got) < 30:
        client.send(BasicAck(got[-1].tag, True))
        cluster.settle()
        got.extend(client.deliveries())
    client.send(BasicAck(got[-1].tag, True))
    cluster.settle()
    assert bodies_of(got) == numbers(0, 30)
    assert not any(each.redelivered for each in got)
    assert confirmed(client) == 30
    assert cluster[home].queue("q").ready + cluster[home].queue("q").unacked == 0


@pytest.mark.parametrize(
    "bounds",
    [
        {},
        {"x_max_length": 4},
        {"x_max_length": 4, "x_overflow": "reject-publish"},
    ],
    ids=["unbounded", "drop-head", "reject-publish"],
)
def test_a_transfer_that_nobody_commits_is_called_off(
    cluster: CoreCluster, monkeypatch: pytest.MonkeyPatch, bounds: dict[str, object]
) -> None:
    """The root never hears of it: the home goes on in its epoch, and nobody has lost anything. A
    bounded queue makes room for what was published meanwhile, but not with what is held."""
    client = cluster["b1"].connect()
    other = cluster["s1"].connect()
    queue_at(client, "q", "b1", durable=True, **bounds)
    wait_for_copy(cluster, "q")
    for each in (client, other):
        each.confirm()
        each.prefetch(3)
        each.consume("q")
    for first in (0, 3):
        publish(client, "q", numbers(first, first + 3), PERSISTENT)
        cluster.settle()
    held = [*client.deliveries(), *other.deliveries()]
    assert sorted(bodies_of(held)) == numbers(0, 6)
    group = group_of(cluster, "q")
    home = hand_over_in_vain(cluster, "q", monkeypatch)
    publish(other, "q", numbers(6, 8), PERSISTENT)
    publish(client, "q", numbers(8, 10), PERSISTENT)
    for each in (client, other):
        each.send(BasicAck(2, True))
    cluster.settle()
    assert not client.deliveries()
    assert not other.deliveries()
    cluster.advance(home.settings.transfer_patience_ms + 100)
    assert not home.is_handing_over
    assert group_of(cluster, "q").epoch == group.epoch
    more = [*client.deliveries(), *other.deliveries()]
    assert sorted(bodies_of([*held, *more])) == numbers(0, 10)
    assert not any(each.redelivered for each in more)
    for each in (client, other):
        each.send(BasicAck(0, True))
    cluster.settle()
    assert cluster["b1"].queue("q").ready + cluster["b1"].queue("q").unacked == 0
    assert confirmed(client) == 8
    assert confirmed(other) == 2


@pytest.mark.parametrize("home_again", [False, True])
def test_a_transfer_that_is_refused_after_a_takeover_changes_nothing(
    cluster: CoreCluster, monkeypatch: pytest.MonkeyPatch, home_again: bool
) -> None:
    """The order came into the log after somebody had taken over; perhaps the old home is home
    anew by then, and steps aside for another transfer."""
    client = cluster["s1"].connect()
    queue_at(client, "q", "b1", durable=True)
    wait_for_copy(cluster, "q")
    group = group_of(cluster, "q")
    other = group.in_sync[0].broker
    node = cluster["b1"].node

    def move(broker: str) -> None:
        now = group_of(cluster, "q")
        cluster[cluster.root()].node.propose(PlanMove(now.id, broker, now.epoch), None)

    def appoint(broker: str) -> None:
        now = group_of(cluster, "q")
        incarnation = cluster[broker].node.me.incarnation
        command = AppointHome(now.id, broker, incarnation, now.epoch, now.version)
        cluster[cluster.root()].node.propose(command, None)
        cluster.advance_until(lambda: now.id in cluster[broker].node.roles.homes)

    withheld = WithheldTransfers(node, monkeypatch)
    move(other)
    cluster.advance_until(lambda: bool(withheld.commands))
    appoint(other)
    if home_again:
        wait_for_copy(cluster, "q")
        cluster.advance_until(lambda: group_of(cluster, "q").member("b1") is not None)
        appoint("b1")
        cluster.advance_until(lambda: group_of(cluster, "q").member(other) is not None)
        move(other)
        cluster.advance_until(lambda: node.roles.homes[group.id].is_handing_over)
    withheld.propose_first()
    cluster.advance(500)
    home = node.roles.homes.get(group.id)
    assert (home is not None) == home_again
    assert home is None or (home.is_handing_over and home.log.still)


def test_a_stall_names_the_copy_that_confirms_wait_for(cluster: CoreCluster) -> None:
    client = cluster["b1"].connect()
    queue_at(client, "q", "b1", durable=True)
    wait_for_copy(cluster, "q")
    standby = group_of(cluster, "q").in_sync[0].broker
    assert copy_stalls(cluster["b1"].node) == []
    cluster.cut("b1", standby)
    publish(client, "q", [b"x"], PERSISTENT)
    cluster.settle()
    (row,) = copy_stalls(cluster["b1"].node)
    assert (row["kind"], row["why"]) == ("copy", f"its copy at {standby} has no link")
    cluster.heal()
    cluster.advance_until(lambda: copy_stalls(cluster["b1"].node) == [])


def test_what_is_just_on_its_way_to_a_copy_is_no_stall(cluster: CoreCluster) -> None:
    client = cluster["b1"].connect()
    queue_at(client, "q", "b1", durable=True)
    wait_for_copy(cluster, "q")
    standby = cluster[group_of(cluster, "q").in_sync[0].broker]
    standby.running = False
    publish(client, "q", [b"x"], PERSISTENT)
    assert copy_stalls(cluster["b1"].node) == []
    cluster.advance(STALL_MS + 100)
    (row,) = copy_stalls(cluster["b1"].node)
    assert (row["kind"], row["why"]) == ("copy", f"its copy at {standby.name} is 1 record behind")
    standby.running = True
    cluster.settle()
    assert copy_stalls(cluster["b1"].node) == []


def test_a_copy_that_nobody_needs_is_dropped(cluster: CoreCluster) -> None:
    client = cluster["b1"].connect()
    queue_at(client, "q", "b1", durable=True)
    wait_for_copy(cluster, "q")
    publish(client, "q", numbers(0, 10), PERSISTENT)
    cluster.settle()
    group = group_of(cluster, "q")
    first = group.in_sync[0].broker

    def members() -> list[str]:
        return [each.broker for each in group_of(cluster, "q").in_sync]

    cluster[first].kill()
    cluster.advance_until(lambda: bool(members()) and first not in members(), 600_000)
    cluster[first].start()
    cluster.advance_until_ready()
    cluster.advance(30_000)
    holders = [
        name
        for name in ("b1", "b2", "b3")
        if group.id in cluster[name].node.roles.copies or cluster[name].node.roles.is_home(group.id)
    ]
    assert len(holders) == 2
    assert len(members()) == 1


def test_the_single_active_consumer_stays_the_same(cluster: CoreCluster) -> None:
    waiting, active = cluster["b2"].connect(), cluster["b3"].connect()
    queue_at(active, "q", "b1", durable=True, x_single_active_consumer=True)
    wait_for_copy(cluster, "q")
    active.consume("q")
    cluster.settle()
    waiting.consume("q")
    publish(active, "q", numbers(0, 3), PERSISTENT)
    cluster.settle()
    assert active.bodies() == numbers(0, 3)
    cluster["b1"].kill()
    wait_for_new_home(cluster, "q", "b1")
    publish(active, "q", numbers(3, 6), PERSISTENT)
    cluster.settle()
    assert active.bodies() == numbers(3, 6)
    assert waiting.bodies() == []


def test_a_replaced_home_gets_no_lease_before_it_knows(cluster: CoreCluster) -> None:
    """It is linked again just when its successor is appointed: it must not deliver in between."""
    client = cluster["b2"].connect()
    old = cluster.root()
    queue_at(client, "q", old, durable=True)
    wait_for_copy(cluster, "q")
    others = [name for name in ("b1", "b2", "b3") if name != old]
    for other in others:
        cluster.cut(old, other)
    cluster.cut(old, "s1")
    cluster.advance_until(lambda: bool(cluster.root()) and cluster.root() != old)
    cluster.heal()
    node = cluster[old].node
    group = group_of(cluster, "q")
    while group.id in node.roles.homes:
        assert node.isolated or node.state.groups.groups[group.id].home == old
        served = not node.isolated and node.broker.may_deliver
        newer = any(
            group.id in cluster[other].node.roles.homes
            and not cluster[other].node.roles.homes[group.id].log.silent
            for other in others
        )
        assert not (served and newer), "two homes serve at once"
        cluster.advance(25)


@pytest.mark.parametrize("at", ["b1", "b2", "b3"])
def test_a_transaction_follows_its_queue(cluster: CoreCluster, at: str) -> None:
    """What was published in it goes where the queue is at the commit, not where it was before."""
    client = cluster[at].connect()
    queue_at(client, "q", "b1", durable=True)
    wait_for_copy(cluster, "q")
    client.call(TxSelect(), TxSelectOk)
    publish(client, "q", numbers(0, 3), PERSISTENT)
    drain(cluster, "b1")
    home = wait_for_new_home(cluster, "q", "b1")
    client.send(TxCommit())
    cluster.settle()
    client.expect(TxCommitOk)
    assert cluster[home].queue("q").ready == 3


@pytest.mark.parametrize("taken_over", [True, False])
def test_a_home_without_a_lease_answers_no_pull(cluster: CoreCluster, taken_over: bool) -> None:
    """R9: others may give the message out. The pull is answered when there is a home again."""
    old = cluster.root()
    others = [name for name in ("b1", "b2", "b3") if name != old]
    client = cluster[old].connect()
    queue_at(client, "q", old, durable=True)
    wait_for_copy(cluster, "q")
    client.publish("", "q", b"once", PERSISTENT)
    cluster.settle()
    for name in cluster.members:
        if name != old:
            cluster.cut(old, name)
    cluster.advance_until(lambda: cluster[old].node.isolated)
    client.take()
    client.send(BasicGet("q", True))
    cluster.advance(200)
    assert client.take() == []
    if taken_over:
        elsewhere = cluster[others[0]].connect()
        cluster.advance_until(lambda: any(cluster[each].queue("q").away is None for each in others))
        elsewhere.consume("q")
        cluster.advance_until(lambda: elsewhere.bodies() == [b"once"])
    cluster.heal()
    cluster.advance_until_ready()
    cluster.advance_until(lambda: len(client.events[1]) > 0)
    [answer] = client.take()
    assert isinstance(answer, BasicGetEmpty if taken_over else Content)


def test_a_home_that_stood_still_reads_what_its_copies_said_before_it_judges_them(
    cluster: CoreCluster,
) -> None:
    """Everybody stood still for longer than a standby may be silent; the home wakes up first."""
    home = cluster["b1"]
    client = home.connect()
    queue_at(client, "q", "b1", durable=True)
    wait_for_copy(cluster, "q")
    group = group_of(cluster, "q")
    client.confirm()
    client.connection.receive(client.published("", "q", b"x", PERSISTENT))
    home.busy = True
    home.turn()
    cluster.elapsed_ms += home.node.roles.settings.sync_timeout_ms + 500
    home.tick()
    cluster.settle()
    cluster.advance(1_000)
    assert group_of(cluster, "q").version == group.version
    assert confirmed(client) == 1


def test_a_standby_that_is_never_heard_is_excused_a_few_times() -> None:
    follower = StandbyTracker("b2")
    follower.link_up("b2.1", 1_000)
    follower.update_waiting(True, True, 2_000)
    now_ms = 2_000
    for _ in range(EXCUSES_MAX):
        now_ms += 700
        follower.stood_still(700)
        assert follower.waited_ms(now_ms) == 0
    follower.stood_still(700)
    assert follower.waited_ms(now_ms + 700) == 700
    follower.answer(0, 0, INSTALLING, now_ms + 700)
    follower.stood_still(700)
    assert follower.waited_ms(now_ms + 1_400) == 700


def test_a_home_that_stood_still_beyond_its_lease_delivers_nothing(cluster: CoreCluster) -> None:
    """R9: what has come for it meanwhile is read before anything else is noticed."""
    home = cluster[cluster.root()]
    client = home.connect()
    queue_at(client, "q", home.name, durable=True)
    wait_for_copy(cluster, "q")
    client.publish("", "q", b"once", PERSISTENT)
    cluster.settle()
    cluster.elapsed_ms += 60_000
    client.connection.receive(method_frame(1, BasicConsume("q", "c")))
    home.busy = True
    home.turn()
    assert home.node.isolated
    client.expect(BasicConsumeOk)
    assert client.bodies() == []


def test_a_first_publish_after_a_stand_still_waits_for_what_was_declared_meanwhile(
    cluster: CoreCluster,
) -> None:
    """R9, R10: the broker had no lease, so nobody waited for it. It must not take the publish for
    one that leads nowhere, and confirm it, before it knows the queue."""
    edge = next(each for each in cluster.running() if each.name != cluster.root())
    client = edge.connect()
    client.confirm()
    edge.running = False
    declarer = cluster[cluster.root()].connect()
    declarer.send(QueueDeclare("q", durable=True))
    cluster.advance_until(lambda: len(declarer.events[1]) > 0)
    declarer.expect(QueueDeclareOk)
    assert not edge.has_queue("q")
    edge.running = True
    edge.broker.turn.now_ms = cluster.now_ms
    edge.node.begin(cluster.elapsed_ms)
    client.connection.receive(client.published("", "q", b"first", PERSISTENT))
    edge.settle()
    cluster.advance_until(lambda: confirmed(client) == 1)
    declarer.consume("q", no_ack=True)
    cluster.advance_until(lambda: declarer.bodies() == [b"first"])
