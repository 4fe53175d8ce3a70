"""The configuration of a broker, from wherever it is given.

Values come from, in rising order of precedence: the defaults below, the TOML file, environment
variables, the command line. `RHIZOME_<SECTION>_<KEY>` sets one key, lists separated by commas:

    RHIZOME_LISTEN_AMQP=127.0.0.1:5672,[::1]:5672  RHIZOME_JOURNAL_FLUSH=interval

Sizes are bytes and times milliseconds once they are read; files and variables always state a unit.
All problems are reported together, as a `ConfigError`.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rhizome.broker.metadata.policy_resolution import make_policy
from rhizome.errors import PreconditionFailed
from rhizome.listen_sockets import is_loopback
from rhizome.security import tls
from rhizome.security.login_service import LoginSettings
from rhizome.security.login_throttle import ThrottleSettings
from rhizome.security.password_hashes import ScryptCost
from rhizome.security.token_keys import TokenKeyError
from rhizome.security.token_provider import check_provider_files
from rhizome.server.config import config_sections
from rhizome.server.config.cluster_section import ClusterSection, cluster_contradictions
from rhizome.server.config.config_fields import (
    ConfigError,
    Given,
    Problem,
    SettingError,
    as_given,
    named,
    read_items,
    read_section,
    unknown_section,
)
from rhizome.server.config.config_text import render_toml
from rhizome.server.config.multi_core_checks import cores_contradictions
from rhizome.server.config.oauth_section import OauthSection, oauth_contradictions

ENVIRONMENT_PREFIX: Final = "RHIZOME_"
COMMAND_LINE: Final = "command line"
CONFIG_BYTES_MAX: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that a broker is told before it starts."""

    broker: config_sections.BrokerSection = field(default_factory=config_sections.BrokerSection)
    listen: config_sections.ListenSection = field(default_factory=config_sections.ListenSection)
    tls: config_sections.TlsSection = field(default_factory=config_sections.TlsSection)
    amqp: config_sections.AmqpSection = field(default_factory=config_sections.AmqpSection)
    limits: config_sections.LimitsSection = field(default_factory=config_sections.LimitsSection)
    http: config_sections.HttpSection = field(default_factory=config_sections.HttpSection)
    memory: config_sections.MemorySection = field(default_factory=config_sections.MemorySection)
    disk: config_sections.DiskSection = field(default_factory=config_sections.DiskSection)
    journal: config_sections.JournalSection = field(default_factory=config_sections.JournalSection)
    security: config_sections.SecuritySection = field(
        default_factory=config_sections.SecuritySection
    )
    oauth: OauthSection = field(default_factory=OauthSection)
    consumers: config_sections.ConsumersSection = field(
        default_factory=config_sections.ConsumersSection
    )
    queues: config_sections.QueuesSection = field(default_factory=config_sections.QueuesSection)
    cluster: ClusterSection = field(default_factory=ClusterSection)
    hooks: config_sections.HooksSection = field(default_factory=config_sections.HooksSection)
    log: config_sections.LogSection = field(default_factory=config_sections.LogSection)
    audit: config_sections.AuditSection = field(default_factory=config_sections.AuditSection)
    vhosts: Mapping[str, config_sections.VhostDefinition] = named(
        config_sections.VhostDefinition,
        'Vhosts of a new store. Default: "/".',
        config_sections.default_vhosts,
    )
    users: Mapping[str, config_sections.UserDefinition] = named(
        config_sections.UserDefinition,
        'Users of a new store. Default: guest with password guest and every permission on "/";'
        " naming any user replaces that.",
        config_sections.default_users,
    )
    policies: Mapping[str, config_sections.PolicyDefinition] = named(
        config_sections.PolicyDefinition, "Policies of a new store. Default: none."
    )

    def audit_file(self) -> Path | None:
        """Where the audit log is written; None: nowhere."""
        path = Path(self.audit.file)
        if not self.audit.file or (self.broker.memory and not path.is_absolute()):
            return None
        return Path(self.broker.data) / path

    def describe(self) -> str:
        """This configuration as a commented TOML file, secrets hidden."""
        return render_toml(self)

    def password_cost(self) -> ScryptCost:
        return ScryptCost(self.security.password_cost)

    def host_names(self) -> frozenset[str]:
        """The names of this broker, and of the hosts where it and its peers listen."""
        listen, cluster = self.listen, self.cluster
        addresses = [*listen.amqp, *listen.tls, *listen.http, *listen.https, *listen.links]
        addresses += [*cluster.advertise, *(each.address for each in cluster.primaries)]
        names = [self.broker.name, *(each.name for each in cluster.primaries)]
        return frozenset(name for name in (*names, *(each.host for each in addresses)) if name)

    def _is_beside_primaries(self) -> bool:
        """Whether the primaries are on this machine, as far as their addresses tell."""
        hosts = [each.address.host for each in self.cluster.primaries if not each.address.path]
        is_told = len(self.cluster.primaries) > 0 and not self.cluster.discover
        return is_told and all(host == "localhost" or is_loopback(host) for host in hosts)

    def login_settings(self) -> LoginSettings:
        security = self.security
        return LoginSettings(
            loopback_users=frozenset(security.loopback_users),
            is_away=self.cluster.edge and not self._is_beside_primaries(),
            external=bool(self.listen.tls) and self.tls.verify_client != tls.VERIFY_NONE,
            external_user_from=security.external_user_from,
            throttle=ThrottleSettings(
                security.login_free_failures,
                security.login_delay_ms,
                security.login_delay_max_ms,
                security.login_forget_ms,
            ),
            password_cost=self.password_cost(),
        )


