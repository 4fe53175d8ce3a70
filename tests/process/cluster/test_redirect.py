"""The client library follows a broker that sends it elsewhere."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rhizome.client import connect
from rhizome.testing.cluster_process import ClusterProcess


@pytest.mark.timeout(180)
def test_who_wants_the_root_ends_up_there(tmp_path: Path) -> None:
    cluster = ClusterProcess(tmp_path, 2)
    cluster.start()
    try:
        asyncio.run(_connect_twice(cluster))
    finally:
        cluster.stop()


async def _connect_twice(cluster: ClusterProcess) -> None:
    root = cluster.wait_for_root()
    other = next(name for name in cluster.brokers if name != root)
    uri = cluster.brokers[other].url
    async with connect(uri, client_properties={"want": "root"}) as connection:
        assert connection.address.port == cluster.brokers[root].port
        assert connection.known_hosts.endswith(f":{cluster.brokers[other].port}")
    async with connect(uri) as connection:
        assert connection.address.port == cluster.brokers[other].port
