"""Bridges: programs that move messages from one cluster to another, as RabbitMQ's shovels do.

A bridge is a client of both clusters (O12). It acknowledges a delivery only once the destination
has confirmed it: at least once; repeats keep their message-id, so `x-dedup` drops them.
`bridge` is the place to begin: `source_consumer` fills the `in_flight_window`,
`destination_publisher` empties it. `settings` and `bridge_config_file` say what a bridge does;
`shovel_settings` and `shovel_supervisor` run one for each shovel that a cluster has.
May import client and amqp; knows nothing of the broker.
"""

from rhizome.bridge.bridge import Bridge
from rhizome.bridge.bridge_config_file import load_bridges
from rhizome.bridge.bridge_events import BridgeEvent, Counters
from rhizome.bridge.bridge_process import follow_parameters, run_bridges, until_signalled
from rhizome.bridge.errors import BridgeError, BridgeFailed, InvalidBridge
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
    "until_signalled",
]
