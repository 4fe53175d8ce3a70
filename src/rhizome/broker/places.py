"""Places: where channels hold messages that somebody turns out to have settled, or to have taken
elsewhere.

Places are looked up for many messages at once, and are true as long as nothing is shown or settled:
within one frame. What an earlier home has shown is not held of this one: it is ready here until
that is resolved, so it has no place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from rhizome.broker.message import Message

if TYPE_CHECKING:
    from rhizome.broker.channel import Channel

Key = tuple[int, int]
"""A queue's id and an index in its log."""
Place = tuple["Channel", int]
"""A channel, and the tag under which it holds a message."""


def places_of(channels: list[Channel], wanted: dict[Key, None] | None = None) -> dict[Key, Place]:
    """Where channels hold what this broker has shown them: all of it, or what is ``wanted``."""
    places: dict[Key, Place] = {}
    for channel in channels:
        if wanted is not None and len(places) == len(wanted):
            break
        for tag in channel.unacked.tags():
            message = channel.unacked.message(tag)
            consumer = channel.unacked.consumer(tag)
            if message is not None and consumer is not None and consumer.proxy is None:
                key = (int(consumer.queue.id), int(message.index))
                if wanted is None or key in wanted:
                    places[key] = (channel, tag)
    return places


def take_held(channel: Channel, tag: i64) -> Message | None:
    """Take a delivery out of what a channel holds; it goes on counting as unacked in its queue."""
    message = channel.unacked.message(tag)
    consumer = channel.unacked.consumer(tag)
    if message is not None and consumer is not None:
        channel.unacked.forget(tag)
        consumer.unacked -= 1
    return message


def give_back_unseen(channel: Channel, tag: i64) -> None:
    """Put a delivery back that no application has seen."""
    message = channel.unacked.message(tag)
    consumer = channel.unacked.consumer(tag)
    if message is not None and consumer is not None:
        channel.unacked.forget(tag)
        consumer.unacked -= 1
        consumer.take_back(message)
