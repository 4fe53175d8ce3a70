"""The directory of a local cluster: its brokers, their ports and their files.

DIR/up.json               shape of the cluster, so that the next `up` starts the same
DIR/lock                  held while an `up` runs
DIR/control               socket on which `up --restart` asks the running `up`
DIR/cluster.key           the cluster key, for its owner's eyes
DIR/<name>/rhizome.toml   configuration of a broker, written anew at each start
DIR/<name>/pid            its process, while it runs
DIR/<name>/log            what it logs
DIR/<name>/data/          its store
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Final

from rhizome.cli.errors import CliError, UsageError
from rhizome.server.config.cluster_section import PRIMARIES_MAX, PRIMARY, SECONDARY
from rhizome.server.config.config_fields import toml, toml_list

HOST: Final = "127.0.0.1"
PORT_MAX: Final = 65_535
SECONDARIES_MAX: Final = 100
FORMAT: Final = 1
CLUSTER_NAME: Final = "local"
LOG_MODE: Final = 0o640
# Variables that would give all brokers of a local cluster what each must have for itself.
OWN_SETTINGS: Final = (
    "RHIZOME_BROKER_",
    "RHIZOME_LISTEN_",
    "RHIZOME_LOG_FILE",
    "RHIZOME_CLUSTER_ADVERTISE",
    "RHIZOME_CLUSTER_KEY",
    "RHIZOME_CLUSTER_MACHINE",
    "RHIZOME_CLUSTER_NAME",
    "RHIZOME_CLUSTER_PRIMARIES",
    "RHIZOME_CLUSTER_ROLE",
)


@dataclass(frozen=True, slots=True)
class Shape:
    """How many brokers there are, and their first ports."""

    brokers: int = 3
    secondaries: int = 0
    base_port: int = 5672
    http_base_port: int = 15672

    def check(self) -> None:
        count = self.brokers + self.secondaries
        if not 1 <= self.brokers <= PRIMARIES_MAX:
            raise UsageError(f"--brokers {self.brokers}: give 1 to {PRIMARIES_MAX}")
        if not 0 <= self.secondaries <= SECONDARIES_MAX:
            raise UsageError(f"--secondaries {self.secondaries}: give 0 to {SECONDARIES_MAX}")
        for option, first in (
            ("--base-port", self.base_port),
            ("--http-base-port", self.http_base_port),
        ):
            if not 1 <= first <= PORT_MAX - count + 1:
                raise UsageError(
                    f"{option} {first}: {count} ports from there on must be 1 to 65535"
                )
        if abs(self.base_port - self.http_base_port) < count:
            raise UsageError(
                f"--base-port {self.base_port} and --http-base-port {self.http_base_port} overlap:"
                f" each takes {count} ports"
            )


@dataclass(frozen=True, slots=True)
class LocalBroker:
    """One broker of a local cluster and where everything of it is."""

    name: str
    role: str
    port: int
    http_port: int
    directory: Path

    @property
    def amqp(self) -> str:
        return f"amqp://{HOST}:{self.port}"

    @property
    def http(self) -> str:
        return f"http://{HOST}:{self.http_port}"

    @property
    def config(self) -> Path:
        return self.directory / "rhizome.toml"

    @property
    def store(self) -> Path:
        return self.directory / "data"

    @property
    def pid_file(self) -> Path:
        return self.directory / "pid"

    @property
    def log(self) -> Path:
        return self.directory / "log"

    def open_log(self) -> BinaryIO:
        """Open the log for appending. It has names and addresses, so not everybody may read it."""
        return open(self.log, "ab", opener=_open_closed)

    def write_pid(self, pid: int) -> None:
        write_whole(self.pid_file, f"{pid}\n")

    def read_pid(self) -> int | None:
        try:
            written = self.pid_file.read_text("ascii").strip()
        except (OSError, UnicodeDecodeError):
            return None
        return int(written) if written.isdigit() else None

    def log_tail(self, lines_max: int) -> list[str]:
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - 65_536))
                lines = log.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return []
        return lines[-lines_max:]


def _open_closed(path: str, flags: int) -> int:
    return os.open(path, flags, LOG_MODE)


class Layout:
    """The places of all brokers, primaries first."""

    def __init__(self, directory: Path, shape: Shape) -> None:
        self.directory = directory
        self.shape = shape
        primaries = [(f"b{n + 1}", PRIMARY) for n in range(shape.brokers)]
        secondaries = [(f"s{n + 1}", SECONDARY) for n in range(shape.secondaries)]
        self.places = {
            name: LocalBroker(
                name, role, shape.base_port + n, shape.http_base_port + n, directory / name
            )
            for n, (name, role) in enumerate(primaries + secondaries)
        }

    @property
    def control(self) -> Path:
        return self.directory / "control"

    @property
    def key_file(self) -> Path:
        return self.directory / "cluster.key"

    def write(self) -> None:
        """Write every file that the brokers read; an existing key is kept."""
        if not self.key_file.exists():
            write_whole(self.key_file, secrets.token_urlsafe(32) + "\n", 0o600)
        for place in self.places.values():
            place.directory.mkdir(parents=True, exist_ok=True)
            write_whole(place.config, self.configuration(place))
        text = json.dumps({"format": FORMAT, **asdict(self.shape)}, indent=2)
        write_whole(shape_file(self.directory), text + "\n")

    def configuration(self, place: LocalBroker) -> str:
        primaries = [
            f"{each.name}={HOST}:{each.port}"
            for each in self.places.values()
            if each.role == PRIMARY
        ]
        return "\n".join(
            [
                "# Written by `rhizome up` each time it starts; changes are lost.",
                "# Environment variables such as RHIZOME_JOURNAL_FLUSH hold for all its brokers.",
                "[broker]",
                f"name = {toml(place.name)}",
                f"data = {toml(str(place.store))}",
                "[listen]",
                f"amqp = {toml_list([f'{HOST}:{place.port}'])}",
                f"http = {toml_list([f'{HOST}:{place.http_port}'])}",
                "[cluster]",
                f"name = {toml(CLUSTER_NAME)}",
                f"key_file = {toml(str(self.key_file))}",
                f"role = {toml(place.role)}",
                f"primaries = {toml_list(primaries)}",
                "# Each stands for a machine of its own: else only one of them would vote.",
                f"machine = {toml('machine-' + place.name)}",
                "",
            ]
        )


def shape_file(directory: Path) -> Path:
    return directory / "up.json"


def read_shape(directory: Path) -> Shape | None:
    """The shape of the cluster that is in a directory, if there is one."""
    path = shape_file(directory)
    try:
        document = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        document = None
    fields = Shape.__dataclass_fields__
    if not isinstance(document, dict) or not all(
        isinstance(document.get(name), int) for name in ("format", *fields)
    ):
        raise CliError(f"{path} is damaged; give another --data, or remove what is there")
    if document["format"] != FORMAT:
        raise CliError(
            f"{path} was written by another release (format {document['format']}, here {FORMAT});"
            " give another --data"
        )
    return Shape(**{name: document[name] for name in fields})


def choose_shape(directory: Path, asked: Mapping[str, int | None]) -> Shape:
    """What was asked for, else what the directory holds, else the defaults.

    The primaries of a cluster are in its state, so their number is no longer an option.
    """
    held = read_shape(directory)
    given = {name: value for name, value in asked.items() if value is not None}
    shape = Shape(**{**(asdict(held) if held else {}), **given})
    shape.check()
    if held is not None and held.brokers != shape.brokers:
        raise CliError(
            f"{directory} holds a cluster of {held.brokers} primaries; leave out --brokers to start"
            f" it, or give another --data for one of {shape.brokers}"
        )
    if held is None and (directory / "store.json").exists():
        raise CliError(
            f"{directory} is the store of a lone broker; give another --data for the cluster"
        )
    return shape


def brokers_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of the brokers: this one's, without what each has in its own file."""
    return {name: value for name, value in environ.items() if not name.startswith(OWN_SETTINGS)}


def write_whole(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace a file in one step, so that no reader sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        file.write(text)
    fresh.replace(path)
