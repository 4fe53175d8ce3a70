"""Private queues across brokers: they live on one broker and get publishes of all (A3).

meta_bindings.py is the heart: what this broker's private queues are bound to, told to its peers,
and what theirs are bound to. meta_binding_entry.py is one such binding as it is told; root_relay.py
is the root passing publishes on between secondaries; unlinked_leaseholders.py has the primaries
that must be waited for though there is no link; auto_delete_exchanges.py deletes auto-delete
exchanges that no broker has bound any more. May import consensus events, peer_frame_dispatch,
peer_link_state and broker.
"""
