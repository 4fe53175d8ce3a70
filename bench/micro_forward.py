"""CPU time per message that is published and consumed at its home, and through another broker.

    python bench/micro_forward.py

Whole cores talk to each other in one process, without sockets: what forwarding costs beside the
system calls. Both brokers' work counts, so half of the difference is what each of two processes
would do more.
"""

from __future__ import annotations

import time
from typing import Final

from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import BasicAck
from rhizome.amqp.properties import Properties
from rhizome.cluster.edge import forward_queue
from rhizome.testing.in_memory_broker import CoreClient
from rhizome.testing.in_memory_cluster import Member, make_cluster

ROUNDS: Final = 7
TURNS: Final = 40
BATCH: Final = 100
BODY: Final = b"x" * 128


def drop_output(client: CoreClient) -> None:
    """Nobody looks at what is delivered: parsing it would be most of the time."""
    client.connection.outbox.take()
    client.connection.flushed()


def round_ns(publisher: CoreClient, consumer: CoreClient, batch: bytes, acks: bool) -> float:
    member = publisher.core
    assert isinstance(member, Member)
    channel = consumer.connection.channels[1]
    started = time.process_time_ns()
    for _ in range(TURNS):
        publisher.connection.receive(batch)
        member.settle()
        if acks:
            consumer.connection.receive(method_frame(1, BasicAck(channel.delivery_tag, True)))
            member.settle()
    return (time.process_time_ns() - started) / (TURNS * BATCH)


def measure(at: str, acks: bool, confirms: bool, persistent: bool) -> float:
    """The best of several rounds: other processes hardly count."""
    cluster = make_cluster(3)
    publisher, consumer = cluster[at].connect(), cluster[at].connect()
    publisher.declare("q", durable=persistent, x_group="b1")
    consumer.consume("q", no_ack=not acks)
    if confirms:
        publisher.confirm()
    for client in (publisher, consumer):
        client.flush = lambda client=client: drop_output(client)  # type: ignore[method-assign, misc]
    properties = Properties(delivery_mode=2) if persistent else None
    batch = publisher.published("", "q", BODY, properties) * BATCH
    return min([round_ns(publisher, consumer, batch, acks) for _ in range(ROUNDS)])


def main() -> None:
    compiled = not str(forward_queue.__file__).endswith(".py")
    print(f"cores are {'compiled' if compiled else 'interpreted'}; ns per message of 128 B")
    print(f"{'':>28}{'home':>9}{'other':>9}{'ratio':>8}")
    for acks, confirms, persistent in (
        (False, False, False),
        (True, True, False),
        (True, True, True),
    ):
        words = ["acks" if acks else "no acks", "confirms" if confirms else "no confirms"]
        name = ", ".join([*words, "durable"] if persistent else words)
        home = measure("b1", acks, confirms, persistent)
        other = measure("b2", acks, confirms, persistent)
        print(f"{name:>28}{home:9.0f}{other:9.0f}{home / other:8.2f}")


if __name__ == "__main__":
    main()
