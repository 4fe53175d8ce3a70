"""The scenarios by name, and running many seeds of one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Final, TextIO, cast

from rhizome.testing.sim.seed_run import Outcome, RunOptions, Scenario, run_seed

SCENARIOS: Final = {
    "consensus": "rhizome.testing.sim.scenarios.consensus_scenario:ConsensusScenario",
    "cluster": "rhizome.testing.sim.scenarios.cluster_scenario:ClusterScenario",
    "messages": "rhizome.testing.sim.scenarios.messages_scenario:MessagesScenario",
    "streams": "rhizome.testing.sim.scenarios.streams_scenario:StreamsScenario",
    "transactions": "rhizome.testing.sim.scenarios.transactions_scenario:TransactionsScenario",
}


class UnknownScenario(ValueError):
    """No scenario has this name; the text lists those that there are."""


def scenario(name: str) -> Scenario:
    """The scenario of that name. Each is loaded when it is asked for."""
    if name not in SCENARIOS:
        raise UnknownScenario(f"no scenario '{name}'; there are: {', '.join(SCENARIOS)}")
    module, _, attribute = SCENARIOS[name].partition(":")
    return cast(Scenario, getattr(import_module(module), attribute)())


def run_named(name: str, seed: int, options: RunOptions, sink: TextIO | None = None) -> Outcome:
    return run_seed(scenario(name), seed, options, sink)


def run_untraced(name: str, seed: int, options: RunOptions) -> Outcome:
    """Run a seed without its trace. If it fails, it is run again with one: it is the same run."""
    outcome = run_seed(scenario(name), seed, options, traced=False)
    if outcome.passed:
        return outcome
    again = run_named(name, seed, options)
    assert again.checker == outcome.checker, f"seed {seed} of {name} has two ends"
    return again


def run_seeds(
    name: str,
    seeds: Sequence[int],
    options: RunOptions,
    jobs: int = 1,
    starting: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Iterator[Outcome]:
    """Run seeds one after the other, or in several processes; outcomes come as they are ready.

    The processes are started within ``starting``. Only outcomes of seeds that fail have a trace.
    """
    scenario(name)
    if jobs <= 1 or len(seeds) <= 1:
        for seed in seeds:
            yield run_untraced(name, seed, options)
        return
    work = [(name, seed, options) for seed in seeds]
    with starting():
        pool = multiprocessing.get_context("spawn").Pool(min(jobs, len(seeds)), _begin_worker)
    with pool:
        yield from pool.imap_unordered(_run_one, work)


def _begin_worker() -> None:
    """A worker ends with its parent, whatever ends that. Ctrl-C, which reaches all processes of a
    terminal, is left to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "workers are started by a pool"
    parent.join()
    os._exit(1)


def _run_one(work: tuple[str, int, RunOptions]) -> Outcome:
    return run_untraced(*work)
