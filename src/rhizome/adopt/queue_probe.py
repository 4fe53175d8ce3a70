"""What queues have at this moment, asked over AMQP: RabbitMQ's HTTP API may be seconds late."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import groupby
from typing import Final, NamedTuple

from rhizome.adopt.queue_crossing import uri_of_vhost
from rhizome.adopt.queue_listing import QueueKey
from rhizome.client import ClientError, Connection, connect
from rhizome.errors import AmqpError

NAME: Final = "rhizome adopt"
SECONDS_MAX: Final = 30.0
"""For all questions about one vhost."""


class Probed(NamedTuple):
    """Messages that are ready, and consumers, those of bridges too."""

    ready: int
    consumers: int


class QueueProbe:
    """Asks one side, over a connection for each vhost that stays open between two questions."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._connections: dict[str, Connection] = {}

    async def look(self, keys: Iterable[QueueKey]) -> dict[QueueKey, Probed]:
        """What these queues have; one that is gone is left out.

        Raises what the client does, or TimeoutError, if the side can't be asked; the next time it
        begins anew.
        """
        found: dict[QueueKey, Probed] = {}
        for vhost, queues in groupby(sorted(keys), lambda key: key.vhost):
            try:
                async with asyncio.timeout(SECONDS_MAX):
                    found.update(await _look(await self._connection(vhost), list(queues)))
            except (ClientError, AmqpError, OSError):
                await self.close()
                raise
        return found

    async def close(self) -> None:
        """Close what is open."""
        while self._connections:
            _, connection = self._connections.popitem()
            await connection.close()

    async def _connection(self, vhost: str) -> Connection:
        known = self._connections.get(vhost)
        if known is None or not known.is_open:
            known = await connect(uri_of_vhost(self._uri, vhost), name=NAME)
            self._connections[vhost] = known
        return known


async def _look(connection: Connection, waiting: list[QueueKey]) -> dict[QueueKey, Probed]:
    """A queue that isn't there closes its channel, so the next one gets another."""
    found: dict[QueueKey, Probed] = {}
    while waiting:
        try:
            async with connection.channel() as channel:
                while waiting:
                    key = waiting.pop()
                    answer = await channel.declare_queue(key.name, passive=True)
                    found[key] = Probed(answer.message_count, answer.consumer_count)
        except AmqpError:
            if not connection.is_open:
                raise
    return found
