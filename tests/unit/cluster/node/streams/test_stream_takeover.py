"""The home of a stream dies and a copy goes on: nothing is lost, and readers go on exactly."""

from __future__ import annotations

import pytest

from rhizome.amqp.methods import (
    BasicAck,
    BasicConsume,
    BasicConsumeOk,
    QueueDeclare,
    QueueDeclareOk,
)
from rhizome.amqp.properties import Properties
from rhizome.broker.streams.stream import Stream
from rhizome.broker.streams.stream_browser import peek
from rhizome.cluster.replication.replicated_stream_log import ReplicatedStreamLog
from rhizome.cluster.state.cluster_commands import WHOLE, PlanMove, SetDraining
from rhizome.cluster.state.groups_and_placement import Group
from rhizome.journal.streams.stream_log import StreamLog
from rhizome.testing.in_memory_broker import Content, CoreClient
from rhizome.testing.in_memory_cluster import CoreCluster, make_cluster
from tests.unit.cluster.node.small_cluster import confirmed

HOME = "b1"
ALL = 1 << 30


@pytest.fixture
def cluster() -> CoreCluster:
    return make_cluster(3, 1)


def declare(client: CoreClient, **arguments: object) -> None:
    given: dict[str, object] = {"x-queue-type": "stream", "x-group": HOME}
    given |= {key.replace("_", "-"): value for key, value in arguments.items()}
    client.call(QueueDeclare("s", durable=True, arguments=given), QueueDeclareOk)


def consume(
    client: CoreClient, offset: object = "first", prefetch: int = 1_000, **others: object
) -> None:
    client.prefetch(prefetch)
    given: dict[str, object] = {"x-stream-offset": offset, **others}
    client.send(BasicConsume("s", "tag", arguments=given))
    client.pick(BasicConsumeOk)


def publish(client: CoreClient, first: int, end: int, size: int = 0) -> None:
    bodies = [b"%d" % number + b"." * size for number in range(first, end)]
    client.send_bytes(b"".join(client.published("", "s", body) for body in bodies))


def publish_numbered(client: CoreClient, first: int, end: int) -> None:
    for number in range(first, end):
        headers: dict[str, object] = {"x-producer": "p", "x-sequence": number}
        client.publish("", "s", b"%d" % number, Properties(headers=headers))


def group_of(cluster: CoreCluster) -> Group:
    member = cluster.running()[0]
    found = member.node.state.group_of(member.queue("s").definition)
    assert found is not None
    return found


def shipped(cluster: CoreCluster) -> ReplicatedStreamLog:
    group = group_of(cluster)
    log = cluster[group.home].node.roles.homes[group.id].log
    assert isinstance(log, ReplicatedStreamLog)
    return log


def stream(cluster: CoreCluster) -> Stream:
    return shipped(cluster).stream


def copy_at(cluster: CoreCluster, name: str) -> StreamLog:
    return cluster[name].broker.streams.logs[cluster[name].queue("s").id]


def wait_for_copy(cluster: CoreCluster, name: str = "") -> str:
    """Until the stream has a home that serves, and a whole copy (at a certain broker)."""

    def whole() -> list[str]:
        group = group_of(cluster)
        running = [each.name for each in cluster.running()]
        if group.home not in running or group.id not in cluster[group.home].node.roles.homes:
            return []
        if shipped(cluster).silent:
            return []
        found = [each.broker for each in group.in_sync if each.copy == WHOLE]
        return [each for each in found if each in running and name in ("", each)]

    cluster.advance_until(lambda: len(whole()) > 0)
    return whole()[0]


def wait_for_new_home(cluster: CoreCluster, old: str = HOME) -> str:
    cluster.advance_until(lambda: group_of(cluster).home != old)
    cluster.advance_until(lambda: group_of(cluster).id in homes(cluster))
    cluster.advance_until(lambda: not shipped(cluster).silent)
    cluster.settle()
    return group_of(cluster).home


def homes(cluster: CoreCluster) -> dict[int, object]:
    return dict(cluster[group_of(cluster).home].node.roles.homes)


def numbers(deliveries: list[Content]) -> list[int]:
    """What was delivered; its offsets must be the same numbers."""
    found = [int(each.body.split(b".")[0]) for each in deliveries]
    assert [each.headers["x-stream-offset"] for each in deliveries] == found
    return found


