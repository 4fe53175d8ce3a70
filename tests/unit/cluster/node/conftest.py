"""Clusters for tests, and where clients of them are."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rhizome.testing.core import CoreClient

sys.path.insert(0, str(Path(__file__).parent))

from anywhere import PLACES, ClusterAsCore


@pytest.fixture(params=PLACES)
def core(request: pytest.FixtureRequest) -> ClusterAsCore:
    return ClusterAsCore(request.param)


@pytest.fixture
def client(core: ClusterAsCore) -> CoreClient:
    return core.connect()
