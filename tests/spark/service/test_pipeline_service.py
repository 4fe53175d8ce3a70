"""The standing service against a real broker: flows end to end, poison, restarts, stop, status."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rhizome.client.blocking import Connection
from rhizome.spark.service.flow_file import load
from rhizome.spark.service.pipeline_service import PipelineService
from rhizome.spark.service.state_files import StateFiles
from rhizome.spark.service.status_file import read_status
from rhizome.testing.broker_process import Broker, wait_until
from tests.spark.streams import declare_stream, fill, numbered
from tests.spark.tables import readers

Unique = Callable[[str], str]
Start = Callable[[str], "RunningService"]
SECONDS_MAX = 800.0
VALUES = "SELECT decode(value)::INT FROM messages ORDER BY 1"


class RunningService:
    """A service in a thread of this process, with the session of the tests."""

    def __init__(self, spark: Any, path: Path) -> None:
        self.settings = load(path)
        self.service = PipelineService(spark, self.settings)
        self._spark = spark
        self.result: list[bool] = []
        self.failure: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        # Formats are registered with the session that is active in a thread.
        kind = type(self._spark)._get_j_spark_session_class(self._spark._jvm)
        kind.setActiveSession(self._spark._jsparkSession)
        try:
            self.result.append(self.service.run())
        except BaseException as error:
            self.failure.append(error)

    def flow(self, name: str) -> dict[str, Any]:
        rows = {each["name"]: each for each in self.service.document()["flows"]}
        return dict(rows.get(name, {"rows": 0, "lag": {}}))  # before it has begun

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        def is_so() -> bool:
            assert not self.failure, self.failure
            return condition()

        try:
            wait_until(is_so, what, SECONDS_MAX)
        except BaseException:
            print(json.dumps(self.service.document(), indent=2))
            raise

    def stop(self) -> bool:
        self.service.stop()
        self._thread.join(SECONDS_MAX)
        assert not self._thread.is_alive()
        assert not self.failure, self.failure
        return self.result[0]


@pytest.fixture
def start(spark: Any, broker: Broker, tmp_path: Path) -> Iterator[Start]:
    """Starts a service of the flows that a text describes."""
    running: list[RunningService] = []

    def begin(flows: str) -> RunningService:
        path = tmp_path / "flows.toml"
        head = f'name = "tests"\nstate = "state"\nuri = "{broker.url}"\nlisten = "127.0.0.1:0"\n'
        retry = '[retry]\ntries = 2\npause = "100ms"\npause_max = "1s"\n'
        path.write_text(head + retry + flows)
        path.chmod(0o600)
        running.append(RunningService(spark, path))
        return running[-1]

    yield begin
    for each in running:
        each.stop()


def drained(broker: Broker, queue: str) -> list[int]:
    with Connection(broker.url) as connection:
        channel = connection.channel()
        size = channel.declare_queue(queue, passive=True).message_count
        consumer = channel.consume(queue, no_ack=True, timeout_s=30)
        return sorted(int(next(consumer).body) for _ in range(size))


def size(broker: Broker, queue: str) -> int:
    with Connection(broker.url) as connection:
        return int(connection.channel().declare_queue(queue, passive=True).message_count)


def declare_exchange(broker: Broker, name: str, queue: str) -> None:
    with Connection(broker.url) as connection:
        channel = connection.channel()
        channel.declare_exchange(name, "topic", durable=True)
        channel.declare_queue(queue, durable=True)
        channel.bind_queue(queue, name, "even.#")


def rows_of(table: Path) -> list[int]:
    if not (table / "_delta_log").exists():
        return []
    return [row[0] for row in readers("delta")["delta-rs"](str(table), VALUES)]


def test_flows_run_side_by_side_and_status_tells_of_them(
    start: Start, broker: Broker, unique: Unique, tmp_path: Path
) -> None:
    stream, exchange, queue = unique("events"), unique("results"), unique("even")
    declare_stream(broker.url, stream)
    declare_exchange(broker, exchange, queue)
    fill(broker.url, stream, numbered(1000))
    service = start(f"""
[flows.archive]
interval = "200ms"
source = {{ streams = ["{stream}"], rows_per_batch = 300 }}
sink = {{ table = "lake", format = "delta" }}

[flows.even]
interval = "200ms"
source = {{ streams = ["{stream}"] }}
sql = '''
SELECT value, 'even.number' AS key FROM messages
WHERE cast(cast(value AS STRING) AS INT) % 2 = 0
'''
sink = {{ exchange = "{exchange}" }}
""")
    table = tmp_path / "lake"
    service.wait(lambda: len(rows_of(table)) >= 1000, "the table")
    service.wait(lambda: size(broker, queue) >= 500, "the queue")
    fill(broker.url, stream, numbered(500, 1000))
    service.wait(lambda: service.flow("archive")["rows"] >= 1500, "the rest")
    service.wait(lambda: service.flow("even")["rows"] >= 1500, "the rest")
    archive = service.flow("archive")
    assert archive["state"] == "running"
    assert archive["batches"] >= 4
    assert archive["restarts"] == 0 or archive["error"]
    service.wait(lambda: service.flow("archive")["lag"] == {stream: 0}, "no lag")
    assert service.stop() is True
    assert rows_of(table) == list(range(1500))
    assert drained(broker, queue) == list(range(0, 1500, 2))
    written = read_status(StateFiles(str(tmp_path / "state")), 0)
    assert written is not None
    assert written["state"] == "stopped"
    assert [each["state"] for each in written["flows"]] == ["stopped", "stopped"]
    assert [each["rows"] for each in written["flows"]] == [1500, 1500]


@pytest.mark.timeout(2400)
def test_poison_batch_is_set_aside_and_the_rest_is_delivered_once(
    spark: Any, start: Start, broker: Broker, unique: Unique, tmp_path: Path
) -> None:
    stream, queue = unique("events"), unique("numbers")
    declare_stream(broker.url, stream)
    with Connection(broker.url) as connection:
        connection.channel().declare_queue(queue, durable=True)
    bodies = numbered(1000)
    bodies[450] = b"poison"
    fill(broker.url, stream, bodies)
    flow = """
