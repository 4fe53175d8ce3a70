"""Leased messages as rows of a table. No Python object per row."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from rhizome.spark.contents import COLUMNS, Contents
from rhizome.spark.leaseclient import Piece
from rhizome.spark.streamrows import StreamPlace, route_columns
from rhizome.spark.window import Numbers, Window, constant

# Offsets in an entry (broker/leases/delivery.py).
_ARRIVED_AT: Final = 8
_TAIL_LENGTH_AT: Final = 18
_TAIL_AT: Final = 20


class LeaseRows:
    """Makes record batches of a given Arrow schema."""

    def __init__(self, place: StreamPlace, schema: Any) -> None:
        self.place = place
        self.schema = schema

    def batch(self, pieces: list[Piece]) -> Any:
        """The messages of some pieces, in order."""
        window = Window(b"".join(piece.body for piece in pieces))
        starts, ends = _entries(pieces)
        wanted = set(self.schema.names)
        found = self._own(wanted, window, starts)
        tails = starts + _TAIL_AT
        if wanted & {"exchange", "key"}:
            found.update(route_columns(window, tails))
        if any(name in COLUMNS for name in wanted):
            contents = tails + window.u16(starts + _TAIL_LENGTH_AT)
            found.update(Contents(window, contents, ends).columns(wanted))
        columns = [found[each.name].cast(each.type) for each in self.schema]
        return pa.record_batch(columns, schema=self.schema)

    def _own(self, wanted: set[str], window: Window, starts: Numbers) -> dict[str, Any]:
        """Columns that are of the queue rather than of its messages."""
        count = len(starts)
        found: dict[str, Any] = {}
        if "queue" in wanted:
            found["queue"] = constant(self.place.queue, count, pa.string())
        if "partition" in wanted:
            found["partition"] = constant(self.place.partition, count, pa.int32())
        if "offset" in wanted:
            found["offset"] = pa.array(window.i64(starts))
        if "timestamp" in wanted:
            times = window.i64(starts + _ARRIVED_AT) * 1000
            found["timestamp"] = pa.array(times, pa.timestamp("us", "UTC"))
        return found


def _entries(pieces: list[Piece]) -> tuple[Numbers, Numbers]:
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
