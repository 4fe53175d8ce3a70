"""The [oauth] section: whose access tokens count, and where the keys of their issuers are.

One issuer is described in the section itself, several in [oauth.providers.NAME]. Each has its keys
in files (`keys`), at a URL (`jwks_url`), or where its discovery document says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rhizome.security.issuer_urls import check_issuer, parse_url
from rhizome.security.jwks_cache import FetchTimes
from rhizome.security.token_provider import ONLY_PROVIDER, ProviderSettings
from rhizome.server.config.config_fields import (
    Setting,
    SettingError,
    checked,
    duration,
    join_path,
    named,
    strings,
    text,
    texts,
    toml,
)

PROVIDERS_MAX: Final = 16
"""As many issuers at most, since each has a thread while its keys are fetched."""

_ALIASES_EXAMPLE: Final = '{ admins = ["rhizome.tag:administrator", "rhizome.read:*/*"] }'


def _check_url(url: str) -> None:
    if url:
        parse_url(url)


def _parse_aliases(value: object) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict):
        raise SettingError(f"{toml(value)} is no table; write one such as {_ALIASES_EXAMPLE}")
    return {
        str(alias): tuple(meant.split()) if isinstance(meant, str) else strings(meant)
        for alias, meant in value.items()
    }


def _aliases(doc: str) -> Any:
    setting = Setting(doc, "table", _parse_aliases, toml)
    return field(default_factory=dict, metadata={"setting": setting})


@dataclass(frozen=True, slots=True)
class ProviderDefinition:
    """[oauth.providers.NAME]: one of several issuers, whose keys verify its own tokens only.

    What is empty here is as in [oauth], but for `keys`, `jwks_url` and `ca`.
    """

    issuer: str = text("", "Its URL as tokens have it (iss), every character of it; required.")
    jwks_url: str = checked(text("", "As in [oauth]."), _check_url)
    keys: tuple[str, ...] = texts((), "As in [oauth].")
    ca: str = text("", "As in [oauth].")
    resource_server: str = text("", "Name of this service among its tokens (aud).")
    scope_prefix: str = text("", "What its scopes begin with.")
    user_claims: tuple[str, ...] = texts((), "Claims that name the user.")
    scope_claims: tuple[str, ...] = texts((), "Claims that hold scopes.")
    scope_aliases: Mapping[str, tuple[str, ...]] = _aliases(
        "Scopes of its own, and what they mean."
    )


@dataclass(frozen=True, slots=True)
class OauthSection:
    """Access tokens (OAuth 2, JWT) as passwords; see the guide to security.

    Needs the extra `oauth`: pip install "rhizomemq[oauth]".
    """

    resource_server: str = text(
        "", "Name of this service: the audience of tokens. Empty: tokens are not accepted."
    )
    keys: tuple[str, ...] = texts(
        (), "Files with the issuer's keys: PEM, or a JSON Web Key Set. Read again when they change."
    )
    issuer: str = text(
        "",
        "The only issuer (iss) that is accepted; empty: any with a right key. Without `keys` and"
        " `jwks_url` its keys are found through ISSUER/.well-known/openid-configuration.",
    )
    jwks_url: str = checked(
        text("", "Where the issuer publishes its keys (a JSON Web Key Set), fetched from there."),
        _check_url,
    )
    ca: str = text(
        "",
        "File with the authorities that the issuer's certificate may be of, when its keys are"
        " fetched; empty: those of the system.",
    )
    scope_prefix: str = text("", "What scopes begin with; empty: resource_server and a dot.")
    user_claims: tuple[str, ...] = texts(
        ("sub", "client_id"), "Claims that name the user; the first that is there counts."
    )
    scope_claims: tuple[str, ...] = texts(
        ("scope",), 'Claims that hold scopes; dots lead into objects: "realm_access.roles".'
    )
    scope_aliases: Mapping[str, tuple[str, ...]] = _aliases(
        f"Scopes of the issuer's own, and the scopes that each means: {_ALIASES_EXAMPLE}."
    )
    clock_skew_ms: int = duration(
        "30s", "By how much the issuer's clock may differ.", maximum="10m"
    )
    fetch_interval_ms: int = duration(
        "10m", "How often keys are fetched from URLs.", minimum="10s", maximum="1d"
    )
    keys_expire_ms: int = duration(
        "1d",
        "Time after the last success for which fetched keys count while their issuer is away.",
        minimum="1m",
        maximum="365d",
    )
    providers: Mapping[str, ProviderDefinition] = named(
        ProviderDefinition, "Several issuers instead of one, by name."
    )

    @property
    def key_files(self) -> tuple[str, ...]:
        """The files that are read again when they change."""
        return (*self.keys, *(path for each in self.providers.values() for path in each.keys))

    def provider_settings(self) -> tuple[ProviderSettings, ...]:
        """The issuers whose tokens count; none without a resource server."""
        if self.providers:
            return tuple(self._of(name, each) for name, each in self.providers.items())
        return (self._single(),) if self.resource_server else ()

    def _single(self) -> ProviderSettings:
        return ProviderSettings(
            name=ONLY_PROVIDER,
            resource_server=self.resource_server,
            issuer=self.issuer,
            keys=self.keys,
            jwks_url=self.jwks_url,
            ca=self.ca,
            scope_prefix=self.scope_prefix,
            user_claims=self.user_claims,
            scope_claims=self.scope_claims,
            scope_aliases=self.scope_aliases,
            skew_s=self.clock_skew_ms / 1000,
            times=FetchTimes(self.fetch_interval_ms, self.keys_expire_ms),
        )

    def _of(self, name: str, provider: ProviderDefinition) -> ProviderSettings:
        return ProviderSettings(
            name=name,
            resource_server=provider.resource_server or self.resource_server,
            issuer=provider.issuer,
            keys=provider.keys,
            jwks_url=provider.jwks_url,
            ca=provider.ca,
            scope_prefix=provider.scope_prefix or self.scope_prefix,
            user_claims=provider.user_claims or self.user_claims,
            scope_claims=provider.scope_claims or self.scope_claims,
            scope_aliases=provider.scope_aliases or self.scope_aliases,
            skew_s=self.clock_skew_ms / 1000,
            times=FetchTimes(self.fetch_interval_ms, self.keys_expire_ms),
        )


def oauth_contradictions(section: OauthSection) -> Iterator[tuple[str, str]]:
    """Keys and what is wrong with them, of values that are valid by themselves."""
    if section.keys_expire_ms < section.fetch_interval_ms:
        yield "keys_expire", "is shorter than fetch_interval: keys would end between two fetches"
    if not section.providers:
        if section.resource_server:
            yield from _source_faults("", section.keys, section.jwks_url, section.issuer)
        return
    if len(section.providers) > PROVIDERS_MAX:
        yield "providers", f"are {len(section.providers)}; the maximum is {PROVIDERS_MAX}"
    for key in ("keys", "issuer", "jwks_url", "ca"):
        if getattr(section, key):
            yield key, "is for one issuer: move it into a table of providers, or remove these"
    yield from _providers_faults(section)


def _providers_faults(section: OauthSection) -> Iterator[tuple[str, str]]:
    names_of: dict[str, str] = {}
    for name, each in section.providers.items():
        path = join_path("providers", name)
        if not each.issuer:
            yield (
                join_path(path, "issuer"),
                "is missing: nothing else tells its tokens from those of others",
            )
            continue
        earlier = names_of.setdefault(each.issuer, name)
        if earlier != name:
            yield join_path(path, "issuer"), f'is that of provider "{earlier}" as well; keep one'
        if not (each.resource_server or section.resource_server):
            yield join_path(path, "resource_server"), "is missing, here and in [oauth]"
        yield from _source_faults(path, each.keys, each.jwks_url, each.issuer)


def _source_faults(
    path: str, keys: tuple[str, ...], jwks_url: str, issuer: str
) -> Iterator[tuple[str, str]]:
    """What is wrong with where the keys of one issuer are."""
    if keys and jwks_url:
        yield join_path(path, "jwks_url"), "and keys are both set; keep one"
    elif not (keys or jwks_url or issuer):
        yield (
            join_path(path, "keys"),
            "is missing; set keys, jwks_url or issuer to where its keys are",
        )
    elif not (keys or jwks_url):
        try:
            check_issuer(issuer)
        except ValueError as error:
            yield (
                join_path(path, "issuer"),
                f"{error} (it is fetched from; or set keys or jwks_url)",
            )
