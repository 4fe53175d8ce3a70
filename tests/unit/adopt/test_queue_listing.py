"""Rows of both makes of HTTP API, read."""

from __future__ import annotations

from typing import Any

from rhizome.adopt.queue_listing import OWN_TAG, QueueCounts, QueueKey, read_queues


def consumer(queue: str, tag: str) -> dict[str, Any]:
    return {"queue": {"name": queue, "vhost": "/"}, "consumer_tag": tag}


def row(**fields: Any) -> dict[str, Any]:
    return {"vhost": "/", "name": "q", "type": "classic", "arguments": {}, **fields}


def only(**fields: Any) -> QueueCounts:
    return read_queues([row(**fields)], [])[QueueKey("/", "q")]


def test_consumers_are_those_of_applications() -> None:
    rows = [consumer("q", "ctag1.1"), consumer("q", OWN_TAG), consumer("q", "ctag1.1")]
    assert read_queues([row()], rows)[QueueKey("/", "q")].consumers == 2


def test_counts_and_rates_are_read() -> None:
    stats = {"publish_details": {"rate": 2.5}}
    counts = only(messages=7, messages_unacknowledged=2, message_stats=stats)
    assert (counts.messages, counts.unacked, counts.publish_rate) == (7, 2, 2.5)


def test_a_queue_that_was_not_counted_yet_has_no_counts() -> None:
    """RabbitMQ lists a new queue, or one whose home is down, without them."""
    assert (only().messages, only(message_stats=[]).publish_rate) == (None, 0.0)


def test_private_queues_streams_and_those_that_remember_ids_are_known() -> None:
    assert only(exclusive=True).is_private
    assert only(auto_delete="true").is_private
    assert not only(exclusive=False, auto_delete=False).is_private
    assert only(type="stream").kind == "stream"
    assert only(arguments={"x-queue-type": "stream"}).kind == "stream"
    assert only(arguments={"x-dedup": "message-id"}).remembers_ids
    assert not only(type="stream").is_shared
    assert only(arguments=[]).is_shared
