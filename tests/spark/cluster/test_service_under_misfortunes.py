"""A standing service with three flows on a Spark cluster, for an hour under random misfortunes.

Homes are killed and brokers stand still, executors and the driver are killed, hosts of workers are
cut off, one after the other and by chance. All the while numbers are published, and what the
service tells of itself (its status file, its address, its metrics, the page of the brokers) is
compared with what is in tables and queues. At the end each number is there once.

`RHIZOME_SERVICE_SECONDS` says for how long (3600), `RHIZOME_TEST_SEED` which chance.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow as pa
import pytest

from rhizome.client.blocking import Connection
from rhizome.errors import RhizomeError
from rhizome.spark.amqp_socket import addresses_of
from rhizome.spark.service.state_files import StateFiles
from rhizome.spark.service.status_file import read_status
from rhizome.spark.sink.confirmed_publisher import Publisher
from rhizome.spark.sink.publish_frames import Addressing, Framer, Producer
from rhizome.testing.broker_process import wait_until
from tests.process.helpers import call_api
from tests.spark.tables import readers
from tests.spark.test_exactly_once import assert_once

from .kit import DRIVER, NEEDS_NETWORK, HostProcess, SparkCluster

pytestmark = NEEDS_NETWORK

SECONDS: Final = float(os.environ.get("RHIZOME_SERVICE_SECONDS", "3600"))
SEED: Final = int(os.environ.get("RHIZOME_TEST_SEED", "11"))
SECONDS_MAX: Final = 900.0
LOOK_SECONDS: Final = 2.0
PORT: Final = 15693
BATCH: Final = 2000
NAME: Final = "shop"
EVENTS, WORK, RESULTS, EXCHANGE = "events", "work", "results", "orders"
FLOWS: Final = ("events", "scores", "tapped")
CONF: Final = {
    "spark.network.timeout": "30s",
    "spark.network.timeoutInterval": "10s",
    "spark.executor.heartbeatInterval": "5s",
    "spark.task.maxFailures": "8",
}
VALUES: Final = "SELECT decode(value) FROM messages"
COUNT: Final = "SELECT count(*) FROM messages"
_METRIC: Final = re.compile(r'^rhizome_pipeline_(\w+)\{flow="(\w+)"(?:,\w+="([^"]*)")?\} (\S+)$')


@dataclass
class Life:
    """One process of the service: what was in the sinks of its flows before it was started."""

    job: HostProcess
    base: dict[str, int]
    rows: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FLOWS, 0))
    """The rows that it has told of, which never become fewer."""


class Service:
    """The service, its input, and its sinks. `published` numbers have gone into each source."""

    def __init__(self, cluster: SparkCluster, directory: Path) -> None:
        self.cluster = cluster
        self.directory = directory
        self.published = 0
        self.looks = 0
        self.life: Life | None = None
        self._address = cluster.network.address(DRIVER)
        self._declare()
        self._write()

    def _declare(self) -> None:
        with Connection(self.cluster.uri) as connection:
            channel = connection.channel()
            channel.declare_queue(EVENTS, durable=True, arguments={"x-queue-type": "stream"})
            channel.declare_queue(WORK, durable=True)
            channel.declare_queue(RESULTS, durable=True)
            channel.declare_exchange(EXCHANGE, "topic", durable=True)

    def _write(self) -> None:
        assert self.cluster.brokers is not None
        hosts = ",".join(
            f"{each.host}:{each.http_port}" for each in self.cluster.brokers.brokers.values()
        )
        self.file = self.directory / "flows.toml"
        self.file.write_text(f"""
