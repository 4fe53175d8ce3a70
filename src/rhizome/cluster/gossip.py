"""Gossip: what brokers tell each other now and then.

It is about what people want to see, what brokers use of what is limited in the whole cluster, and
what they know of logins. No promise about messages relies on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from rhizome.amqp.field_table import encode_table, read_table
from rhizome.broker.home_change_effects import messages_by_group
from rhizome.broker.metadata.metadata_commands import PutUser
from rhizome.cluster.link.broker_hello import SECONDARY
from rhizome.cluster.protocol.catalogue import GOSSIP
from rhizome.cluster.state.cluster_commands import Envelope, encode

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.cluster.consensus import Consensus
    from rhizome.cluster.group_roles import GroupRoles
    from rhizome.cluster.link.broker_hello import Hello
    from rhizome.cluster.link.link_manager import LinkTable
    from rhizome.cluster.state.cluster_state import ClusterState

GOSSIP_EVERY_MS: Final = 1_000

SILENT_PART: Final = 2
"""A link that was silent for this part of its timeout is not reported as working. At least two
heartbeats and two rounds of gossip have been missed by then."""

UPGRADES_MAX: Final = 4096
"""How many better password hashes wait to be told; beyond that they are made at a later login."""
UPGRADES_TOLD_MAX: Final = 16
"""How many of them a broker tells at a time."""


class SharedLogins(Protocol):
    """From where users have logged in before, at any broker: pairs of user and address."""

    def tell_all(self) -> None: ...
    def take_untold(self) -> Sequence[tuple[str, str]]: ...
    def hear(self, told: object) -> None: ...


class GossipNode(Protocol):
    """What gossip tells of the node, and where it goes."""

    broker: Broker
    me: Hello
    state: ClusterState
    consensus: Consensus
    links: LinkTable
    roles: GroupRoles
    now_ms: int
    ready: bool
    isolated: bool


class Gossip:
    """What this broker tells its peers, and has heard of them.

    ``heard``: the latest news of each broker with a link. ``known_logins`` are told once when they
    are new, and all of them when a link comes up.
    """

    def __init__(self, node: GossipNode) -> None:
        self.node = node
        self.heard: dict[str, dict[str, object]] = {}
        self.known_logins: SharedLogins | None = None
        self._upgrades: dict[str, tuple[str, str]] = {}
        self._told_ms = node.now_ms

    def all_news(self) -> dict[str, dict[str, object]]:
        """The news of every broker that is heard of, this one first."""
        return {self.node.me.name: self.news(), **self.heard}

    def news(self) -> dict[str, object]:
        """What others are told about this broker."""
        node = self.node
        return {
            "connections": len(node.broker.running_connections()),
            "isolated": node.isolated,
            "ready": node.ready,
            "used": node.broker.limits.used(),
            "relayed": self._relayed(),
            "messages": messages_by_group(node.broker),
            "records": {
                str(number): int(home.log.next_index) - 1
                for number, home in node.roles.homes.items()
            },
            "lags": {
                str(number): {each.name: each.lag for each in home.copies.status().standbys}
                for number, home in node.roles.homes.items()
            },
            **self.reach(),
        }

    def reach(self) -> dict[str, object]:
        """Which brokers this one could serve as a home, whether it has room to
        (``impaired_homes.py``), whether its messages are what fills its disk, and the groups that
        it is home of and can't serve because of its own fault (``takeover.py``).

        A link that has been silent for a while counts as none.
        """
        links = self.node.links
        silent_ms = links.settings.timeout_ms // SILENT_PART
        return {
            "links": [
                link.name
                for link in links.open_links()
                if self.node.now_ms - int(link.last_received_ms) < silent_ms
            ],
            "disk_full": self.node.broker.disk_full,
            "backlog_fills_disk": self.node.broker.backlog_fills_disk,
            "failed_homes": {
                str(number): home.group.epoch
                for number, home in self.node.roles.homes.items()
                if home.failed
            },
        }

    def alarm_of_copies(self) -> str:
        """Why publishers here have to wait for the disk of a broker that has copies in sync: its
        messages fill it. Empty if there is no such broker."""
        filling = {
            name for name, news in self.heard.items() if news.get("backlog_fills_disk") is True
        }
        if not filling:
            return ""
        members = {
            member.broker
            for home in self.node.roles.homes.values()
            for member in home.group.in_sync
        }
        names = ", ".join(sorted(filling & members))
        if not names:
            return ""
        return f"low on disk at {names}: publishers wait until messages copied there are consumed"

    # ---- logins ---------------------------------------------------------------------------------

    def link_up(self) -> None:
        if self.known_logins is not None:
            self.known_logins.tell_all()

    def upgrade_password(self, user: str, before: str, after: str) -> None:
        """A user has proved its password here, and ``after`` is a better hash of it than the one
        that the cluster has: have the root replace it."""
        if len(self._upgrades) < UPGRADES_MAX:
            self._upgrades[user] = (before, after)

    def _logins_news(self) -> dict[str, object]:
        told: dict[str, object] = {}
        if self.known_logins is not None:
            known = self.known_logins.take_untold()
            if known:
                told["known_logins"] = [list(pair) for pair in known]
        if self._upgrades:
            told["upgrades"] = {user: [*each] for user, each in self._next_upgrades().items()}
        return told

    def _hear_of_logins(self, news: dict[str, object]) -> None:
        told = news.pop("known_logins", None)
        if self.known_logins is not None and told is not None:
            self.known_logins.hear(told)
        upgrades = news.pop("upgrades", None)
        if isinstance(upgrades, dict) and self.node.consensus.is_root:
            self._upgrade({user: each for user, each in upgrades.items() if _is_upgrade(each)})

    def _upgrade(self, upgrades: Mapping[str, Sequence[str]]) -> None:
        """At the root: replace hashes of users that are still the ones that were verified.

        The commands are appended right behind what this broker has applied. So all brokers apply
        them to the very state that was looked at here, including brokers of releases that know
        nothing of this. The commands aren't sent again to another root: by then a password may be
        another one.
        """
        node = self.node
        batch: list[bytes] = []
        for user, (before, after) in upgrades.items():
            record = node.broker.state.users.get(user)
            if record is not None and record.password_hash == before:
                command = PutUser(user, after, record.kind, record.tags)
                batch.append(encode(Envelope(command)))
        if batch:
            node.consensus.submit_next(batch, node.now_ms)

    def _next_upgrades(self) -> dict[str, tuple[str, str]]:
        return dict(islice(self._upgrades.items(), UPGRADES_TOLD_MAX))

    def _own_upgrades(self) -> None:
        """Forget upgrades that are done or void, and do the rest, at the root."""
        users = self.node.broker.state.users
        for user, (before, _) in list(self._upgrades.items()):
            record = users.get(user)
            if record is None or record.password_hash != before:
                del self._upgrades[user]
        if self._upgrades and self.node.consensus.is_root:
            self._upgrade(self._next_upgrades())

    # ---- what others use ------------------------------------------------------------------------

    def _relayed(self) -> dict[str, object]:
        """What others use, as the root tells secondaries, which have no links with each other."""
        if not self.node.consensus.is_root:
            return {}
        brokers = self.node.state.registry.brokers
        return {
            name: told["used"]
            for name, told in self.heard.items()
            if name in brokers and brokers[name].role == SECONDARY and _uses(told.get("used"))
        }

    def used_elsewhere(self, kind: str, name: str) -> int:
        """How much other brokers use of what is limited, as they told last."""
        used = {broker: told.get("used") for broker, told in self.heard.items()}
        for told in self.heard.values():
            relayed = told.get("relayed")
            if isinstance(relayed, dict):
                used = {**relayed, **used}
        used.pop(self.node.me.name, None)
        return sum(_count(each, kind, name) for each in used.values())

    def received(self, name: str, payload: bytes) -> None:
        news = read_table(payload, 0)[0]
        self._hear_of_logins(news)
        self.heard[name] = news

    def forget(self, name: str) -> None:
        self.heard.pop(name, None)

    def tick(self) -> None:
        if self.node.now_ms - self._told_ms >= GOSSIP_EVERY_MS:
            self.tell_news()

    def tell_news(self) -> None:
        node = self.node
        self._told_ms = node.now_ms
        self._own_upgrades()
        payload = encode_table({**self.news(), **self._logins_news()})
        for link in node.links.open_links():
            link.send(GOSSIP, payload)


def _is_upgrade(told: object) -> bool:
    """Whether it is a hash, and a better one."""
    return isinstance(told, list) and len(told) == 2 and all(isinstance(x, str) and x for x in told)


def _uses(used: object) -> bool:
    """Whether a broker uses anything that is limited: of a thousand secondaries most don't."""
    if not isinstance(used, dict):
        return False
    return any(any(of_kind.values()) for of_kind in used.values() if isinstance(of_kind, dict))


def _count(used: object, kind: str, name: str) -> int:
    """What a broker has told that it uses; one of an earlier release tells nothing."""
    of_kind = used.get(kind) if isinstance(used, dict) else None
    count = of_kind.get(name) if isinstance(of_kind, dict) else None
    return count if isinstance(count, int) else 0
