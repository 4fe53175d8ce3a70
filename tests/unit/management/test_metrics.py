"""/metrics, and the page at /."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from .conftest import Api, Core

LABELS = ("vhost", "queue")
BROKER = ("", "")


def scrape(api: Api, target: str = "/metrics") -> dict[tuple[str, tuple[str, ...]], float]:
    answer = api.ask("GET", target)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, tuple(sample.labels.get(name, "") for name in LABELS)): sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
    }


def test_metrics_say_what_the_broker_holds(api: Api, core: Core) -> None:
    api.put("queues", "/", "q", durable=True)
    for payload in ("1", "2", "3"):
        api.publish("q", payload, delivery_mode=2)
    api.post("queues", "/", "q", "get", ackmode="ack_requeue_false", count=1)
    values = scrape(Api(core, user=""))
    assert values["rhizome_queues", BROKER] == 1
    assert values["rhizome_messages_ready", BROKER] == 2
    assert values["rhizome_messages_published_total", BROKER] == 3
    assert values["rhizome_messages_acked_total", BROKER] == 1
    assert values["rhizome_alarm", BROKER] == 0
    assert values["rhizome_journal_sync_seconds_count", BROKER] == core.store.statistics().syncs
    assert values["process_resident_memory_bytes", BROKER] > 0
    assert not [name for name, _ in values if name.startswith("rhizome_queue_")]


def test_metrics_per_object_name_every_queue(api: Api) -> None:
    for name in ('odd "name"\n', "q"):
        api.put("queues", "/", name)
    api.ask("PUT", "/api/queues/%2F/%ff")
    api.publish("q", "x")
    values = scrape(api, "/metrics/per-object")
    assert values["rhizome_queue_messages_ready", ("/", "q")] == 1
    assert values["rhizome_queue_messages_ready", ("/", 'odd "name"\n')] == 0
    assert values["rhizome_queue_messages_ready", ("/", "\ufffd")] == 0


@pytest.mark.parametrize(("user", "status"), [("", 401), ("manager", 401), ("monitor", 200)])
def test_scrapes_from_elsewhere_take_a_user_who_may_monitor(
    core: Core, user: str, status: int
) -> None:
    assert Api(core, user, host="192.0.2.1").ask("GET", "/metrics").status == status


def test_every_metric_is_documented(api: Api, request: pytest.FixtureRequest) -> None:
    documented = (request.config.rootpath / "docs/operating/metrics.md").read_text()
    api.put("queues", "/", "q")
    text = api.ask("GET", "/metrics/per-object").body.decode()
    families = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    ours = [name for name in families if name.startswith("rhizome_")]
    assert len(ours) > 25
    assert [name for name in ours if f"`{name}`" not in documented] == []
