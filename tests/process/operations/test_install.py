"""What people install: a wheel made from the source archive, in an empty environment."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pika
import pytest

from rhizome import __version__
from rhizome.testing.broker_process import BrokerProcess

ROOT = Path(__file__).resolve().parents[3]
BUILD_SECONDS_MAX = 3600.0
SDIST = "import sys; from setuptools import build_meta as b; print(b.build_sdist(sys.argv[1]))"

pytestmark = [pytest.mark.soak, pytest.mark.timeout(2 * BUILD_SECONDS_MAX)]


def run(*command: object, **variables: str) -> str:
    """Run something outside of this environment's reach; what it printed."""
    own = ("PYTHONPATH", "RHIZOME_PURE", "RHIZOME_EXPECT", "VIRTUAL_ENV")
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


class InstalledBroker(BrokerProcess):
    """A broker of another environment."""

    def __init__(self, directory: Path, python: Path) -> None:
        super().__init__(directory)
        self.python = python

    def command(self) -> list[str]:
        isolated = ["env", "-u", "PYTHONPATH", "-u", "RHIZOME_PURE", "-C", str(self.directory)]
        return [*isolated, str(self.python), *super().command()[1:]]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive."""
    directory = tmp_path_factory.mktemp("archive")
    return directory / run(sys.executable, "-c", SDIST, directory).splitlines()[-1]


@pytest.fixture(params=[False, True], ids=["without-compiler", "with-compiler"])
def compiled(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def python(archive: Path, compiled: bool, tmp_path: Path) -> Path:
    """Of an environment in which only the wheel and what it needs are installed."""
    variables = {} if compiled else {"CC": "/nowhere/cc"}
    pip = [sys.executable, "-m", "pip", "--quiet"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, archive]
    run(*build, **variables)
    (wheel,) = tmp_path.glob("*.whl")
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    constraints = ROOT / "requirements" / "constraints.txt"
    run(python, "-m", "pip", "--quiet", "install", "-c", constraints, wheel)
    return python


def test_an_installed_broker_serves_and_says_what_it_is(
    python: Path, compiled: bool, tmp_path: Path
) -> None:
    form = "compiled with mypyc" if compiled else "interpreted"
    said = run(python.with_name("rhizome"), "--version")
    assert said == f"rhizome {__version__} ({form})"
    with InstalledBroker(tmp_path / "broker", python) as broker:
        assert f"({form})" in broker.printed()
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
