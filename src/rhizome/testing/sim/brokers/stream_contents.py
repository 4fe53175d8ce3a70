"""What a broker's node has of streams, for the checkers that look into logs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rhizome.amqp.frames import body_of as body_of_content
from rhizome.broker.streams.stream_restrictions import is_stream
from rhizome.cluster.node import Node
from rhizome.cluster.state.cluster_commands import Member
from rhizome.journal.streams.stream_format import (
    CHUNK_HEADER_BYTES,
    KIND_MESSAGES,
    STREAM_HEADER_BYTES,
    ChunkHead,
    entries_of,
)
from rhizome.journal.streams.stream_log import StreamLog


@dataclass(frozen=True)
class StreamContents:
    """The log of a stream at a broker, at this instant.

    `is_home`: the stream is active there, in `epoch`, and waits for the copies at `members`.
    `shows`: it shows what is committed, which it knows. `counts_in`: the epoch in which it counts
    as a copy, as far as it knows itself; 0 if it doesn't.
    """

    broker: str
    incarnation: str
    stream: str
    is_home: bool
    shows: bool
    epoch: int
    members: tuple[Member, ...]
    log: StreamLog
    counts_in: int = 0

    def is_all_committed(self) -> bool:
        """Whether everything that the log has is committed, positions of readers included."""
        log = self.log
        committed = (log.committed_segment, log.committed_position)
        return log.is_written() and committed == (log.active.number, log.active.size)


def streams_of(node: Node) -> list[StreamContents]:
    """The logs of all streams at a broker, of which it is home or has a copy."""
    found = []
    me, streams = node.me, node.broker.streams
    for queue in node.broker.shared.values():
        log = streams.logs.get(queue.id) if is_stream(queue.options) else None
        if log is None:
            continue
        home = node.roles.homes.get(queue.definition.group)
        is_home = home is not None and queue.stream is not None
        found.append(
            StreamContents(
                me.name,
                me.incarnation,
                queue.name,
                is_home,
                home is not None and is_home and not home.log.still,
                0 if home is None else int(home.log.epoch),
                () if home is None else home.group.in_sync,
                log,
                _counts_in(node, int(queue.definition.group)),
            )
        )
    return found


def _counts_in(node: Node, number: int) -> int:
    group = node.state.groups.groups.get(number)
    member = None if group is None else group.member(node.me.name)
    if group is None or member is None or member.incarnation != node.me.incarnation:
        return 0
    return group.epoch


def shown_from(log: StreamLog, offset: int) -> Iterator[tuple[int, bytes]]:
    """Offsets and bodies of what a log may show, from an offset on."""
    place = log.find(max(offset, int(log.first)))
    segment, position = int(place.segment), int(place.position)
    while segment:
        end = int(log.end_of(segment))
        data = log.files.read(log.id, segment, position, max(end - position, 0))
        at = 0
        while at + CHUNK_HEADER_BYTES <= len(data):
            head = ChunkHead(data, at)
            if head.kind == KIND_MESSAGES:
                for entry in entries_of(data, at, head):
                    if entry.offset >= offset:
                        yield int(entry.offset), body_of_content(bytes(entry.content))
            at += int(head.size)
        if segment >= log.committed_segment:
            return
        segment, position = int(log.segment_after(segment)), STREAM_HEADER_BYTES
