"""Dead letters from one group to another: neither lost nor doubled, whichever home dies (A1)."""

from __future__ import annotations

import pytest

from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import BasicNack, BasicReject, QueueDelete
from rhizome.amqp.properties import Properties
from rhizome.broker.dead_letters.group_outbox import (
    UNDER_WAY_BYTES_MAX,
    GroupOutbox,
    OutboxRules,
    outbox_of,
)
from rhizome.broker.queue.internal_queues import OUTBOX_QUEUE_IDS
from rhizome.testing.in_memory_broker import CoreClient
from rhizome.testing.in_memory_cluster import TICK_MS, CoreCluster, make_cluster
from tests.unit.cluster.node.held_standby import Standby
from tests.unit.cluster.node.interleaved_cluster import Loose
from tests.unit.cluster.node.small_cluster import (
    PERSISTENT,
    bind,
    drain,
    exchange,
    private_queue,
    queue_at,
)

SOURCE, TARGET = "b1", "b2"


@pytest.fixture
def cluster() -> CoreCluster:
    return make_cluster(3, 1)


def declare(client: CoreClient, source: str = SOURCE, target: str = TARGET, **more: object) -> None:
    """A queue whose dead letters go to a queue of another group."""
    queue_at(client, "dead", target, durable=True)
    arguments: dict[str, object] = {
        "x_dead_letter_exchange": "",
        "x_dead_letter_routing_key": "dead",
    }
    queue_at(client, "q", source, durable=True, **arguments, **more)


def publish(client: CoreClient, *bodies: bytes, properties: Properties = PERSISTENT) -> None:
    client.send_bytes(b"".join([client.published("", "q", each, properties) for each in bodies]))


def home_of(cluster: CoreCluster, queue: str) -> str:
    member = cluster.running()[0]
    group = member.node.state.group_of(member.queue(queue).definition)
    assert group is not None
    return group.home


def standby_of(cluster: CoreCluster, queue: str) -> Standby:
    """The first standby of a queue's group, once it is whole."""
    member = cluster.running()[0]
    number = member.queue(queue).definition.group
    groups = member.node.state.groups.groups
    cluster.advance_until(lambda: len(groups[number].in_sync) > 0)
    return Standby(cluster, queue, groups[number].in_sync[0].broker)


def post_at(cluster: CoreCluster, name: str, queue: str = "q") -> GroupOutbox:
    found = outbox_of(cluster[name].broker, cluster[name].queue(queue))
    assert found is not None
    return found


def is_worked_off(cluster: CoreCluster) -> bool:
    """Whether all posts are empty at their homes."""
    for member in cluster.running():
        for queue in member.broker.internal.values():
            if queue.away is None and queue.ready + queue.unacked > 0:
                return False
    return True


def reject_all(client: CoreClient) -> None:
    for delivery in client.deliveries():
        client.send(BasicReject(delivery.tag, False))


@pytest.mark.parametrize("target", ["b1", "b2", "b3"])
def test_a_letter_goes_to_a_queue_of_another_group(cluster: CoreCluster, target: str) -> None:
    client = cluster["s1"].connect()
    declare(client, target=target)
    client.consume("q")
    publish(client, b"one", b"two")
    cluster.settle()
    reject_all(client)
    cluster.settle()
    assert is_worked_off(cluster)
    letters = [client.get("dead"), client.get("dead")]
    assert [each.body for each in letters if each is not None] == [b"one", b"two"]
    assert letters[0] is not None
    headers = letters[0].properties.headers or {}
    assert headers["x-first-death-queue"] == "q"
    assert headers["x-first-death-reason"] == "rejected"
    by_post = post_at(cluster, SOURCE).sent
    assert by_post == (0 if target == SOURCE else 2)


def test_each_way_to_die(cluster: CoreCluster) -> None:
    client = cluster["s1"].connect()
    declare(client, x_queue_type="quorum", x_max_length=3, x_delivery_limit=1)
    publish(client, b"too many", b"expires", b"limit", b"rejected")
    cluster.settle()
    assert drain(cluster["b3"].connect(), "dead") == [b"too many"]
    other = cluster["b3"].connect()
    publish(client, b"ttl", properties=Properties(delivery_mode=2, expiration="10"))
    cluster.settle()
    assert drain(other, "dead") == [b"expires"]
    client.consume("q")
    cluster.settle()
    for _ in range(3):
        for each in client.deliveries():
            if each.body == b"limit":
                client.send(BasicNack(each.tag, False, True))
            else:
                client.send(BasicReject(each.tag, False))
        cluster.settle()
    assert sorted(drain(other, "dead")) == [b"limit", b"rejected", b"ttl"]
    assert is_worked_off(cluster)


