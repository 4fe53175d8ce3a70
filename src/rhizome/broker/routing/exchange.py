"""Exchanges: the base of all exchange types, and the types that need no structure of their own.

An exchange keeps its bindings once, by identity, and tells its subclass of every first and last one
through ``_added`` and ``_removed``; the subclass keeps whatever index makes ``match`` fast.
"""

from __future__ import annotations

from typing import final

from rhizome.amqp.field_table import encode_table
from rhizome.broker.routing.bindings_and_destinations import (
    Binding,
    CountedDestinations,
    Destination,
    Walk,
)


def arguments_key(arguments: dict[str, object]) -> bytes:
    """Canonical form of binding arguments: equal tables give equal bytes in whatever order."""
    if not arguments:
        return b""
    return encode_table({name: arguments[name] for name in sorted(arguments)})


class Exchange(Destination):
    """A named exchange with its bindings.

    ``id`` tells it from earlier and later ones of its name (0 for those that always exist).
    ``alternate`` names the exchange that gets messages that match nothing ("" for none), policies
    included. ``tap`` names a stream that gets everything published here ("" if there is none).
    ``history`` names the queue that keeps the last messages published here ("" if none does).
    ``delayed`` says that messages wait here for their x-delay before they are routed. ``chooses``
    says that a message goes to one destination of all, not to each that matches. ``reads_key`` says
    that the key counts for ``match``; if not, a message with several keys is matched once.
    ``reads_headers`` says that ``match`` looks at headers or properties, not only at the key.

    Invariant: ``links`` counts the bindings to each destination that is an exchange.
    """

    id: int
    kind: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: dict[str, object]
    alternate: str
    tap: str
    history: str
    delayed: bool
    chooses: bool
    reads_key: bool
    reads_headers: bool
    links: dict[Exchange, int]
    _bindings: dict[tuple[bool, str, str, bytes], Binding]

    def __init__(
        self,
        vhost: str,
        name: str,
        kind: str,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: dict[str, object] | None = None,
    ) -> None:
        super().__init__(vhost, name, True)
        self.id = 0
        self.kind = kind
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.arguments = {} if arguments is None else arguments
        self.alternate = self.declared_alternate()
        self.tap = ""
        self.history = ""
        self.delayed = False
        self.chooses = False
        self.reads_key = True
        self.reads_headers = False
        self.links = {}
        self._bindings = {}

    def declared_alternate(self) -> str:
        """The alternate exchange that the declaration asked for, policies aside."""
        declared = self.arguments.get("alternate-exchange")
        return declared if isinstance(declared, str) else ""

    def match(self, key: str, headers: dict[str, object] | None, walk: Walk) -> bool:
        """Add the destinations of a message to what a routing has reached.

        False if no binding matched at all, which is when the alternate exchange gets the message.
        """
        raise NotImplementedError

    def check_binding(self, key: str, arguments: dict[str, object]) -> None:
        """Raise PreconditionFailed if this exchange type cannot take such a binding."""

    def _added(self, binding: Binding) -> None:
        """``binding`` is new: index it."""
        raise NotImplementedError

    def _removed(self, binding: Binding) -> None:
        """``binding`` is gone: forget it."""
        raise NotImplementedError

    def bind(self, destination: Destination, key: str, arguments: dict[str, object]) -> bool:
        """Add a binding; False if the same one is there already."""
        self.check_binding(key, arguments)
        binding = Binding(
            self.name, destination, key, arguments, arguments_key(arguments), self.chooses
        )
        identity = binding.identity()
        if identity in self._bindings:
            return False
        self._bindings[identity] = binding
        destination.incoming[binding] = None
        destination.weight += binding.weight()
        if isinstance(destination, Exchange):
            self.links[destination] = self.links.get(destination, 0) + 1
        self._added(binding)
        return True

    def find(
        self, destination: Destination, key: str, arguments: dict[str, object]
    ) -> Binding | None:
        """The binding with this identity."""
        wanted = (destination.is_exchange, destination.name, key, arguments_key(arguments))
        return self._bindings.get(wanted)

    def unbind(self, destination: Destination, key: str, arguments: dict[str, object]) -> bool:
        """Remove a binding; False if there is none like it."""
        binding = self.find(destination, key, arguments)
        if binding is None:
            return False
        self.discard(binding)
        return True

    def discard(self, binding: Binding) -> None:
        """Remove a binding of this exchange."""
        del self._bindings[binding.identity()]
        destination = binding.destination
        del destination.incoming[binding]
        destination.weight -= binding.weight()
        if isinstance(destination, Exchange):
            count = self.links[destination] - 1
            if count == 0:
                del self.links[destination]
            else:
                self.links[destination] = count
        self._removed(binding)

    def unbind_all(self, destination: Destination) -> int:
        """Remove every binding to ``destination``; returns how many there were."""
        found = [binding for binding in destination.incoming if binding.source == self.name]
        for binding in found:
            self.discard(binding)
        return len(found)

    def forget_bindings(self) -> None:
        """The exchange is deleted: its destinations lose their bindings to it."""
        for binding in self._bindings.values():
            del binding.destination.incoming[binding]
            binding.destination.weight -= binding.weight()
        self._bindings = {}
        self.links = {}

    def bindings(self) -> list[Binding]:
        """All bindings, oldest first."""
        return list(self._bindings.values())

    def binding_count(self) -> int:
        return len(self._bindings)

    def is_unused(self) -> bool:
        """Whether nothing of any kind is bound to this exchange (if-unused of exchange.delete)."""
        return not self._bindings


