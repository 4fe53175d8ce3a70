"""A preview of a change of the primaries refuses what the change would."""

from __future__ import annotations

import asyncio

import pytest

from rhizome.management.cluster_view import REMOVE_PRIMARY, Change, ChangeRefused
from rhizome.server.operator_views.cluster_view_and_control import NodeControl
from rhizome.testing.in_memory_cluster import make_cluster


def test_the_preview_refuses_to_remove_a_primary_whom_the_others_need() -> None:
    cluster = make_cluster(3)
    cluster["b1"].connect()
    root = cluster.root()
    away, needed = (name for name in ("b1", "b2", "b3") if name != root)
    control = NodeControl(cluster[root].node)
    assert control.preview(Change(REMOVE_PRIMARY, needed)).refusal == ""
    cluster[away].kill()
    cluster.advance(1000)
    assert cluster.root() == root
    change = Change(REMOVE_PRIMARY, needed)
    preview = control.preview(change)
    assert "electing a root would need 2 primaries and only 1 are here" in preview.refusal
    with pytest.raises(ChangeRefused):
        asyncio.run(control.execute(change, preview.basis))
    removable = control.preview(Change(REMOVE_PRIMARY, away))
    assert removable.refusal == "", "the one that is away may go"
