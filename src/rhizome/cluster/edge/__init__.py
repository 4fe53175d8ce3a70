"""This broker between its applications and the homes of their queues.

Begin with edge_group.py: one EdgeGroup per group, whoever is its home at the moment.
forward_queue.py keeps publishes, numbered, until they are safe there; channel_session.py is one
application channel at one home; home_calls.py has the requests of a channel to a home (get, purge,
attach a consumer). edge.py has all groups, and numbers what is sent. May import protocol,
peer_link_state and broker; nothing of home or replication.
"""
