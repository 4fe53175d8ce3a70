"""World: the broker that worst inputs are sent to, full of everything, and the bystander."""

from __future__ import annotations

import json
import struct
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

from rhizome.amqp import methods
from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import Method
from rhizome.testing.broker_process import BrokerProcess, wait_until
from tests.process.worst.round_trips import RoundTrips, Worst
from tests.process.worst.talker import Talker

CROWD: Final = "crowd"
"""The vhost that is full."""
BYSTANDER: Final = "bystander"
NOTICED_MS: Final = 10
"""The watchdog of this broker describes turns that are longer than this."""
AFTERMATH_S: Final = 0.05
"""What an input leaves to the next turns and ticks counts, too."""
PATIENCE_S: Final = 300.0
DURABLE: Final = b"\x10\x00\x02"
PLAIN: Final = b"\x00\x00"
PIPELINED_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much there is of everything. Neither has a limit of its own but memory and patience."""

    messages: int
    objects: int
    connections: int
    burst_bytes: int
    query_bytes: int


SHORT: Final = Sizes(
    messages=20_000, objects=1_000, connections=20, burst_bytes=256 << 10, query_bytes=2_000
)
LONG: Final = Sizes(
    messages=200_000, objects=10_000, connections=300, burst_bytes=2 << 20, query_bytes=10_000
)


@dataclass(frozen=True, slots=True)
class Stall:
    """What an input cost the bystander, in ms. ``ran``: the event loop's processor time within one
    of its round trips. ``turn``: the longest turn of its own that the broker tells of."""

    name: str
    ran: float
    took: float
    turn: float
    idle: float

    def beyond(self) -> float:
        """What both see, the bystander and the broker. A round trip may take part in two turns."""
        return min(self.ran - self.idle, 2 * self.turn)


class World:
    """Invariant: while ``measured`` runs an input, nobody else sends anything but the bystander."""

    def __init__(self, directory: Path, sizes: Sizes, environment: dict[str, str] | None = None):
        self.sizes = sizes
        slow_turn = {
            "RHIZOME_BROKER_SLOW_TURN": f"{NOTICED_MS}ms",
            "RHIZOME_LIMITS_MESSAGE_BYTES_MAX": "128MiB",
        }
        self.broker = BrokerProcess(directory, environment={**slow_turn, **(environment or {})})
        self.broker.start()
        self.talkers: list[Talker] = []
        self.names = 0

    def prepare(self) -> None:
        """Fill the vhost, then start the bystander beside it."""
        for vhost in (CROWD, BYSTANDER):
            self.ok("PUT", f"/api/vhosts/{vhost}")
            allowed = {"configure": ".*", "write": ".*", "read": ".*"}
            self.ok("PUT", f"/api/permissions/{vhost}/guest", allowed)
        self.ok("POST", "/api/definitions", crowd_definitions(self.sizes))
        for number in range(self.sizes.connections):
            talker = self.talker(CROWD)
            first = number * self.sizes.objects // self.sizes.connections
            end = (number + 1) * self.sizes.objects // self.sizes.connections
            self.pipeline(
                talker,
                (
                    methods.BasicConsume(f"q{at}", f"c{at}", no_ack=True, no_wait=True)
                    if at % 2
                    else methods.BasicConsume("crowded", f"c{at}", no_wait=True)
                    for at in range(first, end)
                ),
            )
        self.round_trips = RoundTrips(self.broker, BYSTANDER)

    def close(self) -> None:
        if hasattr(self, "round_trips"):
            self.round_trips.close()
        for talker in self.talkers:
            talker.close()
        self.broker.close()

    # ---- what inputs are made of ----------------------------------------------------------------

    def name(self, prefix: str) -> str:
        """One that nothing else has."""
        self.names += 1
        return f"{prefix}{self.names}"

    def talker(self, vhost: str = "/", **options: Any) -> Talker:
        talker = Talker(self.broker.host, self.broker.port, vhost, **options)
        self.talkers.append(talker)
        return talker

    def queue(self, talker: Talker, durable: bool = False, **arguments: object) -> str:
        name = self.name("input")
        given = {key.replace("_", "-"): value for key, value in arguments.items()}
        declared = talker.call(methods.QueueDeclare(name, durable=durable, arguments=given))
        assert isinstance(declared, methods.QueueDeclareOk), declared
        return name

    def fill(self, talker: Talker, queue: str, count: int, properties: bytes = PLAIN) -> None:
        """Publish so many messages to a queue and wait until it has them."""
        unit = published("", queue, b"x" * 16, properties)
        at_once = PIPELINED_BYTES // len(unit)
        for begin in range(0, count, at_once):
            talker.socket.sendall(unit * min(at_once, count - begin))

        def has_all() -> bool:
            answer = talker.call(methods.QueueDeclare(queue, passive=True))
            return isinstance(answer, methods.QueueDeclareOk) and answer.message_count >= count

        wait_until(has_all, f"{count} messages in {queue}", PATIENCE_S)

    def hold(self, talker: Talker, queue: str, count: int) -> None:
        """Have so many messages delivered, unacked, and the consumer cancelled."""
        talker.send(methods.BasicConsume(queue, "holder"))
        left = count
        while left:
            kind, payload = talker.read_frame()
            left -= kind == 1 and payload[:4] == b"\x00\x3c\x00\x3c"
        talker.send(methods.BasicCancel("holder"))
        talker.expect(methods.BasicCancelOk)

    def pipeline(self, talker: Talker, sent: Iterator[Method]) -> None:
        """Send methods that are not answered, as fast as they go, and wait until all are done."""
        talker.socket.sendall(b"".join(method_frame(1, method) for method in sent))
        self.wait_for(talker)

    def wait_for(self, talker: Talker) -> None:
        """Everything that was sent so far is done."""
        talker.send(methods.BasicQos(0, 0, False))
        talker.expect(methods.BasicQosOk)

    def burst(self, make: Callable[[int], bytes]) -> bytes:
        """Units one after another, as many as the burst has bytes for."""
        burst = bytearray()
        at = 0
        while len(burst) < self.sizes.burst_bytes:
            burst += make(at)
            at += 1
        return bytes(burst)

    # ---- HTTP -----------------------------------------------------------------------------------

    def http(self, method: str, target: str, body: Any = None) -> tuple[int, bytes]:
        """One request, as guest. ``body`` is JSON, or bytes that are sent as they are."""
        connection = HTTPConnection(self.broker.host, self.broker.http_port, timeout=PATIENCE_S)
        login = b64encode(b"guest:guest").decode()
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        try:
            connection.request(method, target, data, {"Authorization": f"Basic {login}"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def ok(self, method: str, target: str, body: Any = None) -> Any:
        status, text = self.http(method, target, body)
        assert status < 300, f"{method} {target}: {status} {text[:500]!r}"
        return json.loads(text) if text else None

    # ---- measuring ------------------------------------------------------------------------------

    def measured(self, name: str, make: Callable[[World], Iterator[None]]) -> Stall:
        """What an input costs. Up to its `yield` it prepares; what follows is measured."""
        steps = make(self)
        next(steps)
        before = self._last_slow_turn()
        self.round_trips.worst()
        time.sleep(AFTERMATH_S)
        idle = self.round_trips.worst()
        next(steps, None)
        time.sleep(AFTERMATH_S)
        worst: Worst = self.round_trips.worst()
        turn = max((each["ran_ms"] for each in self._slow_turns(before)), default=0)
        next(steps, None)
        return Stall(name, worst.ran_ms, worst.took_ms, float(turn), idle.ran_ms)

    def _told(self) -> list[Any]:
        facts = self.ok("GET", "/api/rhizome/checkup/own")
        latest: list[Any] = facts.get("slow_turns", {}).get("latest", [])
        return latest

    def _last_slow_turn(self) -> int:
        return max((int(each["number"]) for each in self._told()), default=0)

    def _slow_turns(self, after: int) -> list[Any]:
        return [each for each in self._told() if each["number"] > after and each["cause"] == "work"]


def published(exchange: str, key: str, body: bytes, properties: bytes = PLAIN) -> bytes:
    """The frames of a publish on channel 1; ``properties`` as they are on the wire, flags first."""
    header = struct.pack(">HHQ", 60, 0, len(body)) + properties
    frames = method_frame(1, methods.BasicPublish(exchange, key))
    frames += struct.pack(">BHI", 2, 1, len(header)) + header + b"\xce"
    return frames + struct.pack(">BHI", 3, 1, len(body)) + body + b"\xce"


def crowd_definitions(sizes: Sizes) -> dict[str, list[dict[str, object]]]:
    """As many of everything as the sizes say, in the crowd's vhost."""
    count = sizes.objects
    queues = [*(f"q{at}" for at in range(count)), "crowded"]
    few = count // 10
    bound: dict[str, object] = {
        "source": "fan",
        "vhost": CROWD,
        "destination_type": "queue",
        "arguments": {},
    }
    return {
        "vhosts": [{"name": f"{CROWD}{at}"} for at in range(few // 10)],
        "users": [
            {"name": f"user{at}", "password_hash": "", "tags": ["monitoring"]} for at in range(few)
        ],
        "permissions": [
            {"user": f"user{at}", "vhost": CROWD, "configure": "^a", "write": "^b", "read": "^c"}
            for at in range(few)
        ],
        "topic_permissions": [
            {
                "user": f"user{at}",
                "vhost": CROWD,
                "exchange": "amq.topic",
                "write": "a",
                "read": "b",
            }
            for at in range(few)
        ],
        "policies": [
            {
                "vhost": CROWD,
                "name": f"policy{at}",
                "pattern": f"^(one|two|three){at}$",
                "apply-to": "all",
                "priority": at,
                "definition": {"max-length": 1_000_000},
            }
            for at in range(few // 10)
        ],
        "parameters": [
            {"vhost": CROWD, "component": "operator_policy", "name": f"limit{at}", "value": limit}
            for at, limit in enumerate(_limits(few // 10))
        ],
        "global_parameters": [{"name": f"global{at}", "value": "x" * 100} for at in range(few)],
        "exchanges": [
            {"name": name, "vhost": CROWD, "type": kind, "durable": True, "arguments": {}}
            for name, kind in [("fan", "fanout"), *((f"e{at}", "topic") for at in range(few))]
        ],
        "queues": [
            {"name": name, "vhost": CROWD, "durable": True, "arguments": {}} for name in queues
        ],
        "bindings": [
            *({**bound, "destination": f"q{at}", "routing_key": ""} for at in range(count)),
            *({**bound, "destination": "crowded", "routing_key": f"{at}"} for at in range(count)),
        ],
    }


def _limits(count: int) -> list[dict[str, object]]:
    definition = {"max-length": 1_000_000}
    return [
        {"pattern": f"^{at}$", "apply-to": "queues", "priority": at, "definition": definition}
        for at in range(count)
    ]
