"""Exchanges, bindings and the router of a vhost, as pure data structures.

Each exchange type with an index of its own has a module; direct, fanout and the default exchange
are in exchange.py. Imports amqp, errors and erlang_term_text.py. Begin with router.py.
"""

from rhizome.broker.routing.bindings_and_destinations import Binding, Destination
from rhizome.broker.routing.consistent_hash_exchange import HASHABLE_PROPERTIES, PROPERTY_PREFIX
from rhizome.broker.routing.exchange import Exchange
from rhizome.broker.routing.exchange_types import EXCHANGE_KINDS, make_exchange
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
