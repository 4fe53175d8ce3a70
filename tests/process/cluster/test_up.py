"""`rhizome up`: processes started, watched, started again and stopped in order.

What `up` itself does is tested with fake brokers, which are quick and misbehave when told to; real
clusters show that real brokers are like them.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rhizome.client import Failover, blocking, open_session
from rhizome.testing.broker_process import wait_until
from rhizome.testing.free_ports import free_ports

FAKE = Path(__file__).with_name("fake_cluster.py")
SECONDS_MAX = 120.0
REAL_SECONDS_MAX = 180.0


class Up:
    """An `up` as a process; its output is read as it comes."""

    def __init__(self, directory: Path, brokers: int, secondaries: int, fake: bool) -> None:
        self.directory = directory
        count = brokers + secondaries
        self.port = free_ports(2 * count)
        self.http_port = self.port + count
        shape = [brokers, secondaries, self.port, self.http_port]
        options = ("--brokers", "--secondaries", "--base-port", "--http-base-port")
        pairs = [str(each) for pair in zip(options, shape, strict=True) for each in pair]
        self.command = (
            [sys.executable, str(FAKE), "up", str(directory), *map(str, shape)]
            if fake
            else [sys.executable, "-m", "rhizome", "up", "--data", str(directory), *pairs]
        )
        self.seconds_max = SECONDS_MAX if fake else REAL_SECONDS_MAX
        self.output = directory.with_name(f"{directory.name}.output")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.output.open("wb") as output:
            # Whoever runs the tests in the background may ignore these; what is tested must not.
            self.process = subprocess.Popen(
                ["env", "--default-signal=HUP,INT", *self.command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def start_until_ready(self) -> None:
        self.start()
        self.wait_for("\nready")

    def printed(self) -> str:
        return self.output.read_text()

    def wait_for(self, text: str, times: int = 1) -> None:
        def found() -> bool:
            assert self.process is not None
            ended = self.process.poll() is not None
            has = self.printed().count(text) >= times
            assert has or not ended, f"ended without {text!r}:\n{self.printed()}"
            return has

        try:
            wait_until(found, repr(text), self.seconds_max)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.printed()}") from None

    def pid(self, name: str) -> int:
        return int((self.directory / name / "pid").read_text())

    def kill(self, name: str) -> None:
        os.kill(self.pid(name), signal.SIGKILL)

    def restart(self, name: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "rhizome", "up"]
        return subprocess.run(
            [*command, "--data", str(self.directory), "--restart", name],
            capture_output=True,
            text=True,
            timeout=self.seconds_max,
            check=False,
        )

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(self.seconds_max)

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(self.seconds_max)

    def mood(self, name: str, mood: str) -> None:
        (self.directory / name).mkdir(parents=True, exist_ok=True)
        (self.directory / name / "mood").write_text(mood)

    def end_all(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(self.seconds_max)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for pid_file in self.directory.glob("*/pid"):
            os.kill(int(pid_file.read_text()), signal.SIGKILL)


Make = Callable[..., Up]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Up] = []

    def up(brokers: int = 3, secondaries: int = 0, fake: bool = True) -> Up:
        made.append(Up(tmp_path / "cluster", brokers, secondaries, fake))
        return made[-1]

    yield up
    for each in made:
        each.end_all()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# --- start and stop


def test_last_line_of_the_start_says_ready_and_names_the_root(make: Make) -> None:
    up = make(3, 1)
    up.start_until_ready()
    lines = up.printed().splitlines()
    assert lines[-1].startswith("ready: 4 brokers, all linked, root is b1 (term 1), after ")
    for n, name in enumerate(("b1", "b2", "b3", "s1")):
        assert f"amqp://127.0.0.1:{up.port + n}" in up.printed()
        assert f"http://127.0.0.1:{up.http_port + n}" in up.printed()
        assert is_alive(up.pid(name))
        assert f"ready {name}" in (up.directory / name / "log").read_text()
    assert f"kill -9 $(cat {up.directory}/b1/pid)" in up.printed()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_stops_secondaries_then_primaries_then_the_root(
    make: Make, number: signal.Signals
) -> None:
    up = make(2, 2)
    up.start_until_ready()
    pids = [up.pid(name) for name in ("b1", "b2", "s1", "s2")]
    assert up.stop(number) == 0
    stops = (up.directory / "stops").read_text().split()
    assert (sorted(stops[:2]), stops[2:]) == (["s1", "s2"], ["b2", "b1"])
    assert not any(is_alive(pid) for pid in pids)
    assert not list(up.directory.glob("*/pid"))


def test_interrupt_at_the_terminal_reaches_the_brokers_once_only(make: Make) -> None:
    up = make(1)
    up.start_until_ready()
    assert os.getsid(up.pid("b1")) == up.pid("b1"), "a session of its own"


def test_signal_during_the_start_stops_what_was_started(make: Make) -> None:
    up = make(2)
    up.mood("b2", "alone")
    up.start()
    up.wait_for("waiting: b2 doesn't know b1")
    assert up.stop() == 0
    assert sorted((up.directory / "stops").read_text().split()) == ["b1", "b2"]


def test_broker_that_can_not_start_is_named_with_its_log(make: Make) -> None:
    up = make(3)
    up.mood("b2", "crash")
    up.start()
    assert up.wait() == 1
    assert "error: b2 ended with exit code 1" in up.printed()
    assert "b2 can't start: no luck today" in up.printed()
    assert not list(up.directory.glob("*/pid")), "the others were stopped"


def test_broker_that_ends_during_the_start_is_not_left_out_of_ready(make: Make) -> None:
    up = make(3)
    up.mood("b3", "early")
    up.start()
    assert up.wait() == 1
    assert "error: b3 ended with exit code 7" in up.printed()
    assert "\nready" not in up.printed()


def test_port_in_use_is_named_before_anything_starts(make: Make) -> None:
    up = make(2)
    with socket.socket() as other:
        other.bind(("127.0.0.1", up.http_port + 1))
        other.listen()
        up.start()
        assert up.wait() == 1
    assert f"{up.http_port + 1} (b2, --http-base-port)" in up.printed()
    assert not (up.directory / "b1" / "log").exists()


# --- while it runs


def test_killed_broker_stays_down_and_the_new_root_is_named(make: Make) -> None:
    up = make(3)
    up.start_until_ready()
    up.kill("b1")
    up.wait_for("b1 was ended by SIGKILL and stays down")
    up.wait_for("b2 is the new root (term 2), 2 of 3 brokers run")
    assert not (up.directory / "b1" / "pid").exists()
    up.kill("b3")
    up.wait_for("b2 is the root (term 2), 1 of 3 brokers run")
    up.kill("b2")
    up.wait_for("no broker runs any more")
    assert up.stop() == 0


def test_restart_starts_a_killed_broker_in_the_running_cluster(make: Make) -> None:
    up = make(3)
    up.start_until_ready()
    before = up.pid("b2")
    up.kill("b2")
    done = up.restart("b2")
    assert done.returncode == 0, done.stderr
    after = up.pid("b2")
    assert done.stdout == f"b2 is back (process {after}); root is b1\n"
    assert after != before
    assert is_alive(after)
    assert up.stop() == 0
    assert not is_alive(after), "it belongs to the cluster like the others"


def test_restart_of_a_running_broker_stops_it_first(make: Make) -> None:
    up = make(2)
    up.start_until_ready()
    before = up.pid("b2")
    assert up.restart("b2").returncode == 0
    assert not is_alive(before)
    assert (up.directory / "stops").read_text().split() == ["b2"]
    assert "stays down" not in up.printed()


def test_restart_that_fails_says_why(make: Make) -> None:
    up = make(2)
    up.start_until_ready()
    up.mood("b2", "crash")
    failed = up.restart("b2")
    assert failed.returncode == 1
    assert "no luck today" in failed.stderr
    assert "there is no broker b9 here (b1, b2)" in up.restart("b9").stderr
    up.mood("b2", "")
    assert up.restart("b2").returncode == 0


def test_restart_needs_a_running_cluster(make: Make) -> None:
    up = make(1)
    assert "no cluster runs in" in up.restart("b1").stderr
    up.start_until_ready()
    assert up.stop() == 0
    assert "no cluster runs in" in up.restart("b1").stderr


# --- directories


def test_second_up_on_a_directory_in_use_is_refused(make: Make, tmp_path: Path) -> None:
    up = make(1)
    up.start_until_ready()
    second = make(1)
    second.output = tmp_path / "second.output"
    second.start()
    assert second.wait() == 1
    assert "already" in second.printed()
    assert up.process is not None
    assert f"(process {up.process.pid})" in second.printed()
    assert is_alive(up.pid("b1"))


def test_brokers_that_a_crashed_up_left_are_stopped_cleanly(make: Make) -> None:
    up = make(2)
    up.start_until_ready()
    left = [up.pid("b1"), up.pid("b2")]
    assert up.process is not None
    up.process.kill()
    up.process.wait()
    assert all(is_alive(pid) for pid in left)
    up.start_until_ready()
    assert up.printed().count("left by an `up` that crashed: stopping it") == 2
    assert sorted((up.directory / "stops").read_text().split()) == ["b1", "b2"]
    assert up.pid("b1") not in left


def test_process_that_took_over_a_number_is_left_alone(make: Make) -> None:
    up = make(1)
    (up.directory / "b1").mkdir(parents=True)
    (up.directory / "b1" / "pid").write_text(str(os.getpid()))
    up.start_until_ready()
    assert up.pid("b1") != os.getpid()


def test_control_socket_works_in_a_deep_directory(tmp_path: Path, make: Make) -> None:
    up = make(1)
    up.directory = tmp_path / ("d" * 80) / ("e" * 80)
    up.command[3] = str(up.directory)
    up.output = tmp_path / "deep.output"
    up.start_until_ready()
    assert up.restart("b1").returncode == 0


# --- with real brokers


def status_of(http_port: int) -> dict[str, Any]:
    """What `rhizome status --json` prints."""
    command = [sys.executable, "-m", "rhizome", "status", "--json"]
    done = subprocess.run(
        [*command, "--http", f"127.0.0.1:{http_port}"],
        capture_output=True,
        timeout=REAL_SECONDS_MAX,
        check=True,
    )
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_one_real_broker_serves_and_survives_kill_and_restart(make: Make) -> None:
    up = make(1, fake=False)
    up.start_until_ready()
    url = f"amqp://guest:guest@127.0.0.1:{up.port}/"
    with blocking.Connection(url) as connection, connection.channel() as channel:
        channel.declare_queue("orders", durable=True)
    key = up.directory / "cluster.key"
    assert key.stat().st_mode & 0o777 == 0o600
    up.kill("b1")
    up.wait_for("b1 was ended by SIGKILL")
    assert up.restart("b1").returncode == 0
    with blocking.Connection(url) as connection, connection.channel() as channel:
        channel.declare_queue("orders", durable=True, passive=True)
    assert status_of(up.http_port)["cluster"]["root"] == "b1"
    assert up.stop(signal.SIGINT) == 0
    secret = key.read_text().strip()
    for file in up.directory.glob("b1/*"):
        assert file.is_dir() or secret not in file.read_text()


def keys(document: Any) -> set[str]:
    return set(document)


@pytest.mark.timeout(600)
def test_real_cluster_elects_another_root_and_takes_the_old_one_back(make: Make) -> None:
    up = make(3, 1, fake=False)
    up.start_until_ready()
    last = up.printed().splitlines()[-1]
    assert last.startswith("ready: 4 brokers, all linked, root is ")

    status = status_of(up.http_port + 3)
    assert keys(status) >= {"cluster", "brokers", "groups", "failover_map"}
    assert keys(status["cluster"]) >= {"uuid", "term", "root", "quorum"}
    assert status["cluster"]["quorum"] == {"defined": 3, "active": 3, "needed": 2}
    assert sorted(each["name"] for each in status["brokers"]) == ["b1", "b2", "b3", "s1"]
    shape = {"name", "role", "status", "seniority", "machine", "addresses", "connections"}
    assert all(keys(each) >= shape for each in status["brokers"])
    # One that was starved for a while may have lost its group.
    assert [each["home"] in {"b1", "b2", "b3"} for each in status["groups"]] == [True] * 3
    shape = {"id", "home", "epoch", "failover", "in_sync", "queues", "messages"}
    assert all(keys(each) >= shape for each in status["groups"])
    assert {"b1", "b2", "b3"} <= keys(status["failover_map"])

    root = status["cluster"]["root"]
    up.kill(root)
    up.wait_for(f"{root} was ended by SIGKILL and stays down")
    up.wait_for(" is the new root (term ")
    port = up.http_port + (0 if root != "b1" else 1)
    seen = status_of(port)
    assert seen["cluster"]["root"] not in (None, root)
    stopped = {each["name"]: each["status"] for each in seen["brokers"]}
    assert stopped[root] == "stopped"

    done = up.restart(root)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{root} is back (process {up.pid(root)}); root is ")
    again = status_of(port)
    assert again["cluster"]["root"] == seen["cluster"]["root"]
    assert again["cluster"]["uuid"] == status["cluster"]["uuid"]
    assert again["cluster"]["quorum"]["active"] == 3
    assert up.stop() == 0, up.printed()
    assert not list(up.directory.glob("*/pid"))


@pytest.mark.timeout(600)
def test_up_reports_the_end_of_a_broker_and_nobody_waits_for_its_lease(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases are longer than `up` waits for a root: they aren't waited for."""
    monkeypatch.setenv("RHIZOME_CLUSTER_ROOT_LEASE", "5m")
    monkeypatch.setenv("RHIZOME_CLUSTER_HOME_LEASE", "10m")
    up = make(3, fake=False)
    up.start_until_ready()
    root = str(status_of(up.http_port)["cluster"]["root"])
    up.kill(root)
    up.wait_for(" is the new root (term ")
    assert up.stop() == 0, up.printed()


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_session_goes_on_when_the_broker_that_it_is_on_is_killed(make: Make) -> None:
    """It publishes and consumes; its broker is the home of its queue, too."""
    up = make(3, 0, fake=False)
    up.start_until_ready()

    async def scenario() -> tuple[list[int], str]:
        uri = f"amqp://guest:guest@127.0.0.1:{up.port}/"
        async with open_session(uri, failover=Failover(tries_max=0)) as session:
            assert session.broker == "b1"
            taken: list[int] = []
            arguments: dict[str, object] = {"x-group": "b1"}
            async with (
                session.queue("kept", durable=True, arguments=arguments, prefetch=10) as queue,
                session.producer(routing_key="kept", window=50) as producer,
            ):
                for number in range(600):
                    await producer.send(b"%d" % number)
                    if number == 300:
                        up.kill("b1")
                await producer.flush()
                async for message in queue:
                    taken.append(int(message.body))
                    await message.ack()
                    if len(taken) == 600:
                        break
                rest = (await queue.info()).message_count
            assert rest == 0
            return taken, session.broker

    async def limited() -> tuple[list[int], str]:
        async with asyncio.timeout(120):
            return await scenario()

    taken, broker = asyncio.run(limited())
    assert taken == list(range(600))
    assert broker in ("b2", "b3")
