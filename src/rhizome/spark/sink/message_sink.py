"""The sink of the format `rhizome`: rows become messages, each of them once.

Exactly once: each row has a producer (query or write, and partition) and a sequence (batch and row)
which its queues remember, so that a row that is sent again, by a retried task or a restarted query,
is confirmed but not stored a second time. That holds as long as the same rows come in the same
partition and order again; see docs/pipeline/guarantees.md for which inputs do.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, StringType, StructType

from rhizome.amqp import methods
from rhizome.errors import NotFound, PreconditionFailed
from rhizome.spark.amqp_socket import addresses_of, connect_patiently, wait_s
from rhizome.spark.columns.content_decoder import COLUMNS
from rhizome.spark.data_source_options import OptionError, Options
from rhizome.spark.shipment.zip_pickle import ZipImported
from rhizome.spark.sink.confirmed_publisher import Publisher
from rhizome.spark.sink.publish_frames import Addressing, Framer, Producer
from rhizome.spark.worker_heap import freeze_imports

OPTIONS: Final = (
    "uri",
    "url",
    "exchange",
    "queue",
    "routingKey",
    "mandatory",
    "persistent",
    "deduplicate",
    "writeId",
    "writeNumber",
    "maxRowsPerSecond",
    "confirmTimeout",
    "declare",
    "durable",
    "arguments",
    "keepUserId",
)
OF_DECLARATIONS: Final = ("durable", "arguments")
SEQUENCE: Final = "sequence"
MESSAGE_ID: Final = "message-id"
NONE: Final = "none"
CONFIRM_SECONDS_DEFAULT: Final = 120
BATCH_BYTES_MAX: Final = 32 << 20
"""Frames are made for so many bytes of rows at a time."""
PACE_STEPS_PER_SECOND: Final = 10
ROW_BITS: Final = 32
"""A sequence is the batch's number and, in so many bits, the row's."""

# Of the source's rows these say where they came from; the sink passes over them.
_PASSED_OVER: Final = ("queue", "partition", "offset", "timestamp")


@dataclass
class Written(WriterCommitMessage):
    """What a task has had confirmed."""

    partition: int
    messages: int


@dataclass(frozen=True)
class SinkSettings:
    """The sink's options, checked."""

    uri: str = field(repr=False)
    addressing: Addressing
    deduplicate: str
    write_id: str
    confirm_s: int
    rows_per_second: int = 0
    is_addressed: bool = False
    """All rows go to one queue or exchange, whatever their column `exchange` says."""
    write_number: int = 0

    def __repr__(self) -> str:
        return f"SinkSettings({self.addressing}, {self.deduplicate})"


def sink_settings(options: Options, schema: StructType) -> SinkSettings:
    """Check options and columns; ask the broker whether the destination is there."""
    uri = options.uri()
    names = schema.fieldNames()
    if options.has("queue") and options.has("exchange"):
        raise OptionError("give the sink either 'queue' or 'exchange', not both")
    if (
        not options.has("queue")
        and "exchange" not in names
        and options.text("exchange", "-") == "-"
    ):
        raise OptionError(
            "the sink needs a destination: the option 'queue' or 'exchange', or a column 'exchange'"
        )
    key = options.text("queue") if options.has("queue") else None
    if key is None and (options.has("routingKey") or "key" not in names):
        key = options.text("routingKey")
    settings = SinkSettings(
        uri,
        Addressing(
            options.text("exchange"),
            key,
            options.flag("mandatory", True),
            options.flag("persistent", True),
            None if options.flag("keepUserId", False) else addresses_of(uri)[0].user,
        ),
        options.choice("deduplicate", (SEQUENCE, MESSAGE_ID, NONE), SEQUENCE),
        options.text("writeId"),
        options.number("confirmTimeout", CONFIRM_SECONDS_DEFAULT),
        options.number("maxRowsPerSecond", 0, least=0),
        options.has("queue") or options.has("exchange"),
        options.number("writeNumber", 0, least=0),
    )
    _check_schema(schema, settings)
    _check_destination(settings, options)
    return settings


def _check_schema(schema: StructType, settings: SinkSettings) -> None:
    types = {each.name: each.dataType for each in schema}
    if "value" not in types:
        raise OptionError(
            f"the sink needs a column 'value' (text or binary), the body of a message; there are "
            f"{', '.join(types)}"
        )
    if not isinstance(types["value"], (BinaryType, StringType)):
        raise OptionError(
            f"column 'value' is {types['value'].simpleString()}; it must be a text or binary"
        )
    known = {"key", "exchange", *COLUMNS, *_PASSED_OVER}
    unknown = [name for name in types if name not in known]
    if unknown:
        raise OptionError(
            f"the sink knows no column '{unknown[0]}'; it takes {', '.join(sorted(known))}"
        )
    if settings.deduplicate == MESSAGE_ID and not {"message_id", "raw_properties"} & set(types):
        raise OptionError("deduplicate=message-id needs a column 'message_id'")


