"""Permission patterns mean what they mean to RabbitMQ."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from rhizome.broker.access.auth_interface import AccessEpoch
from rhizome.regex import check_pattern
from rhizome.security.permissions import UserIdentity, expand_topic_pattern, matches


@dataclass(frozen=True)
class User:
    password_hash: str = ""
    kind: str = "application"
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Permission:
    configure: str = ""
    write: str = ""
    read: str = ""


@dataclass
class Records:
    users: dict[str, User] = field(default_factory=dict)
    permissions: dict[tuple[str, str], Permission] = field(default_factory=dict)
    topic_permissions: dict[tuple[str, str, str], Permission] = field(default_factory=dict)


def identity(records: Records, epoch: AccessEpoch | None = None) -> UserIdentity:
    return UserIdentity("app", "application", (), records, epoch or AccessEpoch())


@pytest.mark.parametrize(
    ("pattern", "name", "permitted"),
    [
        (".*", "anything", True),
        (".*", "amq.default", True),
        ("", "anything", False),
        ("", "amq.default", False),
        ("^$", "anything", False),
        ("^$", "amq.default", False),
        ("orders", "orders", True),
        ("orders", "old-orders-2", True),
        ("^orders", "old-orders", False),
        ("^orders$", "orders", True),
        ("^orders$", "orders2", False),
        ("^orders-.*", "orders-", True),
        ("^(a|b)$", "b", True),
        ("^(a|b)$", "ab", False),
        ("^amq\\.gen.*$", "amq.gen-Xyz", True),
        ("^amq\\.gen.*$", "amqxgen", False),
        ("^ORDERS", "orders", False),
        ("(?i)^ORDERS", "orders", True),
        ("^\\w+$", "größe", False),
        ("^\\w+$", "groesse", True),
        ("^orders$", "orders\n", True),
    ],
)
def test_pattern_permits(pattern: str, name: str, permitted: bool) -> None:
    check_pattern(pattern)
    assert matches(pattern, name) is permitted


@pytest.mark.parametrize("pattern", ["(", "(a)\\1", "(?<!x)a", "(?:a{1000}){1000}"])
def test_stored_pattern_that_is_no_good_permits_nothing(pattern: str) -> None:
    assert not matches(pattern, "(")
    assert not matches(pattern, "aa")


def test_each_operation_has_its_pattern() -> None:
    records = Records({"app": User()}, {("app", "/"): Permission("^c", "^w", "^r")})
    app = identity(records)
    assert [app.may_configure("/", n) for n in ("c1", "w1", "r1")] == [True, False, False]
    assert [app.may_write("/", n) for n in ("c1", "w1", "r1")] == [False, True, False]
    assert [app.may_read("/", n) for n in ("c1", "w1", "r1")] == [False, False, True]


def test_default_exchange_needs_a_pattern_that_matches_its_alias() -> None:
    records = Records({"app": User()}, {("app", "/"): Permission(write="^amq\\.default$")})
    assert identity(records).may_write("/", "")
    records.permissions[("app", "/")] = Permission(write="^$")
    assert not identity(records).may_write("/", "")


def test_vhost_without_a_record_is_closed() -> None:
    records = Records({"app": User()}, {("app", "/"): Permission(".*", ".*", ".*")})
    app = identity(records)
    assert app.may_enter("/")
    assert not app.may_enter("/other")
    assert not app.may_read("/other", "q")


def test_empty_patterns_still_open_the_vhost() -> None:
    records = Records({"app": User()}, {("app", "/"): Permission()})
    assert identity(records).may_enter("/")


def test_deleted_user_may_do_nothing_more() -> None:
    epoch = AccessEpoch()
    records = Records({"app": User()}, {("app", "/"): Permission(".*", ".*", ".*")})
    app = identity(records, epoch)
    assert app.may_read("/", "q")
    del records.users["app"]
    epoch.advance()
    assert not app.may_read("/", "q")
    assert not app.may_enter("/")


def test_topic_rule_restricts_its_exchange_only() -> None:
    records = Records(
        {"app": User()},
        {("app", "/"): Permission(".*", ".*", ".*")},
        {("app", "/", "amq.topic"): Permission(write="^eu\\.", read="")},
    )
    app = identity(records)
    assert app.has_topic_rules("/")
    assert not app.has_topic_rules("/other")
    assert app.may_write_topic("/", "amq.topic", "eu.orders")
    assert not app.may_write_topic("/", "amq.topic", "us.orders")
    assert not app.may_read_topic("/", "amq.topic", "eu.#")
    assert app.may_write_topic("/", "other", "us.orders")


def test_topic_variables_are_the_connections_own() -> None:
    records = Records(
        {"app": User()},
        {},
        {("app", "/", "t"): Permission(write="^{username}\\.{vhost}\\.{client_id}$")},
    )
    with_client = UserIdentity("app", "application", (), records, AccessEpoch(), "c1")
    assert with_client.may_write_topic("/", "t", "app./.c1")
    assert not with_client.may_write_topic("/", "t", "bob./.c1")
    assert identity(records).may_write_topic("/", "t", "app./.{client_id}")


def test_topic_variables_are_literal_text() -> None:
    pattern = expand_topic_pattern("^{username}$", {"username": ".*"})
    assert matches(pattern, ".*")
    assert not matches(pattern, "anything")
