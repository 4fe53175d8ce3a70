"""Batches that their flow can't take, set aside: raw messages as Parquet, with the reason.

    SET_ASIDE/FLOW/QUERY-BATCH/messages.parquet    all columns of the source
    SET_ASIDE/FLOW/QUERY-BATCH/reason.json         what failed, when, and which offsets these are
    SET_ASIDE/FLOW/QUERY-BATCH/resent.json         when it was delivered after all, if it was

A batch is set aside once there is its reason.json, and from then on the flow's source passes over
these offsets: that one file decides both. So each message is delivered or set aside, and never
neither, wherever the service is killed. The file stays when the batch is delivered after all
(batch_resend.py): the flow may not have gone on behind it yet.

Which batch is under way Spark's checkpoint tells: `offsets` has what was begun, `commits` what is
done.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from rhizome.spark import schema as schemas
from rhizome.spark.amqp_socket import addresses_of
from rhizome.spark.data_source_options import READ_SECONDS_DEFAULT
from rhizome.spark.service.flow_file import QUEUES, SourceSettings
from rhizome.spark.service.state_files import StateFiles
from rhizome.spark.source.lease_client import LeaseReader
from rhizome.spark.source.lease_rows import LeaseRows
from rhizome.spark.source.query_offsets import Offsets, Range, from_json, ranges
from rhizome.spark.source.stream_client import RangeReader
from rhizome.spark.source.stream_rows import StreamPlace, StreamRows

MESSAGES: Final = "messages.parquet"
REASON: Final = "reason.json"
RESENT: Final = "resent.json"
REASON_CHARS_MAX: Final = 20_000


@dataclass(frozen=True)
class PendingBatch:
    """A batch that was begun and is not done. `lease` is empty for streams."""

    query: str
    number: int
    ranges: tuple[Range, ...]
    lease: str

    @property
    def name(self) -> str:
        return f"{self.query}-{self.number}"

    @property
    def messages(self) -> int:
        return sum(each.end - each.start for each in self.ranges)

    def bounds(self) -> dict[str, tuple[int, int]]:
        """The first offset of each stream and the one behind the last."""
        found: dict[str, tuple[int, int]] = {}
        for each in self.ranges:
            first, end = found.get(each.stream, (each.start, each.end))
            found[each.stream] = (min(first, each.start), max(end, each.end))
        return found


class Checkpoint:
    """Spark's checkpoint of a flow, read only. It does not say where the first batch begins; that
    is `start`, and 0 for streams that it has not."""

    def __init__(self, files: StateFiles, directory: str, start: dict[str, int]) -> None:
        self._files = files
        self._directory = directory
        self._start = start

    def query(self) -> str:
        """The id of the query; empty before its first start."""
        data = self._files.read(f"{self._directory}/metadata")
        return str(json.loads(data)["id"]) if data else ""

    def pending(self) -> PendingBatch | None:
        """The batch that was begun last, if it is not done."""
        begun, done = self._last("offsets"), self._last("commits")
        if begun is None or begun == done:
            return None
        end = self._offset(begun)
        start = self._offset(begun - 1) if begun else None
        if end is None:
            return None
        first = Offsets(self._start) if start is None else from_json(start)
        after = from_json(end)
        found = ranges(list(after.next), first, after)
        return PendingBatch(self.query(), begun, tuple(found), str(end.get("lease", "")))

    def _last(self, log: str) -> int | None:
        names = self._files.names(f"{self._directory}/{log}")
        numbers = [int(name) for name in names if name.isascii() and name.isdigit()]
        return max(numbers, default=None)

    def _offset(self, number: int) -> dict[str, Any] | None:
        data = self._files.read(f"{self._directory}/offsets/{number}")
        return None if data is None else _offset_in(data)


def _offset_in(data: bytes) -> dict[str, Any] | None:
    """The source's offset in a file of Spark's log: the line of JSON that has our fields."""
    for line in reversed(data.decode().splitlines()):
        start = line.find("{")
        try:
            document = json.loads(line[start:]) if start >= 0 else None
        except ValueError:
            continue
        if isinstance(document, dict) and "next" in document:
            return document
    return None


class SetAside:
    """What was set aside of one flow."""

    def __init__(self, files: StateFiles, flow: str) -> None:
        self._files = files
        self._flow = flow

    def count(self) -> int:
        """How many batches lie here and were not delivered after all."""
        return len(self.names())

    def names(self) -> list[str]:
        """Those batches, by name."""
        found = self._files.names(self._flow)
        return [name for name in found if self.reason(name) is not None and not self._resent(name)]

    def _resent(self, name: str) -> bool:
        return self._files.read(f"{self._flow}/{name}/{RESENT}") is not None

    def reason(self, name: str) -> dict[str, Any] | None:
        data = self._files.read(f"{self._flow}/{name}/{REASON}")
        return None if data is None else dict(json.loads(data))

    def messages(self, name: str) -> pa.Table:
        """The messages of a batch, as the source gave them."""
        data = self._files.read(f"{self._flow}/{name}/{MESSAGES}")
        if data is None:
            raise FileNotFoundError(f"{MESSAGES} of the batch {self._flow}/{name} is gone")
        return pq.read_table(pa.BufferReader(data))

    def mark_resent(self, name: str, document: dict[str, Any]) -> None:
        """Note that a batch was delivered after all. Its messages stay until somebody removes
        them."""
        data = json.dumps(document, indent=2).encode()
        self._files.write(f"{self._flow}/{name}/{RESENT}", data)

    def excluded(self, batch: PendingBatch | None) -> dict[str, tuple[int, int]]:
        """The offsets that the flow's source is to pass over when it repeats this batch."""
        if batch is None or self.reason(batch.name) is None:
            return {}
        return batch.bounds()

    def add(self, batch: PendingBatch, source: SourceSettings, reason: dict[str, Any]) -> int:
        """Keep the messages of a batch; returns how many there were. Twice does no harm."""
        name = f"{self._flow}/{batch.name}"
        arrow = schemas.arrow_schema(schemas.stream())
        messages = 0
        with (
            self._files.output(f"{name}/{MESSAGES}") as output,
            pq.ParquetWriter(output, arrow, compression="zstd") as writer,
        ):
            for rows in raw_messages(batch, source):
                writer.write_batch(rows)
                messages += rows.num_rows
        self._files.sync(f"{name}/{MESSAGES}")
        document = {
            "flow": self._flow,
            "query": batch.query,
            "batch": batch.number,
            "messages": messages,
            "offsets": {stream: list(each) for stream, each in batch.bounds().items()},
            **reason,
        }
        self._files.write(f"{name}/{REASON}", json.dumps(document, indent=2).encode())
        return messages


def raw_messages(batch: PendingBatch, source: SourceSettings) -> Iterator[Any]:
    """The messages of a batch as they are at the brokers, in batches of Arrow."""
    arrow = schemas.arrow_schema(schemas.stream())
    addresses = addresses_of(source.uri)
    fails = str(source.options.get("failOnDataLoss", "true")).lower() != "false"
    for each in batch.ranges:
        place = StreamPlace(each.stream, each.partition)
        if source.kind == QUEUES:
            leased = LeaseReader(
                addresses, each.stream, batch.lease, each.start, each.end, READ_SECONDS_DEFAULT,
                fails,
            )  # fmt: skip
            taken = LeaseRows(place, arrow)
            for pieces in leased.pieces():
                yield taken.batch(pieces)
        else:
            reader = RangeReader(
                addresses, each.stream, each.start, each.end, READ_SECONDS_DEFAULT, fails,
                each.start,
            )  # fmt: skip
            rows = StreamRows(place, arrow)
            for chunks in reader.chunks():
                yield rows.batch(chunks, each.start, each.end)
