"""What a client asks for in the handshake, and what both sides agree on."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from rhizome import __version__
from rhizome.amqp.field_table import encode_table
from rhizome.client.connection_uri import Address

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
    """May contain the application token, so its repr is hidden."""
    capabilities: tuple[str, ...] = ()
    """Client properties in addition to those that every client of this library sends."""


def settings_for(
    address: Address,
    name: str,
    client_properties: Mapping[str, object],
    capabilities: tuple[str, ...] = (),
) -> Settings:
    """What a connection to this address asks for; `client_properties` override its own."""
    properties: dict[str, object] = {
        "product": "rhizome.client",
        "version": __version__,
        "platform": f"Python {platform.python_version()}",
        **client_properties,
    }
    if name or address.connection_name:
        properties["connection_name"] = name or address.connection_name
    if address.cluster_token:
        properties["cluster_token"] = address.cluster_token
    return Settings(
        user=address.user,
        password=address.password,
        vhost=address.vhost,
        mechanism=address.mechanism,
        heartbeat_s=address.heartbeat_s,
        channel_max=address.channel_max,
        frame_bytes_max=address.frame_bytes_max,
        client_properties=properties,
        capabilities=capabilities,
    )


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
