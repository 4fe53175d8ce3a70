"""What `tests/unit/broker/test_core_quorum_queues.py` says, on any broker of a cluster."""

from tests.unit.cluster.node.broker_tests_in_cluster import as_in_cluster

globals().update(
    as_in_cluster(
        "test_core_quorum_queues",
        # Settings of one broker, and its restart.
        leave_out=[
            "test_priorities_outlast_a_restart",
            "test_the_default_delivery_limit_is_that_of_the_release_to_follow",
            "test_classic_queues_have_no_default_delivery_limit",
            "test_dead_letters_tell_their_last_death_as_the_release_to_follow",
            "test_redeliveries_tell_how_often_they_were_with_a_consumer",
            "test_consumers_have_the_timeout_that_is_nearest_to_them",
        ],
    )
)
