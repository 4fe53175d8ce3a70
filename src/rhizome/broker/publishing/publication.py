"""Publication: a message that is being published, with what its properties ask for."""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from rhizome.broker.message import Message
from rhizome.broker.publishing.forward_port import Target
from rhizome.broker.queue.queue import Queue

NO_KEYS: Final[list[str]] = []


@final
class MessageOptions:
    """What the properties of one message ask for."""

    keys: list[str]
    headers: dict[str, object] | None
    delay_ms: i64
    held: bool
    """The message waits for its time, or is about one that does."""

    def __init__(self) -> None:
        self.keys = NO_KEYS
        self.headers = None
        self.delay_ms = 0
        self.held = False


class Publication:
    """A message that is being published. ``unrouted``: its queues only tap its exchange."""

    message: Message
    queues: list[Queue]
    targets: list[Target]
    mandatory: bool
    options: MessageOptions
    unrouted: bool

    def __init__(
        self,
        message: Message,
        queues: list[Queue],
        targets: list[Target],
        mandatory: bool,
        options: MessageOptions,
    ) -> None:
        self.message = message
        self.queues = queues
        self.targets = targets
        self.mandatory = mandatory
        self.options = options
        self.unrouted = False
