"""What a session has declared, to be declared again where it is gone.

Exclusive queues end with their connection, so a session always declares its own again, with their
bindings. Everything else belongs to the cluster, and is declared again only if the application asks
for it: where brokers keep no state, or a queue may have been deleted in the meantime.

A queue that the broker has named gets another name from the next broker; the application continues
to use the one that it knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rhizome.amqp import methods
from rhizome.amqp.methods import Method

if TYPE_CHECKING:
    from rhizome.client.channel import Channel

DECLARATIONS_MAX: Final = 10_000
"""How many declarations are remembered; a session with more uses its names only once."""

_Key = tuple[object, ...]


class RecordedTopology:
    """Invariant: `_made` is in the order in which things were made; `_names` leads from the names
    that the application knows to those that the broker knows, where they differ.
    """

    def __init__(self, everything: bool) -> None:
        self._everything = everything
        self._made: dict[_Key, Method] = {}
        self._names: dict[str, str] = {}

    def present_name(self, queue: str) -> str:
        """The name that the present broker has given a queue."""
        return self._names.get(queue, queue)

    def note(self, method: Method, reply: object) -> None:
        """A method was carried out: remember what it declared, forget what it deleted."""
        if isinstance(method, methods.QueueDeclare):
            self._declared(method, reply)
        elif isinstance(method, methods.QueueDelete):
            self._forget_queue(method.queue)
        elif isinstance(method, methods.ExchangeDelete):
            self._forget_exchange(method.exchange)
        elif isinstance(method, methods.QueueUnbind):
            self._made.pop(_queue_binding(method), None)
        elif isinstance(method, methods.ExchangeUnbind):
            self._made.pop(_exchange_binding(method), None)
        elif isinstance(method, methods.QueueBind):
            if self._everything or ("queue", method.queue) in self._made:
                self._remember(_queue_binding(method), method)
        elif self._everything and isinstance(method, methods.ExchangeDeclare):
            if not method.passive:
                self._remember(("exchange", method.exchange), method)
        elif self._everything and isinstance(method, methods.ExchangeBind):
            self._remember(_exchange_binding(method), method)

    def renamed(self, method: Method) -> Method:
        """The method as the present broker understands it."""
        if not self._names:
            return method
        if isinstance(method, methods.QueueDeclare) and method.queue in self._names:
            return _declaration(method, self._names[method.queue])
        if isinstance(method, methods.QueueBind) and method.queue in self._names:
            name = self._names[method.queue]
            return methods.QueueBind(
                name, method.exchange, method.routing_key, arguments=method.arguments
            )
        if isinstance(method, methods.QueueUnbind) and method.queue in self._names:
            name = self._names[method.queue]
            return methods.QueueUnbind(name, method.exchange, method.routing_key, method.arguments)
        if isinstance(method, methods.QueuePurge):
            return methods.QueuePurge(self.present_name(method.queue))
        if isinstance(method, methods.QueueDelete):
            return methods.QueueDelete(
                self.present_name(method.queue), method.if_unused, method.if_empty
            )
        if isinstance(method, methods.BasicGet):
            return methods.BasicGet(self.present_name(method.queue), method.no_ack)
        return method

    async def make_again(self, channel: Channel) -> None:
        """Carry out everything that is remembered."""
        for key, method in list(self._made.items()):
            if isinstance(method, methods.QueueDeclare):
                reply = await channel._call_any(method, (methods.QueueDeclareOk,))
                assert isinstance(reply, methods.QueueDeclareOk)
                name = str(key[1])
                if reply.queue != name:
                    self._names[name] = reply.queue
            elif isinstance(method, methods.ExchangeDeclare):
                await channel._call_any(method, (methods.ExchangeDeclareOk,))
            elif isinstance(method, methods.QueueBind):
                await channel._call_any(self.renamed(method), (methods.QueueBindOk,))
            else:
                await channel._call_any(method, (methods.ExchangeBindOk,))

    @property
    def is_empty(self) -> bool:
        return not self._made

    def _declared(self, method: methods.QueueDeclare, reply: object) -> None:
        if method.passive or not (self._everything or method.exclusive):
            return
        assert isinstance(reply, methods.QueueDeclareOk)
        key = ("queue", method.queue or reply.queue)
        if key not in self._made:
            self._remember(key, method)

    def _remember(self, key: _Key, method: Method) -> None:
        self._made[key] = method
        while len(self._made) > DECLARATIONS_MAX:
            del self._made[next(iter(self._made))]

    def _forget_queue(self, queue: str) -> None:
        self._made.pop(("queue", queue), None)
        self._names.pop(queue, None)
        for key in [key for key in self._made if key[0] == "binding" and key[1] == queue]:
            del self._made[key]

    def _forget_exchange(self, exchange: str) -> None:
        self._made.pop(("exchange", exchange), None)
        for key in [key for key in self._made if "bind" in str(key[0]) and exchange in key[1:3]]:
            del self._made[key]


def _declaration(method: methods.QueueDeclare, name: str) -> methods.QueueDeclare:
    return methods.QueueDeclare(
        queue=name,
        passive=method.passive,
        durable=method.durable,
        exclusive=method.exclusive,
        auto_delete=method.auto_delete,
        arguments=method.arguments,
    )


def _queue_binding(method: methods.QueueBind | methods.QueueUnbind) -> _Key:
    arguments = repr(sorted((method.arguments or {}).items()))
    return ("binding", method.queue, method.exchange, method.routing_key, arguments)


def _exchange_binding(method: methods.ExchangeBind | methods.ExchangeUnbind) -> _Key:
    arguments = repr(sorted((method.arguments or {}).items()))
    return ("exchange-binding", method.destination, method.source, method.routing_key, arguments)
