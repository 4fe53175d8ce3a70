"""Changes of the membership (R4, R7, R12, R13), handing over, and room for proposals (R11)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rhizome.cluster.consensus import ChangeRefused, Consensus, NotRoot
from rhizome.cluster.consensus.consensus_messages import Append
from rhizome.cluster.link.broker_hello import WITNESS
from tests.interaction.consensus_stage import Stage
from tests.unit.cluster.consensus.invariant_watch import Audience

THREE = ("b1", "b2", "b3")


def at_work(members: tuple[str, ...], others: tuple[str, ...] = ()) -> Stage:
    """``others`` are primaries that aren't in the membership."""
    stage = Stage((*members, *others), ("s1",))
    for actor in stage.actors.values():
        actor.bootstrap = members if actor.name in members else None
    Audience(stage)
    stage.start(*stage.actors)
    stage.run_until(lambda: len(stage.holders()) == len(stage.actors))
    assert stage.roots() == ["b1"]
    return stage


def add(stage: Stage, name: str) -> None:
    stage.order("b1", lambda core, now: core.add_primary(name, now))


def remove(stage: Stage, name: str) -> None:
    stage.order("b1", lambda core, now: core.remove_primary(name, now))


def members(stage: Stage, name: str) -> tuple[str, ...]:
    return stage.core(name).registry.membership.names()


def test_a_primary_is_added_and_votes() -> None:
    stage = at_work(THREE, ("b4",))
    assert not stage.core("b4").state.i_vote()
    add(stage, "b4")
    stage.run(20)
    assert all(members(stage, name) == (*THREE, "b4") for name in stage.actors)
    stage.kill("b1", "b2")
    stage.run(5000)
    assert stage.roots() == []  # three of four are needed now
    stage.start("b2")
    stage.run(3000)
    assert len(stage.roots()) == 1


def test_a_removal_that_only_the_removed_one_has_is_completed_by_it() -> None:
    """The root dies before its own disk has the change: b1 needs b2's vote, b2's log is longer."""
    stage = at_work(("b1", "b2"))
    stage.hang_disk("b1")
    remove(stage, "b2")
    stage.run(20)
    assert stage.core("b2").state.electorate.newest.names() == ("b1",)
    stage.kill("b1")
    stage.actors["b1"].hanging = False
    stage.start("b1")
    stage.run_until(lambda: stage.roots() == ["b2"])
    stage.run_until(lambda: stage.roots() == ["b1"])
    stage.run(500)
    assert members(stage, "b1") == members(stage, "b2") == ("b1",)
    assert sorted(stage.holders()) == ["b1", "b2", "s1"]


def test_a_primary_is_removed_and_votes_no_more() -> None:
    stage = at_work(THREE)
    remove(stage, "b3")
    stage.run(20)
    assert members(stage, "b3") == ("b1", "b2")
    assert "b3" in stage.holders()  # it serves on, as one that doesn't vote
    stage.kill("b1")
    stage.run(5000)
    assert stage.roots() == []
    stage.start("b1")
    stage.run(3000)
    assert len(stage.roots()) == 1


def test_an_electorate_shrinks_to_the_last_man_standing() -> None:
    stage = at_work(THREE)
    stage.kill("b3")
    remove(stage, "b3")
    stage.run(20)
    stage.kill("b2")
    remove(stage, "b2")
    stage.run(20)
    assert members(stage, "b1") == ("b1",)
    stage.kill("b1")
    stage.start("b1")
    stage.run(3000)
    assert stage.roots() == ["b1"]  # it remembers that the change was committed


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (lambda stage: remove(stage, "b1"), "hand over"),
        (lambda stage: remove(stage, "b9"), "no primary"),
        (lambda stage: add(stage, "b2"), "already"),
        (lambda stage: add(stage, "b9"), "start it first"),
        (lambda stage: add(stage, "s1"), "is a secondary"),
        (lambda stage: (add(stage, "b4"), remove(stage, "b3")), "another change"),
    ],
)
def test_changes_that_break_a_rule_are_refused(what: object, reason: str) -> None:
    stage = at_work(THREE, ("b4",))
    assert callable(what)
    with pytest.raises(ChangeRefused, match=reason):
        what(stage)


def test_a_removal_that_leaves_too_few_is_refused() -> None:
    stage = at_work(THREE)
    stage.kill("b3")
    with pytest.raises(ChangeRefused, match="only 1 are here"):
        remove(stage, "b2")


def test_who_has_not_caught_up_is_not_added() -> None:
    stage = at_work(THREE, ("b4",))
    stage.censor = lambda sender, receiver, message: (
        receiver == "b4" and isinstance(message, Append)
    )
    stage.propose("b1", b"x")
    stage.run(20)
    with pytest.raises(ChangeRefused, match="hasn't caught up"):
        add(stage, "b4")


