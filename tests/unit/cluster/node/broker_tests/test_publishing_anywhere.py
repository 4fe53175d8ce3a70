"""What `tests/unit/broker/test_core_publishing.py` says, on any broker of a cluster."""

from tests.unit.cluster.node.broker_tests_in_cluster import as_in_cluster

globals().update(
    as_in_cluster(
        "test_core_publishing",
        # They hold the syncs of a core, restart it, or look into it.
        leave_out=[
            "test_commit_is_answered_only_when_it_is_synced",
            "test_commit_waits_for_the_sync_of_its_own_record",
            "test_committed_transaction_survives_a_crash_whole",
            "test_confirms_come_in_the_order_of_the_publishes",
            "test_persistent_message_is_confirmed_only_when_it_is_synced",
            "test_persistent_message_survives_a_crash_and_a_transient_one_does_not",
        ],
    )
)
