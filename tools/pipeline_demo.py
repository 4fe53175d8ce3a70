"""Show the data pipeline: a cluster, real traffic, archive, report, audit, replay. `make pipeline`.

Everything is left in a directory, ./data/pipeline unless told otherwise; the commands that make it
are printed as they are run.
"""

from __future__ import annotations

import argparse
import random
import shlex
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

from rhizome.amqp.properties import Properties
from rhizome.client.blocking import Connection
from rhizome.testing.cluster_process import ClusterProcess

EXCHANGE = "shop"
STREAM = "shop.events"
QUEUE = "shop.orders"
AGAIN = "shop.again"
KEYS = ("order.placed", "order.cancelled", "payment.made", "payment.failed", "page.seen")
WEIGHTS = (5, 1, 4, 1, 20)
APPS = ("web", "mobile", "batch")


def declare(uri: str) -> None:
    with Connection(uri) as connection:
        channel = connection.channel()
        for exchange in (EXCHANGE, AGAIN):
            channel.declare_exchange(exchange, "topic", durable=True)
        channel.declare_queue(STREAM, durable=True, arguments={"x-queue-type": "stream"})
        channel.declare_queue(QUEUE, durable=True)
        channel.declare_queue(AGAIN, durable=True)
        channel.bind_queue(STREAM, EXCHANGE, "#")
        channel.bind_queue(QUEUE, EXCHANGE, "order.*")
        channel.bind_queue(AGAIN, AGAIN, "#")


def publish(uri: str, seed: int, messages: int) -> None:
    chance = random.Random(seed)
    with Connection(uri) as connection:
        channel = connection.channel(confirms=True)
        for start in range(0, messages, 50):
            key = chance.choices(KEYS, WEIGHTS)[0]
            bodies = [
                chance.randbytes(min(20_000, int(chance.lognormvariate(5, 1)))) for _ in range(50)
            ]
            properties = Properties(
                delivery_mode=2,
                app_id=chance.choice(APPS),
                timestamp=int(time.time()),
                message_id=f"{seed}-{start}",
                headers={
                    "region": chance.choice(("north", "south")),
                    "timestamp_in_ms": time.time_ns() // 1_000_000,
                },
            )
            channel.publish_many(bodies, exchange=EXCHANGE, routing_key=key, properties=properties)
            time.sleep(chance.expovariate(60))


def consume(uri: str, stopping: threading.Event) -> None:
    with Connection(uri) as connection:
        channel = connection.channel(prefetch=100)
        while not stopping.is_set():
            message = channel.get(QUEUE)
            if message is None:
                stopping.wait(0.1)
            else:
                message.ack()


def make_traffic(cluster: ClusterProcess, messages: int) -> None:
    uris = [broker.url for broker in cluster.running()]
    stopping = threading.Event()
    consumer = threading.Thread(target=consume, args=(uris[0], stopping))
    publishers = [
        threading.Thread(target=publish, args=(uri, seed, messages // len(uris)))
        for seed, uri in enumerate(uris)
    ]
    for thread in (consumer, *publishers):
        thread.start()
    for thread in publishers:
        thread.join()
    stopping.set()
    consumer.join()


class Pipeline:
    """One session of Spark for all commands. It starts while the messages are published."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "rhizome", "pipeline", "script"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)

    def run(self, *commands: list[str]) -> None:
        """Run the commands; each is shown as it begins."""
        self._process.communicate("".join(f"{shlex.join(each)}\n" for each in commands))
        if self._process.returncode:
            raise SystemExit(f"the pipeline ended with exit code {self._process.returncode}")

    def stop(self) -> None:
        """End the session, if it was never given anything to do."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, default=Path("data/pipeline"))
    parser.add_argument("--messages", type=int, default=30_000)
    options = parser.parse_args()
    directory: Path = options.directory
    shutil.rmtree(directory, ignore_errors=True)
    cluster = ClusterProcess(directory / "cluster")
    pipeline = Pipeline()
    print("starting three brokers", flush=True)
    try:
        cluster.start()
        hosts = ",".join(f"{broker.host}:{broker.port}" for broker in cluster.running())
        uri = f"amqp://guest:guest@{hosts}/"
        declare(cluster.running()[0].url)
        print(f"publishing about {options.messages:,} messages to exchange {EXCHANGE}", flush=True)
        make_traffic(cluster, options.messages)
        archive, report = str(directory / "archive"), str(directory / "traffic.html")
        stores = [str(broker.data) for broker in cluster.running()]
        pipeline.run(
            ["archive", STREAM, "--to", archive, "--uri", uri],
            ["traffic", "--archive", archive, "--journal", ",".join(stores), "--html", report,
             "--title", "The shop"],
            ["audit", *stores],
            ["replay", "--name", "demo", "--archive", archive, "--exchange", AGAIN, "--uri", uri,
             "--where", "key LIKE 'order.%'"],
        )  # fmt: skip
    finally:
        pipeline.stop()
        cluster.stop()
    print(
        f"\nthe archive:  {archive}\nthe report:   {report}\nthe brokers:  {directory / 'cluster'}"
    )


if __name__ == "__main__":
    main()
