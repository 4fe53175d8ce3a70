"""Leased messages as rows of a table. No Python object per row."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from rhizome.spark.columns.content_decoder import COLUMNS, Contents
from rhizome.spark.columns.vectorized_bytes import Numbers, Window
from rhizome.spark.source.lease_client import LeaseDelivery
from rhizome.spark.source.stream_rows import StreamPlace, in_order, own_columns, route_columns

# Offsets in an entry (broker/queue_leases/lease_delivery.py).
_ARRIVED_AT: Final = 8
_TAIL_LENGTH_AT: Final = 18
_TAIL_AT: Final = 20


class LeaseRows:
    """Makes record batches of a given Arrow schema."""

    def __init__(self, place: StreamPlace, schema: Any) -> None:
        self.place = place
        self.schema = schema

    def batch(self, pieces: list[LeaseDelivery]) -> Any:
        """The messages of some pieces, in order."""
        window = Window(b"".join(piece.body for piece in pieces))
        starts, ends = _entries(pieces)
        wanted = set(self.schema.names)
        indexes, times = window.i64(starts), window.i64(starts + _ARRIVED_AT)
        found = own_columns(self.place, wanted, indexes, times)
        tails = starts + _TAIL_AT
        if wanted & {"exchange", "key"}:
            found.update(route_columns(window, tails))
        if any(name in COLUMNS for name in wanted):
            contents = tails + window.u16(starts + _TAIL_LENGTH_AT)
            found.update(Contents(window, contents, ends).columns(wanted))
        return in_order(self.schema, found)


def _entries(pieces: list[LeaseDelivery]) -> tuple[Numbers, Numbers]:
    """Where the entries of joined pieces begin and end."""
    starts, ends = [], []
    base = 0
    for piece in pieces:
        sizes = np.frombuffer(piece.body, ">u4", piece.count).astype(np.int64)
        after = base + 4 * piece.count + np.cumsum(sizes)
        starts.append((after - sizes)[piece.skip :])
        ends.append(after[piece.skip :])
        base += len(piece.body)
    return np.concatenate(starts), np.concatenate(ends)
