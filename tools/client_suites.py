"""Runs the integration suites of AMQP client libraries against a broker.

    python tools/client_suites.py --amqp amqp://guest:guest@127.0.0.1:5672/ [--http URL] [SUITE ...]

The suites come from the packages that the libraries publish (PyPI, npm, Debian), pinned here, and
are unpacked under .cache/client-suites. A suite whose tools are missing is left out, and says why.
They run where there is no network but loopback (loopback_only.py), with the broker's ports on it:
what other people's tests dial is not in our hands. Where the system doesn't allow that nothing is
run, unless --with-network says that it may be.

What fails on RabbitMQ 3.10 itself is in tests/interop/suites/expected.json; `--record` writes that
file and is meant for a run against RabbitMQ. Any other failure makes the exit code 1, and so does a
suite that was left out or passed fewer tests than there.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from loopback_only import LoopbackOnly, NoNamespace
from suite_results import Expectation, Outcome, judge, read_expected, write_expected

ROOT: Final = Path(__file__).resolve().parent.parent
CACHE: Final = ROOT / ".cache" / "client-suites"
SUITE_SECONDS_MAX: Final = 1800
TEST_SECONDS_MAX: Final = 60


class Unavailable(Exception):
    """A suite can't run here; the text says what is missing."""


@dataclass(frozen=True)
class Target:
    """The broker under test."""

    amqp: str
    http: str
    prefix: tuple[str, ...] = ()
    """What a suite's command begins with, to run where it has no network."""

    @property
    def ports(self) -> list[int]:
        return [self.port, urlsplit(self.http).port or 15672]

    def is_on_loopback(self) -> bool:
        hosts = (self.host, urlsplit(self.http).hostname)
        return all(host in ("127.0.0.1", "localhost") for host in hosts)

    @property
    def host(self) -> str:
        return urlsplit(self.amqp).hostname or "127.0.0.1"

    @property
    def port(self) -> int:
        return urlsplit(self.amqp).port or 5672

    @property
    def user(self) -> str:
        return unquote(urlsplit(self.amqp).username or "guest")

    @property
    def password(self) -> str:
        return unquote(urlsplit(self.amqp).password or "guest")

    @property
    def url(self) -> str:
        """The address with the vhost "/" spelt out, as some clients want it."""
        return f"amqp://{self.user}:{self.password}@{self.host}:{self.port}/%2F"


Environment = Callable[[Target], Mapping[str, str]]
Prepare = Callable[[Path, Target], None]


def nothing_to_prepare(tree: Path, target: Target) -> None:
    """Most suites run as they were published."""


def run(
    target: Target, command: Sequence[str], directory: Path, environment: Mapping[str, str]
) -> str:
    """Run a suite's command, whatever its exit code, and return what it printed."""
    done = subprocess.run(
        [*target.prefix, *command],
        cwd=directory,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=SUITE_SECONDS_MAX,
        check=False,
    )
    return done.stdout.decode(errors="replace")


def must_run(command: Sequence[str], directory: Path) -> None:
    done = subprocess.run(command, cwd=directory, capture_output=True, check=False)
    if done.returncode != 0:
        tail = (done.stdout + done.stderr).decode(errors="replace")[-500:]
        raise Unavailable(f"{' '.join(command[:3])} failed: {tail}")


# --- suites from PyPI, run with pytest


@dataclass(frozen=True)
class PytestSuite:
    """An sdist that has its tests in it, run in a virtual environment of its own."""

    name: str
    project: str
    version: str
    sha256: str
    requirements: tuple[str, ...]
    arguments: tuple[str, ...]
    environment: Environment
    prepare: Prepare = nothing_to_prepare

    def run(self, target: Target) -> Outcome:
        directory = CACHE / self.name
        tree = self._unpacked(directory)
        python = self._python(directory)
        self.prepare(tree, target)
        report = directory / "report.xml"
        report.unlink(missing_ok=True)
        options = ["-q", "-p", "no:cacheprovider", f"--timeout={TEST_SECONDS_MAX}"]
        command = [str(python), "-m", "pytest", *options, f"--junitxml={report}", *self.arguments]
        printed = run(target, command, tree, self.environment(target))
        (directory / "printed.txt").write_text(printed)
        if not report.exists():
            raise Unavailable(f"pytest wrote no report: {printed[-500:]}")
        return junit_outcome(report)

    def _unpacked(self, directory: Path) -> Path:
        """A fresh copy of the sdist's tree, since `prepare` may change it."""
        directory.mkdir(parents=True, exist_ok=True)
        archive = directory / "sdist.tar.gz"
        if not archive.exists():
            download_sdist(f"{self.project}=={self.version}", self.sha256, archive)
        source = directory / "source"
        shutil.rmtree(source, ignore_errors=True)
        with tarfile.open(archive) as tar:
            tar.extractall(source, filter="data")
        (tree,) = source.iterdir()
        keep_our_settings_out(tree)
        return tree

    def _python(self, directory: Path) -> Path:
        """The interpreter of the suite's environment, made at first use."""
        python = directory / "venv" / "bin" / "python"
        done = directory / "venv" / "done"
        wanted = "\n".join(
            [f"{self.project}=={self.version}", "pytest-timeout", *self.requirements]
        )
        if not done.exists() or done.read_text() != wanted:
            venv.create(directory / "venv", with_pip=True, clear=True)
            must_run([str(python), "-m", "pip", "install", "-q", *wanted.split("\n")], directory)
            done.write_text(wanted)
        return python


