"""Which names a request may call a broker by."""

from __future__ import annotations

import pytest

from rhizome.security.allowed_host_names import host_of, is_allowed_host, is_host_pattern

OWN = ("b1", "broker.example.org")
ALLOWED = ("Queues.Example.org.", "*.svc.cluster.local")


@pytest.mark.parametrize(
    ("header", "host"),
    [
        ("localhost", "localhost"),
        ("LocalHost:15672", "localhost"),
        ("broker.example.org.:443", "broker.example.org"),
        ("127.0.0.1:15672", "127.0.0.1"),
        ("[::1]:15672", "::1"),
        ("[fe80::1]", "fe80::1"),
        ("", ""),
        ("a:b", ""),
        ("a:1:2", ""),
        ("[::1", ""),
        ("evil.example@127.0.0.1", "evil.example@127.0.0.1"),
    ],
)
def test_host_is_read_without_its_port(header: str, host: str) -> None:
    assert host_of(header) == host


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "rhizome",
        "app.localhost",
        "127.0.0.1",
        "10.1.2.3",
        "::1",
        "broker.example.org",
        "queues.example.org",
        "rhizome.prod.svc.cluster.local",
    ],
)
def test_names_that_nobody_else_can_own_are_allowed(host: str) -> None:
    assert is_allowed_host(host, OWN, ALLOWED)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "broker.example.org.evil.example",
        "evil-broker.example.org",
        "svc.cluster.local",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil.example@127.0.0.1",
        "",
    ],
)
def test_other_names_are_not(host: str) -> None:
    assert not is_allowed_host(host, OWN, ALLOWED)
    assert is_allowed_host(host, OWN, ("*",))


def test_names_of_the_broker_are_no_patterns() -> None:
    assert not is_allowed_host("evil.example", ("*", "*.example"), ())


@pytest.mark.parametrize("pattern", ["*", "a", "a.b", "*.a.b", "A-1.b.", "_x.b"])
def test_patterns_that_can_be_configured(pattern: str) -> None:
    assert is_host_pattern(pattern)


@pytest.mark.parametrize("pattern", ["", "http://a", "a:1", "a/b", "a.*", "**", "*a", "a b", "-"])
def test_patterns_that_can_not(pattern: str) -> None:
    assert not is_host_pattern(pattern)
