"""Arguments of queues, exchanges and consumers: what is accepted, and the words of each refusal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhizome.amqp.field_table import Timestamp
from rhizome.broker.metadata.declare_and_consume_arguments import (
    EXPIRY_MS_MAX,
    QueueArguments,
    check_consume_arguments,
    check_exchange_arguments,
    check_queue_arguments,
    check_server_named,
    parse_age_ms,
    parse_expiration,
)
from rhizome.errors import PreconditionFailed

Arguments = dict[str, object]


def checked(arguments: Arguments, **traits: bool) -> QueueArguments:
    return check_queue_arguments(
        "/",
        "q",
        arguments,
        traits.get("durable", True),
        traits.get("exclusive", False),
        traits.get("auto_delete", False),
    )


def refusal(arguments: Arguments, **traits: bool) -> str:
    with pytest.raises(PreconditionFailed) as caught:
        checked(arguments, **traits)
    assert (caught.value.class_id, caught.value.method_id) == (50, 10)
    return caught.value.text


def test_no_arguments_mean_no_limits() -> None:
    found = checked({})
    assert (found.message_ttl_ms, found.expires_ms, found.length_max, found.bytes_max) == (-1,) * 4
    assert (found.overflow, found.queue_type, found.priority_max) == ("drop-head", "classic", 0)
    assert found.dead_letter_exchange is None
    assert (found.delivery_limit, found.consumer_timeout_ms) == (-1, -1)
    assert not found.single_active_consumer
    assert not found.lazy


def test_all_arguments_are_read() -> None:
    found = checked(
        {
            "x-message-ttl": 0,
            "x-expires": 1000,
            "x-max-length": 0,
            "x-max-length-bytes": 2**40,
            "x-overflow": "reject-publish-dlx",
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "k",
            "x-max-priority": 255,
            "x-single-active-consumer": True,
            "x-queue-type": "classic",
            "x-queue-version": 2,
            "x-queue-master-locator": "min-masters",
            "x-queue-mode": "lazy",
            "x-consumer-timeout": 60_000,
            "x-last-value-key": "symbol",
            "x-dedup": "message-id",
            "x-dedup-window": 500,
            "x-replicate": "configuration",
            "x-group": "g1",
            "x-whatever": {"nobody": "knows"},
        }
    )
    assert (found.message_ttl_ms, found.expires_ms) == (0, 1000)
    assert (found.length_max, found.bytes_max) == (0, 2**40)
    assert found.overflow == "reject-publish-dlx"
    assert (found.dead_letter_exchange, found.dead_letter_key) == ("", "k")
    assert found.priority_max == 255
    assert found.single_active_consumer
    assert found.lazy
    assert found.consumer_timeout_ms == 60_000
    assert found.last_value_key == "symbol"
    assert (found.dedup, found.dedup_window_entries, found.dedup_window_ms) == (
        "message-id",
        500,
        -1,
    )
    assert (found.replicate, found.group) == ("configuration", "g1")


def test_delivery_limit_of_a_quorum_queue_is_read() -> None:
    assert checked({"x-queue-type": "quorum", "x-delivery-limit": 3}).delivery_limit == 3


@pytest.mark.parametrize("value", [-1, -2, "five", True, None])
def test_delivery_limit_that_is_none_means_no_limit(value: object) -> None:
    assert checked({"x-queue-type": "quorum", "x-delivery-limit": value}).delivery_limit == -1


@pytest.mark.parametrize("value", [-2, "soon", None])
def test_consumer_timeout_that_is_none_means_no_timeout(value: object) -> None:
    assert checked({"x-consumer-timeout": value}).consumer_timeout_ms == -1


def test_stream_arguments_are_read() -> None:
    found = checked(
        {
            "x-queue-type": "stream",
            "x-max-age": "7D",
            "x-max-length-bytes": 20,
            "x-stream-max-segment-size-bytes": 10,
        }
    )
    assert (found.queue_type, found.age_max_ms) == ("stream", 7 * 86_400_000)
    assert (found.bytes_max, found.retained_bytes_max, found.segment_bytes_max) == (-1, 20, 10)


def test_stream_may_ask_for_copies_as_in_rabbitmq_and_by_policy() -> None:
    assert checked({"x-queue-type": "stream", "x-initial-cluster-size": 3}).copies == 3
    both = checked({"x-queue-type": "stream"}).merged({"copies": 4, "min-copies": 2})
    assert (both.copies, both.min_copies) == (4, 2)


@pytest.mark.parametrize("key", ["x-replicate", "qpid.replicate"])
def test_stream_is_not_copied_without_its_messages(key: str) -> None:
    arguments: Arguments = {"x-queue-type": "stream", key: "configuration"}
    assert refusal(arguments) == (
        f"invalid arg '{key}' for queue 'q' in vhost '/': "
        '"a stream is copied with its messages or not at all"'
    )
    stream = checked({"x-queue-type": "stream"})
    assert stream.merged({"replicate": "configuration"}).replicate is None
    assert stream.merged({"replicate": "none"}).replicate == "none"
    assert checked({}).merged({"replicate": "configuration"}).replicate == "configuration"


def test_dedup_window_may_be_a_time() -> None:
    found = checked({"x-dedup": "message-id", "x-dedup-window": "90s"})
    assert (found.dedup_window_entries, found.dedup_window_ms) == (0, 90_000)


def test_qpid_words_for_replication_are_understood() -> None:
    assert checked({"qpid.replicate": "all"}).replicate == "messages"
    assert checked({"qpid.replicate": "none"}).replicate == "none"
    assert checked({"x-replicate": "messages", "qpid.replicate": 5}).replicate == "messages"


REFUSALS: list[tuple[Arguments, str]] = [
    ({"x-message-ttl": "1000"}, 'x-message-ttl: "expected integer, got longstr"'),
    ({"x-message-ttl": True}, 'x-message-ttl: "expected integer, got bool"'),
    ({"x-message-ttl": Timestamp(5)}, 'x-message-ttl: "expected integer, got timestamp"'),
    ({"x-message-ttl": None}, 'x-message-ttl: "expected integer, got void"'),
    ({"x-message-ttl": -1}, "x-message-ttl: {value_negative,-1}"),
    ({"x-message-ttl": 2**40}, "x-message-ttl: {value_too_large,1099511627776}"),
    ({"x-expires": 2**40}, "x-expires: {value_too_large,1099511627776}"),
    ({"x-expires": 0}, "x-expires: {value_zero,0}"),
    ({"x-expires": -10}, "x-expires: {value_negative,-10}"),
    ({"x-max-length": -1}, "x-max-length: {value_negative,-1}"),
    ({"x-max-length-bytes": 1.5}, 'x-max-length-bytes: "expected integer, got double"'),
    ({"x-max-priority": 260}, "x-max-priority: {max_value_exceeded,260}"),
    ({"x-max-priority": -1}, "x-max-priority: {value_negative,-1}"),
    (
        {"x-dead-letter-routing-key": "k"},
        "x-dead-letter-routing-key: routing_key_but_no_dlx_defined",
    ),
    (
        {"x-dead-letter-exchange": "e", "x-dead-letter-routing-key": 5},
        "x-dead-letter-routing-key: {unacceptable_type,signedint}",
    ),
    ({"x-overflow": "burst"}, "x-overflow: invalid_overflow"),
    ({"x-overflow": []}, "x-overflow: {unacceptable_type,array}"),
    ({"x-queue-mode": "eager"}, "x-queue-mode: \"unsupported queue mode 'eager'\""),
    ({"x-queue-type": "foo"}, "x-queue-type: \"unsupported queue type 'foo'\""),
    ({"x-single-active-consumer": 1}, "x-single-active-consumer: {unacceptable_type,signedint}"),
    ({"x-queue-version": 3}, "x-queue-version: \"unsupported queue version '3'\""),
    ({"x-queue-version": "1"}, 'x-queue-version: "expected integer, got longstr"'),
    ({"x-queue-type": "stream", "x-max-age": "7x"}, "x-max-age: invalid_max_age"),
    (
        {"x-queue-type": "quorum", "x-queue-leader-locator": "near"},
        "x-queue-leader-locator: invalid_queue_locator_arg",
    ),
    (
        {"x-queue-type": "quorum", "x-dead-letter-strategy": "nope"},
        "x-dead-letter-strategy: invalid_dlx_strategy",
    ),
    ({"x-dedup": "body"}, "x-dedup: \"expected message-id or none, got 'body'\""),
    (
        {"x-dedup-window": "soon"},
        'x-dedup-window: "expected a number of messages or a time like 90s, 10m or 1h"',
    ),
    (
        {"x-replicate": "some"},
        "x-replicate: \"expected none, configuration or messages, got 'some'\"",
    ),
]


@pytest.mark.parametrize(("arguments", "words"), REFUSALS)
def test_wrong_argument_is_refused_in_rabbitmqs_words(arguments: Arguments, words: str) -> None:
    key, _, reason = words.partition(": ")
    assert refusal(arguments) == f"invalid arg '{key}' for queue 'q' in vhost '/': {reason}"


def test_wrong_type_of_dead_letter_exchange_has_words_of_its_own() -> None:
    text = "invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue 'q' in vhost '/'"
    assert refusal({"x-dead-letter-exchange": 5, "x-expires": 0}) == text


@pytest.mark.parametrize("kind", ["quorum", "stream"])
def test_replicated_queue_types_are_durable_shared_and_kept(kind: str) -> None:
    arguments: Arguments = {"x-queue-type": kind}
    checked(arguments)
    ending = "for queue 'q' in vhost '/'"
    assert refusal(arguments, durable=False) == f"invalid property 'non-durable' {ending}"
    assert refusal(arguments, exclusive=True) == f"invalid property 'exclusive-owner' {ending}"
    assert refusal(arguments, auto_delete=True) == f"invalid property 'auto-delete' {ending}"


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("classic", "x-delivery-limit", 5),
        ("classic", "x-delivery-limit", "five"),
        ("classic", "x-max-age", "1D"),
        ("classic", "x-dead-letter-strategy", "nope"),
        ("classic", "x-max-in-memory-length", -1),
        ("classic", "x-max-in-memory-bytes", 1),
        ("classic", "x-quorum-initial-group-size", 1),
        ("classic", "x-stream-max-segment-size-bytes", 4),
        ("classic", "x-initial-cluster-size", 1),
        ("quorum", "x-queue-mode", "lazy"),
        ("quorum", "x-max-age", "1D"),
        ("stream", "x-expires", 5),
    ],
)
def test_argument_that_a_queue_type_does_not_know_is_refused(
    kind: str, key: str, value: object
) -> None:
    assert refusal({"x-queue-type": kind, key: value}) == (
        f"invalid arg '{key}' for queue 'q' in vhost '/' of queue type rabbit_{kind}_queue"
    )


def test_wrong_value_is_told_before_an_argument_of_other_types() -> None:
    text = refusal({"x-delivery-limit": 5, "x-max-length": -1})
    assert text == "invalid arg 'x-max-length' for queue 'q' in vhost '/': {value_negative,-1}"


def test_first_of_several_arguments_of_other_types_is_told() -> None:
    assert "'x-max-age'" in refusal({"x-max-age": "1D", "x-delivery-limit": 5})
    assert "'x-delivery-limit'" in refusal({"x-delivery-limit": 5, "x-max-age": "1D"})


def test_only_classic_queues_get_a_name_from_the_server() -> None:
    check_server_named({})
    check_server_named({"x-queue-type": "classic"})
    with pytest.raises(PreconditionFailed, match="for type rabbit_quorum_queue"):
        check_server_named({"x-queue-type": "quorum"})


def test_refusal_names_the_method_that_the_caller_says() -> None:
    with pytest.raises(PreconditionFailed) as caught:
        check_queue_arguments("/", "q", {"x-expires": 0}, True, False, False, 50, 20)
    assert caught.value.method_id == 20


# --- policies


def test_lower_of_two_numeric_limits_wins() -> None:
    own = checked({"x-message-ttl": 100, "x-max-length": 10})
    both = own.merged({"message-ttl": 50, "max-length": 20, "expires": 7, "max-length-bytes": 8})
    assert (both.message_ttl_ms, both.length_max, both.expires_ms, both.bytes_max) == (50, 10, 7, 8)
    assert (own.message_ttl_ms, own.expires_ms) == (100, -1)


def test_argument_wins_over_a_policy_in_words() -> None:
    own = checked(
        {"x-dead-letter-exchange": "a", "x-overflow": "drop-head", "x-queue-mode": "default"}
    )
    both = own.merged(
        {
            "dead-letter-exchange": "b",
            "dead-letter-routing-key": "k",
            "overflow": "reject-publish",
            "queue-mode": "lazy",
        }
    )
    assert (both.dead_letter_exchange, both.dead_letter_key) == ("a", "k")
    assert both.overflow == "drop-head"
    assert not both.lazy


def test_policy_counts_where_there_is_no_argument() -> None:
    both = checked({}).merged(
        {
            "dead-letter-exchange": "",
            "overflow": "reject-publish",
            "queue-mode": "lazy",
            "delivery-limit": 5,
            "consumer-timeout": 6,
            "max-age": "1h",
            "replicate": "all",
            "group": "g",
        }
    )
    assert both.dead_letter_exchange == ""
    assert both.overflow == "reject-publish"
    assert both.lazy
    assert (both.delivery_limit, both.consumer_timeout_ms) == (5, 6)
    assert both.age_max_ms == 3_600_000
    assert (both.replicate, both.group) == ("messages", "g")


def test_policy_leaves_the_arguments_as_they_are() -> None:
    own = checked({"x-max-priority": 3, "x-single-active-consumer": True, "x-dedup": "message-id"})
    assert own.merged({"overflow": "reject-publish"}).overflow == "reject-publish"
    assert own.merged({}).overflow == "drop-head"
    both = own.merged({})
    assert (both.priority_max, both.single_active_consumer, both.dedup) == (3, True, "message-id")


def test_policy_values_of_the_wrong_type_are_passed_over() -> None:
    both = checked({}).merged(
        {"message-ttl": "5", "max-length": True, "overflow": 1, "dead-letter-exchange": 2}
    )
    assert (both.message_ttl_ms, both.length_max) == (-1, -1)
    assert both.overflow == "drop-head"
    assert both.dead_letter_exchange is None


# --- exchanges, consumers, messages


def test_alternate_exchange_is_a_name() -> None:
    assert check_exchange_arguments("/", "e", {}) is None
    assert check_exchange_arguments("/", "e", {"alternate-exchange": "a"}) == "a"
    with pytest.raises(PreconditionFailed) as caught:
        check_exchange_arguments("v", "e", {"alternate-exchange": 5})
    assert caught.value.text == (
        "invalid type 'signedint' for arg 'alternate-exchange' in exchange 'e' in vhost 'v'"
    )
    assert (caught.value.class_id, caught.value.method_id) == (40, 10)


@pytest.mark.parametrize(
    ("value", "kind"), [("1", "longstr"), ({}, "table"), ([], "array"), (None, "void")]
)
def test_consumer_priority_is_an_integer(value: object, kind: str) -> None:
    with pytest.raises(PreconditionFailed) as caught:
        check_consume_arguments("/", "q", {"x-priority": value})
    assert caught.value.text == (
        f"invalid arg 'x-priority' for queue 'q' in vhost '/': \"expected integer, got {kind}\""
    )
    assert (caught.value.class_id, caught.value.method_id) == (60, 20)


def test_consume_arguments_are_read() -> None:
    found = check_consume_arguments("/", "q", {"x-priority": -3, "x-cancel-on-ha-failover": True})
    assert (found.priority, found.cancel_on_failover, found.stream_offset) == (-3, True, "next")
    assert check_consume_arguments("/", "q", {}).priority == 0


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("classic", "x-stream-offset"),
        ("quorum", "x-cancel-on-ha-failover"),
        ("stream", "x-priority"),
    ],
)
def test_consume_argument_of_other_queue_types_is_refused(kind: str, key: str) -> None:
    with pytest.raises(PreconditionFailed) as caught:
        check_consume_arguments("/", "q", {key: 5}, kind)
    assert caught.value.text == (
        f"invalid arg '{key}' for queue 'q' in vhost '/' of queue type rabbit_{kind}_queue"
    )


@pytest.mark.parametrize("offset", ["first", "last", "next", "10m", 0, 2**40, Timestamp(5)])
def test_stream_offset_is_a_word_a_time_or_a_number(offset: object) -> None:
    found = check_consume_arguments("/", "q", {"x-stream-offset": offset}, "stream")
    assert found.stream_offset == offset


@pytest.mark.parametrize(
    ("offset", "term"),
    [("foo", '{longstr,<<"foo">>}'), (True, "{bool,true}"), ([1], "{array,[{signedint,1}]}")],
)
def test_wrong_stream_offset_is_refused(offset: object, term: str) -> None:
    with pytest.raises(PreconditionFailed) as caught:
        check_consume_arguments("/", "q", {"x-stream-offset": offset}, "stream")
    assert caught.value.text.endswith(f": {{invalid_stream_offset_arg,{term}}}")


@pytest.mark.parametrize(
    ("text", "age_ms"),
    [("1s", 1000), ("2m", 120_000), ("1Y", 365 * 86_400_000), ("0s", -1), ("s", -1), ("", -1)],
)
def test_ages_are_a_number_and_a_unit(text: str, age_ms: int) -> None:
    assert parse_age_ms(text) == age_ms


def test_huge_age_is_for_ever() -> None:
    assert parse_age_ms("999999999999999Y") == 2**63 - 1
    assert parse_age_ms("9" * 200 + "s") == -1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("foobar", "no_integer"),
        ("", "no_integer"),
        ("-", "no_integer"),
        ("1000foobar", '{leftover_string,"foobar"}'),
        ("1 ", '{leftover_string," "}'),
        ('1"', '{leftover_string,"\\""}'),
        ("-1000", "{value_negative,-1000}"),
        ("1099511627776", "{value_too_large,1099511627776}"),
    ],
)
def test_wrong_expiration_is_refused_in_rabbitmqs_words(text: str, reason: str) -> None:
    with pytest.raises(PreconditionFailed) as caught:
        parse_expiration(text)
    assert caught.value.text == f"invalid expiration '{text}': {reason}"
    assert (caught.value.class_id, caught.value.method_id) == (60, 40)


@pytest.mark.parametrize(("text", "ms"), [("0", 0), ("1000", 1000), ("+5", 5), ("-0", 0)])
def test_expiration_is_a_number_of_milliseconds(text: str, ms: int) -> None:
    assert parse_expiration(text) == ms


def test_expiration_may_be_ten_years() -> None:
    assert parse_expiration(str(EXPIRY_MS_MAX)) == EXPIRY_MS_MAX
    with pytest.raises(PreconditionFailed, match="value_too_large"):
        parse_expiration("9" * 255)


values = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 300), st.text(max_size=5), st.just([]), st.just({})
)
keys = st.sampled_from(
    sorted({"x-delivery-limit", *[key for arguments, _ in REFUSALS for key in arguments]})
)


@given(st.dictionaries(keys, values))
def test_any_arguments_are_read_or_refused(arguments: Arguments) -> None:
    try:
        found = checked(arguments)
    except PreconditionFailed:
        return
    assert found.expires_ms != 0
    assert 0 <= found.priority_max <= 255
    assert found.dead_letter_key is None or found.dead_letter_exchange is not None
