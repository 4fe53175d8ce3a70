"""Streams: queues that are append-only logs, read by many consumers, each at its own offset.

A queue of type `stream` has a Stream while it is active on this broker. Routing, bindings,
permissions, prefetch and unacked deliveries are those of any queue; the files are the journal's.
Imports the journal, channel/ and queue/. Begin with stream.py (append, commit, retention), then
stream_reader.py (one consumer) and active_streams.py (all of this broker).
"""
