"""Peers: what this broker knows about the others, and when it dials them.

A peer that isn't linked is dialled at each of its addresses in turn. The delay doubles with each
failure and is randomised, so that brokers that lost each other at the same time don't all come back
at the same time. A link that lasted resets the count of failures. One that broke at once doesn't,
so two brokers that link and fall out again don't do so in a tight loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rhizome.cluster.link.broker_hello import ADDRESSES_MAX, PRIMARY
from rhizome.cluster.link.cluster_key_proof import Chance
from rhizome.cluster.link.link import Link

DOUBLINGS_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """Times and sizes of links, in milliseconds and bytes."""

    heartbeat_ms: int = 1_000
    timeout_ms: int = 5_000
    """Silence after which a peer counts as dead."""
    dial_timeout_ms: int = 5_000
    """From dialling to open-ok."""
    delay_ms: int = 100
    delay_max_ms: int = 5_000
    stable_ms: int = 5_000
    """A link that was open for this long did not fail."""
    buffer_bytes: int = 32 << 20
    """Backlog above which a link is congested."""
    frame_bytes_max: int = 129 << 20
    needs_certificate: bool = False
    """Accept links only over TLS, from peers whose certificate was verified."""
    has_macs: bool = False
    """Frames have MACs where neither TLS nor a Unix socket protects them. A simulated network needs
    none."""
    host: str = ""
    """Tells this machine from others, so that links within it do without MACs; if empty, they have
    MACs, too."""
    insecure: bool = False
    """Links beyond this machine may do without MACs too, if the peer's release has none."""
    trusts_loopback: bool = True
    """Links on loopback addresses may, which don't lead to other machines."""

    @property
    def backlog_bytes_max(self) -> int:
        return 4 * self.buffer_bytes + self.frame_bytes_max


class Peer:
    """Another broker. Invariant: ``link`` is open, ``dial`` isn't; both may be there at once."""

    def __init__(self, name: str, now_ms: int) -> None:
        self.name = name
        self.role = PRIMARY
        self.uuid = ""
        self.configured: tuple[str, ...] = ()
        self.told: tuple[str, ...] = ()
        self.link: Link | None = None
        self.dial: Link | None = None
        self.failures = 0
        self.next_dial_ms = now_ms
        self.problem = ""

    def addresses(self) -> list[str]:
        """Where it may be dialled: as configured, then as it or the registry told."""
        return list(dict.fromkeys(self.configured + self.told))[:ADDRESSES_MAX]

    def wants_dial(self) -> bool:
        return self.link is None and self.dial is None and bool(self.configured or self.told)

    def next_address(self) -> str:
        addresses = self.addresses()
        return addresses[self.failures % len(addresses)]

    def failed(self, settings: LinkSettings, chance: Chance, now_ms: int) -> None:
        """A dial or a young link has failed: try the next address, later."""
        self.next_dial_ms = now_ms + jittered_delay_ms(self.failures, settings, chance)
        self.failures += 1

    def ended(self, settings: LinkSettings, chance: Chance, now_ms: int) -> None:
        """A link that lasted is gone, or one was dialled for nothing: begin with the shortest
        delay."""
        self.failures = 0
        self.next_dial_ms = now_ms + jittered_delay_ms(0, settings, chance)


def jittered_delay_ms(failures: int, settings: LinkSettings, chance: Chance) -> int:
    """Between half and all of the delay after this many failures."""
    doubled = settings.delay_ms << min(failures, DOUBLINGS_MAX)
    longest_ms = min(doubled, settings.delay_max_ms)
    return longest_ms - int(chance.random() * longest_ms / 2)