def test_a_letter_with_both_kinds_of_queues(cluster: CoreCluster) -> None:
    """What is in the same group goes at once, a private queue gets its copy, all of them once."""
    client = cluster["s1"].connect()
    exchange(client, "dlx", "fanout")
    queue_at(client, "q", SOURCE, durable=True, x_dead_letter_exchange="dlx")
    for name, home in (("same", SOURCE), ("other", TARGET), ("third", "b3")):
        queue_at(client, name, home, durable=True)
        bind(client, name, "dlx")
    private = private_queue(client)
    bind(client, private, "dlx")
    client.consume("q")
    publish(client, b"x")
    cluster.settle()
    reject_all(client)
    cluster.settle()
    for name in ("same", "other", "third", private):
        assert drain(client, name) == [b"x"], name
    assert is_worked_off(cluster)


def test_a_letter_is_sent_again_by_the_next_home(cluster: CoreCluster) -> None:
    """The target can't be reached; meanwhile the home of the source dies, and then the next one."""
    client = cluster["s1"].connect()
    declare(client, target=TARGET)
    standby = standby_of(cluster, "q")
    client.consume("q")
    publish(client, b"x")
    cluster.settle()
    cluster.cut(SOURCE, TARGET)
    reject_all(client)
    cluster.settle()
    assert post_at(cluster, SOURCE).letters
    standby.take_over()
    cluster.heal()
    cluster.advance_until_ready()
    cluster.settle()
    assert drain(client, "dead") == [b"x"]
    cluster.advance_until(lambda: is_worked_off(cluster))
    assert drain(client, "q") == []


@pytest.mark.parametrize("target", ["b1", "b2", "b3"])
def test_a_delayed_message_of_a_home_that_is_replaced_is_sent_by_the_next(
    cluster: CoreCluster, target: str
) -> None:
    """Its time came at the old home, and nobody else knows of it: the next one does it again, and
    is told nothing of what followed from it."""
    client = cluster["s1"].connect()
    queue_at(client, "q", target, durable=True)
    exchange(client, "later", "x-delayed-message", x_delayed_type="direct")
    bind(client, "q", "later", "q")
    delayed = Properties(delivery_mode=2, headers={"x-delay": 3_000})
    client.publish("later", "q", b"once", delayed)
    cluster.settle()
    standby = standby_of(cluster, "amq.delayed")
    home = cluster[standby.group.home]
    standby.hold()
    cluster.advance_until(lambda: home.queue("amq.delayed").ready == 0)
    standby.take_over()
    held = cluster[standby.name].queue("amq.delayed")
    cluster.advance_until(lambda: held.ready == 0 and is_worked_off(cluster))
    assert drain(cluster["b3"].connect(), "q") == [b"once"]


def test_a_restart_of_everything_sends_what_is_in_the_post(cluster: CoreCluster) -> None:
    client = cluster["s1"].connect()
    declare(client, target=TARGET)
    standby_of(cluster, "q")
    client.consume("q")
    publish(client, b"x", b"y")
    cluster.settle()
    cluster.cut(SOURCE, TARGET)
    reject_all(client)
    cluster.settle()
    assert len(post_at(cluster, SOURCE).letters) == 2
    for name in ("b1", "b2", "b3"):
        cluster[name].kill()
    cluster.heal()
    for name in ("b1", "b2", "b3"):
        cluster[name].start()
    cluster.advance_until_ready()
    cluster.advance_until(lambda: is_worked_off(cluster))
    cluster.advance(12_000)
    reader = cluster["b2"].connect()
    assert drain(reader, "dead") == [b"x", b"y"]


