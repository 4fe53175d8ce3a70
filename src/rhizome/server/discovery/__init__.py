"""Primaries that are found by name instead of being listed (cluster.discover).

`primary_discovery` decides what is found and how long to wait for it; begin there. `srv_records`
is the DNS client that it asks, in a thread. May import rhizome.server.config and what is below.
"""
