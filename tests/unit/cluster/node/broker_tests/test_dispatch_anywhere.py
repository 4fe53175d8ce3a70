"""What `tests/unit/broker/test_core_dispatch.py` says, on any broker of a cluster."""

from tests.unit.cluster.node.broker_tests_in_cluster import as_in_cluster

globals().update(
    as_in_cluster(
        "test_core_dispatch",
        leave_out=[
            # An application that doesn't read has a window at its edge.
            "test_consumer_whose_socket_is_full_gets_nothing_more",
            # It runs a single turn of one core.
            "test_a_large_message_for_many_connections_is_put_into_other_frames_once",
        ],
    )
)