def check_copies(cluster: CoreCluster) -> None:
    """What is committed is the same, byte by byte, wherever there is a copy."""
    cluster.settle()
    home = stream(cluster).log
    kept = peek(home, int(home.first), ALL, ALL)
    for name in [each.broker for each in group_of(cluster).in_sync]:
        log = copy_at(cluster, name)
        assert log.number == home.number
        assert log.offsets == home.offsets
        assert log.origins == home.origins
        assert log.epochs == home.epochs
        assert log.starts[-1] == home.starts[-1]
        assert log.seen.packed() == home.seen.packed()
        assert (log.first, log.next) == (home.first, home.next)
        other = peek(log, int(log.first), ALL, ALL)
        assert [each.content for each in other] == [each.content for each in kept]
        files = [cluster[at].files.inside("streams").inside(str(home.id)) for at in (name,)]
        assert files[0].segments() == [int(each.number) for each in log.segments]


@pytest.mark.parametrize("at", ["b2", "b3", "s1"])
def test_a_client_of_a_living_broker_sees_a_pause_and_nothing_else(
    cluster: CoreCluster, at: str
) -> None:
    client = cluster[at].connect()
    declare(client)
    wait_for_copy(cluster)
    client.confirm()
    readers = [cluster["b2"].connect(), cluster["s1"].connect()]
    for reader in readers:
        consume(reader)
    publish(client, 0, 20)
    cluster.settle()
    assert confirmed(client) == 20
    seen = [numbers(reader.deliveries()) for reader in readers]
    assert seen == [list(range(20))] * 2
    cluster[HOME].kill()
    publish(client, 20, 30)
    wait_for_new_home(cluster)
    publish(client, 30, 40)
    cluster.settle()
    for reader in readers:
        assert numbers(reader.deliveries()) == list(range(20, 40))
    assert confirmed(client) == 40
    wait_for_copy(cluster)
    check_copies(cluster)


def test_what_was_on_its_way_when_the_home_died_is_there_once(cluster: CoreCluster) -> None:
    client = cluster["b3"].connect()
    declare(client)
    wait_for_copy(cluster)
    client.confirm()
    reader = cluster["s1"].connect()
    consume(reader)
    published = 0
    for turns in range(12):
        home = group_of(cluster).home
        client.core.broker.turn.now_ms = client.core.now_ms
        for _ in range(3):
            client.connection.receive(client.published("", "s", b"%d" % published))
            published += 1
        cluster["b3"].busy = True
        for _ in range(turns):
            for member in cluster.running():
                member.turn()
        if home != "b3":
            cluster[home].kill()
            wait_for_new_home(cluster, home)
            cluster[home].start()
            cluster.advance_until_ready()
        wait_for_copy(cluster)
    cluster.settle()
    assert numbers(reader.deliveries()) == list(range(published))
    assert confirmed(client) == published
    check_copies(cluster)


@pytest.mark.parametrize("missed", [0, 5])
def test_a_reader_of_what_comes_next_misses_nothing(cluster: CoreCluster, missed: int) -> None:
    client = cluster["b2"].connect()
    declare(client)
    wait_for_copy(cluster)
    publish(client, 0, missed)
    cluster.settle()
    reader = cluster["s1"].connect()
    consume(reader, "next")
    # It can't be told: its link to the home is gone before something comes.
    cluster.cut("s1", HOME)
    client.confirm()
    publish(client, missed, missed + 5)
    cluster.settle()
    assert confirmed(client) == 5
    cluster[HOME].kill()
    cluster.heal()
    wait_for_new_home(cluster)
    cluster.advance_until(lambda: len(reader.events[1]) >= 5)
    assert numbers(reader.deliveries()) == list(range(missed, missed + 5))


