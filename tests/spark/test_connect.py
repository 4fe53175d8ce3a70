"""Spark Connect: source, sinks, SQL and every job, through a server that has nothing of ours.

The server and the programs that connect to it are processes of their own: a process that has had a
session of Spark Connect can't have one of the other kind.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rhizome.amqp.properties import Properties
from rhizome.client.blocking import Connection
from rhizome.spark import spark_master
from rhizome.spark.session import SessionError, SessionOptions, start_session
from rhizome.spark.shipment import zip_pickle
from rhizome.testing.broker_process import BrokerProcess
from tests.spark.connect_server import ConnectServer
from tests.spark.streams import declare_stream, fill, numbered

ROOT = Path(__file__).parents[2]
MESSAGES = 500
JOBS_SECONDS_MAX = 1800
"""Eight jobs in one session: two minutes on a quiet machine."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    found = ConnectServer(tmp_path_factory.mktemp("connect"))
    found.start()
    yield found
    found.stop()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with a store that nobody else writes to."""
    with BrokerProcess(tmp_path_factory.mktemp("home")) as broker:
        yield broker


def python(*arguments: str) -> str:
    """Run a program of ours; what it printed."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=ROOT,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def driven(server: ConnectServer, *commands: Any) -> list[Any]:
    """What a program with one session gets of each command."""
    text = python("-m", "tests.spark.connect_driver", server.remote, json.dumps(commands))
    found: list[Any] = json.loads(text.splitlines()[-1])
    return found


def document(result: list[Any]) -> Any:
    code, out, trouble = result
    assert code == 0, trouble
    return json.loads(out)


def declare(broker: BrokerProcess, *queues: str) -> None:
    with Connection(broker.url) as connection:
        for queue in queues:
            connection.channel().declare_queue(queue, durable=True)


def bodies(broker: BrokerProcess, queue: str) -> list[bytes]:
    with Connection(broker.url) as connection:
        channel = connection.channel()
        size = channel.declare_queue(queue, passive=True).message_count
        consumer = channel.consume(queue, no_ack=True, timeout_s=30)
        return [bytes(next(consumer).body) for _ in range(size)]


def test_archive_is_a_command_that_ships_what_the_server_needs(
    server: ConnectServer, home: BrokerProcess, tmp_path: Path
) -> None:
    declare_stream(home.url, "archived")
    fill(home.url, "archived", numbered(MESSAGES))
    to = str(tmp_path / "archive")
    command = ["-m", "rhizome", "pipeline", "archive", "archived", "--to", to, "--uri", home.url]
    found = json.loads(python(*command, "--remote", server.remote, "--json"))
    assert (found["messages"], found["next"]) == (MESSAGES, {"archived": MESSAGES})


@pytest.mark.timeout(JOBS_SECONDS_MAX)
def test_every_job_runs_on_a_server(
    server: ConnectServer, home: BrokerProcess, tmp_path: Path
) -> None:
    declare_stream(home.url, "events")
    declare(home, "replayed", "work")
    fill(home.url, "events", numbered(MESSAGES), Properties(headers={"a": "b"}))
    fill(home.url, "work", numbered(20), Properties(delivery_mode=2))
    to, html, data = str(tmp_path / "table"), str(tmp_path / "traffic.html"), str(home.data)
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
    common = ("--uri", home.url, "--json")
    results = driven(
        server,
        ["archive", "events", "--to", to, *common],
        ["replay", "--name", "once", "--archive", to, "--queue", "replayed", *common],
        ["replay", "--name", "once", "--archive", to, "--queue", "replayed", *common],
        ["traffic", "--stream", "events", "--html", html, *common],
        ["audit", data, "--json"],
        ["timetravel", "work", "--at", at, "--journal", data, "--json"],
        ["deadletters", "--stream", "events", *common],
        ["redrive", "work", "--exchange", "", "--key", "work", "--where", "tag <= 5", *common],
    )
    archived, first, again, traffic, audit, travel, letters, redriven = map(document, results)
    assert archived["messages"] == first["messages"] == again["messages"] == MESSAGES
    assert sorted(map(int, bodies(home, "replayed"))) == list(range(MESSAGES))
    assert traffic["messages"] == MESSAGES
    assert Path(html).exists()
    assert not audit["violations"]
    assert travel["first"]["messages"] == 20
    assert letters["messages"] == MESSAGES
    assert (redriven["seen"], redriven["sent"]) == (20, 5)


