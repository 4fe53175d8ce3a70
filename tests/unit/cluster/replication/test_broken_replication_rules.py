"""Each rule of copies broken on purpose: a story that is harmless while the rule is kept, and ends
with something lost, or with a copy that isn't true, when it isn't.

What is compiled can't be patched, so what is broken is around it: the register in place of the
root, what a broker does with its copy, what a home records, and what goes over the links.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from mypy_extensions import i64

from rhizome.cluster.protocol import catalogue
from rhizome.cluster.protocol import replication_codec as codec
from rhizome.cluster.replication.catch_up_sender import LiveQueue
from rhizome.cluster.replication.group_copy import GroupCopy
from rhizome.cluster.state.cluster_commands import DISK, WHOLE, Member
from rhizome.cluster.state.groups_and_placement import Group
from tests.unit.cluster.replication.group_world import Broker, Home, Register, World
from tests.unit.cluster.replication.test_group_world import walk

# --- worlds with a rule less


class KeepsItsEpoch(Register):
    def register(self, name: str, incarnation: str) -> None:
        super().register(name, incarnation)
        if self.home == name:
            self.incarnation = incarnation
            self.home_restarted = False


class RestartedHomeKeepsItsEpoch(World):
    """G1."""

    register_kind = KeepsItsEpoch


class TakesAnyEpoch(Broker):
    def receive(self, name: str, method: int, data: bytes) -> None:
        if self.standby is not None:
            self.standby.newest = 0
        super().receive(name, method, data)


class OlderEpochsAreTaken(World):
    """G1."""

    broker_kind = TakesAnyEpoch


class CountsIncarnationsAlike(Register):
    def register(self, name: str, incarnation: str) -> None:
        super().register(name, incarnation)
        self.members = tuple(
            Member(name, incarnation, WHOLE) if each.broker == name else each
            for each in self.members
        )


class IncarnationsAreAlike(World):
    """G2."""

    register_kind = CountsIncarnationsAlike


class AnybodyTakesOver(World):
    """G3."""

    def take_over(self, whole_only: bool = False) -> bool:
        here = [each for each in self.brokers.values() if each.up and each.standby is not None]
        if here and self.home_is_gone():
            self.register.appoint(here[-1].name, here[-1].incarnation)
            return True
        return False


class TakesAnyVersion(Register):
    def set_members(self, members: list[Member], epoch: int, version: int) -> bool:
        return super().set_members(members, self.epoch, self.version)


class SetsHaveNoVersion(World):
    """G5."""

    register_kind = TakesAnyVersion


class AnswersAreNotAwaited(World):
    """G6: whatever a standby says, the home takes it for all that there is."""

    def send(self, sender: str, receiver: str, method: int, data: bytes) -> bool:
        home = self.brokers[receiver].home
        if method == catalogue.REPLICATED and home is not None:
            group, epoch = int.from_bytes(data[:2], "big"), codec.epoch_at(data, 0)
            listing = int.from_bytes(data[23:27], "big")
            data = codec.replicated(group, epoch, home.end(), home.end(), codec.WHOLE, listing)
        return super().send(sender, receiver, method, data)


class BelievesItsDisk(Home):
    def end_turn(self, now_ms: int) -> None:
        self.log.handed_over(self.broker.place.submit())
        self.log.synced(int(self.broker.place.journal.end_position()))
        super().end_turn(now_ms)


class HomeDoesNotSync(World):
    """G6."""

    home_kind = BelievesItsDisk


class TakesWhatItInheritsForCommitted(Home):
    def __init__(self, broker: Broker, epoch: int, copy: GroupCopy, now_ms: int) -> None:
        super().__init__(broker, epoch, copy, now_ms)
        self.log.restrict(still=False, silent=False)


class ConfirmsWhatItInherits(World):
    """G7: a new home does not wait for its copies."""

    home_kind = TakesWhatItInheritsForCommitted


class AsksForNoCopies(Register):
    def group(self) -> Group:
        return replace(super().group(), min_copies=1)


class CopiesAreNotCounted(World):
    """G10."""

    register_kind = AsksForNoCopies


class ShowsAtOnce(Home):
    def visible(self) -> int:
        return self.end()


class DeliversBeforeCommit(World):
    """L1."""

    home_kind = ShowsAtOnce


class TakesItsCopyForWhole(Broker):
    def start(self) -> None:
        super().start()
        self.copy().whole = True


class LogEndsAreCompared(World):
    """L2: not live sets."""

    broker_kind = TakesItsCopyForWhole


class TakesAnyHistory(Broker):
    def receive(self, name: str, method: int, data: bytes) -> None:
        if method == catalogue.INVITE and self.standby is not None:
            self.copy().starts[:] = codec.starts_in(codec.table_in(data, 0, len(data)))
        super().receive(name, method, data)


class NothingIsCutOff(World):
    """L2: a copy goes on with what its history has and the home's hasn't."""

    broker_kind = TakesAnyHistory


class ForgetsInstalls(Broker):
    def start(self) -> None:
        super().start()
        self.copy().known.installing = False


class InstallsAreForgotten(World):
    """L2."""

    broker_kind = ForgetsInstalls


class CountsForItself(Home):
    def requeue(self, queue: int, index: int, count: int) -> None:
        self.truth.counts.setdefault(queue, {})[index] = count


class CountsAreNotRecorded(World):
    """L3."""

    home_kind = CountsForItself


class RemembersForItself(Home):
    def live(self, queue_id: i64) -> LiveQueue | None:
        found = super().live(queue_id)
        if found is not None:
            found.seen = None
        return found


class WatermarksAreNotTold(World):
    """L5."""

    home_kind = RemembersForItself


# --- what happens


def publish(world: World, count: int, durable: bool = True, producer: bytes = b"") -> None:
    home = world.home()
    for _ in range(count):
        home.publish([1], durable, producer=producer)
    home.broker.end_turn()


def restart(world: World, name: str) -> None:
    world.crash(name)
    world.start(name)
    world.registers(name)


def reconnect(world: World, one: str, other: str) -> None:
    world.connect(one, other)
    world.settle()
    world.tick()
    world.settle()


def home_restarts_and_goes_on(kind: type[World]) -> None:
    """Its standby has two records that its disk hadn't."""
    world = kind("ab", 1, "b")
    world.settle()
    publish(world, 3)
    world.settle()
    publish(world, 2)
    while world.deliver("a", "b"):
        pass
    restart(world, "a")
    world.brokers["a"].learn()
    if world.brokers["a"].home is not None:
        publish(world, 2)
    world.heal()


