"""Spark's cluster managers (what --master names): what kind one is, which address of this host
leads to it, and whether executors come.

A driver announces an address to its executors, which connect to it. One that they can't reach makes
them start and exit for ever, without an error: so the address is that of the interface which leads
to the cluster manager, and executors are waited for.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from rhizome.errors import RhizomeError

LOOPBACK: Final = "127.0.0.1"
ANY: Final = "0.0.0.0"
MASTER_SECONDS_MAX: Final = 10.0
LOOK_SECONDS: Final = 0.2
SETTLE_SECONDS: Final = 1.5
"""Executors of one job come one after the other; so long after the last they count as all."""
PORTS_DEFAULT: Final = {"spark": 7077, "http": 80, "https": 443, "sc": 15002}
HOST: Final = "spark.driver.host"
BIND: Final = "spark.driver.bindAddress"
_LOCAL: Final = re.compile(r"local(\[.*\]|-cluster\[.*\])?")


class SessionError(RhizomeError):
    """A session can't be had; the text says why, and what to check."""


@dataclass(frozen=True)
class DriverAddress:
    """Where the driver listens (`bind`), and what it tells executors (`announced`). Empty: Spark
    finds out by itself.
    """

    announced: str = ""
    bind: str = ""

    def settings(self) -> dict[str, str]:
        found = {HOST: self.announced, BIND: self.bind}
        return {key: value for key, value in found.items() if value}


def is_local(where: str) -> bool:
    """Whether all processes of Spark are on this host."""
    return _LOCAL.fullmatch(where) is not None


def is_connect(where: str) -> bool:
    """Whether it is a server of Spark Connect, which has the driver."""
    return where.startswith("sc://")


def has_remote_driver(session: Any) -> bool:
    """Whether a session is Spark Connect's: its driver is elsewhere, and there is no context."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def shown(where: str) -> str:
    """A cluster manager without its parameters: those of a server of Spark Connect may have a
    token."""
    return where.partition("/;")[0]


def endpoints(where: str) -> list[tuple[str, int]]:
    """Hosts and ports of a cluster manager; none if its name doesn't say (yarn)."""
    scheme, _, rest = where.partition("://")
    if not rest:
        return []
    if scheme == "k8s":
        scheme, _, rest = rest.rpartition("://")
        scheme = scheme or "https"
    found = []
    for part in rest.split(","):
        found_at = urlsplit(f"//{part}")
        if found_at.hostname:
            port = found_at.port or PORTS_DEFAULT.get(scheme, 7077)
            found.append((found_at.hostname, port))
    return found


def driver_address(
    where: str, given: Mapping[str, str], host: str, environment: Mapping[str, str]
) -> DriverAddress:
    """Where a driver listens and what it announces: what `host` or the settings say, else loopback
    where all is local, else the address of the interface that leads to the cluster manager.
    """
    if is_local(where) and not host:
        own = environment.get("SPARK_LOCAL_IP") or LOOPBACK
        return DriverAddress(given.get(HOST, own), given.get(BIND, own))
    announced = host or given.get(HOST, "") or environment.get("SPARK_LOCAL_IP", "")
    if not announced:
        announced = _leading_to(endpoints(where))
    bind = given.get(BIND, "")
    if announced and not bind:
        # An address that isn't on this host is forwarded to it (a container's host, a service).
        bind = announced if is_own(announced) else ANY
    return DriverAddress(announced, bind)


def _leading_to(found: list[tuple[str, int]]) -> str:
    """The address of this host that packets to a cluster manager leave from."""
    for host, port in found:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_DGRAM
            )[0]
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)  # sends nothing
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return ""


def is_own(address: str) -> bool:
    """Whether an address or name is one of this host's."""
    try:
        family, kind, protocol, _, found = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[
            0
        ]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(found)
    except OSError:
        return False
    return True


def check_reachable(where: str) -> None:
    """Spark itself tries for a minute and then says that it was stopped."""
    if not where.startswith(("spark://", "sc://")):
        return  # others may be behind a proxy
    troubles = []
    for host, port in endpoints(where):
        try:
            socket.create_connection((host, port), MASTER_SECONDS_MAX).close()
        except OSError as error:
            troubles.append(f"{host}:{port}: {error.strerror or error}")
        else:
            return
    if troubles:
        raise SessionError(
            f"{shown(where)} can't be reached ({'; '.join(troubles)}); check that it runs and "
            "that this host may connect to it"
        )


def executor_count(session: Any) -> int:
    """How many executors have registered; the driver isn't one."""
    return int(session.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) - 1


def await_executors(
    session: Any, where: str, seconds: float, address: DriverAddress, port: str
) -> int:
    """Wait for executors, and until no more come; how many there are.

    Raises SessionError if none has come in time, or if Spark gave up.
    """
    _ask_for_one(session)
    deadline = time.monotonic() + seconds
    pause = threading.Event()  # never set
    count, since = 0, time.monotonic()
    while True:
        found = _count_or_raise(session, where)
        if found != count:
            count, since = found, time.monotonic()
        if count and time.monotonic() - since >= SETTLE_SECONDS:
            return count
        if not count and time.monotonic() > deadline:
            raise SessionError(_none_came(where, seconds, address, port))
        pause.wait(LOOK_SECONDS)


def _count_or_raise(session: Any, where: str) -> int:
    try:
        if not session.sparkContext._jsc.sc().isStopped():
            return executor_count(session)
    except Exception as error:
        raise SessionError(f"{where} has ended the session: {error}") from None
    raise SessionError(f"{where} has ended the session before an executor came; its log says why")


def _ask_for_one(session: Any) -> None:
    """With dynamic allocation executors are asked for when there is work, and not before."""
    context = session.sparkContext
    if context.getConf().get("spark.dynamicAllocation.enabled", "false").lower() == "true":
        job = threading.Thread(target=_small_job, args=(session,), daemon=True)
        job.start()


def _small_job(session: Any) -> None:
    from pyspark.errors import PySparkException

    try:
        session.range(1).count()
    except PySparkException:
        return  # the session was stopped: nobody came


def _none_came(where: str, seconds: float, address: DriverAddress, port: str) -> str:
    announced = address.announced or "what Spark has chosen"
    return (
        f"no executor has registered within {seconds:g} s. The cluster is {where}; the driver "
        f"announced itself as {announced}:{port} and listens on {address.bind or 'all addresses'}. "
        "Check that the cluster has workers with enough free cores and memory (the page of "
        "the cluster says so), that workers may connect to that address and port (firewall; --conf "
        "spark.driver.port=PORT makes it a fixed one), and that it is the right one "
        "(--driver-host ADDRESS). --executor-timeout SECONDS waits longer"
    )
