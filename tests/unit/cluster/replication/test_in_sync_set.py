"""Whose answers a home waits for, and what it does about those who don't give any."""

from __future__ import annotations

from rhizome.cluster.protocol import replication_codec as codec
from rhizome.cluster.protocol.catalogue import RECORDS
from rhizome.cluster.replication.replicator import SHIPPED_BYTES_MAX
from rhizome.cluster.state.cluster_commands import DISK, WHOLE, Member
from tests.unit.cluster.replication.broker_disk import GROUP
from tests.unit.cluster.replication.group_world import Home, World
from tests.unit.cluster.replication.test_catch_up import publish, quiet


def rest(world: World) -> None:
    world.settle()
    world.tick()
    world.settle()


def names(world: World) -> list[str]:
    return [each.broker for each in world.register.members]


def restart_for_its_disk(world: World) -> None:
    """The standby is back without a link, and counts for nothing but its disk (G2)."""
    world.crash("b")
    world.start("b")
    world.registers("b")
    world.brokers["b"].learn()
    world.brokers["a"].learn()
    assert world.register.members == (Member("b", "b2", DISK),)


def silence(world: World, name: str) -> None:
    """Its answers get lost, but its link stays."""
    world.links[(name, "a")] = Deaf()


class Deaf(list[tuple[int, bytes]]):
    def append(self, entry: tuple[int, bytes]) -> None:
        pass


def test_a_transient_message_is_committed_when_the_memory_of_all_has_it() -> None:
    world, home = quiet()
    index = publish(home, 1, durable=False)[0]
    assert home.log.committed_memory == index - 1
    world.deliver("a", "b")
    world.deliver("b", "a")
    assert home.log.committed_memory == index


def test_a_persistent_message_is_committed_when_the_disks_of_all_have_it() -> None:
    world, home = quiet()
    index = publish(home, 1)[0]
    world.deliver("a", "b")
    world.deliver("b", "a")
    assert (home.log.committed_memory, home.log.committed_disk) == (index, index - 1)
    world.brokers["b"].sync()
    world.deliver("b", "a")
    assert home.log.committed_disk == index - 1, "the home's own disk has it not yet"
    world.brokers["a"].sync()
    assert home.log.committed_disk == index


def test_the_home_waits_for_the_disk_of_a_standby() -> None:
    world, home = quiet()
    index = publish(home, 1)[0]
    world.brokers["a"].sync()
    world.deliver("a", "b")
    world.deliver("b", "a")
    assert (home.log.committed_memory, home.log.committed_disk) == (index, index - 1)
    world.brokers["b"].sync()
    world.deliver("b", "a")
    assert home.log.committed_disk == index


def test_a_home_without_standbys_commits_at_once() -> None:
    world, home = quiet(members="", wanted=0)
    index = publish(home, 1)[0]
    assert home.log.committed_memory == index
    world.brokers["a"].sync()
    assert home.log.committed_disk == index
    assert not home.log.shipping


def test_a_standby_is_waited_for_before_it_is_proposed() -> None:
    world, home = quiet(members="", wanted=0)
    world.wanted = 1
    publish(home, 10)
    world.brokers["a"].sync()
    world.brokers["a"].learn()
    while not world.proposals:
        assert world.deliver("a", "b") or world.deliver("b", "a") or world.tick() is None
        world.brokers["b"].sync()
        home.broker.end_turn()
    committed = home.log.committed_memory
    index = publish(home, 1)[0]
    assert committed < index
    assert home.log.committed_memory == committed, "it counts from before it is proposed"
    world.deliver("a", "b")
    world.deliver("b", "a")
    assert home.log.committed_memory == index
    world.settle()
    assert world.register.members == (Member("b", "b1", WHOLE),)


def test_a_standby_is_added_though_publishers_never_rest() -> None:
    """What is committed would run away from it, were it not waited for."""
    world, home = quiet(members="", wanted=0)
    world.wanted = 1
    world.brokers["a"].learn()
    for _ in range(30):
        publish(home, 1)
        world.deliver("b", "a")
        world.deliver("a", "b")
        world.brokers["b"].sync()
        if world.proposals:
            break
    assert world.proposals


def test_who_is_proposed_counts_until_the_root_has_decided() -> None:
    world, home = quiet(members="", wanted=0)
    world.wanted = 1
    world.brokers["a"].learn()
    for _ in range(20):
        world.deliver("a", "b")
        world.brokers["b"].sync()
        world.deliver("b", "a")
    assert world.proposals
    world.cut("a", "b")
    index = publish(home, 1)[0]
    world.tick(10_000)
    assert home.log.committed_memory < index
    # The root has something else in the meantime: refused.
    world.register.version += 1
    world.decide()
    home.broker.end_turn()
    assert home.log.committed_memory == index


def test_a_standby_without_a_link_is_left_out_after_a_moment() -> None:
    world, home = quiet()
    world.cut("a", "b")
    index = publish(home, 1)[0]
    world.tick(400)
    assert not world.proposals
    assert home.copies.status().waits_for == ["b"]
    world.tick(200)
    assert home.log.committed_memory < index, "not before that is committed"
    world.decide()
    home.broker.end_turn()
    assert home.log.committed_memory == index
    assert names(world) == []


