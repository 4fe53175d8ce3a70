"""Where a session goes when its broker is gone: the failover map, and an order of addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from rhizome.client.connection_uri import Address
from rhizome.client.errors import (
    ConnectFailed,
    ConnectionLost,
    InvalidUri,
    ProtocolViolation,
    Redirected,
)
from rhizome.client.session.balancing_policies import Policy
from rhizome.errors import ConnectionForced

REDIRECTS_MAX: Final = 3
UNREACHABLE: Final = (OSError, ConnectionLost, ConnectionForced, ProtocolViolation)
"""Errors that another broker, or the same one a little later, may not give."""


@dataclass(frozen=True, slots=True)
class Failover:
    """How hard a session tries to find a broker after it lost one.

    tries_max       connections to try after a loss before the session gives up (0: never)
    current_tries   how many of these, the first ones, go to the broker that was lost: perhaps only
                    the network was (J8); each takes `current_timeout_ms` at most
    delay_ms        the pause after a round over all known brokers; doubles up to `delay_ms_max`
    patience_ms     how long a queue may be unavailable after that, while a broker takes it over
    heartbeat_s     a broker that says nothing for twice as long is gone
    connect_timeout_ms   how long one try may take
    """

    tries_max: int = 60
    current_tries: int = 1
    current_timeout_ms: int = 1_000
    delay_ms: int = 50
    delay_ms_max: int = 2_000
    patience_ms: int = 60_000
    heartbeat_s: int = 5
    connect_timeout_ms: int = 5_000


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker of the cluster, as the failover map tells of it."""

    name: str
    addresses: tuple[str, ...] = ()
    role: str = "primary"
    machine: str = ""
    draining: bool = False
    away: bool = False


@dataclass(frozen=True, slots=True)
class FailoverMap:
    """The brokers, and which take over from which (J1). `version` rises with changes."""

    version: int = -1
    brokers: dict[str, Broker] = field(default_factory=dict)
    failover: dict[str, tuple[str, ...]] = field(default_factory=dict)


def decode_map(version: int, entries: dict[str, object]) -> FailoverMap:
    """The map in a session.failover-map; what can't be understood is left out."""
    brokers: dict[str, Broker] = {}
    listed = entries.get("brokers")
    for each in listed if isinstance(listed, list) else []:
        if isinstance(each, dict) and isinstance(each.get("name"), str):
            broker = Broker(
                each["name"],
                _texts(each.get("addresses")),
                str(each.get("role", "primary")),
                str(each.get("machine", "")),
                each.get("draining") is True,
                each.get("away") is True,
            )
            brokers[broker.name] = broker
    told = entries.get("failover")
    failover = {
        str(name): _texts(names) for name, names in (told if isinstance(told, dict) else {}).items()
    }
    return FailoverMap(version, brokers, failover)


def _texts(values: object) -> tuple[str, ...]:
    return tuple(str(value) for value in values) if isinstance(values, list) else ()


class Search:
    """Addresses to try one after the other, until a broker accepts; follows redirects.

    for address in search:
        try:
            return dial(address, search.properties)
        except (Redirected, *UNREACHABLE) as error:
            search.failed(address, error)
    raise search.failure()
    """

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._ahead = list(addresses)
        self._failed: list[tuple[str, BaseException]] = []
        self._redirects = 0

    def __iter__(self) -> Iterator[Address]:
        while self._ahead:
            yield self._ahead.pop(0)

    @property
    def properties(self) -> dict[str, object]:
        """Properties for the next broker: one that we were redirected to does not redirect us."""
        return {"redirected": True} if self._redirects else {}

    def failed(
        self, address: Address, error: BaseException, at: Callable[[str], Address] | None = None
    ) -> None:
        """A broker did not accept. `at` makes an address of the host of a redirect."""
        self._failed.append((address.label, error))
        if isinstance(error, Redirected) and self._redirects < REDIRECTS_MAX:
            self._redirects += 1
            self._ahead.insert(0, (at or address.at)(error.host))

    def failure(self) -> ConnectFailed:
        """The error if no broker accepted, with the reasons."""
        return ConnectFailed(self._failed)


class AddressBook:
    """The addresses that a session knows: those it was given, and those that brokers told it.

    Invariant: no two of them have the same host and port; what was given comes first.
    """

    def __init__(self, given: Sequence[Address], policy: Policy) -> None:
        self.map = FailoverMap()
        self._policy = policy
        self._pattern = given[0]
        self._known: dict[str, Address] = {}
        for address in given:
            self._known.setdefault(address.label, address)

    def learn_hosts(self, hosts: str) -> None:
        """Addresses as open-ok and redirects list them."""
        for host in hosts.split(","):
            if host:
                self._learn(host)

    def learn_map(self, told: FailoverMap) -> bool:
        """A map came; False if it is older than the one that is known.

        Versions only compare within a cluster: one without any broker of the old map is another.
        """
        others = not told.brokers.keys() & self.map.brokers.keys()
        if told.version < self.map.version and not others:
            return False
        self.map = told
        for broker in told.brokers.values():
            for host in broker.addresses:
                self._learn(host)
        return True

    def first_round(self) -> list[Address]:
        """In which order to try them for the first time."""
        return list(self._policy(list(self._known.values())))

    def next_round(self) -> list[Address]:
        """The order of the next round; brokers that are known to be useless come last."""
        ordered = self.first_round()
        useless = self._useless()
        return sorted(ordered, key=lambda address: address.label in useless)

    def after(self, lost: Address, broker: str) -> list[Address]:
        """The first round after the broker at this address was lost, without that one."""
        heirs: list[Address] = []
        for name in self.map.failover.get(broker, ()):
            heirs.extend(self._addresses_of(name))
        rest = [each for each in self.next_round() if each not in heirs and each != lost]
        return [*dict.fromkeys(heirs), *rest]

    def at(self, host: str) -> Address:
        """The address of a broker that another one named; raises InvalidUri."""
        return self._learn(host)

    def is_useless(self, address: Address) -> bool:
        """Whether the map says that this broker serves no applications at present."""
        return address.label in self._useless()

    def _learn(self, host: str) -> Address:
        address = self._pattern.at(host)
        return self._known.setdefault(address.label, address)

    def _addresses_of(self, name: str) -> list[Address]:
        broker = self.map.brokers.get(name)
        if broker is None or broker.away or broker.draining:
            return []
        found = []
        for host in broker.addresses:
            try:
                found.append(self._learn(host))
            except InvalidUri:
                continue
        return found

    def _useless(self) -> set[str]:
        return {
            self._pattern.at(host).label
            for broker in self.map.brokers.values()
            if broker.away or broker.draining
            for host in broker.addresses
        }
