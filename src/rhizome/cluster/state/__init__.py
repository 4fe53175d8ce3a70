"""The cluster state: the replicated state machine that every broker feeds with the same entries.

Begin with cluster_state.py. cluster_commands.py has the commands, groups_and_placement.py the
groups and where queues live, broker_registry.py the brokers, failover_map.py who takes over from
whom, state_snapshot.py the snapshot, state_changes.py what an entry has changed. proposal_dedup.py
makes a repeated proposal count once; pending_proposals.py has what this broker has proposed and not
seen committed. Deterministic: depends on the entries alone. May import broker (commands, state) and
link/broker_hello; nothing of home, edge, replication, takeover or node.
"""
