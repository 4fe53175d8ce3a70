"""Logins of the console: cookie, guard, ends."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from functools import partial
from typing import Any

import pytest

from rhizome.management.http.console_sessions import (
    IDLE_SECONDS_MAX,
    LOGINS_MAX,
    SECONDS_MAX,
    ConsoleSessions,
)
from rhizome.server.broker_server import upgrade_password
from tests.unit.management.conftest import Answer, Api, Core

SESSION = "/api/rhizome/session"
JSON = {"content-type": "application/json"}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(core: Core) -> Clock:
    clock = Clock()
    core.context.logins = ConsoleSessions(clock)
    return clock


class Browser:
    """Keeps the cookie and the guard."""

    def __init__(self, core: Core, host: str = "127.0.0.1") -> None:
        self.api = Api(core, user="", host=host)
        self.cookie = ""
        self.guard = ""

    def log_in(self, user: str, password: str | None = None, **headers: str) -> Answer:
        document = {"user": user, "password": user if password is None else password}
        sent = {**JSON, **headers}
        answer = self.api.ask("POST", SESSION, json.dumps(document).encode(), sent)
        if answer.status == 201:
            self.cookie = answer.headers["set-cookie"].partition(";")[0]
            self.guard = answer.json["guard"]
        return answer

    def ask(self, method: str, target: str, guard: bool = True, **headers: str) -> Answer:
        sent = {"cookie": self.cookie, **headers}
        if guard:
            sent["x-rhizome-console"] = self.guard
        return self.api.ask(method, target, b"{}", sent)


@pytest.fixture
def browser(core: Core, clock: Clock) -> Browser:
    return Browser(core)


def test_a_login_says_who_it_is_and_what_they_may_do(browser: Browser) -> None:
    answer = browser.log_in("maker")
    assert answer.status == 201
    assert answer.json["user"] == "maker"
    assert answer.json["may"] == ["management", "policymaker"]
    again = browser.ask("GET", SESSION)
    assert again.json["guard"] == browser.guard
    assert browser.ask("GET", "/api/whoami").json["name"] == "maker"


def test_scripts_and_other_sites_do_not_get_the_cookie(browser: Browser) -> None:
    cookie = browser.log_in("guest").headers["set-cookie"].lower()
    assert cookie.startswith("rhizome_15672=")
    assert {part.strip() for part in cookie.split(";")[1:]} == {
        "httponly",
        "path=/",
        "samesite=strict",
    }


@pytest.mark.parametrize("password", ["", "wrong", "guest "])
def test_a_wrong_password_gets_no_cookie_and_no_dialog(browser: Browser, password: str) -> None:
    answer = browser.log_in("guest", password)
    assert answer.status == 401
    assert "set-cookie" not in answer.headers
    assert "www-authenticate" not in answer.headers


def test_a_user_without_a_tag_can_not_log_in(browser: Browser) -> None:
    assert browser.log_in("nobody").status == 401


def test_guest_logs_in_from_this_machine_only(core: Core, clock: Clock) -> None:
    assert Browser(core, "192.0.2.1").log_in("guest").status == 401
    assert Browser(core, "192.0.2.1").log_in("manager").status == 201


def test_changes_need_the_guard(browser: Browser) -> None:
    browser.log_in("guest")
    refused = browser.ask("PUT", "/api/queues/%2F/q", guard=False)
    assert (refused.status, refused.json["error"]) == (403, "forbidden")
    browser.guard += "x"
    assert browser.ask("PUT", "/api/queues/%2F/q").status == 403
    browser.guard = browser.guard[:-1]
    assert browser.ask("PUT", "/api/queues/%2F/q").status == 201
    assert browser.ask("GET", "/api/queues/%2F/q", guard=False).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://evil.example", "host": "127.0.0.1:15672"},
        {"origin": "null", "host": "127.0.0.1:15672"},
    ],
)
def test_pages_of_other_sites_can_neither_log_in_nor_change_anything(
    browser: Browser, headers: dict[str, str]
) -> None:
    assert browser.log_in("guest", **headers).status == 403
    browser.log_in("guest")
    assert browser.ask("PUT", "/api/queues/%2F/q", **headers).status == 403
    assert Api(browser.api.core).ask("PUT", "/api/queues/%2F/q", b"{}", headers).status == 403


def test_a_form_can_not_log_in(browser: Browser) -> None:
    document = b'{"user":"guest","password":"guest","x":"="}'
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = browser.api.ask("POST", SESSION, document, {"content-type": kind})
        assert answer.status == 400


def test_a_login_ends_when_nobody_touches_the_console(browser: Browser, clock: Clock) -> None:
    browser.log_in("guest")
    clock.now += IDLE_SECONDS_MAX - 1
    assert browser.ask("GET", "/api/whoami").status == 200, "that was a touch"
    clock.now += IDLE_SECONDS_MAX - 1
    assert browser.ask("GET", "/api/whoami", **{"x-rhizome-idle": "1"}).status == 200
    clock.now += 2
    refused = browser.ask("GET", "/api/whoami", **{"x-rhizome-idle": "1"})
    assert refused.status == 401, "what the console asks by itself is no touch"
    assert "www-authenticate" not in refused.headers


def test_a_login_ends_after_a_days_work(browser: Browser, clock: Clock) -> None:
    browser.log_in("guest")
    for _ in range(SECONDS_MAX // 600):
        clock.now += 600
        assert browser.ask("GET", "/api/whoami").status == 200
    clock.now += 1
    assert browser.ask("GET", "/api/whoami").status == 401


def test_logging_out_ends_the_login_everywhere(browser: Browser) -> None:
    browser.log_in("guest")
    assert browser.ask("DELETE", SESSION, guard=False).status == 403
    assert browser.ask("DELETE", SESSION).status == 204
    assert browser.ask("GET", SESSION).status == 401
    assert browser.ask("GET", "/api/whoami").status == 401


def test_another_password_ends_the_login(browser: Browser, api: Api) -> None:
    browser.log_in("manager")
    api.put("users", "manager", password="other", tags="management")
    assert browser.ask("GET", "/api/whoami").status == 401


def test_a_tag_that_is_taken_away_counts_at_once(browser: Browser, api: Api) -> None:
    browser.log_in("monitor")
    assert browser.ask("GET", "/api/nodes").status == 200
    record = api.get("users", "monitor").json
    hashed: dict[str, Any] = {name: record[name] for name in ("password_hash", "hashing_algorithm")}
    api.put("users", "monitor", tags="management", **hashed)
    assert browser.ask("GET", "/api/nodes").status == 401
    assert browser.ask("GET", "/api/whoami").status == 200


def test_a_user_that_is_deleted_is_out(browser: Browser, api: Api) -> None:
    browser.log_in("manager")
    api.delete("users", "manager")
    assert browser.ask("GET", "/api/whoami").status == 401


def test_there_are_never_more_logins_than_the_maximum() -> None:
    clock = Clock()
    logins = ConsoleSessions(clock)
    first, _ = logins.begin("u0", "")
    second, _ = logins.begin("u1", "")
    for number in range(2, LOGINS_MAX):
        clock.now += 0.001
        logins.begin(f"u{number}", "")
    logins.find(first, touch=True)
    logins.begin("one more", "")
    assert len(logins) == LOGINS_MAX
    assert logins.find(first, touch=False) is not None
    assert logins.find(second, touch=False) is None, "the one that was idle for longest"


def test_a_user_who_logs_in_again_and_again_ends_logins_of_its_own_alone() -> None:
    clock = Clock()
    logins = ConsoleSessions(clock)
    secret, _ = logins.begin("boss", "")
    newest = ""
    for _ in range(LOGINS_MAX + 10):
        clock.now += 1
        newest, _ = logins.begin("low", "")
    assert len(logins) == LOGINS_MAX
    assert logins.find(secret, touch=False) is not None
    assert logins.find(newest, touch=False) is not None


def test_basic_authentication_goes_before_a_cookie(browser: Browser, core: Core) -> None:
    browser.log_in("guest")
    answer = Api(core, "monitor").ask("GET", "/api/whoami", headers={"cookie": browser.cookie})
    assert answer.json["name"] == "monitor"


def test_a_login_ends_with_another_password_and_not_with_the_same_one(
    browser: Browser, core: Core
) -> None:
    browser.log_in("maker")
    admin = Api(core, "guest")
    for password in ("maker", "maker"):
        before = core.broker.state.users["maker"].password_hash
        answer = admin.ask(
            "PUT",
            "/api/users/maker",
            json.dumps({"password": password, "tags": "policymaker"}).encode(),
        )
        assert answer.status == 204
        assert browser.ask("GET", SESSION).status == 200
    assert core.broker.state.users["maker"].password_hash == before, "it stays"
    document = {"password": "another", "tags": "policymaker"}
    admin.ask("PUT", "/api/users/maker", json.dumps(document).encode())
    assert browser.ask("GET", SESSION).status == 401


def test_an_imported_hash_that_was_replaced_may_be_imported_again(core: Core) -> None:
    admin = Api(core, "guest")
    rabbit = b64encode(b"salt" + hashlib.sha256(b"saltright").digest()).decode()
    document = json.dumps({"password_hash": rabbit, "tags": "management"}).encode()
    assert admin.ask("PUT", "/api/users/imported", document).status == 201
    core.context.login.upgrade = partial(upgrade_password, core.broker)
    assert Api(core, "imported").ask("GET", "/api/whoami", password="right").status == 200
    better = core.broker.state.users["imported"].password_hash
    assert better.startswith("$scrypt$")
    assert admin.ask("PUT", "/api/users/imported", document).status == 204
    assert core.broker.state.users["imported"].password_hash == better
    upgrade_password(core.broker, "imported", "an older one", "$scrypt$")
    assert core.broker.state.users["imported"].password_hash == better, "it is another one by now"