def declaration(options: Options) -> methods.QueueDeclare | None:
    """How the write declares its queue; None if it expects the queue to be there."""
    if not options.flag("declare", False):
        for name in OF_DECLARATIONS:
            if options.has(name):
                raise OptionError(f"option '{name}' is for queues that the write declares: declare")
        return None
    if not options.has("queue"):
        raise OptionError("'declare' declares a queue: name it with the option 'queue'")
    text = options.text("arguments") or "{}"
    try:
        arguments = json.loads(text)
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise options.wrong("arguments", 'a JSON object, like {"x-queue-type": "stream"}')
    return methods.QueueDeclare(
        queue=options.text("queue"),
        durable=options.flag("durable", True),
        arguments=arguments,
    )


def _check_destination(settings: SinkSettings, options: Options) -> None:
    """On the driver, so that a wrong name is told at once and not by a task."""
    declared = declaration(options)
    addresses = addresses_of(settings.uri)
    with connect_patiently(addresses, "rhizome.spark check", settings.confirm_s) as wire:
        try:
            if options.has("queue"):
                name = options.text("queue")
                asked = declared or methods.QueueDeclare(queue=name, passive=True)
                wire.call(asked, methods.QueueDeclareOk)
            elif options.has("exchange"):
                name = options.text("exchange")
                wire.call(
                    methods.ExchangeDeclare(exchange=name, passive=True), methods.ExchangeDeclareOk
                )
        except NotFound as error:
            hint = "declare it before the query starts, or set the option declare to true"
            raise OptionError(f"{error.text}; {hint}") from None
        except PreconditionFailed as error:
            raise OptionError(error.text) from None


def write_partition(
    settings: SinkSettings, batches: Iterator[Any], producer: str, batch_id: int
) -> Written:
    """Publish the rows of a partition; returns when all of them are confirmed."""
    freeze_imports()
    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    name = f"{producer}:{partition}"
    publisher = Publisher(
        addresses_of(settings.uri), f"rhizome.spark {name}", settings.confirm_s, partition
    )
    try:
        framer = Framer(settings.addressing, publisher.frame_bytes_max)
        row = batch_id << ROW_BITS
        pace = Pace(settings.rows_per_second)
        for batch in batches:
            for part in parts(_sent_columns(batch, settings), pace.rows_max()):
                known = Producer(name, row) if settings.deduplicate == SEQUENCE else None
                publisher.publish(framer.frames(part, known))
                row += len(part)
                pace.keep(len(part))
        return Written(partition, publisher.finish())
    except BaseException:
        publisher.drop()
        raise


def _sent_columns(batch: Any, settings: SinkSettings) -> Any:
    passed_over = (*_PASSED_OVER, "exchange") if settings.is_addressed else _PASSED_OVER
    return batch.select([name for name in batch.schema.names if name not in passed_over])


def parts(batch: Any, rows_max: int) -> Iterator[Any]:
    """The batch in slices whose frames fit into memory comfortably."""
    rows = max(1, batch.num_rows * BATCH_BYTES_MAX // max(batch.nbytes, 1))
    step = min(rows, rows_max)
    for first in range(0, batch.num_rows, step):
        yield batch.slice(first, step)


class Pace:
    """Keeps a task to so many rows per second; 0 is any number."""

    def __init__(self, rows_per_second: int) -> None:
        self._rate = rows_per_second
        self._started_s = time.monotonic()
        self._rows = 0

    def rows_max(self) -> int:
        """How many rows to send at a time."""
        return max(1, self._rate // PACE_STEPS_PER_SECOND) if self._rate else 1 << 30

    def keep(self, rows: int) -> None:
        """So many more rows were sent: wait until it was time for them."""
        self._rows += rows
        if self._rate:
            due_s = self._started_s + self._rows / self._rate
            wait_s(max(0.0, due_s - time.monotonic()))


class BatchSink(DataSourceArrowWriter):
    """Writes a DataFrame once. A re-run with the same `writeId` stores nothing twice. With
    `writeNumber` it is one of many writes under that name, which come in the order of their numbers
    and repeat none but the last."""

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings
        self._write_id = settings.write_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        name = f"spark:{self._write_id}"
        return write_partition(self._settings, iterator, name, self._settings.write_number)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing is left to do: confirmed messages are in their queues already."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What was confirmed stays; a re-run with the same `writeId` sends the rest."""


class StreamSink(ZipImported, DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query."""

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None, "a streaming sink writes in tasks only"
        query = self._settings.write_id or context.getLocalProperty("sql.streaming.queryId")
        batch_id = int(context.getLocalProperty("streaming.sql.batchId") or 0)
        return write_partition(self._settings, iterator, f"spark:{query}", batch_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing is left to do: confirmed messages are in their queues already."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """What was confirmed stays; the batch comes again under the same sequences."""
