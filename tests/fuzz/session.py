"""One attack, all of it decided by bytes."""

from __future__ import annotations

from itertools import pairwise

from rhizome.amqp import methods as m
from rhizome.amqp.frames import method_frame
from rhizome.broker.connection.connection_states import CLOSING
from rhizome.testing.in_memory_broker import PROTOCOL_HEADER
from tests.fuzz.attacked_core import Arena, RawClient
from tests.fuzz.frame_generator import KINDS, QUEUES, Traffic

from .choices import Choices

CLIENTS_MAX = 3
JUMPS_MS = (25, 25, 100, 700, 11_000, 40_000, 1_900_000)
BUDGETS_BYTES = (0, 0, 0, 2000, 200_000)
MALICE = (200, 200, 40, 12)


def run_session(data: bytes, steps_max: int = 60) -> Arena:
    """Attack a core as `data` says; whatever must not happen raises."""
    choices = Choices(data)
    arena = Arena(choices.pick(BUDGETS_BYTES))
    traffic = Traffic(choices, choices.pick(MALICE))
    furnish(arena, traffic)
    clients = [_intruder(arena, choices)]
    for _ in range(steps_max):
        if choices.exhausted():
            break
        _step(arena, clients, choices, traffic)
        arena.check()
    arena.finish()
    return arena


def furnish(arena: Arena, traffic: Traffic) -> None:
    """The queues and exchanges to begin with; what was refused is declared without frills."""
    client = arena.core.connect()
    for name in QUEUES:
        declare = traffic.declare()
        declare.queue = name
        declare.passive = declare.exclusive = declare.no_wait = False
        client.send(declare)
        if not isinstance(client.take()[-1], m.QueueDeclareOk):
            client.send(m.ChannelCloseOk())
            client.open_channel(1)
            client.declare(name)
    for name in ("x0", "x1"):
        kind = traffic.choices.pick(KINDS)
        arguments: dict[str, object] = {"x-delayed-type": "direct"}
        client.call(m.ExchangeDeclare(name, kind, arguments=arguments), m.ExchangeDeclareOk)
        key = "1" if kind == "x-consistent-hash" else traffic.choices.pick(QUEUES)
        client.call(m.QueueBind(traffic.choices.pick(QUEUES), name, key), m.QueueBindOk)
    client.close_socket()


def _intruder(arena: Arena, choices: Choices) -> RawClient:
    client = arena.intrude()
    if choices.chance(16):
        _half_handshake(client, choices)
        return client
    client.shake_hands(choices.pick((0, 0, 0, 1, 60)), choices.pick((131072, 131072, 4096)))
    for number in range(1, 1 + choices.pick((2, 1, 3))):
        client.send(m.ChannelOpen(), channel=number)
    if choices.chance(2):
        client.send(m.BasicQos(0, choices.below(4), False), m.BasicConsume(choices.pick(QUEUES)))
    return client


def _half_handshake(client: RawClient, choices: Choices) -> None:
    """Stop somewhere, or say something else there."""
    client.send_bytes(choices.pick((PROTOCOL_HEADER, PROTOCOL_HEADER, b"AMQP\x01", b"GET / HTTP")))
    credentials = choices.pick((b"\0guest\0guest", b"", b"\0\xff\0\xff"))
    mechanism = choices.pick(("PLAIN", "AMQPLAIN", "EXTERNAL", "NONE"))
    steps: tuple[m.Method, ...] = (
        m.ConnectionStartOk({}, mechanism, credentials),
        m.ConnectionTuneOk(choices.below(4), choices.pick((0, 131072, 8, 1 << 30)), 0),
        m.ConnectionOpen(choices.pick(("/", "nowhere", "\udcff"))),
    )
    for step in steps[: choices.below(4)]:
        client.send(step, channel=choices.pick((0, 0, 0, 1)))


def _step(arena: Arena, clients: list[RawClient], choices: Choices, traffic: Traffic) -> None:
    at = choices.below(len(clients))
    client = clients[at]
    if client.closed or (client.connection.stage == CLOSING and choices.chance(3)):
        if not client.closed:
            say_close_ok(client)
        clients[at] = _intruder(arena, choices)
        return
    kind = choices.below(32)
    if kind == 28 or kind == 29:
        arena.core.advance(choices.pick(JUMPS_MS))
    elif kind == 30 and len(clients) < CLIENTS_MAX:
        clients.append(_intruder(arena, choices))
    elif kind == 31:
        _socket_event(client, choices)
    elif kind >= 24 and client.closes:
        number, _ = client.closes.pop()
        client.send(m.ChannelCloseOk(), m.ChannelOpen(), channel=number)
    else:
        traffic.client = client
        client.feed(cut(traffic.input(), choices))


def say_close_ok(client: RawClient) -> None:
    """The end of a connection, unless it comes amid another frame."""
    is_amid = len(client.connection.tail) > 0
    client.send_bytes(method_frame(0, m.ConnectionCloseOk()))
    assert client.closed or is_amid


def _socket_event(client: RawClient, choices: Choices) -> None:
    what = choices.below(3)
    if what == 0:
        client.stop_reading()
    elif what == 1:
        client.go_on_reading()
    else:
        client.close_socket()


def cut(data: bytes, choices: Choices) -> list[bytes]:
    """The same bytes in one to four pieces."""
    cuts = sorted({choices.below(len(data) + 1) for _ in range(choices.below(4))})
    edges = [0, *cuts, len(data)]
    return [data[a:b] for a, b in pairwise(edges) if a < b]
