"""Whole brokers that confirm what is written and not yet synced, under kills and power cuts.

With `flush = interval` and `never` a power cut may take what was confirmed last. It must never keep
a broker from starting, or take more than docs/operating/runbook.md says.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from rhizome.testing.sim.scenario_runner import run_seeds
from rhizome.testing.sim.seed_run import Outcome, RunOptions, UnknownFlush
from tests.simulation.mutants import Mutant

POWER = ("power-cut", "blackout", "kill", "lone-home")
KILLS = ("kill", "restarts", "pause", "disconnect", "isolate", "move")
SHORT = RunOptions(brokers=(3, 3), secondaries=(0, 1), minutes=0.9, pace=2)
FLUSHES = ("interval", "never")
CHUNK = 100


def _told(outcome: Outcome) -> str:
    tail = "\n".join(outcome.tail)
    return f"seed {outcome.seed}: {outcome.checker}: {outcome.text}\n{tail}"


def _check(scenario: str, seeds: range, options: RunOptions, *kinds: str) -> None:
    failed: list[str] = []
    counts = dict.fromkeys((*kinds, "JournalOpened", "JournalAt"), 0)
    for outcome in run_seeds(scenario, seeds, options, jobs=os.cpu_count() or 1):
        if not outcome.passed:
            failed.append(_told(outcome))
        for kind in counts:
            counts[kind] += outcome.counts.get(kind, 0)
    assert not failed, "\n".join(sorted(failed))
    for kind, count in counts.items():
        assert count > 3 * len(seeds), f"seeds {seeds} show little: {count} {kind}"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("flush", FLUSHES)
def test_queues_lose_what_was_not_synced_at_most(flush: str) -> None:
    _check("messages", range(2), replace(SHORT, faults=POWER, flush=flush), "Confirmed")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("flush", FLUSHES)
def test_brokers_with_streams_start_after_power_cuts(flush: str) -> None:
    _check("streams", range(1), replace(SHORT, faults=POWER, flush=flush), "AppendConfirmed")


@pytest.mark.timeout(900)
def test_streams_lose_nothing_while_there_is_power() -> None:
    _check("streams", range(1), replace(SHORT, faults=KILLS, flush="never"), "AppendConfirmed")


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(0, 1_000, CHUNK))
@pytest.mark.parametrize("faults", [(), POWER])
@pytest.mark.parametrize("flush", FLUSHES)
def test_queues_lose_what_was_not_synced_at_most_in_many_seeds(
    flush: str, faults: tuple[str, ...], first: int
) -> None:
    options = replace(SHORT, faults=faults, flush=flush)
    _check("messages", range(first, first + CHUNK), options, "Confirmed")


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(0, 1_000, CHUNK))
@pytest.mark.parametrize("faults", [KILLS, POWER])
@pytest.mark.parametrize("flush", FLUSHES)
def test_brokers_with_streams_start_after_power_cuts_in_many_seeds(
    flush: str, faults: tuple[str, ...], first: int
) -> None:
    options = replace(SHORT, faults=faults, flush=flush)
    _check("streams", range(first, first + CHUNK), options, "AppendConfirmed")


def test_a_policy_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UnknownFlush, match="no flush policy 'sometimes'; there are: always"):
        list(run_seeds("messages", [0], replace(SHORT, flush="sometimes")))


# --- rules of the store broken on purpose

WRITTEN_TAKEN_FOR_SYNCED = """
from rhizome.journal.streams import stream_store
recover_stream = stream_store.recover_stream
def strict(*arguments, unsynced=False, **options):
    return recover_stream(*arguments, **options)
stream_store.recover_stream = strict
"""

CHECKPOINT_BEFORE_SYNC = """
from rhizome.journal.store import Store
durable = Store._durable_in_loop
Store._durable_in_loop = lambda self, token, synced: durable(self, token, token)
"""

REPORTED_TOO_EARLY = """
from rhizome.testing.sim.world.sim_journal_store import SimFiles
SimFiles.written = lambda self, names, order: None
"""

MUTANTS = [
    Mutant(
        "chunks that were only written are taken for synced",
        WRITTEN_TAKEN_FOR_SYNCED,
        ("power-cut", "blackout"),
        3,
        ("ProgramFailed",),
        flush="never",
    ),
    Mutant(
        "a checkpoint is made of what is not synced",
        CHECKPOINT_BEFORE_SYNC,
        ("power-cut", "blackout"),
        3,
        ("ProgramFailed", "JournalKeepsWhatItsFlushPromises"),
        flush="never",
    ),
    Mutant(
        "a batch is reported before it is written",
        REPORTED_TOO_EARLY,
        ("kill",),
        3,
        ("JournalKeepsWhatItsFlushPromises", "NoConfirmedMessageLost"),
        flush="interval",
    ),
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("mutant", "scenario"),
    [(MUTANTS[0], "streams"), (MUTANTS[1], "messages"), (MUTANTS[2], "messages")],
    ids=["streams", "checkpoints", "batches"],
)
def test_a_broken_store_is_seen(mutant: Mutant, scenario: str) -> None:
    mutant.expect_to_be_seen(scenario)
