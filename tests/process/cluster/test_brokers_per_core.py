"""`rhizome serve --cores N`: several brokers behind one port, started again when they end."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from rhizome.client import Properties
from rhizome.client.blocking import Connection
from rhizome.client.errors import ConnectFailed
from rhizome.testing.broker_process import BrokerProcess, wait_until
from rhizome.testing.cluster_process import AGREE_SECONDS_MAX
from rhizome.testing.free_ports import free_port
from tests.process.helpers import refusal

NAMES = ["many", "many-2", "many-3"]
CONNECTIONS_MAX = 200
PERSISTENT = Properties(delivery_mode=2)

# A busy machine takes most of a minute to start brokers, which is none of a test's business.
pytestmark = pytest.mark.timeout(240)


class Machine(BrokerProcess):
    """Several brokers: given the time that a cluster is given to start."""

    def wait_until_ready(self, seconds: float = AGREE_SECONDS_MAX) -> None:
        super().wait_until_ready(seconds)


def cores(directory: Path, count: int = 3) -> BrokerProcess:
    return Machine(directory, arguments=["--name", "many", "--cores", str(count)])


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = cores(tmp_path_factory.mktemp("cores"))
    process.start()
    try:
        yield process
    finally:
        process.close()


def pid_of(machine: BrokerProcess, name: str) -> int:
    """Of a broker that runs; 0 while it doesn't."""
    try:
        return int((machine.data / "cores" / f"{name}.pid").read_text() or 0)
    except FileNotFoundError:
        return 0


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def statuses(machine: BrokerProcess) -> dict[str, str]:
    """Broker -> status, as the machine's one HTTP address tells it."""
    request = Request(f"{machine.http_url}/api/rhizome/cluster")
    request.add_header("Authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=")
    try:
        with urlopen(request, timeout=5) as answer:
            document: dict[str, Any] = json.load(answer)
    except OSError:
        return {}
    return {each["name"]: each["status"] for each in document["brokers"]}


def is_whole(machine: BrokerProcess) -> bool:
    seen = statuses(machine)
    return sorted(seen) == NAMES and all(each in ("ready", "active") for each in seen.values())


def broker_of(connection: Connection) -> str:
    """Names that a broker gives to private queues tell which it is: amq.gen-CHANCE-BROKER."""
    with connection.channel() as channel:
        made = channel.declare_queue("", exclusive=True).name
    return made[len("amq.gen-") + 23 :]


def connect_to(machine: BrokerProcess, name: str) -> Connection:
    """A connection to one of the brokers: the system chooses, so ask until it is that one."""
    for _ in range(CONNECTIONS_MAX):
        try:
            connection = Connection(machine.url)
        except ConnectFailed:
            continue  # on a busy machine a login may take too long
        if broker_of(connection) == name:
            return connection
        connection.close()
    raise AssertionError(f"none of {CONNECTIONS_MAX} connections reached {name}")


def test_brokers_of_a_machine_share_one_port(machine: BrokerProcess) -> None:
    wait_until(lambda: is_whole(machine), "all brokers to be linked", AGREE_SECONDS_MAX)
    ready = [line for line in machine.printed().splitlines() if line.startswith("ready")]
    assert ready == [f"ready many amqp://127.0.0.1:{machine.port} {machine.http_url}"]
    connections = {name: connect_to(machine, name) for name in NAMES}
    channels = {name: each.channel(confirms=True) for name, each in connections.items()}
    # A shared queue is the same at each of them, and private ones are found from everywhere.
    channels["many-2"].declare_queue("shared")
    for name, channel in channels.items():
        channel.publish(name.encode(), routing_key="shared")
    taken = [channels["many-3"].get("shared", no_ack=True) for _ in NAMES]
    assert sorted(each.body.decode() for each in taken if each is not None) == NAMES
    private = channels["many-2"].declare_queue("", exclusive=True).name
    channels["many-3"].publish(b"reply", routing_key=private)
    reply = wait_until(lambda: channels["many-2"].get(private, no_ack=True), "the reply")
    assert reply is not None
    assert reply.body == b"reply"
    channels["many-2"].delete_queue("shared")
    for connection in connections.values():
        connection.close()


@pytest.mark.parametrize("name", ["many-3", "many"])
def test_a_broker_that_is_killed_is_started_again(machine: BrokerProcess, name: str) -> None:
    wait_until(lambda: is_whole(machine), "all brokers to be linked", AGREE_SECONDS_MAX)
    survivor = connect_to(machine, "many-2")
    channel = survivor.channel(confirms=True)
    channel.declare_queue("kept", durable=True)
    channel.publish(b"before", routing_key="kept", properties=PERSISTENT)
    before = pid_of(machine, name)
    os.kill(before, signal.SIGKILL)
    wait_until(
        lambda: pid_of(machine, name) not in (0, before), f"{name} to start", AGREE_SECONDS_MAX
    )
    # The connection of another broker has noticed nothing but a pause.
    channel.publish(b"after", routing_key="kept", properties=PERSISTENT)
    wait_until(lambda: is_whole(machine), "all brokers to be linked again", AGREE_SECONDS_MAX)
    connect_to(machine, name).close()
    taken = [channel.get("kept", no_ack=True) for _ in range(2)]
    assert [each.body for each in taken if each is not None] == [b"before", b"after"]
    channel.delete_queue("kept")
    survivor.close()


