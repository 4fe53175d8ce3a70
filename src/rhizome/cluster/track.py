"""Track: what the parts that speak to one other broker share while there is a link with it."""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from rhizome.broker.connection import Connection
from rhizome.broker.outbox import Outbox
from rhizome.cluster.link.link import Link


@final
class Applied:
    """How far this broker has applied the cluster's log."""

    index: i64

    def __init__(self) -> None:
        self.index = 0


@final
class Track:
    """One link. ``carrier`` holds the channels of the peer's applications; its outbox is the
    link's, so what these channels want written leaves with everything else.
    """

    link: Link
    outbox: Outbox
    carrier: Connection

    def __init__(self, link: Link, carrier: Connection) -> None:
        self.link = link
        self.outbox = link.outbox
        self.carrier = carrier
        carrier.outbox = link.outbox
