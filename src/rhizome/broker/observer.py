"""Observer: the events that the core reports to the shell, which logs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import mypyc_attr

from rhizome.errors import AmqpError

if TYPE_CHECKING:
    from rhizome.broker.channel.channel import Channel
    from rhizome.broker.channel.consumer import Consumer
    from rhizome.broker.cluster_port import Waiter
    from rhizome.broker.connection.connection import Connection
    from rhizome.broker.message import Message
    from rhizome.broker.metadata.metadata_changes import Outcome
    from rhizome.broker.metadata.metadata_commands import Command
    from rhizome.broker.publishing.publication import Publication
    from rhizome.broker.queue.queue import Queue


@mypyc_attr(allow_interpreted_subclasses=True)
class Observer:
    """Does nothing; the shell overrides the events that it wants."""

    def connection_opened(self, connection: Connection) -> None:
        pass

    def connection_closed(self, connection: Connection) -> None:
        pass

    def connection_failed(self, connection: Connection, error: AmqpError) -> None:
        pass

    def channel_failed(self, channel: Channel, error: AmqpError) -> None:
        pass

    def login_refused(self, connection: Connection, reason: str) -> None:
        pass

    def key_disclosed(self, connection: Connection) -> None:
        """An application has sent the cluster key itself."""

    def topology_changed(
        self, connection: Connection, command: Command, private: bool, error: AmqpError | None
    ) -> None:
        """An application changed queues, exchanges or bindings, or was refused; ``private``: this
        is about an exclusive queue of its own."""

    def queue_purged(self, connection: Connection, queue: Queue, count: int) -> None:
        pass

    def publishers_blocked(self, reason: str) -> None:
        pass

    def consumer_timed_out(self, consumer: Consumer) -> None:
        pass

    def letter_dropped(self, vhost: str, queue: str, error: AmqpError) -> None:
        """A dead letter or a delayed message can't be routed within the limits."""

    def message_damaged(self, queue: Queue, index: int, reason: str) -> None:
        """A message can't be read, and is set aside."""

    def copy_damaged(self, queue_id: int, index: int, reason: str) -> None:
        """A message in a copy kept here, whose home is elsewhere, can't be read."""

    def message_repaired(self, queue: Queue, index: int) -> None:
        """A message could not be read, and was restored from a copy."""

    def readers_left_behind(self, queue: Queue, unread: dict[bytes, int], dropped: bool) -> None:
        """Retention is about to drop messages of a stream, or has ``dropped`` them, that named
        readers have not read; the counts are per reader."""

    def reader_expired(self, queue: Queue, name: bytes) -> None:
        """The position of a named reader of a stream is forgotten, because it was not used."""

    def bug(self, error: BaseException, where: str) -> None:
        pass


@mypyc_attr(allow_interpreted_subclasses=True)
class EventSink:
    """Is told what happens at this broker, for exchange amq.rabbitmq.event. It notes what somebody
    has bound a queue for; ``pending`` says that there is something to publish."""

    pending: bool

    def __init__(self) -> None:
        self.pending = False

    def changed(self, command: Command, outcome: Outcome, waiter: Waiter | None) -> None:
        """A command of this broker is committed and applied everywhere. ``waiter`` was told."""

    def connection_opened(self, connection: Connection) -> None:
        pass

    def connection_closed(self, connection: Connection) -> None:
        pass

    def login_refused(self, connection: Connection, reason: str) -> None:
        pass

    def channel_opened(self, channel: Channel) -> None:
        pass

    def channel_closed(self, channel: Channel) -> None:
        pass

    def consumer_added(self, consumer: Consumer) -> None:
        pass

    def consumer_removed(self, consumer: Consumer) -> None:
        pass

    def alarm(self, reason: str) -> None:
        """Publishers are blocked for this reason, or with an empty one no longer."""

    def end_turn(self) -> None:
        """Publish what was noted."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Tracer:
    """Is told of each publish and delivery of the vhosts that are traced. There is one only while a
    vhost is: nothing asks for it otherwise."""

    def published(self, channel: Channel, publication: Publication) -> None:
        """A client has published a message."""
        raise NotImplementedError

    def delivered(
        self, channel: Channel, message: Message, queue: Queue, redelivered: bool
    ) -> None:
        """A message goes to a client."""
        raise NotImplementedError

    def end_turn(self) -> None:
        """Publish what was noted in this turn."""
        raise NotImplementedError
