"""The Debian package and the systemd unit.

dpkg itself installs, upgrades, removes and purges the package, into a directory of the test
(`dpkg --root`): its scripts then run outside of a chroot, with DPKG_ROOT. That package has a small
program in /opt/rhizome. The one of `make deb`, with the environment of a wheel, is installed into a
Debian made by debootstrap, and its broker serves there as the unit's user (`make check-deb`). The
unit is checked by `systemd-analyze verify`; a systemd that runs it is not to be had in a test."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from rhizome.client.blocking import Connection
from rhizome.server.config.broker_config import load_config
from rhizome.server.config.cluster_section import read_key_file
from rhizome.testing.free_ports import free_port

ROOT = Path(__file__).resolve().parents[3]
WHY_NOT = next(
    (f"{each} is missing" for each in ("dpkg", "dpkg-deb", "useradd") if not shutil.which(each)),
    "" if os.geteuid() == 0 else "dpkg installs as root only",
)
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
DIVERSIONS = ("status", "available", "diversions", "statoverride")


@pytest.fixture(scope="module")
def tool() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "tools"))
    import build_deb

    yield build_deb
    sys.path.remove(str(ROOT / "tools"))


def make_package(tool: ModuleType, directory: Path, version: str) -> Path:
    """The package with a program that tells its version."""
    stage = directory / f"stage-{version}"
    program = stage / "opt/rhizome/bin/rhizome"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho {version}\n")
    program.chmod(0o755)
    made: Path = tool.build(stage, directory / "made", version, "all", "python3")
    return made


class Host:
    """A directory with the parts of a Debian that packages change."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for each in ("var/lib/dpkg/info", "var/lib/dpkg/updates", "etc/systemd/system"):
            (root / each).mkdir(parents=True)
        for each in DIVERSIONS:
            (root / "var/lib/dpkg" / each).touch()
        for each, text in {"passwd": "root:x:0:0::/root:/bin/sh\n", "group": "root:x:0:\n"}.items():
            (root / "etc" / each).write_text(text)
        (root / "etc/shadow").touch()
        (root / "etc/gshadow").touch()

    def dpkg(self, *arguments: object) -> str:
        options = ["--force-script-chrootless", "--force-depends", "--force-confold"]
        done = subprocess.run(
            ["dpkg", f"--root={self.root}", *options, *[str(each) for each in arguments]],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def mode(self, path: str) -> tuple[str, int, int]:
        found = (self.root / path).stat()
        return oct(stat.S_IMODE(found.st_mode)), found.st_uid, found.st_gid

    def user(self) -> tuple[int, int]:
        text = (self.root / "etc/passwd").read_text()
        match = re.search(r"^rhizome:[^:]*:(\d+):(\d+):", text, re.MULTILINE)
        assert match, text
        return int(match[1]), int(match[2])

    def enabled(self) -> bool:
        return (
            self.root / "etc/systemd/system/multi-user.target.wants/rhizome.service"
        ).is_symlink()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "host")


def test_versions_sort_as_they_should(tool: ModuleType) -> None:
    assert tool.debian_version("0.2.0.dev0") == "0.2.0~dev0"
    assert tool.debian_version("1.0.0rc2") == "1.0.0~rc2"
    assert tool.debian_version("1.0.0") == "1.0.0"


def test_installing_makes_user_directories_and_key_and_starts_nothing(
    tool: ModuleType, tmp_path: Path, host: Host
) -> None:
    printed = host.dpkg("--install", make_package(tool, tmp_path, "1.0"))
    assert "systemctl start rhizome" in printed
    uid, gid = host.user()
    assert uid != 0
    assert host.mode("etc/rhizome") == ("0o750", 0, gid)
    assert host.mode("var/lib/rhizome") == ("0o700", uid, gid)
    assert host.mode("var/log/rhizome") == ("0o750", uid, gid)
    assert host.mode("etc/rhizome/cluster.key") == ("0o640", 0, gid)
    assert len(read_key_file(host.root / "etc/rhizome/cluster.key")) == 1
    assert host.enabled()
    unit = (host.root / "lib/systemd/system/rhizome.service").read_text()
    assert "User=rhizome" in unit
    assert (host.root / "usr/bin/rhizome").readlink() == Path("/opt/rhizome/bin/rhizome")


def test_the_key_can_be_read_by_the_user_of_the_unit_and_by_nobody_else(
    tool: ModuleType, tmp_path: Path, host: Host
) -> None:
    host.dpkg("--install", make_package(tool, tmp_path, "1.0"))
    uid, gid = host.user()
    key = host.root / "etc/rhizome/cluster.key"
    for each in (tmp_path, *tmp_path.parents):
        if each.owner() == "root" and each.is_relative_to("/tmp"):
            each.chmod(each.stat().st_mode | 0o011)

    def may_read(user: int, group: int) -> bool:
        command = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "cat", key]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    assert may_read(uid, gid)
    assert not may_read(uid + 1, gid + 1)


def test_an_upgrade_keeps_key_and_configuration(
    tool: ModuleType, tmp_path: Path, host: Host
) -> None:
    host.dpkg("--install", make_package(tool, tmp_path, "1.0"))
    key = (host.root / "etc/rhizome/cluster.key").read_text()
    config = host.root / "etc/rhizome/rhizome.toml"
    config.write_text(config.read_text() + "# mine\n")
    who = host.user()
    printed = host.dpkg("--install", make_package(tool, tmp_path, "1.1"))
    assert "still the old one" in printed
    assert (host.root / "etc/rhizome/cluster.key").read_text() == key
    assert config.read_text().endswith("# mine\n")
    assert host.user() == who
    assert "1.1" in (host.root / "opt/rhizome/bin/rhizome").read_text()