def test_readers_see_only_what_the_copies_have_on_disk(cluster: CoreCluster) -> None:
    client = cluster[HOME].connect()
    declare(client)
    copy = wait_for_copy(cluster)
    reader = cluster[HOME].connect()
    consume(reader)
    client.confirm()
    cluster.cut(HOME, copy)
    publish(client, 0, 3)
    cluster.settle()
    assert stream(cluster).log.durable == stream(cluster).log.number - 1
    assert (numbers(reader.deliveries()), confirmed(client)) == ([], 0)
    # The root lets the copy go, and only then the home goes on without it.
    cluster.advance_until(lambda: copy not in [each.broker for each in group_of(cluster).in_sync])
    cluster.settle()
    assert (numbers(reader.deliveries()), confirmed(client)) == ([0, 1, 2], 3)


def test_a_standby_that_has_it_in_memory_only_is_waited_for(cluster: CoreCluster) -> None:
    client = cluster[HOME].connect()
    declare(client)
    copy = wait_for_copy(cluster)
    reader = cluster[HOME].connect()
    consume(reader)
    client.confirm()
    held = hold_disk(cluster, copy)
    publish(client, 0, 3)
    cluster.settle()
    follower = cluster[HOME].node.roles.homes[group_of(cluster).id].copies.followers[copy]
    assert follower.memory == stream(cluster).log.number - 1
    assert follower.disk < follower.memory
    assert (numbers(reader.deliveries()), confirmed(client)) == ([], 0)
    held.release()
    cluster.settle()
    assert (numbers(reader.deliveries()), confirmed(client)) == ([0, 1, 2], 3)


class HeldDisk:
    """The disk of a broker that writes and doesn't say so."""

    def __init__(self, cluster: CoreCluster, name: str) -> None:
        self.member = cluster[name]
        self.streams = self.member.store.streams
        self.synced = self.streams.synced
        self.numbers: list[int] = []
        self.streams.synced = self.numbers.append  # type: ignore[method-assign]

    def release(self) -> None:
        self.streams.synced = self.synced  # type: ignore[method-assign]
        for number in self.numbers:
            self.synced(number)
        self.member.broker.synced(0)
        self.member.busy = True


def hold_disk(cluster: CoreCluster, name: str) -> HeldDisk:
    return HeldDisk(cluster, name)


def test_a_home_that_was_replaced_drops_what_nobody_confirmed(cluster: CoreCluster) -> None:
    client = cluster[HOME].connect()
    declare(client)
    wait_for_copy(cluster)
    client.confirm()
    publish(client, 0, 5)
    cluster.settle()
    assert confirmed(client) == 5
    for other in ("b2", "b3", "s1"):
        cluster.cut(HOME, other)
    publish(client, 5, 9)
    publish_numbered(client, 1, 3)
    cluster.settle()
    old = stream(cluster).log
    assert old.next == 11
    assert confirmed(client) == 0
    cluster.advance_until(
        lambda: cluster["b2"].node.state.groups.groups[group_of(cluster).id].home != HOME
    )
    other = cluster["s1"].connect()
    publish(other, 5, 6)
    cluster.heal()
    cluster.advance_until_ready()
    wait_for_new_home(cluster)
    wait_for_copy(cluster)
    cluster.advance(3_000)
    check_copies(cluster)
    reader = cluster["b3"].connect()
    consume(reader)
    found = [each.body for each in reader.deliveries()]
    assert found[:6] == [b"%d" % number for number in range(6)]
    # What its own client had published it brought to the new home itself, once.
    assert sorted(found[6:]) == sorted(b"%d" % number for number in [5, 6, 7, 8, 1, 2])
    assert confirmed(client) == 11


def test_producers_are_known_again_after_a_takeover(cluster: CoreCluster) -> None:
    client = cluster["b2"].connect()
    declare(client)
    wait_for_copy(cluster)
    client.confirm()
    publish_numbered(client, 0, 6)
    cluster.settle()
    cluster[HOME].kill()
    wait_for_new_home(cluster)
    client.take()
    publish_numbered(client, 3, 9)
    cluster.settle()
    assert confirmed(client) == 12
    reader = cluster["s1"].connect()
    consume(reader)
    assert numbers(reader.deliveries()) == list(range(9))