def test_the_post_is_in_checkpoints_and_survives_compaction(cluster: CoreCluster) -> None:
    from rhizome.server.alarms_and_compaction import all_queues, recorded_queues

    client = cluster["s1"].connect()
    declare(client, target="b3")
    client.consume("q")
    publish(client, b"x")
    cluster.settle()
    cluster.cut(SOURCE, "b3")
    reject_all(client)
    cluster.settle()
    broker = cluster[SOURCE].broker
    post = post_at(cluster, SOURCE).queue
    assert post in recorded_queues(broker)
    assert post in all_queues(broker)
    from rhizome.broker.queue.checkpoint_live_messages import unacked_indexes

    [index] = unacked_indexes(broker)[post].values()
    assert len(index) == 1


def test_a_full_way_is_waited_for(cluster: CoreCluster) -> None:
    """What can't be sent stays in the post, not in memory."""
    client = cluster["s1"].connect()
    declare(client, target="b3")
    cluster.cut(SOURCE, "b3")
    size = 1 << 18
    count = 2 * UNDER_WAY_BYTES_MAX // size
    expiring = Properties(delivery_mode=2, expiration="0")
    for number in range(count):
        publish(client, bytes([number]) * size, properties=expiring)
    cluster.advance(100)
    post = post_at(cluster, SOURCE)
    assert len(post.letters) <= UNDER_WAY_BYTES_MAX // size
    assert post.queue.ready == count - len(post.letters)
    cluster.heal()
    cluster.advance_until(lambda: is_worked_off(cluster))
    assert [body[0] for body in drain(client, "dead")] == list(range(count))


def test_a_deleted_target_lets_go_of_its_letters(cluster: CoreCluster) -> None:
    client = cluster["s1"].connect()
    declare(client, target="b3")
    client.consume("q")
    publish(client, b"x")
    cluster.settle()
    cluster["b3"].kill()
    reject_all(client)
    client.send(QueueDelete("dead"))
    cluster.advance_until(lambda: not cluster["b2"].has_queue("dead"))
    cluster.advance_until(lambda: is_worked_off(cluster))


def test_nobody_can_resume_or_name_what_belongs_to_a_group(cluster: CoreCluster) -> None:
    client = cluster["s1"].connect()
    declare(client)
    assert not cluster[SOURCE].has_queue("amq.post.1")
    group = cluster[SOURCE].queue("q").definition.group
    assert cluster[SOURCE].broker.shared[OUTBOX_QUEUE_IDS | group].worker is not None


# ---- walks ---------------------------------------------------------------------------------------

COUNT = 6


class Walk:
    """Messages are rejected, one after the other, while homes die and links break."""

    def __init__(self, seed: int, broken: str = "") -> None:
        self.cluster = make_cluster(3, 1)
        self.loose = Loose(self.cluster, seed)
        if broken:
            assert broken in dir(OutboxRules())
            for member in self.cluster.running():
                setattr(member.node.roles.outbox_rules, broken, False)
        self.client = self.cluster["s1"].connect()
        declare(self.client)
        standby_of(self.cluster, "q")
        standby_of(self.cluster, "dead")
        self.client.consume("q")
        publish(self.client, *[b"%d" % number for number in range(COUNT)])
        self.cluster.settle()
        self.deliveries = self.client.deliveries()
        assert len(self.deliveries) == COUNT

    def run(self) -> list[bytes]:
        """What is in the queues when all is over."""
        random = self.loose.random
        victim = random.choice(["b1", "b2", "b3"])
        fatal = random.randrange(COUNT)
        for at, delivery in enumerate(self.deliveries):
            method = BasicReject(delivery.tag, False)
            self.client.connection.receive(method_frame(1, method))
            self.cluster["s1"].busy = True
            self.loose.steps(random.randrange(12))
            if at == fatal:
                self.loose.kill(victim)
            if random.random() < 0.3:
                self.loose.pass_time()
        self.loose.until(lambda: home_of(self.cluster, "q") != victim)
        self.loose.until(lambda: home_of(self.cluster, "dead") != victim)
        if random.random() < 0.5:
            self.cluster[victim].start()
        self.cluster.settle()
        for _ in range(400):
            if self._is_over():
                break
            self.cluster.advance(TICK_MS)
        self.cluster.advance(500)
        assert is_worked_off(self.cluster)
        reader = self.cluster["s1"].connect()
        again = [delivery.body for delivery in self.client.deliveries()]
        return again + drain(reader, "q") + drain(reader, "dead")

    def _is_over(self) -> bool:
        dead = self.cluster[home_of(self.cluster, "dead")].queue("dead")
        return dead.ready >= COUNT and not dead.log.still and is_worked_off(self.cluster)


