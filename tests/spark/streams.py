"""Streams in a broker, for tests."""

from __future__ import annotations

from typing import Any

from rhizome.amqp.properties import Properties
from rhizome.client.blocking import Connection


def declare_stream(uri: str, name: str, **arguments: object) -> None:
    with Connection(uri) as connection:
        connection.channel().declare_queue(
            name,
            durable=True,
            arguments={
                "x-queue-type": "stream",
                **{key.replace("_", "-"): value for key, value in arguments.items()},
            },
        )


def declare_partitioned(uri: str, name: str, partitions: int) -> None:
    with Connection(uri) as connection:
        channel = connection.channel()
        channel.declare_exchange(name, "x-super-stream", durable=True)
        for number in range(partitions):
            declare_stream(uri, f"{name}-{number}")
            channel.bind_queue(
                f"{name}-{number}",
                name,
                str(number),
                arguments={"x-stream-partition-order": number},
            )


def fill(uri: str, name: str, bodies: list[bytes], properties: Properties | None = None) -> None:
    with Connection(uri) as connection:
        channel = connection.channel(confirms=True)
        for first in range(0, len(bodies), 1000):
            channel.publish_many(
                bodies[first : first + 1000], routing_key=name, properties=properties
            )


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def numbers(rows: list[Any]) -> list[int]:
    return [int(row.value) for row in rows]
