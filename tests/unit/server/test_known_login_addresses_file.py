"""Where users are known survives a restart, in a file that nobody else can read."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from rhizome.security.known_login_addresses import KNOWN_MAX, KnownLogins, network_of
from rhizome.server.config.broker_config import Config
from rhizome.server.config.config_sections import BrokerSection
from rhizome.server.known_login_addresses_file import (
    FILE_BYTES_MAX,
    FILE_NAME,
    KnownLoginsFile,
    load_known,
    save_known,
)


def config(directory: Path) -> Config:
    return Config(broker=BrokerSection(data=str(directory)))


async def saved(file: KnownLoginsFile) -> None:
    file.save_aside(asyncio.get_running_loop())
    await file.close()


def test_what_is_known_is_known_after_a_restart(tmp_path: Path) -> None:
    file = KnownLoginsFile(config(tmp_path), KnownLogins())
    pairs = [("app", "10.0.0.1"), ("app", "2001:db8::/64"), ("\udcff odd\n", "10.0.0.2")]
    for pair in pairs:
        file.known.add(*pair)
    asyncio.run(saved(file))
    again = KnownLoginsFile(config(tmp_path), KnownLogins())
    assert again.known.pairs() == pairs
    assert not again.known.changed
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_it_is_written_only_when_something_new_is_known_and_not_at_every_login(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        file = KnownLoginsFile(config(tmp_path), KnownLogins())
        file.save_aside(loop)
        assert not (tmp_path / FILE_NAME).exists()
        file.known.add("app", "10.0.0.1")
        await saved(file)
        (tmp_path / FILE_NAME).unlink()
        file.known.add("app", "10.0.0.1")
        await saved(file)
        assert not (tmp_path / FILE_NAME).exists(), "nothing is new"
        file.known.add("app", "10.0.0.2")
        file.save_aside(loop)
        assert file.known.changed, "it was written a moment ago"
        await file.close()
        assert (tmp_path / FILE_NAME).exists(), "a broker that stops writes it at once"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b'{"version": 2, "known": []}', b"{" * 100_000, b"\xff", b'{"version": 1}'],
)
def test_a_file_that_cannot_be_used_is_told_and_done_without(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(data)
    known = KnownLogins()
    assert load_known(path, known)
    assert len(known) == 0


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(b" " * (FILE_BYTES_MAX + 1))
    assert "bytes" in load_known(path, KnownLogins())


def test_a_broker_that_keeps_nothing_on_disk_keeps_this_in_memory(tmp_path: Path) -> None:
    broker = BrokerSection(data=str(tmp_path), memory=True)
    file = KnownLoginsFile(Config(broker=broker), KnownLogins())
    file.known.add("app", "10.0.0.1")
    asyncio.run(saved(file))
    assert list(tmp_path.iterdir()) == []


def test_the_fullest_file_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    name = "\udcff" * 251
    pairs = [(f"{number:04d}{name}", "255.255.255.255") for number in range(KNOWN_MAX)]
    save_known(path, pairs)
    known = KnownLogins()
    assert load_known(path, known) == ""
    assert len(known) == KNOWN_MAX
    assert path.stat().st_size < FILE_BYTES_MAX
    assert json.loads(path.read_text())["version"] == 1


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::1"),
        ("unix", "unix"),
        ("", ""),
    ],
)
def test_what_an_address_counts_as(address: str, network: str) -> None:
    assert network_of(address) == network
