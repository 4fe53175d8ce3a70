"""The segmented, append-only store: records, segments, index, recovery, compaction.

The cores are sans-IO and write into batches that the server flushes once per wake-up. Only
files.py and writer.py make file calls or own a thread.
"""