def test_progress_of_a_name_survives_the_home(cluster: CoreCluster) -> None:
    client = cluster["b2"].connect()
    declare(client)
    wait_for_copy(cluster)
    publish(client, 0, 10)
    name: dict[str, object] = {"x-stream-consumer-name": "app"}
    consume(client, "first", 4, **name)
    held = client.deliveries()
    client.send(BasicAck(held[1].tag, True))
    cluster.advance(1_500)
    assert stream(cluster).log.offsets == {b"app": 1}
    # Noted by the next home: it is told of this when its edges attach.
    client.send(BasicAck(held[2].tag))
    cluster[HOME].kill()
    wait_for_new_home(cluster)
    cluster.advance(1_500)
    assert stream(cluster).log.offsets[b"app"] >= 2
    more = client.deliveries()
    assert numbers([*held, *more]) == list(range(7))
    client.close_socket()
    cluster.advance(1_500)
    other = cluster["s1"].connect()
    consume(other, "first", 100, **name)
    assert numbers(other.deliveries()) == list(range(3, 10))


def told_position(client: CoreClient, after: int, keep: bool) -> None:
    """What Spark's source does, through any broker."""
    told: dict[str, object] = {
        "x-stream-chunks": True,
        "x-stream-reader": "archive",
        "x-stream-reader-next": after,
        "x-stream-reader-keep": keep,
    }
    consume(client, "next", 1, **told)
    client.deliveries()
    client.close_socket()


def test_a_told_position_survives_the_home_and_its_expiry_waits(cluster: CoreCluster) -> None:
    client = cluster["b2"].connect()
    declare(client)
    wait_for_copy(cluster)
    publish(client, 0, 10)
    told_position(cluster["s1"].connect(), 6, True)
    cluster.advance(1_500)
    assert stream(cluster).log.offsets == {b"archive": 5}
    used = dict(stream(cluster).log.used)
    cluster[HOME].kill()
    wait_for_new_home(cluster)
    cluster.advance(1_500)
    (position,) = stream(cluster).positions.all()
    assert (position.name, position.next, position.kept) == (b"archive", 6, True)
    assert stream(cluster).log.used == used
    told_position(cluster["s1"].connect(), 9, True)
    cluster.advance(1_500)
    assert stream(cluster).log.offsets == {b"archive": 8}


def test_a_position_that_is_not_kept_ends_with_the_home_and_is_told_again(
    cluster: CoreCluster,
) -> None:
    client = cluster["b2"].connect()
    declare(client)
    wait_for_copy(cluster)
    publish(client, 0, 10)
    told_position(cluster["s1"].connect(), 6, False)
    assert [each.next for each in stream(cluster).positions.all()] == [6]
    cluster[HOME].kill()
    wait_for_new_home(cluster)
    assert stream(cluster).positions.all() == []
    told_position(cluster["s1"].connect(), 6, False)
    assert [each.next for each in stream(cluster).positions.all()] == [6]


def publish_values(client: CoreClient, *values: str) -> None:
    for value in values:
        headers: dict[str, object] = {"x-stream-filter-value": value}
        client.publish("", "s", value.encode(), Properties(headers=headers))


def test_filters_go_on_at_the_next_home(cluster: CoreCluster) -> None:
    client = cluster["b2"].connect()
    declare(client)
    wait_for_copy(cluster)
    reader = cluster["s1"].connect()
    consume(reader, "first", 2, **{"x-stream-filter": ["a", "z"]})
    publish_values(client, "b", "a", "b", "b", "a", "a", "b")
    held = reader.deliveries()
    assert [each.body for each in held] == [b"a", b"a"]
    cluster[HOME].kill()
    wait_for_new_home(cluster)
    assert reader.deliveries() == []
    reader.send(BasicAck(held[1].tag, True))
    cluster.advance(1_500)
    (third,) = reader.deliveries()
    assert third.headers["x-stream-offset"] == 5
    publish_values(client, "b", "z", "b")
    cluster.advance(1_500)
    assert [each.body for each in reader.deliveries()] == [b"z"]


def test_any_broker_tells_which_streams_there_are(cluster: CoreCluster) -> None:
    declare(cluster["b2"].connect())
    cluster.advance(1_500)
    for name in ("s1", "b2", HOME):
        client = cluster[name].connect()
        asked = BasicConsume("amq.rhizome.streams", "t", no_ack=True)
        client.call(asked, BasicConsumeOk)
        assert [each.body for each in client.deliveries()] == [b"\x01s"]


