"""Bridges in a TOML file, one table each.

    [bridge.orders]
    from = "amqp://app:secret@a1,a2,a3/"
    to = "amqp://app:secret@b1,b2/"
    queue = "orders"

    [bridge.events]
    from = "amqp://app:secret@a1,a2,a3/"
    to = "amqp://app:secret@b1,b2/"
    exchange = "events"
    keys = ["order.#", "user.created"]
    refused = "drop"

A key has the name of the option, with underscores. Unknown keys are an error with the nearest name.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from rhizome.bridge.errors import InvalidBridge
from rhizome.bridge.settings import BridgeSettings, Refused
from rhizome.printable_text import HIDDEN, without_passwords

TABLE: Final = "bridge"


@dataclass(frozen=True, slots=True)
class _Key:
    field: str
    kind: type
    said: str


_TEXT: Final = "a text"
_YES_NO: Final = "true or false"
_WHOLE: Final = "a whole number"
_SECONDS: Final = "a number of seconds"
KEYS: Final = {
    "from": _Key("source_uri", str, _TEXT),
    "to": _Key("destination_uri", str, _TEXT),
    "queue": _Key("queue", str, _TEXT),
    "exchange": _Key("exchange", str, _TEXT),
    "keys": _Key("keys", list, "a list of texts"),
    "to_queue": _Key("to_queue", str, _TEXT),
    "to_exchange": _Key("to_exchange", str, _TEXT),
    "to_key": _Key("to_key", str, _TEXT),
    "prefetch": _Key("prefetch", int, _WHOLE),
    "dedup": _Key("dedup", bool, _YES_NO),
    "content_ids": _Key("content_ids", bool, _YES_NO),
    "max_hops": _Key("hops_max", int, _WHOLE),
    "refused": _Key("refused", str, "keep, dead-letter or drop"),
    "exclusive": _Key("exclusive", bool, _YES_NO),
    "arguments": _Key("arguments", dict, "a table"),
    "from_name": _Key("source_name", str, _TEXT),
    "to_name": _Key("destination_name", str, _TEXT),
    "retry_max": _Key("retry_s_max", float, _SECONDS),
    "confirm_timeout": _Key("confirm_timeout_s", float, _SECONDS),
    "drain": _Key("drain_s", float, _SECONDS),
}


def load_bridges(path: Path) -> list[BridgeSettings]:
    """All bridges of a file, checked. Raises InvalidBridge with the file and what is wrong."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidBridge(f"{path}: {error}") from None
    try:
        return parse_bridges(document)
    except InvalidBridge as error:
        raise InvalidBridge(f"{path}: {error}") from None


def parse_bridges(document: Mapping[str, Any]) -> list[BridgeSettings]:
    """The bridges of a parsed file."""
    for name in document:
        if name != TABLE:
            raise InvalidBridge(f"unknown table '{name}'; bridges are tables like [{TABLE}.orders]")
    tables = document.get(TABLE)
    if not isinstance(tables, dict) or not tables:
        raise InvalidBridge(f"there is no bridge in it; give each a table like [{TABLE}.orders]")
    bridges = [_bridge(name, table) for name, table in tables.items()]
    for settings in bridges:
        settings.check()
    return bridges


def _bridge(name: str, table: object) -> BridgeSettings:
    if not isinstance(table, dict):
        raise InvalidBridge(f"'{TABLE}.{name}' must be a table; write [{TABLE}.{name}] above it")
    fields: dict[str, Any] = {"source_uri": "", "destination_uri": ""}
    for key, value in table.items():
        known = KEYS.get(key)
        if known is None:
            raise InvalidBridge(f"bridge '{name}': unknown key '{key}'{_nearest(key)}")
        fields[known.field] = _value(name, key, known, value)
    return BridgeSettings(name, **fields)


def _value(name: str, key: str, known: _Key, value: object) -> object:
    shown = HIDDEN if key in ("from", "to") else without_passwords(repr(value))
    wrong = InvalidBridge(f"bridge '{name}': {key} = {shown}; it must be {known.said}")
    if known.kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, known.kind) or (known.kind is int and isinstance(value, bool)):
        raise wrong
    if key == "keys":
        if not all(isinstance(each, str) for each in value):  # type: ignore[attr-defined]
            raise wrong
        return tuple(value)  # type: ignore[arg-type]
    if key == "refused":
        return _refused(str(value), wrong)
    return value


def _refused(word: str, wrong: InvalidBridge) -> Refused:
    try:
        return Refused(word)
    except ValueError:
        raise wrong from None


def _nearest(key: str) -> str:
    nearest = get_close_matches(key, KEYS, n=1)
    return f", did you mean '{nearest[0]}'?" if nearest else f"; known are {', '.join(KEYS)}"