def test_only_the_root_changes_the_membership() -> None:
    stage = at_work(THREE)
    with pytest.raises(NotRoot, match="ask b1"):
        stage.order("b2", lambda core, now: core.remove_primary("b3", now))


def test_a_change_that_is_half_way_is_finished_by_the_next_root() -> None:
    stage = at_work(THREE, ("b4",))
    stage.censor = lambda sender, receiver, message: (
        isinstance(message, Append) and receiver in ("b3", "b4")
    )
    add(stage, "b4")
    stage.run(2)
    assert stage.core("b2").status().joint
    stage.kill("b1")
    stage.censor = lambda sender, receiver, message: False
    stage.run(5000)
    assert stage.roots() == ["b2"]
    assert members(stage, "b3") == (*THREE, "b4")


def test_an_absent_primary_is_bound_when_it_comes() -> None:
    stage = Stage(THREE)
    Audience(stage)
    stage.start("b1", "b2")
    stage.run_until(lambda: len(stage.holders()) == 2)
    stage.start("b3")
    stage.run(100)
    voter = stage.core("b1").registry.membership.get("b3")
    assert voter is not None
    assert voter.uuid == "b3-uuid-0"
    stage.kill("b1")
    stage.run(3000)
    assert stage.roots() == ["b2"]


def test_a_primary_that_is_not_bound_yet_counts_nowhere() -> None:
    """b3 is linked, but has nothing of the log: it is no second of three."""
    stage = Stage(THREE)
    Audience(stage)
    stage.start("b1", "b2")
    stage.run_until(lambda: len(stage.holders()) == 2)
    stage.censor = lambda sender, receiver, message: (
        isinstance(message, Append) and receiver == "b3"
    )
    stage.start("b3")
    stage.run(500)
    voter = stage.core("b1").registry.membership.get("b3")
    assert voter is not None
    assert voter.uuid == ""
    stage.kill("b2")
    stage.run(2000)
    assert stage.roots() == []


def test_a_wiped_primary_counts_nowhere_until_it_is_admitted() -> None:
    stage = at_work(THREE)
    stage.kill("b2", "b3")
    stage.actors["b3"].wipe()
    stage.run(2000)
    assert stage.roots() == []
    stage.start("b3")
    stage.run(10_000)
    assert stage.roots() == []  # b1 and a store that has forgotten are not two of three
    stage.start("b2")
    stage.run(10_000)
    voter = stage.core("b1").registry.membership.get("b3")
    assert voter is not None
    assert voter.uuid == "b3-uuid-1"


def test_wiped_primaries_that_see_the_cluster_found_no_other() -> None:
    stage = at_work(THREE)
    stage.kill(*THREE)
    for name in ("b2", "b3"):
        stage.actors[name].wipe()
    stage.start(*THREE)
    stage.run(10_000)
    assert stage.roots() == []
    assert stage.core("b2").cluster_uuid == ""


def test_a_founding_that_its_root_forgot_was_committed_is_found_again() -> None:
    """b1 alone has the newest entries, and doesn't know that its cluster was founded."""
    stage = Stage(THREE)
    Audience(stage)
    stage.start(*THREE)
    stage.run_until(lambda: bool(stage.core("b2").cluster_uuid))
    stage.propose("b1", b"x")
    stage.run(1)
    stage.kill(*THREE)
    image = stage.actors["b1"].store.image
    stage.actors["b1"].store.image = replace(image, commit=0, cluster_uuid="")
    stage.start(*THREE)
    stage.run(5000)
    assert len(stage.roots()) == 1
    assert stage.core("b1").cluster_uuid == stage.core("b2").cluster_uuid


def test_a_broker_on_the_machine_of_another_is_bound_without_a_vote() -> None:
    stage = Stage(THREE)
    stage.actors["b3"].machine = stage.actors["b1"].machine
    stage.start("b1", "b2")
    stage.run_until(lambda: len(stage.holders()) == 2)
    stage.start("b3")
    stage.run(100)
    assert [v.votes for v in stage.core("b1").registry.membership.voters] == [True, True, False]
    assert stage.core("b1").status().quorum.defined == 2


def test_a_secondary_cant_take_the_name_of_a_primary() -> None:
    stage = at_work(THREE)
    stage.kill("b3", "s1")
    stage.run(5000)
    impostor = stage.actors["s1"]
    impostor.name = "b3"
    stage.actors = {"b1": stage.actors["b1"], "b2": stage.actors["b2"], "b3": impostor}
    stage.start("b3")
    stage.run(2000)
    registered = stage.core("b1").registry.get("b3")
    assert registered is not None
    assert registered.registration.role == "primary"


