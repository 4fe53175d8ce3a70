"""No input that the limits allow holds a bystander up: every AMQP method and every HTTP endpoint is
sent its worst, one after another, while another connection in another vhost does round trips.

What counts is the processor time of the broker's event loop within one of these round trips, beyond
that of idle ones in the same run, and only if the broker's own watchdog tells of such a turn: a
machine that is busy with other things makes nothing fail. `tools/worst_input.py` prints the table.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rhizome.amqp import spec
from rhizome.build_info import is_compiled
from rhizome.management.asgi_application import ENDPOINTS
from tests.process.worst import amqp_inputs, http_inputs
from tests.process.worst.world import LONG, SHORT, World

pytestmark = [pytest.mark.rhizome_only]

STALL_MS_MAX = 100 if is_compiled() else 1500
"""Interpreted, the core is ten times slower and more. That form is for debugging."""

ALL = [*amqp_inputs.INPUTS, *http_inputs.INPUTS, *http_inputs.PAGES]
FIRST = [
    each
    for each in ALL
    if each[0].startswith("GET /api/queues")
    or (each[1] not in http_inputs.VARIANTS and not each[1].startswith(http_inputs.BODY))
]
"""Without the same query on each of fifty lists, which is one piece of code, and without the worst
value of each field of each body, which are hundreds."""


def test_all_methods_have_a_worst_input() -> None:
    assert {name for name, _, _ in amqp_inputs.INPUTS} == set(spec.METHOD_NAMES.values())


def test_all_endpoints_have_a_worst_input() -> None:
    endpoints = {http_inputs.key_of(endpoint) for endpoint in ENDPOINTS}
    assert {name for name, _, _ in http_inputs.INPUTS} == endpoints


@pytest.fixture(scope="module")
def short_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    yield from prepared(World(tmp_path_factory.mktemp("short"), SHORT))


@pytest.fixture(scope="module")
def long_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    yield from prepared(World(tmp_path_factory.mktemp("long"), LONG))


def prepared(world: World) -> Iterator[World]:
    try:
        world.prepare()
        yield world
    finally:
        world.close()


TRIES_MAX = 3


def check(world: World, name: str, what: str, made: amqp_inputs.Input) -> None:
    """An input that holds others up does so each time. A collection of all garbage, due after a
    thousand inputs, comes with one of them and not with the next."""
    stalls = []
    while not stalls or (stalls[-1].beyond() >= STALL_MS_MAX and len(stalls) < TRIES_MAX):
        stalls.append(world.measured(name, made))
    assert stalls[-1].beyond() < STALL_MS_MAX, f"{name}, {what}: {stalls}"


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("name", "what", "made"), FIRST, ids=[f"{n}: {w}" for n, w, _ in FIRST])
def test_an_input_holds_nobody_up(
    short_world: World, name: str, what: str, made: amqp_inputs.Input
) -> None:
    check(short_world, name, what, made)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "what", "made"), ALL, ids=[f"{n}: {w}" for n, w, _ in ALL])
def test_a_large_input_holds_nobody_up(
    long_world: World, name: str, what: str, made: amqp_inputs.Input
) -> None:
    check(long_world, name, what, made)
