"""Gossip: what brokers tell each other now and then, for people to see, and what they have of what
is limited in the whole cluster. No promise relies on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rhizome.amqp.values import encode_table, read_table
from rhizome.cluster.identity import SECONDARY

if TYPE_CHECKING:
    from rhizome.cluster.node import Node

GOSSIP: Final = 66
GOSSIP_EVERY_MS: Final = 1_000


class Gossip:
    """``heard``: the latest news of each broker that there is a link with."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.heard: dict[str, dict[str, object]] = {}
        self._told_ms = node.now_ms

    def all_news(self) -> dict[str, dict[str, object]]:
        """Of every broker that is heard of, this one first."""
        return {self.node.me.name: self.news(), **self.heard}

    def news(self) -> dict[str, object]:
        """What others are told about this broker."""
        node = self.node
        messages: dict[str, object] = {}
        for queue in node.broker.shared.values():
            if queue.away is None:
                group = str(queue.definition.group)
                count = messages.get(group, 0)
                assert isinstance(count, int)
                messages[group] = count + int(queue.ready + queue.unacked)
        return {
            "connections": len(node.broker.running_connections()),
            "isolated": node.isolated,
            "ready": node.ready,
            "used": node.broker.limits.used(),
            "relayed": self._relayed(),
            "messages": messages,
            "records": {
                str(number): int(home.log.next_index) - 1
                for number, home in node.roles.homes.items()
            },
            "lags": {
                str(number): {each.name: each.lag for each in home.copies.status().standbys}
                for number, home in node.roles.homes.items()
            },
        }

    def _relayed(self) -> dict[str, object]:
        """Secondaries, which have no links with each other, hear from the root what others use."""
        if not self.node.consensus.is_root:
            return {}
        brokers = self.node.state.registry.brokers
        return {
            name: told["used"]
            for name, told in self.heard.items()
            if name in brokers and brokers[name].role == SECONDARY and "used" in told
        }

    def used_elsewhere(self, kind: str, name: str) -> int:
        """How much other brokers have of what is limited, as they have told last."""
        used = {broker: told.get("used") for broker, told in self.heard.items()}
        for told in self.heard.values():
            relayed = told.get("relayed")
            if isinstance(relayed, dict):
                used = {**relayed, **used}
        used.pop(self.node.me.name, None)
        return sum(_count(each, kind, name) for each in used.values())

    def received(self, name: str, payload: bytes) -> None:
        self.heard[name] = read_table(payload, 0)[0]

    def forget(self, name: str) -> None:
        self.heard.pop(name, None)

    def tick(self) -> None:
        node = self.node
        if node.now_ms - self._told_ms < GOSSIP_EVERY_MS:
            return
        self._told_ms = node.now_ms
        payload = encode_table(self.news())
        for link in node.links.open_links():
            link.send(GOSSIP, payload)


def _count(used: object, kind: str, name: str) -> int:
    """What a broker has told that it has; one of an earlier release tells nothing."""
    of_kind = used.get(kind) if isinstance(used, dict) else None
    count = of_kind.get(name) if isinstance(of_kind, dict) else None
    return count if isinstance(count, int) else 0
