"""Health probes of load balancers and resource managers: what a broker is, and why it is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rhizome.broker.cluster_port import Away
from rhizome.management.cluster_view import (
    ACTIVE,
    CATCHING_UP,
    PRIMARY,
    READY,
    BrokerInfo,
    ClusterDocument,
    ClusterInfo,
    Quorum,
)
from rhizome.management.rhizome_api.cluster_status_and_changes import LoneView
from rhizome.management.rhizome_api.role_health_checks import why_not_drained, why_not_ready
from tests.unit.management.conftest import Api, Core

OWN = BrokerInfo("b1", PRIMARY, ACTIVE, 1, "m", (), 0, True)


def seen(own: BrokerInfo) -> ClusterDocument:
    cluster = ClusterInfo("u", "c", 3, "b1", Quorum(1, 1, 1))
    return ClusterDocument("b1", cluster, (own,), ())


@pytest.mark.parametrize(
    ("own", "isolation", "alarm", "reason"),
    [
        (OWN, "", "", ""),
        (replace(OWN, status=READY), "", "", ""),
        (replace(OWN, status=CATCHING_UP), "", "", "it is catching-up"),
        (replace(OWN, draining=True), "", "", "it is being drained"),
        (OWN, "no lease", "", "no lease"),
        (OWN, "", "low on disk", "low on disk"),
        (replace(OWN, name="b2"), "", "", "it is starting"),
    ],
)
def test_ready_says_why_not(own: BrokerInfo, isolation: str, alarm: str, reason: str) -> None:
    assert why_not_ready(seen(own), isolation, alarm) == reason


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        (OWN, "it is not being drained"),
        (replace(OWN, draining=True), ""),
        (replace(OWN, draining=True, homes=2, stuck=2), ""),
        (
            replace(OWN, draining=True, homes=2, connections=3),
            "it still has 2 homes, 3 connections",
        ),
        (replace(OWN, draining=True, copies=1), "it still has 1 copies that others wait for"),
    ],
)
def test_drained_says_what_is_left(own: BrokerInfo, reason: str) -> None:
    assert why_not_drained(seen(own)) == reason


def test_a_lone_broker_is_ready_root_and_home(api: Api) -> None:
    api.put("queues", "/", "q")
    for probe in ("ready", "root", "home/0", "home/%2F/q"):
        answer = api.ask("GET", f"/api/health/{probe}")
        assert (answer.status, answer.json) == (200, {"status": "ok"}), probe


def test_what_it_is_not_is_told(api: Api, core: Core) -> None:
    assert api.ask("GET", "/api/health/drained").status == 503
    answer = api.ask("GET", "/api/health/home/99")
    assert (answer.status, answer.json["reason"]) == (503, "there is no group 99")
    assert api.ask("GET", "/api/health/home/%2F/none").status == 404


class InCluster(LoneView):
    """The view of a broker that sees that cluster."""

    def __init__(self, core: Core, document: ClusterDocument) -> None:
        super().__init__(core.context)
        self._document = document

    async def cluster_document(self) -> ClusterDocument:
        return self._document


@pytest.mark.parametrize(
    ("seen_by", "root", "status", "reason"),
    [
        ("b1", "b1", 200, None),
        ("b1", "b2", 503, "the root is b2"),
        ("b2", "b2", 200, None),
        ("b1", None, 503, "the root is nobody"),
    ],
)
def test_only_the_root_says_that_it_is_and_others_name_it(
    api: Api, core: Core, seen_by: str, root: str | None, status: int, reason: str | None
) -> None:
    cluster = replace(seen(OWN).cluster, root=root)
    core.context.view = InCluster(core, replace(seen(OWN), seen_by=seen_by, cluster=cluster))
    answer = api.ask("GET", "/api/health/root")
    assert (answer.status, answer.json.get("reason")) == (status, reason)


def test_a_queue_elsewhere_has_its_home_elsewhere(api: Api, core: Core) -> None:
    api.put("queues", "/", "q")
    core.queue("q").away = Away()
    answer = api.ask("GET", "/api/health/home/%2F/q")
    assert (answer.status, answer.json["status"]) == (503, "failed")
