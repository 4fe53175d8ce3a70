"""Names that a broker makes for private queues, consumers and reply tokens, and whose they are.

Such a name ends with the broker's own, so that others can send there without being told of each.
Clients check that names of queues have letters, digits, "_" and "-" only, so "." and "_" of a
broker's name are written otherwise. Releases up to 0.1 know only names that end with "@" and the
broker's name; those are understood, and made while such a broker is linked.
"""

from __future__ import annotations

from typing import Final

from rhizome.broker.channel.direct_reply_to import REPLY_PREFIX
from rhizome.broker.cluster_port import MADE_NAME_CHARS

OLDER_MARK: Final = "@"
MARK: Final = "-"
SERVER_NAMED: Final = "amq.gen-"
"""The prefix of the names that brokers give to queues."""
_PREFIXES: Final = (SERVER_NAMED, REPLY_PREFIX)


def name_ending(broker: str, older: bool) -> str:
    """What names that a broker makes end with; ``older``: for brokers of an older release."""
    if older:
        return OLDER_MARK + broker
    return MARK + broker.replace("_", "_u").replace(".", "_d")


def owner_of(name: str) -> str:
    """The broker that has made a name; empty if none has."""
    at = name.rfind(OLDER_MARK)
    if at >= 0:
        return name[at + 1 :]
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            made = len(prefix) + MADE_NAME_CHARS
            if name[made : made + 1] == MARK:
                return name[made + 1 :].replace("_d", ".").replace("_u", "_")
    return ""
