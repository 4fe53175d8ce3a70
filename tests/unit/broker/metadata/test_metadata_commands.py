"""Commands and their encoding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rhizome.amqp.field_table import encode_table
from rhizome.broker.metadata.metadata_commands import (
    OPERATIONS,
    Bind,
    Command,
    DamagedCommandError,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteLimit,
    DeleteParameter,
    DeletePermission,
    DeletePolicy,
    DeleteQueue,
    DeleteTopicPermission,
    DeleteUser,
    DeleteVhost,
    PutLimit,
    PutParameter,
    PutPermission,
    PutPolicy,
    PutTopicPermission,
    PutUser,
    PutVhost,
    Unbind,
    decode,
    encode,
)

GOLDEN = Path(__file__).parent / "golden" / "commands.txt"
GOLDEN_0_1 = Path(__file__).parent / "golden" / "commands-0.1.txt"

EXAMPLES: list[Command] = [
    PutVhost("/", "the default", ("main", "old")),
    DeleteVhost("dev"),
    DeclareExchange("/", "orders", "topic", True, False, True, {"alternate-exchange": "lost"}, 5),
    DeleteExchange("/", "orders", True, 5),
    DeclareQueue(
        "/", "work", True, False, "", {"x-max-length": 10, "deep": {"a": [1]}}, "eve", 7, 3
    ),
    DeleteQueue("/", "work", 7),
    Bind("/", "orders", "work", "queue", "a.*", {"x-match": "all", "void": None}),
    Unbind("/", "orders", "billing", "exchange", "", {}),
    PutPolicy("/", "short", "^tmp", {"message-ttl": 1000}, "queues", -1, True),
    DeletePolicy("/", "short", True),
    PutUser("eve", "scrypt$abc", "console", ("administrator",)),
    DeleteUser("eve"),
    PutPermission("eve", "/", ".*", "^a", ""),
    DeletePermission("eve", "/"),
    PutTopicPermission("eve", "/", "amq.topic", "^w", "^r"),
    DeleteTopicPermission("eve", "/", "amq.topic"),
    PutLimit("vhost", "/", "max-queues", 100),
    DeleteLimit("user", "eve", "max-connections"),
    PutParameter("shovel", "/", "s", {"src": ["a", 1, True]}),
    DeleteParameter("shovel", "/", "s"),
]


def golden_bytes(path: Path = GOLDEN) -> list[bytes]:
    lines = path.read_text().splitlines()
    return [bytes.fromhex(line) for line in lines if not line.startswith("#")]


def test_there_is_an_example_of_every_command() -> None:
    assert [type(example) for example in EXAMPLES] == list(OPERATIONS.values())


def test_encoding_is_the_one_on_disk_everywhere() -> None:
    """A change here makes existing state logs unreadable: add a version instead."""
    assert [encode(example) for example in EXAMPLES] == golden_bytes()
    assert [decode(data) for data in golden_bytes()] == EXAMPLES


def test_commands_of_release_0_1_are_still_understood() -> None:
    """It knew no groups, and no numbers of exchanges."""
    without: list[Command] = []
    for example in EXAMPLES:
        if isinstance(example, DeclareQueue):
            example = replace(example, group=0)
        elif isinstance(example, (DeclareExchange, DeleteExchange)):
            example = replace(example, exchange_id=0)
        without.append(example)
    assert [decode(data) for data in golden_bytes(GOLDEN_0_1)] == without


def test_defaults_survive() -> None:
    for command in (
        DeclareExchange("/", "x", "direct"),
        DeclareQueue("/", "q"),
        Bind("/", "x", "q"),
    ):
        assert decode(encode(command)) == command


@pytest.mark.parametrize("value", ["text", 5, True, None, 1.5, ["a"], {"a": {"b": None}}, ""])
def test_parameters_keep_the_type_of_their_value(value: object) -> None:
    decoded = decode(encode(PutParameter("c", "", "n", value)))
    assert isinstance(decoded, PutParameter)
    assert decoded.value == value
    assert type(decoded.value) is type(value)


def test_names_that_are_no_text_survive() -> None:
    name = b"\xff\xfe".decode("utf-8", "surrogateescape")
    command = DeclareQueue("/", name)
    assert decode(encode(command)) == command


def test_arguments_as_deep_as_a_client_may_send_them_survive() -> None:
    deep: dict[str, object] = {}
    for _ in range(127):
        deep = {"d": deep}
    command = DeclareQueue("/", "q", arguments=deep)
    assert decode(encode(command)) == command


def test_field_with_a_default_may_be_missing() -> None:
    """An older broker wrote it before the field existed."""
    assert decode(encode_table({"v": 1, "op": "delete-queue", "vhost": "/", "name": "q"})) == (
        DeleteQueue("/", "q")
    )


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"v": 2, "op": "delete-vhost", "name": "/"}, "version 2"),
        ({"op": "delete-vhost", "name": "/"}, "version None"),
        ({"v": 1, "op": "fly", "name": "/"}, "unknown command 'fly'"),
        ({"v": 1, "op": "delete-vhost"}, "lacks the field 'name'"),
        ({"v": 1, "op": "delete-vhost", "name": "/", "new": 1}, r"unknown fields \['new'\]"),
        ({"v": 1, "op": "delete-vhost", "name": 1}, "1 where"),
        ({"v": 1, "op": "put-vhost", "name": "/", "tags": [1]}, "where"),
        ({"v": 1, "op": "put-vhost", "name": encode_table({})}, "where"),
        (
            {"v": 1, "op": "put-limit", "scope": "", "name": "", "limit": "", "value": True},
            "True where",
        ),
    ],
)
def test_what_is_no_command_is_refused(table: dict[str, object], reason: str) -> None:
    with pytest.raises(DamagedCommandError, match=reason):
        decode(encode_table(table))


def test_every_truncation_is_noticed() -> None:
    data = encode(EXAMPLES[4])
    for length in range(len(data)):
        with pytest.raises(DamagedCommandError):
            decode(data[:length])
    with pytest.raises(DamagedCommandError):
        decode(data + b"\0")
