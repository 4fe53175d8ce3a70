"""What `make test` installs on a machine: said before, and not at all if nobody wants it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "system_packages.sh"
TOOLS = ("bash", "env", "mktemp", "rm", "cat", "printf", "date")


class Machine:
    """A machine with next to nothing on it, whose apt-get writes down what it is asked for."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "bin"
        self.asked = directory / "asked"
        self.path.mkdir()
        self.asked.touch()
        for name in TOOLS:
            found = next(each for each in ("/bin", "/usr/bin") if Path(each, name).exists())
            (self.path / name).symlink_to(Path(found, name))
        self.be("0")
        self.add("apt-get", f'echo "$@" >> {self.asked}')

    def add(self, name: str, script: str = "true") -> None:
        program = self.path / name
        program.write_text(f"#!/bin/bash\n{script}\n")
        program.chmod(0o755)

    def be(self, user: str) -> None:
        self.add("id", f"echo {user}")

    def run(self, *programs: str, **environment: str) -> tuple[str, str]:
        """What the script prints, and what apt-get was asked for."""
        done = subprocess.run(
            ["/bin/bash", str(SCRIPT), *programs],
            env={"PATH": str(self.path), **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout + done.stderr, self.asked.read_text()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_root_is_told_what_is_installed_and_why_before_it_is(machine: Machine) -> None:
    machine.add("apt-get", f'echo "apt-get $1"; echo "$@" >> {machine.asked}')
    said, asked = machine.run()
    told, _, _ = said.partition("apt-get update")
    for package, why in (
        ("amqp-tools", "librabbitmq"),
        ("openjdk-17-jre-headless", "Spark"),
        ("chromium", "console"),
        ("nodejs", "amqplib"),
        ("rabbitmqadmin", "not the server"),
    ):
        assert any(package in line and why in line for line in told.splitlines()), (package, said)
    assert "SYSTEM_PACKAGES=no" in told
    assert "install -y" in asked, "without asking: continuous integration has nobody to answer"


def test_nothing_is_installed_if_nobody_wants_it(machine: Machine) -> None:
    said, asked = machine.run(SYSTEM_PACKAGES="no")
    assert asked == ""
    assert "not installed: amqp-tools nodejs npm" in said
    assert "will be skipped" in said


def test_nothing_is_installed_without_root(machine: Machine) -> None:
    machine.be("1000")
    said, asked = machine.run()
    assert asked == ""
    assert "run: sudo" in said


def test_only_what_is_wanted_and_missing_is_installed(machine: Machine) -> None:
    machine.add("node")
    _, asked = machine.run("java", "node")
    (line,) = [line for line in asked.splitlines() if line.startswith("install")]
    assert line.split()[-1] == "openjdk-17-jre-headless"
    assert "nodejs" not in asked


def test_nothing_is_said_if_nothing_is_missing(machine: Machine) -> None:
    machine.add("java")
    assert machine.run("java") == ("", "")


def test_every_target_that_installs_can_be_told_not_to() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert "\nexport SYSTEM_PACKAGES\n" in makefile
    for line in makefile.splitlines():
        if line.startswith("\t"):
            assert "apt-get" not in line