def test_retention_is_the_homes_and_its_copies_follow(cluster: CoreCluster) -> None:
    client = cluster["b2"].connect()
    declare(client, x_max_length_bytes=10_000, x_stream_max_segment_size_bytes=4_096)
    copy = wait_for_copy(cluster)
    for number in range(0, 100, 5):
        publish(client, number, number + 5, 400)
        cluster.settle()
    cluster.advance(2_500)
    log = stream(cluster).log
    assert log.first > 0
    check_copies(cluster)
    assert copy_at(cluster, copy).segments[0].number == log.segments[0].number
    cluster[HOME].kill()
    wait_for_new_home(cluster)
    reader = cluster["s1"].connect()
    consume(reader)
    assert numbers(reader.deliveries()) == list(range(int(log.first), 100))


def test_a_copy_that_was_away_gets_only_what_it_missed(cluster: CoreCluster) -> None:
    client = cluster[HOME].connect()
    declare(client, x_stream_max_segment_size_bytes=20_000)
    copy = wait_for_copy(cluster)
    publish(client, 0, 300, 1_000)
    cluster.settle()
    cluster[copy].kill()
    cluster.advance(3_000)
    before = sum_of_segments(cluster)
    publish(client, 300, 340, 1_000)
    cluster.settle()
    missed = sum_of_segments(cluster) - before
    home = cluster[HOME].node.roles.homes[group_of(cluster).id]
    sent = int(home.copies.followers[copy].records_bytes)
    cluster[copy].start()
    cluster.advance_until_ready()
    wait_for_copy(cluster, copy)
    got = int(home.copies.followers[copy].records_bytes) - sent
    assert got < missed + 2_000
    check_copies(cluster)


def sum_of_segments(cluster: CoreCluster) -> int:
    return int(stream(cluster).log.size)


def test_a_copy_that_retention_has_left_behind_begins_anew(cluster: CoreCluster) -> None:
    client = cluster[HOME].connect()
    declare(client, x_max_length_bytes=10_000, x_stream_max_segment_size_bytes=4_096)
    copy = wait_for_copy(cluster)
    publish(client, 0, 5, 400)
    cluster.settle()
    cluster[copy].kill()
    cluster.advance(1_000)
    for number in range(5, 100, 5):
        publish(client, number, number + 5, 400)
        cluster.settle()
    cluster.advance(2_500)
    assert stream(cluster).log.first > 5
    cluster[copy].start()
    cluster.advance_until_ready()
    wait_for_copy(cluster, copy)
    check_copies(cluster)