name = "{NAME}"
state = "state"
uri = "{self.cluster.uri}"
listen = "{self._address}:{PORT}"
report = "http://guest:guest@{hosts}/"
[retry]
pause = "500ms"
pause_max = "5s"
[flows.events]
interval = "1s"
source = {{ streams = ["{EVENTS}"], rows_per_batch = {BATCH} }}
sink = {{ table = "events", format = "delta" }}
[flows.scores]
interval = "1s"
source = {{ queues = ["{WORK}"], rows_per_batch = {BATCH} }}
sql = "SELECT cast(cast(cast(value AS STRING) AS INT) AS STRING) AS value FROM messages"
sink = {{ queue = "{RESULTS}" }}
[flows.tapped]
interval = "1s"
source = {{ tap = "{EXCHANGE}", keys = ["order.#"], rows_per_batch = {BATCH} }}
sink = {{ table = "tapped", format = "iceberg" }}
""")
        self.file.chmod(0o600)

    # --- life and death

    def start(self) -> None:
        """Start it, and wait until all flows run."""
        base = self.delivered()
        self.life = Life(self.cluster.pipeline("run", str(self.file), conf=CONF), base)
        self.wait(lambda: self._all_are("running"), "all flows to run")

    def _all_are(self, state: str) -> bool:
        document = self.ask("status")
        return document is not None and [each["state"] for each in document["flows"]] == [state] * 3

    def kill(self) -> None:
        """kill -9; the status says at once that nobody runs the flows."""
        assert self.life is not None
        self.life.job.kill()
        self.life = None
        assert self.status_file()["state"] == "silent"
        assert self.ask("status") is None

    def stop(self) -> None:
        assert self.life is not None
        self.life.job.process.send_signal(signal.SIGTERM)
        self.life.job.finish(seconds=SECONDS_MAX)
        self.life = None
        document = self.status_file()
        assert document["state"] == "stopped"
        assert [each["state"] for each in document["flows"]] == ["stopped"] * 3
        (row,) = self.page()
        assert row["state"] == "stopped"

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        pause = threading.Event()  # never set

        def is_so() -> bool:
            assert self.life is None or self.life.job.is_running(), self.life.job.said()
            pause.wait(LOOK_SECONDS)
            return condition()

        said = "" if self.life is None else self.life.job.said()
        try:
            wait_until(is_so, what, SECONDS_MAX)
        except BaseException:
            print(said, json.dumps(self.ask("status"), indent=1))
            raise

    # --- input

    def publish(self, count: int) -> None:
        """More numbers into each source, each once: what is sent again has the same sequence."""
        bodies = [b"%d" % number for number in range(self.published, self.published + count)]
        batch = pa.record_batch({"value": pa.array(bodies, pa.binary())})
        places = (("", EVENTS), ("", WORK), (EXCHANGE, "order.new"))
        for exchange, key in places:
            publisher = Publisher(addresses_of(self.cluster.uri), "numbers", SECONDS_MAX)
            framer = Framer(Addressing(exchange, key, True, True), publisher.frame_bytes_max)
            publisher.publish(framer.frames(batch, Producer("numbers", self.published)))
            assert publisher.finish() == count
        self.published += count

    # --- the truth

    def delivered(self) -> dict[str, int]:
        """How many rows each flow has delivered."""
        with Connection(self.cluster.uri) as connection:
            sent = connection.channel().declare_queue(RESULTS, passive=True).message_count
        return {"events": self._rows("delta"), "scores": int(sent), "tapped": self._rows("iceberg")}

    def _delivered_if_known(self) -> dict[str, int] | None:
        """The same; None while the home of the queue is away."""
        try:
            return self.delivered()
        except (RhizomeError, OSError):
            return None

    def _rows(self, kind: str) -> int:
        found = self._asked(kind, COUNT)
        return int(found[0][0]) if found else 0

    def _asked(self, kind: str, question: str) -> list[tuple[Any, ...]]:
        path = self.directory / ("events" if kind == "delta" else "tapped")
        there = path / ("_delta_log" if kind == "delta" else "catalog.db")
        if not there.exists():
            return []
        return next(iter(readers(kind).values()))(str(path), question)

    def check_once(self) -> None:
        """Each number is in each sink once."""
        for kind in ("delta", "iceberg"):
            assert_once((int(body) for (body,) in self._asked(kind, VALUES)), self.published)
        with Connection(self.cluster.uri) as connection:
            consumer = connection.channel().consume(RESULTS, no_ack=True, timeout_s=SECONDS_MAX)
            found = [int(next(consumer).body) for _ in range(self.delivered()["scores"])]
        assert_once(iter(found), self.published)
        assert not list((self.directory / "state" / "set_aside").glob("*/*"))

    # --- what the service tells

    def status_file(self) -> dict[str, Any]:
        found = read_status(StateFiles(str(self.directory / "state")), time.time())
        assert found is not None
        return found

    def ask(self, path: str) -> Any:
        """What the service answers; None if it doesn't."""
        try:
            with urllib.request.urlopen(f"http://{self._address}:{PORT}/{path}", timeout=30) as got:
                text = got.read().decode()
        except (OSError, http.client.HTTPException):
            return None
        return text if path == "metrics" else json.loads(text)

    def page(self) -> list[dict[str, Any]]:
        """What the page *Pipelines* of a broker shows."""
        assert self.cluster.brokers is not None
        found = call_api(self.cluster.brokers.running()[0], "GET", "rhizome", "pipelines")
        return [row for row in found if row["name"] == NAME]

    def metrics(self) -> dict[tuple[str, str, str], float]:
        """By name, flow and the other label."""
        text = self.ask("metrics")
        lines = [] if text is None else [_METRIC.match(line) for line in text.splitlines()]
        return {
            (each[1], each[2], each[3] or ""): float(each[4]) for each in lines if each is not None
        }

    def look(self) -> None:
        """Compare what is told with itself and with the truth, whatever goes on."""
        life = self.life
        assert life is not None
        assert life.job.is_running(), life.job.said()
        before, metrics, after = self.ask("status"), self.metrics(), self.ask("status")
        written = self.status_file()
        if before is None or after is None or not metrics:
            return  # it is too busy to answer within half a minute
        delivered = self._delivered_if_known()
        assert written["state"] == "running"
        for old, new in zip(before["flows"], after["flows"], strict=True):
            name = old["name"]
            assert life.rows[name] <= old["rows"] <= metrics["rows_total", name, ""] <= new["rows"]
            life.rows[name] = new["rows"]
            # A batch that was delivered and not noted as done is repeated, and counts again here.
            repeated = BATCH * (1 + new["restarts"])
            if delivered is not None:
                assert new["rows"] <= delivered[name] - life.base[name] + repeated, (new, delivered)
            assert sum(new["lag"].values()) <= self.published
            assert sum(metrics["flow_state", name, each] for each in STATES) == 1
            assert new["restarts"] == 0 or new["error"], new
            assert new["state"] in ("starting", "running", "waiting"), new
            assert new["set_aside"] == 0, new
        self.looks += 1

    def look_when_quiet(self) -> None:
        """Wait until all that was published is delivered; then everything told is exact."""
        everything = dict.fromkeys(FLOWS, self.published)
        self.wait(lambda: self.delivered() == everything, f"{self.published} rows in each sink")
        self.wait(lambda: self._is_exact(self.ask("status")), "the status to tell so")
        self.wait(lambda: self._is_exact(self.status_file()), "the file to tell so")
        self.wait(self._metrics_are_exact, "the metrics to tell so")
        self.wait(self._page_is_exact, "the page to tell so")
        self.look()

    def _is_exact(self, document: dict[str, Any] | None) -> bool:
        assert self.life is not None
        if document is None or document["state"] != "running":
            return False
        return all(
            flow["state"] == "running"
            and not any(flow["lag"].values())
            and len(flow["lag"]) == 1
            and flow["rows"] >= self.published - self.life.base[flow["name"]]
            for flow in document["flows"]
        )

    def _metrics_are_exact(self) -> bool:
        found = self.metrics()
        lags = [value for (name, *_), value in found.items() if name == "lag_messages"]
        running = [found.get(("flow_state", flow, "running")) for flow in FLOWS]
        return lags == [0.0] * 3 and running == [1.0] * 3

    def _page_is_exact(self) -> bool:
        """One row for the service, no older than two reports, that says what the status says."""
        rows = self.page()
        assert len(rows) <= 1, rows
        if not rows or rows[0]["state"] != "running":
            return False
        document = self.ask("status")
        if document is None:
            return False
        told = {flow["name"]: (flow["rows"], flow["lag_total"]) for flow in rows[0]["flows"]}
        known = {flow["name"]: (flow["rows"], 0) for flow in document["flows"]}
        return told == known