def test_the_office_is_handed_over_without_a_pause_of_a_lease() -> None:
    stage = at_work(THREE)
    stage.propose("b1", b"x")
    stage.order("b1", lambda core, now: core.transfer_root("b3", now))
    assert stage.run_until(lambda: stage.roots() == ["b3"]) < 50
    stage.run(100)
    assert stage.core("b3").propose(b"y", stage.now_ms) is not None
    assert stage.actors["b3"].state == [b"x"]


def test_a_root_that_is_handing_over_takes_no_more_proposals() -> None:
    stage = at_work(THREE)
    stage.censor = lambda sender, receiver, message: receiver == "b3"
    stage.propose("b1", b"x")
    stage.order("b1", lambda core, now: core.transfer_root("b3", now))
    assert stage.propose("b1", b"y") is None
    stage.run(4000)
    assert stage.roots() == ["b1"]  # the heir never caught up: given up
    assert stage.core("b1").term == 1
    assert stage.propose("b1", b"z") is not None


def test_what_a_root_is_asked_while_it_hands_over_in_vain_is_done_afterwards() -> None:
    """In the order in which it came, and once, though it came again."""
    stage = at_work(THREE)
    stage.censor = lambda sender, receiver, message: receiver == "b3"
    stage.propose("b1", b"x")
    stage.order("b1", lambda core, now: core.transfer_root("b3", now))
    for data in (b"first", b"second", b"first"):
        stage.order("b1", lambda core, now: core.submit(data, now))  # noqa: B023
    stage.run(500)
    assert stage.actors["b1"].state == [b"x"]
    stage.run(3500)
    assert stage.roots() == ["b1"]
    assert stage.actors["b1"].state == [b"x", b"first", b"second"]
    stage.order("b1", lambda core, now: core.submit(b"third", now))
    stage.run(100)
    assert stage.actors["b2"].state == [b"x", b"first", b"second", b"third"]


def test_what_a_root_was_asked_while_it_handed_over_is_left_to_be_asked_of_the_next() -> None:
    stage = at_work(THREE)
    stage.slow["b1", "b3"] = 20
    stage.propose("b1", b"x")
    stage.order("b1", lambda core, now: core.transfer_root("b3", now))
    stage.order("b1", lambda core, now: core.submit(b"y", now))
    stage.run_until(lambda: stage.roots() == ["b3"])
    stage.order("b3", lambda core, now: core.transfer_root("b1", now))
    stage.run_until(lambda: stage.roots() == ["b1"])
    stage.run(2000)
    assert stage.actors["b1"].state == [b"x"]


def test_what_a_root_has_no_room_for_is_done_when_there_is() -> None:
    stage = at_work(THREE)
    limit = stage.core("b1").state.settings.uncommitted_bytes_max
    stage.order("b1", lambda core, now: core.submit(bytes(limit), now))
    assert stage.propose("b1", b"x") is None
    stage.order("b1", lambda core, now: core.submit(b"y", now))
    stage.run(2000)
    assert stage.roots() == ["b1"]
    assert stage.actors["b2"].state == [bytes(limit), b"y"]


def test_what_must_not_be_refused_has_room_when_nothing_else_has() -> None:
    """A takeover, for one; but not without end."""
    stage = at_work(THREE)
    settings = stage.core("b1").state.settings
    stage.order("b1", lambda core, now: core.submit(bytes(settings.uncommitted_bytes_max), now))
    assert stage.propose("b1", b"x") is None

    def propose(core: Consensus, now_ms: int) -> None:
        assert core.propose(bytes(settings.reserve_bytes), now_ms, reserve=True) is not None
        assert core.propose(b"y", now_ms, reserve=True) is None

    stage.order("b1", propose)


def test_the_office_is_handed_to_voters_only() -> None:
    stage = at_work(THREE, ("b4",))
    for name in ("b4", "s1", "b9"):
        with pytest.raises(ChangeRefused, match="isn't a linked primary"):
            stage.order("b1", lambda core, now: core.transfer_root(name, now))  # noqa: B023


def test_a_forced_root_is_alone_and_keeps_what_it_had() -> None:
    stage = at_work(THREE)
    stage.propose("b1", b"x")
    stage.run(20)
    stage.kill("b1", "b2")
    stage.run(2000)
    stage.order("b3", lambda core, now: core.force_root(now))
    stage.run(20)
    status = stage.core("b3").status()
    assert stage.roots() == ["b3"]
    assert status.parent_uuid
    assert status.cluster_uuid != status.parent_uuid
    assert stage.actors["b3"].state == [b"x"]
    stage.kill("b3")
    stage.start("b3")
    stage.run(3000)
    assert stage.core("b3").cluster_uuid == status.cluster_uuid
    assert stage.roots() == ["b3"]


