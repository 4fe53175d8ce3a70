"""Bridges: programs that move messages from one cluster to another.

A cluster is a closed set of brokers; what joins two of them stands outside both and is a client of
each (O12). One `Bridge` consumes on the source side and publishes on the destination side:

    source       a queue, or an exchange through a durable queue of the bridge's own
    window       what was delivered and is not settled yet, in order; never more than the prefetch
    destination  a queue or an exchange

The promise is at least once: a delivery is acknowledged only after the destination has confirmed
it. Repeats after a failure carry the message-id of the first try, so a destination queue with
`x-dedup: message-id` drops them.

    settings, config   what a bridge is to do
    window             order, resends and settlements, without input or output
    ids, passage       what is added to a message on its way, and when it has gone in a circle
    source, destination, bridge, program   the asyncio side of it
    parameters, following   bridges that a cluster keeps as parameters, as RabbitMQ's shovels

The package knows the client and nothing of the broker.
"""

from rhizome.bridge.bridge import Bridge
from rhizome.bridge.config import load_bridges
from rhizome.bridge.errors import BridgeError, BridgeFailed, InvalidBridge
from rhizome.bridge.events import BridgeEvent, Counters
from rhizome.bridge.program import follow_parameters, run_bridges
from rhizome.bridge.settings import BridgeSettings, Refused

__all__ = [
    "Bridge",
    "BridgeError",
    "BridgeEvent",
    "BridgeFailed",
    "BridgeSettings",
    "Counters",
    "InvalidBridge",
    "Refused",
    "follow_parameters",
    "load_bridges",
    "run_bridges",
]
