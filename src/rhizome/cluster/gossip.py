"""Gossip: what brokers tell each other now and then, for people to see. Nothing relies on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rhizome.amqp.values import encode_table, read_table

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