def keep_our_settings_out(tree: Path) -> None:
    """Without settings of its own a suite would find those of the project it is unpacked in."""
    settings = {"setup.cfg": "[tool:pytest]", "pyproject.toml": "[tool.pytest"}
    for name, section in settings.items():
        path = tree / name
        if path.exists() and section in path.read_text():
            return
    (tree / "pytest.ini").write_text("[pytest]\n")


def download_sdist(requirement: str, sha256: str, path: Path) -> None:
    """Fetch an sdist with pip, from whatever index pip is set up with; it checks the hash."""
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        pinned = Path(scratch) / "pinned.txt"
        pinned.write_text(f"{requirement} --hash=sha256:{sha256}\n")
        project = requirement.partition("==")[0]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--require-hashes"]
        command += ["--no-deps", "--no-binary", project, "--dest", scratch, "-r", str(pinned)]
        must_run(command, path.parent)
        (archive,) = Path(scratch).glob("*.tar.gz")
        archive.rename(path)


def junit_outcome(report: Path) -> Outcome:
    outcome = Outcome()
    for case in ET.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        if case.find("failure") is not None or case.find("error") is not None:
            outcome.failed.add(name)
        elif case.find("skipped") is None:
            outcome.passed.add(name)
    return outcome


CONTAINERS = '''"""The broker under test in place of a container."""
import os
from dataclasses import dataclass


class DockerNotAvailableError(Exception):
    pass


class DockerHostInfo:
    pass


@dataclass
class ContainerInfo:
    id: str
    ports: dict
    host: str


def check_docker_available():
    return DockerHostInfo()


class DockerClient:
    def __init__(self, info=None):
        pass

    def run(self, image, ports, environment=None):
        port = int(os.environ["SUITE_PORT"])
        return ContainerInfo("none", {"5672/tcp": port, "5671/tcp": 1}, os.environ["SUITE_HOST"])

    def kill(self, container_id):
        pass

    def remove(self, container_id):
        pass
'''


def replace_containers(tree: Path, target: Target) -> None:
    """These suites start a broker in a container; give them the one under test."""
    (tree / "tests" / "docker_client.py").write_text(CONTAINERS)


FIXTURES = '''"""Fixtures that the published suite lacks: the broker under test."""
import os
import pytest
from tests.docker_client import DockerClient
from yarl import URL


@pytest.fixture(scope="session")
def rabbitmq_container():
    return DockerClient().run("none", [])


@pytest.fixture(scope="session")
def amqp_direct_url(rabbitmq_container):
    port = rabbitmq_container.ports["5672/tcp"]
    return URL(f"amqp://guest:guest@{rabbitmq_container.host}:{port}//")
'''


def add_fixtures(tree: Path, target: Target) -> None:
    """aiormq keeps the fixture of its broker outside of what it publishes."""
    replace_containers(tree, target)
    (tree / "conftest.py").write_text(FIXTURES)


def set_default_port(tree: Path, target: Target) -> None:
    """amqpstorm's tests use the default port of its Connection."""
    for module in ("connection.py", "management/api.py"):
        path = tree / "amqpstorm" / module
        path.write_text(path.read_text().replace("port: int = 5672", f"port: int = {target.port}"))


def rabbitmq_variables(target: Target) -> Mapping[str, str]:
    return {"RABBITMQ_HOST": target.host, "RABBITMQ_5672_TCP": str(target.port)}


def suite_variables(target: Target) -> Mapping[str, str]:
    return {"SUITE_HOST": target.host, "SUITE_PORT": str(target.port)}


