"""Stores of brokers as the journal source sees them: segments, and what the queues are called.

A store lies in a directory, or at a broker that is asked for it (remote_broker_stores.py). A path
names the data directory of a broker (it has `journal/` and perhaps `history/`), or a directory of
segments. Nothing is written or locked; the broker may be running.
"""

from __future__ import annotations

import glob
import sqlite3
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from rhizome.broker.metadata.metadata_changes import Outcome
from rhizome.broker.metadata.metadata_commands import Command, decode
from rhizome.broker.metadata.metadata_state import State
from rhizome.cluster.consensus import dataclass_codec
from rhizome.cluster.consensus.consensus_registry import decode_snapshot
from rhizome.cluster.consensus.log.log_entry_payloads import (
    APPLICATION,
    REGISTRATION,
    RETIREMENT,
    Registration,
    Retirement,
)
from rhizome.cluster.state.cluster_commands import RegisterBroker, RetireBroker
from rhizome.cluster.state.cluster_state import Applied, ClusterState, StateAlone
from rhizome.cluster.state.groups_and_placement import Group
from rhizome.errors import RhizomeError
from rhizome.journal.checkpoint import checkpoint_names, decode_state
from rhizome.journal.errors import CorruptRecord, ForeignStore
from rhizome.journal.files import SEGMENT_SUFFIX, DiskFiles, Files
from rhizome.journal.record_walk import walk_kind
from rhizome.journal.records import KIND_STATE, KIND_TX, RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES
from rhizome.spark.data_source_options import READ_SECONDS_DEFAULT
from rhizome.spark.journal.journal_rows import Names

LOOKS_MAX: Final = 20
JOURNAL: Final = "journal"
HISTORY: Final = "history"
STREAMS: Final = "streams"
CLUSTER_DATABASE: Final = Path("cluster") / "state.db"
GONE: Final = "is gone: the broker has removed it since the read was planned"
_POSITION: Final = struct.Struct(">QQ")


class StoreError(RhizomeError):
    """There is no store where one was said to be; the text says what was looked for."""


class Directory(Protocol):
    """A directory of segments and checkpoints that a task can be sent to. It is pickled."""

    def files(self) -> Files: ...

    def narrowed(self, segments: list[int]) -> Directory:
        """The same with what it takes to read these segments, and the checkpoints."""
        ...

    def tail_missing(self, segment: int) -> bool:
        """Whether it is known that a segment had more than it has now."""
        ...


@dataclass(frozen=True)
class DiskDirectory:
    path: Path

    def files(self) -> Files:
        return DiskFiles(self.path, read_only=True)

    def narrowed(self, segments: list[int]) -> DiskDirectory:
        return self

    def tail_missing(self, segment: int) -> bool:
        return False


@dataclass(frozen=True)
class Listed:
    """The checkpoints in a directory, newest first, and its segments with their sizes."""

    checkpoints: list[str]
    segments: list[tuple[int, int]]


@dataclass(frozen=True)
class Segments:
    """A directory of segments of one store. Of a ``live`` journal the last may have a torn tail."""

    store: str
    directory: Directory
    live: bool

    def files(self) -> Files:
        return self.directory.files()

    def listed(self) -> Listed:
        """What there is at one moment.

        Of a running broker, a segment goes only after a checkpoint that has no use for it. So if
        the checkpoints are the same before and after, everything is there that they name.
        """
        files = self.files()
        for _ in range(LOOKS_MAX):
            names = checkpoint_names(files)
            try:
                found = Listed(names, [(each, files.size(each)) for each in files.segments()])
            except FileNotFoundError:
                continue
            if checkpoint_names(files) == names:
                return found
        raise StoreError(f"the segments of '{self.store}' change each time they are listed")


@dataclass(frozen=True)
class StreamFile:
    """A segment of a stream in a store; the ``last`` one may have a torn tail."""

    store: str
    stream: int
    segment: int
    last: bool


class OpenStore(ABC):
    """A store that can be read. ``label`` is what its rows call it. It is pickled."""

    label: str

    @abstractmethod
    def state(self) -> StoreState:
        """What the store knows now of queues, brokers and groups."""

    @abstractmethod
    def segments(self, history: bool = True) -> list[Segments]:
        """Its directories of segments, oldest first."""

    @abstractmethod
    def stream_files(self) -> list[StreamFile]:
        """The segments of streams, in order."""

    @abstractmethod
    def has_stream(self, stream: int) -> bool:
        """Whether there is something of a stream now, if not when it was listed."""

    @abstractmethod
    def stream_bytes(self, file: StreamFile) -> bytes:
        """The content of a segment of a stream; raises FileNotFoundError if retention has removed
        it since it was listed."""

    @abstractmethod
    def close(self) -> None:
        """It is read."""


