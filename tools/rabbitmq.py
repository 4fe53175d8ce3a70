"""RabbitMQ of a chosen version, in a directory of its own, to measure and compare with.

    python tools/rabbitmq.py prepare --version 4.3    have its files ready: two minutes, 700 MB
    python tools/rabbitmq.py run     --version 4.3    run it in the foreground until Ctrl-C
    python tools/rabbitmq.py start   --version 4.3    run it in the background, print its addresses
    python tools/rabbitmq.py status  --version 4.3
    python tools/rabbitmq.py stop    --version 4.3

The files are those of a suite of Debian, unpacked by debootstrap below RHIZOME_RABBITMQ_DIR, which
is `rhizome/rabbitmq` in the user's cache directory by default: nothing but debootstrap is installed
on the system. debootstrap asks the mirror that it is set up with, or RHIZOME_RABBITMQ_MIRROR. Each
node has a name, ports, an epmd and a store of its own, listens on loopback only, and runs with the
settings of the package but for that. chroot needs root. Programs use `RabbitMQNode`.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rhizome.testing.broker_process import start_guard, wait_until
from rhizome.testing.free_ports import free_port

SUITES: Final = {"4.3": "sid", "4.0": "trixie", "3.10": "bookworm"}
"""Which suite of Debian has which version."""
VERSION: Final = "4.3"
SCRIPT: Final = "usr/lib/rabbitmq/bin/rabbitmq-server"
NODES: Final = "var/lib/rhizome-nodes"
PLUGINS: Final = (
    "rabbitmq_management",
    "rabbitmq_consistent_hash_exchange",
    "rabbitmq_federation_management",
    "rabbitmq_shovel_management",
)
HOST: Final = "127.0.0.1"
START_SECONDS_MAX: Final = 120.0
STOP_SECONDS_MAX: Final = 60.0
OUTPUT_CHARS_QUOTED_MAX: Final = 4000
# In mounts of its own, which end with it: nothing is left to unmount.
ENTER: Final = (
    'mount -t proc proc "$0/proc" && mount --bind /dev "$0/dev" && cp /etc/hosts "$0/etc/hosts"'
    ' && exec chroot "$0" "$@"'
)


class RabbitMQUnavailable(Exception):
    """RabbitMQ can't be had or started here; the text says why and what to do."""


def cache_directory() -> Path:
    """Where the files of all versions are."""
    if chosen := os.environ.get("RHIZOME_RABBITMQ_DIR"):
        return Path(chosen)
    user = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(user) / "rhizome" / "rabbitmq"


def is_prepared(version: str) -> bool:
    """Whether all files of a version are there: debootstrap removes its notes when it is done."""
    root = cache_directory() / version
    return (root / SCRIPT).exists() and not (root / "debootstrap").exists()


def prepare(version: str) -> Path:
    """The root directory of a version, unpacked now unless it is there."""
    if version not in SUITES:
        raise RabbitMQUnavailable(f"no RabbitMQ {version}; there are {', '.join(SUITES)}")
    root = cache_directory() / version
    if is_prepared(version):
        return root
    if os.geteuid() != 0:
        raise RabbitMQUnavailable("debootstrap and chroot need root: run this as root")
    root.parent.mkdir(parents=True, exist_ok=True)
    with (root.parent / f"{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # whoever else prepares it does so for us
        if not is_prepared(version):
            _unpack(version, root)
    return root


def _unpack(version: str, root: Path) -> None:
    if shutil.which("debootstrap") is None:
        print("installing debootstrap with apt-get", file=sys.stderr)
        _carry_out(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "debootstrap"])
    unfinished = Path(tempfile.mkdtemp(prefix=f"{version}-", dir=root.parent))
    unfinished.chmod(0o755)
    suite, mirror = SUITES[version], os.environ.get("RHIZOME_RABBITMQ_MIRROR")
    print(f"unpacking RabbitMQ {version} of Debian {suite} below {root}", file=sys.stderr)
    command = ["debootstrap", "--variant=minbase", "--include=rabbitmq-server", suite]
    try:
        _carry_out([*command, str(unfinished), *([mirror] if mirror else [])])
        if root.exists():
            shutil.rmtree(root)  # of a run that was ended
        unfinished.rename(root)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _carry_out(command: Sequence[str]) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        said = (done.stdout + done.stderr)[-OUTPUT_CHARS_QUOTED_MAX:]
        raise RabbitMQUnavailable(f"{shlex.join(command)} ended with {done.returncode}\n{said}")


