"""The API context: what the handlers of the HTTP API share: the broker, its shell and store, and
the login service.

The server passes its own objects in; the protocols here say what the API needs of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from rhizome.broker.access.auth_interface import AuthDone, Peer
from rhizome.broker.broker import Broker
from rhizome.broker.queue.queue import Queue
from rhizome.journal.store import Store
from rhizome.management.cluster_view import ClusterControl, ClusterView
from rhizome.management.errors import Unavailable
from rhizome.management.http.console_sessions import ConsoleSessions
from rhizome.management.journal_readers import JournalReaders, ReaderSettings
from rhizome.management.metrics.message_rates import Rates
from rhizome.management.metrics.process_stats import machine_memory_bytes
from rhizome.management.metrics.slow_turns import SlowTurns
from rhizome.management.peers.peer_requests import NoPeers, PeerBrokers
from rhizome.management.rabbitmq_api.queue_order import QueueOrder
from rhizome.security.audit_log import Audit
from rhizome.security.login_service import LoginStatistics
from rhizome.security.password_hashes import ScryptCost
from rhizome.security.sasl_mechanisms import Credentials

PIPELINES_MAX: Final = 100
"""How many services one broker shows."""


@dataclass(frozen=True, slots=True)
class PipelineReport:
    """What a service has reported. ``user`` is who reported it."""

    name: str
    vhost: str
    user: str
    state: str
    host: str
    flows: list[dict[str, Any]]
    reported_ms: int


ANSWER_BYTES_MAX: Final = 256 << 20
ANSWER_BYTES_OF_USER_MAX: Final = 64 << 20
"""The bytes of long answers that were not read yet: of all users, and of one."""

LONG_ANSWERS_MAX: Final = 4
LONG_ANSWER_SECONDS_MAX: Final = 30.0
"""How many long answers are made at the same time, and how long another one waits."""


class ListenAddress(Protocol):
    """Where to listen: an empty host is every interface, `localhost` both loopback addresses."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...


class ListenSettings(Protocol):
    @property
    def amqp(self) -> Sequence[ListenAddress]: ...
    @property
    def tls(self) -> Sequence[ListenAddress]: ...
    @property
    def http(self) -> Sequence[ListenAddress]: ...
    @property
    def https(self) -> Sequence[ListenAddress]: ...


class Portion(Protocol):
    def of(self, total_bytes: int, /) -> int: ...


class MemorySettings(Protocol):
    @property
    def high_watermark(self) -> Portion: ...


class DiskSettings(Protocol):
    @property
    def free_min_bytes(self) -> int: ...


class TlsSettings(Protocol):
    @property
    def certificate(self) -> str: ...


class LimitSettings(Protocol):
    @property
    def handshake_timeout_ms(self) -> int: ...


class HttpSettings(Protocol):
    @property
    def allowed_hosts(self) -> tuple[str, ...]: ...
    @property
    def connections_max(self) -> int: ...
    @property
    def connections_per_address_max(self) -> int: ...
    @property
    def hsts_ms(self) -> int: ...


class HttpConfig(Protocol):
    """The settings of the configuration that the API reads."""

    @property
    def journal(self) -> ReaderSettings: ...

    @property
    def listen(self) -> ListenSettings: ...
    @property
    def memory(self) -> MemorySettings: ...
    @property
    def disk(self) -> DiskSettings: ...
    @property
    def tls(self) -> TlsSettings: ...
    @property
    def limits(self) -> LimitSettings: ...

    @property
    def http(self) -> HttpSettings: ...

    def host_names(self) -> frozenset[str]: ...
    def password_cost(self) -> ScryptCost: ...


class Turns(Protocol):
    """What the API needs of the shell. `begin_turn` comes before every change of the core, and each
    stretch of a request between two waits is reported, to be timed."""

    alarm: str
    congested: bool

    @property
    def turns(self) -> int: ...

    def begin_turn(self) -> None: ...
    def step_began(self, doing: str, /) -> None: ...
    def step_ended(self) -> None: ...


class LoginChecker(Protocol):
    """Checks passwords, and throttles clients that guess them."""

    @property
    def statistics(self) -> LoginStatistics: ...
    @property
    def takes_tokens(self) -> bool: ...

    def check(
        self,
        credentials: Credentials,
        peer: Peer,
        done: AuthDone,
        kinds: frozenset[str] | None = None,
    ) -> None: ...


class LogStatus(Protocol):
    """What is known of a log that a thread writes."""

    @property
    def log(self) -> str: ...
    @property
    def lost_lines(self) -> int: ...
    @property
    def waiting_lines(self) -> int: ...
    @property
    def stuck_ms(self) -> int: ...


