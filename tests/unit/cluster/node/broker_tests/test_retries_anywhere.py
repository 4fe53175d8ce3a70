"""What `tests/unit/broker/test_core_retries.py` says, on any broker of a cluster."""

from tests.unit.cluster.node.broker_tests_in_cluster import as_in_cluster

globals().update(
    as_in_cluster(
        "test_core_retries",
        # Of one broker, or of none.
        leave_out=[
            "test_delays_grow_as_asked",
            "test_delays_never_overflow",
            "test_retries_are_delayed_if_asked",
            "test_policies_delay_retries_too",
            "test_a_restart_makes_it_wait_again",
            "test_what_waits_is_bounded",
        ],
    )
)
