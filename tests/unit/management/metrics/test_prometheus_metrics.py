"""/metrics: numbers, formats, and that everything is documented."""

from __future__ import annotations

import json
import re

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from rhizome.broker.cluster_port import Away
from rhizome.security.jwks_cache import FetchTimes, IssuerKeys, KeyLocation
from rhizome.security.token_keys import PublishedKeys, TokenKey
from tests.unit.management.conftest import Api, Core

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


def labelled(api: Api, name: str) -> dict[str, float]:
    """The values of a metric by its only label."""
    return {
        next(iter(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(api.ask("GET", "/metrics").body.decode())
        for sample in family.samples
        if sample.name == name
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


def test_readers_of_streams_have_a_lag_each(api: Api, core: Core) -> None:
    api.put("rhizome", "streams", "/", "s")
    for number in range(5):
        api.publish("s", str(number))
    api.put("rhizome", "streams", "/", "s", "offsets", "job", offset=1)
    values = scrape(api, "/metrics/per-object")
    assert values["rhizome_stream_reader_lag", ("/", "")] == 3
    text = api.ask("GET", "/metrics/per-object").body.decode()
    assert 'rhizome_stream_reader_lag{reader="job",stream="s",vhost="/"} 3.0' in text
    assert values["rhizome_stream_readers_left_out", BROKER] == 0
    assert values["rhizome_stream_readers", BROKER] == 1
    assert values["rhizome_stream_unread_dropped_total", BROKER] == 0


@pytest.mark.parametrize(("user", "status"), [("", 401), ("manager", 401), ("monitor", 200)])
def test_scrapes_from_elsewhere_take_a_user_who_may_monitor(
    core: Core, user: str, status: int
) -> None:
    assert Api(core, user, host="192.0.2.1").ask("GET", "/metrics").status == status


def test_issuers_of_tokens_are_told(api: Api, core: Core) -> None:
    now_ms = [1_000_000]
    away, there = (
        IssuerKeys(name, KeyLocation(f"https://{name}"), FetchTimes(), lambda: now_ms[0])
        for name in ("away", "there")
    )
    for keys in (away, there):
        keys.begun()
    away.failed("it is away")
    there.fetched(PublishedKeys((TokenKey("k", "RS256", lambda signed, signature: False),)))
    now_ms[0] += 5_000
    core.context.issuers = lambda: (away, there)
    assert labelled(api, "rhizome_issuer_keys") == {"away": 0, "there": 1}
    assert labelled(api, "rhizome_issuer_keys_age_seconds") == {"there": 5}
    text = api.ask("GET", "/metrics").body.decode()
    assert 'rhizome_issuer_key_fetches_total{issuer="away",result="failed"} 1.0' in text
    assert 'rhizome_issuer_key_fetches_total{issuer="there",result="ok"} 1.0' in text
    told = api.get("rhizome", "checkup", "own").json["issuers"]
    assert [(each["name"], each["trouble"], each["keys_count"]) for each in told] == [
        ("away", "it is away", 0),
        ("there", "", 1),
    ]


def test_every_metric_is_documented(api: Api, request: pytest.FixtureRequest) -> None:
    documented = (request.config.rootpath / "docs/operating/metrics.md").read_text()
    api.put("queues", "/", "q")
    text = api.ask("GET", "/metrics/per-object").body.decode()
    families = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    ours = [name for name in families if name.startswith("rhizome_")]
    assert len(ours) > 25
    assert [name for name in ours if f"`{name}`" not in documented] == []


def test_the_dashboard_asks_for_metrics_that_exist(
    api: Api, request: pytest.FixtureRequest
) -> None:
    path = request.config.rootpath / "docs/operating/grafana-dashboard.json"
    panels = json.loads(path.read_text())["panels"]
    asked = {
        name
        for panel in panels
        for target in panel.get("targets", [])
        for name in re.findall(r"rhizome_\w+", target["expr"])
    }
    documented = (request.config.rootpath / "docs/operating/metrics.md").read_text()
    assert len(asked) > 25
    assert [
        name for name in sorted(asked) if f"`{name.removesuffix('_bucket')}`" not in documented
    ] == []


def test_openmetrics_comes_if_it_is_asked_for(api: Api) -> None:
    api.put("queues", "/", 'odd "\\name"\n')
    api.put("queues", "/", "q")
    api.publish("q", "x")
    accept = {"accept": "application/openmetrics-text; version=1.0.0"}
    for path in ("/metrics", "/metrics/per-object"):
        answer = api.ask("GET", path, headers=accept)
        assert answer.headers["content-type"].startswith("application/openmetrics-text")
        families = {family.name: family for family in openmetrics_families(answer.body.decode())}
        assert families["rhizome_messages_published"].samples[0].value == 1
    rows = families["rhizome_queue_messages_enqueued"].samples
    assert {row.labels["queue"]: row.value for row in rows} == {"q": 1, 'odd "\\name"\n': 0}


def test_a_lone_broker_is_its_own_root(api: Api) -> None:
    values = scrape(api)
    assert values["rhizome_root", BROKER] == 1
    assert values["rhizome_quorum_active", BROKER] == 1
    assert labelled(api, "rhizome_brokers")["active"] == 1
    assert sorted(labelled(api, "rhizome_logins_total")) == ["accepted", "refused", "throttled"]
    assert labelled(api, "rhizome_stalls")["alarm"] == 0


def test_an_alarm_is_a_stall(core: Core, api: Api) -> None:
    core.shell.set_alarm("low on memory: wait")
    values = scrape(api)
    assert values["rhizome_alarm", BROKER] == 1
    assert labelled(api, "rhizome_stalls")["alarm"] == 1


def test_queues_that_are_active_elsewhere_are_counted_there(core: Core, api: Api) -> None:
    api.put("queues", "/", "here")
    api.put("queues", "/", "there")
    core.queue("there").away = Away()
    values = scrape(api, "/metrics/per-object")
    assert values["rhizome_queues", BROKER] == 1
    assert [key for key in values if "there" in key[1]] == []
