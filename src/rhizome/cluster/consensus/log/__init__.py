"""The log of cluster-state commands: in memory, on disk, and on its way between brokers.

state_log.py is the log in memory, log_entry_payloads.py what its entries say, persistent_state.py
what must survive a restart (term, vote, log, commit index, snapshot), cluster_store.py the
interface of the store that keeps it. follower_progress.py is the root's view of how far a broker
is; log_follower.py is the other end. May import the rest of consensus and link/broker_hello. Begin
with state_log.py.
"""
