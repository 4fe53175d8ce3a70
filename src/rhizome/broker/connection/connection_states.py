"""The states of a connection, in the order it passes through them."""

from __future__ import annotations

from typing import Final

HEADER: Final = 0
"""The protocol header is expected."""
STARTING: Final = 1
"""connection.start was sent."""
AUTHENTICATING: Final = 2
"""The client's credentials are being verified."""
TUNING: Final = 3
"""connection.tune was sent."""
OPENING: Final = 4
"""connection.tune-ok came."""
RUNNING: Final = 5
"""connection.open-ok was sent."""
CLOSING: Final = 6
"""We sent connection.close and wait for close-ok."""
CLOSED: Final = 7
"""Nothing more is read."""
