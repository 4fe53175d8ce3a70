"""`rhizome bridge --parameters`: what it reads from the HTTP API, and what it does without one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from typer.testing import Result

from rhizome.bridge.shovel_settings import OwnCluster, Parameter
from rhizome.bridge.shovel_supervisor import (
    ParameterListing,
    ParametersRefused,
    ParametersUnavailable,
)
from rhizome.cli.commands.messages.shovel_parameter_reader import ParameterReader
from rhizome.cli.http_api.api_client import Api, endpoint
from tests.unit.cli.conftest import ScriptedApi, scripted_api

VALUE = {"src-uri": "amqp://a", "dest-uri": "amqp://b", "src-queue": "q", "dest-queue": "r"}
LIST = "GET /api/parameters/shovel"
CLUSTER = "GET /api/rhizome/cluster"


def row(name: str, **more: object) -> dict[str, object]:
    return {"component": "shovel", "vhost": "/", "name": name, "value": {**VALUE, **more}}


def reader(*apis: ScriptedApi) -> ParameterReader:
    return ParameterReader(Api(endpoint(",".join(api.address for api in apis)), 5))


def read(one: ParameterReader) -> ParameterListing:
    return asyncio.run(one.read())


def test_the_parameters_are_listed_and_the_cluster_is_asked_only_if_one_means_it(
    api: ScriptedApi,
) -> None:
    api.answer(LIST, [row("one")])
    one = reader(api)
    assert read(one) == ParameterListing((Parameter("/", "one", VALUE),))
    assert [each.target for each in api.requests] == ["/api/parameters/shovel"]
    api.answer(LIST, [row("one"), row("two", **{"src-uri": "amqp://"})])
    brokers = [{"role": "primary", "addresses": ["amqp://0.0.0.0:5672"]}]
    api.answer(CLUSTER, {"cluster": {"name": "grove"}, "brokers": brokers})
    assert read(one).own == OwnCluster("grove", ("amqp://127.0.0.1:5672",))


def test_a_cluster_that_does_not_tell_its_addresses_still_has_its_parameters(
    api: ScriptedApi,
) -> None:
    api.answer(LIST, [row("two", **{"src-uri": "amqp://"})])
    found = read(reader(api))
    assert (len(found.parameters), found.own) == (1, OwnCluster())


def test_the_next_broker_tells_when_one_has_died(api: ScriptedApi) -> None:
    api.answer(LIST, [row("one")])
    with ExitStack() as stack:
        other = stack.enter_context(scripted_api())
        other.answer(LIST, [row("other")])
        one = reader(other, api)
        assert read(one).parameters[0].name == "other"
        stack.close()
        assert read(one).parameters[0].name == "one"


def test_a_silence_may_pass_and_a_refusal_does_not() -> None:
    with scripted_api() as api:
        one = reader(api)
        api.answer(LIST, {"error": "not_authorized", "reason": "Login failed"}, 401)
        with pytest.raises(ParametersRefused, match="refused user 'guest'"):
            read(one)
    with pytest.raises(ParametersUnavailable, match="start a broker"):
        read(one)


def test_a_refused_login_ends_the_command(api: ScriptedApi, rhizome: Callable[..., Result]) -> None:
    api.answer(LIST, {"error": "not_authorized", "reason": "Login failed"}, 401)
    done = rhizome("bridge", "--parameters", "--http", api.address, "--user", "ann", "-p", "s3cret")
    assert done.exit_code == 1
    assert "refused user 'ann'" in done.stderr
    assert "s3cret" not in done.output
