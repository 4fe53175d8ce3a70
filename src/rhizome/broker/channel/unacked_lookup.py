"""Unacked lookup: finds the channel and delivery tag under which messages are held.

It is used for messages that turn out to be settled, or taken, through another broker. Many messages
are looked up at once, and the result holds only within one frame, until something is delivered or
settled. Deliveries of an earlier home are not found: the message is ready here until that delivery
is resolved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from rhizome.broker.message import Message

if TYPE_CHECKING:
    from rhizome.broker.channel.channel import Channel

Key = tuple[int, int]
"""A queue's id and an index in its log."""
Place = tuple["Channel", int]
"""A channel, and the tag under which it holds a message."""


def places_of(channels: list[Channel], wanted: dict[Key, None] | None = None) -> dict[Key, Place]:
    """Where channels hold messages that this broker delivered: all of them, or those ``wanted``."""
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
    """Take a delivery out of a channel; the message goes on counting as unacked in its queue."""
    message = channel.unacked.message(tag)
    consumer = channel.unacked.consumer(tag)
    if message is not None and consumer is not None:
        channel.unacked.forget(tag)
        consumer.unacked -= 1
    return message


def give_back_unseen(channel: Channel, tag: i64) -> None:
    """Put back a delivery that no application has seen."""
    message = channel.unacked.message(tag)
    consumer = channel.unacked.consumer(tag)
    if message is not None and consumer is not None:
        channel.unacked.forget(tag)
        consumer.unacked -= 1
        consumer.take_back(message)
