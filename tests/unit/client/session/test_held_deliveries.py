"""What a channel of a session presents of what it holds and has settled (J12)."""

from __future__ import annotations

import struct

from rhizome.client.session.held_deliveries import (
    ACKED,
    HELD,
    REQUEUED,
    DeliveryIdentity,
    HeldDeliveries,
)


def presented(holdings: HeldDeliveries) -> list[tuple[int, ...]]:
    return list(struct.iter_unpack(">QIQB", holdings.present()))


def test_of_what_came_again_only_the_last_word_is_presented() -> None:
    """It may have come again in a later epoch: it is the same, or the first is in no log."""
    holdings = HeldDeliveries()
    for tag, index in enumerate((7, 8, 9), 1):
        holdings.add(tag, DeliveryIdentity(3, 1, index), None)
    holdings.settle([1, 2, 3], REQUEUED)
    holdings.add(4, DeliveryIdentity(3, 1, 7), None)
    holdings.add(5, DeliveryIdentity(3, 2, 8), None)
    holdings.add(6, DeliveryIdentity(3, 2, 9), None)
    holdings.settle([6], ACKED)
    assert presented(holdings) == [(3, 1, 7, HELD), (3, 2, 8, HELD), (3, 2, 9, ACKED)]