def amqpstorm_variables(target: Target) -> Mapping[str, str]:
    return {
        "AMQP_HOST": target.host,
        "AMQP_USERNAME": target.user,
        "AMQP_PASSWORD": target.password,
        "AMQP_URI": target.url,
        "AMQP_HTTP_URL": target.http,
        "AMQP_SSL_HOST": target.host,
        "AMQP_SSL_URI": target.url,
        "PYTHONPATH": ".",
    }


def rabbitpy_variables(target: Target) -> Mapping[str, str]:
    return {"RABBITMQ_URL": target.url, "PYTHONPATH": "."}


# --- amqplib from npm, run with mocha


@dataclass(frozen=True)
class MochaSuite:
    """An npm package that ships its tests."""

    name: str
    package: str
    tests: tuple[str, ...]

    def run(self, target: Target) -> Outcome:
        if shutil.which("npm") is None:
            raise Unavailable("npm is not installed")
        tree = self._installed(CACHE / self.name)
        mocha = ["node_modules/.bin/mocha", "--exit", "--check-leaks", "-u", "tdd"]
        report = tree / "report.json"
        report.unlink(missing_ok=True)
        options = ["--reporter", "json", "--reporter-option", f"output={report}"]
        # The vhost of a URL without a path is "/".
        url = f"amqp://{target.user}:{target.password}@{target.host}:{target.port}"
        printed = run(target, [*mocha, *options, *self.tests], tree, {"URL": url})
        text = report.read_text() if report.exists() else printed[printed.find("{") :]
        found = json.loads(text)
        return Outcome(
            {test["fullTitle"] for test in found["passes"]},
            {test["fullTitle"] for test in found["failures"]},
        )

    def _installed(self, directory: Path) -> Path:
        tree = directory / "package"
        if not (tree / "node_modules").exists():
            directory.mkdir(parents=True, exist_ok=True)
            must_run(["npm", "pack", self.package], directory)
            (archive,) = directory.glob("*.tgz")
            with tarfile.open(archive) as tar:
                tar.extractall(directory, filter="data")
            install = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"]
            must_run(install, tree)
        return tree


# --- Go clients from Debian, whose packages are source trees with tests


@dataclass(frozen=True)
class GoSuite:
    """A Go library of Debian, with Debian's Go unpacked beside it: nothing is installed."""

    name: str
    packages: tuple[str, ...]
    path: str

    TOOLCHAIN = ("golang-1.19-go", "golang-1.19-src")

    def run(self, target: Target) -> Outcome:
        if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
            raise Unavailable("this is not a Debian system")
        directory = CACHE / "go"
        for package in (*self.TOOLCHAIN, *self.packages):
            self._unpack(package, directory)
        root = directory / "root" / "usr"
        environment = {
            "GOROOT": str(root / "lib" / "go-1.19"),
            "GOPATH": str(root / "share" / "gocode"),
            "GOCACHE": str(directory / "cache"),
            "GO111MODULE": "off",
            "AMQP_URL": f"amqp://{target.user}:{target.password}@{target.host}:{target.port}/",
        }
        go = str(root / "lib" / "go-1.19" / "bin" / "go")
        tree = root / "share" / "gocode" / "src" / self.path
        command = [go, "test", "-count=1", "-tags", "integration", "-timeout", "10m", "-json", "."]
        return self._outcome(run(target, command, tree, environment))

    def _unpack(self, package: str, directory: Path) -> None:
        done = directory / "done" / package
        if done.exists():
            return
        archives = directory / "archives"
        archives.mkdir(parents=True, exist_ok=True)
        must_run(["apt-get", "download", package], archives)
        (archive,) = archives.glob(f"{package}_*.deb")
        must_run(["dpkg", "-x", str(archive), str(directory / "root")], directory)
        done.parent.mkdir(exist_ok=True)
        done.touch()

    @staticmethod
    def _outcome(printed: str) -> Outcome:
        outcome = Outcome()
        for line in printed.splitlines():
            if not line.startswith("{"):
                continue
            event = json.loads(line)
            if "Test" in event and event["Action"] == "pass":
                outcome.passed.add(event["Test"])
            elif "Test" in event and event["Action"] == "fail":
                outcome.failed.add(event["Test"])
        if not outcome.passed:
            raise Unavailable(f"go test ran nothing: {printed[-500:]}")
        return outcome


