"""One attack, all of it decided by bytes."""

from __future__ import annotations

from rhizome.amqp import methods as m
from rhizome.amqp.frames import method_frame
from rhizome.broker.stages import CLOSING
from rhizome.testing.core import PROTOCOL_HEADER

from .arena import Arena, RawClient
from .choices import Choices
from .traffic import Traffic

CLIENTS_MAX = 3
JUMPS_MS = (25, 25, 100, 700, 11_000, 40_000, 1_900_000)
BUDGETS_BYTES = (0, 0, 0, 2000, 200_000)


def run_session(data: bytes, steps_max: int = 60) -> Arena:
    """Attack a core as `data` says; whatever must not happen raises."""
    choices = Choices(data)
    arena = Arena(choices.pick(BUDGETS_BYTES))
    traffic = Traffic(choices)
    clients = [_intruder(arena, choices)]
    for _ in range(steps_max):
        if choices.exhausted():
            break
        _step(arena, clients, choices, traffic)
        arena.check()
    arena.finish()
    return arena


def _intruder(arena: Arena, choices: Choices) -> RawClient:
    client = arena.intrude()
    if choices.chance(8):
        _half_handshake(client, choices)
        return client
    client.shake_hands(choices.pick((0, 0, 0, 1, 60)), choices.pick((131072, 131072, 4096)))
    for number in range(1, 1 + choices.pick((1, 1, 2, 3, 0))):
        client.send(m.ChannelOpen(), channel=number)
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
            amid_frame = len(client.connection.tail) > 0
            client.send_bytes(method_frame(0, m.ConnectionCloseOk()))
            assert client.closed or amid_frame
        clients[at] = _intruder(arena, choices)
        return
    kind = choices.below(32)
    if kind == 29:
        arena.core.advance(choices.pick(JUMPS_MS))
    elif kind == 30 and len(clients) < CLIENTS_MAX:
        clients.append(_intruder(arena, choices))
    elif kind == 31:
        _socket_event(client, choices)
    elif kind == 28 and client.closes:
        number, _ = client.closes.pop()
        client.send(m.ChannelCloseOk(), m.ChannelOpen(), channel=number)
    else:
        client.feed(cut(traffic.input(), choices))


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
    return [data[a:b] for a, b in zip(edges, edges[1:], strict=False) if a < b]