@dataclass
class RabbitMQNode:
    """One node: started on an empty store or on its own, stopped and killed by process id.

    Invariant: a node that runs has a guard, which kills it once its starter is gone.
    """

    version: str = VERSION
    plugins: Sequence[str] = PLUGINS
    settings: str = ""
    """Lines for rabbitmq.conf beside the addresses."""
    port: int = field(default_factory=free_port)
    http_port: int = field(default_factory=free_port)
    name: str = ""
    """Of the node; one of its own by default. Nodes of a cluster name each other in `settings`."""
    cookie: str = field(default_factory=lambda: secrets.token_hex(16))
    """The same for all nodes of a cluster."""
    epmd_port: int = 0
    """Of the epmd of another node of the cluster; by default the node has its own."""
    host: str = HOST
    user: str = "guest"
    password: str = "guest"

    def __post_init__(self) -> None:
        self.root = prepare(self.version)
        nodes = self.root / NODES
        nodes.mkdir(parents=True, exist_ok=True)
        self.directory = Path(tempfile.mkdtemp(prefix="node-", dir=nodes))
        self.output = self.directory / "output.txt"
        self._has_epmd = not self.epmd_port
        self.epmd_port = self.epmd_port or free_port()
        self._dist_port = free_port()
        self._epmd: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        cookie = self.directory / ".erlang.cookie"
        cookie.write_text(self.cookie)
        cookie.chmod(0o400)
        (self.directory / "plugins").write_text(f"[{','.join(self.plugins)}].\n")
        (self.directory / "rabbitmq.conf").write_text(self._configuration())

    @property
    def url(self) -> str:
        """AMQP address of the default vhost."""
        return f"amqp://{self.user}:{self.password}@{self.host}:{self.port}/"

    @property
    def http_url(self) -> str:
        """Root of the HTTP API, without a slash at the end."""
        return f"http://{self.host}:{self.http_port}"

    def _configuration(self) -> str:
        lines = [f"listeners.tcp.1 = {HOST}:{self.port}"]
        if "rabbitmq_management" in self.plugins:
            lines += [f"management.tcp.ip = {HOST}", f"management.tcp.port = {self.http_port}"]
        return "\n".join([*lines, self.settings, ""])

    def _command(self, *program: str) -> list[str]:
        """A program inside the root directory, with the environment of this node alone."""
        inside = f"/{self.directory.relative_to(self.root)}"
        variables = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": inside,
            "LANG": "C.UTF-8",
            "ERL_EPMD_ADDRESS": HOST,
            "ERL_EPMD_PORT": str(self.epmd_port),
            "RABBITMQ_NODENAME": self.name or f"node{self.port}@localhost",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_MNESIA_BASE": f"{inside}/store",
            "RABBITMQ_LOG_BASE": f"{inside}/log",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": f"{inside}/pid",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": f"{inside}/rabbitmq",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{inside}/plugins",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }
        setting = [f"{name}={value}" for name, value in variables.items()]
        enter = ["unshare", "--mount", "sh", "-c", ENTER, str(self.root)]
        return [*enter, "env", "-i", *setting, *program]

    def _spawn(self, *program: str) -> subprocess.Popen[bytes]:
        with self.output.open("ab") as output:
            return subprocess.Popen(
                self._command(*program),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for who started it, who then ends it
            )

    def start(self) -> None:
        """Start on whatever the store holds; return when it answers AMQP, and HTTP if it has it."""
        if self._has_epmd and self._epmd is None:
            self._epmd = self._spawn("epmd", "-address", HOST, "-port", str(self.epmd_port))
            wait_until(lambda: accepts(self.epmd_port), "epmd", START_SECONDS_MAX)
        self._server = self._spawn(f"/{SCRIPT}")
        try:
            wait_until(self._is_ready, f"RabbitMQ {self.version}", START_SECONDS_MAX)
        except BaseException:
            self.close()
            raise
        self._guard = start_guard(self.pid)

    def _is_ready(self) -> bool:
        assert self._server is not None
        if self._server.poll() is not None:
            raise RabbitMQUnavailable(
                f"RabbitMQ ended with {self._server.returncode}\n{self.last_words()}"
            )
        has_http = "rabbitmq_management" in self.plugins
        return bool(greeting(self.port)) and (not has_http or accepts(self.http_port))

    @property
    def server_pids(self) -> list[int]:
        """The start script and all below it."""
        return [] if self._server is None else with_descendants([self._server.pid])

    @property
    def pid(self) -> int:
        """The Erlang machine, which is below the start script."""
        return next(pid for pid in self.server_pids if command_name(pid).startswith("beam"))

    def is_running(self) -> bool:
        return self._server is not None and self._server.poll() is None

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()

    def _end(self, how: signal.Signals) -> None:
        """End the Erlang machine, and with it the script that waits for it."""
        server, self._server = self._server, None
        if server is None:
            return
        pids = with_descendants([server.pid])
        machines = [pid for pid in pids if command_name(pid).startswith("beam")]
        for pid in machines or [server.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)
        server.wait(STOP_SECONDS_MAX)
        if self._guard is not None:
            self._guard.communicate()  # the end of its input; it finds nobody to kill
            self._guard = None

    def wipe(self) -> None:
        """Empty the store; only while stopped."""
        shutil.rmtree(self.directory / "store", ignore_errors=True)

    def close(self) -> None:
        """Stop for good, and leave nothing."""
        self.stop()
        if self._epmd is not None:
            self._epmd.terminate()
            self._epmd.wait(STOP_SECONDS_MAX)
            self._epmd = None
        shutil.rmtree(self.directory, ignore_errors=True)

    def last_words(self) -> str:
        """The end of what it printed, to go with a failure."""
        return self.output.read_text(errors="replace")[-OUTPUT_CHARS_QUOTED_MAX:]


