"""The logs of running brokers under attack: nobody forges lines, floods them or stays out."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import stat
from asyncio import IncompleteReadError
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final
from uuid import uuid4

import pytest

from rhizome.amqp import methods
from rhizome.amqp.methods import decode_method
from rhizome.client import connect
from rhizome.cluster.link.broker_hello import Hello
from rhizome.cluster.link.cluster_key_proof import MECHANISM, Dialler, LinkKey
from rhizome.testing.broker_process import BrokerProcess, wait_until
from rhizome.testing.cluster_process import ClusterProcess
from tests.process.helpers import PROTOCOL_HEADER, RawClient, run

pytestmark = [pytest.mark.rhizome_only, pytest.mark.timeout(240)]

STRANGERS: Final = 300
UUID_CHARS: Final = 12_000
FLOOD_BYTES_MAX: Final = 300_000
"""What that many strangers may write; each of them sends as much as fits into a handshake."""

FORGED: Final = "2026-01-01 00:00:00,000 INFO    rhizome.broker: opened by user 'admin'"

CONFIGURATION: Final = """
[broker]
name = "b1"
[cluster]
key = "the-key-of-this-cluster-and-of-no-other"
primaries = ["b1=127.0.0.1:{port}"]
[log]
file = "{log}"
"""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs") / "broker.log"


@pytest.fixture(scope="module")
def broker(log: Path) -> Iterator[BrokerProcess]:
    file = log.parent / "rhizome.toml"
    process = BrokerProcess(log.parent, arguments=["--config", str(file)])
    file.write_text(CONFIGURATION.format(port=process.port, log=log))
    file.chmod(0o600)
    before = os.umask(0o022)
    try:
        process.start()
    finally:
        os.umask(before)
    with contextlib.closing(process):
        yield process
        assert process.is_running(), process.printed()


def hello(uuid: str) -> Hello:
    return Hello(
        name="b2",
        uuid=uuid,
        incarnation=uuid4().hex,
        role="secondary",
        addresses=("127.0.0.1:1",),
        machine="elsewhere",
        cluster_uuid="",
        primaries_hash="",
    )


async def pose_as_a_broker(broker: BrokerProcess, uuid: str) -> None:
    """A stranger without the key, whose UUID ends up in the log."""
    dialler = Dialler(LinkKey(b"the-key-of-another-cluster-entirely"), hello(uuid), Random(1))
    client = await RawClient.connected(broker)
    client.write(PROTOCOL_HEADER)
    await client.read_frame()
    client.send(0, methods.ConnectionStartOk({}, MECHANISM, dialler.first(), "en_US"))
    with contextlib.suppress(IncompleteReadError):
        answer = decode_method(await client.read_frame())
        assert isinstance(answer, methods.ConnectionSecure)
        client.send(0, methods.ConnectionSecureOk(dialler.prove(answer.challenge)))
        await client.read_to_end()
    await client.close()


def text_of(log: Path) -> str:
    return log.read_bytes().decode("utf-8", "surrogateescape")


def test_a_stranger_cannot_forge_a_line(broker: BrokerProcess, log: Path) -> None:
    run(pose_as_a_broker(broker, f"x\n{FORGED}\x1b[2J\u202e\x85y"))
    wait_until(lambda: "login refused" in text_of(log), "the refusal")
    for line in text_of(log).split("\n"):
        assert line.isprintable(), repr(line)
        assert not line.startswith(FORGED)


def test_many_strangers_write_little(broker: BrokerProcess, log: Path) -> None:
    before = log.stat().st_size

    async def knock() -> None:
        for _ in range(STRANGERS):
            await pose_as_a_broker(broker, "u" * UUID_CHARS)

    run(knock(), 200)
    written = log.stat().st_size - before
    print(f"{STRANGERS} strangers wrote {written / 1024:.0f} KiB")
    assert written < FLOOD_BYTES_MAX


def test_a_name_that_is_no_utf_8_is_in_the_log(broker: BrokerProcess, log: Path) -> None:
    async def ask_for(name: str) -> None:
        client = await RawClient.logged_in(broker)
        client.send(1, methods.ChannelOpen(), methods.QueueDeclare(name, passive=True))
        await client.read_frame()
        assert isinstance(decode_method(await client.read_frame()), methods.ChannelClose)
        await client.close()

    run(ask_for("VISIBLE"))
    run(ask_for("STEALTH\udcff"))
    wait_until(lambda: "VISIBLE" in text_of(log), "the first line")
    wait_until(lambda: "STEALTH" in text_of(log), "the second line", 10)
    assert "Traceback" not in broker.output.read_text()


def test_others_cannot_read_the_log_however_it_is_rotated(broker: BrokerProcess, log: Path) -> None:
    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    assert mode(log) == 0o640
    assert mode(broker.data / "audit.log") == 0o640
    log.rename(log.with_suffix(".1"))
    log.touch(0o644)
    os.kill(broker.pid, signal.SIGHUP)
    wait_until(lambda: "configuration read again" in text_of(log), "the reload")
    assert mode(log) == 0o640


# ---- who did what, in a cluster


def audited(broker: BrokerProcess, event: str) -> list[dict[str, Any]]:
    lines = (broker.data / "audit.log").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["event"] == event]


def ask(broker: BrokerProcess, method: str, target: str) -> int:
    connection = http.client.HTTPConnection(broker.host, broker.http_port, timeout=60)
    login = {"Authorization": "Basic " + b64encode(b"guest:guest").decode()}
    connection.request(method, target, None, login)
    status = connection.getresponse().status
    connection.close()
    return status


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    cluster = ClusterProcess(tmp_path_factory.mktemp("cluster"), primaries=2)
    cluster.start()
    yield cluster
    cluster.stop()


def test_changes_are_audited_where_the_application_is_connected(cluster: ClusterProcess) -> None:
    async def scenario(broker: BrokerProcess, queue: str) -> None:
        async with connect(broker.url) as connection, connection.channel() as channel:
            await channel.declare_queue(queue, durable=True)
            await channel.declare_queue(exclusive=True)
            await channel.purge_queue(queue)
            await channel.delete_queue(queue)

    b1, b2 = cluster.brokers["b1"], cluster.brokers["b2"]
    run(scenario(b1, "one"))
    run(scenario(b2, "two"))
    for broker, queue in ((b1, "one"), (b2, "two")):
        wait_until(lambda: len(audited(broker, "topology")) >= 3, "the audit log")  # noqa: B023
        rows = audited(broker, "topology")
        assert [(row["what"], row["queue"]) for row in rows] == [
            ("queue.declare", queue),
            ("queue.purge", queue),
            ("queue.delete", queue),
        ]
        for row in rows:
            assert row["user"] == "guest"
            assert row["address"].startswith("127.0.0.1:")
            assert row["connection"].startswith(row["address"])
            assert row["connection"].endswith(f":{broker.port}")


def test_what_a_broker_passes_on_is_audited_with_its_origin(cluster: ClusterProcess) -> None:
    b1, b2 = cluster.brokers["b1"], cluster.brokers["b2"]

    async def declare() -> None:
        async with connect(b1.url) as connection, connection.channel() as channel:
            await channel.declare_queue("purged-over-http", durable=True)

    run(declare())
    for broker in (b1, b2):  # one of them is home, the other passes it on
        target = "/api/queues/%2F/purged-over-http/contents"
        wait_until(lambda: ask(broker, "DELETE", target) == 204, "the purge")  # noqa: B023

    def passed_on() -> list[dict[str, Any]]:
        return [
            row
            for broker in (b1, b2)
            for row in audited(broker, "change")
            if row["via"] == "broker" and row["what"].endswith("/contents")
        ]

    wait_until(passed_on, "what was passed on")
    for row in passed_on():
        assert row["origin"] == ("b1" if row["broker"] == "b2" else "b2")
        assert row["address"].startswith("127.0.0.1:")


# ---- logs that hang -----------------------------------------------------------------------------


def test_logs_that_hang_do_not_stop_the_broker(tmp_path: Path) -> None:
    """Both go to pipes that nobody reads: each takes 64 KiB, and then writes hang."""
    readers = []
    for name in ("log", "audit"):
        os.mkfifo(tmp_path / name)
        readers.append(os.open(tmp_path / name, os.O_RDONLY | os.O_NONBLOCK))
    environment = {
        "RHIZOME_LOG_FILE": str(tmp_path / "log"),
        "RHIZOME_AUDIT_FILE": str(tmp_path / "audit"),
    }
    broker = BrokerProcess(tmp_path / "b1", environment=environment)
    with contextlib.closing(broker):
        broker.start()

        async def come_and_go() -> None:
            for _ in range(500):
                async with connect(broker.url):
                    pass

        run(come_and_go(), 200)

        def waits() -> bool:
            facts = told_by(broker, "/api/rhizome/checkup/own")["logs"]
            return all(each["waiting_lines"] and each["stuck_ms"] for each in facts)

        wait_until(waits, "both logs to hang")
        assert broker.stop() == 0, "it doesn't hang at its end either"
    for reader in readers:
        os.close(reader)


def told_by(broker: BrokerProcess, target: str) -> Any:
    connection = http.client.HTTPConnection(broker.host, broker.http_port, timeout=30)
    login = b64encode(b"guest:guest").decode()
    with contextlib.closing(connection):
        connection.request("GET", target, headers={"Authorization": f"Basic {login}"})
        return json.loads(connection.getresponse().read())