def test_brokers_of_a_machine_read_their_configuration_again(machine: BrokerProcess) -> None:
    wait_until(lambda: is_whole(machine), "all brokers to be ready", AGREE_SECONDS_MAX)
    os.kill(machine.pid, signal.SIGHUP)
    said = "rhizome.server: configuration read again; changed: nothing"
    wait_until(lambda: machine.printed().count(said) == len(NAMES), "each to have read it", 30)
    assert "takes effect with a restart" not in machine.printed()
    assert is_whole(machine)


def test_brokers_of_a_machine_stop_with_it_and_start_again(machine: BrokerProcess) -> None:
    wait_until(lambda: is_whole(machine), "all brokers to be linked", AGREE_SECONDS_MAX)
    with Connection(machine.url) as connection, connection.channel(confirms=True) as channel:
        channel.declare_queue("kept", durable=True)
        channel.publish(b"kept", routing_key="kept", properties=PERSISTENT)
    pids = [pid_of(machine, name) for name in NAMES]
    machine.stop_cleanly()
    assert not any(runs(pid) for pid in pids)
    machine.start()
    assert [pid_of(machine, name) for name in NAMES] != pids
    with Connection(machine.url) as connection, connection.channel() as channel:
        found = channel.get("kept", no_ack=True)
    assert found is not None
    assert found.body == b"kept"


def test_brokers_end_when_their_supervisor_is_killed(machine: BrokerProcess) -> None:
    wait_until(lambda: is_whole(machine), "all brokers to be linked", AGREE_SECONDS_MAX)
    pids = [pid_of(machine, name) for name in NAMES]
    machine.kill()
    # At once: the new one waits until they have closed their stores.
    machine.start()
    assert not any(runs(pid) for pid in pids)
    assert all(pid_of(machine, name) not in pids for name in NAMES)


@pytest.mark.soak
def test_a_primary_of_a_larger_cluster_may_have_several_cores(tmp_path: Path) -> None:
    """Brokers elsewhere dial it at a port of its own; its secondaries dial all primaries."""
    key = tmp_path / "key"
    key.write_text("0123456789abcdef-key")
    key.chmod(0o600)
    many = Machine(tmp_path / "b1")
    others = {name: Machine(tmp_path / name) for name in ("b2", "b3")}
    links = free_port()
    listed = [f"b1=127.0.0.1:{links}"]
    listed += [f"{name}=127.0.0.1:{each.port}" for name, each in others.items()]
    for name, each in {"b1": many, **others}.items():
        each.add_arguments(["--name", name, "--machine", name, "--cluster-key-file", str(key)])
        for primary in listed:
            each.add_arguments(["--primary", primary])
    config = tmp_path / "b1.toml"
    config.write_text(f'[broker]\ncores = 3\n[listen]\nlinks = ["127.0.0.1:{links}"]\n')
    many.add_arguments(["--config", str(config)])
    machines = [many, *others.values()]
    try:
        for each in machines:
            each.launch()
        for each in machines:
            each.wait_until_ready(2 * AGREE_SECONDS_MAX)
        names = ["b1", "b1-2", "b1-3", "b2", "b3"]

        def all_linked() -> bool:
            seen = statuses(others["b2"])
            return sorted(seen) == names and set(seen.values()) <= {"ready", "active"}

        wait_until(all_linked, "all brokers to be linked", AGREE_SECONDS_MAX)
        with connect_to(many, "b1-2") as near, Connection(others["b3"].url) as far:
            queue = near.channel().declare_queue("", exclusive=True).name
            far.channel(confirms=True).publish(b"across", routing_key=queue)
            reader = near.channel()
            found = wait_until(lambda: reader.get(queue, no_ack=True), "the message")
        assert found is not None
        assert found.body == b"across"
    finally:
        for each in machines:
            each.close()


def test_a_lone_store_is_refused_with_several_cores_and_the_other_way_round(tmp_path: Path) -> None:
    lone = BrokerProcess(tmp_path)
    with lone:
        pass
    assert "is the store of a lone broker" in refusal(cores(tmp_path))
    several = cores(tmp_path / "several", 2)
    with several:
        pass
    assert "of one with several cores" in refusal(BrokerProcess(tmp_path / "several"))


def test_a_port_that_somebody_else_has_is_refused(tmp_path: Path) -> None:
    several = cores(tmp_path)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", several.port))
        other.listen()
        assert f"cannot listen for AMQP on 127.0.0.1:{several.port}" in refusal(several)