@pytest.mark.parametrize("seed", range(12))
def test_no_letter_is_lost_or_doubled_whoever_dies(seed: int) -> None:
    assert sorted(Walk(seed).run()) == [b"%d" % number for number in range(COUNT)]


@pytest.mark.parametrize("local", [True, False])
def test_a_home_that_comes_back_late_brings_no_second_letter(
    cluster: CoreCluster, local: bool
) -> None:
    """What it had recorded and nobody committed the next home has done itself meanwhile."""
    client = cluster["b3" if local else "s1"].connect()
    declare(client, source="b3", target="b1")
    standby = standby_of(cluster, "q")
    client.consume("q")
    publish(client, b"x")
    cluster.settle()
    standby.hold()
    reject_all(client)
    cluster.settle()
    for name in ("b1", "b2", "s1"):
        cluster.cut("b3", name)
    cluster.advance_until(lambda: home_of(cluster, "q") == standby.name)
    cluster.advance_until(lambda: not standby.log.silent)
    cluster.advance(2_000)
    cluster.heal()
    cluster.advance_until_ready()
    cluster.advance(2_000)
    assert drain(cluster["b1"].connect(), "dead") == [b"x"]
    assert drain(cluster["b1"].connect(), "q") == []


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(12, 400))
def test_no_letter_is_lost_or_doubled_in_many_walks(seed: int) -> None:
    assert sorted(Walk(seed).run()) == [b"%d" % number for number in range(COUNT)]


# ---- rules broken on purpose ------------------------------------------------------------------


def break_rule(cluster: CoreCluster, rule: str) -> None:
    for member in cluster.running():
        assert getattr(member.node.roles.outbox_rules, rule) is True
        setattr(member.node.roles.outbox_rules, rule, False)


def test_there_is_a_story_for_each_rule() -> None:
    stories = "".join([name for name in globals() if name.startswith("test_")])
    rules = [name for name in dir(OutboxRules()) if not name.startswith("_")]
    assert rules
    assert [rule for rule in rules if rule not in stories] == []


@pytest.mark.parametrize("broken", [True, False])
def test_kept(cluster: CoreCluster, broken: bool) -> None:
    """A letter that only a broker has is lost with it."""
    if broken:
        break_rule(cluster, "kept")
    client = cluster["s1"].connect()
    declare(client)
    standby_of(cluster, "q")
    client.consume("q")
    publish(client, b"x")
    cluster.settle()
    cluster.cut(SOURCE, TARGET)
    reject_all(client)
    cluster.settle()
    cluster[SOURCE].kill()
    cluster.advance_until(lambda: home_of(cluster, "q") != SOURCE)
    cluster.advance(3_000)
    assert drain(client, "dead") == ([] if broken else [b"x"])
    assert drain(client, "q") == []


@pytest.mark.parametrize("broken", [True, False])
def test_committed_first(cluster: CoreCluster, broken: bool) -> None:
    """A letter is out, and the next home knows nothing of it: the message dies once more."""
    if broken:
        break_rule(cluster, "committed_first")
    client = cluster["s1"].connect()
    declare(client, source="b3", target="b1")
    standby = standby_of(cluster, "q")
    client.consume("q")
    publish(client, b"x")
    cluster.settle()
    standby.hold()
    reject_all(client)
    cluster.settle()
    standby.take_over()
    assert drain(client, "dead") == [b"x"] * (2 if broken else 1)


@pytest.mark.parametrize("broken", [True, False])
def test_named(cluster: CoreCluster, broken: bool) -> None:
    """Two homes send the same letter, and the target can't tell."""
    if broken:
        break_rule(cluster, "named")
    client = cluster["s1"].connect()
    declare(client)
    standby = standby_of(cluster, "q")
    client.consume("q")
    publish(client, b"x")
    cluster.settle()
    target = standby_of(cluster, "dead")
    if target.name != SOURCE:
        target.hold_answers()
    else:
        target.hold()
    reject_all(client)
    cluster.settle()
    assert post_at(cluster, SOURCE).letters
    standby.take_over()
    target.let_go()
    cluster.advance_until(lambda: is_worked_off(cluster))
    assert drain(client, "dead") == [b"x"] * (2 if broken else 1)
