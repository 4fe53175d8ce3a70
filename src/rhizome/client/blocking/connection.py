"""A connection whose calls wait."""

from __future__ import annotations

from rhizome.client import connection as async_connection
from rhizome.client.blocking.channel import Channel
from rhizome.client.blocking.event_loop_thread import Attribute, Opened, opened_by, opens


class Connection(Opened[async_connection.Connection]):
    """A connection whose calls wait. Connects when it is made; see `rhizome.client.connect`.

    Callbacks (`on_blocked`, `on_return`) run in the connection's own thread and must not call
    back into it.
    """

    is_open = Attribute[bool]()
    server_properties = Attribute[dict[str, object]]()
    blocked_reason = Attribute[str | None]()
    channel = opens(async_connection.Connection.channel, Channel)

    @opened_by(async_connection.connect)
    def __init__(self) -> None:
        """Connect; takes what `rhizome.client.connect` takes."""