def deposed_home_invites(kind: type[World]) -> None:
    """c follows b; a, which was home before b and doesn't know that it isn't, gets a link to c."""
    world = kind("abc", 2, "b")
    world.cut("a", "c")
    world.settle()
    publish(world, 3)
    world.settle()
    world.register.appoint("b", "b1")
    world.brokers["b"].learn()
    world.brokers["c"].learn()
    world.cut("a", "b")
    world.settle()
    world.tick()
    world.settle()
    assert [each.broker for each in world.register.members] == ["c"]
    for _ in range(2):
        publish(world, 3)
        world.settle()
    reconnect(world, "a", "c")
    world.heal()


def standby_restarts_before_the_home_dies(kind: type[World]) -> None:
    world = kind("ab", 1, "b")
    world.settle()
    publish(world, 3, durable=False)
    world.settle()
    restart(world, "b")
    world.crash("a")
    if world.take_over(whole_only=True):
        world.brokers["b"].learn()
    world.heal()


def home_and_member_die(kind: type[World]) -> None:
    """c, which has nothing, is left."""
    world = kind("abc", 1, "b")
    world.settle()
    publish(world, 3)
    world.settle()
    world.crash("a")
    world.crash("b")
    if world.take_over():
        world.brokers["c"].learn()
    world.heal()


def proposal_comes_late(kind: type[World]) -> None:
    """a wants c in the set; b takes over from a and confirms alone, before that is decided."""
    world = kind("abc", 2, "b")
    while not world.proposals:
        for sender, receiver in list(world.links):
            world.deliver(sender, receiver)
        for broker in world.brokers.values():
            broker.sync()
    world.register.appoint("b", "b1")
    world.cut("a", "b")
    world.cut("b", "c")
    world.brokers["b"].learn()
    publish(world, 3)
    world.brokers["b"].sync()
    assert world.confirmed
    world.decide()
    world.crash("b")
    if world.take_over(whole_only=True):
        world.brokers["c"].learn()
    world.heal()


def member_loses_what_it_had_not_synced(kind: type[World]) -> None:
    world = kind("ab", 1, "b")
    world.settle()
    publish(world, 3)
    while world.deliver("a", "b"):
        pass
    while world.deliver("b", "a"):
        pass
    world.brokers["a"].sync()
    restart(world, "b")
    world.crash("a")
    assert world.register.members == (Member("b", "b2", DISK),)
    world.take_over()
    world.brokers["b"].learn()
    world.heal()


def home_alone_loses_power(kind: type[World]) -> None:
    world = kind("ab", 0, "")
    world.settle()
    publish(world, 3)
    restart(world, "a")
    world.take_over()
    world.brokers["a"].learn()
    world.heal()


def new_home_dies_before_its_copy_has_answered(kind: type[World]) -> None:
    """b has a message that c never got, and c takes over from b."""
    world = kind("abc", 2, "bc")
    world.settle()
    publish(world, 3)
    world.settle()
    world.cut("a", "c")
    publish(world, 1)
    while world.deliver("a", "b"):
        pass
    world.brokers["b"].sync()
    world.crash("a")
    world.register.appoint("b", "b1")
    world.brokers["b"].learn()
    world.brokers["b"].end_turn()
    world.crash("b")
    world.register.appoint("c", "c1")
    world.brokers["c"].learn()
    world.heal()


