"""Interest: one kind of private binding, as brokers tell each other of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rhizome.amqp.values import encode_table, read_table
from rhizome.broker.routing.exchange import arguments_key


@dataclass(frozen=True)
class Interest:
    """One kind of private binding, or with ``queue`` that of one private queue. The implicit
    binding of a private queue is its own kind.
    """

    vhost: str
    exchange: str
    key: str
    arguments_key: bytes
    queue: str = ""
    relay: bool = False

    def relayed(self) -> Interest:
        return replace(self, relay=True)

    def direct(self) -> Interest:
        return replace(self, relay=False)


def interest_of(
    vhost: str,
    exchange: str,
    key: str,
    arguments: dict[str, object],
    queue: str = "",
    relay: bool = False,
) -> Interest:
    return Interest(vhost, exchange, key, arguments_key(arguments), queue, relay)


def read_change(change: dict[str, object]) -> tuple[Interest, dict[str, object]]:
    """The interest that an entry of a frame is about, and the arguments of its binding."""
    encoded = change["arguments"]
    assert isinstance(encoded, bytes)
    arguments, _ = read_table(encoded, 0)
    interest = interest_of(
        str(change["vhost"]),
        str(change["exchange"]),
        str(change["key"]),
        arguments,
        str(change["queue"]),
        change["relay"] is True,
    )
    return interest, arguments


def change_entry(
    added: bool, interest: Interest, arguments: dict[str, object]
) -> dict[str, object]:
    """The entry of a frame that says that an interest has come, or gone."""
    return {
        "add": added,
        "vhost": interest.vhost,
        "exchange": interest.exchange,
        "key": interest.key,
        "arguments": encode_table(arguments),
        "queue": interest.queue,
        "relay": interest.relay,
    }