STREAMS = """
import sys
from rhizome.spark import register
from rhizome.spark.jobs.job_progress import WORKER_LATE
from pyspark.sql import SparkSession
remote, uri, directory = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()
register(spark, ship=True)
start = lambda: (
    spark.readStream.format("rhizome").option("uri", uri).option("subscribe", "flowing")
    .option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 200).load()
    .select("value").writeStream.format("rhizome").option("uri", uri).option("queue", "flowed")
    .option("checkpointLocation", directory).trigger(availableNow=True).start()
)
for left in reversed(range(5)):
    query = start()
    try:
        query.awaitTermination()
        break
    except Exception as error:
        if not left or WORKER_LATE not in str(error):
            raise
print(len(query.recentProgress), spark.read.format("rhizome").option("uri", uri)
      .option("subscribe", "flowing").load().count())
spark.stop()
"""


def test_streaming_query_of_a_program_reads_and_writes_each_message_once(
    server: ConnectServer, home: BrokerProcess, tmp_path: Path
) -> None:
    declare_stream(home.url, "flowing")
    declare(home, "flowed")
    fill(home.url, "flowing", numbered(MESSAGES))
    for _ in range(2):
        out = python("-c", STREAMS, server.remote, home.url, str(tmp_path / "checkpoint"))
        assert out.split()[-1] == str(MESSAGES)
    assert sorted(map(int, bodies(home, "flowed"))) == list(range(MESSAGES))


def test_sql_of_a_server_reads_and_inserts(
    server: ConnectServer, home: BrokerProcess, tmp_path: Path
) -> None:
    declare_stream(home.url, "told")
    declare(home, "inserted")
    fill(home.url, "told", numbered(10))
    secret = tmp_path / "uri"
    secret.write_text(f"{home.url}\n")
    uri = f"uri = 'file:{secret}'"
    _, _, count, described, created, shown, inserted = driven(
        server,
        {"sql": "CREATE TABLE messages USING rhizome"},
        {"sql": f"CREATE VIEW told AS SELECT * FROM messages WITH ({uri}, subscribe = 'told')"},
        {"sql": "SELECT count(*) FROM told"},
        {"sql": "DESCRIBE EXTENDED told"},
        {"sql": "SHOW CREATE TABLE told"},
        {"sql": "EXPLAIN EXTENDED SELECT * FROM told"},
        {
            "sql": f"INSERT INTO messages WITH ({uri}, queue = 'inserted') (value, key) "
            "SELECT value, key FROM told"
        },
    )
    assert (count, inserted) == ([[10]], [])
    assert home.password not in str((described, created, shown)).replace(str(secret), "")
    assert sorted(map(int, bodies(home, "inserted"))) == list(range(10))


# --- without a server


def test_settings_of_a_driver_are_refused_for_a_server() -> None:
    for options, told in (
        ({"ui": True}, "--ui is for a driver that is started here"),
        ({"driver_host": "here"}, "--driver-host is for"),
        ({"event_log": "/x"}, "--event-log is for"),
    ):
        with pytest.raises(SessionError, match=told):
            start_session("x", SessionOptions("sc://127.0.0.1:1", **options))


def test_server_that_is_not_there_is_told_at_once_and_without_its_token() -> None:
    with pytest.raises(SessionError, match=r"sc://127\.0\.0\.1:1 can't be reached") as error:
        start_session("x", SessionOptions("sc://127.0.0.1:1/;token=secret"))
    assert "secret" not in str(error.value)
    assert spark_master.shown("spark://a:1,b:2") == "spark://a:1,b:2"


class Carried(zip_pickle.ZipImported):
    def __init__(self, value: int) -> None:
        self.value = value


def test_pickle_says_where_the_zip_is_if_it_comes_from_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import pickle

    assert pickle.loads(pickle.dumps(Carried(3))).value == 3
    monkeypatch.setattr(zip_pickle, "zip_path", lambda: str(tmp_path / "rhizome-1.zip"))
    kept = pickle.dumps(Carried(4))
    assert b"rhizome-1.zip" in kept
    assert pickle.loads(kept).value == 4
