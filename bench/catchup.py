"""Measure a copy that catches up with a million messages while their queue is in use.

    .venv/bin/python bench/catchup.py [--messages N] [--window N]

A queue of 1 KiB messages begins with one copy. Publishing with confirms is measured with one copy,
then while a second copy catches up, then with both in sync. At last the standby is killed for ten
seconds, and the bytes that it is sent are compared with what was published while it was away.
Prints a line per figure, and adds one to history.jsonl.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from clusters import RhizomeCluster
from history import remember, verdict
from measure import MeasurementError, Result, amqpload, build_amqpload

from rhizome.cli.http_api.api_client import path

FLAGS = ("--body", "1024", "--persistent", "--durable")
RATE_TARGET = 2 / 3
SENT_TARGET = 1.25
AWAY_SECONDS = 10
AWAY_RATE = 2000
WAIT_SECONDS_MAX = 600.0


class Watched:
    """The group that has the queue of the load, as its home tells."""

    def __init__(self, cluster: RhizomeCluster) -> None:
        self._cluster = cluster
        self.home = cluster.home_of_next_queue()
        self.group = next(
            each["id"] for each in cluster.status(self.home)["groups"] if each["home"] == self.home
        )
        cluster.talk_to(self.home)

    def standby(self) -> dict[str, Any] | None:
        """What the home knows of its copy; None while it has none."""
        row = self._cluster.api(self.home).row(path("rhizome", "groups", str(self.group), "own"))
        found = [each for each in row["standbys"] if each["stage"] != "away"]
        return found[0] if found else None

    def in_sync(self) -> list[str]:
        groups = self._cluster.status(self.home)["groups"]
        group = next(each for each in groups if each["id"] == self.group)
        return [each["broker"] for each in group["in_sync"] if each["copy"] == "whole"]

    def wait_until_in_sync(self, copies: int) -> float:
        begun = time.monotonic()
        while len(self.in_sync()) != copies - 1:
            if time.monotonic() - begun > WAIT_SECONDS_MAX:
                raise MeasurementError(f"not in sync: {self.standby()}")
            time.sleep(0.1)
        return time.monotonic() - begun


def publishing(cluster: RhizomeCluster, messages: int) -> float:
    """Messages per second, published behind the backlog with confirms."""
    flags = ("--confirm", "1000", "--consumers", "0", "--reuse", "--keep")
    return float(amqpload(cluster, *FLAGS, *flags, "--count", str(messages))["pub_s"])


def whole_catch_up(cluster: RhizomeCluster, group: Watched, messages: int, window: int) -> Result:
    """Rates with one copy, while the second is made, and with both."""
    cluster.settings(copies=1)
    group.wait_until_in_sync(1)
    amqpload(
        cluster, *FLAGS, "--consumers", "0", "--count", str(messages), "--confirm", "1000", "--keep"
    )
    alone = publishing(cluster, window)
    cluster.settings(copies=2)
    begun = time.monotonic()
    rates = []
    while not group.in_sync():
        if time.monotonic() - begun > WAIT_SECONDS_MAX:
            raise MeasurementError(f"the copy never caught up: {group.standby()}")
        rates.append(publishing(cluster, window))
    took = time.monotonic() - begun
    # The last window is partly one of both copies.
    during = rates[:-1] or rates
    both = publishing(cluster, window)
    standby = group.standby() or {}
    return {
        "messages": messages,
        "alone": alone,
        "during": sum(during) / len(during),
        "both": both,
        "catch_up_seconds": took,
        "backfill_mib": standby.get("backfill_bytes", 0) / (1 << 20),
    }


def absence(cluster: RhizomeCluster, group: Watched) -> Result:
    """Bytes sent to a standby that was away, beside those published meanwhile."""
    group.wait_until_in_sync(2)
    [name] = group.in_sync()
    before = group.standby() or {}
    cluster.kill_one(name)
    flags = ("--confirm", "1000", "--consumers", "0", "--reuse", "--keep")
    paced = ("--rate", str(AWAY_RATE), "--count", str(AWAY_RATE * AWAY_SECONDS))
    line = amqpload(cluster, *FLAGS, *flags, *paced)
    cluster.start_one(name)
    seconds = group.wait_until_in_sync(2)
    after = group.standby() or {}
    kinds = ("records_bytes", "listing_bytes", "backfill_bytes")
    sent = {kind: after[kind] - before.get(kind, 0) for kind in kinds}
    return {
        "published": line["published"],
        "published_bytes": line["published"] * 1024,
        "seconds_until_in_sync": seconds,
        **sent,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--window", type=int, default=100_000)
    options = parser.parse_args()
    build_amqpload()
    with tempfile.TemporaryDirectory() as directory:
        cluster = RhizomeCluster(Path(directory) / "rhizome")
        try:
            cluster.start()
            group = Watched(cluster)
            whole = whole_catch_up(cluster, group, options.messages, options.window)
            away = absence(cluster, group)
        except MeasurementError as error:
            print(error, cluster.last_words(), file=sys.stderr)
            return 1
        finally:
            cluster.kill()
    for name, value in [*whole.items(), *away.items()]:
        print(f"{name:24} {value:>16,.1f}")
    share = whole["during"] / whole["both"]
    verdict("catch-up: of the rate in sync", share, share >= RATE_TARGET, RATE_TARGET)
    sent = sum(away[kind] for kind in ("records_bytes", "listing_bytes", "backfill_bytes"))
    times = sent / away["published_bytes"]
    verdict("away: sent, in times of what was missed", times, times <= SENT_TARGET, SENT_TARGET)
    remember({"catch_up": {"whole": whole, "away": away}})
    return 0


if __name__ == "__main__":
    sys.exit(main())
