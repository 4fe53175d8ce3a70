"""Filters of streams for consumers of AMQP, as RabbitMQ 4.x has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from rhizome.amqp import methods as m
from rhizome.amqp.properties import Properties
from tests.conformance.wire_driver import Channel

from .conftest import Unique

pytestmark = pytest.mark.rhizome_only

Declare = Callable[..., str]


@pytest.fixture
def declare(channel: Channel, unique: Unique) -> Iterator[Declare]:
    made: list[str] = []

    def declare_one(**arguments: object) -> str:
        name = unique("stream")
        given = {key.replace("_", "-"): value for key, value in arguments.items()}
        channel.declare(
            name, exclusive=False, durable=True, arguments={"x-queue-type": "stream", **given}
        )
        made.append(name)
        return name

    yield declare_one
    for name in made:
        channel.connection.channel().call(m.QueueDelete(name), m.QueueDeleteOk)


def publish(channel: Channel, stream: str, *values: str | None) -> None:
    channel.confirm()
    for value in values:
        headers: dict[str, object] = {} if value is None else {"x-stream-filter-value": value}
        body = b"none" if value is None else value.encode()
        channel.publish_confirmed("", stream, body, Properties(headers=headers))


def bodies(channel: Channel, stream: str, last: bytes, **arguments: object) -> list[bytes]:
    """What a consumer with these arguments gets, up to the first of this body."""
    given = {key.replace("_", "-"): value for key, value in arguments.items()}
    channel.qos(100)
    tag = channel.consume(stream, arguments={"x-stream-offset": "first", **given})
    found: list[bytes] = []
    while not found or found[-1] != last:
        found.append(channel.delivery().body)
    channel.send(m.BasicCancel(tag))
    return found


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"x_stream_filter": "end"}, [b"end"]),
        ({"x_stream_filter": ["a", "end"]}, [b"a", b"a", b"end"]),
        (
            {"x_stream_filter": ["a", "end"], "x_stream_match_unfiltered": True},
            [b"a", b"none", b"a", b"end"],
        ),
        ({"x_stream_match_unfiltered": True}, [b"a", b"b", b"none", b"a", b"end"]),
    ],
)
def test_consumers_get_the_values_that_they_ask_for(
    channel: Channel,
    other: Channel,
    declare: Declare,
    arguments: dict[str, object],
    expected: list[bytes],
) -> None:
    stream = declare(x_stream_filter_size_bytes=32)
    publish(channel, stream, "a", "b", None, "a", "end")
    assert bodies(other, stream, b"end", **arguments) == expected


@pytest.mark.parametrize("size", [16, 255])
def test_the_size_of_filters_may_be_chosen(declare: Declare, size: int) -> None:
    declare(x_stream_filter_size_bytes=size)


@pytest.mark.parametrize("size", [15, 256])
def test_a_wrong_size_of_filters_is_refused(channel: Channel, unique: Unique, size: int) -> None:
    arguments: dict[str, object] = {"x-queue-type": "stream", "x-stream-filter-size-bytes": size}
    refused = channel.fails(m.QueueDeclare(unique("wrong"), durable=True, arguments=arguments))
    assert refused.code == 406
    assert "x-stream-filter-size-bytes" in refused.text


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_other_queues_have_no_filters(channel: Channel, unique: Unique, kind: str) -> None:
    arguments: dict[str, object] = {"x-queue-type": kind, "x-stream-filter-size-bytes": 32}
    refused = channel.fails(m.QueueDeclare(unique("wrong"), durable=True, arguments=arguments))
    assert refused.code == 406
    assert "invalid arg 'x-stream-filter-size-bytes'" in refused.text
    assert f"of queue type rabbit_{kind}_queue" in refused.text


@pytest.mark.parametrize("argument", ["x-stream-filter", "x-stream-match-unfiltered"])
def test_consumers_of_other_queues_have_no_filters(channel: Channel, argument: str) -> None:
    queue = channel.declare()
    value: object = True if argument.endswith("unfiltered") else "a"
    refused = channel.fails(m.BasicConsume(queue, arguments={argument: value}))
    assert refused.code == 406
    assert f"invalid arg '{argument}'" in refused.text
