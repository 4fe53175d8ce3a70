"""What people install: a wheel made from the source archive, in an empty environment, on a machine
without a compiler. It says hello within seconds, and runs the first steps of the Spark tutorial.

The quick tests install an interpreted wheel. Those with the marker `wheel` install the compiled
one: that of RHIZOME_TEST_WHEEL (`make check-wheel`), else they build it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pika
import pytest

from rhizome import __version__
from rhizome.testing.broker_process import BrokerProcess, wait_until
from tests.document_blocks import ROOT, blocks

BUILD_SECONDS_MAX = 3600.0
COMPILER = re.compile(r"(?:.*-)?(?:cc|c89|c99|gcc|g\+\+|c\+\+|cpp|clang|clang\+\+|tcc)(?:-[\d.]+)?")
TUTORIAL = ROOT / "docs" / "pipeline" / "tutorial.md"
FIRST_STEPS = 3
"""Blocks of the tutorial: a session, a stream and a queue, writing to them."""


def run(*command: object, **variables: str) -> str:
    """Run something outside of this environment's reach; what it printed."""
    own = ("PYTHONPATH", "RHIZOME_PURE", "RHIZOME_EXPECT", "VIRTUAL_ENV", "CC", "CXX")
    environment = {name: value for name, value in os.environ.items() if name not in own}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout.strip()


class Machine:
    """An empty environment on a machine whose programs include no compiler."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = str(self._programs(directory / "programs"))
        run(sys.executable, "-m", "venv", directory / "venv")
        self.python = directory / "venv" / "bin" / "python"

    @staticmethod
    def _programs(directory: Path) -> Path:
        directory.mkdir()
        for folder in (Path("/usr/bin"), Path("/bin")):
            for program in folder.iterdir():
                link = directory / program.name
                if not COMPILER.fullmatch(program.name) and not link.is_symlink():
                    link.symlink_to(program)
        return directory

    def run(self, *command: object) -> str:
        return run(*command, PATH=self.path)

    def install(self, requirement: object) -> None:
        constraints = ROOT / "requirements" / "constraints.txt"
        pip = (self.python, "-m", "pip", "--disable-pip-version-check", "--quiet")
        wheels = ("--only-binary", ":all:", "--no-binary", "pyspark")  # which has no wheel
        self.run(*pip, "install", *wheels, "-c", constraints, requirement)


class InstalledBroker(BrokerProcess):
    """A broker of another environment."""

    def __init__(self, directory: Path, machine: Machine) -> None:
        super().__init__(directory)
        self.machine = machine

    def command(self) -> list[str]:
        isolated = ["env", "-u", "PYTHONPATH", "-u", "RHIZOME_PURE", "-C", str(self.directory)]
        isolated.append(f"PATH={self.machine.path}")
        return [*isolated, str(self.machine.python), *super().command()[1:]]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def build(directory: Path, **variables: str) -> Path:
    run(sys.executable, "tools/build_wheel.py", directory, **variables)
    (wheel,) = directory.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def pure_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("pure"), RHIZOME_PURE="1")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled one."""
    given = os.environ.get("RHIZOME_TEST_WHEEL")
    return Path(given) if given else build(tmp_path_factory.mktemp("compiled"))


def check_serves(machine: Machine, form: str) -> None:
    """The installed broker says what it is, passes a message of pika's, and has the console."""
    said = machine.run(machine.python.with_name("rhizome"), "--version")
    assert said == f"rhizome {__version__} ({form})"
    with InstalledBroker(machine.directory / "broker", machine) as broker:
        wait_until(lambda: f"({form})" in broker.printed(), "the log to say what runs")
        parameters = pika.ConnectionParameters(broker.host, broker.port)
        connection = pika.BlockingConnection(parameters)
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"one")
        assert channel.basic_get("q", auto_ack=True)[2] == b"one"
        connection.close()
        with urllib.request.urlopen(f"{broker.http_url}/", timeout=30) as page:
            assert b"<html" in page.read()


def test_there_is_no_compiler_on_the_machine(machine: Machine) -> None:
    for program in ("cc", "gcc", "g++", "clang", "x86_64-linux-gnu-gcc"):
        assert shutil.which(program, path=machine.path) is None
    assert shutil.which("env", path=machine.path)


@pytest.mark.timeout(900)
def test_an_interpreted_wheel_serves_and_brings_up_a_cluster(
    pure_wheel: Path, machine: Machine
) -> None:
    assert pure_wheel.name.endswith("-py3-none-any.whl")
    machine.install(pure_wheel)
    check_serves(machine, "interpreted")
    assert "one message" in machine.run(machine.python, ROOT / "tools" / "try_wheel.py")


@pytest.mark.soak
@pytest.mark.wheel
@pytest.mark.timeout(2 * BUILD_SECONDS_MAX)
def test_a_wheel_says_hello_within_seconds_and_runs_the_tutorial(
    wheel: Path, machine: Machine
) -> None:
    assert "manylinux" in wheel.name
    began = time.monotonic()
    machine.install(wheel)
    installed_s = time.monotonic() - began
    tried = machine.run(machine.python, ROOT / "tools" / "try_wheel.py")
    assert "compiled with mypyc" in tried
    hello_s = float(re.findall(r"first message after ([\d.]+) s", tried)[0])
    print(
        f"\nfrom wheel ({wheel.stat().st_size / 1e6:.1f} MB) to first message:"
        f" {installed_s + hello_s:.1f} s ({installed_s:.1f} s to install; wanted below 15 s)"
    )
    check_serves(machine, "compiled with mypyc")
    check_tutorial(wheel, machine)


def check_tutorial(wheel: Path, machine: Machine) -> None:
    machine.install(f"{wheel}[spark]")
    programs = [block.text for block in blocks(TUTORIAL) if block.language == "python"]
    directory = machine.directory / "tutorial"
    with InstalledBroker(directory, machine) as broker:
        text = "\n".join(programs[:FIRST_STEPS])
        text = text.replace("127.0.0.1:5672", f"127.0.0.1:{broker.port}")
        file = directory / "tutorial.py"
        file.write_text(f"{text}\nprint('written', orders.count())\nspark.stop()\n")
        printed = machine.run("env", "-C", directory, machine.python, file)
    assert "written 5000" in printed