def test_purging_takes_the_key_and_leaves_messages(
    tool: ModuleType, tmp_path: Path, host: Host
) -> None:
    host.dpkg("--install", make_package(tool, tmp_path, "1.0"))
    (host.root / "var/lib/rhizome/store.json").write_text("{}")
    host.dpkg("--remove", "rhizomemq")
    assert not (host.root / "opt/rhizome/bin/rhizome").exists()
    assert (host.root / "etc/rhizome/rhizome.toml").exists()
    assert (host.root / "etc/rhizome/cluster.key").exists()
    printed = host.dpkg("--purge", "rhizomemq")
    assert "messages are kept" in printed
    assert not (host.root / "etc/rhizome").exists()
    assert (host.root / "var/lib/rhizome/store.json").exists()
    assert not host.enabled()


@pytest.mark.soak
@pytest.mark.wheel
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not shutil.which("debootstrap"), reason="debootstrap is missing")
def test_the_package_serves_in_a_fresh_debian(tmp_path: Path) -> None:
    given = os.environ.get("RHIZOME_TEST_DEB")
    if not given:
        pytest.skip("RHIZOME_TEST_DEB names no package; make check-deb does")
    debian = tmp_path / "debian"
    make_debian(debian)
    shutil.copy(given, debian / "rhizomemq.deb")
    inside(debian, "dpkg", "--install", "/rhizomemq.deb")
    assert "rhizome 0" in inside(debian, "rhizome", "--version")
    config = "/etc/rhizome/rhizome.toml"
    as_user = ("setpriv", "--reuid=rhizome", "--regid=rhizome", "--init-groups")
    inside(debian, *as_user, "test", "-r", "/etc/rhizome/cluster.key")
    inside(debian, *as_user, "rhizome", "config", "check", config)
    port, http_port = free_port(), free_port()
    listen = ["--listen", f"127.0.0.1:{port}", "--http", f"127.0.0.1:{http_port}"]
    command = ["chroot", str(debian), *as_user, "rhizome", "serve", "--config", config, *listen]
    broker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert broker.stdout is not None
        assert broker.stdout.readline().startswith("ready rhizome")
        with Connection(f"amqp://guest:guest@127.0.0.1:{port}/") as connection:
            channel = connection.channel(confirms=True)
            channel.declare_queue("hello", durable=True)
            channel.publish(b"hello", routing_key="hello", mandatory=True)
            message = channel.get("hello", no_ack=True)
            assert message is not None
            assert message.body == b"hello"
    finally:
        broker.terminate()
        broker.communicate(timeout=60)
    assert broker.returncode == 0
    inside(debian, "dpkg", "--purge", "rhizomemq")
    assert not (debian / "opt/rhizome").exists()
    assert (debian / "var/lib/rhizome/store.json").exists()


def make_debian(directory: Path) -> None:
    """With what the package depends on, from the mirror that this host's apt has."""
    fields = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME)"]
    listed = subprocess.run(
        [*fields, "Created-By: Packages"], capture_output=True, text=True, check=True
    ).stdout
    codename = re.search(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(), re.M)
    assert codename
    places = [line.split() for line in listed.splitlines()]
    mirrors = [place for place, name in places if name == codename[1]]
    assert mirrors, listed
    needed = "--include=python3,ca-certificates,init-system-helpers"
    command = ["debootstrap", "--variant=minbase", needed, codename[1], str(directory), mirrors[0]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]


def inside(debian: Path, *command: str) -> str:
    done = subprocess.run(
        ["chroot", str(debian), *command],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_configuration_is_valid_alone_and_as_one_of_several(tmp_path: Path) -> None:
    text = (ROOT / "packaging" / "debian" / "rhizome.toml").read_text()
    file = tmp_path / "rhizome.toml"
    file.write_text(text)
    assert load_config(file, environ={}).broker.data == "/var/lib/rhizome"
    key = tmp_path / "cluster.key"
    key.write_text("k" * 32)
    key.chmod(0o640)
    clustered = re.sub(r"^#(\[|key_file|primaries)", r"\1", text, flags=re.MULTILINE)
    file.write_text(
        clustered.replace("/etc/rhizome/cluster.key", str(key)).replace(
            'name = "rhizome"', 'name = "b1"'
        )
    )
    assert load_config(file, environ={}).cluster.primary_names == ("b1", "b2", "b3")


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is missing")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """Its own parser: unknown keys and commands that can't be run are errors."""
    program = tmp_path / "rhizome"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    text = (ROOT / "packaging" / "rhizome.service").read_text()
    text = text.replace("/opt/rhizome/bin/rhizome", str(program)).replace("=rhizome\n", "=root\n")
    unit = tmp_path / "rhizome.service"
    unit.write_text(text)
    assert verify(unit) == ""
    unit.write_text(text.replace("KillSignal", "KilSignal"))
    assert "'KilSignal'" in verify(unit)


def verify(unit: Path) -> str:
    """What is wrong with this unit; faults of the host's own units don't count."""
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return "".join(line for line in done.stderr.splitlines() if unit.name in line)
