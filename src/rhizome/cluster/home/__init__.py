"""This broker as the home of a group.

Begin with home_group.py: one HomeGroup per group and epoch, with its log (replicated_group_log.py),
its standbys (replication/) and a planned transfer to another home. edge_channels.py serves the
applications of one edge over one link, forward_receiver.py takes its publishes,
edge_call_handler.py its calls; edge_reconciliation.py is what edges have here beyond one link,
compared when they attach (A1, A2). home_change.py is what happens to this broker's own applications
when a home comes or goes. May import protocol, state, replication, peer_link_state and broker; edge
only in home_change and uncommitted_handover.
"""