def test_a_damaged_copy_is_made_anew(cluster: CoreCluster) -> None:
    client = cluster[HOME].connect()
    declare(client)
    copy = wait_for_copy(cluster)
    for number in range(5):
        publish(client, number, number + 1, 100)
        cluster.settle()
    cluster[copy].kill()
    files = cluster[copy].files.inside("streams").inside(str(stream(cluster).log.id))
    size = files.size(1)
    files.write(1, size // 2, [b"\xff" * 8])
    cluster[copy].start()
    reported = Reported()
    cluster[copy].observer.bugs = reported
    cluster.advance_until_ready()
    wait_for_copy(cluster, copy)
    assert reported.texts
    assert all("is damaged" in text for text in reported.texts)
    check_copies(cluster)


class Reported(list[BaseException]):
    """Reports that a test expects, and that don't end it."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def append(self, error: BaseException) -> None:
        self.texts.append(str(error))


def test_the_home_of_a_stream_moves_without_a_gap(cluster: CoreCluster) -> None:
    client = cluster["b3"].connect()
    declare(client)
    copy = wait_for_copy(cluster)
    client.confirm()
    readers = [cluster[at].connect() for at in (HOME, copy, "s1")]
    for reader in readers:
        consume(reader, "first", 10)
    publish(client, 0, 20)
    cluster.settle()
    first = [reader.deliveries() for reader in readers]
    group = group_of(cluster)
    cluster[cluster.root()].node.takeover_driver.propose(PlanMove(group.id, copy, group.epoch))
    wait_for_new_home(cluster)
    publish(client, 20, 30)
    cluster.settle()
    for reader, held in zip(readers, first, strict=True):
        got = list(held)
        while len(got) < 30:
            reader.send(BasicAck(got[-1].tag, True))
            cluster.settle()
            got.extend(reader.deliveries())
        assert numbers(got) == list(range(30))
    assert confirmed(client) == 30
    wait_for_copy(cluster)
    check_copies(cluster)


def test_a_broker_that_is_drained_gives_its_streams_away(cluster: CoreCluster) -> None:
    client = cluster["b3"].connect()
    declare(client)
    wait_for_copy(cluster)
    client.confirm()
    reader = cluster["s1"].connect()
    consume(reader)
    publish(client, 0, 10)
    cluster.settle()
    cluster[cluster.root()].node.takeover_driver.propose(SetDraining(HOME, True, 1_000))
    wait_for_new_home(cluster)
    publish(client, 10, 20)
    cluster.settle()
    assert numbers(reader.deliveries()) == list(range(20))
    assert confirmed(client) == 20


def test_all_brokers_lose_power_and_the_stream_is_back(cluster: CoreCluster) -> None:
    client = cluster["b2"].connect()
    declare(client)
    wait_for_copy(cluster)
    client.confirm()
    publish(client, 0, 20)
    cluster.settle()
    assert confirmed(client) == 20
    for member in cluster.running():
        member.kill()
    for name in ("b1", "b2", "b3", "s1"):
        cluster[name].start()
    cluster.advance_until_ready()
    wait_for_copy(cluster)
    reader = cluster["b3"].connect()
    consume(reader)
    assert numbers(reader.deliveries()) == list(range(20))
    check_copies(cluster)


def test_a_stream_that_is_not_replicated_waits_for_its_home(cluster: CoreCluster) -> None:
    client = cluster["b2"].connect()
    declare(client, x_replicate="none")
    client.confirm()
    publish(client, 0, 5)
    cluster.settle()
    assert (confirmed(client), group_of(cluster).local) == (5, True)
    cluster[HOME].kill()
    cluster.advance(10_000)
    assert group_of(cluster).home == HOME
    cluster[HOME].start()
    cluster.advance_until_ready()
    reader = cluster["s1"].connect()
    consume(reader)
    assert numbers(reader.deliveries()) == list(range(5))


def test_a_reader_of_what_comes_next_is_told_when_its_home_knows_where_that_is(
    cluster: CoreCluster,
) -> None:
    """Told while the home recovers, it would miss what is published and confirmed from then on."""
    publisher = cluster["b2"].connect()
    declare(publisher, x_replicate="none")
    publish(publisher, 0, 5)
    cluster.settle()
    group = group_of(cluster).id
    cluster.cut("s1", HOME)
    cluster[HOME].kill()
    cluster.advance(500)
    cluster[HOME].start()
    cluster.advance_until(lambda: group in cluster[HOME].node.roles.homes)
    assert shipped(cluster).silent
    reader = cluster["b2"].connect()
    reader.prefetch(1_000)
    reader.send(BasicConsume("s", "tag", arguments={"x-stream-offset": "next"}))
    publish(publisher, 5, 8)
    cluster.settle()
    assert shipped(cluster).silent
    assert reader.take() == []
    cluster.heal()
    cluster.advance_until(lambda: not shipped(cluster).silent)
    cluster.settle()
    reader.pick(BasicConsumeOk)
    publish(publisher, 8, 11)
    cluster.settle()
    assert numbers(reader.deliveries()) == [8, 9, 10]


def test_a_new_home_shows_nothing_before_it_has_heard_the_others(cluster: CoreCluster) -> None:
    client = cluster[HOME].connect()
    declare(client)
    copy = wait_for_copy(cluster)
    publish(client, 0, 5)
    cluster.settle()
    cluster.cut("s1", copy)
    cluster[HOME].kill()
    cluster.advance_until(lambda: group_of(cluster).home == copy)
    cluster.advance_until(lambda: group_of(cluster).id in homes(cluster))
    reader = cluster[copy].connect()
    consume(reader)
    assert shipped(cluster).silent
    assert numbers(reader.deliveries()) == []
    cluster.heal()
    wait_for_new_home(cluster)
    assert numbers(reader.deliveries()) == list(range(5))
