"""Brokers and clusters for tests: of this project and of applications.

in_memory_broker and in_memory_cluster run broker cores without sockets, threads or clock, and
have clients that speak AMQP frames. broker_process and cluster_process start real brokers on
loopback, faulty_cluster some whose links can be cut; embedded_broker runs one in the loop of the
test, and pytest_plugin has fixtures of all of them. sim is the simulator: a cluster with faults,
from one seed.

It may import everything but rhizome.cli. Begin with in_memory_broker.
"""
