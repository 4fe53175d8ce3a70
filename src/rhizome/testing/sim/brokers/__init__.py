"""Brokers as programs on simulated hosts.

broker_program is a whole broker, composed as the server composes it. consensus_program is the
consensus core alone, over consensus_links. group_contents and stream_contents read what a running
broker has of groups and streams, for checkers that compare copies.

It imports world, events, checkers, apps and faults/broken_rules. Begin with broker_program.
"""
