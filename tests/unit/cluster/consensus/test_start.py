"""Three primaries start, agree on a root, and do their work."""

from __future__ import annotations

from tests.interaction.consensus_stage import Stage


def started(seed: int = 1) -> Stage:
    stage = Stage(("b1", "b2", "b3"), ("s1",), seed=seed)
    stage.start("b1", "b2", "b3")
    stage.run_until(lambda: len(stage.holders()) == 3)
    return stage


def test_three_empty_primaries_found_one_cluster() -> None:
    stage = started()
    (root,) = stage.roots()
    uuids = {stage.core(name).cluster_uuid for name in ("b1", "b2", "b3")}
    assert len(uuids) == 1
    assert uuids != {""}
    assert all(stage.core(name).root == root for name in ("b1", "b2", "b3"))


def test_a_proposal_is_applied_and_settled_everywhere() -> None:
    stage = started()
    (root,) = stage.roots()
    index = stage.propose(root, b"declare")
    assert index is not None
    took_ms = stage.run_until(
        lambda: all(stage.core(n).settled_index >= index for n in ("b1", "b2", "b3"))
    )
    assert took_ms < 20
    assert all(stage.actors[name].state == [b"declare"] for name in ("b1", "b2", "b3"))


def test_a_new_root_is_there_within_three_seconds() -> None:
    stage = started()
    (root,) = stage.roots()
    stage.kill(root)
    assert stage.run_until(lambda: len(stage.roots()) == 1) < 3000
    assert stage.roots() != [root]
