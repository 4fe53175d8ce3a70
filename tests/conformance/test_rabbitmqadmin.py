"""RabbitMQ's own command line tool, as its users call it.

Also what Celery Flower and exporters ask for, in their own way.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rhizome.testing.broker_process import Broker, wait_until
from tests.conformance.http_api_client import Api

from . import differences
from .conftest import Connect, Unique

SCRIPT = shutil.which("rabbitmqadmin")
SECONDS_MAX = 40
STATS_SECONDS_MAX = 20.0
needs_script = pytest.mark.skipif(SCRIPT is None, reason="rabbitmqadmin is not installed")


class Admin:
    """`admin("list", "queues", "name")`: what the tool prints; it must succeed."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def __call__(self, *arguments: str, options: tuple[str, ...] = ()) -> str:
        done = self.run(*arguments, options=options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run(
        self, *arguments: str, options: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        where = ["-H", self.broker.host, "-P", str(self.broker.http_port)]
        login = ["-u", self.broker.user, "-p", self.broker.password]
        command = [sys.executable, SCRIPT or "", *where, *login, *options, *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
        )

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self(*arguments, options=("-f", "raw_json")))
        return found


@pytest.fixture
def admin(broker: Broker) -> Admin:
    return Admin(broker)


@pytest.fixture
def queue(admin: Admin, unique: Unique) -> Iterator[str]:
    name = unique("admin")
    assert admin("declare", "queue", f"name={name}", "durable=true") == "queue declared\n"
    yield name
    admin.run("delete", "queue", f"name={name}")


LISTS = (
    "connections",
    "channels",
    "consumers",
    "exchanges",
    "queues",
    "bindings",
    "users",
    "vhosts",
    "permissions",
    "nodes",
    "parameters",
    "policies",
    "operator_policies",
    "vhost_limits",
)


@needs_script
@pytest.mark.parametrize("kind", LISTS)
def test_every_list_can_be_shown(admin: Admin, queue: str, kind: str) -> None:
    admin("list", kind)


@needs_script
@pytest.mark.parametrize("form", ["tsv", "long", "kvp", "bash"])
def test_lists_come_in_all_formats(admin: Admin, queue: str, form: str) -> None:
    # With all columns it trips over nulls in some formats, over RabbitMQ's too.
    deep = ("--depth", "3") if form in ("long", "kvp") else ()
    assert queue in admin("list", "queues", options=("-f", form, *deep))


@needs_script
def test_show_overview(admin: Admin) -> None:
    shown = admin("show", "overview", "rabbitmq_version", "object_totals.queues")
    assert re.search(r"\b[0-9]+\.[0-9]+\.[0-9]+\b", shown)


@needs_script
def test_publish_get_purge(admin: Admin, queue: str) -> None:
    sent = admin(
        "publish", f"routing_key={queue}", "payload=hello", 'properties={"delivery_mode":2}'
    )
    assert sent == "Message published\n"
    assert admin("publish", "routing_key=no-such-queue", "payload=x") == (
        "Message published but NOT routed\n"
    )
    got = admin.rows("get", f"queue={queue}", "ackmode=ack_requeue_true")
    assert (got[0]["payload"], got[0]["properties"]["delivery_mode"]) == ("hello", 2)
    assert "hello" in admin("get", f"queue={queue}", "count=5", "ackmode=ack_requeue_true")
    assert admin("purge", "queue", f"name={queue}") == "queue purged\n"
    assert admin.rows("get", f"queue={queue}") == []


@needs_script
def test_declare_and_delete_everything(admin: Admin, unique: Unique) -> None:
    vhost, user, exchange, queue, policy = (unique(word) for word in "vuxqp")
    in_vhost = ("-V", vhost)
    admin("declare", "vhost", f"name={vhost}")
    admin("declare", "user", f"name={user}", "password=x", "tags=monitoring")
    rights = ("configure=.*", "write=.*", "read=.*")
    admin("declare", "permission", f"vhost={vhost}", f"user={user}", *rights)
    admin("declare", "exchange", f"name={exchange}", "type=topic", options=in_vhost)
    admin("declare", "queue", f"name={queue}", "queue_type=classic", options=in_vhost)
    ends = (f"source={exchange}", f"destination={queue}")
    admin("declare", "binding", *ends, "routing_key=a.#", options=in_vhost)
    setting = ("pattern=^q", 'definition={"max-length":10}', "apply-to=queues")
    admin("declare", "policy", f"name={policy}", *setting, options=in_vhost)
    admin("declare", "operator_policy", f"name={policy}", *setting, options=in_vhost)
    admin("declare", "vhost_limit", f"vhost={vhost}", "name=max-queues", "value=7")
    limits = [row["value"] for row in admin.rows("list", "vhost_limits") if row["vhost"] == vhost]
    assert limits == [{"max-queues": 7}]
    bound = admin("list", "bindings", "source", "routing_key", options=("-V", vhost))
    assert "a.#" in bound
    key = "properties_key=a.%23"
    admin("delete", "binding", *ends, "destination_type=queue", key, options=in_vhost)
    admin("delete", "vhost_limit", f"vhost={vhost}", "name=max-queues")
    admin("delete", "operator_policy", f"name={policy}", options=in_vhost)
    admin("delete", "policy", f"name={policy}", options=in_vhost)
    admin("delete", "queue", f"name={queue}", options=in_vhost)
    admin("delete", "exchange", f"name={exchange}", options=in_vhost)
    admin("delete", "permission", f"vhost={vhost}", f"user={user}")
    admin("delete", "user", f"name={user}")
    admin("delete", "vhost", f"name={vhost}")
    gone = admin.run("delete", "vhost", f"name={vhost}")
    assert gone.returncode == 1
    assert "Not found" in gone.stdout + gone.stderr


@needs_script
def test_export_and_import(admin: Admin, queue: str, tmp_path: Path) -> None:
    whole, one = tmp_path / "all.json", tmp_path / "vhost.json"
    admin("export", str(whole))
    admin("export", str(one), options=("-V", "/"))
    assert queue in [row["name"] for row in json.loads(whole.read_text())["queues"]]
    assert queue in [row["name"] for row in json.loads(one.read_text())["queues"]]
    admin("delete", "queue", f"name={queue}")
    admin("import", str(one), options=("-V", "/"))
    assert queue in [row["name"] for row in admin.rows("list", "queues")]
    admin("import", str(whole))


@needs_script
def test_close_a_connection(admin: Admin, connect: Connect, queue: str) -> None:
    channel = connect().channel()
    channel.consume(queue, "t")

    def find() -> Any:
        rows = admin.rows("list", "consumers")
        rows = [row for row in rows if row["queue"]["name"] == queue]
        return [row for row in rows if row["channel_details"]]

    (row,) = wait_until(find, "the consumer", STATS_SECONDS_MAX)
    name = row["channel_details"]["connection_name"]
    wait_until(
        lambda: name in [each["name"] for each in admin.rows("list", "connections")],
        "the connection",
        STATS_SECONDS_MAX,
    )
    assert admin("close", "connection", f"name={name}") == "connection closed\n"
    assert channel.connection.closed_by_broker().code == 320


# ---- other tools --------------------------------------------------------------------------------


@differences.IDLE_SINCE
def test_what_flower_shows_of_a_broker(broker: Broker, unique: Unique) -> None:
    """flower.utils.broker.RabbitMQ: GET api/queues/VHOST, then these fields of the rows."""
    api = Api(broker)
    name = unique("celery")
    api.put("queues", "/", name, durable=True)
    for _ in range(3):
        api.publish("amq.default", name, "x")

    def counted() -> Any:
        row = next(row for row in api.rows("queues", "/") if row["name"] == name)
        return row if row.get("messages") == 3 else None

    row = wait_until(counted, "the counts", STATS_SECONDS_MAX)
    assert (row["messages_ready"], row["messages_unacknowledged"], row["consumers"]) == (3, 0, 0)
    assert "idle_since" in row
    api.delete("queues", "/", name)


def test_what_exporters_read_of_a_queue(broker: Broker, unique: Unique) -> None:
    """kbudde/rabbitmq_exporter, Telegraf and the like: numbers by name, rates in details."""
    api = Api(broker)
    name = unique("exported")
    api.put("queues", "/", name, durable=True)
    api.publish("amq.default", name, "12345", delivery_mode=2)

    def counted() -> Any:
        row = api.rows("queues", "/", name)
        return row if row.get("messages") == 1 and "message_stats" in row else None

    row = wait_until(counted, "the counts", STATS_SECONDS_MAX)
    numbers = ("messages_ready", "messages_unacknowledged", "consumers", "memory")
    numbers += ("message_bytes_ready", "message_bytes_ram", "message_bytes_persistent")
    assert all(isinstance(row[name], int) for name in numbers)
    assert row["messages_details"]["rate"] >= 0
    assert row["message_stats"]["publish"] == 1
    assert row["message_stats"]["publish_details"]["rate"] >= 0
    assert row["state"] == "running"
    assert row["node"] in [node["name"] for node in api.rows("nodes")]
    api.delete("queues", "/", name)
