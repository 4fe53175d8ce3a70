"""/api/policies, /api/operator-policies, /api/parameters, /api/global-parameters."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from rhizome.broker.metadata.metadata_commands import (
    CLUSTER_NAME,
    GLOBAL,
    DeleteParameter,
    DeletePolicy,
    PutParameter,
    PutPolicy,
)
from rhizome.broker.metadata.new_queue_arguments import DEFAULTS_COMPONENT
from rhizome.broker.metadata.queue_policy_user_records import Policy
from rhizome.broker.metadata.vhost import VHost
from rhizome.management.api_context import Context
from rhizome.management.errors import BadRequest, ObjectNotFound
from rhizome.management.http.api_call import Call
from rhizome.management.http.auth import ADMINISTRATOR, MANAGEMENT, PARAMETERS, POLICYMAKER, SECRETS
from rhizome.management.http.endpoint import DELETE, GET, PUT, Endpoint, Handler
from rhizome.management.http.json_body import Document
from rhizome.management.http.json_responses import Row, answer, created, done, listed
from rhizome.management.openapi import rabbitmq_schemas, request_schemas
from rhizome.management.openapi.endpoint_shapes import DONE, MADE, row_of, rows_of
from rhizome.management.rabbitmq_api.federation_upstreams import check_federation
from rhizome.management.rabbitmq_api.json_rows import policy_row
from rhizome.management.state_proposals import propose
from rhizome.regex import check_pattern
from rhizome.shovel_parameters import COMPONENT as SHOVEL
from rhizome.shovel_parameters import InvalidShovel, hide, parse_shovel, unhide

VHOST_LIMITS: Final = "vhost-limits"
OPERATOR_POLICY: Final = "operator_policy"
SET_ELSEWHERE: Final = {
    VHOST_LIMITS: "set limits at /api/vhost-limits",
    OPERATOR_POLICY: "set operator policies at /api/operator-policies",
    "policy": "set policies at /api/policies",
    DEFAULTS_COMPONENT: "set the default type of queues at /api/vhosts",
}
"""Components of RabbitMQ's definitions files that are not parameters here."""


# ---- policies -----------------------------------------------------------------------------------


def policy_command(vhost: str, name: str, document: Document, operator: bool) -> PutPolicy:
    pattern = document.text("pattern")
    check_pattern(pattern)
    definition = document.table("definition")
    if not definition:
        raise BadRequest("a policy needs a definition with at least one setting")
    return PutPolicy(
        vhost,
        name,
        pattern,
        definition,
        document.text("apply-to", "queues" if operator else "all"),
        document.number("priority", 0),
        operator,
    )


def _of(vhost: VHost, operator: bool) -> dict[str, Policy]:
    return vhost.operator_policies if operator else vhost.policies


def _policy(call: Call, operator: bool) -> Policy:
    policy = _of(call.vhost(), operator).get(call.name())
    if policy is None:
        raise ObjectNotFound
    return policy


def _list_policies(operator: bool) -> Handler:
    async def handle(call: Call) -> Response:
        found = [policy for vhost in call.vhosts() for policy in _of(vhost, operator).values()]
        return await listed(call, found, policy_row)

    return handle


def _show_policy(operator: bool) -> Handler:
    async def handle(call: Call) -> Response:
        return answer(policy_row(_policy(call, operator)))

    return handle


def _put_policy(operator: bool) -> Handler:
    async def handle(call: Call) -> Response:
        vhost = call.vhost()
        is_new = call.name() not in _of(vhost, operator)
        document = await call.document()
        await propose(call.context, policy_command(vhost.name, call.name(), document, operator))
        return created(is_new)

    return handle


def _delete_policy(operator: bool) -> Handler:
    async def handle(call: Call) -> Response:
        vhost = call.vhost()
        policy = _policy(call, operator)
        await propose(call.context, DeletePolicy(vhost.name, policy.name, operator))
        return done()

    return handle


def _policy_endpoints(path: str, operator: bool, tag: str) -> tuple[Endpoint, ...]:
    one = path + "/{vhost}/{name}"
    return (
        GET(
            path,
            MANAGEMENT,
            _list_policies(operator),
            rows_of(rabbitmq_schemas.POLICY),
            about="List policies",
        ),
        GET(
            path + "/{vhost}",
            MANAGEMENT,
            _list_policies(operator),
            rows_of(rabbitmq_schemas.POLICY),
            about="List policies of a vhost",
        ),
        GET(
            one, tag, _show_policy(operator), row_of(rabbitmq_schemas.POLICY), about="Show a policy"
        ),
        PUT(one, tag, _put_policy(operator), MADE, request_schemas.POLICY, "Set a policy"),
        DELETE(one, tag, _delete_policy(operator), DONE, about="Delete a policy"),
    )


# ---- parameters ---------------------------------------------------------------------------------


def _parameters(call: Call) -> list[tuple[str, str, str]]:
    """The keys of the parameters that the path and the caller's rights select."""
    component = call.request.path_params.get("component")
    vhosts = {vhost.name for vhost in call.vhosts()}
    return [
        key
        for key in call.context.broker.state.parameters
        if key[1] in vhosts and component in (None, key[0])
    ]


def parameter_row(key: tuple[str, str, str], value: object) -> Row:
    component, vhost, name = key
    return {"component": component, "vhost": vhost, "name": name, "value": value}


def _shown(call: Call, value: object) -> object:
    """A value as the caller may see it: only callers that need them see passwords in URIs."""
    return value if call.caller.may(SECRETS) else hide(value)


async def list_parameters(call: Call) -> Response:
    parameters = call.context.broker.state.parameters
    found = [(key, parameters[key]) for key in _parameters(call)]
    return await listed(call, found, lambda each: parameter_row(each[0], _shown(call, each[1])))