@final
class DirectExchange(Exchange):
    """Destinations whose binding key equals the routing key."""

    _fans: dict[str, CountedDestinations]

    def __init__(
        self,
        vhost: str,
        name: str,
        kind: str = "direct",
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: dict[str, object] | None = None,
    ) -> None:
        super().__init__(vhost, name, kind, durable, auto_delete, internal, arguments)
        self._fans = {}

    def match(self, key: str, headers: dict[str, object] | None, walk: Walk) -> bool:
        fan = self._fans.get(key)
        return fan is not None and fan.collect(walk)

    def _added(self, binding: Binding) -> None:
        fan = self._fans.get(binding.key)
        if fan is None:
            fan = CountedDestinations()
            self._fans[binding.key] = fan
        fan.add(binding.destination)

    def _removed(self, binding: Binding) -> None:
        fan = self._fans[binding.key]
        fan.remove(binding.destination)
        if len(fan) == 0:
            del self._fans[binding.key]


@final
class FanoutExchange(Exchange):
    """All destinations, whatever the key."""

    _fan: CountedDestinations

    def __init__(
        self,
        vhost: str,
        name: str,
        kind: str = "fanout",
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: dict[str, object] | None = None,
    ) -> None:
        super().__init__(vhost, name, kind, durable, auto_delete, internal, arguments)
        self.reads_key = False
        self._fan = CountedDestinations()

    def match(self, key: str, headers: dict[str, object] | None, walk: Walk) -> bool:
        return self._fan.collect(walk)

    def _added(self, binding: Binding) -> None:
        self._fan.add(binding.destination)

    def _removed(self, binding: Binding) -> None:
        self._fan.remove(binding.destination)


@final
class DefaultExchange(Exchange):
    """The nameless exchange: every queue of the vhost is bound to it by its own name.

    It shares the router's table of queues and has no bindings of its own. Bind methods refuse it as
    a source and as a destination before they get here.
    """

    _queues: dict[str, Destination]

    def __init__(self, vhost: str, queues: dict[str, Destination]) -> None:
        super().__init__(vhost, "", "direct", True)
        self._queues = queues

    def match(self, key: str, headers: dict[str, object] | None, walk: Walk) -> bool:
        queue = self._queues.get(key)
        if queue is None:
            return False
        walk.reach(queue)
        return True