class IssuerStatus(Protocol):
    """What is known of an issuer whose keys are fetched."""

    @property
    def name(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def keys_count(self) -> int: ...
    @property
    def left_out(self) -> Sequence[str]: ...
    @property
    def age_ms(self) -> int | None: ...
    @property
    def trouble(self) -> str: ...
    @property
    def fetches(self) -> int: ...
    @property
    def failures(self) -> int: ...


def no_issuers() -> Sequence[IssuerStatus]:
    return ()


@dataclass(frozen=True, slots=True)
class Listener:
    """One address that this broker listens on."""

    protocol: str
    host: str
    port: int

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        scheme = self.protocol.partition("/")[0]
        return f"{scheme}{'s' if self.protocol.endswith('/ssl') else ''}://{host}:{self.port}"


StallSource = Callable[[], list[dict[str, object]]]
"""Returns what waits at this broker, as rows of `rhizome.management.rhizome_api.stalls`."""


class WaitingAnswers:
    """The bytes of long answers that wait to be read. Invariant: ``total`` is the sum over all
    users."""

    def __init__(self) -> None:
        self.total = 0
        self._of: dict[str, int] = {}

    def check(self, user: str, size: int) -> None:
        """Raises Unavailable if there are too many for another one; a single one is never too
        large."""
        own = self._of.get(user, 0)
        if own and (own + size > ANSWER_BYTES_OF_USER_MAX or self.total + size > ANSWER_BYTES_MAX):
            raise Unavailable("there are too many long answers that nobody has read yet; try again")

    def add(self, user: str, size: int) -> None:
        self.total += size
        self._of[user] = self._of.get(user, 0) + size

    def remove(self, user: str, size: int) -> None:
        self.total -= size
        self._of[user] -= size
        if not self._of[user]:
            del self._of[user]


class LongAnswers:
    """Lets a few long answers be made at the same time and makes others wait, because each has its
    rows in memory. Requests of other brokers have a line of their own, or two brokers that ask each
    other would wait for each other. ``waiting`` counts those that wait."""

    def __init__(self) -> None:
        self.waiting = 0
        self._places = {asked: asyncio.Semaphore(LONG_ANSWERS_MAX) for asked in (False, True)}

    @contextlib.asynccontextmanager
    async def place(self, asked: bool) -> AsyncIterator[None]:
        places = self._places[asked]
        self.waiting += 1
        try:
            async with asyncio.timeout(LONG_ANSWER_SECONDS_MAX):
                await places.acquire()
        except TimeoutError:
            raise Unavailable(
                f"{LONG_ANSWERS_MAX} long answers are being made, and others wait; try again, and"
                " ask for pages"
            ) from None
        finally:
            self.waiting -= 1
        try:
            yield
        finally:
            places.release()


@dataclass(slots=True)
class Context:
    """The broker that this API speaks for. A standalone one has neither view nor control of a
    cluster."""

    config: HttpConfig
    broker: Broker
    shell: Turns
    login: LoginChecker
    store: Store
    rates: Rates
    started_ms: int
    http_listeners: list[Listener] = field(default_factory=list)
    machine: str = field(default_factory=socket.gethostname)
    view: ClusterView | None = None
    control: ClusterControl | None = None
    others: PeerBrokers = field(default_factory=NoPeers)
    logins: ConsoleSessions = field(default_factory=ConsoleSessions)
    audit: Audit = field(default_factory=Audit)
    stall_sources: list[StallSource] = field(default_factory=list)
    body_bytes: int = 0
    """The bytes of the bodies of requests in progress."""
    import_bytes: int = 0
    """The bytes of those that import definitions."""
    waiting_answers: WaitingAnswers = field(default_factory=WaitingAnswers)
    long_answers: LongAnswers = field(default_factory=LongAnswers)
    slow_turns: SlowTurns = field(default_factory=SlowTurns)
    queue_order: QueueOrder = field(default_factory=QueueOrder)
    logs: Sequence[LogStatus] = ()
    issuers: Callable[[], Sequence[IssuerStatus]] = no_issuers
    pipelines: dict[tuple[str, str], PipelineReport] = field(default_factory=dict)
    """The reports of pipeline services to this broker, by vhost and name."""
    journal_readers: JournalReaders = field(init=False)

    def __post_init__(self) -> None:
        self.journal_readers = JournalReaders(self.store)

    @property
    def name(self) -> str:
        return self.broker.settings.name

    def now_ms(self) -> int:
        return int(self.broker.turn.now_ms)

    def uptime_ms(self) -> int:
        return max(0, self.now_ms() - self.started_ms)

    def memory_max_bytes(self) -> int:
        return self.config.memory.high_watermark.of(machine_memory_bytes())

    def listeners(self) -> list[Listener]:
        listen = self.config.listen
        found = [Listener("amqp", each.host, each.port) for each in listen.amqp]
        found += [Listener("amqp/ssl", each.host, each.port) for each in listen.tls]
        return found + self.http_listeners

    def addresses(self) -> list[str]:
        return [listener.url for listener in self.listeners()]

    def queues(self) -> Iterator[Queue]:
        """All queues that run here, including private ones."""
        return self.rates.queues()
