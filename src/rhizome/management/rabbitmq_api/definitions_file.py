"""/api/definitions: everything that is declared and set, out as a RabbitMQ definitions file and in
from one.

Limits of vhosts and operator policies are parameters there (components `vhost-limits` and
`operator_policy`), and they are here. Only what survives a restart is exported.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Final

from starlette.responses import Response

from rhizome import __version__
from rhizome.amqp.field_table import Timestamp
from rhizome.broker.access.auth_interface import KIND_APPLICATION
from rhizome.broker.metadata.metadata_commands import (
    CLUSTER_NAME,
    EXCHANGE,
    GLOBAL,
    QUEUE,
    SCOPE_USER,
    SCOPE_VHOST,
    Bind,
    Command,
    DeclareExchange,
    DeclareQueue,
    PutLimit,
    PutParameter,
    PutPolicy,
    PutVhost,
)
from rhizome.broker.metadata.metadata_state import State
from rhizome.broker.metadata.new_queue_arguments import (
    DEFAULT_TYPE,
    DEFAULTS_COMPONENT,
    QUEUE_TYPES,
    check_proposed_queue,
)
from rhizome.broker.metadata.resource_names import RESERVED_PREFIX
from rhizome.broker.metadata.vhost import VHost
from rhizome.broker.queue.queue import Queue
from rhizome.broker.routing.bindings_and_destinations import Destination
from rhizome.broker.routing.exchange import Exchange
from rhizome.management.api_context import Context
from rhizome.management.errors import BadRequest
from rhizome.management.http.api_call import Call
from rhizome.management.http.auth import ADMINISTRATOR
from rhizome.management.http.cooperative_yield import Pace
from rhizome.management.http.endpoint import GET, POST, PUT
from rhizome.management.http.json_body import Document
from rhizome.management.http.json_responses import Row, done, long_answer
from rhizome.management.openapi import rabbitmq_schemas, request_schemas
from rhizome.management.openapi.endpoint_shapes import (
    DONE,
    TABLE,
    TEXT,
    Answer,
    fields,
    many,
    record,
)
from rhizome.management.rabbitmq_api.json_rows import (
    binding_row,
    is_shown,
    permission_row,
    policy_row,
    topic_permission_row,
    user_row,
    vhost_metadata,
)
from rhizome.management.rabbitmq_api.overview_and_nodes import PRODUCT_NAME
from rhizome.management.rabbitmq_api.policies_and_parameters import (
    OPERATOR_POLICY,
    SET_ELSEWHERE,
    VHOST_LIMITS,
    parameter_row,
    policy_command,
    with_secrets,
)
from rhizome.management.rabbitmq_api.users import (
    permission_command,
    topic_permission_command,
    user_command,
)
from rhizome.management.rabbitmq_api.vhosts import checked_type
from rhizome.management.state_proposals import Proposal, finish, start
from rhizome.security.password_hashes import ScryptCost

PROPOSALS_MAX: Final = 1000
"""How many changes of one import are in progress at the same time."""

I64_MAX: Final = (1 << 63) - 1
_VERSIONS: Final = fields(TEXT, "rabbit_version rabbitmq_version product_name product_version")
_TOPOLOGY: Final = {
    name: many(TABLE) for name in ("parameters", "policies", "queues", "exchanges", "bindings")
}
EXPORT: Final = record(
    "Definitions",
    {
        **_VERSIONS,
        "users": many(rabbitmq_schemas.USER),
        "vhosts": many(
            record(
                "DefinedVhost",
                {
                    **fields(TEXT, "name description default_queue_type"),
                    "tags": many(TEXT),
                    "metadata": rabbitmq_schemas.METADATA,
                },
            )
        ),
        "permissions": many(rabbitmq_schemas.PERMISSION),
        "topic_permissions": many(rabbitmq_schemas.TOPIC_PERMISSION),
        "global_parameters": many(rabbitmq_schemas.GLOBAL_PARAMETER),
        **_TOPOLOGY,
    },
)
EXPORT_OF_VHOST: Final = record("DefinitionsOfVhost", {**_VERSIONS, **_TOPOLOGY})
EXPORTED: Final = Answer({200: EXPORT}, is_long=True)
EXPORTED_OF_VHOST: Final = Answer({200: EXPORT_OF_VHOST}, is_long=True)


# ---- out ----------------------------------------------------------------------------------------


def versions(context: Context) -> Row:
    """The versions at the head of a file of definitions, which tools of RabbitMQ look at."""
    compatible = context.broker.settings.compatible_version
    return {
        "rabbit_version": compatible,
        "rabbitmq_version": compatible,
        "product_name": PRODUCT_NAME,
        "product_version": __version__,
    }


async def export_all(call: Call) -> Response:
    context = call.context
    state = context.broker.state
    vhosts = list(state.vhosts.values())
    limits = state.accounts.limits
    users = [(user, limits.get(user.name, {})) for user in state.users.values()]
    return await long_answer(
        call,
        {
            **versions(call.context),
            "users": (user_row(*each) for each in users),
            "vhosts": [_vhost_row(state, vhost) for vhost in vhosts],
            "permissions": map(permission_row, list(state.permissions.values())),
            "topic_permissions": map(topic_permission_row, list(state.topic_permissions.values())),
            "parameters": _parameters(context, vhosts),
            "global_parameters": _global_parameters(context),
            **_topology(vhosts),
        },
    )


async def export_vhost(call: Call) -> Response:
    """The same for one vhost; its objects don't name it, so that they can go into another."""
    vhost = call.vhost()
    rows = {"parameters": _parameters(call.context, [vhost]), **_topology([vhost])}
    without = {name: map(_without_vhost, found) for name, found in rows.items()}
    return await long_answer(call, {**versions(call.context), **without})


