"""SASL mechanisms: what a client's answer to connection.start says about who it is.

PLAIN and AMQPLAIN carry a user and a password, EXTERNAL nothing of use: its user is in the verified
client certificate. The texts of `MechanismError` are for the log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from rhizome.amqp.field_table import decode_table
from rhizome.broker.access.auth_interface import Peer
from rhizome.errors import RhizomeError, SyntaxErrorFault

PLAIN: Final = "PLAIN"
AMQPLAIN: Final = "AMQPLAIN"
EXTERNAL: Final = "EXTERNAL"

COMMON_NAME: Final = "common-name"
DISTINGUISHED_NAME: Final = "distinguished-name"

USER_BYTES_MAX: Final = 255
RESPONSE_BYTES_MAX: Final = 16 * 1024


class MechanismError(RhizomeError):
    """The response of a client that doesn't follow its mechanism."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user and the password that is to prove it; None when a certificate already has.

    ``bearer``: the password is said to be an access token, and can be nothing else."""

    user: str
    password: bytes | None = field(repr=False)
    bearer: bool = False


def parse_plain(response: bytes) -> Credentials:
    """RFC 4616: authorization identity, NUL, user, NUL, password.

    The first may be empty or the user itself; acting for somebody else isn't supported, and to
    ignore the wish would be worse than to refuse it.
    """
    _check_size(response)
    parts = response.split(b"\0")
    if len(parts) != 3:
        raise MechanismError(
            f"PLAIN response has {len(parts) - 1} NUL octets; 2 separate identity, user, password"
        )
    identity, user, password = parts
    if identity and identity != user:
        raise MechanismError("PLAIN response asks to act for another user, which isn't supported")
    return Credentials(_user(user), password)


def parse_amqplain(response: bytes) -> Credentials:
    """A field table without its length, with the long strings LOGIN and PASSWORD."""
    _check_size(response)
    try:
        table = decode_table(response, 0, len(response))
    except SyntaxErrorFault as fault:
        raise MechanismError(f"AMQPLAIN response is no field table: {fault.text}") from None
    return Credentials(_user(_entry(table, "LOGIN")), _entry(table, "PASSWORD"))


def parse_external(peer: Peer, user_from: str) -> Credentials:
    """The user named by the verified client certificate of `peer`."""
    if not peer.tls:
        raise MechanismError("EXTERNAL needs a TLS connection")
    if not peer.certificate_subject:
        raise MechanismError("EXTERNAL needs a client certificate that the broker could verify")
    name = peer.certificate_name if user_from == COMMON_NAME else peer.certificate_subject
    if not name:
        raise MechanismError(
            f"the certificate of {peer.certificate_subject!r} has no {user_from} to name a user"
        )
    return Credentials(_user(name.encode("utf-8", "surrogateescape")), None)


def parse_response(
    mechanism: str, response: bytes, peer: Peer, external_user_from: str
) -> Credentials:
    if mechanism == PLAIN:
        return parse_plain(response)
    if mechanism == AMQPLAIN:
        return parse_amqplain(response)
    if mechanism == EXTERNAL:
        return parse_external(peer, external_user_from)
    raise MechanismError(f"mechanism {mechanism[:32]!r} isn't offered")


def _check_size(response: bytes) -> None:
    if len(response) > RESPONSE_BYTES_MAX:
        raise MechanismError(
            f"login response of {len(response)} bytes; the maximum is {RESPONSE_BYTES_MAX}"
        )


def _entry(table: dict[str, object], name: str) -> bytes:
    value = table.get(name)
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(value, bytes):
        return value
    raise MechanismError(f"AMQPLAIN response has no string {name}")


def _user(raw: bytes) -> str:
    if not raw:
        raise MechanismError("the user name is empty")
    if len(raw) > USER_BYTES_MAX:
        raise MechanismError(f"the user name has {len(raw)} bytes; the maximum is {USER_BYTES_MAX}")
    return raw.decode("utf-8", "surrogateescape")
