"""Adopter: what becomes of a connection that was accepted and turns out to be a link.

Interpreted, unlike its neighbours: whoever drives links is this and a part of something else at
once, and a class has at most one compiled base.
"""

from __future__ import annotations

from rhizome.cluster.link.link import Link


class Adopter:
    """The driver's side of accepting: see the package's docstring."""

    def adopted(self, link: Link, port: object) -> None:
        """The connection with this ``port`` is a link from now on; set ``link.port``."""
        raise NotImplementedError
