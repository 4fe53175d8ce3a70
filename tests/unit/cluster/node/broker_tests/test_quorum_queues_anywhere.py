"""What `tests/unit/broker/test_core_quorum_queues.py` says, on any broker of a cluster."""

from tests.unit.cluster.node.broker_tests_in_cluster import as_in_cluster

globals().update(
    as_in_cluster("test_core_quorum_queues", leave_out=["test_priorities_outlast_a_restart"])
)
