"""Dead-lettering: when, where to, and the exact headers that tell the story."""

from __future__ import annotations

import time
from typing import Any

import pytest

from rhizome.amqp import methods as m
from rhizome.amqp.field_table import Timestamp
from rhizome.amqp.properties import Properties
from tests.conformance.wire_driver import Channel, Content

from . import differences
from .conftest import Unique

DEATH_KEYS = {"count", "reason", "queue", "time", "exchange", "routing-keys"}


def dying_queue(channel: Channel, dead: str, **more: object) -> str:
    """A queue whose dead letters go to the queue `dead`."""
    arguments: dict[str, object] = {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": dead,
    }
    arguments.update({f"x-{key.replace('_', '-')}": value for key, value in more.items()})
    return channel.declare(arguments=arguments)


def reject(channel: Channel, queue: str) -> None:
    got = channel.get_wait(queue, no_ack=False)
    channel.send(m.BasicReject(got.tag, False))


def deaths(letter: Content) -> list[dict[str, Any]]:
    found = letter.headers["x-death"]
    assert isinstance(found, list)
    return found


@differences.LAST_DEATH
def test_a_rejected_message_tells_its_death_exactly(channel: Channel, unique: Unique) -> None:
    exchange = channel.declare_exchange(unique("exchange"))
    dead = channel.declare()
    queue = dying_queue(channel, dead)
    channel.bind(queue, exchange, "key")
    before = int(time.time())
    channel.publish(exchange, "key", b"body", Properties(headers={"mine": 1}, message_id="m"))
    reject(channel, queue)
    letter = channel.get_wait(dead)
    after = int(time.time())
    headers = letter.headers
    (death,) = deaths(letter)
    assert isinstance(death["time"], Timestamp)
    assert before <= death.pop("time").seconds <= after
    assert death == {
        "count": 1,
        "reason": "rejected",
        "queue": queue,
        "exchange": exchange,
        "routing-keys": ["key"],
    }
    del headers["x-death"]
    assert headers == {
        "mine": 1,
        "x-first-death-exchange": exchange,
        "x-first-death-queue": queue,
        "x-first-death-reason": "rejected",
    }
    assert (letter.body, letter.properties.message_id) == (b"body", "m")
    assert (letter.method.exchange, letter.method.routing_key) == ("", dead)
    assert not letter.method.redelivered


@pytest.mark.parametrize("method", [m.BasicReject(1, False), m.BasicNack(1, False, False)])
def test_reject_and_nack_without_requeue_dead_letter(channel: Channel, method: m.Method) -> None:
    dead = channel.declare()
    queue = dying_queue(channel, dead)
    channel.publish("", queue, b"x")
    assert channel.get(queue, no_ack=False)
    channel.send(method)
    assert deaths(channel.get_wait(dead))[0]["reason"] == "rejected"


def test_nack_multiple_dead_letters_all_in_order(channel: Channel) -> None:
    dead = channel.declare()
    queue = dying_queue(channel, dead)
    for number in range(5):
        channel.publish("", queue, str(number).encode())
    channel.consume(queue)
    got = channel.deliveries(5)
    channel.send(m.BasicNack(got[3].tag, True, False))
    assert [channel.get_wait(dead).body for _ in range(4)] == [b"0", b"1", b"2", b"3"]
    assert channel.get(dead) is None


def test_requeueing_is_no_death(channel: Channel) -> None:
    dead = channel.declare()
    queue = dying_queue(channel, dead)
    channel.publish("", queue, b"x")
    got = channel.get(queue, no_ack=False)
    assert got is not None
    channel.send(m.BasicReject(got.tag, True))
    assert "x-death" not in channel.get_wait(queue).headers
    assert channel.get(dead) is None


def test_an_expired_message_says_so(channel: Channel) -> None:
    dead = channel.declare()
    queue = dying_queue(channel, dead, message_ttl=50)
    channel.publish("", queue, b"x")
    letter = channel.get_wait(dead)
    (death,) = deaths(letter)
    assert set(death) == DEATH_KEYS
    assert (death["reason"], death["queue"]) == ("expired", queue)
    assert letter.headers["x-first-death-reason"] == "expired"


def test_a_message_with_an_expiry_of_its_own_keeps_it_in_its_death_only(channel: Channel) -> None:
    dead = channel.declare()
    queue = dying_queue(channel, dead)
    channel.publish("", queue, b"x", Properties(expiration="50"))
    letter = channel.get_wait(dead)
    (death,) = deaths(letter)
    assert set(death) == DEATH_KEYS | {"original-expiration"}
    assert death["original-expiration"] == "50"
    assert letter.properties.expiration is None


@differences.EXPIRY_BEHIND_THE_HEAD
@differences.EXPIRY_BEHIND_THE_HEAD_TOO
def test_a_message_expires_behind_one_that_stays(channel: Channel) -> None:
    dead = channel.declare()
    queue = dying_queue(channel, dead)
    channel.publish("", queue, b"stays")
    channel.publish("", queue, b"goes", Properties(expiration="50"))
    assert channel.get_wait(dead).body == b"goes"
    assert channel.count(queue) == 1


def test_rejection_also_takes_the_expiry_away(channel: Channel) -> None:
    dead = channel.declare()
    queue = dying_queue(channel, dead)
    channel.publish("", queue, b"x", Properties(expiration="60000"))
    reject(channel, queue)
    letter = channel.get_wait(dead)
    assert deaths(letter)[0]["original-expiration"] == "60000"
    assert letter.properties.expiration is None


def test_a_message_dropped_by_a_length_limit_says_so(channel: Channel) -> None:
    dead = channel.declare()
    queue = dying_queue(channel, dead, max_length=1)
    for body in (b"first", b"second"):
        channel.publish("", queue, body)
    letter = channel.get_wait(dead)
    assert letter.body == b"first"
    assert deaths(letter)[0]["reason"] == "maxlen"


