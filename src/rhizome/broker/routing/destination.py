"""What bindings point at: destinations, bindings and counted sets of destinations."""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from rhizome.amqp.spec import BASIC, BASIC_PUBLISH
from rhizome.errors import PreconditionFailed

ROUTE_STEPS_MAX: Final = 100_000
"""What the routing of one message may cost, with all its keys and on all its way: nodes of topic
tries visited, arguments of bindings compared with headers, destinations met again. Real topologies
need tens of steps; this many take about 15 ms of compiled code."""


class Destination:
    """The end of a binding: a queue, or an exchange of the same vhost.

    Invariant: ``incoming`` holds exactly the bindings whose destination this is, so that deleting
    it costs as much as it has bindings, however many its sources have.
    ``mark`` belongs to the router: the serial of the last routing that reached this destination.
    """

    vhost: str
    name: str
    is_exchange: bool
    mark: i64
    incoming: dict[Binding, None]

    def __init__(self, vhost: str, name: str, is_exchange: bool = False) -> None:
        self.vhost = vhost
        self.name = name
        self.is_exchange = is_exchange
        self.mark = 0
        self.incoming = {}


@final
class Binding:
    """One binding from the exchange named ``source``.

    ``arguments_key`` is the canonical form of ``arguments``: two bindings between the same pair
    with equal ``key`` and ``arguments_key`` are one. ``chooses``: of all its bindings the source
    takes one for each message.
    """

    source: str
    destination: Destination
    key: str
    arguments: dict[str, object]
    arguments_key: bytes
    chooses: bool

    def __init__(
        self,
        source: str,
        destination: Destination,
        key: str,
        arguments: dict[str, object],
        arguments_key: bytes,
        chooses: bool,
    ) -> None:
        self.source = source
        self.destination = destination
        self.key = key
        self.arguments = arguments
        self.arguments_key = arguments_key
        self.chooses = chooses

    def identity(self) -> tuple[bool, str, str, bytes]:
        """What tells this binding from all others of its source."""
        destination = self.destination
        return (destination.is_exchange, destination.name, self.key, self.arguments_key)


@final
class Walk:
    """The routing of one message, on its way through the exchanges of a vhost.

    Invariant: everything in ``reached`` has ``serial`` as its mark, and is there once. ``steps`` is
    what it has cost so far, at most ``steps_max``: beyond that the message is refused. A budget of
    time would be another one on each broker and under each load; steps depend on keys and bindings
    only.
    """

    vhost: str
    exchange: str
    serial: i64
    reached: list[Destination]
    steps: i64
    steps_max: i64
    _steps_before: i64

    def __init__(self, vhost: str) -> None:
        self.vhost = vhost
        self.exchange = ""
        self.serial = 0
        self.reached = []
        self.steps = 0
        self.steps_max = ROUTE_STEPS_MAX
        self._steps_before = 0

    def begin(self, exchange: str, steps_max: i64) -> None:
        self.exchange = exchange
        self.serial += 1
        self.reached = []
        self._steps_before += self.steps
        self.steps = 0
        self.steps_max = steps_max

    def taken(self) -> i64:
        """The steps of all routings since this was last asked."""
        steps = self._steps_before + self.steps
        self._steps_before = -self.steps
        return steps

    def spend(self, steps: i64) -> None:
        """Count steps. Raises PreconditionFailed if they are too many."""
        self.steps += steps
        if self.steps > self.steps_max:
            raise PreconditionFailed(
                f"a route through exchange '{self.exchange}' in vhost '{self.vhost}' takes more "
                f"than {self.steps_max} steps: too many bindings with wildcards or arguments fit",
                BASIC,
                BASIC_PUBLISH,
            )

    def reach(self, destination: Destination) -> None:
        """Add a destination, unless it has been reached before."""
        if destination.mark != self.serial:
            destination.mark = self.serial
            self.reached.append(destination)


@final
class Fan:
    """Destinations in the order of their first binding, each with the number of its bindings.

    Removing marks the list stale instead of searching it, so that the departure of many subscribers
    of one exchange costs no more than their arrival. ``mark`` is the serial of the last routing
    that collected them: a message with several keys does so once.
    """

    mark: i64
    _counts: dict[Destination, int]
    _listed: list[Destination]
    _stale: bool

    def __init__(self) -> None:
        self.mark = 0
        self._counts = {}
        self._listed = []
        self._stale = False

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, destination: Destination) -> None:
        count = self._counts.get(destination, 0)
        self._counts[destination] = count + 1
        if count == 0 and not self._stale:
            self._listed.append(destination)

    def remove(self, destination: Destination) -> None:
        count = self._counts[destination]
        if count > 1:
            self._counts[destination] = count - 1
        else:
            del self._counts[destination]
            self._stale = True

    def collect(self, walk: Walk) -> bool:
        """Append the destinations that a routing has not reached yet; False if there are none at
        all."""
        if self._stale:
            self._listed = list(self._counts)
            self._stale = False
        listed = self._listed
        serial = walk.serial
        if self.mark == serial:
            return len(listed) > 0
        self.mark = serial
        reached = walk.reached
        again: i64 = 0
        for destination in listed:
            if destination.mark != serial:
                destination.mark = serial
                reached.append(destination)
            else:
                again += 1
        if again > 0:
            walk.spend(again)
        return len(listed) > 0
