"""The size of the state is limited where applications make it grow, and nowhere else (R11)."""

from __future__ import annotations

import pytest

from rhizome.broker.metadata.metadata_commands import (
    Bind,
    Command,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    DeleteVhost,
    PutPolicy,
    PutUser,
    PutVhost,
    Unbind,
)
from rhizome.broker.metadata.metadata_state import State
from rhizome.cluster.state.cluster_commands import (
    WHOLE,
    AppointHome,
    Member,
    PutSettings,
    SetDraining,
    SetInSync,
)
from rhizome.cluster.state.state_size import StateSize
from rhizome.errors import PreconditionFailed
from tests.unit.cluster.state.state_machines import Machine, make_machine, register


def full_machine() -> Machine:
    """A cluster whose state has no room for anything more."""
    machine = make_machine("b1", "b2", "b3")
    machine.done(
        DeclareExchange("/", "x", "topic"),
        DeclareQueue("/", "q"),
        Bind("/", "x", "q", key="a.*"),
    )
    machine.done(PutSettings("spread", 2, "ring", machine.state.size.bytes_used))
    return machine


def recounted(machine: Machine) -> int:
    size = StateSize()
    size.recount(machine.host.state)
    return size.bytes_used


def test_full_state_takes_no_declares_and_binds() -> None:
    machine = full_machine()
    text = machine.refused(DeclareQueue("/", "more"))
    used = machine.state.size.bytes_used
    assert text == (
        f"the cluster state is full: {used} of {used} bytes are used; delete queues, exchanges or "
        "bindings that nobody needs, or raise cluster.state_size_max"
    )
    assert "is full" in machine.refused(DeclareExchange("/", "more", "topic"))
    assert "is full" in machine.refused(Bind("/", "x", "q", key="b"))


def test_what_is_there_may_be_declared_again_in_a_full_state() -> None:
    machine = full_machine()
    machine.done(
        DeclareQueue("/", "q"), DeclareExchange("/", "x", "topic"), Bind("/", "x", "q", key="a.*")
    )


class LimitsEverything(StateSize):
    """R11 broken: nothing passes that would have to be written into a full state."""

    def check(self, command: Command, state: State, bytes_max: int) -> None:
        if self.bytes_used >= bytes_max:
            raise PreconditionFailed("full")


@pytest.mark.parametrize("broken", [True, False])
def test_full_state_can_be_mended_unless_everything_is_limited(broken: bool) -> None:
    machine = full_machine()
    if broken:
        size = LimitsEverything()
        size.bytes_used = machine.state.size.bytes_used
        machine.state.size = size
    machine.feed(DeleteQueue("/", "q"))
    error = machine.feed(DeclareQueue("/", "r")).outcome.error
    assert (error is not None) is broken


def test_full_state_takes_everything_else() -> None:
    machine = full_machine()
    machine.done(
        PutUser("eve", ""),
        PutPolicy("/", "p", ".*", {"max-length": 1}),
        PutVhost("dev"),
        register("b1", "b1.2"),
        register("b4"),
        SetInSync(2, (Member("b3", "b3.1", WHOLE),), 1, 1),
        AppointHome(2, "b3", "b3.1", 1, 2),
        SetDraining("b2", True),
    )
    machine.done(Unbind("/", "x", "q", key="a.*"), Bind("/", "x", "q", key="b"))
    machine.done(DeleteQueue("/", "q"), DeclareQueue("/", "r"))


def test_size_is_followed_and_not_counted_anew() -> None:
    machine = make_machine("b1")
    steps = [
        DeclareExchange("/", "x", "topic", arguments={"alternate-exchange": "y"}),
        DeclareExchange("/", "y", "fanout"),
        DeclareQueue("/", "q", arguments={"x-max-length": 5}, user="eve"),
        Bind("/", "x", "q", key="a"),
        Bind("/", "x", "y", "exchange"),
        Bind("/", "x", "q", key="a"),
        PutVhost("dev"),
        DeclareQueue("dev", "q"),
        Bind("dev", "amq.topic", "q"),
        DeleteExchange("/", "x"),
        DeleteVhost("dev"),
        DeleteQueue("/", "q"),
        DeleteExchange("/", "y"),
    ]
    for step in steps:
        machine.done(step)
        assert machine.state.size.bytes_used == recounted(machine), step
    assert machine.state.size.bytes_used == machine.host.state.sizes.total == 0


def test_private_objects_don_t_count() -> None:
    machine = make_machine("b1")
    machine.done(DeclareExchange("/", "x", "topic"))
    before = machine.state.size.bytes_used
    machine.host.apply(DeclareQueue("/", "mine", exclusive_owner="1"))
    machine.host.apply(Bind("/", "x", "mine", "private"))
    machine.done(DeclareQueue("/", "mine"), DeleteQueue("/", "mine"))
    assert machine.state.size.bytes_used == before == recounted(machine)
