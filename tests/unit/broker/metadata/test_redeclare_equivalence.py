"""Declaring again what exists: the words of each refusal."""

from __future__ import annotations

import pytest

from rhizome.broker.erlang_term_text import erlang_term
from rhizome.broker.metadata.redeclare_equivalence import (
    ExchangeTraits,
    QueueTraits,
    check_exchange_equivalent,
    check_queue_equivalent,
)
from rhizome.errors import AmqpError, PreconditionFailed, ResourceLocked

Arguments = dict[str, object]


def queue(
    arguments: Arguments | None = None,
    durable: bool = True,
    exclusive: bool = False,
    auto_delete: bool = False,
) -> QueueTraits:
    return QueueTraits(durable, exclusive, auto_delete, arguments or {})


def exchange(
    arguments: Arguments | None = None,
    kind: str = "direct",
    durable: bool = True,
    auto_delete: bool = False,
    internal: bool = False,
) -> ExchangeTraits:
    return ExchangeTraits(kind, durable, auto_delete, internal, arguments or {})


def queue_refusal(existing: QueueTraits, requested: QueueTraits) -> AmqpError:
    with pytest.raises(AmqpError) as caught:
        check_queue_equivalent("/", "q", existing, requested)
    assert (caught.value.class_id, caught.value.method_id) == (50, 10)
    return caught.value


def test_same_queue_may_be_declared_again() -> None:
    check_queue_equivalent("/", "q", queue({"x-expires": 5}), queue({"x-expires": 5}))


def test_arguments_that_nobody_knows_may_differ() -> None:
    check_queue_equivalent("/", "q", queue({"x-foo": 1}), queue({"x-foo": 2}))


def test_classic_is_the_type_of_a_queue_that_does_not_say() -> None:
    check_queue_equivalent("/", "q", queue(), queue({"x-queue-type": "classic"}))
    check_queue_equivalent("/", "q", queue({"x-queue-type": "classic"}), queue())
    assert queue_refusal(queue(), queue({"x-queue-type": "quorum"})).text == (
        "inequivalent arg 'x-queue-type' for queue 'q' in vhost '/': "
        "received the value 'quorum' of type 'longstr' but current is none"
    )


def test_flags_of_a_queue_are_compared() -> None:
    error = queue_refusal(queue(durable=True), queue(durable=False))
    assert isinstance(error, PreconditionFailed)
    assert error.text == (
        "inequivalent arg 'durable' for queue 'q' in vhost '/': "
        "received 'false' but current is 'true'"
    )
    error = queue_refusal(queue(auto_delete=False), queue(auto_delete=True))
    assert error.text == (
        "inequivalent arg 'auto_delete' for queue 'q' in vhost '/': "
        "received 'true' but current is 'false'"
    )


def test_other_exclusiveness_is_resource_locked() -> None:
    error = queue_refusal(queue(exclusive=True), queue(exclusive=False, durable=False))
    assert isinstance(error, ResourceLocked)
    assert error.reply_text() == (
        "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'q' in vhost '/'. It "
        "could be originally declared on another connection or the exclusive property value does "
        "not match that of the original declaration."
    )


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (1000, 2000, "received '2000' but current is '1000'"),
        ("1000", 1000, "received '1000' but current is '1000'"),
        (True, 1, "received '1' but current is 'true'"),
        (1, 1.0, "received '1.0' but current is '1'"),
    ],
)
def test_values_of_an_argument_are_compared_with_their_types(
    old: object, new: object, words: str
) -> None:
    error = queue_refusal(queue({"x-message-ttl": old}), queue({"x-message-ttl": new}))
    assert error.text == f"inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': {words}"


def test_missing_argument_is_none() -> None:
    key = "x-dead-letter-routing-key"
    assert queue_refusal(queue(), queue({key: "foo"})).text == (
        f"inequivalent arg '{key}' for queue 'q' in vhost '/': "
        "received the value 'foo' of type 'longstr' but current is none"
    )
    assert queue_refusal(queue({"x-expires": 5}), queue()).text == (
        "inequivalent arg 'x-expires' for queue 'q' in vhost '/': "
        "received none but current is the value '5' of type 'signedint'"
    )


def exchange_refusal(existing: ExchangeTraits, requested: ExchangeTraits) -> str:
    with pytest.raises(PreconditionFailed) as caught:
        check_exchange_equivalent("/", "e", existing, requested)
    assert (caught.value.class_id, caught.value.method_id) == (40, 10)
    return caught.value.text


@pytest.mark.parametrize(
    ("existing", "requested", "words"),
    [
        (
            exchange(kind="fanout", durable=False),
            exchange(),
            "'type' for exchange 'e' in vhost '/': received 'direct' but current is 'fanout'",
        ),
        (
            exchange(durable=False),
            exchange(),
            "'durable' for exchange 'e' in vhost '/': received 'true' but current is 'false'",
        ),
        (
            exchange(),
            exchange(auto_delete=True),
            "'auto_delete' for exchange 'e' in vhost '/': received 'true' but current is 'false'",
        ),
        (
            exchange(),
            exchange(internal=True),
            "'internal' for exchange 'e' in vhost '/': received 'true' but current is 'false'",
        ),
        (
            exchange({"alternate-exchange": "UME"}),
            exchange({"alternate-exchange": "somewhere"}),
            "'alternate-exchange' for exchange 'e' in vhost '/': "
            "received 'somewhere' but current is 'UME'",
        ),
    ],
)
def test_exchange_is_compared_in_rabbitmqs_order(
    existing: ExchangeTraits, requested: ExchangeTraits, words: str
) -> None:
    check_exchange_equivalent("/", "e", existing, existing)
    assert exchange_refusal(existing, requested) == f"inequivalent arg {words}"


def test_values_are_printed_as_erlang_prints_them() -> None:
    assert erlang_term('a"b\\') == '<<"a\\"b\\\\">>'
    assert erlang_term({"k": [True, None]}) == '[{<<"k">>,array,[{bool,true},{void,undefined}]}]'
    assert erlang_term(b"\x01\xff") == "<<1,255>>"