def test_a_standby_that_does_not_answer_is_left_out_after_the_timeout() -> None:
    world, home = quiet()
    silence(world, "b")
    index = publish(home, 1)[0]
    for _ in range(19):
        world.tick(100)
    assert not world.proposals
    world.tick(200)
    assert world.proposals
    world.decide()
    home.broker.end_turn()
    assert home.log.committed_memory == index


def test_an_idle_standby_is_not_silent() -> None:
    world, home = quiet()
    for _ in range(100):
        world.tick(1000)
    assert not world.proposals
    assert names(world) == ["b"]
    publish(home, 1)
    world.settle()
    assert home.copies.status().waits_for == []


def test_a_standby_whose_disk_stalls_is_left_out() -> None:
    world, home = quiet()
    for _ in range(30):
        publish(home, 1)
        world.deliver("a", "b")
        world.deliver("b", "a")
        world.brokers["a"].sync()
        world.tick(100)
    assert world.proposals
    assert home.copies.status().waits_for == ["b"]


def test_a_restarted_member_counts_for_its_disk_until_it_is_whole_again() -> None:
    world, home = quiet()
    publish(home, 5, durable=False)
    publish(home, 5)
    world.settle()
    restart_for_its_disk(world)
    transient = publish(home, 1, durable=False)[0]
    assert home.log.committed_memory == transient, "it may lack transient messages anyway"
    persistent = publish(home, 1)[0]
    world.brokers["a"].sync()
    assert home.log.committed_disk < persistent
    world.connect("a", "b")
    rest(world)
    assert home.log.committed_disk >= persistent
    assert world.register.members == (Member("b", "b2", WHOLE),)


def test_what_only_disks_of_standbys_outlive_is_shown_when_they_have_it() -> None:
    """Shown earlier it would be gone with its home: who takes over has never had it."""
    world, home = quiet()
    world.settle()
    restart_for_its_disk(world)
    transient = publish(home, 1, durable=False)[0]
    assert home.log.visible == transient, "it is gone with its home, shown or not"
    persistent = publish(home, 1)[0]
    world.brokers["a"].sync()
    assert home.log.committed_memory == persistent
    assert home.log.visible < persistent
    world.connect("a", "b")
    rest(world)
    assert home.log.visible >= persistent


def join_unsynced(world: World) -> None:
    """The standby is waited for, and not yet proposed; the home's disk has synced nothing new."""
    world.wanted = 1
    world.brokers["a"].learn()
    while world.home().log.alone:
        assert world.deliver("a", "b") or world.deliver("b", "a") or world.tick() is None
        world.brokers["b"].sync()
        world.home().broker.end_turn()
    assert world.register.members == ()


def test_what_a_lone_home_has_not_synced_is_not_shown_because_a_standby_joins() -> None:
    """It is committed, as nobody had to answer, and nobody would have it if the home ended."""
    world, home = quiet(members="", wanted=0)
    index = publish(home, 1)[0]
    assert home.log.visible < index
    join_unsynced(world)
    assert home.log.committed_memory >= index
    assert home.log.visible < index, "neither a disk nor a member of the set has it"
    world.brokers["a"].sync()
    rest(world)
    assert world.register.members == (Member("b", "b1", WHOLE),)
    assert home.log.visible >= index


def test_the_memory_of_a_standby_that_joins_shows_nothing() -> None:
    """The home ends: the root knows of no standby, and the home's disk is all that is left."""
    world, home = quiet(members="", wanted=0)
    join_unsynced(world)
    index = publish(home, 1)[0]
    world.deliver("a", "b")
    world.deliver("b", "a")
    home.broker.end_turn()
    assert home.log.committed_memory == index
    assert home.log.visible < index
    world.brokers["a"].sync()
    rest(world)
    assert home.log.visible >= index


def test_while_a_set_without_a_whole_standby_is_proposed_disks_count() -> None:
    """The root may have decided it already: then the standby that was left out takes over no
    more, whatever it has in memory."""
    world, home = quiet()
    silence(world, "b")
    publish(home, 1)
    world.brokers["a"].sync()
    world.tick(10_000)
    assert world.proposals[0][1] == []
    world.links[("b", "a")] = []
    index = publish(home, 1)[0]
    while world.deliver("a", "b") or world.deliver("b", "a"):
        home.broker.end_turn()
    assert home.log.committed_memory == index
    assert home.log.visible < index
    world.brokers["b"].sync()
    world.brokers["a"].sync()
    while world.deliver("b", "a"):
        home.broker.end_turn()
    assert home.log.visible >= index


def test_answers_of_an_earlier_incarnation_do_not_count_for_a_later_one() -> None:
    world, home = quiet()
    publish(home, 5)
    world.settle()
    world.crash("b")
    world.start("b")
    world.connect("a", "b")
    follower = home.copies.followers["b"]
    assert (follower.memory, follower.disk, follower.incarnation) == (0, 0, "b2")
    publish(home, 1)
    rest(world)
    assert names(world) == ["b"]
    assert home.log.committed_memory == 5, "the root hasn't registered it"


