"""Configuration reload: what of a configuration can change while the broker runs.

On SIGHUP the configuration is read again. Changeable settings are applied, the others are named in
the log, and a configuration with a problem changes nothing. Certificates and keys are also read
again when their files have changed, so a renewal needs no signal.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from rhizome.security.tls import TlsError
from rhizome.security.token_keys import TokenKeyError
from rhizome.server.config.broker_config import DEFINITIONS, SECTIONS, Config
from rhizome.server.config.config_fields import ConfigError, SettingError, key_of

logger = logging.getLogger("rhizome.server")

EVERY_KEY: Final = frozenset({"*"})
RELOADABLE: Final[Mapping[str, frozenset[str]]] = {
    "broker": frozenset({"slow_turn"}),
    "tls": frozenset({"certificate", "key", "ca"}),
    "limits": frozenset(
        {
            "channel_max",
            "frame_max",
            "heartbeat",
            "handshake_timeout",
            "connections_max",
            "channels_max",
            "queues_max",
            "transaction_parts_max",
            "leases_max",
            "leased_messages_max",
            "leased_bytes_max",
            "stream_readers_max",
            "stream_reader_expires",
        }
    ),
    "http": EVERY_KEY,
    "journal": frozenset({"read_rate", "pins_max", "pin_idle", "pin_lifetime", "pinned_bytes_max"}),
    "memory": EVERY_KEY,
    "disk": EVERY_KEY,
    "security": EVERY_KEY,
    "oauth": EVERY_KEY,
    "consumers": EVERY_KEY,
    "queues": EVERY_KEY,
    "hooks": EVERY_KEY,
    "cluster": frozenset({"key", "key_file", "demand_key", "link_macs", "insecure_links"}),
    "log": EVERY_KEY,
    "audit": EVERY_KEY,
}
"""The changeable keys, by section. The others are about sockets, files or agreements that exist
already."""


@dataclass(frozen=True, slots=True)
class Changes:
    """How a new configuration differs. ``config`` is the old one with what can be applied."""

    config: Config
    applied: tuple[str, ...]
    restart: tuple[str, ...]
    """The changes that need a restart."""
    definitions: tuple[str, ...]
    """The changes that matter for a new store only."""


def compare(old: Config, new: Config) -> Changes:
    applied: list[str] = []
    restart: list[str] = []
    sections: dict[str, Any] = {}
    for name in SECTIONS:
        before, after = getattr(old, name), getattr(new, name)
        changed: dict[str, Any] = {}
        for described in fields(before):
            value = getattr(after, described.name)
            if value == getattr(before, described.name):
                continue
            key = key_of(described)
            if RELOADABLE.get(name, frozenset()) & {key, *EVERY_KEY}:
                changed[described.name] = value
                applied.append(f"{name}.{key}")
            else:
                restart.append(f"{name}.{key}")
        sections[name] = replace(before, **changed)
    definitions = [name for name in DEFINITIONS if getattr(old, name) != getattr(new, name)]
    return Changes(replace(old, **sections), tuple(applied), tuple(restart), tuple(definitions))


class WatchedFiles:
    """Tells whether files have changed. A missing file is not an error."""

    def __init__(self, paths: tuple[str, ...]) -> None:
        self._paths = paths
        self._seen = self._look()

    def have_changed(self) -> bool:
        """Whether files have changed since the last call, or since the beginning."""
        now = self._look()
        changed, self._seen = now != self._seen, now
        return changed

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_signature(path) for path in self._paths if path]


def _signature(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class Reloader:
    """Keeps the configuration that is in effect.

    ``apply`` gets every new one. ``load_certificates`` reads the files that it names, and raises
    TlsError, TokenKeyError or SettingError if they can't be used: then what was loaded before stays
    in use. ``note`` is told what was read again.
    """

    def __init__(
        self,
        config: Config,
        read: Callable[[], Config] | None,
        apply: Callable[[Config], None],
        load_certificates: Callable[[Config], None],
        note: Callable[[str], None],
    ) -> None:
        self.config = config
        self._read = read
        self._apply = apply
        self._load_certificates = load_certificates
        self._note = note
        self._watched = self._watch()

    def reload(self) -> None:
        """SIGHUP."""
        if self._read is not None:
            try:
                changes = compare(self.config, self._read())
            except ConfigError as error:
                for problem in error.problems:
                    logger.error("the configuration is left as it was: %s", problem)
                return
            self.config = changes.config
            self._apply(changes.config)
            _report(changes)
            self._note("configuration: " + (", ".join(changes.applied) or "nothing new"))
        self._certificates("on SIGHUP")

    def check_files(self) -> None:
        """Called about once a second."""
        if self._watched.have_changed():
            self._certificates("since the files have changed")

    def _certificates(self, why: str) -> None:
        self._watched = self._watch()
        try:
            self._load_certificates(self.config)
        except (TlsError, TokenKeyError, SettingError) as error:
            logger.error("certificates and keys are left as they were: %s", error)
        else:
            logger.info("certificates and keys read again %s", why)
            self._note("certificates and keys")

    def _watch(self) -> WatchedFiles:
        section = self.config.tls
        files = (section.certificate, section.key, section.ca, self.config.cluster.key_file)
        return WatchedFiles((*files, *self.config.oauth.key_files))


def _report(changes: Changes) -> None:
    applied = ", ".join(changes.applied) or "nothing"
    logger.info("configuration read again; changed: %s", applied)
    if changes.restart:
        logger.warning("takes effect with a restart: %s", ", ".join(changes.restart))
    if changes.definitions:
        logger.warning(
            "[%s] are for a new store only; change them with commands or the HTTP API",
            "], [".join(changes.definitions),
        )
