"""The exchange types that can be declared, and how each is made."""

from __future__ import annotations

from typing import Final

from rhizome.broker.routing.consistent_hash_exchange import (
    ConsistentHashExchange,
    check_hash_arguments,
)
from rhizome.broker.routing.exchange import DirectExchange, Exchange, FanoutExchange
from rhizome.broker.routing.headers_exchange import HeadersExchange
from rhizome.broker.routing.random_exchange import CHOOSING_KINDS, ChoosingExchange
from rhizome.broker.routing.recent_history_exchange import (
    RECENT_HISTORY_KIND,
    RecentHistoryExchange,
    check_history_arguments,
)
from rhizome.broker.routing.super_stream_exchange import SUPER_STREAM_KIND, SuperStreamExchange
from rhizome.broker.routing.topic_exchange import TopicExchange
from rhizome.errors import CommandInvalid, PreconditionFailed

DELAYED_KIND: Final = "x-delayed-message"
PLAIN_KINDS: Final = (
    "direct",
    "fanout",
    "topic",
    "headers",
    "x-consistent-hash",
    SUPER_STREAM_KIND,
    *CHOOSING_KINDS,
)
EXCHANGE_KINDS: Final = (*PLAIN_KINDS, DELAYED_KIND, RECENT_HISTORY_KIND)


def routing_kind(kind: str, arguments: dict[str, object]) -> str:
    """The type that decides where messages go: `x-delayed-type` for a delayed exchange.

    Raises CommandInvalid for a type that doesn't exist, PreconditionFailed for arguments that the
    type cannot work with.
    """
    if kind == "":
        raise CommandInvalid("invalid exchange type ''")
    if kind not in EXCHANGE_KINDS:
        raise CommandInvalid(f"unknown exchange type '{kind}'")
    if kind == DELAYED_KIND:
        delayed = arguments.get("x-delayed-type")
        if not isinstance(delayed, str) or delayed not in PLAIN_KINDS:
            raise PreconditionFailed(
                "Invalid argument, 'x-delayed-type' must be an existing exchange type"
            )
        kind = delayed
    if kind == "x-consistent-hash":
        check_hash_arguments(arguments)
    elif kind == RECENT_HISTORY_KIND:
        check_history_arguments(arguments)
    return kind


def make_exchange(
    vhost: str,
    name: str,
    kind: str,
    durable: bool = False,
    auto_delete: bool = False,
    internal: bool = False,
    arguments: dict[str, object] | None = None,
) -> Exchange:
    """Make an exchange of any type; raises like ``routing_kind``."""
    given: dict[str, object] = {} if arguments is None else arguments
    routing = routing_kind(kind, given)
    made: Exchange
    if routing == "direct":
        made = DirectExchange(vhost, name, kind, durable, auto_delete, internal, given)
    elif routing == "fanout":
        made = FanoutExchange(vhost, name, kind, durable, auto_delete, internal, given)
    elif routing == "topic":
        made = TopicExchange(vhost, name, kind, durable, auto_delete, internal, given)
    elif routing == "headers":
        made = HeadersExchange(vhost, name, kind, durable, auto_delete, internal, given)
    elif routing == SUPER_STREAM_KIND:
        made = SuperStreamExchange(vhost, name, kind, durable, auto_delete, internal, given)
    elif routing == RECENT_HISTORY_KIND:
        made = RecentHistoryExchange(vhost, name, kind, durable, auto_delete, internal, given)
    elif routing in CHOOSING_KINDS:
        made = ChoosingExchange(vhost, name, kind, durable, auto_delete, internal, given, routing)
    else:
        made = ConsistentHashExchange(vhost, name, kind, durable, auto_delete, internal, given)
    made.delayed = kind == DELAYED_KIND
    return made
