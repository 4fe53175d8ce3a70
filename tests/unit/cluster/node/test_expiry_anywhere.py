"""What `tests/unit/broker/test_core_expiry.py` says, on any broker of a cluster."""

from anywhere import as_in_cluster

globals().update(
    as_in_cluster(
        "test_core_expiry",
        # It restarts a core; test_publishing_in_cluster.py has its like.
        leave_out=[
            "test_persistent_delayed_message_survives_a_restart",
        ],
    )
)
