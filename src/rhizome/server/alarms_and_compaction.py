"""Maintenance: what a broker does besides serving: alarms, checkpoints, compaction."""

from __future__ import annotations

import gc
import logging
from typing import Final

from rhizome.broker.broker import Broker
from rhizome.broker.message import Message
from rhizome.broker.queue.checkpoint_live_messages import (
    journaled_indexes,
    resident_in,
    unacked_indexes,
)
from rhizome.broker.queue.damaged_messages import is_placeholder
from rhizome.broker.queue.queue import Queue
from rhizome.broker.queue.redelivered_flag import shown_of
from rhizome.journal import compaction
from rhizome.journal.checkpoint import CheckpointBuilder
from rhizome.journal.errors import CorruptRecord
from rhizome.journal.journal import Journal
from rhizome.journal.paged_index import PagedIndex
from rhizome.journal.store import Store
from rhizome.management.metrics.process_stats import (
    machine_memory_bytes,
    processors_waited_for_us,
    resident_set_bytes,
)
from rhizome.server.allocator_and_file_limits import trim_malloc
from rhizome.server.config.broker_config import Config
from rhizome.server.event_loop.broker_driver import Shell

logger = logging.getLogger("rhizome.maintenance")

HYSTERESIS: Final = 0.9
"""An alarm ends when use has fallen to this fraction of the limit that raised it."""
RESTING_BYTES_MIN: Final = 16 * 1024 * 1024
"""How many bytes must have been appended since the last checkpoint, or would be freed by the next,
for a checkpoint in a quiet moment."""
UNFINISHED_PART: Final = 4
"""Contents that are unfinished, or not committed, may use at most one n-th of the memory."""
SEGMENTS_FREE_MIN: Final = 2
LOW_ON_DISK: Final = "low on disk:"
FROZEN_STATE_BYTES: Final = 1 << 20
"""When the cluster state has grown by this much (some thousand queues), its objects are frozen, so
that the garbage collector no longer visits them: they live long, and a visit to those of 60,000
queues takes half a second. Garbage that exists at that moment stays for ever; there is little of
it."""


