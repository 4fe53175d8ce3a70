"""Reply codes of the broker as exceptions of `rhizome.errors`."""

from __future__ import annotations

from typing import Final

from rhizome.errors import AmqpError, ChannelError, ConnectionFault, InternalFault


def _by_code(base: type[AmqpError]) -> dict[int, type[AmqpError]]:
    return {leaf.code: leaf for leaf in base.__subclasses__() if leaf.code}


_OF_CHANNELS: Final = _by_code(ChannelError)
_OF_CONNECTIONS: Final = _by_code(ConnectionFault)


def channel_error(code: int, text: str, class_id: int, method_id: int) -> AmqpError:
    """The exception for a channel.close."""
    return _error(
        _OF_CHANNELS.get(code) or _OF_CONNECTIONS.get(code), code, text, class_id, method_id
    )


def connection_error(code: int, text: str, class_id: int, method_id: int) -> AmqpError:
    """The exception for a connection.close."""
    return _error(
        _OF_CONNECTIONS.get(code) or _OF_CHANNELS.get(code), code, text, class_id, method_id
    )


def _error(
    kind: type[AmqpError] | None, code: int, text: str, class_id: int, method_id: int
) -> AmqpError:
    """Texts come as "NAME - what happened"; the name is the class, so only the rest is kept."""
    if kind is None:
        return InternalFault(f"reply code {code}: {text}", class_id, method_id)
    return kind(text.removeprefix(f"{kind.name} - "), class_id, method_id)
