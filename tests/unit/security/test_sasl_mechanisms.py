"""What clients answer to connection.start."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhizome.broker.access.auth_interface import Peer
from rhizome.security.sasl_mechanisms import (
    COMMON_NAME,
    DISTINGUISHED_NAME,
    RESPONSE_BYTES_MAX,
    MechanismError,
    parse_amqplain,
    parse_external,
    parse_plain,
    parse_response,
)

PLAIN_PEER = Peer("10.0.0.1", 5000)


def longstr(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + b"S" + len(value).to_bytes(4, "big") + value


@pytest.mark.parametrize("identity", [b"", b"guest"])
def test_plain_carries_user_and_password(identity: bytes) -> None:
    credentials = parse_plain(identity + b"\0guest\0s3cret")
    assert (credentials.user, credentials.password) == ("guest", b"s3cret")


@pytest.mark.parametrize(
    "response",
    [b"", b"guest", b"guest\0guest", b"\0guest\0a\0b", b"\0\0password", b"root\0guest\0guest"],
)
def test_plain_of_another_shape_is_refused(response: bytes) -> None:
    with pytest.raises(MechanismError):
        parse_plain(response)


def test_user_of_any_bytes_survives() -> None:
    user = parse_plain(b"\0\xff\xfe\0x").user
    assert user.encode("utf-8", "surrogateescape") == b"\xff\xfe"


def test_password_is_not_in_the_repr() -> None:
    assert "s3cret" not in repr(parse_plain(b"\0guest\0s3cret"))


def test_amqplain_carries_user_and_password() -> None:
    credentials = parse_amqplain(longstr(b"LOGIN", b"guest") + longstr(b"PASSWORD", b"\xffpw"))
    assert (credentials.user, credentials.password) == ("guest", b"\xffpw")


@pytest.mark.parametrize(
    "response",
    [
        b"",
        longstr(b"LOGIN", b"guest"),
        longstr(b"PASSWORD", b"guest"),
        b"\x05LOGINt\x01" + longstr(b"PASSWORD", b"guest"),
        longstr(b"LOGIN", b"guest")[:-1],
        longstr(b"LOGIN", b"u" * 256) + longstr(b"PASSWORD", b"x"),
    ],
)
def test_amqplain_of_another_shape_is_refused(response: bytes) -> None:
    with pytest.raises(MechanismError):
        parse_amqplain(response)


@given(st.sampled_from(["PLAIN", "AMQPLAIN", "EXTERNAL", "SCRAM"]), st.binary(max_size=64))
def test_garbage_is_refused_and_nothing_worse(mechanism: str, response: bytes) -> None:
    try:
        credentials = parse_response(mechanism, response, PLAIN_PEER, COMMON_NAME)
    except MechanismError:
        return
    assert credentials.user


@pytest.mark.parametrize("mechanism", ["PLAIN", "AMQPLAIN"])
def test_oversized_response_is_refused(mechanism: str) -> None:
    response = b"\0" * (RESPONSE_BYTES_MAX + 1)
    with pytest.raises(MechanismError, match="maximum"):
        parse_response(mechanism, response, PLAIN_PEER, COMMON_NAME)


def test_external_takes_the_user_from_the_certificate() -> None:
    peer = Peer("10.0.0.1", 5000, False, True, "CN=app,O=Example", "app")
    assert parse_external(peer, COMMON_NAME).user == "app"
    assert parse_external(peer, DISTINGUISHED_NAME).user == "CN=app,O=Example"
    assert parse_external(peer, COMMON_NAME).password is None


@pytest.mark.parametrize(
    "peer",
    [
        PLAIN_PEER,
        Peer("10.0.0.1", 5000, False, True),
        Peer("10.0.0.1", 5000, False, True, "O=Example", ""),
    ],
)
def test_external_without_a_name_in_a_certificate_is_refused(peer: Peer) -> None:
    with pytest.raises(MechanismError):
        parse_external(peer, COMMON_NAME)
