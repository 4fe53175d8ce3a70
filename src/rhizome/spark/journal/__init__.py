"""Journals of brokers as a table of what happened to messages: the format `rhizome.journal`.

journal_source has the reader that Spark calls. broker_stores finds the stores of brokers in
directories, remote_broker_stores reads them through running brokers. journal_record_columns and
journal_rows make Arrow rows of the records of a segment.

It imports columns, source.stream_rows, and rhizome.journal, broker and cluster for their formats.
Begin with journal_source.
"""
