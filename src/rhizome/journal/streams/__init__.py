"""The logs of streams on disk: segments of chunks, each message under its offset.

stream_log.py is the append side of one stream, stream_lookup.py finds offsets and times in it,
tracking_state.py keeps consumers' offsets and publishers' sequences; stream_format.py has the
bytes. stream_store.py holds all streams of a store. Imports rhizome.journal only.
Begin with stream_log.py.
"""