def test_an_answer_from_before_a_listing_counts_no_more() -> None:
    """It says whole, and what it is about is in the making by now."""
    world, home = quiet()
    publish(home, 5)
    world.settle()
    follower = home.copies.followers["b"]
    assert follower.kept == codec.WHOLE
    follower.begin_listing(home.end())
    stale = codec.replicated(GROUP, home.log.epoch, home.end(), home.end(), codec.WHOLE, 0)
    home.copies.replicated_by("b", stale, 0)
    assert follower.kept == codec.INSTALLING
    assert not home.copies.has_everything("b")


def test_who_is_not_wanted_any_more_stays_until_another_is_whole() -> None:
    world = World("abc", 1, "b")
    world.settle()
    world.chosen = ["c"]
    world.cut("a", "c")
    world.brokers["a"].learn()
    world.tick(200)
    world.settle()
    assert names(world) == ["b"]
    world.connect("a", "c")
    rest(world)
    world.tick(100)
    world.settle()
    assert names(world) == ["c"]


def test_with_fewer_copies_than_there_must_be_nothing_is_committed() -> None:
    world, home = quiet(members="", wanted=0)
    world.register.min_copies = 2
    world.brokers["a"].learn()
    index = publish(home, 1, durable=False)[0]
    world.tick()
    assert home.log.committed_memory < index
    assert home.copies.status().too_few
    world.wanted = 1
    world.brokers["a"].learn()
    rest(world)
    assert home.log.committed_memory == index
    assert not home.copies.status().too_few


def test_a_new_home_is_settled_when_its_copies_have_answered_or_are_left_out() -> None:
    world = World("abc", 2, "bc")
    world.settle()
    publish(world.home(), 10)
    world.settle()
    world.cut("b", "c")
    world.crash("a")
    assert world.take_over()
    world.brokers["b"].learn()
    home = world.home()
    assert not home.copies.settled()
    index = publish(home, 1, durable=False)[0]
    world.tick(300)
    assert home.log.silent
    assert home.log.visible == 0
    world.tick(300)
    world.decide()
    assert home.copies.settled()
    home.broker.end_turn()
    assert home.log.committed_memory == index


def test_a_new_home_does_not_take_for_synced_what_it_has_in_memory_only() -> None:
    world = World("ab", 1, "b")
    world.settle()
    publish(world.home(), 5)
    world.deliver("a", "b")
    assert world.brokers["b"].copy().index == 5
    world.crash("a")
    world.take_over()
    world.brokers["b"].learn()
    home = world.home()
    home.broker.end_turn()
    assert home.log.committed_memory == 5
    assert home.log.committed_disk == 0
    home.broker.sync()
    assert home.log.committed_disk == 5


def test_a_home_is_congested_while_a_standby_that_counts_is_far_behind() -> None:
    world, home = quiet(window_bytes=1 << 26, checked=False)
    silence(world, "b")
    while not home.copies.congested:
        publish(home, 4, size=1 << 20)
        assert home.copies.window.size() <= SHIPPED_BYTES_MAX + (5 << 20)
    waiting = sum(len(data) for _, data in world.links[("a", "b")])
    assert waiting <= SHIPPED_BYTES_MAX + (5 << 20)
    before = home.copies.followers["b"].records_bytes
    publish(home, 16, size=1 << 20)
    assert home.copies.followers["b"].records_bytes == before, "no more until it answers"
    for _ in range(30):
        world.tick(100)
    world.decide()
    home.broker.end_turn()
    assert not home.copies.congested, "it doesn't count any more"


def test_the_window_is_bounded_and_ends_with_its_last_reader() -> None:
    world, home = quiet(window_bytes=10_000, checked=False)
    world.cut("a", "b")
    for _ in range(100):
        publish(home, 5)
        assert home.copies.window.size() < 11_000
    world.tick(600)
    world.settle()
    world.tick(40_000)
    assert home.copies.window.size() == 0
    assert not home.log.shipping


def test_status_tells_who_is_how_far() -> None:
    world, home = quiet()
    publish(home, 3)
    status = home.copies.status()
    assert status.waits_for == ["b"]
    assert (status.standbys[0].name, status.standbys[0].stage) == ("b", "following")
    assert (status.standbys[0].in_sync, status.standbys[0].lag) == (WHOLE, 3)
    assert status.standbys[0].lag_bytes > 0
    world.settle()
    assert home.copies.status().standbys[0].lag == 0
    world.cut("a", "b")
    assert home.copies.status().standbys[0].stage == "away"


def test_every_turn_is_one_frame_for_each_standby() -> None:
    world = World("abc", 2, "bc")
    world.settle()
    home: Home = world.home()
    before = world.frames_sent.get(RECORDS, 0)
    publish(home, 100)
    assert world.frames_sent[RECORDS] - before == 2
