"""Queues: ready messages by priority, consumers, length limits, TTL, and what is kept on disk only.

A queue is told of messages one at a time and acts once per turn. Its ready messages lie in
lanes, one per priority; the pager decides which contents are in memory. Imports the journal,
metadata/ and values, and knows its consumers by queue_consumer.py and the broker by queue_host.py.
Begin with queue.py, then priority_lane.py and pager.py.
"""
