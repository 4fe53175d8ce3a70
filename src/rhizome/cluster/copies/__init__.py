"""Copies of groups: what a standby keeps, and how the home of a group keeps its standbys current.

`copy.py` is the passive copy, `standby.py` speaks for it, `home.py` is the other end.
docs/internals/replication.md follows the frames.
"""
