"""A standby that was away, or never there: what it is sent, and what it makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from rhizome.cluster.protocol import catalogue
from rhizome.cluster.replication.replicator import FRAME_BYTES_MAX
from rhizome.cluster.state.cluster_commands import DISK, WHOLE, Member
from tests.unit.cluster.replication.group_world import Home, World
from tests.unit.cluster.replication.log_model import check

BORDER = 1 << 32


def quiet(members: str = "b", wanted: int = 1, **options: Any) -> tuple[World, Home]:
    """Two brokers, a at home, everything at rest."""
    world = World("ab", wanted, members, **options)
    world.settle()
    world.tick()
    world.settle()
    home = world.home()
    assert not home.log.silent
    return world, home


def publish(home: Home, count: int, durable: bool = True, size: int = 100) -> list[int]:
    found = []
    for _ in range(count):
        found.append(home.publish([1], durable, size=size))
    home.broker.end_turn()
    return found


def same(world: World) -> None:
    broker = world.brokers["b"]
    check(broker.copy(), broker.place, world.home().truth)


def sent(world: World, method: int) -> int:
    return world.bytes_sent.get(method, 0)


def send_away(world: World) -> None:
    """Cut the standby off for so long that nothing is kept for it."""
    world.cut("a", "b")
    world.tick(600)
    world.settle()
    assert world.register.members == ()
    world.tick(40_000)


def come_back(world: World) -> None:
    world.connect("a", "b")
    world.settle()
    world.tick()
    world.settle()


def test_a_link_that_comes_back_goes_on_with_what_was_missed() -> None:
    world, home = quiet(window_bytes=1 << 20, checked=False)
    publish(home, 1000)
    world.settle()
    world.cut("a", "b")
    publish(home, 10)
    before = sent(world, catalogue.RECORDS)
    come_back(world)
    assert sent(world, catalogue.LIVE) == 0
    assert sent(world, catalogue.RECORDS) - before < 10 * 300
    same(world)
    assert home.log.committed_disk == home.end()


def test_a_restarted_standby_is_sent_only_what_it_lacks() -> None:
    world, home = quiet(window_bytes=1 << 20, checked=False)
    publish(home, 1000)
    world.settle()
    world.crash("b")
    publish(home, 20)
    home.ack(1, list(range(1, 501)))
    home.broker.end_turn()
    world.start("b")
    world.registers("b")
    world.brokers["b"].learn()
    world.brokers["a"].learn()
    come_back(world)
    follower = home.copies.followers["b"]
    assert follower.backfill_messages == 20
    assert sent(world, catalogue.BACKFILL) < 20 * 300
    assert sent(world, catalogue.LIVE) < 300
    same(world)
    assert world.register.members == (Member("b", "b2", WHOLE),)


def test_a_restarted_standby_gets_back_the_transient_messages_that_it_lost() -> None:
    world, home = quiet()
    publish(home, 50, durable=False)
    publish(home, 50, durable=True)
    world.settle()
    world.crash("b")
    world.start("b")
    world.registers("b")
    world.brokers["b"].learn()
    world.brokers["a"].learn()
    come_back(world)
    assert home.copies.followers["b"].backfill_messages == 50
    same(world)


@pytest.mark.parametrize("before", [3, 5, 6, 12])
def test_a_standby_is_sent_only_what_it_lacks_where_indexes_outgrow_32_bits(before: int) -> None:
    """It goes away below the border, at it or above it, and the log goes on beyond."""
    world, home = quiet(first_index=BORDER - 5)
    kept = publish(home, before)
    assert kept[0] == BORDER - 5
    world.settle()
    world.crash("b")
    missed = publish(home, 10)
    assert missed[-1] >= BORDER
    home.ack(1, [kept[0], kept[-1], missed[0], missed[-1]])
    home.broker.end_turn()
    world.start("b")
    world.registers("b")
    world.brokers["b"].learn()
    world.brokers["a"].learn()
    come_back(world)
    assert home.copies.followers["b"].backfill_messages == 8
    same(world)
    assert world.register.members == (Member("b", "b2", WHOLE),)
    assert home.log.committed_disk == home.end()


@pytest.mark.parametrize("before", [3, 12])
def test_a_replaced_home_is_reverted_where_indexes_outgrow_32_bits(before: int) -> None:
    world, old = quiet(first_index=BORDER - 5)
    kept = publish(old, before)
    world.settle()
    world.cut("a", "b")
    publish(old, 10)
    world.brokers["a"].sync()
    assert old.end() > BORDER
    assert world.take_over()
    for name in "ba":
        world.brokers[name].learn()
    new = world.home()
    assert new.broker.name == "b"
    later = publish(new, 4)
    assert later[0] == kept[-1] + 1, "the indexes of what nobody had"
    world.heal()
    broker = world.brokers["a"]
    check(broker.copy(), broker.place, new.truth)
    assert sorted(new.truth.queues[1]) == kept + later
    assert new.copies.followers["a"].backfill_messages == 4


def test_a_standby_that_missed_more_than_the_window_compares_what_is_alive() -> None:
    world, home = quiet(window_bytes=5000, checked=False)
    publish(home, 100)
    world.settle()
    world.cut("a", "b")
    world.tick(600)
    world.settle()
    assert world.register.members == ()
    for _ in range(30):
        publish(home, 10)
    come_back(world)
    follower = home.copies.followers["b"]
    assert follower.backfill_messages == 300
    assert follower.live_bytes < 500
    same(world)
    assert world.register.members == (Member("b", "b1", WHOLE),)


def test_messages_that_are_acked_during_catch_up_do_not_come_back() -> None:
    world, home = quiet(members="", checked=False, window_bytes=1 << 20)
    send_away(world)
    publish(home, 300, size=20_000)
    world.connect("a", "b")
    acked = 0
    backfills = 0
    while world.deliver("a", "b") | world.deliver("b", "a"):
        # Of what was told to be alive much is gone before it is sent, some just after.
        live = sorted(home.truth.queues[1])
        if live and world.frames_sent.get(catalogue.LIVE, 0):
            home.ack(1, live[::9])
            home.broker.end_turn()
            acked += len(live[::9])
        backfills = world.frames_sent.get(catalogue.BACKFILL, 0)
    assert backfills >= 2
    assert acked >= 100
    world.settle()
    same(world)
    assert home.copies.followers["b"].backfill_messages < 300


def test_publishing_goes_on_during_catch_up() -> None:
    world, home = quiet(members="", checked=False, window_bytes=1 << 20)
    send_away(world)
    publish(home, 500, size=8000)
    world.connect("a", "b")
    while world.deliver("a", "b") or world.deliver("b", "a"):
        if home.end() < 900:
            index = publish(home, 1)[0]
            assert home.log.committed_memory >= index, "nobody waits for who isn't in sync"
    world.settle()
    world.tick()
    world.settle()
    same(world)
    assert [each.broker for each in world.register.members] == ["b"]


def test_catching_up_is_paced() -> None:
    """One WANT at a time, and no frame above a megabyte and one message."""
    world, home = quiet(members="", checked=False, window_bytes=1 << 20)
    send_away(world)
    publish(home, 60, size=100_000)
    world.connect("a", "b")
    while True:
        waiting = [method for queue in world.links.values() for method, _ in queue]
        assert waiting.count(catalogue.WANT) + waiting.count(catalogue.BACKFILL) <= 1
        sizes = [len(data) for queue in world.links.values() for _, data in queue]
        assert max(sizes, default=0) <= FRAME_BYTES_MAX + 101_000
        if not (world.deliver("a", "b") or world.deliver("b", "a")):
            break
    assert world.frames_sent[catalogue.BACKFILL] >= 6
    world.settle()
    same(world)


def test_a_large_live_set_is_told_in_parts_while_the_log_goes_on() -> None:
    world, home = quiet(members="", checked=False, window_bytes=1 << 20, segment_bytes=1 << 20)
    publish(home, 50_000, durable=False, size=0)
    home.ack(1, list(range(2, 50_000, 2)))
    home.broker.end_turn()
    send_away(world)
    world.connect("a", "b")
    told = 0
    while world.deliver("a", "b") or world.deliver("b", "a"):
        if world.frames_sent.get(catalogue.LIVE, 0) > told:
            told = world.frames_sent[catalogue.LIVE]
            home.ack(1, [min(home.truth.queues[1]), max(home.truth.queues[1])])
            publish(home, 1, durable=False)
    assert told >= 2
    world.settle()
    same(world)


def test_a_member_that_lost_its_place_in_the_window_is_no_longer_whole_before_it_begins_anew() -> (
    None
):
    world, home = quiet(window_bytes=3000, checked=False)
    world.brokers["b"].place.sync()
    publish(home, 5)
    world.links[("b", "a")].clear()
    publish(home, 300)  # b answers nothing meanwhile, and the window is small
    follower = home.copies.followers["b"]
    home.copies.window.trim(home.end())
    follower.cursor = 3
    home.publish([1], True)
    home.broker.end_turn()
    assert follower.stage == 2, "held"
    assert world.frames_sent.get(catalogue.LIVE, 0) == 0
    assert world.proposals[0][1] == [Member("b", "b1", DISK)]
    world.decide()
    home.broker.end_turn()
    assert world.frames_sent[catalogue.LIVE] == 1
    world.settle()
    world.tick()
    world.settle()
    same(world)
    assert world.register.members == (Member("b", "b1", WHOLE),)


def test_a_replaced_home_loses_what_was_never_confirmed_and_gets_what_it_lacks() -> None:
    world = World("abc", 2, "bc")
    world.settle()
    old = world.home()
    publish(old, 20)
    world.settle()
    world.cut("a", "b")
    world.cut("a", "c")
    publish(old, 5)
    old.ack(1, [1, 2, 3])
    old.number(0xA, forget=False)
    old.broker.end_turn()
    world.brokers["a"].sync()
    assert old.log.committed_disk == 20
    assert world.take_over()
    for name in "bca":
        world.brokers[name].learn()
    new = world.home()
    assert new.broker.name == "b"
    world.heal()
    publish(new, 3)
    world.settle()
    broker = world.brokers["a"]
    check(broker.copy(), broker.place, new.truth)
    assert sorted(new.truth.queues[1]) == [*range(1, 21), *range(21, 24)]
    assert new.copies.followers["a"].backfill_messages == 3, "those that its acks had ended"
    assert broker.copy().origins == {}


def test_a_home_that_handed_over_in_good_order_goes_on_without_comparing() -> None:
    world = World("ab", 1, "b")
    world.settle()
    old = world.home()
    publish(old, 50)
    world.settle()
    assert old.copies.has_everything("b")
    world.take_over()
    world.brokers["b"].learn()
    world.brokers["a"].learn()
    world.brokers["a"].copy().whole = True  # Nothing was in its memory only.
    world.heal()
    publish(world.home(), 5)
    world.settle()
    assert world.frames_sent.get(catalogue.LIVE, 0) == 0
    check(world.brokers["a"].copy(), world.brokers["a"].place, world.home().truth)


def test_a_standby_compares_with_a_home_that_began_with_what_its_disk_had_kept() -> None:
    """Both are at the same index, and the home has lost the transient messages."""
    world, home = quiet()
    publish(home, 5, durable=False)
    publish(home, 1)
    world.settle()
    world.crash("a")
    world.register.members = ()
    world.start("a")
    world.registers("a")
    world.take_over()
    world.brokers["a"].learn()
    assert world.home().end() == world.brokers["b"].copy().index
    world.heal()
    assert world.frames_sent.get(catalogue.LIVE, 0) >= 1
    assert len(world.home().truth.queues[1]) == 1
    same(world)


def test_frames_of_an_older_epoch_are_refused_by_everybody() -> None:
    world = World("abc", 2, "bc")
    world.settle()
    old = world.home()
    world.take_over()
    world.brokers["b"].learn()
    world.brokers["c"].learn()
    publish(old, 3)
    assert world.links[("a", "c")], "the old home doesn't know yet"
    world.deliver("a", "c")
    assert world.brokers["c"].copy().index == 0
    assert world.links[("c", "a")][-1][0] == catalogue.REFUSED
    world.heal()
    assert old.log.committed_memory == 0, "nobody answered it any more"


def test_an_invitation_of_an_older_epoch_is_refused() -> None:
    world = World("abc", 2, "bc")
    world.settle()
    world.take_over()
    world.brokers["c"].learn()
    world.cut("a", "c")
    world.connect("a", "c")
    assert [method for method, _ in world.links[("a", "c")]] == [catalogue.INVITE]
    world.deliver("a", "c")
    assert [method for method, _ in world.links[("c", "a")]] == [catalogue.REFUSED]
    standby = world.brokers["c"].standby
    assert standby is not None
    assert standby.home == ""


def test_a_replaced_home_follows_though_its_own_invitation_is_refused_late() -> None:
    """The refusal comes behind the invitation of the next home, and from the same broker."""
    world, _ = quiet()
    world.cut("a", "b")
    world.take_over()
    world.brokers["b"].learn()
    new = world.home()
    publish(new, 3)
    world.connect("a", "b")
    assert [method for method, _ in world.links[("a", "b")]] == [catalogue.INVITE]
    world.deliver("a", "b")
    assert [method for method, _ in world.links[("b", "a")]] == [
        catalogue.INVITE,
        catalogue.REFUSED,
    ]
    world.brokers["a"].learn()
    come_back(world)
    check(world.brokers["a"].copy(), world.brokers["a"].place, new.truth)
    assert world.register.members == (Member("a", "a1", WHOLE),)


def test_a_standby_that_follows_nobody_says_so_to_a_home_that_thinks_it_does() -> None:
    world, home = quiet()
    standby = world.brokers["b"].standby
    assert standby is not None
    standby.leave()
    publish(home, 3)
    assert [method for method, _ in world.links[("a", "b")]] == [catalogue.RECORDS]
    world.deliver("a", "b")
    assert [method for method, _ in world.links[("b", "a")]] == [catalogue.REFUSED]
    world.settle()
    world.tick(600)
    world.settle()
    same(world)
    assert home.log.committed_disk == home.end()


@pytest.mark.parametrize("durable", [True, False])
def test_damaged_records_are_refused_and_sent_again(durable: bool) -> None:
    world, home = quiet(window_bytes=1 << 20)
    publish(home, 5, durable)
    method, data = world.links[("a", "b")][-1]
    assert method == catalogue.RECORDS
    world.links[("a", "b")][-1] = (method, data[:-1] + bytes([data[-1] ^ 1]))
    world.settle()
    world.tick(1000)
    world.settle()
    same(world)
