"""Jobs of the data pipeline. Each has a dataclass of options and a function `run` that takes a
SparkSession; `rhizome pipeline NAME` calls the job of that name, and so may any program.

    archive      streams to Parquet, or to a Delta or Iceberg table, exactly once
    traffic      rates, sizes, latencies, top talkers; a report in HTML
    audit        every copy of every group compared (audit_*: its parts)
    replay       an archive, a stream or a slice of a journal, sent again
    deadletters  dead letters by queue, reason and shape; redriven
    timetravel   what was in a queue at a time, and what changed between two
"""