def _without_vhost(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "vhost"}


def _vhost_row(state: State, vhost: VHost) -> Row:
    metadata = vhost_metadata(state, vhost)
    return {"name": vhost.name, **metadata, "metadata": metadata}


def _parameters(context: Context, vhosts: list[VHost]) -> Iterator[Row]:
    names = {vhost.name for vhost in vhosts}
    for key, value in list(context.broker.state.parameters.items()):
        # Older releases kept these as parameters; an import would take them for the real ones.
        if key[1] in names and key[0] not in SET_ELSEWHERE:
            yield parameter_row(key, value)
    for vhost in vhosts:
        if vhost.limits:
            yield parameter_row((VHOST_LIMITS, vhost.name, "limits"), dict(vhost.limits))
        for policy in list(vhost.operator_policies.values()):
            value = _without_vhost(policy_row(policy))
            yield parameter_row((OPERATOR_POLICY, vhost.name, policy.name), value)


def _global_parameters(context: Context) -> Iterator[Row]:
    yield {"name": CLUSTER_NAME, "value": context.broker.cluster_name()}
    for (component, vhost, name), value in list(context.broker.state.parameters.items()):
        if component == GLOBAL and vhost == "" and name != CLUSTER_NAME:
            yield {"name": name, "value": value}


def _topology(vhosts: list[VHost]) -> dict[str, Iterator[Row]]:
    return {
        "policies": (
            policy_row(policy) for vhost in vhosts for policy in list(vhost.policies.values())
        ),
        "queues": (
            _queue_row(queue)
            for vhost in vhosts
            for queue in list(vhost.destinations.values())
            if isinstance(queue, Queue) and is_kept(queue)
        ),
        "exchanges": (
            _exchange_row(exchange)
            for exchange in _exchanges(vhosts)
            if not exchange.name.startswith(RESERVED_PREFIX)
        ),
        "bindings": (row for exchange in _exchanges(vhosts) for row in _binding_rows(exchange)),
    }


def _exchanges(vhosts: list[VHost]) -> Iterator[Exchange]:
    """Those that survive a restart, but for the nameless one."""
    for vhost in vhosts:
        for exchange in list(vhost.router.exchanges.values()):
            if exchange.name != "" and exchange.durable:
                yield exchange


def is_kept(destination: Destination) -> bool:
    """Whether it survives a restart, and belongs to users."""
    if isinstance(destination, Exchange):
        return destination.durable
    return (
        isinstance(destination, Queue)
        and destination.durable
        and not destination.name.startswith(RESERVED_PREFIX)
    )


def _queue_row(queue: Queue) -> Row:
    definition = queue.definition
    return {
        "name": queue.name,
        "vhost": queue.vhost,
        "durable": True,
        "auto_delete": definition.auto_delete,
        "arguments": importable(definition.arguments),
    }


