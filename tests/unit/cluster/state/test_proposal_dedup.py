"""A proposal that is in the log twice counts once (R10)."""

from __future__ import annotations

from rhizome.broker.metadata.metadata_changes import Outcome
from rhizome.broker.metadata.metadata_commands import Bind, DeclareQueue, DeleteQueue
from rhizome.cluster.state.cluster_commands import RetireBroker
from rhizome.cluster.state.proposal_dedup import OUTCOMES_MAX, ProposalDedup
from rhizome.errors import AccessRefused, NotFound, PreconditionFailed
from tests.unit.cluster.state.state_machines import Machine, make_machine, register


def test_proposal_that_comes_again_changes_nothing() -> None:
    machine = make_machine("b1")
    first = machine.feed(DeclareQueue("/", "q"), "b1.1", 1)
    machine.feed(DeleteQueue("/", "q"), "b1.1", 2)
    before = machine.state.snapshot()
    again = machine.feed(DeclareQueue("/", "q"), "b1.1", 1)
    assert (first.duplicate, again.duplicate) == (False, True)
    assert again.outcome.changed
    assert again.outcome.facts == []
    assert again.outcome.queue is None
    assert machine.state.snapshot() == before


def test_declare_that_comes_again_finds_its_queue() -> None:
    machine = make_machine("b1")
    first = machine.feed(DeclareQueue("/", "q"), "b1.1", 1).outcome.queue
    assert machine.feed(DeclareQueue("/", "q"), "b1.1", 1).outcome.queue is first


def test_refusal_is_remembered_as_it_was() -> None:
    machine = make_machine("b1")
    bind = Bind("/", "amq.topic", "q")
    refused = machine.feed(bind, "b1.1", 1).outcome.error
    machine.done(DeclareQueue("/", "q"))
    again = machine.feed(bind, "b1.1", 1).outcome.error
    assert type(again) is type(refused) is NotFound
    assert again.text == refused.text
    assert machine.feed(bind, "b1.1", 2).outcome.changed


def test_numbers_of_two_brokers_have_nothing_to_do_with_each_other() -> None:
    machine = make_machine("b1", "b2")
    assert not machine.feed(DeclareQueue("/", "a"), "b1.1", 1).duplicate
    assert not machine.feed(DeclareQueue("/", "b"), "b2.1", 1).duplicate


def test_proposals_of_an_incarnation_that_is_over_are_refused() -> None:
    """Else one that was applied long ago could be applied again."""
    machine = make_machine("b1")
    machine.feed(DeclareQueue("/", "q"), "b1.1", 1)
    machine.done(DeleteQueue("/", "q"), register("b1", "b1.2"))
    late = machine.feed(DeclareQueue("/", "q"), "b1.1", 1)
    assert isinstance(late.outcome.error, PreconditionFailed)
    assert "'b1.1' is not registered" in late.outcome.error.text
    machine.done(RetireBroker("b1", "b1.2"))
    assert machine.feed(DeclareQueue("/", "q"), "b1.2", 1).outcome.error is not None
    assert machine.state.dedup.windows == {}


def test_registration_may_be_the_first_proposal_of_an_incarnation() -> None:
    machine = make_machine()
    assert machine.feed(register("b1"), "b1.1", 1).outcome.changed
    assert machine.feed(register("b1"), "b1.1", 1).duplicate
    other = machine.feed(register("b2"), "stranger", 1)
    assert other.outcome.error is not None
    assert "b2" not in machine.state.registry.brokers


def test_outcomes_are_forgotten_when_the_proposer_has_them() -> None:
    machine = make_machine("b1")
    for number in range(1, 6):
        machine.feed(DeclareQueue("/", f"q{number}"), "b1.1", number, answered=number - 2)
    window = machine.state.dedup.windows["b1.1"]
    assert (window.forgotten, list(window.answers)) == (3, [4, 5])
    again = machine.feed(DeclareQueue("/", "other"), "b1.1", 2)
    assert again.duplicate
    assert isinstance(again.outcome.error, PreconditionFailed)
    assert "not known any more" in again.outcome.error.text
    assert "other" not in machine.host.state.vhosts["/"].queues


def test_proposals_may_come_out_of_order() -> None:
    machine = make_machine("b1")
    machine.feed(DeclareQueue("/", "b"), "b1.1", 2)
    assert not machine.feed(DeclareQueue("/", "a"), "b1.1", 1).duplicate
    assert machine.feed(DeclareQueue("/", "a"), "b1.1", 1).duplicate


def test_claim_to_know_the_answer_to_itself_is_not_believed() -> None:
    dedup = ProposalDedup()
    dedup.remember("a", 5, 9, Outcome(changed=True))
    assert dedup.windows["a"].forgotten == 4
    found = dedup.find("a", 5)
    assert found is not None
    assert found.changed


def test_window_is_bounded() -> None:
    dedup = ProposalDedup()
    for number in range(1, OUTCOMES_MAX + 10):
        dedup.remember("a", number, 0, Outcome(error=AccessRefused("no")))
    window = dedup.windows["a"]
    assert len(window.answers) == OUTCOMES_MAX
    assert window.forgotten == 9
    found = dedup.find("a", 10)
    assert found is not None
    assert isinstance(found.outcome().error, AccessRefused)


def test_outcome_can_be_asked_for_after_a_snapshot() -> None:
    machine = make_machine("b1")
    machine.feed(DeclareQueue("/", "q"), "b1.1", 1)
    other = Machine()
    other.state.restore(machine.state.index, machine.state.snapshot())
    outcome = other.state.outcome_of("b1.1", 1)
    assert outcome is not None
    assert outcome.changed
    assert other.state.outcome_of("b1.1", 2) is None
    assert other.feed(DeclareQueue("/", "q"), "b1.1", 1).duplicate