class DiskStore(OpenStore):
    """A store in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.label = str(directory)

    def state(self) -> StoreState:
        return state_of(self.directory)

    def segments(self, history: bool = True) -> list[Segments]:
        return segments_of(self.directory, history)

    def stream_files(self) -> list[StreamFile]:
        found = []
        streams = (self.directory / STREAMS).glob("[0-9]*")
        for stream in sorted(streams, key=lambda each: int(each.name)):
            numbers = sorted(int(path.stem) for path in stream.glob(f"[0-9]*{SEGMENT_SUFFIX}"))
            for number in numbers:
                last = number == numbers[-1]
                found.append(StreamFile(self.label, int(stream.name), number, last))
        return found

    def has_stream(self, stream: int) -> bool:
        return any(each.stream == stream for each in self.stream_files())

    def stream_bytes(self, file: StreamFile) -> bytes:
        name = f"{file.segment:010d}{SEGMENT_SUFFIX}"
        return (self.directory / STREAMS / str(file.stream) / name).read_bytes()

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class StorePlace:
    """Where stores are: in the directories ``paths``, or at the brokers of ``uri``, all of them or
    those named in ``brokers``. ``pins`` are snapshots at brokers that are there already, as
    NAME=PIN, comma-separated."""

    paths: str = ""
    uri: str = field(default="", repr=False)
    brokers: str = ""
    pins: str = ""

    def options(self) -> dict[str, str]:
        """For the source `rhizome.journal`."""
        if not self.uri:
            return {"path": self.paths}
        found = {"uri": self.uri, "brokers": self.brokers, "pins": self.pins}
        return {name: value for name, value in found.items() if value}


def stores_at(place: StorePlace, patience_s: float = READ_SECONDS_DEFAULT) -> list[OpenStore]:
    """The stores of a place; they are to be closed."""
    if not place.uri:
        return [DiskStore(each) for each in find(place.paths)]
    from rhizome.spark.journal import remote_broker_stores

    return [*remote_broker_stores.stores_of(place, patience_s)]


@contextmanager
def opened(place: StorePlace) -> Iterator[list[OpenStore]]:
    """The stores of a place, closed at the end."""
    found = stores_at(place)
    try:
        yield found
    finally:
        for each in found:
            each.close()


def as_now(found: list[OpenStore], place: StorePlace) -> StorePlace:
    """Where the source finds the stores of a place just as they are now, until they are closed.
    Files on disk are as they are when they are read."""
    if not place.uri:
        return place
    from rhizome.spark.journal import remote_broker_stores

    return remote_broker_stores.pinned(found, place)


@dataclass(frozen=True)
class StoreState:
    """What a store knows of queues and, in a cluster, of brokers, groups and which of them is that
    of a stream, by the stream's id. `trouble` says why it knows nothing, if it should. `homes` has
    the broker that each queue is active on, as far as that is known."""

    names: Names = field(default_factory=Names)
    broker: str = ""
    groups: dict[int, Group] = field(default_factory=dict)
    streams: dict[int, int] = field(default_factory=dict)
    trouble: str = ""
    homes: dict[int, str] = field(default_factory=dict)


def find(paths: str) -> list[Path]:
    """The directories that a comma-separated list of paths and patterns names."""
    found: list[Path] = []
    for each in (part.strip() for part in paths.split(",")):
        if not each:
            continue
        matches = sorted(glob.glob(each)) if glob.has_magic(each) else [each]
        directories = [Path(match) for match in matches if Path(match).is_dir()]
        if not directories:
            raise StoreError(f"'{each}' is no directory; give a broker's data directory")
        found.extend(directories)
    if not found:
        raise StoreError("no path given; load() takes one or several data directories of brokers")
    return found


def segments_of(directory: Path, history: bool = True) -> list[Segments]:
    """The directories of segments of a store, oldest first."""
    label = str(directory)
    found = []
    if history and (directory / HISTORY).is_dir():
        found.append(Segments(label, DiskDirectory(directory / HISTORY), live=False))
    if (directory / JOURNAL).is_dir():
        found.append(Segments(label, DiskDirectory(directory / JOURNAL), live=True))
    elif any(directory.glob(f"*{SEGMENT_SUFFIX}")):
        found.append(Segments(label, DiskDirectory(directory), live=True))
    if not found:
        raise StoreError(
            f"'{directory}' has neither '{JOURNAL}/' nor segments; give a broker's data directory"
        )
    return found


def checkpoint_segment(files: Files) -> int:
    """The segment from which on a restart reads all of them."""
    for name in checkpoint_names(files):
        try:
            return decode_state(name, files.load(name))[0] >> 32
        except (CorruptRecord, ForeignStore):
            continue
    return 1


# --- names


class _Collector:
    """Names of all queues that ever were, as far back as the state goes."""

    def __init__(self) -> None:
        self.queues: dict[int, str] = {}
        self.vhosts: dict[int, str] = {}

    def take_in(self, state: State) -> None:
        for vhost in state.vhosts.values():
            for definition in vhost.queues.values():
                self.queues[definition.id] = definition.name
                self.vhosts[definition.id] = vhost.name

    def observe(self, outcome: Outcome) -> None:
        if outcome.queue is not None:
            self.queues[outcome.queue.id] = outcome.queue.name
            self.vhosts[outcome.queue.id] = outcome.queue.vhost


def state_of(directory: Path) -> StoreState:
    """What the store in `directory` knows. Without it queues go by their numbers, and nobody can
    tell which copies there should be.
    """
    try:
        if (directory / CLUSTER_DATABASE).exists():
            return _cluster_state(directory)
        if (directory / JOURNAL).is_dir():
            return _lone_state(directory / JOURNAL)
    except (RhizomeError, sqlite3.Error, OSError, struct.error, ValueError) as error:
        return StoreState(trouble=f"{type(error).__name__}: {error}")
    return StoreState()


def _lone_state(directory: Path) -> StoreState:
    """The newest checkpoint's snapshot, and the commands in the journal behind it."""
    files = DiskFiles(directory, read_only=True)
    names = _Collector()
    state = State()
    position = 0
    for name in checkpoint_names(files):
        try:
            position, snapshot = decode_state(name, files.load(name))
        except (CorruptRecord, ForeignStore):
            continue
        if snapshot:
            state = State.restore(snapshot)
        break
    names.take_in(state)
    for segment in files.segments():
        if segment >= position >> 32:
            start = position & 0xFFFFFFFF if segment == position >> 32 else 0
            for command in _commands(files, segment, max(start, SEGMENT_HEADER_BYTES)):
                names.observe(state.apply(command))
    return StoreState(Names(names.queues, names.vhosts))


