"""The parts that a broker has only if it belongs to a cluster.

`broker_composition` puts broker core and cluster node together, for the server, the simulator
and tests alike; begin there. `node_driver` runs the node in the event loop, `link_driver` the
links to other brokers on sockets. `sqlite_cluster_store` keeps the cluster's log, term and vote
on disk. `peer_rpc` carries the HTTP API's requests to other brokers over the links.
"""
