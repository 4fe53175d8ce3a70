"""What operators are told: pictures of a cluster, and previews of changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rhizome.cluster.consensus.consensus_output import MemberStatus, Quorum, Status
from rhizome.cluster.consensus.consensus_registry import Registered
from rhizome.cluster.consensus.log.log_entry_payloads import Registration
from rhizome.cluster.consensus.settings import ConsensusSettings
from rhizome.cluster.link.broker_hello import Hello
from rhizome.cluster.link.peers import LinkSettings
from rhizome.management.cluster_view import Change, Preview
from rhizome.server.config.cluster_section import ClusterSection, host_id, parse_primary
from rhizome.server.config.consensus_and_home_settings import (
    consensus_settings,
    link_settings,
    primaries_hash,
)
from rhizome.server.operator_views.cluster_change_preview import basis_of, preview_of
from rhizome.server.operator_views.cluster_info import ClusterKnowledge, broker_infos, cluster_info
from rhizome.server.operator_views.group_info import Duties

UUID = "c" * 32


def hello(name: str, role: str = "primary", machine: str = "", incarnation: str = "1") -> Hello:
    return Hello(
        name,
        name.encode().hex().zfill(32),
        incarnation,
        role,
        (f"{name}:5672",),
        machine or f"m-{name}",
    )


def registered(seniority: int, name: str, role: str = "primary") -> Registered:
    said = hello(name, role)
    return Registered(
        seniority,
        Registration(name, said.uuid, said.incarnation, role, said.addresses, said.machine),
    )


def member(name: str, linked: bool = True, votes: bool = True) -> MemberStatus:
    return MemberStatus(name, bound=True, votes=votes, linked=linked, counts=linked)


def status(**changes: object) -> Status:
    """b1 is root of b1, b2, b3, which are all there."""
    whole = Status(
        name="b1",
        role="root",
        term=5,
        root="b1",
        cluster_uuid=UUID,
        parent_uuid="",
        commit_index=40,
        applied_index=40,
        settled_index=40,
        last_index=41,
        synced_index=41,
        snapshot_index=0,
        quorum=Quorum(3, 3, 2),
        joint=False,
        members=(member("b1"), member("b2"), member("b3")),
        view=(registered(2, "b2"), registered(3, "b1"), registered(4, "b3")),
        has_lease=True,
        lease_left_ms=800,
        leases=(),
        waits_for="",
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


def known(*more: Hello, homes: dict[str, int] | None = None, **changes: object) -> ClusterKnowledge:
    duties = {name: Duties(number) for name, number in (homes or {}).items()}
    hellos = {each.name: each for each in (hello("b1"), hello("b2"), hello("b3"), *more)}
    return ClusterKnowledge(status(**changes), hellos, {"b1": 7}, duties)


def without(seen: ClusterKnowledge, *names: str) -> ClusterKnowledge:
    """The same, with links lost."""
    hellos = {name: each for name, each in seen.hellos.items() if name not in names}
    members = tuple(
        replace(each, linked=False, counts=False) if each.name in names else each
        for each in seen.status.members
    )
    return replace(seen, hellos=hellos, status=replace(seen.status, members=members))


def add(name: str, seen: ClusterKnowledge) -> Preview:
    return preview_of(Change("add-primary", name), seen)


def remove(name: str, seen: ClusterKnowledge) -> Preview:
    return preview_of(Change("remove-primary", name), seen)


def force(seen: ClusterKnowledge) -> Preview:
    return preview_of(Change("force-root"), seen)


# --- settings


def test_default_section_means_the_defaults_of_the_cores() -> None:
    assert consensus_settings(ClusterSection()) == ConsensusSettings()
    assert link_settings(ClusterSection(link_macs="always"), 128 << 20) == LinkSettings(
        has_macs=True, trusts_loopback=False
    )
    assert link_settings(ClusterSection(), 1).trusts_loopback
    assert link_settings(ClusterSection(), 1).host == host_id() != ""


def test_links_need_certificates_if_the_section_says_tls() -> None:
    assert link_settings(ClusterSection(tls=True), 1).needs_certificate


def test_hash_is_of_the_names_in_any_order_at_any_address() -> None:
    def section(*entries: str) -> ClusterSection:
        return ClusterSection(primaries=tuple(parse_primary(each) for each in entries))

    first = primaries_hash(section("b1=h:1", "b2=h:2"))
    assert first == primaries_hash(section("b2=other:2", "b1=h:1"))
    assert first != primaries_hash(section("b1=h:1", "b3=h:2"))


# --- pictures


def test_brokers_are_in_order_of_seniority_with_their_status() -> None:
    seen = known(hello("s1", "secondary"), homes={"b1": 1})
    seen = replace(
        seen,
        status=replace(seen.status, view=(*seen.status.view, registered(9, "s1", "secondary"))),
    )
    rows = broker_infos(seen)
    assert [(each.name, each.seniority, each.status, each.linked) for each in rows] == [
        ("b2", 2, "ready", True),
        ("b1", 3, "active", True),
        ("b3", 4, "ready", True),
        ("s1", 9, "active", True),
    ]
    assert rows[1].connections == 7
    assert rows[1].addresses == ("b1:5672",)


def test_broker_that_is_to_stop_says_what_it_still_has() -> None:
    seen = replace(known(), draining=("b2", "b3"), duties={"b2": Duties(2, 1, 3)})
    rows = {each.name: each for each in broker_infos(seen)}
    assert [rows[name].status for name in ("b1", "b2", "b3")] == ["ready", "draining", "draining"]
    b2 = rows["b2"]
    assert (b2.draining, b2.homes, b2.stuck, b2.copies) == (True, 2, 1, 3)


def test_broker_without_a_link_is_stopped_and_one_without_registration_joins() -> None:
    seen = without(known(hello("b4")), "b2")
    rows = {each.name: each for each in broker_infos(seen)}
    assert (rows["b2"].status, rows["b2"].linked, rows["b2"].machine) == ("stopped", False, "m-b2")
    assert (rows["b4"].status, rows["b4"].seniority) == ("joining", 0)


def test_new_incarnation_joins_until_it_is_registered() -> None:
    rows = {each.name: each for each in broker_infos(known(hello("b2", incarnation="2")))}
    assert rows["b2"].status == "joining"


def test_own_status_is_isolated_without_a_lease_and_starting_without_a_cluster() -> None:
    rows = {each.name: each for each in broker_infos(known(has_lease=False))}
    assert (rows["b1"].status, rows["b2"].status) == ("isolated", "ready")
    rows = {each.name: each for each in broker_infos(known(view=(), cluster_uuid=""))}
    assert (rows["b1"].status, rows["b2"].status) == ("starting", "joining")


def test_secondaries_believe_the_state_about_each_other() -> None:
    view = (registered(2, "s1", "secondary"), registered(3, "s2", "secondary"))
    seen = known(hello("s1", "secondary"), name="s1", view=view)
    rows = {each.name: each for each in broker_infos(seen)}
    assert (rows["s2"].status, rows["s2"].linked) == ("active", False)


def test_primary_that_never_came_is_listed_with_a_note() -> None:
    members = (member("b1"), member("b2"), MemberStatus("b9", False, True, False, False))
    seen = known(members=members)
    assert "b9" in [each.name for each in broker_infos(seen)]
    assert cluster_info(seen, "shop").notes == ("b9 is a primary that has not come yet",)


def test_notes_say_what_an_operator_should_know() -> None:
    members = (
        member("b1"),
        MemberStatus("b2", bound=True, votes=True, linked=True, counts=False),
        member("b3", votes=False),
    )
    seen = known(
        members=members, waits_for="an election", joint=True, parent_uuid="f" * 32, root=""
    )
    info = cluster_info(seen, "shop")
    assert info.root is None
    assert info.notes == (
        "b1 waits for an election",
        f"this cluster was forced out of cluster {'f' * 32}",
        "a change of the primaries is under way",
        "b2 has come with another store, and votes once it is admitted",
        "b3 has no vote: it shares its machine with another primary (cluster.machine)",
    )


# --- adding and removing primaries


def test_adding_shows_the_new_quorums() -> None:
    preview = add("b4", known(hello("b4")))
    assert preview.steps == (
        "b4, a primary on machine m-b4, becomes a primary beside b1, b2, b3",
        "3 of 4 votes elect a root (now 2 of 3), and a root goes on with 2 (now 2)",
    )
    assert preview.warnings == ("4 primaries survive the loss of 1 of them, like 3",)
    assert not preview.refusal


def test_adding_to_an_even_number_has_nothing_to_warn_of() -> None:
    seen = known(hello("b3"), members=(member("b1"), member("b2")))
    assert add("b3", seen).warnings == ()


def test_adding_on_the_same_machine_gives_no_vote() -> None:
    preview = add("b4", known(hello("b4", machine="m-b2")))
    assert preview.steps[1] == "the votes stay as they are: 2 of 3 elect a root"
    assert "has the machine id of b2, m-b2, and gets no vote" in preview.warnings[0]


@pytest.mark.parametrize(
    ("name", "seen", "said"),
    [
        ("b2", known(), "b2 is a primary of this cluster already"),
        ("b4", known(), "b4 has no link to b1; start it with role primary first"),
        ("s1", known(hello("s1", "secondary")), "s1 is a secondary"),
        ("b4", known(root="b2"), "b1 is not the root; ask b2"),
        ("b4", known(root="", waits_for="b2 to start"), "no root now"),
        ("b4", known(joint=True), "another change of the primaries is under way"),
    ],
)
def test_adding_is_refused_with_a_reason(name: str, seen: ClusterKnowledge, said: str) -> None:
    preview = add(name, seen)
    assert said in preview.refusal
    assert preview.steps == ()


def test_removing_shows_who_remains_and_what_that_means() -> None:
    preview = remove("b3", known(homes={"b3": 2}))
    assert preview.steps == (
        "b3 is no longer a primary; b1, b2 remain",
        "2 of 2 votes elect a root (now 2 of 3), and a root goes on with 1 (now 2)",
    )
    assert preview.warnings == (
        "b3 is there and linked; stop it when this is done",
        "b3 is the home of 2 groups; `rhizome broker drain b3` moves them first",
        "of two primaries only the root may go on alone; a witness makes three",
    )


def test_removing_a_lost_primary_of_two_leaves_one_alone() -> None:
    seen = without(known(members=(member("b1"), member("b2"))), "b2")
    assert remove("b2", seen).warnings == ("b1 alone: its loss is the loss of the cluster",)


def test_root_and_strangers_are_not_removed() -> None:
    assert "never removes itself" in remove("b1", known()).refusal
    assert "is no primary of this cluster, which has b1, b2, b3" in remove("b9", known()).refusal


# --- forcing a root


def test_forcing_shows_what_is_left_behind() -> None:
    seen = without(known(root="", quorum=Quorum(3, 1, 2)), "b2", "b3")
    preview = force(seen)
    assert (
        preview.steps[0]
        == f"b1 leaves cluster {UUID} with the state that it has, which ends at entry 41"
    )
    assert preview.steps[2].startswith("b2, b3 may join it with an empty store")
    assert preview.warnings == (
        "make sure that b2, b3 are stopped: together they may still be a cluster, and both would"
        " serve the same queues",
        "changes that only b2, b3 had are lost",
    )


def test_forcing_warns_if_an_election_could_do() -> None:
    seen = without(known(root="", quorum=Quorum(3, 2, 2), waits_for="b2 to vote"), "b3")
    first, *_, last = force(seen).warnings
    assert "enough to elect a root without force; b1 waits for b2 to vote" in first
    assert last == "b2 will be cut off; stop and rejoin afterwards"


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (known(), "the cluster has a root, b1"),
        (known(root="", cluster_uuid=""), "b1 belongs to no cluster yet"),
        (known(hello("s1", "secondary"), name="s1", root=""), "s1 is a secondary"),
    ],
)
def test_forcing_is_refused_with_a_reason(seen: ClusterKnowledge, said: str) -> None:
    assert said in force(seen).refusal


def test_basis_changes_with_what_was_shown() -> None:
    forced, adding = Change("force-root"), Change("add-primary", "b4")
    whole = known(root="")
    assert basis_of(forced, whole.status) != basis_of(forced, without(whole, "b2").status)
    assert basis_of(adding, whole.status) == basis_of(adding, without(whole, "b2").status)
    for changed in (status(term=6), status(root="b2"), status(members=(member("b1"),))):
        assert basis_of(adding, changed) != basis_of(adding, status())