def importable(value: object) -> object:
    """Arguments as an import takes them. Timestamps of AMQP have 64 bits without a sign, and all
    numbers of JSON become integers with one: a larger one would have the whole file refused."""
    if isinstance(value, Timestamp):
        return value if value.seconds <= I64_MAX else None
    if isinstance(value, dict):
        return {name: importable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [importable(each) for each in value]
    return value


def _exchange_row(exchange: Exchange) -> Row:
    return {
        "name": exchange.name,
        "vhost": exchange.vhost,
        "type": exchange.kind,
        "durable": True,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": importable(exchange.arguments),
    }


def _binding_rows(exchange: Exchange) -> Iterator[Row]:
    for binding in exchange.bindings():
        if is_shown(binding) and is_kept(binding.destination):
            row = binding_row(exchange.vhost, binding)
            del row["properties_key"]
            row["arguments"] = importable(row["arguments"])
            yield row


# ---- in -----------------------------------------------------------------------------------------


async def import_all(call: Call) -> Response:
    """Add what a definitions file has to what is there; the first refusal ends the import."""
    document = await call.definitions()
    cost = call.context.config.password_cost()
    users = call.context.broker.state.users.values()
    hashes = {user.name: user.password_hash for user in users}
    await _carry_out(call.context, document, commands_of(document, cost, hashes))
    return done()


async def import_into_vhost(call: Call) -> Response:
    vhost = call.vhost().name
    document = await call.definitions()
    await _carry_out(call.context, document, _commands_for(document, vhost))
    return done()


async def _carry_out(context: Context, document: Document, found: AsyncIterator[Command]) -> None:
    """Make all commands of a file, so that it is refused before anything is changed; then propose
    them. In any case the file is freed in steps."""
    pace = Pace()
    commands: deque[Command] = deque()
    try:
        async for command in found:
            commands.append(command)
            if pace.is_due():
                await pace.rest()
        await _propose(context, commands)
    finally:
        await document.release()
        while commands:
            commands.pop()
            if pace.is_due():
                await pace.rest()


async def _propose(context: Context, commands: deque[Command]) -> None:
    """Propose all commands in order; what is not safe yet is waited for when there are many."""
    pace = Pace()
    proposals: deque[Proposal] = deque()
    while commands:
        command = commands.popleft()
        if _is_there(context, command):
            continue
        if isinstance(command, DeclareQueue):
            check_proposed_queue(command.vhost, command.name, command.arguments)
        if isinstance(command, PutParameter):
            command = with_secrets(context, command)
        proposal = start(context, command, takes_whole_state=True)
        proposals.append(proposal)
        if proposal.answer.done() and proposal.answer.result().error is not None:
            await finish(context, proposal)
        while len(proposals) > PROPOSALS_MAX:
            await finish(context, proposals.popleft())
        if pace.is_due():
            await pace.rest()
    for proposal in proposals:
        await finish(context, proposal)


def _is_there(context: Context, command: Command) -> bool:
    """Queues and exchanges that exist stay as they are, as in RabbitMQ, alike or not."""
    if not isinstance(command, (DeclareQueue, DeclareExchange)):
        return False
    vhost = context.broker.state.vhosts.get(command.vhost)
    if vhost is None:
        return False
    if isinstance(command, DeclareQueue):
        return command.name in vhost.queues
    return command.name in vhost.router.exchanges


def _default_type(vhost: Document) -> str:
    """The default type of queues of a vhost, which RabbitMQ writes beside or into its metadata."""
    if DEFAULT_TYPE in vhost:
        return checked_type(vhost)
    kind = vhost.table("metadata").get(DEFAULT_TYPE)
    return kind if isinstance(kind, str) and kind in QUEUE_TYPES else ""


async def _commands_for(document: Document, vhost: str) -> AsyncIterator[Command]:
    """What a file has for one vhost."""
    for command in _topology_commands(document, lambda each: vhost):
        yield command


def _vhost_of(document: Document) -> str:
    return document.text("vhost")


async def commands_of(
    document: Document, cost: ScryptCost, hashes: Mapping[str, str]
) -> AsyncIterator[Command]:
    """Everything in a definitions file, in an order in which nothing is missing when it is used.

    ``hashes``: those of the users that exist, which keep theirs if their password is the same.
    Raises BadRequest before anything is changed if a part of it makes no sense.
    """
    for each in document.items("vhosts"):
        tags = each.words("tags") if "tags" in each else ()
        yield PutVhost(each.text("name"), each.text("description", ""), tags)
        kind = _default_type(each)
        if kind:
            yield PutParameter(DEFAULTS_COMPONENT, each.text("name"), DEFAULT_TYPE, kind)
    for each in document.items("users"):
        name = each.text("name")
        existing = hashes.get(name, "")
        yield await user_command(name, each, KIND_APPLICATION, cost, existing)
        for limit, value in each.table("limits").items():
            yield _limit(SCOPE_USER, name, limit, value)
    for each in document.items("permissions"):
        yield permission_command(each.text("user"), each.text("vhost"), each)
    for each in document.items("topic_permissions"):
        yield topic_permission_command(each.text("user"), each.text("vhost"), each)
    for each in document.items("global_parameters"):
        if each.text("name") not in (CLUSTER_NAME, "internal_cluster_id"):
            yield PutParameter(GLOBAL, "", each.text("name"), each.value("value"))
    for command in _topology_commands(document, _vhost_of):
        yield command


def _topology_commands(
    document: Document, vhost_of: Callable[[Document], str]
) -> Iterable[Command]:
    for each in document.items("parameters"):
        yield from _parameter_commands(vhost_of(each), each)
    for each in document.items("policies"):
        yield _policy(vhost_of(each), each, False)
    for each in document.items("exchanges"):
        yield DeclareExchange(
            vhost_of(each),
            each.text("name"),
            each.text("type"),
            each.flag("durable", True),
            each.flag("auto_delete"),
            each.flag("internal"),
            each.table("arguments"),
        )
    for each in document.items("queues"):
        yield DeclareQueue(
            vhost_of(each),
            each.text("name"),
            each.flag("durable", True),
            each.flag("auto_delete"),
            "",
            each.table("arguments"),
        )
    for each in document.items("bindings"):
        kind = each.text("destination_type", QUEUE)
        if kind not in (QUEUE, EXCHANGE):
            raise BadRequest(f"destination_type is {kind!r}; it must be queue or exchange")
        yield Bind(
            vhost_of(each),
            each.text("source"),
            each.text("destination"),
            kind,
            each.text("routing_key", ""),
            each.table("arguments"),
        )


def _parameter_commands(vhost: str, document: Document) -> Iterable[Command]:
    component = document.text("component")
    if component == VHOST_LIMITS:
        for limit, value in document.table("value").items():
            yield _limit(SCOPE_VHOST, vhost, limit, value)
    elif component == OPERATOR_POLICY:
        value = Document({**document.table("value"), "name": document.text("name")})
        yield _policy(vhost, value, True)
    else:
        yield PutParameter(component, vhost, document.text("name"), document.value("value"))


def _policy(vhost: str, document: Document, operator: bool) -> PutPolicy:
    return policy_command(vhost, document.text("name"), document, operator)


def _limit(scope: str, name: str, limit: str, value: object) -> PutLimit:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadRequest(f"limit {limit} of {scope} {name!r} is {value!r}; it must be a number")
    return PutLimit(scope, name, limit, value)


ENDPOINTS: Final = (
    GET("/api/definitions", ADMINISTRATOR, export_all, EXPORTED),
    POST("/api/definitions", ADMINISTRATOR, import_all, DONE, request_schemas.DEFINITIONS),
    PUT("/api/definitions", ADMINISTRATOR, import_all, DONE, request_schemas.DEFINITIONS),
    GET("/api/all-configuration", ADMINISTRATOR, export_all, EXPORTED),
    POST("/api/all-configuration", ADMINISTRATOR, import_all, DONE, request_schemas.DEFINITIONS),
    GET("/api/definitions/{vhost}", ADMINISTRATOR, export_vhost, EXPORTED_OF_VHOST),
    POST(
        "/api/definitions/{vhost}",
        ADMINISTRATOR,
        import_into_vhost,
        DONE,
        request_schemas.DEFINITIONS,
    ),
)