interval = "200ms"
source = { streams = ["%s"], rows_per_batch = 100 }
sql = "SELECT cast(cast(cast(value AS STRING) AS INT) AS STRING) AS value FROM messages"
"""
    service = start(
        f"[flows.table]{flow % stream}sink = {{ table = 'lake' }}\n"
        f"[flows.queue]{flow % stream}sink = {{ queue = '{queue}' }}\n"
    )
    for name in ("table", "queue"):
        service.wait(lambda name=name: service.flow(name)["lag"] == {stream: 0}, name)
        assert service.flow(name)["set_aside"] == 1
    assert service.stop() is True
    expected = [number for number in range(1000) if not 400 <= number < 500]
    assert drained(broker, queue) == expected
    lake = readers("delta")["delta-rs"](str(tmp_path / "lake"), "SELECT value::INT FROM messages")
    assert sorted(row[0] for row in lake) == expected
    for name in ("table", "queue"):
        (reason,) = (tmp_path / "state" / "set_aside" / name).glob("*/reason.json")
        document = json.loads(reason.read_text())
        assert document["messages"] == 100
        assert document["offsets"] == {stream: [400, 500]}
        assert document["stage"] == "transform"
        assert document["tries"] == 2
        assert "poison" in document["error"]
        kept = spark.read.parquet(str(reason.parent / "messages.parquet"))
        values = [bytes(row.value) for row in kept.orderBy("offset").collect()]
        assert values == bodies[400:500]


def test_metrics_tell_rate_lag_and_restarts(
    start: Start, broker: Broker, unique: Unique, tmp_path: Path
) -> None:
    stream = unique("events")
    declare_stream(broker.url, stream)
    fill(broker.url, stream, numbered(100))
    service = start(f"""
[flows.archive]
interval = "200ms"
source = {{ streams = ["{stream}"] }}
sink = {{ table = "lake", format = "parquet" }}
""")
    service.wait(lambda: service.flow("archive")["rows"] >= 100, "the rows")
    port = service.service.port
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    assert 'rhizome_pipeline_rows_total{flow="archive"} 100.0' in text
    assert f'rhizome_pipeline_lag_messages{{flow="archive",stream="{stream}"}} 0.0' in text
    assert 'rhizome_pipeline_flow_state{flow="archive",state="running"} 1.0' in text
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=30) as answer:
        assert json.load(answer)["flows"][0]["rows"] == 100


@pytest.mark.timeout(2400)
def test_tap_and_work_queue_with_poison_go_through_functions(
    spark: Any, start: Start, broker: Broker, unique: Unique, tmp_path: Path
) -> None:
    exchange, work, even, results = map(unique, ("shop", "work", "even", "results"))
    declare_exchange(broker, exchange, even)
    with Connection(broker.url) as connection:
        for name in (work, results):
            connection.channel().declare_queue(name, durable=True)
    (tmp_path / "doubles.py").write_text(
        "from pyspark.sql import functions as F\n"
        "def doubled(messages):\n"
        "    number = F.col('value').cast('string').cast('int')\n"
        "    return messages.select((number * 2).cast('string').alias('value'))\n"
    )
    bodies = numbered(300)
    bodies[150] = b"poison"
    fill(broker.url, work, bodies)
    service = start(f"""
[flows.tapped]
interval = "200ms"
source = {{ tap = "{exchange}", keys = ["order.#"] }}
sink = {{ table = "tapped", format = "parquet" }}
[flows.work]
interval = "200ms"
function = "doubles:doubled"
source = {{ queues = ["{work}"], rows_per_batch = 100 }}
sink = {{ queue = "{results}" }}
""")
    service.wait(lambda: service.flow("tapped").get("state") == "running", "the tap")
    with Connection(broker.url) as connection:
        channel = connection.channel(confirms=True)
        for key in ("order.new", "other"):
            channel.publish_many(numbered(50), exchange=exchange, routing_key=key, mandatory=False)
    service.wait(lambda: service.flow("tapped")["rows"] >= 50, "what was tapped")
    service.wait(lambda: size(broker, results) >= 200, "the results")
    service.wait(lambda: size(broker, work) == 0, "the work to be taken")
    assert service.flow("work")["set_aside"] == 1
    assert service.stop() is True
    assert service.flow("work")["rows"] == 200
    assert drained(broker, results) == [2 * n for n in range(300) if not 100 <= n < 200]
    rows = spark.read.parquet(str(tmp_path / "tapped")).collect()
    assert sorted(int(row.value) for row in rows) == list(range(50))
    assert {row.key for row in rows} == {"order.new"}
    (reason,) = (tmp_path / "state" / "set_aside" / "work").glob("*/reason.json")
    kept = spark.read.parquet(str(reason.parent / "messages.parquet"))
    assert sorted(bytes(row.value) for row in kept.collect()) == sorted(bodies[100:200])
