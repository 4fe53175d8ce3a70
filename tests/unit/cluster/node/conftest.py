"""Clusters for tests, and where clients of them are."""

from __future__ import annotations

import pytest

from rhizome.testing.in_memory_broker import CoreClient
from tests.unit.cluster.node.broker_tests_in_cluster import PLACES, ClusterAsCore


def _everywhere_but_here_in_the_soak_run() -> list[object]:
    """Each place costs minutes: one that mixes all of them is enough for every run."""
    return [
        place if place == "anywhere" else pytest.param(place, marks=pytest.mark.soak)
        for place in PLACES
    ]


@pytest.fixture(params=_everywhere_but_here_in_the_soak_run())
def core(request: pytest.FixtureRequest) -> ClusterAsCore:
    return ClusterAsCore(request.param)


@pytest.fixture
def client(core: ClusterAsCore) -> CoreClient:
    return core.connect()
