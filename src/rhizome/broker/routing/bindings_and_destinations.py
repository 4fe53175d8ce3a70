"""Destinations, bindings, and counted sets of destinations."""

from __future__ import annotations

from typing import Final, NoReturn, final

from mypy_extensions import i64

from rhizome.amqp.spec import BASIC, BASIC_PUBLISH
from rhizome.errors import PreconditionFailed

ROUTE_STEPS_MAX: Final = 100_000
"""The most steps that the routing of one message may take, with all its keys and through all
exchanges: nodes of topic tries visited, arguments of bindings compared with headers, destinations
met again. Real topologies need tens of steps; this many take about 15 ms of compiled code."""

ROUTE_QUEUES_MAX: Final = 250_000
"""How many queues one message may reach. It is put into all of them in one turn: that takes 40 ms
of compiled code, and finding them once takes another 50."""


WORDS_PER_WEIGHT: Final = 8
"""So many more words make a binding count as one more."""


class Destination:
    """The destination of a binding: a queue, or an exchange of the same vhost.

    Invariant: ``incoming`` holds exactly the bindings to this destination, so that deleting it
    costs as much as it has bindings, however many its sources have; ``weight`` is the sum of what
    they weigh. ``mark`` belongs to the router: the serial of the last routing that reached this
    destination.
    """

    vhost: str
    name: str
    is_exchange: bool
    mark: i64
    weight: i64
    incoming: dict[Binding, None]

    def __init__(self, vhost: str, name: str, is_exchange: bool = False) -> None:
        self.vhost = vhost
        self.name = name
        self.is_exchange = is_exchange
        self.mark = 0
        self.weight = 0
        self.incoming = {}

    def is_active_here(self) -> bool:
        """Whether messages sent there stay on this broker for now. Whatever stands for a queue on
        another broker isn't."""
        return self.is_exchange


@final
class Binding:
    """One binding from the exchange named ``source``.

    ``arguments_key`` is the canonical form of ``arguments``: two bindings between the same pair
    with equal ``key`` and ``arguments_key`` are one. ``chooses``: the source picks one of all its
    bindings for each message.
    """

    source: str
    destination: Destination
    key: str
    arguments: dict[str, object]
    arguments_key: bytes
    chooses: bool
    state_bytes: i64
    """What a shared binding counts in the cluster state; 0 until it is counted. A queue or exchange
    may take thousands of bindings with it, so none is encoded a second time for that."""

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
        self.state_bytes = 0

    def weight(self) -> i64:
        """How many bindings of few words it counts as: each word is a step when it is removed."""
        return 1 + self.key.count(".") // WORDS_PER_WEIGHT

    def identity(self) -> tuple[bool, str, str, bytes]:
        """What tells this binding from all others of its source."""
        destination = self.destination
        return (destination.is_exchange, destination.name, self.key, self.arguments_key)


@final
class Walk:
    """The routing of one message through the exchanges of a vhost.

    Invariant: everything in ``reached`` has ``serial`` as its mark, and is there once. ``steps`` is
    the cost so far, at most ``steps_max``: beyond that the message is refused. A time budget would
    differ between brokers and loads; steps depend on keys and bindings only.
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
        """The steps of all routings since the last call."""
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

    def refuse_queues(self) -> NoReturn:
        raise PreconditionFailed(
            f"a message that is published to exchange '{self.exchange}' in vhost '{self.vhost}'"
            f" reaches more than {ROUTE_QUEUES_MAX} queues",
            BASIC,
            BASIC_PUBLISH,
        )

    def reach(self, destination: Destination) -> None:
        """Add a destination, unless it has been reached before."""
        if destination.mark != self.serial:
            destination.mark = self.serial
            self.reached.append(destination)


@final
class CountedDestinations:
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
