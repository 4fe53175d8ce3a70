"""Streams and work queues of a cluster as sources of Spark.

stream_source and queue_source have the readers that Spark calls: on the driver they plan a batch
(query_offsets, stream_subscription, read_boundaries, filter_pushdown, read_limits), in tasks they
read a range of it (stream_client, lease_client) and make Arrow rows (stream_rows, lease_rows).

It imports columns and the modules of rhizome.spark itself. Begin with stream_source.
"""
