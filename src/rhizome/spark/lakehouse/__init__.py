"""Delta and Iceberg tables, written and read by Spark without any JAR: the format `rhizome.table`.

table_source has what Spark calls, table_options its options. Tasks write and read Parquet files
(parquet_files, parquet_scan) in a directory or object store (table_location). The driver makes one
commit per batch (table_format, delta, iceberg), with the batch's number in it, so that a batch
which Spark repeats is committed once. A file that no commit names does not count.

It imports amqp_socket, data_source_options, schema and shipment. Begin with table_source.
"""
