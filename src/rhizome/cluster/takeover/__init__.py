"""The root's decisions about homes, and what they need of a broker.

takeover.py appoints a home for a group that has lost its own; planned_moves.py moves homes though
nothing failed (drain, rebalance); impaired_homes.py sees homes that live and cannot serve
everybody; lease_holders.py knows who holds a lease. takeover_driver.py connects them to this broker
through root_port.py. forced_home_salvage.py saves what a copy would lose to a forced home. Begin
with takeover.py. settings.py imports nothing: the command line reads it without loading the
cluster. May import state, consensus and protocol/copy_progress_codec.
"""
