"""What bindings point at: destinations, bindings and counted sets of destinations."""

from __future__ import annotations

from typing import final

from mypy_extensions import i64


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
class Fan:
    """Destinations in the order of their first binding, each with the number of its bindings.

    Removing marks the list stale instead of searching it, so that the departure of many subscribers
    of one exchange costs no more than their arrival.
    """

    _counts: dict[Destination, int]
    _listed: list[Destination]
    _stale: bool

    def __init__(self) -> None:
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

    def collect(self, serial: i64, out: list[Destination]) -> bool:
        """Append the destinations that routing ``serial`` has not reached yet; False if empty."""
        if self._stale:
            self._listed = list(self._counts)
            self._stale = False
        listed = self._listed
        for destination in listed:
            if destination.mark != serial:
                destination.mark = serial
                out.append(destination)
        return len(listed) > 0
