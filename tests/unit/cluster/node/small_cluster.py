"""A cluster of three primaries and two secondaries, and short words for what happens in it."""

from __future__ import annotations

import pytest

from rhizome.amqp.methods import (
    BasicAck,
    BasicConsume,
    BasicNack,
    BasicReturn,
    ChannelClose,
    ChannelCloseOk,
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    Method,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueUnbind,
    QueueUnbindOk,
)
from rhizome.amqp.properties import Properties
from rhizome.broker.cluster_port import Waiter
from rhizome.broker.metadata.metadata_commands import Command
from rhizome.cluster.home.home_group import HomeGroup
from rhizome.cluster.node import Node
from rhizome.cluster.state.cluster_commands import WHOLE, PlanMove, SetDraining, TransferHome
from rhizome.cluster.state.groups_and_placement import Group
from rhizome.cluster.state.pending_proposals import Proposal
from rhizome.testing.in_memory_broker import Content, CoreClient
from rhizome.testing.in_memory_cluster import CoreCluster

AWAY = ("b1", "b2", "s1")
"""Where a client of a queue is whose home is b1: there, at another primary, at a secondary."""

EVERYWHERE = ("b1", "b2", "b3", "s1", "s2")

PERSISTENT = Properties(delivery_mode=2)

PATIENCE_MS = 60_000


def queue_at(client: CoreClient, name: str, home: str, **options: object) -> str:
    """A shared queue whose home is this broker."""
    return client.declare(name, x_group=home, **options)


def private_queue(client: CoreClient, name: str = "") -> str:
    return client.call(QueueDeclare(name, exclusive=True), QueueDeclareOk).queue


def exchange(
    client: CoreClient,
    name: str,
    kind: str = "direct",
    auto_delete: bool = False,
    **arguments: object,
) -> str:
    given = {word.replace("_", "-"): value for word, value in arguments.items()}
    method = ExchangeDeclare(name, kind, auto_delete=auto_delete, arguments=given)
    client.call(method, ExchangeDeclareOk)
    return name


def bind(client: CoreClient, queue: str, source: str, key: str = "", **arguments: object) -> None:
    given = {word.replace("_", "-"): value for word, value in arguments.items()}
    client.call(QueueBind(queue, source, key, arguments=given), QueueBindOk)


def unbind(client: CoreClient, queue: str, source: str, key: str = "") -> None:
    client.call(QueueUnbind(queue, source, key), QueueUnbindOk)


def bind_exchange(client: CoreClient, destination: str, source: str, key: str = "") -> None:
    client.call(ExchangeBind(destination, source, key), ExchangeBindOk)


def confirmed(client: CoreClient) -> int:
    """The highest tag confirmed so far; other events stay."""
    events = client.take()
    client.events[1] = [event for event in events if not isinstance(event, BasicAck)]
    return max([int(event.delivery_tag) for event in events if isinstance(event, BasicAck)] or [0])


def nacked(client: CoreClient) -> list[int]:
    return [int(each.delivery_tag) for each in client.take() if isinstance(each, BasicNack)]


def returned(client: CoreClient) -> list[bytes]:
    """The bodies of what was returned; other events stay."""
    events = client.take()
    found = [each for each in events if _is_return(each)]
    client.events[1] = [each for each in events if not _is_return(each)]
    return [each.body for each in found if isinstance(each, Content)]


def _is_return(event: object) -> bool:
    return isinstance(event, Content) and isinstance(event.method, BasicReturn)


def refused(client: CoreClient, method: Method, channel: int = 1) -> tuple[int, str]:
    """Send what must close the channel; the code and text. The channel is open again after."""
    client.send(method, channel=channel)
    close = client.pick(ChannelClose, channel)
    client.send(ChannelCloseOk(), channel=channel)
    client.open_channel(channel)
    return int(close.reply_code), close.reply_text


def refusal_of_consume(client: CoreClient, queue: str, exclusive: bool = False) -> int:
    return refused(client, BasicConsume(queue, exclusive=exclusive))[0]


def drain(client: CoreClient, queue: str) -> list[bytes]:
    """Everything that is ready in a queue, pulled."""
    found: list[bytes] = []
    while (message := client.get(queue)) is not None:
        found.append(message.body)
    return found


def sent_on(cluster: CoreCluster, origin: str) -> dict[str, int]:
    """How many copies of publishes a broker has sent to each other one over its present link."""
    peer_brokers = cluster[origin].node.peer_brokers
    copies = {
        name: each.link_channel.copies for name, each in peer_brokers.items() if each.link_channel
    }
    return {name: int(count) for name, count in copies.items() if count}


def group_of(cluster: CoreCluster, queue: str) -> Group:
    """The group of a queue, as a broker that runs knows it."""
    member = cluster.running()[0]
    found = member.node.state.group_of(member.queue(queue).definition)
    assert found is not None
    return found


def wait_for_copy(cluster: CoreCluster, queue: str) -> None:
    """Until the queue's group has a home that serves, and a whole copy."""

    def is_safe() -> bool:
        group = group_of(cluster, queue)
        running = [each.name for each in cluster.running()]
        return (
            group.home in running
            and not cluster[group.home].queue(queue).log.silent
            and any(each.copy == WHOLE and each.broker in running for each in group.in_sync)
        )

    cluster.advance_until(is_safe, PATIENCE_MS)


def wait_for_new_home(cluster: CoreCluster, queue: str, old: str) -> str:
    """Until another broker than the old home serves the queue; it."""
    cluster.advance_until(lambda: group_of(cluster, queue).home not in ("", old), PATIENCE_MS)
    home = group_of(cluster, queue).home
    log = cluster[home].queue(queue).log
    cluster.advance_until(lambda: not log.silent, PATIENCE_MS)
    return home


class WithheldTransfers:
    """Whatever a broker proposes goes out, but for transfers. In the place of one goes what it had
    proposed before, once more, which is nothing to anybody (R10)."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node = node
        self.commands: list[tuple[Command, Waiter | None]] = []
        self._make = node.proposals.make
        self._before = self._make(SetDraining("nobody", False), None, node.now_ms)
        monkeypatch.setattr(node.proposals, "make", self._make_but_transfers)

    def propose_first(self) -> None:
        command, waiter = self.commands[0]
        self._before = self._make(command, waiter, self.node.now_ms)
        self.node.propose(command, waiter)

    def _make_but_transfers(self, command: Command, waiter: Waiter | None, now_ms: int) -> Proposal:
        if isinstance(command, TransferHome):
            self.commands.append((command, waiter))
        else:
            self._before = self._make(command, waiter, now_ms)
        return self._before


def hand_over_in_vain(
    cluster: CoreCluster, queue: str, monkeypatch: pytest.MonkeyPatch
) -> HomeGroup:
    """The home of a queue, which hands over to its copy and is not answered."""
    group = group_of(cluster, queue)
    home = cluster[group.home].node.roles.homes[group.id]
    WithheldTransfers(cluster[group.home].node, monkeypatch)
    move = PlanMove(group.id, group.in_sync[0].broker, group.epoch)
    cluster[cluster.root()].node.propose(move, None)
    cluster.advance_until(lambda: home.is_handing_over)
    return home