DEFINITIONS: Final[Mapping[str, type]] = {
    "vhosts": config_sections.VhostDefinition,
    "users": config_sections.UserDefinition,
    "policies": config_sections.PolicyDefinition,
}
SECTIONS: Final[Mapping[str, type]] = {
    "broker": config_sections.BrokerSection,
    "listen": config_sections.ListenSection,
    "tls": config_sections.TlsSection,
    "amqp": config_sections.AmqpSection,
    "limits": config_sections.LimitsSection,
    "http": config_sections.HttpSection,
    "memory": config_sections.MemorySection,
    "disk": config_sections.DiskSection,
    "journal": config_sections.JournalSection,
    "security": config_sections.SecuritySection,
    "oauth": OauthSection,
    "consumers": config_sections.ConsumersSection,
    "queues": config_sections.QueuesSection,
    "cluster": ClusterSection,
    "hooks": config_sections.HooksSection,
    "log": config_sections.LogSection,
    "audit": config_sections.AuditSection,
}


def load_config(
    path: str | Path | None = None,
    overrides: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """Read a configuration, or raise ConfigError with everything that is wrong with it.

    `overrides` maps "section.key" to a value, as TOML or as text; None means not given. `environ`
    is the process's environment unless given.
    """
    problems: list[Problem] = []
    given: dict[str, dict[str, Given]] = {name: {} for name in SECTIONS}
    definitions: dict[str, Given] = {}
    if path is not None:
        _take_file(Path(path), given, definitions, problems)
    _take_environment(os.environ if environ is None else environ, given)
    _take_overrides(overrides or {}, given, problems)
    values = {
        name: read_section(section, given[name], name, problems)
        for name, section in SECTIONS.items()
    }
    values.update(_read_definitions(definitions, problems))
    config = Config(**values)
    problems.extend(_contradictions(config, str(path or "")))
    if problems:
        raise ConfigError(problems)
    return config


def _take_file(
    path: Path,
    given: dict[str, dict[str, Given]],
    definitions: dict[str, Given],
    problems: list[Problem],
) -> None:
    source = str(path)
    for name, value in _parse_file(path, problems).items():
        if name in DEFINITIONS:
            definitions[name] = Given(value, source)
        elif name in given:
            try:
                given[name].update(as_given(value, source))
            except SettingError as error:
                problems.append(Problem(source, name, str(error)))
        else:
            known = (*SECTIONS, *DEFINITIONS)
            problems.append(Problem(source, name, unknown_section(name, known)))


def _parse_file(path: Path, problems: list[Problem]) -> dict[str, Any]:
    try:
        if path.stat().st_size > CONFIG_BYTES_MAX:
            raise ValueError("the file is larger than 16 MiB; is it a configuration?")
        return tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        problems.append(Problem(str(path), "", f"can't be read: {error.strerror}"))
    except UnicodeDecodeError as error:
        problems.append(Problem(str(path), "", f"is not UTF-8 at byte {error.start}"))
    except tomllib.TOMLDecodeError as error:
        problems.append(Problem(str(path), "", f"is not valid TOML: {error}"))
    except ValueError as error:
        problems.append(Problem(str(path), "", str(error)))
    return {}


def _take_environment(environ: Mapping[str, str], given: dict[str, dict[str, Given]]) -> None:
    """Variables of known sections; others that begin with RHIZOME_ have meanings elsewhere."""
    for variable, value in sorted(environ.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        name, _, key = variable.removeprefix(ENVIRONMENT_PREFIX).lower().partition("_")
        if name in SECTIONS and key:
            given[name][key] = Given(value, f"environment variable {variable}", is_text=True)


def _take_overrides(
    overrides: Mapping[str, object], given: dict[str, dict[str, Given]], problems: list[Problem]
) -> None:
    for path, value in overrides.items():
        name, _, key = path.partition(".")
        if name not in SECTIONS:
            problems.append(Problem(COMMAND_LINE, path, unknown_section(name, tuple(SECTIONS))))
        elif value is not None:
            given[name][key] = Given(value, COMMAND_LINE, is_text=isinstance(value, str))


def _read_definitions(definitions: Mapping[str, Given], problems: list[Problem]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, entry in definitions.items():
        try:
            values[name] = read_items(DEFINITIONS[name], entry, name, problems)
        except SettingError as error:
            problems.append(Problem(entry.source, name, str(error)))
    return values


def _contradictions(config: Config, source: str) -> list[Problem]:
    """Values that are valid by themselves and contradict each other."""
    found: list[Problem] = []
    for key in ("tls", "https"):
        if getattr(config.listen, key) and not config.tls.certificate:
            found.append(Problem(source, "tls.certificate", f"is missing; listen.{key} needs it"))
    for key in ("verify_client", "verify_browser"):
        if getattr(config.tls, key) != tls.VERIFY_NONE and not config.tls.ca:
            found.append(Problem(source, "tls.ca", f"is missing; tls.{key} needs it"))
    for key, fault in oauth_contradictions(config.oauth):
        found.append(Problem(source, f"oauth.{key}", fault))
    if config.security.login_delay_ms > config.security.login_delay_max_ms:
        found.append(
            Problem(source, "security.login_delay", "is longer than security.login_delay_max")
        )
    if not (config.listen.amqp or config.listen.tls):
        found.append(Problem(source, "listen", "has no AMQP listener; set listen.amqp"))
    if config.cluster.tls and not (config.tls.certificate and config.tls.ca):
        found.append(Problem(source, "cluster.tls", "needs tls.certificate and tls.ca"))
    for key, fault in cluster_contradictions(
        config.cluster, config.broker.name, config.broker.memory
    ):
        found.append(Problem(source, f"cluster.{key}", fault))
    for key, fault in cores_contradictions(config.broker, config.listen, config.cluster):
        found.append(Problem(source, key, fault))
    for name, user in config.users.items():
        found.extend(_user_contradictions(config, source, f"users.{name}", user))
    for name, policy in config.policies.items():
        found.extend(_policy_problems(config, source, name, policy))
    return found


def _policy_problems(
    config: Config, source: str, name: str, policy: config_sections.PolicyDefinition
) -> list[Problem]:
    """A policy that brokers would refuse is no policy, and a new store would be without it."""
    found: list[Problem] = []
    if policy.vhost not in config.vhosts:
        found.append(Problem(source, f"policies.{name}.vhost", _no_vhost(policy.vhost)))
    try:
        make_policy(policy.command(name))
    except PreconditionFailed as error:
        found.append(Problem(source, f"policies.{name}.definition", error.text))
    return found


def check_files(config: Config, source: str) -> None:
    """Open the files that TLS and access tokens need; raises ConfigError. Nothing of a broker is
    there yet.

    Not part of `load_config`, which also reads the configuration of another machine.
    """
    try:
        check_provider_files(config.oauth.provider_settings())
    except TokenKeyError as error:
        raise ConfigError([Problem(source, "oauth", str(error))]) from error
    if not config.tls.certificate:
        return
    try:
        tls.server_context(config.tls)
        if config.cluster.tls:
            tls.link_context(config.tls)
    except tls.TlsError as error:
        raise ConfigError([Problem(source, "tls", str(error))]) from error


def _user_contradictions(
    config: Config, source: str, path: str, user: config_sections.UserDefinition
) -> list[Problem]:
    found: list[Problem] = []
    if user.password and user.password_hash:
        found.append(Problem(source, path, "has both password and password_hash; keep one"))
    vhosts = [*user.permissions, *(rule.vhost for rule in user.topic_permissions)]
    for vhost in vhosts:
        if vhost not in config.vhosts:
            found.append(Problem(source, f"{path}.permissions", _no_vhost(vhost)))
    return found


def _no_vhost(vhost: str) -> str:
    return f'there is no vhost "{vhost}"; define it as [vhosts."{vhost}"]'
