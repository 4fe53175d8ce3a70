"""Core configs: the brokers of one machine that share its listeners (`rhizome serve --cores N`).

The first is the broker that the configuration describes. The others are secondaries beside it, so
that they work together like any brokers of a cluster. A configuration without primaries becomes a
cluster whose only primary is the first.

    DATA/                     store of the first
    DATA/cores/<name>/        store of each other
    DATA/cores/<name>.pid     process of each, while it runs
    DATA/cores/links          Unix socket at which the others dial the first
    DATA/cores/key            cluster key, if the configuration has none
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from rhizome.errors import RhizomeError
from rhizome.journal.files import make_directory
from rhizome.server.config.broker_config import Config
from rhizome.server.config.cluster_section import SECONDARY, ClusterSection, Primary, advertised
from rhizome.server.config.multi_core_checks import core_name
from rhizome.server.config.units import UNIX, Address, Portion, UnitError, parse_address

DIRECTORY: Final = "cores"


class CoresError(RhizomeError):
    """The brokers of a machine can't be started; the text says what to do."""


class CorePlan:
    """The configurations of the brokers of one machine, made from one.

    ``listening``: listen.amqp and then listen.tls, with the ports that were chosen.
    """

    def __init__(self, config: Config, listening: Sequence[Address]) -> None:
        plain = tuple(listening[: len(config.listen.amqp)])
        secured = tuple(listening[len(plain) :])
        self.directory = Path(config.broker.data).absolute() / DIRECTORY
        self._given = config
        self._links = self._link_address()
        self._cluster = self._shared_cluster(plain)
        self._listen = replace(config.listen, amqp=plain, tls=secured)
        self._memory = replace(
            config.memory,
            high_watermark=_part(config.memory.high_watermark, config.broker.cores),
        )

    def pid_file(self, name: str) -> Path:
        return self.directory / f"{name}.pid"

    @property
    def socket(self) -> Path:
        return Path(self._links.path)

    def configs(self) -> list[Config]:
        """One configuration for each broker, the first first; writes the key that they share."""
        make_directory(self.directory.parent)
        self.directory.mkdir(mode=0o700, exist_ok=True)
        _check_own(self.directory, stat.S_ISDIR)
        self.directory.chmod(0o700)
        if not self._given.cluster.is_clustered:
            _write_key(self.directory / "key")
        count = self._given.broker.cores
        return [self._first(), *(self._other(number) for number in range(2, count + 1))]

    def reread(self, name: str, fresh: Config) -> Config:
        """The configuration of one broker after a reload. The number of brokers stays as it is."""
        count = self._given.broker.cores
        same = replace(fresh, broker=replace(fresh.broker, cores=count))
        plan = CorePlan(same, [*self._listen.amqp, *self._listen.tls])
        (found,) = [each for each in plan.configs() if each.broker.name == name] or [same]
        return replace(found, broker=replace(found.broker, cores=fresh.broker.cores))

    def _first(self) -> Config:
        given = self._given
        links = given.listen.links
        if given.cluster.role != SECONDARY:
            links = (*links, self._links)
        return replace(
            given,
            listen=replace(self._listen, links=links),
            cluster=self._cluster,
            memory=self._memory,
        )

    def _other(self, number: int) -> Config:
        given = self._given
        name = core_name(given.broker.name, number)
        broker = replace(given.broker, name=name, data=str(self.directory / name))
        primaries = tuple(self._seen_beside(each) for each in self._cluster.primaries)
        return replace(
            given,
            broker=broker,
            listen=replace(self._listen, http=(), https=(), links=()),
            cluster=replace(self._cluster, role=SECONDARY, primaries=primaries),
            memory=self._memory,
        )

    def _seen_beside(self, primary: Primary) -> Primary:
        """How a broker beside the first dials a primary: the first over its Unix socket, unless
        links show certificates."""
        if primary.name != self._given.broker.name or self._cluster.tls:
            return primary
        return Primary(primary.name, self._links)

    def _shared_cluster(self, listening: tuple[Address, ...]) -> ClusterSection:
        section = self._given.cluster
        name = self._given.broker.name
        if not section.is_clustered:
            section = replace(
                section,
                name=section.name or name,
                key="",
                key_file=str(self.directory / "key"),
                primaries=(Primary(name, self._links),),
                tls=False,
            )
        # Told to applications: the addresses that the brokers share, not those of links only.
        told = section.advertise or advertised(replace(section, primaries=()), name, listening)
        return replace(section, advertise=told)

    def _link_address(self) -> Address:
        try:
            return parse_address(f"{UNIX}{self.directory / 'links'}")
        except UnitError as error:
            raise CoresError(f"{error}; choose a shorter data directory") from None


def store_directories(config: Config) -> list[Path]:
    """Where the brokers of a machine keep their stores, the first first."""
    data = Path(config.broker.data)
    names = [core_name(config.broker.name, number) for number in range(2, config.broker.cores + 1)]
    return [data, *(data / DIRECTORY / name for name in names)]


def _part(watermark: Portion, count: int) -> Portion:
    """The share of the memory that one of ``count`` processes may use."""
    if watermark.percent is not None:
        return Portion(percent=watermark.percent / count)
    assert watermark.bytes is not None, "a portion is bytes or percent"
    return Portion(bytes=watermark.bytes // count)


def _check_own(path: Path, is_kind: Callable[[int], bool]) -> None:
    """Raise CoresError unless this is the broker's own. Where others may write to the data
    directory, they could put one there, with a cluster key in it that they know."""
    status = path.lstat()
    if not is_kind(status.st_mode) or status.st_uid != os.geteuid():
        raise CoresError(
            f"{path} was made by another user than the broker's, or is a link: run the broker as"
            " that user, or remove it; and let nobody else write to the data directory"
        )


def _write_key(path: Path) -> None:
    """A key for a cluster that is all on this machine; an existing one is kept."""
    if path.is_symlink() or path.exists():
        _check_own(path, stat.S_ISREG)
        return
    fresh = path.with_name(".key.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_urlsafe(32) + "\n")
    fresh.replace(path)
