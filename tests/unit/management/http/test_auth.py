"""Who may ask what, and how refusals look."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rhizome.security.token_login import TokenAuthenticator
from rhizome.security.token_provider import ProviderSettings
from tests.unit.management.conftest import Api, Core
from tests.unit.security.token_issuer import Issuer


def test_nobody_gets_in_without_logging_in(core: Core) -> None:
    answer = Api(core, user="").get("overview")
    assert answer.status == 401
    assert answer.json == {"error": "not_authorized", "reason": "Login failed"}
    assert answer.headers["www-authenticate"].startswith("Basic realm=")


@pytest.mark.parametrize("header", ["Bearer abc", "Basic !!!", "Basic Z3Vlc3Q=", "Basic"])
def test_a_header_that_is_no_basic_login_is_refused(core: Core, header: str) -> None:
    answer = Api(core, user="").ask("GET", "/api/overview", headers={"authorization": header})
    assert answer.status == 401


def test_a_wrong_password_says_no_more_than_an_unknown_user(api: Api, core: Core) -> None:
    wrong = api.ask("GET", "/api/overview", password="wrong")
    unknown = Api(core, user="who").get("overview")
    assert (wrong.status, wrong.body) == (unknown.status, unknown.body) == (401, unknown.body)


def test_guest_may_not_come_from_elsewhere(core: Core) -> None:
    assert Api(core, "guest", host="10.1.2.3").get("overview").status == 401
    assert Api(core, "monitor", host="10.1.2.3").get("overview").status == 200


def test_guessing_is_throttled(core: Core) -> None:
    guesser = Api(core, "monitor", host="10.1.2.3")
    for _ in range(30):
        assert guesser.ask("GET", "/api/whoami", password="wrong").status == 401
    assert guesser.get("whoami").status == 401, "the right password comes too late"
    assert Api(core, "guest").get("whoami").status == 200, "others are not held up"


def test_bad_bearers_hold_up_no_good_one_from_elsewhere(core: Core, tmp_path: Path) -> None:
    issuer = Issuer()
    core.context.login.bearers = TokenAuthenticator(
        [ProviderSettings("mq", (issuer.write_keys(tmp_path),))]
    )
    claims = {"sub": "alice", "aud": "mq", "exp": time.time() + 600, "scope": "mq.tag:management"}
    good = issuer.token(**claims).decode()
    forged = issuer.token(**{**claims, "aud": "other"}).decode()

    def status(token: str, host: str) -> int:
        header = {"authorization": f"Bearer {token}"}
        return Api(core, user="", host=host).ask("GET", "/api/whoami", headers=header).status

    for token in (forged, "garbage"):
        assert [status(token, "10.6.6.6") for _ in range(15)] == [401] * 15
    assert status(good, "10.6.6.6") == 401, "too many bad ones came from there"
    assert status(good, "10.1.2.3") == 200


# path, method -> the users that are let in
MATRIX = [
    ("GET", "/api/overview", {"guest", "monitor", "maker", "manager", "stranger"}),
    ("GET", "/api/queues/%2F", {"guest", "monitor", "maker", "manager"}),
    ("GET", "/api/vhosts/%2F", {"guest"}),
    ("GET", "/api/nodes", {"guest", "monitor"}),
    ("GET", "/api/users", {"guest"}),
    ("GET", "/api/definitions", {"guest"}),
    ("GET", "/api/parameters", {"guest", "maker"}),
    ("GET", "/api/policies/%2F", {"guest", "monitor", "maker", "manager"}),
    ("PUT", "/api/policies/%2F/p", {"guest", "maker"}),
    ("PUT", "/api/operator-policies/%2F/p", {"guest"}),
    ("PUT", "/api/vhosts/v", {"guest"}),
    ("PUT", "/api/users/u", {"guest"}),
    ("PUT", "/api/queues/%2F/q", {"guest", "monitor", "maker", "manager"}),
]


@pytest.mark.parametrize(("method", "target", "allowed"), MATRIX)
@pytest.mark.parametrize("user", ["guest", "monitor", "maker", "manager", "nobody", "stranger"])
def test_tags_open_what_they_open_in_rabbitmq(
    core: Core, user: str, method: str, target: str, allowed: set[str]
) -> None:
    answer = Api(core, user).ask(method, target)
    assert (answer.status != 401) == (user in allowed), answer.body


def test_a_user_without_access_to_a_vhost_sees_nothing_of_it(core: Core, api: Api) -> None:
    api.put("queues", "/", "secret")
    stranger = Api(core, "stranger")
    assert stranger.get("queues").json == []
    assert stranger.get("vhosts").json == []
    assert stranger.get("queues", "/", "secret").status == 401


def test_an_administrator_looks_at_every_vhost_but_needs_permissions_to_use_it(
    core: Core, api: Api
) -> None:
    api.put("vhosts", "v")
    api.put("queues", "v", "q")
    api.delete("permissions", "v", "guest")
    assert [row["name"] for row in api.get("queues").json] == ["q"]
    assert api.get("queues", "v", "q").status == 200
    assert api.put("queues", "v", "other").status == 401
    assert api.delete("queues", "v", "q").status == 401
    assert api.put("policies", "v", "p", pattern="q", definition={"expires": 1}).status == 201
    monitor = Api(core, "monitor")
    assert {row["name"] for row in monitor.get("vhosts").json} == {"/", "v"}
    assert monitor.get("queues").json == []
    assert monitor.get("queues", "v", "q").status == 401


def test_permissions_are_those_of_amqp(core: Core, api: Api) -> None:
    api.put("permissions", "/", "manager", configure="^mine", write="^mine", read="^mine")
    manager = Api(core, "manager")
    assert manager.put("queues", "/", "mine").status == 201
    refused = manager.put("queues", "/", "yours")
    assert refused.status == 401
    assert "access to queue 'yours' in vhost '/' refused for user 'manager'" in refused.reason
    assert manager.delete("queues", "/", "mine").status == 204
    publish = manager.post(
        "exchanges", "/", "amq.topic", "publish", routing_key="k", payload="p", properties={}
    )
    assert publish.status == 401


def test_a_page_of_another_site_may_not_change_anything(api: Api) -> None:
    site = {"sec-fetch-site": "cross-site"}
    assert api.ask("PUT", "/api/queues/%2F/q", headers=site).status == 403
    assert api.ask("GET", "/api/queues", headers=site).json == []


def test_unknown_paths_and_methods(api: Api) -> None:
    missing = api.get("nothing")
    assert missing.status == 404
    assert missing.json == {"error": "Object Not Found", "reason": "Not Found"}
    wrong = api.ask("PATCH", "/api/queues")
    assert (wrong.status, wrong.headers["allow"]) == (405, "GET")
    assert api.get("queues", "/", "missing").status == 404
    assert api.get("queues", "no-such-vhost").status == 404


def test_bodies_are_bounded(api: Api) -> None:
    large = b'{"arguments": {"x": "' + b"a" * (1 << 20) + b'"}}'
    assert api.ask("PUT", "/api/queues/%2F/q", large).status == 413
    announced = {"content-length": str(401 << 20)}
    assert api.ask("POST", "/api/definitions", b"{}", headers=announced).status == 413


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"durable": "perhaps"}',
        b'{"arguments": {"x-message-ttl": NaN}}',
        b'{"arguments": {"x": 1000000000000000000000000000000}}',
        b'{"arguments": [1]}',
    ],
)
def test_a_body_that_makes_no_sense_is_a_bad_request(api: Api, body: bytes) -> None:
    answer = api.ask("PUT", "/api/queues/%2F/q", body)
    assert (answer.status, answer.json["error"]) == (400, "bad_request"), answer.body
    assert api.get("queues").json == []


def test_names_may_hold_slashes_and_any_bytes(api: Api) -> None:
    name = "a/b%2Fc?d #\u00e9"
    assert api.put("queues", "/", name, durable=True).status == 201
    assert api.get("queues", "/", name).json["name"] == name
    assert api.ask("PUT", "/api/queues/%2F/%ff%fe").status == 201
    assert api.ask("GET", "/api/queues/%2F/%ff%fe").status == 200
    assert api.ask("GET", "/api/queues/").status == 200, "a slash at the end is nothing"
