"""Configuration fields: turn tables of a file into frozen dataclasses, and collect every problem.

A section is a dataclass whose fields are made by the functions below (`size`, `duration`, `choice`,
...). Each carries its documentation and how its value is written, so that reading, showing and
documenting a configuration need no second list of keys. A key is the field's name without its unit:
`heartbeat_ms` is written `heartbeat = "60s"`.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Final

from rhizome.errors import RhizomeError
from rhizome.server.config.units import (
    Address,
    Portion,
    format_duration,
    format_interval,
    format_size,
    parse_address,
    parse_duration,
    parse_interval,
    parse_portion,
    parse_size,
)

SECRET_SHOWN: Final = "********"


class SettingError(ValueError):
    """A value that its key doesn't accept; the text says what it accepts."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault of a configuration: where it was written, under which key, what is wrong."""

    source: str
    key: str
    text: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.source, self.key, self.text) if part)


class ConfigError(RhizomeError):
    """A configuration that the broker refuses to start with: all its problems at once."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class Given:
    """A value as it was given; `is_text` if it has no TOML type yet (environment, CLI)."""

    value: object
    source: str
    is_text: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """How one key is written, checked, shown and explained.

    `item`: the dataclass of the tables under this key, by name (`many` "named") or in a list.
    """

    doc: str
    kind: str
    parse: Callable[[Any], Any]
    show: Callable[[Any], str]
    from_text: Callable[[str], object] = str
    item: type | None = None
    many: str = ""
    is_secret: bool = False
    is_required: bool = False


# --- the kinds of values


def text(default: str | None, doc: str, *, is_secret: bool = False) -> Any:
    """A string; None: the key must be given."""
    setting = Setting(
        doc, "string", _string, toml, is_secret=is_secret, is_required=default is None
    )
    return field(default="" if default is None else default, metadata={"setting": setting})


def number(default: int, doc: str, minimum: int, maximum: int) -> Any:
    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise SettingError(f"{toml(value)} is no whole number; write one such as {default}")
        return _within(value, minimum, maximum, str)

    setting = Setting(doc, f"number, {minimum} to {maximum}", parse, str, _number_from_text)
    return field(default=default, metadata={"setting": setting})


def decimal(default: float, doc: str, minimum: float, maximum: float) -> Any:
    def parse(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise SettingError(f"{toml(value)} is no number; write one such as {default}")
        if not minimum <= value <= maximum:
            raise SettingError(f"{value} is not from {minimum} to {maximum}")
        return float(value)

    setting = Setting(doc, f"number, {minimum} to {maximum}", parse, str, _decimal_from_text)
    return field(default=default, metadata={"setting": setting})


def flag(default: bool, doc: str) -> Any:
    setting = Setting(doc, "true or false", _boolean, toml, _boolean_from_text)
    return field(default=default, metadata={"setting": setting})


def choice(default: str, options: tuple[str, ...], doc: str) -> Any:
    def parse(value: object) -> str:
        if value not in options:
            wanted = ", ".join(f'"{option}"' for option in options)
            hint = nearest(str(value), options)
            raise SettingError(f"{toml(value)} is not one of {wanted}{hint}")
        return str(value)

    setting = Setting(doc, " or ".join(f'"{option}"' for option in options), parse, toml)
    return field(default=default, metadata={"setting": setting})


def size(default: str, doc: str, minimum: str = "0B", maximum: str = "8589934591GiB") -> Any:
    def parse(value: object) -> int:
        number_bytes = parse_size(_with_unit(value, "size", default))
        return _within(number_bytes, parse_size(minimum), parse_size(maximum), format_size)

    setting = Setting(doc, "size", parse, lambda value: toml(format_size(value)))
    return field(default=parse_size(default), metadata={"setting": setting})


def duration(default: str, doc: str, minimum: str = "0s", maximum: str = "36500d") -> Any:
    def parse(value: object) -> int:
        number_ms = parse_duration(_with_unit(value, "time", default))
        return _within(number_ms, parse_duration(minimum), parse_duration(maximum), format_duration)

    setting = Setting(doc, "time", parse, lambda value: toml(format_duration(value)))
    return field(default=parse_duration(default), metadata={"setting": setting})


def interval(default: str, doc: str, minimum: str = "0us", maximum: str = "1s") -> Any:
    """A time that is counted in microseconds."""

    def parse(value: object) -> int:
        number_us = parse_interval(_with_unit(value, "time", default))
        return _within(number_us, parse_interval(minimum), parse_interval(maximum), format_interval)

    setting = Setting(doc, "time", parse, lambda value: toml(format_interval(value)))
    return field(default=parse_interval(default), metadata={"setting": setting})


def portion(default: str, doc: str) -> Any:
    def parse(value: object) -> Portion:
        return parse_portion(_with_unit(value, "size or percentage", default))

    setting = Setting(doc, "size or percentage", parse, lambda value: toml(str(value)))
    return field(default=parse_portion(default), metadata={"setting": setting})


def addresses(default: tuple[str, ...], doc: str) -> Any:
    def parse(value: object) -> tuple[Address, ...]:
        return tuple(parse_address(entry) for entry in strings(value))

    setting = Setting(doc, "list of addresses", parse, toml_list, text_list)
    return field(
        default=tuple(parse_address(entry) for entry in default), metadata={"setting": setting}
    )


def texts(default: tuple[str, ...], doc: str) -> Any:
    setting = Setting(doc, "list of strings", strings, toml_list, text_list)
    return field(default=default, metadata={"setting": setting})


def table(doc: str) -> Any:
    """A table of free keys, such as the definition of a policy."""
    setting = Setting(doc, "table", _table, _toml_table, is_required=True)
    return field(default_factory=dict, metadata={"setting": setting})


def checked(setting_field: Any, check: Callable[[Any], None]) -> Any:
    """A field made by the functions above with one more check, which raises ValueError or ours."""
    setting = setting_of(setting_field)

    def parse(value: object) -> Any:
        parsed = setting.parse(value)
        try:
            check(parsed)
        except (ValueError, RhizomeError) as error:
            raise SettingError(str(error)) from None
        return parsed

    changed = Setting(
        setting.doc,
        setting.kind,
        parse,
        setting.show,
        setting.from_text,
        is_secret=setting.is_secret,
        is_required=setting.is_required,
    )
    return field(default=setting_field.default, metadata={"setting": changed})


def named(item: type, doc: str, default: Callable[[], Mapping[str, Any]] = dict) -> Any:
    """Tables of one shape by name: [users.alice], [users.bob]."""
    setting = Setting(doc, "tables by name", _table, toml, item=item, many="named")
    return field(default_factory=default, metadata={"setting": setting})


def listed(item: type, doc: str) -> Any:
    """Tables of one shape in a list."""
    setting = Setting(doc, "list of tables", _tables, toml, item=item, many="listed")
    return field(default=(), metadata={"setting": setting})


# --- looking at sections


def setting_of(described: Field[Any]) -> Setting:
    found = described.metadata["setting"]
    assert isinstance(found, Setting), f"{described.name} is no setting"
    return found


def key_of(described: Field[Any]) -> str:
    """`heartbeat_ms` -> `heartbeat`: the file states the unit with the value."""
    return described.name.removesuffix("_us").removesuffix("_ms").removesuffix("_bytes")


def settings_of(section: type) -> dict[str, Field[Any]]:
    return {key_of(described): described for described in fields(section)}


def default_of(described: Field[Any]) -> Any:
    if described.default_factory is not MISSING:
        return described.default_factory()
    return described.default


def nearest(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f'; did you mean "{close[0]}"?' if close else ""


# --- reading


def read_section(
    section: type, given: Mapping[str, Given], path: str, problems: list[Problem]
) -> Any:
    """Make a `section` from what was given; errors go to `problems`, and the default stays."""
    known = settings_of(section)
    values: dict[str, Any] = {}
    for key, entry in given.items():
        described = known.get(key)
        if described is None:
            problems.append(
                Problem(entry.source, join_path(path, key), _unknown("key", key, known))
            )
            continue
        try:
            values[described.name] = _read(described, entry, join_path(path, key), problems)
        except ValueError as error:
            problems.append(Problem(entry.source, join_path(path, key), str(error)))
    _demand_required(known, given, path, problems)
    return section(**values)


def as_given(value: object, source: str) -> dict[str, Given]:
    """The entries of a raw table; raises SettingError if it is none."""
    return {str(key): Given(entry, source) for key, entry in _table(value).items()}


def _read(described: Field[Any], entry: Given, path: str, problems: list[Problem]) -> Any:
    setting = setting_of(described)
    if setting.item is not None and setting.many == "named":
        return read_items(setting.item, entry, path, problems)
    if setting.item is not None:
        numbered = {str(n): each for n, each in enumerate(setting.parse(entry.value), start=1)}
        return tuple(
            read_items(setting.item, Given(numbered, entry.source), path, problems).values()
        )
    value = entry.value
    if entry.is_text and isinstance(value, str):
        value = setting.from_text(value)
    if setting.is_secret and not isinstance(value, str):
        # Not quoted, as other values are.
        raise SettingError('is no string; write it in quotes, "like this"')
    return setting.parse(value)


def read_items(item: type, entry: Given, path: str, problems: list[Problem]) -> dict[str, Any]:
    """Make an `item` of each table in a table."""
    found: dict[str, Any] = {}
    for name, raw in _table(entry.value).items():
        place = join_path(path, name)
        try:
            found[name] = read_section(item, as_given(raw, entry.source), place, problems)
        except SettingError as error:
            problems.append(Problem(entry.source, place, str(error)))
    return found


def _demand_required(
    known: Mapping[str, Field[Any]],
    given: Mapping[str, Given],
    path: str,
    problems: list[Problem],
) -> None:
    source = next((entry.source for entry in given.values()), "")
    for key, described in known.items():
        setting = setting_of(described)
        if setting.is_required and key not in given:
            text_of_fault = f"is missing; it takes a {setting.kind}: {setting.doc}"
            problems.append(Problem(source, join_path(path, key), text_of_fault))


def _unknown(noun: str, word: str, known: Mapping[str, Any]) -> str:
    return f"unknown {noun}{nearest(word, list(known))} ({noun}s here: {', '.join(known)})"


def unknown_section(word: str, known: Sequence[str]) -> str:
    return _unknown("section", word, dict.fromkeys(known))


def join_path(path: str, key: str) -> str:
    """A key as TOML writes it under `path`: `users."a b".kind`."""
    plain = key and all(c.isalnum() or c in "-_" for c in key)
    shown = key if plain else json.dumps(key, ensure_ascii=False)
    return f"{path}.{shown}" if path else shown


# --- checking and writing values


def _with_unit(value: object, noun: str, example: str) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise SettingError(f'{toml(value)} is no {noun}; write one such as "{example}"')
    if isinstance(value, int | float):
        raise SettingError(f'{value} has no unit; write a {noun} such as "{example}"')
    return value


def _within(value: int, minimum: int, maximum: int, show: Callable[[int], str]) -> int:
    if value < minimum:
        raise SettingError(f"{show(value)} is below the minimum, {show(minimum)}")
    if value > maximum:
        raise SettingError(f"{show(value)} is above the maximum, {show(maximum)}")
    return value


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise SettingError(f'{toml(value)} is no string; write it in quotes, "like this"')
    return value


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise SettingError(f"{toml(value)} is neither true nor false")
    return value


def _boolean_from_text(value: str) -> object:
    return {"true": True, "false": False}.get(value.strip().lower(), value)


def _number_from_text(value: str) -> object:
    stripped = value.strip()
    return int(stripped) if stripped.isascii() and stripped.isdigit() else value


def _decimal_from_text(value: str) -> object:
    try:
        return float(value)
    except ValueError:
        return value


def strings(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(entry, str) for entry in value):
        raise SettingError(f'{toml(value)} is no list of strings; write ["one", "two"]')
    return tuple(value)


def text_list(value: str) -> object:
    return [entry.strip() for entry in value.split(",") if entry.strip()]


def _table(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SettingError(f"{toml(value)} is no table; write key = value under a [heading]")
    return value


def _tables(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise SettingError(f"{toml(value)} is no list of tables; write [[heading]] for each")
    return value


def toml(value: object) -> str:
    """A value as TOML writes it. JSON's strings are TOML's, but for the escape of DEL."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    if isinstance(value, list | tuple):
        return toml_list(value)
    if isinstance(value, dict):
        return _toml_table(value)
    return str(value)


def toml_list(values: Sequence[object]) -> str:
    """A list of strings, or of what is written as a string."""
    return "[" + ", ".join(_toml_entry(value) for value in values) + "]"


def _toml_table(values: Mapping[str, object]) -> str:
    pairs = ", ".join(f"{toml(name)} = {toml(value)}" for name, value in values.items())
    return "{ " + pairs + " }" if pairs else "{}"


def _toml_entry(value: object) -> str:
    # Addresses and their like are written as strings.
    known = isinstance(value, bool | int | float | str | list | tuple | dict)
    return toml(value if known else str(value))
