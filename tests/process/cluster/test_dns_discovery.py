"""Primaries that are found by DNS: brokers in network namespaces, each with a resolv.conf that
names a DNS server of the test. They come up in any order, and their addresses change."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from rhizome.client import connect
from rhizome.testing.broker_process import BrokerProcess, wait_until
from rhizome.testing.cluster_process import ClusterProcess
from tests.dns_server import DnsServer
from tests.process.helpers import PERSISTENT, run
from tests.process.network_namespaces import HUB, SUBNET, Network, ip, why_not

REFUSAL = why_not()

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(REFUSAL), reason=REFUSAL),
]

NAMES = ["b1", "b2", "b3"]
DOMAIN = "mq.test"
SERVICE = f"_amqp._tcp.{DOMAIN}"
RESOLVERS = Path("/etc/netns")
"""`ip netns exec NAME` shows a program the files of this directory's NAME as those of /etc."""


class FoundCluster(ClusterProcess):
    """Brokers that list nobody."""

    def arguments(self, name: str, role: str) -> list[str]:
        found = ["--discover", f"dns:{DOMAIN}", "--cluster-key-file", str(self._key)]
        return ["--name", name, "--role", role, "--machine", f"machine-{name}", *found]


class World:
    """Brokers, their network and the DNS server; ``listed`` are the brokers that have records."""

    def __init__(self, network: Network, cluster: FoundCluster, dns: DnsServer) -> None:
        self.network = network
        self.cluster = cluster
        self.dns = dns
        self.listed: list[str] = []
        self._addresses_given = 100

    def broker(self, name: str) -> BrokerProcess:
        return self.cluster.brokers[name]

    def list(self, *names: str) -> None:
        """Give exactly these brokers records, with the addresses that they have now."""
        self.listed = [*names]
        brokers: Mapping[str, tuple[str, int]] = {
            f"{name}.{DOMAIN}": (self.broker(name).host, self.broker(name).port) for name in names
        }
        self.dns.publish(SERVICE, brokers)

    def move(self, name: str) -> None:
        """Another address for a broker that doesn't run; its record follows."""
        self._addresses_given += 1
        new = f"{SUBNET}.{self._addresses_given}"
        space = self.network.space(name)
        ip("-n", space, "addr", "flush", "dev", "eth0")
        ip("-n", space, "addr", "add", f"{new}/24", "dev", "eth0")
        self.broker(name).host = new
        self.list(*self.listed)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    network = Network(NAMES)
    spaces = [RESOLVERS / network.space(name) for name in NAMES]
    try:
        network.build()
        for space in spaces:
            space.mkdir(parents=True)
            (space / "resolv.conf").write_text(f"nameserver {SUBNET}.{HUB}\noptions timeout:1\n")
        cluster = FoundCluster(tmp_path, len(NAMES), make=network.broker)
        with DnsServer(f"{SUBNET}.{HUB}", 53) as dns:
            try:
                yield World(network, cluster, dns)
            finally:
                cluster.kill()
    finally:
        network.tear_down()
        for space in spaces:
            shutil.rmtree(space, ignore_errors=True)


def wait_for_output(broker: BrokerProcess, text: str) -> None:
    wait_until(lambda: text in broker.printed(), f"{text!r} in {broker.printed()}")


def say(cluster: ClusterProcess, at: str, body: bytes) -> None:
    async def publish() -> None:
        url = cluster.brokers[at].url
        async with connect(url) as connection, connection.channel(confirms=True) as channel:
            await channel.declare_queue("said", durable=True)
            await channel.publish(body, routing_key="said", properties=PERSISTENT, mandatory=True)

    run(publish())


def heard(cluster: ClusterProcess, at: str) -> list[bytes]:
    async def get() -> list[bytes]:
        found: list[bytes] = []
        async with connect(cluster.brokers[at].url) as connection, connection.channel() as channel:
            while message := await channel.get("said", no_ack=True):
                found.append(bytes(message.body))
        return found

    return run(get())


def test_brokers_come_up_in_any_order_and_find_each_other_at_new_addresses(world: World) -> None:
    cluster = world.cluster
    # A list that grows: nobody founds a cluster of fewer than all.
    world.broker("b3").launch()
    wait_for_output(world.broker("b3"), "0 of 3 primaries")
    world.list("b3", "b1")
    world.broker("b1").launch()
    wait_for_output(world.broker("b3"), "2 of 3 primaries; listed: b1, b3")
    wait_for_output(world.broker("b1"), "2 of 3 primaries; listed: b1, b3")
    world.list("b3", "b1", "b2")
    world.broker("b2").launch()
    for name in NAMES:
        world.broker(name).wait_until_ready()
    cluster.wait_until_whole()
    say(cluster, "b1", b"founded")

    # One is killed and comes back somewhere else, while it has no record for a time.
    world.broker("b2").kill()
    world.list("b1", "b3")
    cluster.wait_until_apart("b1", "b2")
    world.move("b2")
    world.list(*NAMES)
    world.broker("b2").start()
    cluster.wait_until_whole()
    say(cluster, "b2", b"moved")

    # All are stopped, and all come back somewhere else, in another order.
    cluster.stop()
    for name in NAMES:
        world.move(name)
    for name in ("b2", "b3", "b1"):
        world.broker(name).launch()
    for name in NAMES:
        world.broker(name).wait_until_ready()
    cluster.wait_until_whole()
    assert heard(cluster, "b3") == [b"founded", b"moved"]
    assert cluster.stop() == [0, 0, 0], cluster.printed()


def test_a_broker_that_finds_nobody_says_what_to_check(world: World) -> None:
    broker = world.broker("b1")
    broker.add_arguments(["--log-level", "info"])
    world.dns.silent = True
    broker.launch()
    wait_for_output(broker, f"{SUBNET}.{HUB}: no answer")
    world.dns.silent = False
    wait_for_output(broker, "0 of 3 primaries; listed: none")
    assert broker.is_running()
    assert not broker.data.exists(), "nothing is made before the cluster is found"
