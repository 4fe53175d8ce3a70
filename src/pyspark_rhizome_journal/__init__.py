"""Lets Spark find the format `rhizome.journal` by itself: it looks for top-level modules
`pyspark_*` with a class `DefaultSource`.
"""

from rhizome.spark.journal.journal_source import JournalSource as DefaultSource

__all__ = ["DefaultSource"]
