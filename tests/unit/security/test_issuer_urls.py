"""URLs that keys may come from."""

from __future__ import annotations

import pytest

from rhizome.security.issuer_urls import IssuerUrlError, check_issuer, parse_url


@pytest.mark.parametrize(
    "url",
    [
        "https://login.example.org",
        "https://login.example.org:8443/realms/a?p=b",
        "https://[2001:db8::1]/keys",
        "HTTPS://login.example.org/",
        "http://127.0.0.1:8080/keys",
        "http://127.9.9.9/",
        "http://[::1]:8080/keys",
        "http://localhost/keys",
        "https://a.example/" + "x" * 2030,
    ],
)
def test_https_and_loopback_are_fine(url: str) -> None:
    assert parse_url(url).hostname


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://login.example.org/", "plain HTTP"),
        ("http://127.0.0.1.example.org/", "plain HTTP"),
        ("http://localhost.example.org/", "plain HTTP"),
        ("http://10.0.0.1/", "plain HTTP"),
        ("http://[2001:db8::1]/", "plain HTTP"),
        ("http://0.0.0.0/", "plain HTTP"),
        ("ftp://login.example.org/", "is no URL"),
        ("file:///etc/passwd", "is no URL"),
        ("//login.example.org/", "is no URL"),
        ("login.example.org", "is no URL"),
        ("https://", "is no URL"),
        ("https:///path", "is no URL"),
        ("https://[::1", "is no URL"),
        ("https://a.example:port/", "is no URL"),
        ("https://a.example:99999/", "is no URL"),
        ("", "printable ASCII"),
        ("https://a.example/a b", "printable ASCII"),
        ("https://a.example/\n", "printable ASCII"),
        ("https://a.example/\r\nHost: b", "printable ASCII"),
        ("https://bücher.example/", "printable ASCII"),
        ("https://a.example/" + "x" * 2031, "printable ASCII"),
        ("https://user@a.example/", "no user"),
        ("https://user:secret@a.example/", "no user"),
        ("https://@a.example/", "no user"),
        ("https://a.example/#keys", "fragment"),
    ],
)
def test_others_are_refused_with_the_reason(url: str, reason: str) -> None:
    with pytest.raises(IssuerUrlError, match=reason) as refused:
        parse_url(url)
    assert "secret" not in str(refused.value)


def test_an_issuer_has_no_query() -> None:
    check_issuer("https://a.example/realm/")
    with pytest.raises(IssuerUrlError, match="has no query"):
        check_issuer("https://a.example/?realm=b")
