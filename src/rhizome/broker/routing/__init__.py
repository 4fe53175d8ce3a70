"""Routing: exchanges, bindings and the router of a vhost, as pure data structures."""

from rhizome.broker.routing.consistent_hash import HASHABLE_PROPERTIES, PROPERTY_PREFIX
from rhizome.broker.routing.destination import Binding, Destination
from rhizome.broker.routing.exchange import Exchange
from rhizome.broker.routing.kinds import EXCHANGE_KINDS, make_exchange
from rhizome.broker.routing.router import Router

__all__ = [
    "EXCHANGE_KINDS",
    "HASHABLE_PROPERTIES",
    "PROPERTY_PREFIX",
    "Binding",
    "Destination",
    "Exchange",
    "Router",
    "make_exchange",
]
