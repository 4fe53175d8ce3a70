"""The store on disk: a segmented, append-only journal of records, with checkpoints and compaction.

store.py is what the server opens; journal.py appends records (records.py has the format) and
writer.py writes and syncs them in a thread. recovery.py and record_replay.py rebuild what is
live; paged_index.py finds messages on disk at 8 bytes each. streams/ has the logs of streams.
Only files.py and writer.py do input or output. Imports rhizome.errors only. Begin with store.py.
"""