def test_reject_publish_dlx_dead_letters_what_it_rejects(channel: Channel) -> None:
    dead = channel.declare()
    queue = dying_queue(channel, dead, max_length=1, overflow="reject-publish-dlx")
    channel.confirm()
    channel.publish_confirmed("", queue, b"first")
    channel.publish("", queue, b"second")
    channel.expect(m.BasicNack)
    letter = channel.get_wait(dead)
    assert letter.body == b"second"
    assert deaths(letter)[0]["reason"] == "maxlen"


def test_reject_publish_dead_letters_nothing(channel: Channel) -> None:
    dead = channel.declare()
    queue = dying_queue(channel, dead, max_length=1, overflow="reject-publish")
    channel.confirm()
    channel.publish_confirmed("", queue, b"first")
    channel.publish("", queue, b"second")
    channel.expect(m.BasicNack)
    assert channel.get(dead) is None


def test_without_a_routing_key_the_original_one_is_used(channel: Channel, unique: Unique) -> None:
    exchange = channel.declare_exchange(unique("letters"), "direct", auto_delete=False)
    queue = channel.declare(arguments={"x-dead-letter-exchange": exchange})
    dead = channel.declare()
    channel.bind(dead, exchange, queue)
    channel.publish("", queue, b"x")
    reject(channel, queue)
    letter = channel.get_wait(dead)
    assert (letter.method.exchange, letter.method.routing_key) == (exchange, queue)
    channel.call(m.ExchangeDelete(exchange), m.ExchangeDeleteOk)


@differences.DEATHS_FROM_CLIENTS
def test_deaths_are_counted_per_queue_and_reason_with_the_latest_first(channel: Channel) -> None:
    dead = channel.declare()
    first, second = dying_queue(channel, dead), dying_queue(channel, dead)
    channel.publish("", first, b"x")
    for queue in (first, second, first):
        reject(channel, queue)
        letter = channel.get_wait(dead)
        channel.publish("", second if queue == first else first, b"x", letter.properties)
    reject(channel, second)
    found = deaths(channel.get_wait(dead))
    assert [(death["queue"], death["count"]) for death in found] == [(second, 2), (first, 2)]


def test_first_death_headers_stay_those_of_the_first_death(channel: Channel) -> None:
    last = channel.declare()
    middle = dying_queue(channel, last)
    first = dying_queue(channel, middle, message_ttl=30)
    channel.publish("", first, b"x")
    reject(channel, middle)
    letter = channel.get_wait(last)
    assert [death["reason"] for death in deaths(letter)] == ["rejected", "expired"]
    assert letter.headers["x-first-death-reason"] == "expired"
    assert letter.headers["x-first-death-queue"] == first


def test_a_cycle_of_expiry_is_broken(channel: Channel, unique: Unique) -> None:
    queue = unique("cycle")
    arguments = {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": queue,
        "x-message-ttl": 30,
    }
    channel.declare(queue, arguments=arguments)
    channel.publish("", queue, b"x")
    assert channel.is_quiet(0.4)
    assert channel.get(queue) is None


def test_a_cycle_with_a_rejection_in_it_goes_on(channel: Channel, unique: Unique) -> None:
    work, wait = unique("work"), unique("wait")
    channel.declare(
        work, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": wait}
    )
    channel.declare(
        wait,
        arguments={
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": work,
            "x-message-ttl": 20,
        },
    )
    channel.publish("", work, b"retry")
    for count in (0, 1, 2, 3):
        got = channel.get_wait(work, no_ack=False)
        found = got.headers.get("x-death", [])
        rejected = [death["count"] for death in found if death["reason"] == "rejected"]
        assert rejected == ([count] if count else [])
        channel.send(m.BasicReject(got.tag, False))


def test_a_missing_dead_letter_exchange_loses_the_message_quietly(
    channel: Channel, unique: Unique
) -> None:
    queue = channel.declare(arguments={"x-dead-letter-exchange": unique("missing")})
    channel.publish("", queue, b"x")
    reject(channel, queue)
    channel.qos(1)
    assert channel.get(queue) is None


@differences.CC_OF_DEAD_LETTERS
def test_all_routing_keys_of_a_message_with_cc_are_listed(channel: Channel, unique: Unique) -> None:
    dead = channel.declare()
    queue = dying_queue(channel, dead)
    headers: dict[str, object] = {"CC": ["copy", "other"], "BCC": ["blind"]}
    channel.publish("", queue, b"x", Properties(headers=headers))
    reject(channel, queue)
    letter = channel.get_wait(dead)
    assert deaths(letter)[0]["routing-keys"] == [queue, "copy", "other"]
    # An explicit dead-letter routing key replaces the copies.
    assert "CC" not in letter.headers


def test_dead_letters_of_a_durable_queue_keep_their_delivery_mode(channel: Channel) -> None:
    dead = channel.declare()
    queue = dying_queue(channel, dead)
    channel.publish("", queue, b"x", Properties(delivery_mode=2, priority=3))
    reject(channel, queue)
    letter = channel.get_wait(dead)
    assert (letter.properties.delivery_mode, letter.properties.priority) == (2, 3)


def test_deleting_and_purging_dead_letter_nothing(channel: Channel) -> None:
    dead = channel.declare()
    queue = dying_queue(channel, dead)
    channel.publish("", queue, b"x")
    channel.call(m.QueuePurge(queue), m.QueuePurgeOk)
    channel.publish("", queue, b"x")
    channel.call(m.QueueDelete(queue), m.QueueDeleteOk)
    assert channel.get(dead) is None
