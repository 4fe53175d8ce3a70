"""A flow as a streaming query of Spark: source, transformation, sink.

Each message counts once. A table commits a batch whole, or not at all, and knows it again by query
and number; so does Spark's own Parquet. Messages to an exchange or a queue carry the query, the
number of the batch and of the row. Before the first of them is sent the whole batch is transformed:
a batch that can't be is set aside without a part of it having been sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from rhizome.amqp import methods
from rhizome.spark import schema as schemas
from rhizome.spark.amqp_socket import addresses_of, connect_patiently
from rhizome.spark.data_source_options import READ_SECONDS_DEFAULT, Options
from rhizome.spark.jobs.job_progress import WORKER_LATE
from rhizome.spark.lakehouse.table_options import NAME as TABLE_FORMAT
from rhizome.spark.service import flow_file
from rhizome.spark.service.flow_file import FlowSettings, ServiceSettings, SinkSettings
from rhizome.spark.service.set_aside_batches import Checkpoint, PendingBatch, SetAside, raw_messages
from rhizome.spark.service.state_files import StateFiles
from rhizome.spark.source import stream_source
from rhizome.spark.source.query_offsets import EXCLUDED

SOURCE: Final = "rhizome"
PROOFS: Final = 2
"""So often messages are read well and transformed badly until that counts as their fault: an
executor may be lost at any time."""
LEASE_SECONDS_LEAST: Final = 3600
LEASE_PAUSES: Final = 4
"""The lease of a flow on work queues lasts for so many of the longest pauses."""
_QUERY_ID: Final = "sql.streaming.queryId"
_POOL: Final = "spark.scheduler.pool"
_PARQUET: Final = "parquet"

Transform = Callable[[DataFrame], DataFrame]


class Flow:
    """One flow and its state: STATE/flows/NAME/checkpoint is Spark's, start.json where it began."""

    def __init__(self, spark: SparkSession, service: ServiceSettings, settings: FlowSettings):
        self.settings = settings
        self.name = settings.name
        self._spark = spark
        self._service = service
        self._directory = f"flows/{settings.name}"
        self._files = StateFiles(service.state)
        self._kept = SetAside(StateFiles(service.set_aside), settings.name)

    # --- what the supervisor asks for

    def start(self) -> Any:
        """The query, started from its checkpoint. Raises what Spark or a broker says against it."""
        _prepare(self._service, self.settings)
        excluded = self._kept.excluded(self.pending())
        frame = self._transform(self._source(excluded))
        name = self.name
        writer = frame.writeStream.queryName(name).option(
            "checkpointLocation", f"{self._service.state}/{self._directory}/checkpoint"
        )
        writer = writer.trigger(processingTime=f"{self.settings.interval_s} seconds")
        context = self._spark.sparkContext
        # Flows share the cluster fairly, if the scheduler's mode is FAIR.
        context.setLocalProperty(_POOL, name)
        try:
            return _sunk(writer, self.settings.sink).start()
        finally:
            context.setLocalProperty(_POOL, None)

    def pending(self) -> PendingBatch | None:
        """The batch that was begun and is not done."""
        checkpoint = f"{self._directory}/checkpoint"
        return Checkpoint(self._files, checkpoint, self._start_offsets()).pending()

    def transform_fails(self, batch: PendingBatch) -> str:
        """What the transformation of these very messages fails with, by itself: the brokers give
        them, and nothing is written. Empty if it does not, or if that can't be found out."""
        found = ""
        for _ in range(PROOFS):
            found = self._transform_fails_once(batch)
            if not found:
                break
        return found

    def _transform_fails_once(self, batch: PendingBatch) -> str:
        try:
            messages = self._messages(batch)
            messages.write.format("noop").mode("overwrite").save()
            frame = self._transform(messages)
        except Exception:
            return ""
        try:
            frame.write.format("noop").mode("overwrite").save()
        except Exception as error:
            text = str(error) or type(error).__name__
            return "" if WORKER_LATE in text else text
        return ""

    def set_aside(self, batch: PendingBatch, reason: dict[str, Any]) -> int:
        """Keep the batch's messages, and have the next start pass over them."""
        return self._kept.add(batch, self.settings.source, reason)

    def is_set_aside(self, batch: PendingBatch) -> bool:
        return self._kept.reason(batch.name) is not None

    def set_aside_count(self) -> int:
        return self._kept.count()

    def redeliver(self, name: str, write_id: str) -> int:
        """Deliver a batch that was set aside, transformed as the flow does it now; returns how many
        rows that made. All of it is transformed before the first row is written. Twice does no harm
        where the sink knows a write again by `write_id`."""
        messages = self._spark.createDataFrame(self._kept.messages(name), schemas.stream())
        # One task, so that a second attempt has the same rows in the same order.
        kept = self._transform(messages).coalesce(1).persist()
        try:
            rows = int(kept.count())
            if rows:
                _write_once(kept, self.settings.sink, write_id)
        finally:
            kept.unpersist()
        return rows

    # --- source and transformation

    def _source(self, excluded: dict[str, tuple[int, int]]) -> DataFrame:
        options = source_options(self._service, self.settings)
        start = self._start_offsets()
        if start:
            options["startingOffsets"] = json.dumps(start)
        if excluded:
            options[EXCLUDED] = json.dumps(excluded)
        return self._spark.readStream.format(SOURCE).options(**options).load()

    def _start_offsets(self) -> dict[str, int]:
        """Where the flow began: found out once, before its first start. Spark would ask again if
        it had to repeat the first batch, and `latest` would then be another place."""
        if self.settings.source.kind == flow_file.QUEUES:
            return {}
        name = f"{self._directory}/start.json"
        data = self._files.read(name)
        if data is None:
            options = source_options(self._service, self.settings)
            checked = stream_source.source_settings(
                Options(options, stream_source.OPTIONS, SOURCE), True
            )
            reader = stream_source.StreamStreamReader(checked, schemas.stream())
            found = reader.initialOffset()["next"]
            reader.stop()
            data = json.dumps(found).encode()
            if found:  # a pattern may fit no stream yet
                self._files.write(name, data)
        return {stream: int(offset) for stream, offset in json.loads(data).items()}

    def _transform(self, frame: DataFrame) -> DataFrame:
        if self.settings.sql:
            # The name is looked up here and now: flows are started one after the other.
            frame.createOrReplaceTempView(flow_file.VIEW)
            try:
                return self._spark.sql(self.settings.sql)
            finally:
                self._spark.catalog.dropTempView(flow_file.VIEW)
        if self.settings.function:
            change = flow_file.function_of(self.settings.function, self._service.directory)
            found = change(frame)
            assert isinstance(found, DataFrame), f"{self.settings.function} gave no DataFrame"
            return found
        return frame

    def _messages(self, batch: PendingBatch) -> DataFrame:
        """The batch's messages as a DataFrame that ends."""
        source = self.settings.source
        if source.kind == flow_file.QUEUES:
            rows: Iterable[Any] = raw_messages(batch, source)
            arrow = schemas.arrow_schema(schemas.stream())
            return self._spark.createDataFrame(pa.Table.from_batches(rows, arrow), schemas.stream())
        bounds = batch.bounds()
        options = {
            "uri": source.uri,
            "subscribe": ",".join(bounds),
            "startingOffsets": json.dumps({name: first for name, (first, _) in bounds.items()}),
            "endingOffsets": json.dumps({name: end for name, (_, end) in bounds.items()}),
        }
        return self._spark.read.format(SOURCE).options(**options).load()


