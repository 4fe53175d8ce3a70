"""Which primaries a broker takes from DNS, what it waits for, and what it says when it can't."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import pytest

from rhizome.cluster.consensus.log.cluster_store import Batch
from rhizome.server.clustered_broker.sqlite_cluster_store import SqliteClusterStore
from rhizome.server.config.broker_config import Config, load_config
from rhizome.server.config.config_fields import ConfigError
from rhizome.server.discovery import primary_discovery
from rhizome.server.discovery.primary_discovery import (
    DiscoveryError,
    Find,
    discover_primaries,
    read_primaries,
    service_of,
)
from rhizome.server.discovery.srv_records import DnsError, SrvRecord


def records(*names: str) -> list[SrvRecord]:
    return [SrvRecord(f"{name}.mq.test", 5672) for name in names]


def configuration(directory: Path, **cluster: object) -> Config:
    given: dict[str, object] = {"discover": "dns:mq.test", "key": "k" * 32, **cluster}
    overrides = {f"cluster.{key}": value for key, value in given.items()}
    return load_config(
        overrides={"broker.name": "b1", "broker.data": str(directory), **overrides}, environ={}
    )


class Answers:
    """What DNS says, round by round; the last one stays."""

    def __init__(self, *rounds: Sequence[SrvRecord] | DnsError) -> None:
        self.left = list(rounds)
        self.asked: list[str] = []
        self.threads: set[int] = set()

    def __call__(self, service: str) -> Sequence[SrvRecord]:
        self.asked.append(service)
        self.threads.add(threading.get_ident())
        now = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        if isinstance(now, DnsError):
            raise now
        return now


def found(config: Config, find: Find) -> list[str]:
    after = asyncio.run(discover_primaries(config, find))
    return [str(each) for each in after.cluster.primaries]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(primary_discovery, "PAUSE_SECONDS", 0.0)


ALL = ["b1=b1.mq.test:5672", "b2=b2.mq.test:5672", "b3=b3.mq.test:5672"]


def test_a_new_cluster_waits_for_all_of_its_primaries(tmp_path: Path) -> None:
    """A list that is read too early would found a smaller cluster (R7)."""
    answers = Answers(
        DnsError("SRV: no answer"),
        [],
        records("b1"),
        records("b3", "b1"),
        records("b3", "b1", "b2"),
    )
    assert found(configuration(tmp_path), answers) == ALL
    assert len(answers.asked) == 5
    assert set(answers.asked) == {"_amqp._tcp.mq.test"}
    assert threading.get_ident() not in answers.threads, "never in the event loop"


def test_it_waits_for_its_own_record(tmp_path: Path) -> None:
    answers = Answers(records("b2", "b3", "b4"), records("b1", "b2", "b3"))
    assert found(configuration(tmp_path), answers) == ALL


def test_too_many_are_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(DiscoveryError, match=r"lists 4 primaries .*discover_count is 3"):
        found(configuration(tmp_path), Answers(records("b1", "b2", "b3", "b4")))


def test_when_time_is_up_the_error_says_what_to_check(tmp_path: Path) -> None:
    config = configuration(tmp_path, discover_timeout="1s")
    with pytest.raises(DiscoveryError) as caught:
        found(config, Answers(records("b1", "b2")))
    for part in ("within 1s", "2 of 3 primaries", "b1, b2", "dig SRV _amqp._tcp.mq.test"):
        assert part in str(caught.value)


def test_a_failure_of_dns_is_quoted(tmp_path: Path) -> None:
    config = configuration(tmp_path, discover_timeout="1s")
    with pytest.raises(DiscoveryError, match=r"10\.0\.0\.1: refused"):
        found(config, Answers(DnsError("SRV x: 10.0.0.1: refused")))


def test_a_secondary_needs_one_primary_and_may_not_be_listed(tmp_path: Path) -> None:
    config = configuration(tmp_path, role="secondary")
    assert found(config, Answers([], records("b7"))) == ["b7=b7.mq.test:5672"]
    with pytest.raises(DiscoveryError, match="take it out of that service"):
        found(config, Answers(records("b1", "b7")))


def store_of(directory: Path, cluster_uuid: str) -> None:
    written = threading.Event()
    store = SqliteClusterStore(directory / "cluster", lambda token: written.set(), print)
    store.load()
    if cluster_uuid:
        store.submit(Batch(cluster_uuid=cluster_uuid), 1)
        assert written.wait(60)
    store.close()


def test_a_broker_of_a_cluster_starts_without_dns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(primary_discovery, "KNOWN_STORE_PATIENCE_MS", 50)
    store_of(tmp_path, uuid4().hex)
    assert found(configuration(tmp_path), Answers(DnsError("SRV x: no answer"))) == []
    assert "starts with what its store knows" in caplog.text
    assert found(configuration(tmp_path), Answers(records("b2"))) == ["b2=b2.mq.test:5672"]


def test_a_store_that_never_joined_a_cluster_waits_for_all(tmp_path: Path) -> None:
    """Its broker ended before the founding: with a shorter list it would found a smaller one."""
    store_of(tmp_path, "")
    answers = Answers(records("b1"), records("b1", "b2", "b3"))
    assert found(configuration(tmp_path), answers) == ALL
    (tmp_path / "empty" / "cluster").mkdir(parents=True)
    answers = Answers(records("b1"), records("b1", "b2", "b3"))
    assert found(configuration(tmp_path / "empty"), answers) == ALL


def test_the_service_that_is_asked_for(tmp_path: Path) -> None:
    assert service_of(configuration(tmp_path)) == "_amqp._tcp.mq.test"
    own = configuration(tmp_path, discover="dns:_rhizome._tcp.mq.test")
    assert service_of(own) == "_rhizome._tcp.mq.test"


def test_records_that_name_no_broker_are_refused() -> None:
    with pytest.raises(DiscoveryError, match="is no name for a broker"):
        read_primaries([SrvRecord("-x.mq.test", 5672)])
    with pytest.raises(DiscoveryError, match="port 0"):
        read_primaries([SrvRecord("b1.mq.test", 0)])
    with pytest.raises(DiscoveryError, match="'b1' twice"):
        read_primaries([SrvRecord("b1.mq.test", 5672), SrvRecord("b1.mq.else", 5672)])
    assert len(read_primaries(records("b1", "b1"))) == 1


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"discover": "consul:mq"}, "says no place to look"),
        ({"discover": "dns:"}, "says no place to look"),
        ({"primaries": ["b1=b1:5672"]}, "is given besides primaries"),
        ({"key": ""}, "is missing; the brokers of a cluster know each other"),
        ({"discover_count": 0}, "discover_count"),
    ],
)
def test_settings_that_contradict(tmp_path: Path, given: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        configuration(tmp_path, **given)


def test_several_cores_need_a_list(tmp_path: Path) -> None:
    overrides = {"broker.cores": 2, "cluster.discover": "dns:mq", "cluster.key": "k" * 32}
    with pytest.raises(ConfigError, match="brokers of several cores need a list"):
        load_config(overrides=overrides, environ={})
