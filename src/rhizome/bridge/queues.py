"""Queues that a bridge declares if they are missing, as RabbitMQ's shovels do; stale bindings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from rhizome.bridge.errors import needs_a_person
from rhizome.client import Connection
from rhizome.errors import NotFound


async def ensure_queue(connection: Connection, queue: str, arguments: Mapping[str, object]) -> None:
    """See that there is a queue; one that is there is left as it is, whatever its arguments are.

    On channels of its own: the answer that there is none closes the one that it comes on. A queue
    whose home is down is there.
    """
    try:
        async with connection.channel() as channel:
            await channel.declare_queue(queue, passive=True)
    except NotFound as error:
        if not needs_a_person(error):
            raise
        async with connection.channel() as channel:
            await channel.declare_queue(queue, durable=True, arguments=dict(arguments) or None)


async def unbind(connection: Connection, queue: str, pairs: Iterable[tuple[str, str]]) -> None:
    """Remove bindings by exchange and key; with an exchange that is gone they are gone."""
    for exchange, key in pairs:
        with suppress(NotFound):
            async with connection.channel() as channel:
                await channel.unbind_queue(queue, exchange, key)