def source_options(service: ServiceSettings, flow: FlowSettings) -> dict[str, str]:
    """Options of the format `rhizome` for a flow's source."""
    source = flow.source
    options = {
        "uri": source.uri,
        "maxOffsetsPerTrigger": str(source.rows_per_batch),
        **source.options,
    }
    if source.kind == flow_file.PATTERN:
        options["subscribePattern"] = source.names[0]
    elif source.kind == flow_file.TAP:
        options["subscribe"] = tap_stream(service, flow)
    else:
        options["subscribe"] = ",".join(source.names)
    if source.kind == flow_file.QUEUES:
        # What is leased must outlast the pauses of a flow that fails.
        lease_s = max(LEASE_SECONDS_LEAST, int(LEASE_PAUSES * service.retry.pause_max_s))
        options = {"leaseTimeout": str(lease_s), **options}
    else:
        options["startingOffsets"] = source.starting
        options["readerName"] = f"{service.name}/{flow.name}"
    return options


def tap_stream(service: ServiceSettings, flow: FlowSettings) -> str:
    """The stream that a tap fills."""
    return flow.source.stream or f"pipeline.{service.name}.{flow.name}"


def _prepare(service: ServiceSettings, flow: FlowSettings) -> None:
    """Declare what belongs to the flow itself: the stream of a tap, with its bindings."""
    source = flow.source
    if source.kind != flow_file.TAP:
        return
    stream = tap_stream(service, flow)
    arguments = {
        "x-queue-type": "stream",
        "x-max-age": source.keep,
        "x-max-length-bytes": source.keep_bytes,
    }
    addresses = addresses_of(source.uri)
    with connect_patiently(addresses, f"rhizome pipeline {flow.name}", READ_SECONDS_DEFAULT) as to:
        to.call(
            methods.QueueDeclare(queue=stream, durable=True, arguments=arguments),
            methods.QueueDeclareOk,
        )
        for key in source.keys:
            to.call(
                methods.QueueBind(queue=stream, exchange=source.names[0], routing_key=key),
                methods.QueueBindOk,
            )


