"""The network of a simulation: ordered byte streams between hosts, and what happens to them.

A connection behaves as one of TCP does:

- bytes arrive in order, after a delay, cut into other pieces than they were sent in;
- at most `WINDOW_BYTES_MAX` are under way or unread; the rest waits at the sender, which is told
  that it is not writable, and told again when all of it has left;
- while the path is blocked, nothing arrives and neither end is told; when it opens, what was sent
  arrives late. If it stays blocked for too long the sender gives up, and the other end learns
  nothing;
- a reset loses what is under way, and each end learns of it by itself, at once or after seconds;
- bytes for an end that is gone are answered by a reset, if its machine is on; if it is off, by
  silence.

Paths have a direction: a -> b may be blocked while b -> a is not.
"""

from __future__ import annotations

import zlib
from collections import deque
from typing import Final, Protocol, final

from rhizome.testing.sim.world.event_scheduler import MS, SECOND, World

WINDOW_BYTES_MAX: Final = 256 * 1024
DIAL_RETRY_US: Final = 1 * SECOND
DIAL_PATIENCE_US: Final = 3 * SECOND
SILENCE_PATIENCE_US: Final = 20 * SECOND
"""How long a sender retransmits before it gives up a connection."""
RETRANSMIT_US_MAX: Final = 1 * SECOND
RESET_HEARD_US_MAX: Final = 200 * MS
HALF_OPEN_CHANCE: Final = 0.25
"""How often an end does not hear of a reset before it sends something."""

OPENING: Final = 0
OPEN: Final = 1
CLOSED: Final = 2

Way = tuple[str, str]
"""From whom to whom."""


class Station(Protocol):
    """What the network knows of the machine at a name."""

    name: str

    def is_powered(self) -> bool: ...
    def is_listening(self) -> bool: ...
    def accept(self, connection: Connection) -> None: ...
    def tell_connected(self, connection: Connection) -> None: ...
    def tell_received(self, connection: Connection, data: bytes) -> None: ...
    def tell_writable(self, connection: Connection) -> None: ...
    def tell_disconnected(self, connection: Connection, reason: str) -> None: ...
    def forget(self, connection: Connection) -> None: ...


@final
class Connection:
    """One end of a connection. Both ends have the same number.

    Invariant: `in_flight_bytes` counts what was sent and not yet read by the other end's program;
    `waiting` is empty whenever that is below the window.
    """

    __slots__ = (
        "_arrival_us",
        "_network",
        "dialled",
        "in_flight",
        "in_flight_bytes",
        "local",
        "number",
        "peer",
        "remote",
        "stage",
        "stalled_us",
        "waiting",
        "writable",
    )

    def __init__(self, network: Network, number: int, local: str, remote: str, dialled: bool):
        self._network = network
        self.number = number
        self.local = local
        self.remote = remote
        self.dialled = dialled
        self.stage = OPENING
        self.writable = True
        self.peer: Connection
        self.waiting: deque[bytes] = deque()
        self.in_flight: deque[bytes] = deque()
        self.in_flight_bytes = 0
        self.stalled_us = -1
        self._arrival_us = 0

    def __repr__(self) -> str:
        arrow = "->" if self.dialled else "<-"
        return f"#{self.number} {self.local}{arrow}{self.remote}"

    def send(self, data: bytes) -> bool:
        """Send bytes; returns whether more are welcome. On a closed connection they are lost."""
        if self.stage != OPEN or not data:
            return self.writable
        self.waiting.append(data)
        self._network.transmit(self)
        if self.waiting:
            self.writable = False
        return self.writable

    def close(self) -> None:
        """Close this end; what was sent arrives before the other end learns of it."""
        self._network.close(self)


