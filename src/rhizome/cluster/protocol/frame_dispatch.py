"""Frame dispatch: the table of handlers by frame number, from which the reader of a link
dispatches.

A frame costs one lookup in the table and one call. Frames that come once per message have handlers
of their own, which are compiled; the others have one that calls a function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64, mypyc_attr

from rhizome.cluster.protocol.catalogue import FRAME_NUMBERS, FRAMES, HELLO, RESERVED_FOR_LINKS
from rhizome.errors import CommandInvalid

if TYPE_CHECKING:
    from rhizome.cluster.link.link import Link

LAST_NUMBER: Final = FRAME_NUMBERS - 1
"""Where the table has the handler of all larger numbers."""


@mypyc_attr(allow_interpreted_subclasses=True)
class FrameHandler:
    """Takes the frames of one number.

    ``data`` is shared with other frames: a handler that keeps something copies it.
    """

    def take(self, link: Link, number: i64, data: bytes, start: i64, end: i64) -> None:
        """A frame came; its payload is data[start:end]."""
        raise NotImplementedError


@final
class PayloadHandler(FrameHandler):
    """Calls a function with the link and a copy of the payload."""

    function: Callable[[Link, bytes], None]

    def __init__(self, function: Callable[[Link, bytes], None]) -> None:
        super().__init__()
        self.function = function

    def take(self, link: Link, number: i64, data: bytes, start: i64, end: i64) -> None:
        self.function(link, data[start:end])


@final
class SpanHandler(FrameHandler):
    """Calls a function with the name of the sender and where the payload is: nothing is copied."""

    function: Callable[[str, bytes, int, int], None]

    def __init__(self, function: Callable[[str, bytes, int, int], None]) -> None:
        super().__init__()
        self.function = function

    def take(self, link: Link, number: i64, data: bytes, start: i64, end: i64) -> None:
        self.function(link.name, data, start, end)


@final
class HelloHandler(FrameHandler):
    """HELLO is for the links themselves."""

    def take(self, link: Link, number: i64, data: bytes, start: i64, end: i64) -> None:
        link.owner.hello_came(link, data[start:end])


@final
class IgnoredFrame(FrameHandler):
    """An unknown frame about the link itself: what a later release says there may be ignored."""

    def take(self, link: Link, number: i64, data: bytes, start: i64, end: i64) -> None:
        pass


@final
class UnknownFrame(FrameHandler):
    """An unknown frame ends the link: a broker that skipped it would differ from the others."""

    def take(self, link: Link, number: i64, data: bytes, start: i64, end: i64) -> None:
        raise CommandInvalid(f"this release doesn't know frame {number} between brokers")


@final
class FrameTable:
    """The handlers of frames by number.

    Invariant: ``handlers`` has `FRAME_NUMBERS` entries, and the one at a number takes the frames of
    that number; frames without a handler have ``unknown``.
    """

    handlers: list[FrameHandler]
    unknown: FrameHandler

    def __init__(self, unknown: FrameHandler | None = None) -> None:
        """``unknown``: takes the frames without a registered handler."""
        if unknown is None:
            unknown = UnknownFrame()
        self.unknown = unknown
        ignored = IgnoredFrame()
        self.handlers = [
            ignored if number < RESERVED_FOR_LINKS else unknown for number in range(FRAME_NUMBERS)
        ]
        self.handlers[HELLO] = HelloHandler()

    def register(self, number: int, handler: FrameHandler) -> None:
        """Have a handler take the frames of a number, on links that are opened from now on."""
        if number not in FRAMES:
            raise ValueError(f"frame {number} is not in the catalogue of frames")
        if self.has(number):
            raise ValueError(f"frame {FRAMES[number].name} has a handler already")
        self.handlers[number] = handler

    def has(self, number: int) -> bool:
        """Whether a frame has a handler."""
        handler = self.handlers[number]
        return handler is not self.unknown and not isinstance(handler, IgnoredFrame)

    def copy(self) -> FrameTable:
        """The same handlers, to which others can be added."""
        made = FrameTable(self.unknown)
        made.handlers = list(self.handlers)
        return made