# --- sinks


def _sunk(writer: Any, sink: SinkSettings) -> Any:
    """The writer with its sink."""
    if sink.kind in (flow_file.EXCHANGE, flow_file.QUEUE):
        return writer.foreachBatch(_Delivery(sink))
    if sink.partition_by and sink.format != _PARQUET and sink.kind == flow_file.TABLE:
        writer = writer.option("partitionBy", ",".join(sink.partition_by))
    elif sink.partition_by:
        writer = writer.partitionBy(*sink.partition_by)
    writer = writer.options(**sink.options).outputMode(sink.mode)
    if sink.kind == flow_file.FORMAT:
        writer = writer.format(sink.name)
        return writer.option("path", sink.path) if sink.path else writer
    writer = writer.option("path", sink.name)
    if sink.format == _PARQUET:
        return writer.format(_PARQUET)
    for name, value in (("catalog", sink.catalog), ("table", sink.table_name)):
        writer = writer.option(name, value) if value else writer
    return writer.format(TABLE_FORMAT).option("format", sink.format)


def _write_once(frame: DataFrame, sink: SinkSettings, write_id: str) -> None:
    """Write a DataFrame that ends to the sink of a flow."""
    if sink.kind in (flow_file.EXCHANGE, flow_file.QUEUE):
        _send(frame, sink, {"writeId": write_id})
        return
    writer = frame.write.options(**sink.options).mode(sink.mode)
    if sink.kind == flow_file.FORMAT:
        writer = writer.partitionBy(*sink.partition_by) if sink.partition_by else writer
        writer.format(sink.name).save(sink.path or None)
        return
    named = {
        "format": sink.format,
        "catalog": sink.catalog,
        "table": sink.table_name,
        "partitionBy": ",".join(sink.partition_by),
        "writeId": write_id,
    }
    writer = writer.options(**{name: text for name, text in named.items() if text})
    writer.format(TABLE_FORMAT).save(sink.name)


class _Delivery:
    """Sends the batches of a query to an exchange or a queue."""

    def __init__(self, sink: SinkSettings) -> None:
        self._sink = sink

    def __call__(self, frame: DataFrame, number: int) -> None:
        kept = frame.persist()
        try:
            if kept.count():  # the whole batch is transformed now
                query = frame.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
                assert query, "a batch of no query"
                _send(kept, self._sink, {"writeId": query, "writeNumber": str(number)})
        finally:
            kept.unpersist()


def _send(frame: DataFrame, sink: SinkSettings, identity: dict[str, str]) -> None:
    """Send rows to an exchange or a queue, which knows them again by the write's identity."""
    options = {
        "uri": sink.uri,
        sink.kind: sink.name,
        **({"routingKey": sink.key} if sink.key else {}),
        **sink.options,
        **identity,
    }
    frame.write.format(SOURCE).options(**options).mode("append").save()


def shipped_modules(service: ServiceSettings) -> list[str]:
    """Files that workers need of the user: those that are named, and modules beside the file."""
    found = list(service.py_files)
    for flow in service.flows:
        module = flow.function.partition(":")[0].partition(".")[0]
        path = Path(service.directory) / f"{module}.py"
        if module and path.is_file() and str(path) not in found:
            found.append(str(path))
    return found
