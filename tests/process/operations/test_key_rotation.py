"""The cluster key is replaced while the cluster works, as docs/operating/runbook.md says."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rhizome.cluster.link.cluster_key_proof import LinkKeys
from rhizome.server.config.cluster_section import read_key_file
from rhizome.testing.broker_process import BrokerProcess, wait_until
from rhizome.testing.cluster_process import ClusterProcess
from tests.process.client_workers import Workers
from tests.process.helpers import call_api

pytestmark = [pytest.mark.rhizome_only, pytest.mark.timeout(600)]

SECONDS_MAX = 180.0
QUEUES = ["orders", "mails"]
FORTH = 10
"""Messages of each publisher between two steps."""


def with_macs(name: str, directory: Path) -> BrokerProcess:
    """A broker whose links have MACs on this machine, too."""
    return BrokerProcess(directory, environment={"RHIZOME_CLUSTER_LINK_MACS": "always"})


class Rotation:
    """A cluster whose brokers have a key file each, as on hosts of their own."""

    def __init__(self, directory: Path) -> None:
        self.cluster = ClusterProcess(directory, make=with_macs)
        self.files = {name: directory / f"{name}.key" for name in self.cluster.brokers}
        for name, file in self.files.items():
            shutil.copy(directory / "cluster.key", file)
            self.cluster.brokers[name].add_arguments(["--cluster-key-file", str(file)])
        self.old = read_key_file(self.files["b1"])[0]

    def rotate(self, step: str, *more: str) -> subprocess.CompletedProcess[str]:
        broker = self.cluster.brokers["b2"]
        where = ("--http", f"{broker.host}:{broker.http_port}")
        return subprocess.run(
            [sys.executable, "-m", "rhizome", "cluster", "rotate-key", step, *more, *where],
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )

    def make(self, step: str) -> None:
        done = self.rotate(step, str(self.files["b1"]))
        assert done.returncode == 0, done.stderr

    def bring_to(self, *names: str) -> None:
        for name in names:
            new = self.files[name].with_suffix(".new")
            shutil.copy(self.files["b1"], new)
            new.replace(self.files[name])

    def wait_until_all_have_it(self) -> None:
        def said() -> bool:
            return self.rotate("check").returncode == 0 and self.keys_of("b1") == self.wanted()

        wait_until(said, "all brokers to have the same keys", SECONDS_MAX)

    def wanted(self) -> list[str]:
        return list(LinkKeys(*read_key_file(self.files["b1"])).fingerprints)

    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = call_api(
            self.cluster.brokers["b1"], "GET", "rhizome", "cluster", "keys"
        )
        return found

    def keys_of(self, name: str) -> list[str]:
        return list(self.document()["brokers"][name]["keys"])

    def keys_of_links(self) -> list[str]:
        brokers = self.document()["brokers"].values()
        return [key for broker in brokers for key in broker["links"].values()]

    def newcomer(self, directory: Path, name: str, key: bytes) -> BrokerProcess:
        """A secondary that has this key."""
        broker = with_macs(name, directory / name)
        broker.add_arguments(self.cluster.arguments(name, "secondary"))
        file = directory / f"{name}.key"
        file.write_bytes(key)
        file.chmod(0o600)
        broker.add_arguments(["--cluster-key-file", str(file)])
        return broker


def test_the_key_is_replaced_under_load_without_a_stop(tmp_path: Path) -> None:
    rotation = Rotation(tmp_path)
    cluster = rotation.cluster
    cluster.start()
    workers = Workers(cluster, QUEUES, 7, 0.03)
    try:
        workers.declare()
        workers.start(publishers=2, consumers=2)
        workers.wait_for_progress(FORTH, SECONDS_MAX)
        replace_key(rotation, workers)
        new = rotation.wanted()
        wait_until(lambda: set(rotation.keys_of_links()) == set(new), "new links", SECONDS_MAX)
        wait_until(lambda: len(rotation.keys_of_links()) == 6, "all links", SECONDS_MAX)
        cluster.wait_until_whole()
        workers.finish(SECONDS_MAX)
        assert not workers.history.errors
        assert not workers.history.lost()
        assert not workers.history.resent, "an application has lost its broker"
        assert not workers.history.duplicates()
        check_who_may_join(rotation, tmp_path)
    finally:
        workers.kill()
        cluster.kill()
    assert rotation.old.decode() not in cluster.printed()


def replace_key(rotation: Rotation, workers: Workers) -> None:
    """The three steps, with traffic in between, and what is refused before its time."""
    rotation.make("add")
    rotation.bring_to("b2")
    wait_until(lambda: len(rotation.keys_of("b2")) == 2, "b2 to read its file", SECONDS_MAX)
    early = rotation.rotate("promote", str(rotation.files["b1"]))
    assert early.returncode == 1
    assert "b3" in early.stderr
    assert "nothing was changed" in early.stderr
    assert rotation.rotate("check").returncode == 1
    rotation.bring_to("b3")
    rotation.wait_until_all_have_it()
    workers.wait_for_progress(FORTH, SECONDS_MAX)
    rotation.make("promote")
    rotation.bring_to("b2", "b3")
    rotation.wait_until_all_have_it()
    workers.wait_for_progress(FORTH, SECONDS_MAX)
    downs = [broker.printed().count("is down") for broker in rotation.cluster.brokers.values()]
    assert downs == [0, 0, 0], "links live on while both keys are taken"
    rotation.make("drop")
    rotation.bring_to("b2", "b3")
    rotation.wait_until_all_have_it()
    workers.wait_for_progress(FORTH, SECONDS_MAX)


def check_who_may_join(rotation: Rotation, directory: Path) -> None:
    late = rotation.newcomer(directory, "s1", rotation.old)
    late.launch()
    try:
        wait_until(lambda: "cluster key" in late.printed(), "the refusal", SECONDS_MAX)
    finally:
        late.kill()
    known = [each["name"] for each in rotation.cluster.status("b1")["brokers"]]
    assert "s1" not in known
    welcome = rotation.newcomer(directory, "s2", read_key_file(rotation.files["b1"])[0])
    with welcome:
        assert rotation.old not in rotation.files["b2"].read_bytes()


def test_a_key_file_that_can_not_be_used_changes_nothing(tmp_path: Path) -> None:
    rotation = Rotation(tmp_path)
    rotation.cluster.start()
    try:
        before = rotation.wanted()
        rotation.files["b1"].write_text("short")
        broker = rotation.cluster.brokers["b1"]
        wait_until(lambda: "left as they were" in broker.printed(), "a complaint", SECONDS_MAX)
        assert rotation.keys_of("b1") == before
        assert "short" not in broker.printed()
    finally:
        rotation.cluster.kill()
