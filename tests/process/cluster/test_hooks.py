"""Hooks of real brokers: who is told what when a broker starts, stops or takes over."""

from __future__ import annotations

from pathlib import Path

import pytest

from rhizome.testing.broker_process import BrokerProcess, wait_until
from rhizome.testing.cluster_process import ClusterProcess

SECONDS_MAX = 120.0


def hooked(directory: Path) -> BrokerProcess:
    """A broker whose hooks note what they are told."""
    directory.mkdir(parents=True, exist_ok=True)
    script = directory / "hook"
    script.write_text(f'#!/bin/sh\necho "$@" >> {directory}/told\n')
    script.chmod(0o755)
    environment = {"RHIZOME_HOOKS_PROMOTED": str(script), "RHIZOME_HOOKS_DEMOTED": str(script)}
    return BrokerProcess(directory, environment=environment)


def told(broker: BrokerProcess) -> list[str]:
    file = broker.directory / "told"
    return file.read_text().splitlines() if file.exists() else []


@pytest.mark.timeout(400)
def test_a_broker_tells_that_it_starts_and_stops(tmp_path: Path) -> None:
    broker = hooked(tmp_path)
    broker.launch()
    try:
        broker.wait_until_ready(SECONDS_MAX)
        wait_until(lambda: told(broker), "the hook", SECONDS_MAX)
        broker.stop_cleanly()
    finally:
        broker.close()
    assert told(broker) == ["promoted root - 1 rhizome", "demoted root - 1 rhizome"]


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_who_takes_over_is_told(tmp_path: Path) -> None:
    cluster = ClusterProcess(tmp_path, make=lambda name, directory: hooked(directory))
    cluster.start()
    try:
        root = cluster.wait_for_root()
        before = cluster.brokers[root]
        wait_until(
            lambda: any(line.startswith("promoted root") for line in told(before)),
            "the hook of the root",
            SECONDS_MAX,
        )
        before.kill()
        after = cluster.brokers[cluster.wait_for_root(but=root)]
        wait_until(
            lambda: {line.split()[1] for line in told(after)} == {"root", "home"},
            "the hooks of the new root, which is home too",
            SECONDS_MAX,
        )
    finally:
        cluster.kill()