def _commands(files: DiskFiles, segment: int, start: int) -> list[Command]:
    data = files.read(segment, 0, files.size(segment))
    offsets = [offset for (offset,) in struct.iter_unpack(">q", walk_kind(data, start, KIND_STATE))]
    # What a new store begins with is one transaction.
    for (offset,) in struct.iter_unpack(">q", walk_kind(data, start, KIND_TX)):
        whole = data[: _record_end(data, offset)]
        inner = walk_kind(whole, offset + RECORD_HEADER_BYTES, KIND_STATE)
        offsets.extend(each for (each,) in struct.iter_unpack(">q", inner))
    return [
        decode(data[offset + RECORD_HEADER_BYTES : _record_end(data, offset)])
        for offset in sorted(offsets)
    ]


def _record_end(data: bytes, offset: int) -> int:
    return offset + RECORD_HEADER_BYTES + int.from_bytes(data[offset : offset + 4], "big")


def _cluster_state(directory: Path) -> StoreState:
    """The cluster's state as far as this store knows it to be committed."""
    names = _Collector()
    host = StateAlone()
    state = ClusterState(host)
    facts, entries = _read_database(directory / CLUSTER_DATABASE)
    snapshot = facts.get("snapshot", b"")
    if snapshot:
        # Index and term, then what consensus itself keeps, and in that the cluster's state.
        body = decode_snapshot(snapshot[_POSITION.size :])
        state.restore(_POSITION.unpack_from(snapshot)[0], body.application)
        names.take_in(host.state)
    commit = int.from_bytes(facts.get("commit", b""), "big")
    for index, kind, payload in entries:
        if state.index < index <= commit:
            applied = _apply(state, index, kind, payload)
            if applied is not None:
                names.observe(applied.outcome)
    own = facts.get("uuid", b"").decode()
    called = [broker.name for broker in state.registry.brokers.values() if broker.uuid == own]
    return StoreState(
        Names(names.queues, names.vhosts),
        called[0] if called else "",
        dict(state.groups.groups),
        {
            definition.id: definition.group
            for vhost in host.state.vhosts.values()
            for definition in vhost.queues.values()
            if definition.options.queue_type == "stream"
        },
    )


def _read_database(path: Path) -> tuple[dict[str, bytes], list[tuple[int, int, bytes]]]:
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    try:
        facts = dict(connection.execute("SELECT name, value FROM facts").fetchall())
        rows = connection.execute("SELECT idx, kind, payload FROM entries ORDER BY idx").fetchall()
        return facts, rows
    finally:
        connection.close()


def _apply(state: ClusterState, index: int, kind: int, payload: bytes) -> Applied | None:
    if kind == APPLICATION:
        return state.apply(index, payload)
    if kind == REGISTRATION:
        known = dataclass_codec.decode(Registration, payload)
        return state.apply_command(
            index,
            RegisterBroker(
                known.name,
                known.uuid,
                known.incarnation,
                known.role,
                known.addresses,
                known.machine,
            ),
        )
    if kind == RETIREMENT:
        gone = dataclass_codec.decode(Retirement, payload)
        return state.apply_command(index, RetireBroker(gone.name, gone.incarnation))
    return None
