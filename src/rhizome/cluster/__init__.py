"""The cluster core, sans-IO: election, the cluster state, links between brokers.

Nothing here reads a clock, a socket or a source of chance: times come in as ``now_ms`` (monotonic),
bytes through ``receive``, chance as an object that is handed in. The same inputs give the same
bytes, so a whole cluster runs in a simulator from one seed.
"""