STATES: Final = ("starting", "running", "waiting", "halted", "stopped")


class Misfortunes:
    """Strikes by chance; `mend` undoes what does not mend itself."""

    def __init__(self, service: Service, chance: Random) -> None:
        self.service = service
        self.cluster = service.cluster
        self._chance = chance
        self._all = [
            self.kill_home,
            self.stop_broker,
            self.kill_executor,
            self.cut_worker,
            self.kill_driver,
        ]
        self._next: Iterator[Callable[[], str]] = iter(())

    def strike(self) -> str:
        """Each kind once in every five, in an order that chance chooses; what it was."""
        found = next(self._next, None)
        if found is None:
            self._next = iter(self._chance.sample(self._all, len(self._all)))
            found = next(self._next)
        return found()

    def kill_home(self) -> str:
        queue = self._chance.choice((EVENTS, WORK, RESULTS, f"pipeline.{NAME}.tapped"))
        home = self.cluster.home_of(queue)
        assert self.cluster.brokers is not None
        self.cluster.brokers.brokers[home].kill()
        return f"{home}, home of {queue}, is killed"

    def stop_broker(self) -> str:
        assert self.cluster.brokers is not None
        name = self._chance.choice(sorted(self.cluster.brokers.brokers))
        self.cluster.brokers.pause(name)
        return f"{name} stands still"

    def kill_executor(self) -> str:
        if not self.cluster.executors():
            return "there is no executor to kill"
        return f"an executor on {self.cluster.kill_executor()} is killed"

    def cut_worker(self) -> str:
        host = self._chance.choice(self.cluster.worker_names)
        self.cluster.cut(host)
        return f"{host} is cut off"

    def kill_driver(self) -> str:
        self.service.kill()
        self.service.publish(100)
        self.service.start()
        return "the driver was killed and started again"

    def mend(self) -> None:
        self.cluster.heal()
        assert self.cluster.brokers is not None
        self.cluster.brokers.make_whole()


