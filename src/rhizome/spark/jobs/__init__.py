"""Jobs of the data pipeline. Each is a module with a dataclass of options and a function `run` that
takes a SparkSession; `rhizome pipeline` calls them, and so may any program.

    archive      streams to partitioned Parquet, exactly once
    traffic      rates, sizes, latencies, top talkers; a report in HTML
    audit        every copy of every group compared, and what was found
    replay       an archive, a stream or a slice of a journal, sent again
    deadletters  dead letters by queue, reason and shape; redriven
    timetravel   what was in a queue at a time, and what changed between two
"""
