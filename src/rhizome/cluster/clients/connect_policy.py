"""Connect policy: which broker takes an application (O11, O23, H21, J9).

``connect_policy``:

    serve         the broker that an application connects to serves it
    redirect      clients that can follow are sent to the broker with the fewest connections
    active-only   only brokers that are home of a group serve; the others send clients that can
                  follow to one that does, and tell the others its address

A client that asks for the root (client property ``want`` = "root") is sent there under every
policy. One that says it was sent here (``redirected``) is served if that is allowed at all, so that
nobody is sent in circles. A broker that is being drained takes nobody.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from rhizome.broker.access.application_cluster_token import ApplicationTokens
from rhizome.cluster.link.broker_hello import WITNESS
from rhizome.errors import ConnectionForced

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.connection.connection import Connection
    from rhizome.cluster.consensus import Consensus
    from rhizome.cluster.gossip import Gossip
    from rhizome.cluster.link.broker_hello import Hello
    from rhizome.cluster.link.link_manager import LinkTable
    from rhizome.cluster.state.cluster_state import ClusterState

SERVE: Final = "serve"
REDIRECT: Final = "redirect"
ACTIVE_ONLY: Final = "active-only"

SLACK: Final = 2
"""A broker sends no client away for having this many connections more than the least loaded one."""

HOSTS_MAX: Final = 8
HOSTS_BYTES_MAX: Final = 255


@dataclass(frozen=True)
class AdmissionRules:
    """Which applications are sent elsewhere, and what they must show at first."""

    policy: str = SERVE
    tokens: ApplicationTokens = field(default_factory=ApplicationTokens)


class AdmissionNode(Protocol):
    """What admission needs of the node."""

    broker: Broker
    me: Hello
    state: ClusterState
    consensus: Consensus
    links: LinkTable
    gossip: Gossip


class Admission:
    """Decides for one broker. ``sent`` counts the clients sent to each broker since it was last
    heard of."""

    def __init__(self, node: AdmissionNode, rules: AdmissionRules) -> None:
        self._node = node
        self._rules = rules
        self.tokens = rules.tokens
        self._sent: dict[str, int] = {}

    def heard_of(self, name: str) -> None:
        """A broker has told how many connections it has."""
        self._sent.pop(name, None)

    def destination(self, connection: Connection) -> str:
        """Where an application is to go; "": served here. Raises the error with which it is
        refused."""
        properties = connection.client_properties
        able = _is_able(properties)
        redirected = properties.get("redirected") is True
        node = self._node
        me = node.me.name
        wanted = me
        if able and not redirected and properties.get("want") == "root":
            wanted = node.consensus.root or me
        elif self._must_go():
            wanted = self._other() if self._is_draining(me) else self._active()
            if not able or not wanted:
                raise self._passive(wanted)
        elif able and not redirected and self._rules.policy == REDIRECT:
            wanted = self._least_loaded()
        return "" if wanted == me else self._send_to(wanted)

    def less_loaded(self) -> str:
        """Where a client that is here might go, by the policy; "" if it should stay."""
        if self._rules.policy != REDIRECT:
            return ""
        wanted = self._least_loaded()
        return "" if wanted == self._node.me.name else self._send_to(wanted)

    def elsewhere(self) -> str:
        """Where clients of this broker go that can't stay; "" if there is nowhere to go."""
        wanted = self._other()
        return self._send_to(wanted) if wanted else ""

    def _send_to(self, name: str) -> str:
        address = self._address(name)
        if address:
            self._sent[name] = self._sent.get(name, 0) + 1
        return address

    def known_hosts(self) -> str:
        """The addresses of the other brokers, as open-ok carries them."""
        hosts = ""
        told = dict.fromkeys(self._node.me.addresses)  # brokers of one machine may share theirs
        for record in self._node.state.registry.view()[:HOSTS_MAX]:
            if record.name == self._node.me.name or record.role == WITNESS:
                continue
            for address in record.addresses[:1]:
                longer = f"{hosts},{address}" if hosts else address
                if address not in told and len(longer.encode()) <= HOSTS_BYTES_MAX:
                    told[address] = None
                    hosts = longer
        return hosts

    def _must_go(self) -> bool:
        """Whether this broker serves no applications at present."""
        node = self._node
        if node.me.role == WITNESS or self._is_draining(node.me.name):
            return True
        if self._rules.policy != ACTIVE_ONLY:
            return False
        return node.me.name not in self._homes()

    def _homes(self) -> list[str]:
        return list(dict.fromkeys(each.home for each in self._node.state.groups.groups.values()))

    def _active(self) -> str:
        """A broker that is linked and serves: the root if it does, else the first home."""
        linked = [name for name in self._homes() if self._node.links.link_to(name) is not None]
        root = self._node.consensus.root
        if root in linked:
            return root
        return linked[0] if linked else ""

    def _is_draining(self, name: str) -> bool:
        record = self._node.state.registry.brokers.get(name)
        return record is not None and record.draining

    def _least_loaded(self) -> str:
        """The broker with the fewest connections; this one if it has hardly more."""
        loads = self._loads()
        best = min(loads, key=lambda name: loads[name], default="")
        mine = len(self._node.broker.running_connections())
        return best if best and loads[best] < mine - SLACK else self._node.me.name

    def _other(self) -> str:
        """The other broker that has the fewest connections and serves; "" if there is none."""
        loads = self._loads()
        if self._rules.policy == ACTIVE_ONLY:
            homes = self._homes()
            loads = {name: load for name, load in loads.items() if name in homes}
        return min(loads, key=lambda name: loads[name], default="")

    def _loads(self) -> dict[str, int]:
        """The connections of the other brokers that take clients, with those sent there lately."""
        loads: dict[str, int] = {}
        for name, told in self._node.gossip.heard.items():
            record = self._node.state.registry.brokers.get(name)
            count = told.get("connections")
            if record is None or record.role == WITNESS or record.draining:
                continue
            if not record.addresses:
                continue  # an edge, which serves the applications of its own host
            if told.get("ready") is True and isinstance(count, int):
                loads[name] = count + self._sent.get(name, 0)
        return loads

    def _address(self, name: str) -> str:
        record = self._node.state.registry.brokers.get(name)
        return _first(record.addresses) if record is not None else ""

    def _passive(self, active: str) -> ConnectionForced:
        me = self._node.me.name
        what = "is being drained" if self._is_draining(me) else "is passive"
        if not active:
            return ConnectionForced(f"broker '{me}' {what}, and no active one is reachable yet")
        return ConnectionForced(
            f"broker '{me}' {what}: connect to '{active}' at {self._address(active)}"
        )


def _is_able(properties: dict[str, object]) -> bool:
    capabilities = properties.get("capabilities")
    return isinstance(capabilities, dict) and capabilities.get("connection.redirect") is True


def _first(addresses: Iterable[str]) -> str:
    return next(iter(addresses), "")