Suite = PytestSuite | MochaSuite | GoSuite
SUITES: Final[tuple[Suite, ...]] = (
    PytestSuite(
        "py-amqp",
        "amqp",
        "5.4.2",
        "9362660c4a31150cf18e78cae2ce8aa1e929fc6c6739e69f6dd5dbea9c3edc82",
        ("pytest<9", "pytest-rerunfailures", "hypothesis"),
        # The tests of TLS need a listener with their certificates.
        ("t/integration/test_rmq.py", "-k", "not tls and not ssl"),
        rabbitmq_variables,
    ),
    PytestSuite(
        "kombu",
        "kombu",
        "5.7.0",
        "31e62fdfd2381caa3422f8e02b84a491d9a2180ddda74507b57f4cb1e1c2c2c9",
        ("pytest<10", "pytest-freezer"),
        ("t/integration/test_py_amqp.py",),
        rabbitmq_variables,
    ),
    PytestSuite(
        "aiormq",
        "aiormq",
        "7.2.4",
        "5fd20bb9583d73de85572198496b65cf028f27527c1733c9840d458e0b40e8fa",
        ("pytest<10", "aiomisc-pytest>=2,<3", "uvloop"),
        ("tests", "-k", "not amqps"),
        suite_variables,
        add_fixtures,
    ),
    PytestSuite(
        "aio-pika",
        "aio-pika",
        "10.2.1",
        "e4f77afd9179a3cca5a904c3b0a1190256a36d9f90650db908b1b2245eb27487",
        ("pytest<10", "aiomisc", "aiomisc-pytest", "shortuuid", "timeout-decorator", "uvloop"),
        ("tests", "-k", "not amqps"),
        suite_variables,
        replace_containers,
    ),
    PytestSuite(
        "amqpstorm",
        "amqpstorm",
        "3.1.4",
        "8c4c81430b3e3f06c88474a8ed883b48a62068f14490e339d6e0fc3329f030d3",
        ("pytest<10", "requests"),
        # One test dials an address of a private network; nothing here leaves the machine.
        (
            *("amqpstorm/tests/functional", "--ignore=amqpstorm/tests/functional/ssl"),
            *("-k", "not test_api_with_inaccessible"),
        ),
        amqpstorm_variables,
        set_default_port,
    ),
    PytestSuite(
        "rabbitpy",
        "rabbitpy",
        "3.0.2",
        "9322a1e82b4d3d1afc21a617ce0b1e86b921174328735e7d54abc9525805ae5c",
        ("pytest<10", "python-dotenv"),
        ("tests/test_integration.py", "tests/integration"),
        rabbitpy_variables,
    ),
    MochaSuite(
        "node-amqplib",
        "amqplib@0.10.9",
        ("test/callback_api.js", "test/channel_api.js", "test/connect.js"),
    ),
    GoSuite(
        "amqp091-go",
        ("golang-github-rabbitmq-amqp091-go-dev", "golang-uber-goleak-dev"),
        "github.com/rabbitmq/amqp091-go",
    ),
    GoSuite("streadway-amqp", ("golang-github-streadway-amqp-dev",), "github.com/streadway/amqp"),
)


def main() -> int:
    names = [suite.name for suite in SUITES]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--amqp", default="amqp://guest:guest@127.0.0.1:5672/")
    parser.add_argument("--http", default="http://127.0.0.1:15672")
    parser.add_argument("--record", action="store_true", help="keep the failures as expected ones")
    parser.add_argument(
        "--with-network", action="store_true", help="let the suites reach any address"
    )
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"any of {', '.join(names)}")
    options = parser.parse_args()
    if unknown := set(options.suites) - set(names):
        parser.error(f"no such suite: {', '.join(sorted(unknown))}")
    target = Target(options.amqp, options.http)
    wanted = [suite for suite in SUITES if not options.suites or suite.name in options.suites]
    if options.with_network:
        return 0 if run_suites(wanted, target, options.record) else 1
    if not target.is_on_loopback():
        parser.error("the broker must listen on 127.0.0.1, or give --with-network")
    try:
        with LoopbackOnly(target.ports) as inside:
            confined = replace(target, prefix=tuple(inside.prefix))
            return 0 if run_suites(wanted, confined, options.record) else 1
    except NoNamespace as error:
        parser.error(
            f"the suites can't be kept off the network ({error}): run this as root, or accept that "
            "they may reach any address with --with-network"
        )


def run_suites(suites: Sequence[Suite], target: Target, record: bool) -> bool:
    """False if one of them did worse than on RabbitMQ, or could not run."""
    expected = read_expected()
    good = True
    for suite in suites:
        try:
            outcome = suite.run(target)
        except (Unavailable, OSError, subprocess.TimeoutExpired) as error:
            print(f"{suite.name}: left out: {error}")
            good = False
            continue
        if record:
            expected[suite.name] = Expectation(len(outcome.passed), tuple(outcome.failed))
            write_expected(expected)
        good = judge(suite.name, outcome, expected.get(suite.name)) and good
    return good


if __name__ == "__main__":
    sys.exit(main())
