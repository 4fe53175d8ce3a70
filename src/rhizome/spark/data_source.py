"""The format `rhizome`: streams and queues of a cluster, read and written."""

from __future__ import annotations

from typing import Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from rhizome.spark import schema as schemas
from rhizome.spark.data_source_options import OptionError, Options
from rhizome.spark.shipment.zip_pickle import ZipImported
from rhizome.spark.sink import message_sink
from rhizome.spark.source import queue_source, stream_source
from rhizome.spark.source.read_limit_compat import HAS_LIMITS
from rhizome.spark.version_stamp import stamped

NAME: Final = "rhizome"


class RhizomeSource(ZipImported, DataSource):
    """Streams and queues of a cluster.

    Reading: one row per message of a stream. Columns: key (routing key), value, exchange, queue
    (the stream), partition, offset, timestamp (when the broker took it), headers, every AMQP
    property, and raw_properties (all of them as they were sent).

    Options for reading:
        uri                   amqp[s]://user:password@host1,host2/vhost; `url` works too. Or where
                              the driver finds it: env:NAME, file:/path
        subscribe             names of streams, comma-separated; of a partitioned one its one name
        subscribePattern      instead: a pattern for whole names of streams; those that appear later
                              are read from their beginning
        startingOffsets       earliest (default of batches), latest (default of streaming queries),
                              or JSON {"stream": offset or word}
        startingTimestamp     instead: from this time on (ms since 1970, or like 2026-11-16T08:00Z)
        startingOffsetsByTimestamp  instead: JSON {"stream": time}
        endingOffsets         batches: latest (default) or JSON, exclusive
        endingTimestamp       batches, instead: up to this time
        endingOffsetsByTimestamp  batches, instead: JSON {"stream": time}
        maxOffsetsPerTrigger  at most about so many messages per batch
        maxBytesPerTrigger    at most about so many bytes per batch
        minOffsetsPerTrigger  streaming: wait for so many messages, but not longer than
        maxTriggerDelay       15m (default) after the last batch
        readerName            streaming: a name under which the broker remembers how far the query
                              is; `groupId` works too. Without it the broker shows it while it runs
        filterValues          only messages with one of these values (comma-separated) in the header
                              x-stream-filter-value
        matchUnfiltered       true: those without a filter value, too
        pushdown              batches: true takes filters on offset, timestamp, queue and key, with
                              spark.sql.python.filterPushdown.enabled
        minPartitions         split batches into so many partitions; default: as
                              many as the cluster runs tasks at a time
        failOnDataLoss        true (default): fail if offsets to be read are gone
        includeHeaders        false leaves out the columns headers and raw_properties
        readTimeout           seconds without an answer, through restarts and takeovers, after which
                              a task fails; default 120

    A streaming query may subscribe to work queues instead: their messages are leased to it, and
    settled when their batch is complete (queue_source.py). Options of that alone: leaseTimeout
    (seconds; 300), leaseId. Not of that: those that say where to start or end.

    Guarantee: every offset of a range is read exactly once, in order within a partition. A batch
    that Spark replays has the same rows in the same partitions.

    Example:
        spark.readStream.format("rhizome").option("uri", uri).option("subscribe", "events").load()

    Writing: rows become messages, each of them once.

    Columns: value (text or binary, the body), and as wanted key (routing key), exchange, headers
    (map of texts), every AMQP property under its name in the source's schema, or raw_properties
    (all properties as they once were).

    Options for writing:
        uri            amqp[s]://user:password@host1,host2/vhost; `url` works too
        queue          send everything to this queue; or
        exchange       send to this exchange with the key of column `key` or option routingKey
        routingKey     routing key where there is no column `key`
        mandatory      true (default): a message that no queue takes fails the query
        persistent     true (default): messages survive a restart, unless column delivery_mode says
                       otherwise
        deduplicate    sequence (default): by (query, partition, batch, row); message-id: by column
                       message_id, for queues declared with x-dedup; none
        writeId        batch: a name under which a re-run stores nothing twice
        writeNumber    batch: the number of this write under its writeId, if there are many
        maxRowsPerSecond  of each task; default: as fast as it goes
        declare        true: declare the queue, durable unless option `durable` says false, with
                       the arguments of option `arguments`, a JSON object
        confirmTimeout seconds without a confirm, through restarts and takeovers, after which a task
                       fails; default 120

    Example:
        df.selectExpr("to_json(struct(*)) AS value", "'order.new' AS key")
          .write.format("rhizome").option("uri", uri).option("exchange", "orders")
          .mode("append").save()
    """

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        with_headers = str(self.options.get("includeHeaders", "true")).lower() != "false"
        return schemas.stream(with_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        settings = self._source_settings(schema, False)
        if settings.pushdown:
            return stamped(stream_source.FilteringBatchReader(settings, schema))
        return stamped(stream_source.StreamBatchReader(settings, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        if queue_source.is_subscribed(self.options):
            schemas.check_columns(schema, schemas.stream(), NAME)
            if not HAS_LIMITS:
                raise OptionError(
                    "work queues can be read with Spark 4.2 or later: Spark 4.1 does not tell a "
                    "source what is done with. Read a stream, or a tap of the queue's exchange"
                )
            settings = queue_source.queue_settings(self.options)
            return stamped(queue_source.QueueStreamReader(settings, schema))
        kind = (
            stream_source.StreamStreamReader if HAS_LIMITS else stream_source.UnlimitedStreamReader
        )
        return stamped(kind(self._source_settings(schema, True), schema))

    def _source_settings(self, schema: StructType, streaming: bool) -> stream_source.SourceSettings:
        schemas.check_columns(schema, schemas.stream(), NAME)
        options = Options(self.options, stream_source.OPTIONS, NAME)
        options.flag("includeHeaders", True)
        return stream_source.source_settings(options, streaming)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return stamped(message_sink.BatchSink(self._sink_settings(schema)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return stamped(message_sink.StreamSink(self._sink_settings(schema)))

    def _sink_settings(self, schema: StructType) -> message_sink.SinkSettings:
        return message_sink.sink_settings(Options(self.options, message_sink.OPTIONS, NAME), schema)
