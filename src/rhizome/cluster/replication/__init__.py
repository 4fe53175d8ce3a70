"""Replication of a group from its home to its standbys, for queues and for streams.

At the home: replicator.py sends records and counts answers, standby_tracker.py knows one standby,
in_sync_set.py says whose answers confirms wait for, catch_up_sender.py lists what is alive for a
standby that lacks too much. At a standby: standby_group.py follows a home, with
queue_standby.py and stream_standby.py for the two kinds; group_copy.py is the passive copy,
catch_up_receiver.py makes it whole. broker_adapters.py connects both ends to the broker. Begin with
replicator.py and queue_standby.py; docs/internals/replication.md follows the frames. May import
protocol, state, journal and broker.
"""
