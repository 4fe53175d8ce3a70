"""What `tests/unit/broker/test_core_deduplication.py` says, on any broker of a cluster."""

import pytest

from rhizome.amqp.properties import Properties
from rhizome.broker.connection.outbox import Outbox
from rhizome.broker.message import Message, Route
from rhizome.cluster.protocol.edge_home_codec import put_publish
from rhizome.journal.dedup_state import DedupIdentity, user_prefix
from rhizome.testing.in_memory_cluster import make_cluster
from tests.unit.cluster.node.broker_tests_in_cluster import as_in_cluster
from tests.unit.cluster.node.small_cluster import confirmed, drain, queue_at

globals().update(
    as_in_cluster(
        "test_core_deduplication",
        # They hold a core's disk back, or restart it.
        leave_out=[
            "test_a_duplicate_is_confirmed_with_its_original_and_not_before",
            "test_a_duplicate_by_message_id_waits_for_its_original_too",
            "test_watermarks_survive_a_restart",
            "test_a_window_of_ids_survives_a_restart",
            "test_what_a_crash_lost_is_no_duplicate_afterwards",
            "test_a_transaction_counts_at_its_commit",
        ],
    )
)


@pytest.mark.parametrize("at", ["b1", "b2", "s1"])
def test_what_was_sent_through_any_broker_is_known_after_a_restart_of_the_home(at: str) -> None:
    cluster = make_cluster(3, 1)
    client = cluster["b3"].connect()
    queue_at(client, "q", "b1", durable=True)
    client.confirm()
    for sequence in (1, 2):
        headers: dict[str, object] = {"x-producer": "p", "x-sequence": sequence}
        properties = Properties(headers=headers, delivery_mode=2)
        client.publish("", "q", b"%d" % sequence, properties)
    assert confirmed(client) == 2
    cluster["b1"].kill()
    cluster.advance(3000)
    cluster["b1"].start()
    cluster.advance_until_ready()
    client = cluster[at].connect()
    client.confirm()
    for sequence in (1, 2, 3):
        headers = {"x-producer": "p", "x-sequence": sequence}
        properties = Properties(headers=headers, delivery_mode=2)
        client.publish("", "q", b"%d" % sequence, properties)
    cluster.advance(500)
    assert confirmed(client) == 3
    assert drain(client, "q") == [b"1", b"2", b"3"]


def forwarded(producer: bytes, by_user: bool) -> bytes:
    message = Message(Route("", "q", b"\0\1q"), b"content", 1, 7)
    message.identity = DedupIdentity(producer, 5, b"")
    outbox = Outbox()
    put_publish(outbox, 1, 1, message, False, by_user)
    return b"".join(outbox.take())


def test_a_home_of_an_older_release_reads_the_producer_from_the_headers() -> None:
    producer = user_prefix("alice") + b"p"
    assert producer in forwarded(producer, True)
    assert producer not in forwarded(producer, False)
    letter = b"\0\0\1" + bytes(8)
    assert letter in forwarded(letter, False)
    assert b"plain" not in forwarded(b"plain", True)


def numbered(sequence: int) -> Properties:
    return Properties(headers={"x-producer": "p", "x-sequence": sequence}, delivery_mode=2)


def test_beside_an_older_release_names_alone_count_and_nothing_is_taken_twice() -> None:
    cluster = make_cluster(3)
    client = cluster["b1"].connect()
    queue_at(client, "q", "b2", durable=True)
    client.publish("", "q", b"1", numbered(1))
    for name in ("b1", "b2"):
        cluster[name].broker.older_peers["b3"] = None
    client.publish("", "q", b"1 again", numbered(1))
    client.publish("", "q", b"2", numbered(2))
    for name in ("b1", "b2"):
        cluster[name].broker.older_peers.clear()
    client.publish("", "q", b"2 again", numbered(2))
    client.publish("", "q", b"3", numbered(3))
    cluster.advance(500)
    seen = cluster["b2"].queue("q").seen
    assert seen is not None
    assert set(seen.producers) == {user_prefix("guest") + b"p", b"p"}
    assert drain(client, "q") == [b"1", b"2", b"3"]


def test_brokers_of_this_release_say_that_they_know_of_users() -> None:
    cluster = make_cluster(2)
    peer_broker = cluster["b1"].node.peer_brokers["b2"]
    assert peer_broker.link_channel is not None
    assert peer_broker.link_channel.by_user
    assert cluster["b1"].broker.older_peers == {}
