"""The format `rhizome`: streams and queues of a cluster, read and written."""

from __future__ import annotations

from typing import Final

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from rhizome.spark import schema as schemas
from rhizome.spark import sink
from rhizome.spark.options import Options

NAME: Final = "rhizome"


class RhizomeSource(DataSource):
    """Writing: rows become messages, each of them once.

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
        return schemas.stream()

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return sink.BatchSink(self._sink_settings(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return sink.StreamSink(self._sink_settings(schema))

    def _sink_settings(self, schema: StructType) -> sink.SinkSettings:
        return sink.sink_settings(Options(self.options, sink.OPTIONS, NAME), schema)