def test_brokers_of_the_parent_are_refused_before_the_new_cluster_is_committed() -> None:
    stage = at_work(THREE)
    stage.kill("b1")
    stage.cut("b2", "b3")
    stage.run(2000)
    stage.hang_disk("b3")
    stage.order("b3", lambda core, now: core.force_root(now))
    stage.link("b2", "b3")
    assert any("b3 refuses b2" in line for line in stage.lines)


class OldUuid:
    """R12 broken: a forced root goes on under the UUID of the cluster that it leaves."""

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid

    def randrange(self, stop: int, /) -> int:
        return 0

    def getrandbits(self, k: int, /) -> int:
        return int(self.uuid, 16)


def two_go_on_without_a_forced_root(stage: Stage, keeps_uuid: bool) -> None:
    """b1 and b2 never died, and have committed what b3 doesn't know."""
    stage.start(*THREE)
    stage.run_until(lambda: len(stage.holders()) == 3)
    stage.isolate("b3")
    stage.propose("b1", b"x")
    stage.run(3000)
    if keeps_uuid:
        stage.core("b3").state.chance = OldUuid(stage.core("b3").cluster_uuid)
    stage.order("b3", lambda core, now: core.force_root(now))
    stage.propose("b3", b"y")
    stage.run(100)
    stage.heal()
    stage.run(5000)


def test_a_forced_root_leaves_those_alone_who_go_on() -> None:
    stage = Stage(THREE)
    two_go_on_without_a_forced_root(stage, False)
    assert any("b3 refuses b1" in line for line in stage.lines)
    states = [stage.actors[name].state for name in THREE]
    assert states == [[b"x"], [b"x"], [b"y"]]


def test_without_a_new_uuid_a_forced_root_overwrites_what_others_have_committed() -> None:
    with pytest.raises(AssertionError, match="is committed and can't be replaced"):
        two_go_on_without_a_forced_root(Stage(THREE), True)


def test_others_join_a_forced_root_one_by_one_with_empty_stores() -> None:
    stage = at_work(THREE)
    stage.kill("b1", "b2", "s1")
    stage.order("b3", lambda core, now: core.force_root(now))
    stage.run(20)
    stage.start("b1")
    stage.run(2000)
    assert stage.core("b1").cluster_uuid != stage.core("b3").cluster_uuid
    assert any("b3 refuses b1" in line for line in stage.lines)
    stage.kill("b1")
    stage.actors["b1"].wipe()
    stage.start("b1")
    stage.run(5000)
    stage.order("b3", lambda core, now: core.add_primary("b1", now))
    stage.run(5000)
    assert members(stage, "b1") == ("b3", "b1")
    view = [b.registration.name for b in stage.core("b3").registry.brokers]
    assert view[-1] == "b1"  # and the youngest; what b1 was before counts no more
    assert view.count("b1") == 1


def test_a_secondary_and_a_broker_without_a_cluster_cant_be_forced() -> None:
    stage = at_work(THREE)
    with pytest.raises(ChangeRefused, match="a secondary"):
        stage.order("s1", lambda core, now: core.force_root(now))
    alone = Stage(THREE)
    alone.start("b1")
    with pytest.raises(ChangeRefused, match="no cluster"):
        alone.order("b1", lambda core, now: core.force_root(now))


def test_a_founding_that_was_overtaken_gives_way_to_the_one_that_was_not() -> None:
    """b1 wrote a first entry that nobody has; b2 and b3 have founded the cluster since."""
    stage = Stage(THREE)
    stage.start(*THREE)
    stage.run_until(lambda: stage.roots() == ["b1"])
    stage.run(1)
    stage.kill("b1")
    for name in ("b2", "b3"):
        assert stage.core(name).state.persistent.log.last_index == 0
    stage.run(10_000)
    assert stage.roots() == ["b2"]
    uuid = stage.core("b2").cluster_uuid
    assert stage.actors["b1"].store.image.entries == () or uuid
    stage.start("b1")
    stage.run(5000)
    assert stage.core("b1").cluster_uuid == uuid
    assert len(stage.holders()) == 3


def test_a_witness_is_a_voter_like_any_other() -> None:
    stage = Stage(("b1", "b2", "w"))
    stage.actors["w"].role = WITNESS
    stage.start("b1", "b2", "w")
    stage.run_until(lambda: len(stage.holders()) == 3)
    stage.kill("b1")
    stage.run(3000)
    assert stage.roots() == ["b2"]
