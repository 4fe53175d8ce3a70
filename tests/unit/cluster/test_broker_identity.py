"""Hellos: what brokers say about themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhizome.amqp.field_table import encode_table, read_table
from rhizome.cluster.link.broker_hello import (
    HELLO_BYTES_MAX,
    ROLES,
    SECONDARY,
    Hello,
    HelloError,
    decode_hello,
    hash_primaries,
    negotiated_version,
)

HELLO = Hello(
    "b1",
    "0" * 31 + "1",
    "a" * 32,
    addresses=("amqp://10.0.0.1:5672", "amqp://[::1]:5672"),
    machine="m1",
    cluster_uuid="c" * 32,
    primaries_hash=hash_primaries(["b1", "b2"]),
    versions=(1, 3),
    features=("relay",),
)
GOLDEN = Path(__file__).parent / "golden" / "hello.hex"
texts = st.text(st.characters(codec="utf-8"), max_size=40)
uuids = st.text("0123456789abcdef", min_size=32, max_size=32)


@given(
    name=texts.filter(bool),
    uuid=uuids,
    incarnation=uuids,
    role=st.sampled_from(ROLES),
    addresses=st.lists(texts, max_size=16),
    cluster_uuid=st.just("") | uuids,
    versions=st.tuples(st.integers(1, 9), st.integers(0, 9)),
)
def test_a_hello_survives_the_wire(
    name: str,
    uuid: str,
    incarnation: str,
    role: str,
    addresses: list[str],
    cluster_uuid: str,
    versions: tuple[int, int],
) -> None:
    hello = Hello(
        name,
        uuid,
        incarnation,
        role,
        tuple(addresses),
        cluster_uuid=cluster_uuid,
        versions=(versions[0], versions[0] + versions[1]),
    )
    assert decode_hello(hello.encode()) == hello


def test_fields_of_the_next_release_are_ignored() -> None:
    table, _ = read_table(HELLO.encode(), 0)
    assert decode_hello(encode_table({**table, "colour": "green", "zones": [1, 2]})) == HELLO


def test_a_hello_is_encoded_as_it_was_in_the_first_release() -> None:
    assert HELLO.encode() == bytes.fromhex(GOLDEN.read_text())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", "x" * 256),
        ("uuid", "0" * 31),
        ("uuid", "G" * 32),
        ("incarnation", 7),
        ("incarnation", "first"),
        ("role", "emperor"),
        ("addresses", ["a", 1]),
        ("addresses", ["a"] * 17),
        ("cluster_uuid", "abc"),
        ("version_min", 4),
        ("version_min", 0),
        ("version_max", "three"),
        ("version_max", True),
    ],
)
def test_a_hello_that_makes_no_sense_is_refused(field: str, value: object) -> None:
    table, _ = read_table(HELLO.encode(), 0)
    with pytest.raises(HelloError, match=field.removesuffix("_min").removesuffix("_max")):
        decode_hello(encode_table({**table, field: value}))


def test_a_hello_without_a_field_that_has_no_default_is_refused() -> None:
    table, _ = read_table(HELLO.encode(), 0)
    del table["uuid"]
    with pytest.raises(HelloError, match="uuid"):
        decode_hello(encode_table(table))


@given(st.binary(max_size=200))
def test_garbage_is_a_hello_error_and_nothing_else(data: bytes) -> None:
    try:
        decode_hello(data)
    except HelloError:
        pass


def test_too_much_is_refused_by_sender_and_receiver() -> None:
    with pytest.raises(HelloError, match="addresses"):
        replace(HELLO, addresses=("x" * HELLO_BYTES_MAX,)).encode()
    with pytest.raises(HelloError, match=str(HELLO_BYTES_MAX)):
        decode_hello(b"\0" * (HELLO_BYTES_MAX + 1))


@pytest.mark.parametrize(
    ("mine", "theirs", "version"),
    [((1, 1), (1, 1), 1), ((1, 1), (1, 2), 1), ((1, 3), (2, 5), 3), ((1, 1), (2, 2), 0)],
)
def test_the_newest_common_version_is_spoken(
    mine: tuple[int, int], theirs: tuple[int, int], version: int
) -> None:
    assert negotiated_version(mine, theirs) == version
    assert negotiated_version(theirs, mine) == version


def test_the_hash_of_primaries_knows_names_and_not_their_order() -> None:
    assert hash_primaries(["b1", "b2"]) == hash_primaries(["b2", "b1"])
    assert hash_primaries(["b1", "b2"]) != hash_primaries(["b1b", "2"])
    assert hash_primaries(["b1"]) != hash_primaries(["b1", "b2"])


def test_secondaries_never_vote() -> None:
    assert [replace(HELLO, role=role).votes() for role in ROLES] == [True, False, True]
    assert not replace(HELLO, role=SECONDARY).votes()
