"""What `tests/unit/broker/test_core_connections.py` says, on any broker of a cluster."""

from tests.unit.cluster.node.broker_tests_in_cluster import as_in_cluster

globals().update(
    as_in_cluster(
        "test_core_connections",
        # They hold the syncs of a core, or wait for minutes.
        leave_out=[
            "test_cancelled_consumer_times_out_too",
            "test_a_cancelled_consumer_with_a_timeout_of_its_own_times_out_too",
            # They look into the one core that there is.
            "test_binding_of_a_locked_queue_is_not_removed",
            "test_congested_queue_pauses_its_publisher_while_its_consumer_is_busy",
            "test_new_publisher_is_blocked_while_the_alarm_lasts",
            "test_connection_without_heartbeats_may_be_silent",
            "test_consumer_that_acknowledges_in_time_is_left_alone",
            "test_consumer_timeout_cancels_only_that_consumer",
            "test_longer_timeout_on_the_same_channel_counts_for_itself",
            "test_pulled_message_is_taken_back_after_the_timeout",
            "test_declare_is_answered_only_when_it_is_synced",
            "test_what_follows_a_waiting_declare_keeps_its_order",
        ],
    )
)
