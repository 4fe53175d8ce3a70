"""Random histories with crashes against a naive model.

The property: whatever is recovered after a crash is what some prefix of the history amounts to, and
that prefix has everything that had been synced. So what was durable is there, once, in order; what
was durably dequeued isn't; a transaction is there as a whole or not at all.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhizome.journal import checkpoint as checkpoints
from rhizome.journal import compaction
from rhizome.journal.checkpoint import CheckpointBuilder
from rhizome.journal.dedup_state import DedupIdentity, DedupState
from rhizome.journal.journal import Journal, SegmentWrite
from rhizome.journal.paged_index import PagedIndex
from rhizome.journal.records import decode_message, enqueue_record
from rhizome.journal.recovery import Recovered, recover
from tests.unit.journal.crashing_files import CrashingFiles

UUID = bytes(range(16))
SEGMENT_BYTES = 4096
Body = tuple[int, int, int]  # checksum of the content, priority, delivery count


@dataclass
class State:
    """What ought to be in the journal: queue id -> message index -> body."""

    queues: dict[int, dict[int, Body]] = field(default_factory=dict)
    commands: list[bytes] = field(default_factory=list)
    accepted: dict[int, set[int]] = field(default_factory=dict)

    def live(self) -> dict[int, dict[int, Body]]:
        return {queue: bodies for queue, bodies in self.queues.items() if bodies}


class Machine:
    """A broker reduced to its use of the journal, on a disk that can crash."""

    def __init__(self, files: CrashingFiles, recovered: Recovered, state: State) -> None:
        self.files = files
        self.state = state
        self.journal = Journal(UUID, SEGMENT_BYTES, recovered.next_segment)
        for count in recovered.segments:
            self.journal.adopt(count.segment, count.live, count.total, count.size)
        self.journal.checkpointed(recovered.checkpoint_position, recovered.checkpoint_references)
        self.paged: dict[tuple[int, int], PagedIndex] = {}
        for queue in recovered.queues.values():
            for priority, level in queue.levels.items():
                self.paged[(queue.queue_id, priority)] = level
        self.seen = {q.queue_id: q.seen for q in recovered.queues.values() if q.seen is not None}
        group = recovered.groups.get(0)
        self.next_index = int(group.index) + 1 if group else 1
        self.sizes = dict(content_sizes(recovered, files))
        self.start = int(self.journal.end_position())
        self.written = self.start
        self.synced = self.start
        self.waiting: list[SegmentWrite] = []
        self.history: list[tuple[int, State]] = [(self.start, copy.deepcopy(state))]

    # --- operations ---

    def enqueue(self, queues: set[int], size: int, priority: int) -> None:
        index = self.next_index
        self.next_index += 1
        content = b"%d" % index + bytes([index % 251 + 1]) * size
        ids = sorted(queues)
        position = self.journal.enqueue(0, 1, index, ids, b"\0\0", 5, -1, priority, 1, content)
        self._enqueued(ids, index, position, content, priority)

    def _enqueued(
        self, ids: list[int], index: int, position: int, content: bytes, priority: int
    ) -> None:
        for queue in ids:
            self.state.queues.setdefault(queue, {})[index] = (crc32(content), priority, 0)
            self.sizes[index] = len(content)
            self.paged.setdefault((queue, priority), PagedIndex()).append(index, position)

    def dequeue(self, queue: int, every: int) -> None:
        bodies = self.state.queues.get(queue, {})
        gone = list(bodies)[::every]
        if gone:
            self.journal.dequeue(0, 1, queue, gone[::-1])
            for index in gone:
                self._forget(queue, index)

    def _forget(self, queue: int, index: int) -> None:
        priority = self.state.queues[queue].pop(index)[1]
        position = self.paged[(queue, priority)].remove(index)
        assert position != 0
        self.journal.release(position)

    def requeue(self, queue: int, count: int) -> None:
        bodies = self.state.queues.get(queue, {})
        if bodies:
            index = max(bodies)
            self.journal.requeue(0, 1, queue, index, count)
            bodies[index] = (bodies[index][0], bodies[index][1], count)

    def purge(self, queue: int) -> None:
        bodies = self.state.queues.get(queue, {})
        if bodies:
            up_to = sorted(bodies)[len(bodies) // 2]
            self.journal.purge(0, 1, queue, up_to)
            for index in [index for index in bodies if index <= up_to]:
                self._forget(queue, index)

    def drop(self, queue: int) -> None:
        self.journal.drop_queue(0, 1, queue)
        for index in list(self.state.queues.get(queue, {})):
            self._forget(queue, index)
        self.state.accepted.pop(queue, None)
        self.seen.pop(queue, None)

    def command(self, text: int) -> None:
        self.state.commands.append(b"command %d" % text)
        self.journal.state(len(self.state.commands), self.state.commands[-1])

    def identified(self, queue: int, sequence: int) -> None:
        """A message that its queue would know again."""
        index = self.next_index
        self.next_index += 1
        content = b"%d" % index
        identity = DedupIdentity(b"producer", sequence, b"")
        record = enqueue_record(
            0, 1, index, [queue], b"\0\0", 5, -1, 0, 1, content, identity=identity.packed()
        )
        self._enqueued([queue], index, self.journal.append_raw(record, 1), content, 0)
        self.seen.setdefault(queue, DedupState()).take(index, True, identity, 5)
        self.state.accepted.setdefault(queue, set()).add(sequence)

    def transaction(self, queue: int, size: int) -> None:
        self.journal.begin_tx(0, 1, 0, size)
        self.enqueue({queue, queue + 1}, size, 0)
        self.dequeue(queue, 2)
        self.enqueue({queue}, size, 0)
        self.journal.end_tx()

    def write(self) -> None:
        self.journal.synced(self.synced)
        self.waiting.extend(self.journal.take())
        for chunk in self.waiting:
            segment = int(chunk.segment)
            if chunk.offset == 0:
                self.files.create(segment, SEGMENT_BYTES)
            self.files.write(segment, int(chunk.offset), chunk.pieces)
            if chunk.closes:
                self.files.cut(segment, int(chunk.offset + chunk.size))
                self.files.sync(segment)
                self.synced = int(chunk.end())
        self.waiting = []
        self.written = int(self.journal.end_position())

    def sync(self) -> None:
        if self.written > self.synced:
            self.files.sync(self.written >> 32)
            self.synced = self.written

    def checkpoint(self) -> None:
        self.write()
        self.sync()
        builder = CheckpointBuilder(int(self.journal.end_position()), UUID)
        builder.state(b"\n".join(self.state.commands))
        builder.group(0, 1, self.next_index - 1)
        for queue, bodies in self.state.queues.items():
            size = sum(self.sizes[index] for index in bodies)
            counts = {index: body[2] for index, body in bodies.items() if body[2]}
            builder.queue(queue, 0, size if queue % 2 else -1, counts, self.seen.get(queue))
            for (owner, priority), paged in self.paged.items():
                if owner == queue:
                    # Some as an index, some as pairs, as for messages in memory.
                    some = paged.positions()[::3]
                    rest = PagedIndex.from_bytes(paged.to_bytes())
                    for index, _ in some:
                        rest.remove(index)
                    builder.entries(priority, rest)
                    builder.pairs(priority, some[::-1])
        checkpoints.write(self.files, builder.pieces(clean=False))
        self.journal.checkpointed(builder.position, builder.references())
        for segment in self.journal.dead_segments():
            self.journal.removed(segment)
            self.files.remove(segment)

    def compact(self) -> None:
        self.write()
        for victim in compaction.choose_victims(self.journal.segments(), 60, 2):
            for (queue, _), paged in self.paged.items():
                relocation = compaction.plan(queue, paged, victim, 3)
                if relocation is not None:
                    messages = [
                        decode_message(self.files.read(p >> 32, p & 0xFFFFFFFF, 1 << 20), 0)
                        for _, p in relocation.entries
                    ]
                    compaction.apply(
                        relocation, [m for m in messages if m is not None], paged, self.journal
                    )

    def step(self, operation: tuple[str, int, int, int]) -> None:
        name, a, b, c = operation
        if name == "enqueue":
            self.enqueue({a, b % 4}, c, b % 2)
        elif name in ("dequeue", "requeue", "identified", "transaction"):
            getattr(self, name)(a, b + 1 if name != "transaction" else c)
        elif name in ("purge", "drop", "command"):
            getattr(self, name)(a)
        else:
            getattr(self, name)()
        self.history.append((int(self.journal.end_position()), copy.deepcopy(self.state)))

    # --- what must hold ---

    def crash(self, how: int) -> CrashingFiles:
        if how % 2:
            return self.files.power_cut(how)
        return self.files.killed(how * 37 % 9000)

    def matching_state(self, recovered: Recovered, files: CrashingFiles) -> State:
        """The state of the prefix of the history that was recovered."""
        found = observed(recovered, files)
        for end, state in reversed(self.history):
            if found == state_key(state):
                return copy.deepcopy(state)
            if end <= self.synced:
                break
        pytest.fail(f"recovered state is no prefix with all that was synced: {found}"[:2000])


def content_sizes(recovered: Recovered, files: CrashingFiles) -> list[tuple[int, int]]:
    found = []
    for queue in recovered.queues.values():
        for level in queue.levels.values():
            for index, position in level.positions():
                message = decode_message(
                    files.read(position >> 32, position & 0xFFFFFFFF, 1 << 20), 0
                )
                assert message is not None
                found.append((index, len(message.content)))
    return found


def state_key(state: State) -> object:
    return (
        {queue: list(bodies.items()) for queue, bodies in sorted(state.live().items())},
        state.commands,
        state.accepted,
    )


def observed(recovered: Recovered, files: CrashingFiles) -> object:
    queues: dict[int, list[tuple[int, Body]]] = {}
    for queue in recovered.queues.values():
        entries: list[tuple[int, Body]] = []
        content_bytes = 0
        for priority, level in queue.levels.items():
            positions = level.positions()
            assert positions == sorted(positions, key=lambda entry: entry[0])
            for index, position in positions:
                data = files.read(position >> 32, position & 0xFFFFFFFF, 1 << 20)
                message = decode_message(data, 0)
                assert message is not None
                assert message.index == index
                assert message.priority == priority
                assert queue.queue_id in message.queue_ids
                content_bytes += len(message.content)
                count = queue.delivery_counts.get(index, 0)
                entries.append((index, (crc32(message.content), priority, count)))
        if entries:
            queues[queue.queue_id] = sorted(entries)
        assert queue.count == len(entries)
        assert queue.content_bytes == content_bytes
    snapshot = recovered.snapshot.split(b"\n") if recovered.snapshot else []
    commands = snapshot + [command for _, command in recovered.commands]
    accepted = {
        queue.queue_id: {n for n in range(10) if queue.seen.has_sequence(b"producer", n)}
        for queue in recovered.queues.values()
        if queue.seen is not None
    }
    return (dict(sorted(queues.items())), commands, accepted)


SIZES = st.one_of(st.integers(0, 300), st.integers(1400, 6000))
NUMBERS = st.integers(0, 3)
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["enqueue"] * 8
            + ["dequeue"] * 4
            + ["requeue", "purge", "drop", "command", "identified", "identified"]
            + ["transaction"] * 2
            + ["write"] * 3
            + ["sync"] * 2
            + ["checkpoint", "compact"]
        ),
        NUMBERS,
        NUMBERS,
        SIZES,
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(OPERATIONS, st.integers(0, 1000)), min_size=1, max_size=4))
def test_every_crash_leaves_a_prefix_with_all_that_was_synced(
    lives: list[tuple[list[tuple[str, int, int, int]], int]],
) -> None:
    files = CrashingFiles()
    state = State()
    for operations, crash in lives:
        recovered = recover(files, UUID)
        machine = Machine(files, recovered, state)
        references: dict[int, int] = {}
        for paged in machine.paged.values():
            paged.count_references(references)
        assert machine.journal.live_references() == references
        for operation in operations:
            machine.step(operation)
        files = machine.crash(crash)
        after = recover(files, UUID)
        state = machine.matching_state(after, files)
        assert not after.corruptions
    again = recover(files, UUID)
    assert observed(again, files) == state_key(state)


def test_compaction_and_checkpoints_let_go_of_old_segments() -> None:
    files = CrashingFiles()
    machine = Machine(files, recover(files, UUID), State())
    machine.enqueue({1}, 200, 0)
    for _ in range(300):
        machine.enqueue({2}, 500, 0)
        machine.dequeue(2, 1)
        machine.write()
        machine.sync()
    assert len(files.segments()) > 30
    machine.compact()
    machine.checkpoint()
    assert len(files.segments()) <= 2
    recovered = recover(files.killed(0), UUID)
    assert recovered.queues[1].count == 1


def test_a_segment_stays_while_a_checkpoint_refers_to_it() -> None:
    files = CrashingFiles()
    machine = Machine(files, recover(files, UUID), State())
    for _ in range(20):
        machine.enqueue({1}, 500, 0)
    machine.checkpoint()
    before = files.segments()
    machine.dequeue(1, 1)
    for _ in range(20):
        # Segments after the checkpoint hold what tells that its messages are gone.
        machine.enqueue({1}, 500, 0)
        machine.dequeue(1, 1)
    machine.write()
    machine.sync()
    assert machine.journal.live_references() == {}
    assert machine.journal.dead_segments() == []
    assert files.segments()[: len(before)] == before
    machine.checkpoint()
    assert len(files.segments()) == 1
