"""The router of one vhost: from (exchange, key, headers) to queues.

All changes to exchanges, queues and bindings of a vhost go through its router, which counts them in
``epoch``. A cached route is valid as long as the epoch stays the same.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from rhizome.broker.routing.bindings_and_destinations import (
    ROUTE_QUEUES_MAX,
    ROUTE_STEPS_MAX,
    Binding,
    Destination,
    Walk,
)
from rhizome.broker.routing.exchange import DefaultExchange, Exchange
from rhizome.broker.routing.recent_history_exchange import NO_STORE_HEADER

UNCOUNTED: Final = 1 << 62


@final
class Router:
    """Exchanges, queues and bindings of a vhost.

    Invariant: every binding's source is in ``exchanges`` and its destination in ``exchanges`` or
    ``queues``, under their names. ``tapped`` are the queues that tap the message routed last, or
    keep it for later.
    """

    vhost: str
    exchanges: dict[str, Exchange]
    queues: dict[str, Destination]
    epoch: i64
    tapped: list[Destination]
    traced: bool
    """Whether publishes and deliveries of the vhost are traced (`Tracer`). A change raises the
    epoch: routes know it."""
    _walk: Walk
    _steps: i64
    _header_readers: dict[Exchange, bool]
    _header_readers_epoch: i64

    def __init__(self, vhost: str) -> None:
        self.vhost = vhost
        self.queues = {}
        self.exchanges = {"": DefaultExchange(vhost, self.queues)}
        self.epoch = 1
        self.tapped = []
        self.traced = False
        self._walk = Walk(vhost)
        self._steps = 0
        self._header_readers = {}
        self._header_readers_epoch = 0

    # --- routing

    def route(
        self, exchange: Exchange, key: str, headers: dict[str, object] | None
    ) -> list[Destination]:
        """Where a message with one key goes, as `route_all` says."""
        walk = self._begin(exchange)
        if exchange.history != "":
            self._keep(exchange, headers)
        found = exchange.match(key, headers, walk)
        if found and not exchange.links:
            if len(walk.reached) > ROUTE_QUEUES_MAX:
                walk.refuse_queues()
            return walk.reached
        if not found:
            self._try_alternate(exchange, walk)
        return self._follow([key], headers, walk)

    def route_all(
        self, exchange: Exchange, keys: list[str], headers: dict[str, object] | None
    ) -> list[Destination]:
        """The queues that a message published to ``exchange`` with these keys reaches, each once.

        Bindings between exchanges are followed, with all keys. So is the alternate of each exchange
        where nothing matched. No exchange is visited twice, so loops end. The order depends on the
        bindings only. The list is new and belongs to the caller. Raises PreconditionFailed if it
        takes more than ``ROUTE_STEPS_MAX`` steps.
        """
        walk = self._begin(exchange)
        self._visit(exchange, keys, headers, walk)
        return self._follow(keys, headers, walk)

    def bound(
        self, exchange: Exchange, key: str, headers: dict[str, object] | None
    ) -> list[Destination]:
        """The destinations that bindings of this very exchange lead to, followed no further.

        This is for messages that another broker has routed, by bindings with the same keys and
        within the maximum of steps. So no steps are counted, and nothing is refused.
        """
        walk = self._walk
        walk.begin(exchange.name, UNCOUNTED)
        exchange.match(key, headers, walk)
        walk.steps = 0
        return walk.reached

    def take_steps(self) -> i64:
        """How many steps routing has taken since the last call, including routings that failed."""
        steps = self._steps + self._walk.taken()
        self._steps = 0
        return steps

    def _begin(self, exchange: Exchange) -> Walk:
        walk = self._walk
        walk.begin(exchange.name, ROUTE_STEPS_MAX)
        exchange.mark = walk.serial
        if len(self.tapped) > 0:
            self.tapped = []
        if exchange.tap != "":
            self._tap(exchange)
        return walk

    def _visit(
        self, exchange: Exchange, keys: list[str], headers: dict[str, object] | None, walk: Walk
    ) -> None:
        """Add what an exchange leads to."""
        if exchange.history != "":
            self._keep(exchange, headers)
        found = False
        for key in keys:
            if exchange.match(key, headers, walk):
                found = True
            if not exchange.reads_key:
                break
        if not found:
            self._try_alternate(exchange, walk)

    def _try_alternate(self, exchange: Exchange, walk: Walk) -> None:
        if exchange.alternate == "":
            return
        alternate = self.exchanges.get(exchange.alternate)
        if alternate is not None:
            walk.reach(alternate)

    def _follow(
        self, keys: list[str], headers: dict[str, object] | None, walk: Walk
    ) -> list[Destination]:
        """Route on from the exchanges that were reached, which grow meanwhile; returns the
        queues."""
        queues: list[Destination] = []
        reached = walk.reached
        at: i64 = 0
        while at < len(reached):
            destination = reached[at]
            at += 1
            if isinstance(destination, Exchange):
                walk.spend(len(keys))
                if destination.tap != "":
                    self._tap(destination)
                self._visit(destination, keys, headers, walk)
            else:
                queues.append(destination)
        if len(queues) > ROUTE_QUEUES_MAX:
            walk.refuse_queues()
        return queues

    def _keep(self, exchange: Exchange, headers: dict[str, object] | None) -> None:
        """Add the history of an exchange, unless the message says that it isn't kept."""
        if headers is None or headers.get(NO_STORE_HEADER) is not True:
            self._add_tap(self.queues.get(exchange.history))

    def _tap(self, exchange: Exchange) -> None:
        self._add_tap(self.queues.get(exchange.tap))

    def _add_tap(self, queue: Destination | None) -> None:
        if queue is not None and queue not in self.tapped:
            self.tapped.append(queue)

    def needs_headers(self, exchange: Exchange) -> bool:
        """Whether any exchange reachable from this one looks at headers or properties.

        If not, the key alone decides, and a route may be kept by (exchange, key) until ``epoch``
        changes.
        """
        if self._header_readers_epoch != self.epoch:
            self._header_readers.clear()
            self._header_readers_epoch = self.epoch
        known = self._header_readers.get(exchange)
        if known is None:
            known = self._reaches_header_reader(exchange)
            self._header_readers[exchange] = known
        return known

    def _reaches_header_reader(self, exchange: Exchange) -> bool:
        seen: dict[Exchange, None] = {exchange: None}
        ahead = [exchange]
        while ahead:
            at = ahead.pop()
            self._steps += 1 + len(at.links)
            if at.reads_headers:
                return True
            following = list(at.links)
            alternate = self.exchanges.get(at.alternate) if at.alternate else None
            if alternate is not None:
                following.append(alternate)
            for other in following:
                if other not in seen:
                    seen[other] = None
                    ahead.append(other)
        return False

    # --- changes

    def add_exchange(self, exchange: Exchange) -> None:
        assert exchange.name not in self.exchanges, exchange.name
        self.exchanges[exchange.name] = exchange
        self.epoch += 1

    def remove_exchange(self, exchange: Exchange) -> list[Exchange]:
        """Remove an exchange and its bindings; returns the exchanges that lost one to it."""
        del self.exchanges[exchange.name]
        exchange.forget_bindings()
        return self._detach(exchange)

    def add_queue(self, queue: Destination) -> None:
        assert queue.name not in self.queues, queue.name
        self.queues[queue.name] = queue
        self.epoch += 1

    def remove_queue(self, queue: Destination) -> list[Exchange]:
        """Remove a queue and its bindings; returns the exchanges that lost one."""
        del self.queues[queue.name]
        return self._detach(queue)

    def _detach(self, destination: Destination) -> list[Exchange]:
        self.epoch += 1
        sources: dict[Exchange, None] = {}
        for binding in list(destination.incoming):
            source = self.exchanges.get(binding.source)
            assert source is not None, binding.source
            source.discard(binding)
            sources[source] = None
        return list(sources)

    def bind(
        self, source: Exchange, destination: Destination, key: str, arguments: dict[str, object]
    ) -> bool:
        """Bind; False if that binding exists. Raises PreconditionFailed as the exchange type
        demands."""
        added = source.bind(destination, key, arguments)
        if added:
            self.epoch += 1
        return added

    def unbind(
        self, source: Exchange, destination: Destination, key: str, arguments: dict[str, object]
    ) -> bool:
        """Unbind; False if there is no such binding."""
        removed = source.unbind(destination, key, arguments)
        if removed:
            self.epoch += 1
        return removed

    def set_alternate(self, exchange: Exchange, alternate: str) -> None:
        """Change where messages go that match nothing in ``exchange``."""
        if exchange.alternate != alternate:
            exchange.alternate = alternate
            self.epoch += 1

    def set_tap(self, exchange: Exchange, tap: str) -> None:
        """Change which stream gets everything that comes to ``exchange``."""
        if exchange.tap != tap:
            exchange.tap = tap
            self.epoch += 1

    def bindings(self) -> list[Binding]:
        """All bindings of the vhost, exchange by exchange, without the implicit ones."""
        found: list[Binding] = []
        for exchange in self.exchanges.values():
            found.extend(exchange.bindings())
        return found
