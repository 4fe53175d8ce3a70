"""What the HTTP API costs a broker: at rest, and those who send messages meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bench.idle import measure
from rhizome.testing.broker_process import BrokerProcess

QUEUES = CONNECTIONS = 1000
SHARE_MAX = 0.03
PAUSE_MS_MAX = 10.0


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_many_queues_and_connections_at_rest_and_under_scrapes(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    try:
        figures = asyncio.run(measure(broker, QUEUES, CONNECTIONS, 20.0))
    finally:
        broker.close()
    print(figures)
    assert figures.watched_share < SHARE_MAX, figures
    assert figures.pause_ms < PAUSE_MS_MAX, figures