def home_is_alone_and_must_not_be(kind: type[World]) -> None:
    """There must be two copies, and the standby comes later."""
    world = kind("ab", 1, "")
    world.register.min_copies = 2
    world.cut("a", "b")
    world.brokers["a"].learn()
    publish(world, 1)
    world.brokers["a"].sync()
    assert not world.confirmed, "confirmed with one copy of two"
    world.heal()
    assert world.confirmed


def consumer_sees_what_the_standby_never_gets(kind: type[World]) -> None:
    world = kind("ab", 1, "b")
    world.settle()
    publish(world, 3)
    world.settle()
    world.cut("a", "b")
    publish(world, 1)
    home = world.home()
    shown = [index for index in home.truth.queues[1] if index <= home.visible()]
    assert shown[:3] == [1, 2, 3]
    world.crash("a")
    assert world.take_over(whole_only=True)
    world.brokers["b"].learn()
    there = world.home().truth.queues[1]
    assert all(index in there for index in shown), "a consumer saw what never was"
    world.heal()


def standby_restarts(kind: type[World]) -> None:
    """Its log goes as far as the home's, and lacks the transient messages."""
    world = kind("ab", 1, "b")
    world.settle()
    publish(world, 3, durable=False)
    publish(world, 1)
    world.settle()
    restart(world, "b")
    world.heal()


def histories_part(kind: type[World]) -> None:
    """c has a record of a's that b never got, and b is home now."""
    world = kind("abc", 2, "bc")
    world.settle()
    publish(world, 3)
    world.settle()
    world.cut("a", "b")
    publish(world, 1)
    while world.deliver("a", "c"):
        pass
    world.crash("a")
    world.register.appoint("b", "b1")
    world.brokers["b"].learn()
    world.brokers["c"].learn()
    publish(world, 2)
    world.heal()


def standby_restarts_while_it_is_made(kind: type[World]) -> None:
    """c gets new records while it lacks the old ones."""
    world = kind("ac", 1, "", window_bytes=100)
    world.cut("a", "c")
    world.settle()
    publish(world, 30)
    world.settle()
    world.connect("a", "c")
    while world.frames_sent.get(catalogue.LIVE, 0) == 0:
        world.deliver("a", "c")
        world.deliver("c", "a")
    publish(world, 3)
    while world.deliver("a", "c"):
        pass
    world.brokers["c"].sync()
    restart(world, "c")
    world.heal()


def message_is_given_back(kind: type[World]) -> None:
    world = kind("ab", 1, "b")
    world.settle()
    publish(world, 3)
    world.settle()
    world.home().requeue(1, 2, 1)
    publish(world, 1)
    world.heal()


def standby_is_made_anew(kind: type[World]) -> None:
    world = kind("ab", 1, "b")
    world.settle()
    world.crash("b")
    publish(world, 3, producer=b"p")
    world.start("b")
    world.heal()


Story = Callable[[type[World]], None]

BROKEN: list[tuple[Story, type[World], str]] = [
    (home_restarts_and_goes_on, RestartedHomeKeepsItsEpoch, "ever cut off"),
    (deposed_home_invites, OlderEpochsAreTaken, "nothing that was confirmed is ever cut off"),
    (standby_restarts_before_the_home_dies, IncarnationsAreAlike, "lost by a whole copy"),
    (home_and_member_die, AnybodyTakesOver, "confirmed and lost"),
    (proposal_comes_late, SetsHaveNoVersion, "confirmed and lost"),
    (member_loses_what_it_had_not_synced, AnswersAreNotAwaited, "confirmed and lost"),
    (home_alone_loses_power, HomeDoesNotSync, "confirmed and lost"),
    (new_home_dies_before_its_copy_has_answered, ConfirmsWhatItInherits, "confirmed and lost"),
    (home_is_alone_and_must_not_be, CopiesAreNotCounted, "confirmed with one copy of two"),
    (consumer_sees_what_the_standby_never_gets, DeliversBeforeCommit, "what never was"),
    (standby_restarts, LogEndsAreCompared, "other messages"),
    (histories_part, NothingIsCutOff, "other messages"),
    (standby_restarts_while_it_is_made, InstallsAreForgotten, "not after a restart"),
    (message_is_given_back, CountsAreNotRecorded, "other counts"),
    (standby_is_made_anew, WatermarksAreNotTold, "other watermarks"),
]


@pytest.mark.parametrize(
    ("story", "kind", "said"), BROKEN, ids=[kind.__name__ for _, kind, _ in BROKEN]
)
def test_a_broken_rule_is_seen(story: Story, kind: type[World], said: str) -> None:
    story(World)
    with pytest.raises(AssertionError, match=said):
        story(kind)


@pytest.mark.parametrize("kind", [RestartedHomeKeepsItsEpoch, IncarnationsAreAlike])
def test_a_broken_rule_is_seen_in_random_worlds(kind: type[World]) -> None:
    """Nobody has to know the story."""
    with pytest.raises(AssertionError, match="lost by a whole copy"):
        walk(0, 400, kind).heal()
