"""Accepted link port: receives an accepted connection that turns out to be a link.

This module is interpreted, unlike those beside it: a driver of links is this and a part of
something else at once, and a class has at most one compiled base.
"""

from __future__ import annotations

from rhizome.cluster.link.link import Link


class ConnectionAdopter:
    """The driver's side of accepting a link."""

    def adopted(self, link: Link, port: object) -> None:
        """The connection with this ``port`` is a link from now on; set ``link.port``."""
        raise NotImplementedError
