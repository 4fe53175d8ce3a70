"""Meta-binding entry: one kind of private binding, as brokers tell each other of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rhizome.amqp.field_table import encode_table, read_table
from rhizome.broker.routing.exchange import arguments_key


@dataclass(frozen=True)
class MetaBinding:
    """One kind of private binding, or with ``queue`` that of one private queue. The implicit
    binding of a private queue is a kind of its own."""

    vhost: str
    exchange: str
    key: str
    arguments_key: bytes
    queue: str = ""
    relay: bool = False

    def relayed(self) -> MetaBinding:
        return replace(self, relay=True)

    def direct(self) -> MetaBinding:
        return replace(self, relay=False)


def meta_binding_of(
    vhost: str,
    exchange: str,
    key: str,
    arguments: dict[str, object],
    queue: str = "",
    relay: bool = False,
) -> MetaBinding:
    return MetaBinding(vhost, exchange, key, arguments_key(arguments), queue, relay)


def read_change(change: dict[str, object]) -> tuple[MetaBinding, dict[str, object]]:
    """The meta-binding that an entry of a frame is about, and the arguments of its binding."""
    encoded = change["arguments"]
    assert isinstance(encoded, bytes)
    arguments, _ = read_table(encoded, 0)
    interest = meta_binding_of(
        str(change["vhost"]),
        str(change["exchange"]),
        str(change["key"]),
        arguments,
        str(change["queue"]),
        change["relay"] is True,
    )
    return interest, arguments


def change_entry(
    added: bool, interest: MetaBinding, arguments: dict[str, object]
) -> dict[str, object]:
    """The entry of a frame that says that a meta-binding was added or removed."""
    return {
        "add": added,
        "vhost": interest.vhost,
        "exchange": interest.exchange,
        "key": interest.key,
        "arguments": encode_table(arguments),
        "queue": interest.queue,
        "relay": interest.relay,
    }
