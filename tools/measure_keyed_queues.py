"""Measure keyed queues: CPU time against a plain queue, and how long a trickling key waits.

    python tools/measure_keyed_queues.py [MESSAGES]

One broker core and its clients in this process, without sockets: runs alternate, the best of three
counts, and the clients' share is in both. Throughput: four consumers, 1,000 keys. Waiting: ten keys
trickle into a fair queue, idle or with a backlog of one other key, of which four consumers hold and
settle what they can.
"""

from __future__ import annotations

import sys
import time

from rhizome.amqp.methods import BasicAck
from rhizome.amqp.properties import Properties
from rhizome.testing.in_memory_broker import Content, CoreClient, make_core

KEYS = 1_000
CHANNELS = range(2, 6)
PREFETCH = 200
FAIR: dict[str, object] = {"x_group_key": "key", "x_group_fair": True}
KINDS: dict[str, dict[str, object]] = {"plain": {}, "keyed": {"x_group_key": "key"}, "fair": FAIR}


def consume(client: CoreClient, prefetch: int) -> None:
    for number in CHANNELS:
        client.open_channel(number)
        client.prefetch(prefetch, number)
        client.consume("q", f"c{number}", number)


def heard(client: CoreClient) -> dict[int, list[Content]]:
    """What has come on each channel."""
    return {number: client.deliveries(number) for number in CHANNELS}


def settle(client: CoreClient, held: dict[int, list[Content]]) -> int:
    """Ack what has come; how many messages that were."""
    for number, deliveries in held.items():
        if deliveries:
            client.send(BasicAck(deliveries[-1].tag, True), channel=number)
    return sum(len(each) for each in held.values())


def of_key(key: str) -> Properties:
    return Properties(delivery_mode=2, headers={"key": key})


def throughput(arguments: dict[str, object], messages: int) -> float:
    """Messages in a second of CPU time, published and consumed."""
    client = make_core().connect()
    client.declare("q", durable=True, **arguments)
    consume(client, PREFETCH)
    properties = [of_key(f"key{number}") for number in range(KEYS)]
    bursts = [
        b"".join(
            client.published("", "q", bytes(100), properties[n % KEYS]) for n in range(b, b + 50)
        )
        for b in range(0, messages, 50)
    ]
    begun, count = time.process_time(), 0
    for burst in bursts:
        client.send_bytes(burst)
        count += settle(client, heard(client))
    while count < len(bursts) * 50:
        count += settle(client, heard(client))
    return count / (time.process_time() - begun)


def waits(backlog: int) -> list[float]:
    """CPU milliseconds from the publish of each trickling message to its delivery, sorted."""
    client = make_core().connect()
    client.declare("q", durable=True, **FAIR)
    flood = b"".join([client.published("", "q", b"flood", of_key("flood"))] * 50)
    for _ in range(backlog // 50):
        client.send_bytes(flood)
    consume(client, 5)
    found = []
    for number in range(1_000):
        settle(client, heard(client))
        begun = time.process_time()
        client.publish("", "q", b"trickle", of_key(f"trickle{number % 10}"))
        held = heard(client)
        while not any(each.body == b"trickle" for got in held.values() for each in got):
            settle(client, held)
            held = heard(client)
        found.append(1_000 * (time.process_time() - begun))
        settle(client, held)
    return sorted(found)


def main() -> None:
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    best = dict.fromkeys(KINDS, 0.0)
    p99: dict[str, float] = {}
    for _ in range(3):
        for kind, arguments in KINDS.items():
            best[kind] = max(best[kind], throughput(arguments, messages))
        for state, backlog in (("idle", 0), ("flooded", 2 * messages)):
            p99[state] = min(p99.get(state, 1e9), waits(backlog)[-10])
    for kind, rate in best.items():
        print(
            f"{kind:7} {rate:10,.0f} messages/s of CPU, {rate / best['plain']:.2f} of a plain queue"
        )
    print(f"p99 of a trickling key: {p99['idle']:.2f} ms idle, {p99['flooded']:.2f} ms flooded")


if __name__ == "__main__":
    main()
