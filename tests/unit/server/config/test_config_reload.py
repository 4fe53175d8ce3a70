"""What of a configuration can change while a broker runs."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from rhizome.security.tls import TlsError
from rhizome.server.config.broker_config import SECTIONS, Config, load_config
from rhizome.server.config.config_fields import SettingError, key_of
from rhizome.server.config.config_reload import (
    EVERY_KEY,
    RELOADABLE,
    Reloader,
    WatchedFiles,
    compare,
)


def config_of(**overrides: object) -> Config:
    return load_config(None, {key.replace("__", "."): v for key, v in overrides.items()}, {})


class Kept:
    """What a reloader was asked to do."""

    def __init__(self, config: Config, read: Callable[[], Config]) -> None:
        self.applied: list[Config] = []
        self.loaded: list[str] = []
        self.noted: list[str] = []
        self.fault = ""
        self.wrong_setting = ""
        self.reloader = Reloader(config, read, self.applied.append, self.load, self.noted.append)

    def load(self, config: Config) -> None:
        if self.fault:
            raise TlsError(self.fault)
        if self.wrong_setting:
            raise SettingError(self.wrong_setting)
        self.loaded.append(config.tls.certificate)


def test_every_key_that_can_change_exists() -> None:
    for name, keys in RELOADABLE.items():
        known = {key_of(described) for described in fields(SECTIONS[name])}
        assert keys == EVERY_KEY or keys <= known, name


def test_what_can_change_is_told_from_what_takes_a_restart() -> None:
    old = config_of()
    new = config_of(log__level="debug", limits__connections_max=7, broker__name="other")
    changes = compare(old, new)
    assert changes.applied == ("limits.connections_max", "log.level")
    assert changes.restart == ("broker.name",)
    assert changes.config.limits.connections_max == 7
    assert changes.config.broker.name == old.broker.name, "the rest is as it was"
    # Asked again, it still differs, and is said again.
    assert compare(changes.config, new).restart == ("broker.name",)


def test_definitions_of_a_new_store_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "rhizome.toml"
    file.write_text('[users.app]\npassword = "secret-of-app"\n')
    kept = Kept(config_of(), lambda: load_config(file, {}, {}))
    with caplog.at_level(logging.INFO):
        kept.reloader.reload()
    assert "[users] are for a new store only" in caplog.text
    assert "secret-of-app" not in caplog.text


def test_a_configuration_with_a_problem_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "rhizome.toml"
    file.write_text('[log]\nlevel = "debug"\n[limits]\nconnections_max = "many"\n')
    kept = Kept(config_of(), lambda: load_config(file, {}, {}))
    kept.reloader.reload()
    assert kept.applied == []
    assert "left as it was" in caplog.text
    assert "limits.connections_max" in caplog.text


def test_files_are_watched_as_they_come_and_go(tmp_path: Path) -> None:
    file = tmp_path / "certificate.pem"
    watched = WatchedFiles((str(file), ""))
    assert not watched.have_changed()
    file.write_text("one")
    assert watched.have_changed()
    assert not watched.have_changed()
    other = tmp_path / "other.pem"
    other.write_text("two")
    os.utime(other, ns=(file.stat().st_mtime_ns, file.stat().st_mtime_ns))
    other.replace(file)  # same size, same time, another file: how renewals arrive
    assert watched.have_changed()


def test_certificates_follow_their_files_and_stay_if_they_are_bad(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "certificate.pem"
    file.write_text("one")
    config = config_of(tls__certificate=str(file))
    kept = Kept(config, lambda: config)
    kept.reloader.check_files()
    assert kept.loaded == []
    kept.fault = "the key does not fit"
    file.write_text("half of two")
    kept.reloader.check_files()
    assert kept.loaded == []
    assert "certificates and keys are left as they were: the key does not fit" in caplog.text
    kept.fault = ""
    kept.reloader.check_files()
    assert kept.loaded == [], "nothing new"
    file.write_text("all of two")
    kept.reloader.check_files()
    assert kept.loaded == [str(file)]
    assert kept.noted == ["certificates and keys"]


def test_a_key_file_that_has_changed_is_read_without_being_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "cluster.key"
    file.write_text("a key that all brokers share")
    file.chmod(0o600)
    config = config_of(cluster__key_file=str(file), cluster__demand_key=True)
    kept = Kept(config, lambda: config)
    kept.reloader.check_files()
    assert kept.loaded == []
    file.write_text("another key that all brokers share")
    kept.reloader.check_files()
    assert kept.loaded == [""]
    kept.wrong_setting = "holds a key of 5 bytes"
    file.write_text("short")
    kept.reloader.check_files()
    assert "left as they were: holds a key of 5 bytes" in caplog.text


def test_the_key_and_what_is_demanded_take_no_restart() -> None:
    old = config_of(cluster__key="a key that all brokers share", cluster__demand_key=True)
    new = config_of(cluster__key="another key of all brokers", cluster__demand_key=True)
    assert compare(old, new).applied == ("cluster.key",)
    assert compare(old, config_of()).restart == ()
