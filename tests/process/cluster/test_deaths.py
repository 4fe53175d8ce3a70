"""A process that ended for certain is not waited for (R15): leases outlast these tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rhizome.client import blocking
from rhizome.testing.broker_process import BrokerProcess, wait_until
from rhizome.testing.cluster_process import ClusterProcess

LEASES = {"RHIZOME_CLUSTER_ROOT_LEASE": "5m", "RHIZOME_CLUSTER_HOME_LEASE": "10m"}
SECONDS_MAX = 180.0


def with_long_leases(name: str, directory: Path) -> BrokerProcess:
    return BrokerProcess(directory, environment=LEASES)


def report(cluster: ClusterProcess, name: str) -> list[dict[str, object]]:
    """What runs after the end of a broker, as ExecStopPost of its unit."""
    broker = cluster.brokers[name]
    listed = [f'"{each}={cluster.link_address(each)}"' for each in cluster.brokers]
    config = broker.directory / "rhizome.toml"
    config.write_text(
        f'[broker]\nname = "{name}"\ndata = "{broker.data}"\n'
        f'[cluster]\nkey_file = "{cluster.directory / "cluster.key"}"\n'
        f"primaries = [{', '.join(listed)}]\n"
    )
    command = [sys.executable, "-m", "rhizome", "broker", "report-death", "--json"]
    done = subprocess.run(
        [*command, "--config", str(config)], capture_output=True, timeout=SECONDS_MAX, check=True
    )
    found: list[dict[str, object]] = json.loads(done.stdout)
    return found


def publish_confirmed(cluster: ClusterProcess, at: str, body: bytes) -> None:
    """Publish to the queue `orders`; returns when that is confirmed."""
    with (
        blocking.Connection(cluster.brokers[at].url) as connection,
        connection.channel(confirms=True) as channel,
    ):
        channel.publish(body, routing_key="orders")


@pytest.mark.timeout(900)
def test_the_end_of_a_process_is_reported_after_it_and_by_its_next_start(tmp_path: Path) -> None:
    """The home is killed and reported like by a unit of systemd; then the root is killed and
    started again, and its next start reports its last."""
    cluster = ClusterProcess(tmp_path, primaries=3, make=with_long_leases)
    cluster.start()
    try:
        root = cluster.root()
        home, third = [name for name in cluster.brokers if name != root]
        url = cluster.brokers[third].url
        with blocking.Connection(url) as connection, connection.channel() as channel:
            channel.declare_queue("orders", durable=True, arguments={"x-group": home})
        wait_until(lambda: is_copied(cluster, third), "a copy", SECONDS_MAX)
        publish_confirmed(cluster, third, b"before")

        assert report(cluster, home) == [], "a broker that runs is not reported"
        cluster.brokers[home].kill()
        (told,) = report(cluster, home)
        assert told["broker"] == home
        assert list(told["told"].values()) == ["", ""]  # type: ignore[attr-defined]
        publish_confirmed(cluster, third, b"after")

        cluster.make_whole()
        cluster.brokers[root].kill()
        cluster.brokers[root].launch()
        cluster.wait_for_root_among([home, third], but=root)
        publish_confirmed(cluster, third, b"under the next root")
        cluster.wait_until_whole()
        with blocking.Connection(url) as connection, connection.channel() as channel:
            assert channel.declare_queue("orders", passive=True).message_count == 3
        assert set(cluster.stop()) == {0}
        assert report(cluster, home) == [], "one that said farewell has nothing to report"
    finally:
        cluster.kill()


def is_copied(cluster: ClusterProcess, at: str) -> bool:
    groups = [each for each in cluster.status(at).get("groups", []) if each["queues"]]
    return bool(groups) and all(each["in_sync"] for each in groups)
