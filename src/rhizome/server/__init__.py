"""The broker as a process: configuration, sockets, event loop, files, signals.

It moves bytes and ticks between the operating system and the sans-IO cores, and decides nothing
about messages. `broker_server` is the place to begin: start, serve, stop. `broker_bootstrap`
makes the core from a store. What only a broker of a cluster has is in clustered_broker/, what
operators are shown in operator_views/, several brokers on one machine in multi_core/, and the
fetching of keys for access tokens in token_issuers/.
May import everything but cli, testing and spark.
"""
