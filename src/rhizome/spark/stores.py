"""Stores of brokers as the journal source sees them: segments, and what the queues are called.

A path names the data directory of a broker (it has `journal/` and perhaps `history/`), or a
directory of segments. Nothing is written or locked; the broker may be running.
"""

from __future__ import annotations

import glob
import sqlite3
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rhizome.broker.commands import Command, decode
from rhizome.broker.outcome import Outcome
from rhizome.broker.state import State
from rhizome.cluster.commands import RegisterBroker, RetireBroker
from rhizome.cluster.consensus import codec
from rhizome.cluster.consensus.entries import (
    APPLICATION,
    REGISTRATION,
    RETIREMENT,
    Registration,
    Retirement,
)
from rhizome.cluster.consensus.registry import decode_snapshot
from rhizome.cluster.placement import Group
from rhizome.cluster.state import Applied, ClusterState
from rhizome.errors import RhizomeError
from rhizome.journal.checkpoint import checkpoint_names, decode_state
from rhizome.journal.errors import CorruptRecord, ForeignStore
from rhizome.journal.files import SEGMENT_SUFFIX, DiskFiles
from rhizome.journal.records import KIND_STATE, KIND_TX, RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES
from rhizome.journal.walk import walk_kind
from rhizome.spark.journalrows import Names

LOOKS_MAX: Final = 20
JOURNAL: Final = "journal"
HISTORY: Final = "history"
CLUSTER_DATABASE: Final = Path("cluster") / "state.db"
_POSITION: Final = struct.Struct(">QQ")


class StoreError(RhizomeError):
    """There is no store where one was said to be; the text says what was looked for."""


@dataclass(frozen=True)
class Listed:
    """The checkpoints in a directory, newest first, and its segments with their sizes."""

    checkpoints: list[str]
    segments: list[tuple[int, int]]


@dataclass(frozen=True)
class Segments:
    """A directory of segments of one store. Of a ``live`` journal the last may have a torn tail."""

    store: str
    directory: Path
    live: bool

    def files(self) -> DiskFiles:
        return DiskFiles(self.directory, read_only=True)

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
        raise StoreError(f"the segments in '{self.directory}' change each time they are listed")


@dataclass(frozen=True)
class StoreState:
    """What a store knows of queues and, in a cluster, of brokers, groups and which of them is that
    of a stream, by the stream's id. `trouble` says why it knows nothing, if it should."""

    names: Names = field(default_factory=Names)
    broker: str = ""
    groups: dict[int, Group] = field(default_factory=dict)
    streams: dict[int, int] = field(default_factory=dict)
    trouble: str = ""


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
        found.append(Segments(label, directory / HISTORY, live=False))
    if (directory / JOURNAL).is_dir():
        found.append(Segments(label, directory / JOURNAL, live=True))
    elif any(directory.glob(f"*{SEGMENT_SUFFIX}")):
        found.append(Segments(label, directory, live=True))
    if not found:
        raise StoreError(
            f"'{directory}' has neither '{JOURNAL}/' nor segments; give a broker's data directory"
        )
    return found


def checkpoint_segment(files: DiskFiles) -> int:
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


class _Host:
    """The broker's part of the state, with nothing live behind it."""

    def __init__(self) -> None:
        self.state = State()

    def apply(self, command: Command) -> Outcome:
        return self.state.apply(command)


def _cluster_state(directory: Path) -> StoreState:
    """The cluster's state as far as this store knows it to be committed."""
    names = _Collector()
    host = _Host()
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
        known = codec.decode(Registration, payload)
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
        gone = codec.decode(Retirement, payload)
        return state.apply_command(index, RetireBroker(gone.name, gone.incarnation))
    return None
