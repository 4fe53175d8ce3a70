"""Nanoseconds per route, by kind of exchange and number of bindings.

    python bench/micro_routing.py

Routes are computed, not looked up: this is what a miss of the route cache costs.
"""

from __future__ import annotations

import time

from rhizome.broker.routing import Destination, Exchange, Router, make_exchange
from rhizome.broker.routing import router as router_module

ROUNDS = 15
KEYS = 1000
ROUTES_PER_ROUND = 20_000


def bound(kind: str, keys: list[str]) -> tuple[Router, Exchange]:
    """A router with one exchange and one queue per binding key."""
    router = Router("/")
    exchange = make_exchange("/", "x", kind)
    router.add_exchange(exchange)
    for number, key in enumerate(keys):
        queue = Destination("/", f"q{number}")
        router.add_queue(queue)
        router.bind(exchange, queue, key, {})
    return router, exchange


def topic_patterns(count: int) -> list[str]:
    """Patterns of which about three match any key of `topic_keys`, whatever the count."""
    patterns = ["#.never", "*.k1.#"]
    for number in range(count - len(patterns)):
        patterns.append(f"s{number}.*.{number % 7}" if number % 2 else f"s{number}.k1.#")
    return patterns


def nanoseconds(router: Router, exchange: Exchange, keys: list[str]) -> float:
    """CPU time per route in the best of several rounds: other processes hardly count."""
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.process_time_ns()
        for _ in range(ROUTES_PER_ROUND // len(keys)):
            for key in keys:
                router.route(exchange, key, None)
        best = min(best, (time.process_time_ns() - started) / ROUTES_PER_ROUND)
    return best


def main() -> None:
    compiled = not str(router_module.__file__).endswith(".py")
    print(f"routing is {'compiled' if compiled else 'interpreted'}; ns per route")
    keys = [f"k{number}" for number in range(KEYS)]
    cases = [
        ("default, 1000 queues", "default", keys, [f"q{n}" for n in range(KEYS)]),
        ("direct, 1000 keys", "direct", keys, keys),
        ("fanout, 10 queues", "fanout", ["k"] * 10, keys),
        ("x-consistent-hash, 10 queues", "x-consistent-hash", ["1"] * 10, keys),
    ]
    for count in (10, 1_000, 10_000):
        topics = [f"s{number % count}.k1.{number % 7}" for number in range(KEYS)]
        cases.append((f"topic, {count} bindings", "topic", topic_patterns(count), topics))
    for label, kind, binding_keys, routing_keys in cases:
        router, exchange = bound("direct" if kind == "default" else kind, binding_keys)
        if kind == "default":
            exchange = router.exchanges[""]
        print(f"{label:32}{nanoseconds(router, exchange, routing_keys):9.0f}")


if __name__ == "__main__":
    main()
