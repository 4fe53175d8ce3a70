"""Snapshots and catching up (R8)."""

from __future__ import annotations

from dataclasses import replace

from rhizome.cluster.consensus import ConsensusSettings
from rhizome.cluster.consensus.consensus_messages import Append, Message, SnapshotChunk
from tests.interaction.consensus_stage import Stage
from tests.unit.cluster.consensus.invariant_watch import Audience

THREE = ("b1", "b2", "b3")
SMALL = ConsensusSettings(log_entries_max=20, log_entries_kept=5, snapshot_chunk_bytes=64)


def at_work(settings: ConsensusSettings = SMALL) -> Stage:
    stage = Stage(THREE, ("s1",), settings)
    Audience(stage)
    stage.start(*THREE)
    stage.run_until(lambda: len(stage.holders()) == 3)
    return stage


def fill(stage: Stage, count: int, size: int = 4) -> None:
    (root,) = stage.roots()
    for number in range(count):
        stage.propose(root, b"%0*d" % (size, number))
        stage.run(5)
    stage.run(50)


def test_the_log_is_cut_at_a_snapshot_and_a_little_is_kept() -> None:
    stage = at_work()
    fill(stage, 100)
    for name in THREE:
        persistent = stage.core(name).state.persistent
        assert persistent.snapshot is not None
        assert persistent.snapshot.index >= 80
        assert len(persistent.log) <= 25
        assert persistent.log.start.index <= persistent.snapshot.index - 5


def test_large_entries_bring_a_snapshot_sooner() -> None:
    stage = at_work(replace(SMALL, log_entries_max=1000, log_bytes_max=10_000))
    fill(stage, 30, size=2000)
    persistent = stage.core("b1").state.persistent
    assert persistent.snapshot is not None
    assert persistent.log.bytes < 14_000


def test_a_restarted_broker_begins_with_its_snapshot() -> None:
    stage = at_work()
    fill(stage, 50)
    state = list(stage.actors["b2"].state)
    stage.kill("b2")
    stage.start("b2")
    stage.run(1000)
    assert stage.actors["b2"].state == state
    assert stage.core("b2").registry == stage.core("b1").registry


def test_a_joiner_gets_the_snapshot_in_pieces_and_the_entries_after_it() -> None:
    stage = at_work()
    fill(stage, 50)
    chunks: list[int] = []

    def watch(sender: str, receiver: str, message: Message) -> bool:
        if isinstance(message, SnapshotChunk):
            chunks.append(len(message.data))
            stage.core("b1").propose(b"meanwhile", stage.now_ms)
        return False

    stage.censor = watch
    stage.start("s1")
    stage.run(1000)
    assert len(chunks) > 3
    assert max(chunks) == 64
    assert stage.actors["s1"].state == stage.actors["b1"].state
    assert stage.core("s1").registry == stage.core("b1").registry
    assert "s1" in stage.holders()


def test_a_snapshot_whose_link_broke_is_sent_again() -> None:
    stage = at_work()
    fill(stage, 50)
    seen: list[int] = []

    def watch(sender: str, receiver: str, message: Message) -> bool:
        if isinstance(message, SnapshotChunk):
            seen.append(message.offset)
        return False

    stage.censor = watch
    stage.start("s1")
    stage.run_until(lambda: len(seen) == 3)
    stage.cut("b1", "s1")
    stage.run(10)
    stage.link("b1", "s1")
    stage.run(1000)
    assert stage.actors["s1"].state == stage.actors["b1"].state


def test_a_broker_a_little_behind_gets_entries_and_no_snapshot() -> None:
    stage = at_work()
    fill(stage, 30)
    chunks: list[Message] = []
    stage.isolate("b3")
    fill(stage, 4)

    def watch(sender: str, receiver: str, message: Message) -> bool:
        if isinstance(message, SnapshotChunk):
            chunks.append(message)
        return False

    stage.censor = watch
    stage.heal()
    stage.run(1000)
    assert chunks == []
    assert stage.actors["b3"].state == stage.actors["b1"].state


def test_term_and_vote_outlive_an_installed_snapshot() -> None:
    stage = at_work()
    stage.isolate("b3")
    fill(stage, 50)
    before = stage.core("b3").state.persistent
    term, vote = before.term, before.vote
    stage.heal()
    stage.run(1000)
    image = stage.actors["b3"].store.image
    assert image.snapshot is not None
    assert (image.term, image.vote) == (term, vote)


def test_a_log_that_conflicts_is_replaced_from_there_on() -> None:
    stage = at_work()
    stage.isolate("b1")
    for number in range(5):
        stage.propose("b1", b"lost %d" % number)
    stage.run(3000)
    assert stage.roots() == ["b2"]
    fill(stage, 3)
    stage.heal()
    stage.run(1000)
    assert stage.actors["b1"].state == stage.actors["b2"].state
    assert not any(b"lost" in data for data in stage.actors["b1"].state)


def test_many_terms_of_conflict_are_skipped_by_term() -> None:
    """A root finds where the logs agree without going back entry by entry."""
    stage = at_work(replace(SMALL, log_entries_max=1000))
    stage.isolate("b1")
    for number in range(200):
        stage.propose("b1", b"lost %d" % number)
    stage.run(3000)
    fill(stage, 40)
    probes: list[int] = []

    def watch(sender: str, receiver: str, message: Message) -> bool:
        if isinstance(message, Append) and receiver == "b1":
            probes.append(message.prev_index)
        return False

    stage.censor = watch
    stage.heal()
    stage.run(20)
    assert stage.core("b1").state.persistent.log.last_term == 2
    assert len(probes) < 8