def _key(call: Call) -> tuple[str, str, str]:
    return (call.name("component"), call.vhost().name, call.name())


async def show_parameter(call: Call) -> Response:
    key = _key(call)
    if key not in call.context.broker.state.parameters:
        raise ObjectNotFound
    return answer(parameter_row(key, _shown(call, call.context.broker.state.parameters[key])))


async def put_parameter(call: Call) -> Response:
    key = _key(call)
    is_new = key not in call.context.broker.state.parameters
    command = PutParameter(*key, (await call.document()).value("value"))
    command = with_secrets(call.context, command)
    _check_parameter(*key, command.value)
    await propose(call.context, command)
    return created(is_new)


def with_secrets(context: Context, command: PutParameter) -> PutParameter:
    """The same with the stored passwords in place of masks, as sent back by a caller who may not
    see them."""
    key = (command.component, command.vhost, command.name)
    try:
        value = unhide(command.value, context.broker.state.parameters.get(key))
    except InvalidShovel as error:
        raise BadRequest(f"parameter '{command.name}': {error}") from None
    return PutParameter(*key, value)


def _check_parameter(component: str, vhost: str, name: str, value: object) -> None:
    """Refuse what no bridge could follow; definitions are imported as they are. Refuse what a
    definitions file would take for something else, which only administrators may set."""
    if component in SET_ELSEWHERE:
        raise BadRequest(f"'{component}' is no component of parameters: {SET_ELSEWHERE[component]}")
    if component == SHOVEL:
        try:
            parse_shovel(vhost, name, value)
        except InvalidShovel as error:
            raise BadRequest(str(error)) from None
    check_federation(component, name, value)


async def delete_parameter(call: Call) -> Response:
    key = _key(call)
    if key not in call.context.broker.state.parameters:
        raise ObjectNotFound
    await propose(call.context, DeleteParameter(*key))
    return done()


# ---- parameters of the whole cluster ------------------------------------------------------------


def global_parameters(call: Call) -> dict[str, object]:
    """By name; the cluster's name is one of them, as in RabbitMQ: the configured one if none was
    set."""
    found: dict[str, object] = {CLUSTER_NAME: call.context.broker.cluster_name()}
    for (component, vhost, name), value in call.context.broker.state.parameters.items():
        if component == GLOBAL and vhost == "":
            found[name] = value
    return found


async def list_global_parameters(call: Call) -> Response:
    found = list(global_parameters(call).items())
    return await listed(call, found, lambda each: {"name": each[0], "value": _shown(call, each[1])})


async def show_global_parameter(call: Call) -> Response:
    found = global_parameters(call)
    if call.name() not in found:
        raise ObjectNotFound
    return answer({"name": call.name(), "value": _shown(call, found[call.name()])})


async def put_global_parameter(call: Call) -> Response:
    is_new = call.name() not in global_parameters(call)
    document = await call.document()
    is_name = call.name() == CLUSTER_NAME
    value = document.text("value") if is_name else document.value("value")
    command = PutParameter(GLOBAL, "", call.name(), value)
    await propose(call.context, with_secrets(call.context, command))
    return created(is_new)


async def show_cluster_name(call: Call) -> Response:
    return answer({"name": call.context.broker.cluster_name()})


async def put_cluster_name(call: Call) -> Response:
    name = (await call.document()).text("name")
    await propose(call.context, PutParameter(GLOBAL, "", CLUSTER_NAME, name))
    return done()


async def delete_global_parameter(call: Call) -> Response:
    if (GLOBAL, "", call.name()) not in call.context.broker.state.parameters:
        raise ObjectNotFound
    await propose(call.context, DeleteParameter(GLOBAL, "", call.name()))
    return done()


_PARAMETER: Final = "/api/parameters/{component}/{vhost}/{name}"

ENDPOINTS: Final = (
    *_policy_endpoints("/api/policies", False, POLICYMAKER),
    *_policy_endpoints("/api/operator-policies", True, ADMINISTRATOR),
    GET("/api/parameters", PARAMETERS, list_parameters, rows_of(rabbitmq_schemas.PARAMETER)),
    GET(
        "/api/parameters/{component}",
        PARAMETERS,
        list_parameters,
        rows_of(rabbitmq_schemas.PARAMETER),
    ),
    GET(
        "/api/parameters/{component}/{vhost}",
        PARAMETERS,
        list_parameters,
        rows_of(rabbitmq_schemas.PARAMETER),
    ),
    GET(_PARAMETER, PARAMETERS, show_parameter, row_of(rabbitmq_schemas.PARAMETER)),
    PUT(_PARAMETER, POLICYMAKER, put_parameter, MADE, request_schemas.PARAMETER),
    DELETE(_PARAMETER, POLICYMAKER, delete_parameter, DONE),
    GET("/api/cluster-name", MANAGEMENT, show_cluster_name, row_of(rabbitmq_schemas.NAME)),
    PUT("/api/cluster-name", ADMINISTRATOR, put_cluster_name, DONE, request_schemas.NAME),
    GET(
        "/api/global-parameters",
        POLICYMAKER,
        list_global_parameters,
        rows_of(rabbitmq_schemas.GLOBAL_PARAMETER),
    ),
    GET(
        "/api/global-parameters/{name}",
        POLICYMAKER,
        show_global_parameter,
        row_of(rabbitmq_schemas.GLOBAL_PARAMETER),
    ),
    PUT(
        "/api/global-parameters/{name}",
        POLICYMAKER,
        put_global_parameter,
        MADE,
        request_schemas.PARAMETER,
    ),
    DELETE("/api/global-parameters/{name}", POLICYMAKER, delete_global_parameter, DONE),
)
