"""StreamGroupLog: the log of a stream as a GroupLog of the port. Compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from rhizome.amqp.primitives import u32_at
from rhizome.broker.group_log.log_port import GroupLog
from rhizome.broker.message import Message
from rhizome.broker.streams.offset_header import entry_flags, stamped
from rhizome.journal.record_replay import note_refused
from rhizome.journal.streams.stream_log import StreamLog

if TYPE_CHECKING:
    from rhizome.broker.streams.stream import Stream

STREAM_POSITION: Final = 1
"""The position of messages in a stream: they are on disk, but not in the journal."""


@final
class StreamGroupLog(GroupLog):
    """Invariant: the index of a message is its offset + 1, so that indexes begin with 1 here as in
    all logs. Every message is persistent, whatever its delivery mode says."""

    stream: Stream
    log: StreamLog
    _origin: i64
    _number: i64
    _filters: list[bytes]

    def __init__(self, stream: Stream, log: StreamLog, group: i64, epoch: i64) -> None:
        super().__init__(group, epoch, log.next + 1)
        self.stream = stream
        self.log = log
        self.numbered = True
        self.origins = log.origins
        self.starts = [(epoch, first + 1) for epoch, first in log.starts]
        self._origin = 0
        self._number = 0
        self._filters = []

    def append(self, message: Message, ids: list[int], durable: bool) -> None:
        origin = self._origin
        self._origin = 0
        self.append_from(message, ids, durable, origin, self._number)

    def take_from(self, origin: i64, number: i64) -> None:
        self._origin = origin
        self._number = number

    def taken(self) -> None:
        """A number without a message is not recorded: if it comes again, it has no effect again."""
        self._origin = 0

    def note_number(self, origin: i64, number: i64) -> None:
        if number == 0:
            self.stream.forget_origin(origin)

    def note_refused(self, origin: i64, number: i64) -> None:
        """Not recorded either: if it comes again, it is refused again."""
        note_refused(self.refused, origin, number)

    def append_from(
        self, message: Message, ids: list[int], durable: bool, origin: i64, number: i64
    ) -> None:
        log = self.log
        filters = self._filters
        content = stamped(message.content, log.next, filters)
        frame_bytes_max: i64 = u32_at(content, 3) + 8
        if message.frame_bytes_max > frame_bytes_max:
            frame_bytes_max = message.frame_bytes_max
        stream = self.stream
        if not log.touched:
            stream.begin_append()
        if stream.broker.streams.whole and not log.whole:
            log.begin_whole()
            stream.broker.streams.taking.append(self)
        identity = message.identity
        if identity is not None and not identity.is_kept():
            identity = None
        offset = log.append(
            message.route.tail,
            content,
            entry_flags(message.content),
            frame_bytes_max,
            stream.broker.turn.now_ms,
            origin,
            number,
            identity,
            filters.pop() if len(filters) > 0 else b"",
        )
        message.index = offset + 1
        message.position = STREAM_POSITION
        self.next_index = offset + 2
        if log.alone:
            self.committed_memory = offset + 1
        elif origin == 0:
            self.uncommitted.published(message, ids)

    def mark(self) -> i64:
        return self.next_index - 1

    def commit(self) -> i64:
        """A transaction is over: its messages are one chunk."""
        self.log.end_whole()
        return self.next_index - 1
