"""The [oauth] section: one issuer or several, and what contradicts itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rhizome.security.jwks_cache import FetchTimes, KeyLocation
from rhizome.server.config.broker_config import Config, check_files, load_config
from rhizome.server.config.config_fields import ConfigError
from rhizome.server.config.config_reload import compare
from rhizome.server.config.config_text import render_toml
from rhizome.server.config.oauth_section import PROVIDERS_MAX

TWO = """
[oauth]
resource_server = "mq"
user_claims = ["name"]
clock_skew = "5s"
fetch_interval = "1m"
keys_expire = "2h"
[oauth.providers.staff]
issuer = "https://login.example.org/realms/staff"
ca = "/etc/ca.pem"
scope_aliases = { admins = "mq.tag:administrator mq.read:*/*", readers = ["mq.read:*/*"] }
[oauth.providers."batch jobs"]
issuer = "https://jobs.example.org/"
jwks_url = "https://jobs.example.org/keys?v=2"
resource_server = "broker"
user_claims = ["client_id"]
scope_prefix = "rmq:"
[oauth.providers.old]
issuer = "an old one"
keys = ["/etc/old.pem"]
"""


def load(tmp_path: Path, toml: str) -> Config:
    file = tmp_path / "rhizome.toml"
    file.write_text(toml)
    return load_config(file, None, {})


def problems(tmp_path: Path, toml: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, toml)
    return [f"{each.key} {each.text}" for each in caught.value.problems]


def test_without_a_resource_server_there_are_no_providers(tmp_path: Path) -> None:
    assert Config().oauth.provider_settings() == ()
    assert load(tmp_path, '[oauth]\nissuer = "x"').oauth.provider_settings() == ()


def test_one_issuer_is_written_as_ever(tmp_path: Path) -> None:
    toml = '[oauth]\nresource_server = "mq"\nkeys = ["a.pem"]\nissuer = "anything"\n'
    (found,) = load(tmp_path, toml).oauth.provider_settings()
    assert (found.keys, found.issuer, found.skew_s) == (("a.pem",), "anything", 30.0)
    assert found.user_claims == ("sub", "client_id")


def test_one_issuer_may_be_found_by_its_url(tmp_path: Path) -> None:
    for keys in ('issuer = "https://a.example"', 'jwks_url = "https://a.example"'):
        (found,) = load(
            tmp_path, f'[oauth]\nresource_server = "mq"\n{keys}\n'
        ).oauth.provider_settings()
        assert found.keys == ()
        assert "https://a.example" in (found.issuer, found.jwks_url)


def test_several_issuers_have_what_is_common_from_the_section(tmp_path: Path) -> None:
    config = load(tmp_path, TWO)
    staff, jobs, old = config.oauth.provider_settings()
    assert [each.name for each in (staff, jobs, old)] == ["staff", "batch jobs", "old"]
    assert staff.location == KeyLocation(
        "https://login.example.org/realms/staff", "", "/etc/ca.pem"
    )
    assert staff.scope_aliases == {
        "admins": ("mq.tag:administrator", "mq.read:*/*"),
        "readers": ("mq.read:*/*",),
    }
    assert (staff.resource_server, jobs.resource_server) == ("mq", "broker")
    assert (staff.user_claims, jobs.user_claims) == (("name",), ("client_id",))
    assert (staff.scope_prefix, jobs.scope_prefix) == ("", "rmq:")
    assert {each.skew_s for each in (staff, jobs, old)} == {5.0}
    assert staff.times == FetchTimes(60_000, 7_200_000)
    assert config.oauth.key_files == ("/etc/old.pem",)


def test_what_is_shown_reads_back_the_same(tmp_path: Path) -> None:
    config = load(tmp_path, TWO)
    assert load(tmp_path, render_toml(config, hide_secrets=False)) == config


def test_all_of_it_can_change_while_a_broker_runs(tmp_path: Path) -> None:
    changes = compare(Config(), load(tmp_path, TWO))
    assert changes.restart == ()
    assert "oauth.providers" in changes.applied


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ("", "oauth.keys is missing"),
        ('keys = ["a"]\njwks_url = "https://a.example"', "oauth.jwks_url and keys are both set"),
        ('issuer = "somebody"', 'oauth.issuer "somebody" is no URL'),
        ('issuer = "http://a.example"', "oauth.issuer .*plain HTTP"),
        ('issuer = "https://a.example/?a=b"', "oauth.issuer .*has no query"),
        ('issuer = "https://a:b@a.example/"', "oauth.issuer .*no user"),
        ('jwks_url = "http://a.example"', "oauth.jwks_url .*plain HTTP"),
        ("jwks_url = 5", "oauth.jwks_url 5 is no string"),
        ('keys = ["a"]\nfetch_interval = "1s"', "oauth.fetch_interval 1s is below"),
        (
            'keys = ["a"]\nfetch_interval = "1h"\nkeys_expire = "59m"',
            "oauth.keys_expire is shorter",
        ),
        ('keys = ["a"]\nscope_aliases = "x"', "oauth.scope_aliases .* is no table"),
        ('keys = ["a"]\nscope_aliases = { x = [1] }', "oauth.scope_aliases .* no list of strings"),
        ("keys = []\nproviders = 5", "oauth.providers 5 is no table"),
    ],
)
def test_what_is_wrong_with_one_issuer_is_named(tmp_path: Path, keys: str, problem: str) -> None:
    found = problems(tmp_path, f'[oauth]\nresource_server = "mq"\n{keys}\n')
    assert_matches(found, problem)


ISSUER = 'issuer = "https://a.example"'


@pytest.mark.parametrize(
    ("toml", "problem"),
    [
        ('[oauth.providers.a]\nkeys = ["x"]', "oauth.providers.a.issuer is missing"),
        ('[oauth.providers.a]\nissuer = ""', "oauth.providers.a.issuer is missing"),
        (
            f'[oauth.providers.a]\n{ISSUER}\n[oauth.providers."b c"]\n{ISSUER}',
            r'oauth.providers."b c".issuer is that of provider "a" as well',
        ),
        ('[oauth.providers.a]\nissuer = "me"', "oauth.providers.a.issuer .*is no URL"),
        (f'[oauth.providers.a]\n{ISSUER}\nurl = ""', "oauth.providers.a.url unknown key"),
        (
            f'[oauth.providers.a]\n{ISSUER}\njwks_url = "http://a.example"',
            "oauth.providers.a.jwks_url .*plain HTTP",
        ),
        (
            f'[oauth.providers.a]\n{ISSUER}\nkeys = ["x"]\njwks_url = "https://a.example"',
            "oauth.providers.a.jwks_url and keys are both set",
        ),
        (f"issuer = 'x'\n[oauth.providers.a]\n{ISSUER}", "oauth.issuer is for one issuer"),
        (f"keys = ['x']\n[oauth.providers.a]\n{ISSUER}", "oauth.keys is for one issuer"),
        (f"ca = 'x'\n[oauth.providers.a]\n{ISSUER}", "oauth.ca is for one issuer"),
        (
            "\n".join(
                f'[oauth.providers.p{n}]\nissuer = "https://a.example/{n}"'
                for n in range(PROVIDERS_MAX + 1)
            ),
            "oauth.providers are 17; the maximum is 16",
        ),
    ],
)
def test_what_is_wrong_with_several_is_named(tmp_path: Path, toml: str, problem: str) -> None:
    assert_matches(problems(tmp_path, f'[oauth]\nresource_server = "mq"\n{toml}\n'), problem)


def test_each_of_several_needs_an_audience(tmp_path: Path) -> None:
    toml = f"[oauth.providers.a]\n{ISSUER}\n"
    assert_matches(problems(tmp_path, toml), "oauth.providers.a.resource_server is missing")
    load(tmp_path, toml + 'resource_server = "mq"\n')


def test_the_check_of_a_file_opens_what_it_names(tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    for key in (f'keys = ["{missing}"]', f'jwks_url = "https://a.example"\nca = "{missing}"'):
        config = load(tmp_path, f'[oauth]\nresource_server = "mq"\n{key}\n')
        with pytest.raises(ConfigError, match=r"missing\.pem"):
            check_files(config, "rhizome.toml")


def assert_matches(found: list[str], problem: str) -> None:
    assert any(re.match(problem, each) for each in found), found