@pytest.mark.soak
@pytest.mark.timeout(int(SECONDS) + 3600)
def test_nothing_is_lost_or_doubled_and_the_service_tells_the_truth(
    cluster: SparkCluster, tmp_path: Path
) -> None:
    chance = Random(SEED)
    pause = threading.Event()  # never set: it waits for as long as chance says
    service = Service(cluster, tmp_path)
    misfortunes = Misfortunes(service, chance)
    struck = 0
    try:
        service.start()
        end_s = time.monotonic() + SECONDS
        while time.monotonic() < end_s:
            service.publish(chance.randrange(100, 3 * BATCH))
            pause.wait(chance.uniform(0, 3))
            print(f"{SECONDS - end_s + time.monotonic():.0f} s: {misfortunes.strike()}", flush=True)
            struck += 1
            for _ in range(chance.randrange(1, 6)):
                # While a broker stands still nobody can publish to its queues.
                service.look()
                pause.wait(chance.uniform(0, LOOK_SECONDS))
            misfortunes.mend()
            service.publish(chance.randrange(100, BATCH))
            service.look_when_quiet()
        service.stop()
        service.check_once()
    finally:
        if service.life is not None:
            service.life.job.kill()
        cluster.reset()
    print(f"{service.published} numbers in each of three flows, {struck} misfortunes, ", end="")
    print(f"{service.looks} looks")
    assert struck
    assert service.looks >= struck
