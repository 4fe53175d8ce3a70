"""Limits, logins and logs are each broker's own: brokers may differ in them and agree on everything
else (Q4). What a user may do is the cluster's, and checked where the user is connected."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from pika import exceptions

from rhizome.testing.broker_process import BrokerProcess, wait_until
from rhizome.testing.cluster_process import ClusterProcess
from tests.process.helpers import call_api

CONNECTIONS_MAX = 5
OWN = {
    "b1": {},
    "b2": {"RHIZOME_LIMITS_CONNECTIONS_MAX": str(CONNECTIONS_MAX), "RHIZOME_AUDIT_FILE": ""},
    "b3": {"RHIZOME_LIMITS_CHANNEL_MAX": "1", "RHIZOME_SECURITY_LOGIN_FREE_FAILURES": "0"},
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    cluster = ClusterProcess(
        tmp_path, make=lambda name, directory: BrokerProcess(directory, environment=OWN[name])
    )
    cluster.start()
    yield cluster
    cluster.kill()


def connect(broker: BrokerProcess, user: str = "guest") -> pika.BlockingConnection:
    credentials = pika.PlainCredentials(user, user)
    return pika.BlockingConnection(
        pika.ConnectionParameters(broker.host, broker.port, credentials=credentials)
    )


def refuses_a_connection(broker: BrokerProcess) -> bool:
    try:
        connect(broker).close()
    except exceptions.AMQPError:
        return True
    return False


@pytest.mark.timeout(300)
def test_brokers_with_other_limits_and_logins_agree_on_what_is_shared(
    cluster: ClusterProcess,
) -> None:
    first = cluster.brokers["b1"]
    call_api(first, "PUT", "users", "ann", password="ann", tags="")
    call_api(first, "PUT", "permissions", "/", "ann", configure="^ann", write="", read="")
    for name, broker in cluster.brokers.items():
        wait_until(
            lambda broker=broker: call_api(broker, "GET", "permissions", "/", "ann"),
            f"the permission at {name}",
        )
        connection = connect(broker, "ann")
        connection.channel().queue_declare(f"ann.{name}", durable=True)
        connection.close()
        connection = connect(broker, "ann")
        with pytest.raises(exceptions.ChannelClosedByBroker, match="ACCESS_REFUSED"):
            connection.channel().queue_declare("others", durable=True)
        connection.close()

    narrow, single = cluster.brokers["b2"], cluster.brokers["b3"]
    held = [connect(narrow) for _ in range(CONNECTIONS_MAX)]
    assert refuses_a_connection(narrow)
    assert not refuses_a_connection(first)
    for each in held:
        each.close()
    connection = connect(single)
    connection.channel()
    with pytest.raises(exceptions.NoFreeChannels):
        connection.channel()
    connection.close()

    cluster.wait_until_whole()
    queues = {
        name: sorted(each["name"] for each in call_api(broker, "GET", "queues", "/"))
        for name, broker in cluster.brokers.items()
    }
    assert queues == {name: ["ann.b1", "ann.b2", "ann.b3"] for name in cluster.brokers}
    assert (first.data / "audit.log").stat().st_size > 0
    assert not (narrow.data / "audit.log").exists()
