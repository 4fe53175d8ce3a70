"""/api/rhizome/queues/VHOST/NAME/leases."""

from __future__ import annotations

from rhizome.broker.queue_leases.lease_request import LeaseRequest
from tests.unit.management.conftest import Api, Core


def take(core: Core, count: int) -> None:
    request = LeaseRequest({"x-lease": "spark/1", "x-lease-take": count})
    core.shell.begin_turn()
    core.broker.leases.carry_out(core.queue("q"), request)


def test_leases_are_listed_and_ended(api: Api, core: Core) -> None:
    api.put("queues", "/", "q", durable=True)
    for number in range(3):
        api.publish("q", f"m{number}")
    where = ("rhizome", "queues", "/", "q", "leases")
    assert api.get(*where).json == []
    take(core, 2)
    (row,) = api.get(*where).json
    assert row.pop("bytes") > 4
    assert row == {
        "name": "spark/1",
        "state": "active",
        "first": 0,
        "next": 2,
        "messages": 2,
        "read_up_to": 0,
        "keep_ms": 300_000,
        "expires_in_ms": 300_000,
    }
    assert api.get("queues", "/", "q").json["messages_unacknowledged"] == 2
    assert api.delete(*where, "other").status == 404
    assert api.delete(*where, "spark/1").status == 204
    (row,) = api.get(*where).json
    assert (row["state"], row["messages"]) == ("expired", 0), "its reader must be told"
    assert core.queue("q").ready == 3
    assert api.delete(*where, "spark/1").status == 204
    assert api.get(*where).json == []


def test_an_expired_lease_is_shown_until_it_is_ended(api: Api, core: Core) -> None:
    api.put("queues", "/", "q", durable=True)
    api.publish("q", "m")
    take(core, 1)
    core.shell.begin_turn()
    core.broker.tick(core.now_ms + 400_000)
    where = ("rhizome", "queues", "/", "q", "leases")
    (row,) = api.get(*where).json
    assert (row["state"], row["messages"], row["next"]) == ("expired", 0, 1)
    assert row["expires_in_ms"] == 0
    assert api.delete(*where, "spark/1").status == 204
    assert api.get(*where).json == []


def test_there_is_no_queue(api: Api) -> None:
    assert api.get("rhizome", "queues", "/", "q", "leases").status == 404
