"""/api/rhizome/queues/VHOST/NAME/leases: what is set aside for readers, and giving it back."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from rhizome.broker.channel.resource_lookup import check_read
from rhizome.broker.metadata.metadata_commands import QUEUE
from rhizome.broker.queue_leases.lease import Lease
from rhizome.management.errors import ObjectNotFound
from rhizome.management.http.api_call import Call
from rhizome.management.http.auth import MANAGEMENT
from rhizome.management.http.endpoint import DELETE, GET
from rhizome.management.http.json_responses import Row, answer, done
from rhizome.management.openapi import rhizome_schemas
from rhizome.management.openapi.endpoint_shapes import DONE, list_of
from rhizome.management.peers.cluster_wide_queries import at_home
from rhizome.management.rabbitmq_api.queues import usable_queue


def lease_row(lease: Lease, now_ms: int) -> Row:
    """A lease for people: the positions that it has, and how long it lives without a sign."""
    return {
        "name": lease.name,
        "state": "expired" if lease.expired else "active",
        "first": int(lease.base),
        "next": int(lease.end()),
        "messages": len(lease.messages),
        "bytes": int(lease.size),
        "read_up_to": int(lease.read_to),
        "keep_ms": int(lease.keep_ms),
        "expires_in_ms": 0 if lease.expired else max(0, int(lease.until_ms) - now_ms),
    }


async def list_leases(call: Call) -> Response:
    queue = call.queue()
    elsewhere = await at_home(call, queue)
    if elsewhere is not None:
        return elsewhere
    broker = call.context.broker
    now_ms = int(broker.turn.now_ms)
    return answer([lease_row(lease, now_ms) for lease in broker.leases.of(queue)])


async def end_lease(call: Call) -> Response:
    """Give back what a lease holds, and remember that for its reader; an expired one is
    forgotten."""
    channel, queue = usable_queue(call)
    check_read(channel, QUEUE, queue.name)
    elsewhere = await at_home(call, queue)
    if elsewhere is not None:
        return elsewhere
    leases = call.context.broker.leases
    lease = leases.find(queue, call.name("lease"))
    if lease is None:
        raise ObjectNotFound
    call.context.shell.begin_turn()
    leases.revoke(queue, lease)
    return done()


ENDPOINTS: Final = (
    GET(
        "/api/rhizome/queues/{vhost}/{name}/leases",
        MANAGEMENT,
        list_leases,
        list_of(rhizome_schemas.LEASE),
    ),
    DELETE("/api/rhizome/queues/{vhost}/{name}/leases/{lease}", MANAGEMENT, end_lease, DONE),
)
