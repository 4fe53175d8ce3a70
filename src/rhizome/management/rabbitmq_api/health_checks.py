"""Health checks: 200 {"status": "ok"} or 503 {"status": "failed", "reason": ...}."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from rhizome.amqp.properties import Properties
from rhizome.broker.channel.resource_lookup import check_configure, check_read
from rhizome.broker.metadata.metadata_commands import QUEUE, DeclareQueue
from rhizome.broker.queue.queue import Queue
from rhizome.management.api_context import Context
from rhizome.management.certificate_expiry import UNITS, expired_by
from rhizome.management.direct_channel import open_channel, publish
from rhizome.management.errors import BadRequest
from rhizome.management.http.api_call import Call
from rhizome.management.http.auth import MANAGEMENT
from rhizome.management.http.endpoint import GET
from rhizome.management.http.json_responses import Row, answer
from rhizome.management.openapi import rabbitmq_schemas
from rhizome.management.openapi.endpoint_shapes import list_of
from rhizome.management.peers.cluster_wide_queries import at_home, documents
from rhizome.management.rabbitmq_api.overview_and_nodes import is_memory_alarm
from rhizome.management.rabbitmq_api.queue_messages import take
from rhizome.management.state_proposals import propose

ALIVENESS_QUEUE: Final = "aliveness-test"
ALIVENESS_PAYLOAD: Final = b"test_message"
OK: Final[Row] = {"status": "ok"}
ALARMS_PATH: Final = "/api/rhizome/alarms"


def failed(reason: str, **details: object) -> Response:
    return answer({"status": "failed", "reason": reason, **details}, 503)


# ---- alarms -------------------------------------------------------------------------------------


def alarm_rows(context: Context) -> list[Row]:
    """The alarms of this broker."""
    alarm = context.shell.alarm
    if not alarm:
        return []
    resource = "memory" if is_memory_alarm(alarm) else "disk"
    return [{"node": context.name, "resource": resource, "text": alarm}]


async def list_own_alarms(call: Call) -> Response:
    return answer(alarm_rows(call.context))


async def check_alarms(call: Call) -> Response:
    """Any broker's alarm counts."""
    rows: list[Any] = list(alarm_rows(call.context))
    found, _ = await documents(call, call.question(ALARMS_PATH))
    for more in found.values():
        rows += more
    return _checked(rows)


async def check_own_alarms(call: Call) -> Response:
    return _checked(list(alarm_rows(call.context)))


def _checked(rows: list[Any]) -> Response:
    return failed(rows[0]["text"], alarms=rows) if rows else answer(OK)


# ---- listeners and certificates -----------------------------------------------------------------


async def check_nothing_more(call: Call) -> Response:
    """Whatever answers this has passed it: vhosts are up or gone."""
    return answer(OK)


async def check_port(call: Call) -> Response:
    wanted = call.name("port")
    ports = [listener.port for listener in call.context.listeners()]
    if wanted in map(str, ports):
        return answer({**OK, "port": int(wanted)})
    return failed("No active listener", missing=wanted, ports=ports)


async def check_protocol(call: Call) -> Response:
    wanted = call.name("protocol").lower()
    protocols = sorted({listener.protocol for listener in call.context.listeners()})
    aliases = {"amqp091": "amqp", "amqp0.9.1": "amqp", "amqps": "amqp/ssl"}
    if aliases.get(wanted, wanted) in protocols:
        return answer({**OK, "protocol": wanted})
    return failed("No active listener", missing=wanted, protocols=protocols)


async def check_certificates(call: Call) -> Response:
    """Fails if a certificate of this broker ends within the time in the path."""
    within, unit = call.name("within"), call.name("unit")
    if unit not in UNITS:
        raise BadRequest(f"the unit is {unit[:40]!r}; it must be one of {', '.join(UNITS)}")
    if not (within.isascii() and within.isdecimal() and len(within) <= 6):
        raise BadRequest(f"the time is {within[:40]!r}; it must be a whole number")
    seconds = int(within) * UNITS[unit]
    expired = expired_by(call.context.config.tls.certificate, call.context.now_ms(), seconds)
    if not expired:
        return answer(OK)
    return failed("Certificates expiring", expired=expired)


# ---- aliveness ----------------------------------------------------------------------------------


async def test_aliveness(call: Call) -> Response:
    """Declare a queue, publish to it and get the message back."""
    vhost = call.vhost()
    context = call.context
    channel = open_channel(context.broker, vhost, call.caller)
    check_configure(channel, QUEUE, ALIVENESS_QUEUE)
    check_read(channel, QUEUE, ALIVENESS_QUEUE)
    await propose(context, DeclareQueue(vhost.name, ALIVENESS_QUEUE, user=call.caller.user))
    queue = vhost.destinations.get(ALIVENESS_QUEUE)
    if not isinstance(queue, Queue):
        return failed(f"queue '{ALIVENESS_QUEUE}' was not made")
    elsewhere = await at_home(call, queue)
    if elsewhere is not None:
        return elsewhere
    await publish(context, channel, "", ALIVENESS_QUEUE, Properties(), ALIVENESS_PAYLOAD)
    if not take(queue, 1, "ack_requeue_false"):
        return failed(f"queue '{ALIVENESS_QUEUE}' gave nothing back")
    return answer(OK)


_CHECKS: Final = "/api/health/checks"

ENDPOINTS: Final = (
    GET("/api/aliveness-test/{vhost}", MANAGEMENT, test_aliveness, rabbitmq_schemas.CHECKED),
    GET("/api/healthchecks/node", MANAGEMENT, check_own_alarms, rabbitmq_schemas.CHECKED),
    GET("/api/healthchecks/node/{node}", MANAGEMENT, check_own_alarms, rabbitmq_schemas.CHECKED),
    GET(ALARMS_PATH, MANAGEMENT, list_own_alarms, list_of(rabbitmq_schemas.ALARM)),
    GET(_CHECKS + "/alarms", MANAGEMENT, check_alarms, rabbitmq_schemas.CHECKED),
    GET(_CHECKS + "/local-alarms", MANAGEMENT, check_own_alarms, rabbitmq_schemas.CHECKED),
    GET(_CHECKS + "/virtual-hosts", MANAGEMENT, check_nothing_more, rabbitmq_schemas.CHECKED),
    GET(_CHECKS + "/ready", MANAGEMENT, check_nothing_more, rabbitmq_schemas.CHECKED),
    GET(
        _CHECKS + "/node-is-mirror-sync-critical",
        MANAGEMENT,
        check_nothing_more,
        rabbitmq_schemas.CHECKED,
    ),
    GET(_CHECKS + "/port-listener/{port}", MANAGEMENT, check_port, rabbitmq_schemas.CHECKED),
    GET(
        _CHECKS + "/protocol-listener/{protocol}",
        MANAGEMENT,
        check_protocol,
        rabbitmq_schemas.CHECKED,
    ),
    GET(
        _CHECKS + "/certificate-expiration/{within}/{unit}",
        MANAGEMENT,
        check_certificates,
        rabbitmq_schemas.CHECKED,
    ),
)
