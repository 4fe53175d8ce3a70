"""Lets Spark find the format `rhizome.table` by itself: it looks for top-level modules `pyspark_*`
with a class `DefaultSource`.
"""

from rhizome.spark.lakehouse.table_source import TableSource as DefaultSource

__all__ = ["DefaultSource"]
