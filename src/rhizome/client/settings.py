"""What a client asks for in the handshake, and what both sides agree on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from rhizome.amqp.values import encode_table

CAPABILITIES: Final[dict[str, object]] = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
    "connection.redirect": True,
}


@dataclass(frozen=True, slots=True)
class Settings:
    """What the client asks for; the broker's tune may lower the limits."""

    user: str = "guest"
    password: str = field(default="guest", repr=False)
    vhost: str = "/"
    mechanism: str = "PLAIN"
    heartbeat_s: int = 60
    channel_max: int = 2047
    frame_bytes_max: int = 131_072
    client_properties: dict[str, object] = field(default_factory=dict, repr=False)
    """May have the cluster's token; shows itself nowhere."""
    capabilities: tuple[str, ...] = ()
    """Beside those that every client of this library has."""


def lower(offered: int, wished: int) -> int:
    """The lower of two limits, where 0 means none."""
    if offered == 0 or wished == 0:
        return offered or wished
    return min(offered, wished)


def response(settings: Settings) -> bytes:
    """The SASL response of the mechanism."""
    if settings.mechanism == "EXTERNAL":
        return b""
    if settings.mechanism == "AMQPLAIN":
        login: dict[str, object] = {"LOGIN": settings.user, "PASSWORD": settings.password}
        # AMQPLAIN is a table without its length.
        return encode_table(login)[4:]
    return b"\0" + settings.user.encode() + b"\0" + settings.password.encode()
