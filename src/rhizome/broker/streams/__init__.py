"""Streams: queues that are append-only logs, read by many consumers at their own places.

    stamp.py     the header x-stream-offset, put into a content before it is stored
    log.py       a stream's log as the port of the broker sees it
    stream.py    what a stream is to its queue: append, commit, dispatch, retention
    reader.py    one consumer: its place in the log, its credit, what it has done with
    rules.py     what can't be done with a stream, in the words of RabbitMQ
    registry.py  all streams that are active here

A queue whose type is `stream` has a `Stream` while it is active on this broker. Routing, bindings,
permissions, prefetch and unacked deliveries are those of any queue.
"""
