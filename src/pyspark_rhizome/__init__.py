"""Lets Spark find the format `rhizome` by itself: it looks for top-level modules `pyspark_*` with a
class `DefaultSource`.
"""

from rhizome.spark.data_source import RhizomeSource as DefaultSource

__all__ = ["DefaultSource"]
