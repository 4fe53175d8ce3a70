"""Bodies that nobody sends by mistake: none is answered with 500, stored, or kept for long.

Every endpoint that takes a body gets each of them, and afterwards the definitions can be exported
and imported again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

import pytest

from rhizome.broker.metadata.metadata_commands import DeclareQueue
from rhizome.management.asgi_application import ENDPOINTS
from rhizome.management.http.api_call import BODY_BYTES_MAX, HELD_BYTES_MAX
from rhizome.management.http.endpoint import Endpoint
from rhizome.management.state_proposals import propose
from tests.unit.management.conftest import Api, Core

TAKING: Final = [endpoint for endpoint in ENDPOINTS if endpoint.takes is not None]
NAMES: Final = {"vhost": "%2F", "source": "amq.direct", "destination": "q", "name": "q"}
WRONG: Final = [
    "1e999",
    "-1e999",
    "NaN",
    "Infinity",
    "9" * 5000,
    "18446744073709551615",
    "-9223372036854775808",
    "1.5",
    '"\\ud800"',
    '"\\udcff"',
    '"\\u0000"',
    '"--5"',
    '"\\u0663"',
    "[]",
    "[[]]",
    "{}",
    '{"": {"\\udfff": 1}}',
    '{"a": 1, "a": 2}',
    '{"x": 1e999}',
    "null",
    "true",
    "[" * 500 + "]" * 500,
]
NEVER_STORED: Final = ("1e999", "-1e999", "NaN", "Infinity", "9" * 5000, '"\\ud800"')


def target_of(endpoint: Endpoint) -> str:
    path = endpoint.path
    for name in path.split("{")[1:]:
        key = name.partition("}")[0]
        path = path.replace("{" + key + "}", NAMES.get(key, "x"))
    return path


def bodies_of(endpoint: Endpoint, wrong: str) -> list[bytes]:
    """The wrong value in place of the body, of each field, and deep inside of each."""
    assert endpoint.takes is not None
    found = [wrong]
    for name in endpoint.takes["properties"]:
        fields = {**right_fields(endpoint), name: None}
        text = json.dumps(fields)
        marked = f"{json.dumps(name)}: null"
        for value in (wrong, f'{{"x": {wrong}}}', f"[{wrong}]", f'[{{"name": {wrong}}}]'):
            found.append(text.replace(marked, f"{json.dumps(name)}: {value}"))
    return [text.encode() for text in found]


def right_fields(endpoint: Endpoint) -> dict[str, object]:
    assert endpoint.takes is not None
    right: dict[str, object] = {
        "pattern": "^x$",
        "definition": {"max-length": 10},
        "routing_key": "q",
        "payload": "x",
        "tags": "",
        "ackmode": "ack_requeue_true",
        "to": "q",
        "users": [],
    }
    return {name: right.get(name, "x") for name in endpoint.takes["required"]}


@pytest.mark.parametrize("endpoint", TAKING, ids=lambda each: f"{each.method} {each.path}")
def test_no_body_is_answered_with_an_error_of_the_broker(
    core: Core, api: Api, endpoint: Endpoint
) -> None:
    api.put("queues", "/", "q")
    for wrong in WRONG:
        for body in bodies_of(endpoint, wrong):
            answer = api.ask(endpoint.method, target_of(endpoint), body)
            assert answer.status != 500, (body[:200], answer.body)
            if wrong in NEVER_STORED:
                assert answer.status >= 400, (body[:200], answer.body)
                assert answer.reason
    exported = api.get("definitions")
    assert exported.status == 200
    json.loads(exported.body, parse_constant=pytest.fail)
    assert api.ask("POST", "/api/definitions", exported.body).status == 204, exported.body
    assert core.context.body_bytes == 0


@pytest.mark.parametrize("path", ["/api/parameters/c/%2F/p", "/api/global-parameters/p"])
def test_a_number_without_end_is_refused_with_its_place(api: Api, path: str) -> None:
    refused = api.ask("PUT", path, b'{"value": {"limits": [1, 1e999]}}')
    assert refused.status == 400
    assert refused.reason.startswith("value.limits[1] is a number")


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
def test_numbers_that_json_has_not_are_exported_as_null(
    core: Core, api: Api, number: float
) -> None:
    """They may have come by AMQP, or before they were refused."""
    arguments: dict[str, object] = {"x-a": number, "x-b": [1, number], "x-c": {"y": number}}
    core.run(propose(core.context, DeclareQueue("/", "q", True, False, "", arguments)))
    exported = api.get("definitions")
    found = json.loads(exported.body, parse_constant=pytest.fail)["queues"][0]
    assert found["arguments"] == {"x-a": None, "x-b": [1, None], "x-c": {"y": None}}
    for path in ("/api/queues", "/api/queues/%2F/q", "/api/queues?page=1&sort=arguments.x-a"):
        json.loads(api.ask("GET", path).body, parse_constant=pytest.fail)
    api.delete("queues", "/", "q")
    assert api.ask("POST", "/api/definitions", exported.body).status == 204


def test_bodies_have_a_maximum(api: Api) -> None:
    body = b'{"value": "' + b"a" * BODY_BYTES_MAX + b'"}'
    refused = api.ask("PUT", "/api/parameters/c/%2F/p", body)
    assert refused.status == 413
    assert str(BODY_BYTES_MAX) in refused.reason


def test_bodies_of_all_requests_together_have_one_too(core: Core, api: Api) -> None:
    core.context.body_bytes = HELD_BYTES_MAX
    refused = api.ask("PUT", "/api/parameters/c/%2F/p", b'{"value": 1}')
    assert refused.status == 503
    core.context.body_bytes = 0
    assert api.ask("PUT", "/api/parameters/c/%2F/p", b'{"value": 1}').status == 201
    assert core.context.body_bytes == 0


def test_a_list_with_very_many_columns_is_refused(as_user: Callable[[str], Api]) -> None:
    answer = as_user("manager").get("queues", query="columns=" + ",".join(["a.b"] * 1000))
    assert answer.status == 400
    assert "columns" in answer.reason
