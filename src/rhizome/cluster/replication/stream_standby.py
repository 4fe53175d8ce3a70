"""Stream standby: speaks for the copy of a stream to the home of its epoch. Sans-IO; compiled.

A copy of a stream is a log of the same chunks (journal/streams/stream_log.py). So nothing has to be
compared: the copy says which chunk it has last, and gets the others. Before that it drops what the
home's log doesn't have:

- chunks after those that both histories share (L2). They were never committed: the home has all
  that was. What they had noted goes with them, since a log that is cut is read anew;
- everything, if the home has dropped what would come next by retention: then it begins where the
  home's log begins;
- segments that the home has dropped.

So a copy is at every moment a log that was the home's, and may be taken for whole. Only what the
copies that count have on disk is confirmed or shown, and none of that is ever cut off.
"""

from __future__ import annotations

from typing import final

from librt.strings import read_i64_be
from mypy_extensions import i64

from rhizome.broker.streams.active_streams import Streams
from rhizome.cluster.protocol.catalogue import FOLLOW
from rhizome.cluster.protocol.replication_codec import (
    HEAD_BYTES,
    RECORDS_BYTES,
    WHOLE,
    follow,
    number_in,
)
from rhizome.cluster.replication.epoch_history import common_end, from_same_epoch
from rhizome.cluster.replication.standby_group import FOLLOWING, StandbyGroup, StandbyGroupPort
from rhizome.errors import SyntaxErrorFault
from rhizome.journal.streams.stream_log import StreamLog


@final
class StreamStandby(StandbyGroup):
    """The standby of one stream. Invariant: `log` is the stream's in `streams`."""

    streams: Streams
    stream: i64
    log: StreamLog

    def __init__(
        self, group: i64, port: StandbyGroupPort, incarnation: str, streams: Streams, stream: i64
    ) -> None:
        log = streams.log_of(stream)
        super().__init__(group, port, incarnation, log.epoch)
        self.streams = streams
        self.stream = stream
        self.log = log

    def memory(self) -> i64:
        return self.log.number - 1

    def disk(self) -> i64:
        return self.log.durable

    def state(self) -> i64:
        return WHOLE

    def rests(self) -> bool:
        """There may be thousands of idle streams."""
        return self.phase != FOLLOWING or (self.disk() >= self.memory() and self.has_told_all())

    def invited(self, table: dict[str, object]) -> None:
        if not self._cut_back(number_in(table, "number")):
            self.give_up("what is to be dropped is still being written")
            return
        log = self.log
        if log.number < number_in(table, "number"):
            log.begin_at(
                number_in(table, "segment"), number_in(table, "number"), number_in(table, "offset")
            )
        self._keep_from(number_in(table, "segment"))
        self.follow_home()
        applied = self.link.applied()
        memory = self.memory()
        self.send(
            FOLLOW,
            follow(applied, self.group, self.epoch, self.incarnation, True, memory, log.next),
        )

    def _cut_back(self, first: i64) -> bool:
        """Drop what is not in the home's log, which begins with the chunk `first`; False if that
        can't be done yet."""
        log = self.log
        own, other = from_same_epoch(log.epochs, self.starts)
        end = common_end(own, log.number - 1, other)
        if end < first - 1:
            end = 0
        if end < log.number - 1:
            if not log.is_written():
                return False
            self.log = self.streams.cut(self.stream, end)
        return True

    def take_records(self, data: bytes, start: i64, end: i64) -> None:
        if self.phase != FOLLOWING:
            raise SyntaxErrorFault("chunks came before the copy of the stream follows")
        log = self.log
        first: i64 = read_i64_be(data, start + HEAD_BYTES)
        last: i64 = read_i64_be(data, start + HEAD_BYTES + 8)
        if first != log.number:
            raise SyntaxErrorFault(f"chunks from {first} on came after {log.number - 1}")
        # This comes first, so that what was taken before an error is found is written, too.
        self.streams.touch(log)
        log.follow(data, start + RECORDS_BYTES, end)
        if log.number - 1 != last:
            raise SyntaxErrorFault(f"chunks up to {last} end with {log.number - 1}")
        if log.kept_from > 0:
            self._keep_from(log.kept_from)
            log.kept_from = 0

    def _keep_from(self, segment: i64) -> None:
        dead = self.log.keep_from(segment)
        if len(dead) > 0:
            self.streams.port.remove_segments(self.log, dead)
