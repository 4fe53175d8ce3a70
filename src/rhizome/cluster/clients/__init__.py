"""What a cluster does with its clients: which broker takes them, and where they are sent.

connect_policy.py decides who is served here and who is redirected; failover_map_push.py sends
clients the failover map and its changes; client_relocation.py asks sessions to move, when a broker
is drained or has more connections than others; resumable_clients.py knows for which clients of
brokers that are gone a new home waits. May import state, link, protocol/catalogue and broker. Begin
with connect_policy.py.
"""
