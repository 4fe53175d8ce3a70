"""What `tests/unit/broker/test_core_expiry.py` says, on any broker of a cluster."""

from tests.unit.cluster.node.broker_tests_in_cluster import as_in_cluster

globals().update(
    as_in_cluster(
        "test_core_expiry",
        # They restart a core; test_publishing_in_cluster.py has the like of the first.
        leave_out=[
            "test_persistent_delayed_message_survives_a_restart",
            "test_what_clients_held_is_trimmed_to_the_length_after_a_restart",
        ],
    )
)