class Network:
    """Hosts by name, the connections between them, and the state of the paths."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.stations: dict[str, Station] = {}
        self.connections: dict[int, Connection] = {}
        """The dialling end of every connection of which at least one end is open."""
        self.bytes_carried = 0
        self._chance = world.chance("network")
        self._numbers = 0
        self._blocked: dict[Way, int] = {}
        self._slowed: dict[Way, list[int]] = {}
        self._base_us: dict[Way, int] = {}
        self._stalled: list[Connection] = []

    def join(self, station: Station) -> None:
        self.stations[station.name] = station

    # --- ways

    def block(self, way: Way) -> None:
        """Let nothing through; faults that overlap block a path several times."""
        self._blocked[way] = self._blocked.get(way, 0) + 1

    def unblock(self, way: Way) -> None:
        self._blocked[way] -= 1
        if not self._blocked[way]:
            del self._blocked[way]
            self._resume(way)

    def is_blocked(self, way: Way) -> bool:
        return way in self._blocked

    def slow(self, way: Way, extra_us: int) -> None:
        """Delay what is sent from now on by up to twice `extra_us` more."""
        self._slowed.setdefault(way, []).append(extra_us)

    def unslow(self, way: Way, extra_us: int) -> None:
        self._slowed[way].remove(extra_us)

    def arrived_us(self, way: Way) -> int:
        """When everything that was sent on a path will have arrived, if nothing blocks it. That
        may be in the past.

        It may be long after the path is as fast as before: nothing overtakes what was slow, and
        what was held back is retransmitted in its own time.
        """
        when_us = 0
        for near in self.connections.values():
            for end in (near, near.peer):
                is_open = end.stage == OPEN and end.peer.stage != CLOSED
                if is_open and (end.local, end.remote) == way:
                    when_us = max(when_us, end._arrival_us)
        return when_us

    def _delay_us(self, way: Way) -> int:
        chance = self._chance.random
        base_us = self._base_us.get(way)
        if base_us is None:
            base_us = self._base_us[way] = 50 + int(chance() * 500)
        # Most packets are quick, a few are not.
        delay_us = base_us + int(chance() ** 8 * 20 * MS)
        for extra_us in self._slowed.get(way, ()):
            delay_us += int(extra_us * 2 * chance())
        return delay_us

    # --- opening

    def dial(self, local: str, remote: str) -> Connection:
        """Begin a connection; the program hears `connected` or `disconnected`."""
        self._numbers += 1
        near = Connection(self, self._numbers, local, remote, True)
        far = Connection(self, self._numbers, remote, local, False)
        near.peer, far.peer = far, near
        self.connections[near.number] = near
        self.world.note(f"dial {near}")
        give_up_us = self.world.now_us + DIAL_PATIENCE_US
        self.world.after(self._delay_us((local, remote)), self._knock, near, give_up_us)
        return near

    def _knock(self, near: Connection, give_up_us: int) -> None:
        if near.stage != OPENING:
            return
        way, back = (near.local, near.remote), (near.remote, near.local)
        station = self.stations.get(near.remote)
        silent = station is None or not station.is_powered()
        if silent or self.is_blocked(way) or self.is_blocked(back):
            if self.world.now_us + DIAL_RETRY_US > give_up_us:
                self._lose(near, "no answer")
            else:
                self.world.after(DIAL_RETRY_US, self._knock, near, give_up_us)
            return
        assert station is not None
        delay_us = self._delay_us(back)
        if not station.is_listening():
            self.world.after(delay_us, self._lose, near, "refused")
            return
        far = near.peer
        far.stage = OPEN
        # What the accepting end sends at once must not overtake the news that it has accepted.
        far._arrival_us = self.world.now_us + delay_us
        station.accept(far)
        self.world.after(delay_us, self._opened, near)

    def _opened(self, near: Connection) -> None:
        if near.stage != OPENING:
            return
        near.stage = OPEN
        self.stations[near.local].tell_connected(near)

    # --- bytes

    def transmit(self, end: Connection) -> None:
        """Send what waits, as far as the window allows."""
        way = (end.local, end.remote)
        now_us = self.world.now_us
        while end.waiting and end.in_flight_bytes < WINDOW_BYTES_MAX:
            data = end.waiting.popleft()
            room = WINDOW_BYTES_MAX - end.in_flight_bytes
            cut = self._cut(len(data), room)
            if cut < len(data):
                end.waiting.appendleft(data[cut:])
                data = data[:cut]
            end.in_flight.append(data)
            end.in_flight_bytes += len(data)
            end._arrival_us = max(end._arrival_us, now_us + self._delay_us(way))
            if self.world.traced:
                self.world.note(f"{end} sends {len(data)} {zlib.crc32(data):08x}")
            self.world.at(end._arrival_us, self._arrive, end)

    def _cut(self, length: int, room: int) -> int:
        """Where a piece of `length` bytes is cut: mostly nowhere."""
        chance = self._chance.random()
        if chance < 0.05 and length > 1:
            length = 1 + int(chance / 0.05 * (length - 1))
        return min(length, room)

    def _arrive(self, end: Connection) -> None:
        """The oldest piece under way arrives, unless its path is blocked."""
        if not end.in_flight or end.stalled_us >= 0:
            return
        if self.is_blocked((end.local, end.remote)):
            self._stall(end)
            return
        peer = end.peer
        if peer.stage == CLOSED:
            self._answer_for_a_dead_end(end)
            return
        data = end.in_flight.popleft()
        if not data:
            self._hear_close(peer, "closed by peer")
            return
        self.bytes_carried += len(data)
        self.stations[peer.local].tell_received(peer, data)

    def was_read(self, end: Connection, count: int) -> None:
        """The program at `end` has read bytes: its peer may send more."""
        sender = end.peer
        sender.in_flight_bytes -= count
        if sender.waiting:
            self.transmit(sender)
            if not sender.waiting:
                delay_us = self._delay_us((end.local, end.remote))
                self.world.after(delay_us, self._become_writable, sender)

    def _become_writable(self, end: Connection) -> None:
        if end.stage == OPEN and not end.waiting and not end.writable:
            end.writable = True
            self.stations[end.local].tell_writable(end)

    def _stall(self, end: Connection) -> None:
        end.stalled_us = self.world.now_us
        self._stalled.append(end)
        self.world.after(SILENCE_PATIENCE_US, self._give_up, end, end.stalled_us)

    def _resume(self, way: Way) -> None:
        """A path is open again: what stalled on it is retransmitted, sooner or later."""
        ends = [end for end in self._stalled if (end.local, end.remote) == way]
        self._stalled = [end for end in self._stalled if (end.local, end.remote) != way]
        for end in ends:
            stalled_us = self.world.now_us - end.stalled_us
            end.stalled_us = -1
            wait_us = int(self._chance.random() * min(stalled_us, RETRANSMIT_US_MAX))
            end._arrival_us = max(end._arrival_us, self.world.now_us + wait_us)
            for _ in end.in_flight:
                self.world.at(end._arrival_us, self._arrive, end)

    def _give_up(self, end: Connection, stalled_us: int) -> None:
        if end.stalled_us == stalled_us:
            self._lose(end, "timed out")
            self._forget_bytes(end)

    def _answer_for_a_dead_end(self, end: Connection) -> None:
        if not self.stations[end.remote].is_powered():
            self._stall(end)
            return
        self._forget_bytes(end)
        if end.stage == OPEN and not self.is_blocked((end.remote, end.local)):
            delay_us = self._delay_us((end.remote, end.local))
            self.world.after(delay_us, self._lose, end, "reset by peer")

    def powered_on(self, name: str) -> None:
        """A machine is back: it answers what is retransmitted to it."""
        for end in [end for end in self._stalled if end.remote == name]:
            if not self.is_blocked((end.local, end.remote)):
                self._stalled.remove(end)
                end.stalled_us = -1
                wait_us = int(self._chance.random() * RETRANSMIT_US_MAX)
                self.world.after(wait_us, self._arrive, end)

    # --- the end of connections

    def close(self, end: Connection) -> None:
        """Close an end on behalf of its own program or of the kernel under it."""
        if end.stage == CLOSED:
            return
        self.world.note(f"close {end}")
        self.stations[end.local].forget(end)
        end.stage = CLOSED
        end.waiting.clear()
        if end.peer.stage == OPEN:
            # An empty piece marks the end of the stream.
            end.in_flight.append(b"")
            way = (end.local, end.remote)
            end._arrival_us = max(end._arrival_us, self.world.now_us + self._delay_us(way))
            self.world.at(end._arrival_us, self._arrive, end)
        self._drop_if_over(end)

    def abort(self, end: Connection) -> None:
        """Close an end and lose what it has sent."""
        self._forget_bytes(end)
        self.close(end)

    def vanish(self, end: Connection) -> None:
        """The machine of an end lost power: its peer is not told, and some of what it sent
        arrives."""
        end.stage = CLOSED
        end.waiting.clear()
        kept = int(self._chance.random() * (len(end.in_flight) + 1))
        while len(end.in_flight) > kept:
            end.in_flight.pop()
        self._drop_if_over(end)

    def reset(self, near: Connection) -> None:
        """Break a connection: what is under way is lost, each end learns of it in its own time."""
        self.world.note(f"break {near}")
        for end in (near, near.peer):
            self._forget_bytes(end)
            if end.stage == OPENING and not end.dialled:
                # The program at this end has not heard of the connection.
                end.stage = CLOSED
            if end.stage == CLOSED:
                continue
            if self._chance.random() < HALF_OPEN_CHANCE:
                self.world.after(SILENCE_PATIENCE_US, self._lose, end, "timed out")
            else:
                delay_us = int(self._chance.random() * RESET_HEARD_US_MAX)
                self.world.after(delay_us, self._lose, end, "reset")
        # Bytes sent from now on are lost, also those of an end that hasn't heard of it yet.
        far = near.peer
        near.peer, far.peer = _nowhere(near), _nowhere(far)

    def _lose(self, end: Connection, reason: str) -> None:
        if end.stage != CLOSED:
            self._hear_close(end, reason)

    def _hear_close(self, end: Connection, reason: str) -> None:
        end.stage = CLOSED
        end.waiting.clear()
        self.world.note(f"{end} ends: {reason}")
        self.stations[end.local].tell_disconnected(end, reason)
        self._drop_if_over(end)

    def _forget_bytes(self, end: Connection) -> None:
        end.waiting.clear()
        end.in_flight.clear()

    def _drop_if_over(self, end: Connection) -> None:
        if end.peer.stage != OPEN:
            self.connections.pop(end.number, None)

    def between(self, one: str, other: str) -> list[Connection]:
        """The connections of two hosts, by number."""
        pair = ((one, other), (other, one))
        return [end for end in self.connections.values() if (end.local, end.remote) in pair]


def _nowhere(end: Connection) -> Connection:
    """The other end of a broken connection: closed, on the same machine as before."""
    gone = Connection(end._network, end.number, end.remote, end.local, not end.dialled)
    gone.stage = CLOSED
    gone.peer = end
    return gone
