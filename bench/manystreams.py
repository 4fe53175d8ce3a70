"""What a cluster with many streams costs: each is a group of its own, with home and copy.

    .venv/bin/python bench/manystreams.py [--streams 1000] [--seconds 4]

Measures the declares, what brokers use at rest, what a queue loses beside so many streams, and how
long it takes until all have a home again after the root, home of a third of them, was killed.
Prints a line per figure, and adds one to history.jsonl.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

from clusters import RhizomeCluster
from history import remember, verdict
from measure import MeasurementError, Result, build_amqpload, throughput
from rabbitmq import stat_fields
from scenarios import DURABLE

from rhizome.client import connect
from rhizome.testing.broker_process import wait_until

REST_SECONDS = 10.0
WAIT_SECONDS_MAX = 600.0
RATE_TARGET = 0.8
STREAM: dict[str, object] = {"x-queue-type": "stream"}


async def declare(port: int, count: int) -> float:
    """Streams per second, declared one after the other."""
    async with connect(f"amqp://127.0.0.1:{port}") as connection, connection.channel() as channel:
        begun = time.monotonic()
        for number in range(count):
            await channel.declare_queue(f"stream-{number}", durable=True, arguments=STREAM)
        return count / (time.monotonic() - begun)


def homes(cluster: RhizomeCluster, at: str) -> list[str]:
    """The home of each group, as a broker knows it; empty if it doesn't answer."""
    return [each["home"] or "" for each in cluster.status(at).get("groups", [])]


def copied(cluster: RhizomeCluster) -> bool:
    groups = cluster.status("b1").get("groups", [])
    return bool(groups) and all(each["in_sync"] for each in groups)


def share_at_rest(cluster: RhizomeCluster) -> float:
    """Of a core, by all brokers."""
    before = processor_seconds(cluster)
    time.sleep(REST_SECONDS)
    return (processor_seconds(cluster) - before) / REST_SECONDS


def processor_seconds(cluster: RhizomeCluster) -> float:
    fields = [stat_fields(pid) for pid in cluster.pids()]
    return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")


def rate(cluster: RhizomeCluster, seconds: float) -> float:
    return float(throughput(cluster, DURABLE, seconds)["rate"])


def lose_root(cluster: RhizomeCluster, streams: int) -> float:
    """Seconds until all streams of a killed root have another home."""
    root = str(cluster.status("b1")["cluster"]["root"])
    witness = "b2" if root == "b1" else "b1"
    cluster.kill_one(root)
    begun = time.monotonic()

    def all_at_home() -> bool:
        found = homes(cluster, witness)
        return len(found) >= streams and not {"", root} & set(found)

    wait_until(all_at_home, "all streams to have a home", WAIT_SECONDS_MAX)
    return time.monotonic() - begun


def measure(cluster: RhizomeCluster, streams: int, seconds: float) -> Result:
    before = rate(cluster, seconds)
    declared = asyncio.run(declare(cluster.port, streams))
    wait_until(lambda: copied(cluster), "all streams to have a copy", WAIT_SECONDS_MAX)
    return {
        "declares_per_s": declared,
        "cores_at_rest": share_at_rest(cluster),
        "queue_before": before,
        "queue_beside": rate(cluster, seconds),
        "takeover_s": lose_root(cluster, streams),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    build_amqpload()
    with tempfile.TemporaryDirectory() as directory:
        cluster = RhizomeCluster(Path(directory) / "rhizome")
        try:
            cluster.start()
            found = measure(cluster, options.streams, options.seconds)
        except (MeasurementError, TimeoutError) as error:
            print(error, cluster.last_words(), file=sys.stderr)
            return 1
        finally:
            cluster.kill()
    for name, value in found.items():
        print(f"{name:16} {value:>12,.2f}")
    share = found["queue_beside"] / found["queue_before"]
    verdict("queue beside many streams: of its rate", share, share >= RATE_TARGET, RATE_TARGET)
    remember({"many_streams": {"streams": options.streams, **found}})
    return 0


if __name__ == "__main__":
    sys.exit(main())