class Maintenance:
    """Called about once a second by the application."""

    def __init__(self, config: Config, broker: Broker, store: Store, shell: Shell) -> None:
        self.broker = broker
        self.store = store
        self.shell = shell
        self.configure(config)
        self.disk_alarm = self.alarm_of_copies = ""
        self.segment = 0
        self.damaged: set[int] = set()
        self.appended_last = 0
        self.frozen_state_bytes = broker.state.sizes.total

    def configure(self, config: Config) -> None:
        """Take the limits of memory and disk from a configuration."""
        self.memory_max_bytes = config.memory.high_watermark.of(machine_memory_bytes())
        # Contents that never end must not keep the memory alarm up by themselves.
        self.broker.contents.budget = min(
            config.limits.unfinished_bytes_max, self.memory_max_bytes // UNFINISHED_PART
        )
        # Space is taken by whole segments: without one there is no room for acks, which make room.
        least = SEGMENTS_FREE_MIN * int(self.store.journal.segment_bytes_max)
        free_min_bytes = config.disk.free_min_bytes
        is_watched = free_min_bytes > 0 and not config.broker.memory
        self.disk_free_min_bytes = max(free_min_bytes, least) if is_watched else 0

    def run(self) -> None:
        self.shell.busy_poll.processors_waited_for(processors_waited_for_us())
        self.check_alarms()
        self.freeze_state()
        self.compact()
        if self._checkpoint_pays():
            self.checkpoint()

    def freeze_state(self) -> None:
        """Freeze what was declared since the last time, if it was much."""
        total = self.broker.state.sizes.total
        if total - self.frozen_state_bytes >= FROZEN_STATE_BYTES:
            gc.freeze()
            self.frozen_state_bytes = total
        self.frozen_state_bytes = min(self.frozen_state_bytes, total)

    def _checkpoint_pays(self) -> bool:
        """Whether a checkpoint is due, or cheap because nothing else happens, or needed for space.

        Only checkpoints free segments. While publishers wait for the disk hardly anything is
        appended, so a queue that is purged or consumed then would never give its space back.
        """
        appended = int(self.store.journal.bytes_appended)
        rests = appended == self.appended_last
        self.appended_last = appended
        if self.store.checkpoint_due():
            return True
        written = self.store.uncheckpointed_bytes()
        if written == 0:
            return False
        if self.shell.alarm.startswith(LOW_ON_DISK):
            return self.store.removable_bytes() > 0
        return rests and (
            written >= RESTING_BYTES_MIN or self.store.removable_bytes() >= RESTING_BYTES_MIN
        )

    # ---- alarms ---------------------------------------------------------------------------------

    def check_alarms(self) -> None:
        """Block publishers while memory or disk runs short, with the reason. The cluster is told
        about the disk: another broker may have a copy, and room.

        Publishers also wait for a disk that has copies of what is here and that messages fill: it
        would fill up on their behalf, and then nobody could even ack what is there.
        """
        disk_alarm = self.disk_alarm or self._disk_alarm()
        fills = disk_alarm != "" and self._would_drain()
        if (disk_alarm != "", fills) != (self.broker.disk_full, self.broker.backlog_fills_disk):
            self.broker.disk_full = disk_alarm != ""
            self.broker.backlog_fills_disk = fills
            self.shell.begin_turn()
            self.broker.cluster.tell_news()
        self.alarm_of_copies = self.broker.cluster.alarm_of_copies()
        self.shell.set_alarm(self._memory_alarm() or disk_alarm or self.alarm_of_copies)

    def tick(self) -> None:
        """Check the alarms at once if the journal has begun a segment, or a disk that has copies
        fills up: in a second a disk may take more than it has left."""
        segment = int(self.store.journal.active_segment())
        if segment != self.segment or self.alarm_of_copies != self.broker.cluster.alarm_of_copies():
            self.segment = segment
            self.check_alarms()

    def _would_drain(self) -> bool:
        """Whether the disk would have room if all messages here were consumed."""
        gained = self.store.journal.closed_bytes() + self.store.spill.closed_bytes()
        wanted = int(self.disk_free_min_bytes / HYSTERESIS)
        return self.store.free_bytes() + int(gained) >= wanted

    def _memory_alarm(self) -> str:
        limit = self.memory_max_bytes
        if self.shell.alarm.startswith("low on memory"):
            limit = int(limit * HYSTERESIS)
        used = resident_set_bytes()
        if used >= limit:
            # The C library keeps freed memory; getting that back may be enough.
            trim_malloc()
            used = resident_set_bytes()
        if max(used, int(self.broker.pager.resident_bytes)) < limit:
            return ""
        end = int(self.memory_max_bytes * HYSTERESIS)
        return f"low on memory: publishers wait until less than {end >> 20} MiB are in use"

    def _disk_alarm(self) -> str:
        limit = self.disk_free_min_bytes
        if limit == 0:
            return ""
        if self.shell.alarm.startswith(LOW_ON_DISK):
            limit = int(limit / HYSTERESIS)
        free = self.store.free_bytes()
        if free >= limit:
            return ""
        end = int(self.disk_free_min_bytes / HYSTERESIS)
        return f"{LOW_ON_DISK} publishers wait until at least {end >> 20} MiB are free"

    # ---- checkpoints ----------------------------------------------------------------------------

    def checkpoint(self) -> None:
        self.shell.begin_turn()
        self.broker.end_turn()
        self.shell.submit()
        self.store.checkpoint(self.build_checkpoint())

    def build_checkpoint(self) -> CheckpointBuilder:
        """Build a checkpoint of the journal as it is now."""
        builder = self.store.begin_checkpoint()
        builder.state(self.broker.state.snapshot())
        for log in self.broker.logs.values():
            end = int(log.next_index) - 1
            builder.group(int(log.group), int(log.epoch), end, log.starts, log.origins, log.refused)
        unacked = unacked_indexes(self.broker)
        for queue in recorded_queues(self.broker):
            group = int(queue.log.group)
            size = int(queue.durable_bytes)
            counts = dict(queue.counts)
            leases = self.broker.leases.packed(queue)
            builder.queue(queue.id, group, size, counts, queue.seen, shown_of(queue), leases)
            for priority, index in journaled_indexes(queue, unacked):
                builder.entries(priority, index)
        self.broker.cluster.write_checkpoint(builder)
        return builder

    # ---- compaction -----------------------------------------------------------------------------

    def compact(self) -> None:
        """Move the last messages out of segments that are mostly dead, a little at a time."""
        for journal in (self.store.journal, self.store.spill):
            # Messages that are set aside stay where they are, and their segment with them.
            stay = self.damaged | self.broker.damage.segments()
            sparse = compaction.choose_victims(journal.segments(), count_max=1 + len(stay))
            for segment in [each for each in sparse if each not in stay][:1]:
                try:
                    self._empty(journal is self.store.spill, segment)
                except CorruptRecord as error:
                    # Left as it is: what is still readable there is still served from there.
                    self.damaged.add(segment)
                    logger.error("segment %d is damaged and is not compacted: %s", segment, error)

    def _empty(self, spill: bool, segment: int) -> None:
        journal = self.store.spill if spill else self.store.journal
        for queue_id, paged in self.broker.cluster.passive_indexes():
            self._relocate(queue_id, paged, segment, journal)
        for queue in all_queues(self.broker):
            for lane in queue.lanes:
                self._relocate(int(queue.id), lane.paged, segment, journal)
            for message in resident_in(queue, segment, queue.unacked > 0):
                if spill:
                    # It is in memory anyway: the copy on disk is not needed.
                    self.store.spill.release(message.position)
                    message.position = 0
                elif queue.recorded:
                    self._move(queue, message)
        self.shell.begin_turn()

    def _relocate(self, queue_id: int, paged: PagedIndex, segment: int, journal: Journal) -> None:
        step = compaction.plan(queue_id, paged, segment)
        if step is not None:
            compaction.apply(step, self.store.fetch(step.entries), paged, journal)

    def _move(self, queue: Queue, message: Message) -> None:
        """Write a message in memory again.

        A message that several durable queues share stays where it is: each of them would need a
        position of its own.
        """
        if message.shared or is_placeholder(message):
            return
        old = message.position
        message.position = self.store.journal.moved(
            queue.log.group,
            queue.log.epoch,
            message.index,
            [int(queue.id)],
            message.route.tail,
            message.arrived_ms,
            message.expiration_ms,
            message.priority,
            0,
            message.content,
        )
        self.store.journal.release(old)


def all_queues(broker: Broker) -> list[Queue]:
    found = [
        destination
        for vhost in broker.state.vhosts.values()
        for destination in vhost.destinations.values()
        if isinstance(destination, Queue)
    ]
    return [*found, *broker.internal.values()]


def recorded_queues(broker: Broker) -> list[Queue]:
    return [queue for queue in all_queues(broker) if queue.recorded and queue.is_kept_here()]