@contextlib.contextmanager
def rabbitmq_node(version: str, plugins: Sequence[str] = PLUGINS) -> Iterator[RabbitMQNode]:
    """A node that runs while the block does."""
    node = RabbitMQNode(version, plugins)
    node.start()
    try:
        yield node
    finally:
        node.close()


def accepts(port: int) -> bool:
    """Whether a program listens on this port of loopback."""
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


def greeting(port: int) -> bytes:
    """The payload of connection.start, or nothing: a listener may exist before it serves."""
    try:
        with socket.create_connection((HOST, port), timeout=2) as stream:
            stream.sendall(b"AMQP\0\0\x09\x01")
            return stream.recv(4096)
    except OSError:
        return b""


def with_descendants(roots: list[int]) -> list[int]:
    """These processes and all below them that exist now."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = stat_fields(int(entry.name))
            if fields:
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children.get(pid, [])
    return sorted(found)


def stat_fields(pid: int) -> list[str]:
    """/proc/PID/stat from the state on, which stands behind the parenthesised name."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def command_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


# --- the command


def state_file(version: str) -> Path:
    """Where `run` says what it runs, for `status` and `stop`."""
    return cache_directory() / f"{version}.json"


def running(version: str) -> dict[str, object]:
    """What `run` has written, if the process that wrote it is there."""
    try:
        state: dict[str, object] = json.loads(state_file(version).read_text())
        command = Path(f"/proc/{state['pid']}/cmdline").read_bytes()
    except (OSError, ValueError, KeyError):
        return {}
    return state if Path(__file__).name.encode() in command else {}


def run(options: argparse.Namespace) -> int:
    if other := running(options.version):
        raise RabbitMQUnavailable(f"RabbitMQ {options.version} runs already: {described(other)}")
    settings = Path(options.settings).read_text() if options.settings else ""
    plugins = PLUGINS if options.plugins is None else [p for p in options.plugins.split(",") if p]
    ports = (options.port or free_port(), options.http_port or free_port())
    node = RabbitMQNode(options.version, plugins, settings, *ports)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    try:
        node.start()
        state = {"pid": os.getpid(), "amqp": node.url, "http": node.http_url}
        state_file(options.version).write_text(json.dumps(state) + "\n")
        print(f"ready: {described(state)}", flush=True)
        while node.is_running():
            time.sleep(1.0)
        print(node.last_words(), file=sys.stderr)
        return 1
    finally:
        state_file(options.version).unlink(missing_ok=True)
        node.close()


def described(state: dict[str, object]) -> str:
    return f"{state['amqp']} {state['http']} (process {state['pid']})"


def start(options: argparse.Namespace) -> int:
    if not (state := running(options.version)):
        prepare(options.version)
        arguments = [sys.executable, __file__, "run", *sys.argv[2:]]
        log = cache_directory() / f"{options.version}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        wait_until(
            lambda: running(options.version) or process.poll() is not None,
            f"RabbitMQ {options.version}",
            START_SECONDS_MAX,
        )
        state = running(options.version)
    if not state:
        raise RabbitMQUnavailable(log.read_text(errors="replace"))
    print(described(state))
    return 0


def stop(options: argparse.Namespace) -> int:
    state = running(options.version)
    if not state:
        print(f"RabbitMQ {options.version} does not run")
        return 0
    os.kill(int(str(state["pid"])), signal.SIGTERM)
    wait_until(lambda: not running(options.version), "its end", STOP_SECONDS_MAX)
    return 0


def status(options: argparse.Namespace) -> int:
    state = running(options.version)
    unpacked = "unpacked" if is_prepared(options.version) else "not unpacked"
    print(described(state) if state else f"RabbitMQ {options.version} does not run ({unpacked})")
    return 0 if state else 1


def prepare_only(options: argparse.Namespace) -> int:
    print(prepare(options.version))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = {
        "prepare": prepare_only,
        "run": run,
        "start": start,
        "status": status,
        "stop": stop,
    }
    parser.add_argument("action", choices=actions)
    parser.add_argument("--version", choices=SUITES, default=VERSION)
    parser.add_argument("--port", type=int, default=0, help="of AMQP; a free one by default")
    parser.add_argument("--http-port", type=int, default=0, help="of the management API")
    parser.add_argument("--plugins", help=f"separated by commas; default {','.join(PLUGINS)}")
    parser.add_argument("--settings", metavar="FILE", help="lines added to rabbitmq.conf")
    options = parser.parse_args()
    try:
        return actions[options.action](options)
    except RabbitMQUnavailable as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
