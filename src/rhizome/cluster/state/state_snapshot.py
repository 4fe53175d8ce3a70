"""Snapshots of the cluster state: its own part as an AMQP table, and the broker's part in it.

    {"v": 1, "settings": {...}, "settings_given", "brokers": [{...}], "groups": [{...}],
     "next_group_id", "last_stream", "stream_epoch", "failover_lists": [{"broker", "failover"}],
     "proposals": [{"incarnation", "forgotten", "answers": [{...}]}], "state": broker's snapshot}

The order of a table is part of it. Fields may be added with defaults; anything else needs a new
version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

from rhizome.amqp.field_table import encode_table, read_table
from rhizome.broker.metadata.metadata_commands import DamagedCommandError
from rhizome.cluster.state.broker_registry import BrokerRecord
from rhizome.cluster.state.cluster_commands import PutSettings
from rhizome.cluster.state.groups_and_placement import STREAMS_TO, Group
from rhizome.cluster.state.proposal_dedup import Answer, ProposalWindow
from rhizome.errors import AmqpError

IMAGE_VERSION: Final = 1
NEWER: Final[dict[str, object]] = {"forced": 0, "pinned": ""}
"""Fields that release 0.1.0 doesn't know: left out while they have these values (ADR 15)."""

T = TypeVar("T")


@dataclass(frozen=True)
class Image:
    """The cluster's own part of a snapshot."""

    settings: PutSettings
    settings_given: bool
    brokers: list[BrokerRecord]
    groups: list[Group]
    next_group_id: int
    last_stream: int
    stream_epoch: int
    failover_lists: Mapping[str, tuple[str, ...]]
    windows: dict[str, ProposalWindow]


def write(image: Image, state: bytes) -> bytes:
    """The bytes of a snapshot; ``state`` is the broker's part."""
    return encode_table(
        {
            "v": IMAGE_VERSION,
            "settings": _record(image.settings),
            "settings_given": image.settings_given,
            "brokers": [_record(broker) for broker in image.brokers],
            "groups": [_record(group) for group in image.groups],
            "next_group_id": image.next_group_id,
            "last_stream": image.last_stream,
            "stream_epoch": image.stream_epoch,
            "failover_lists": [
                {"broker": broker, "failover": list(names)}
                for broker, names in image.failover_lists.items()
            ],
            "proposals": [
                {
                    "incarnation": incarnation,
                    "forgotten": window.forgotten,
                    "answers": [_record(answer) for answer in window.answers.values()],
                }
                for incarnation, window in image.windows.items()
            ],
            "state": state,
        }
    )


def read(data: bytes) -> tuple[Image, bytes]:
    """What is in a snapshot, and the broker's part; raises DamagedCommandError."""
    try:
        table, end = read_table(data, 0)
    except AmqpError as error:
        raise _damaged(error.text) from error
    if int(end) != len(data):
        raise _damaged(f"{len(data) - int(end)} bytes follow its end")
    version = table.get("v")
    if version != IMAGE_VERSION:
        raise _damaged(f"it has version {version!r} and this broker knows {IMAGE_VERSION}")
    image = Image(
        _make(PutSettings, _value(table, "settings", dict)),
        _value(table, "settings_given", bool),
        [_make(BrokerRecord, each) for each in _value(table, "brokers", list)],
        [_make(Group, each) for each in _value(table, "groups", list)],
        _value(table, "next_group_id", int),
        _added(table, "last_stream", STREAMS_TO),
        _added(table, "stream_epoch", 0),
        {
            _value(each, "broker", str): tuple(_value(each, "failover", list))
            for each in _value(table, "failover_lists", list)
        },
        {
            _value(each, "incarnation", str): _window(each)
            for each in _value(table, "proposals", list)
        },
    )
    return image, _value(table, "state", bytes)


def _window(table: dict[str, object]) -> ProposalWindow:
    answers = [_make(Answer, each) for each in _value(table, "answers", list)]
    return ProposalWindow(
        _value(table, "forgotten", int), {answer.number: answer for answer in answers}
    )


def _record(of: object) -> dict[str, object]:
    """A dataclass of plain fields, and tuples of texts or of such dataclasses, as a table."""
    table: dict[str, object] = {}
    for name, value in vars(of).items():
        if name in NEWER and value == NEWER[name]:
            continue
        if isinstance(value, tuple):
            value = [item if isinstance(item, str) else _record(item) for item in value]
        table[name] = value
    return table


def _make(kind: type[T], table: object) -> T:
    """The dataclass that a table was made from; raises DamagedCommandError."""
    if not isinstance(table, dict):
        raise _damaged(f"{table!r} is no {kind.__name__}")
    hints = get_type_hints(kind)
    known = [each.name for each in fields(kind)]  # type: ignore[arg-type]
    unknown = [name for name in table if name not in known]
    if unknown:
        raise _damaged(f"a {kind.__name__} has unknown fields {unknown}: upgrade the broker")
    try:
        return kind(**{name: _field(value, hints[name]) for name, value in table.items()})
    except TypeError as error:
        raise _damaged(f"a {kind.__name__} lacks a field: {error}") from error


def _field(value: object, hint: Any) -> object:
    if get_origin(hint) is tuple and isinstance(value, list):
        item = get_args(hint)[0]
        return tuple(_field(each, str) if item is str else _make(item, each) for each in value)
    if type(value) is not hint:
        raise _damaged(f"{value!r} stands where {hint} belongs")
    return value


def _value(table: dict[str, object], name: str, kind: type[T]) -> T:
    value = table.get(name)
    if not isinstance(value, kind):
        raise _damaged(f"it has {value!r} as '{name}'")
    return value


def _added(table: dict[str, object], name: str, default: int) -> int:
    """A number that snapshots of earlier versions don't have."""
    return _value(table, name, int) if name in table else default


def _damaged(what: str) -> DamagedCommandError:
    return DamagedCommandError(f"the snapshot of the cluster state can't be used: {what}")
