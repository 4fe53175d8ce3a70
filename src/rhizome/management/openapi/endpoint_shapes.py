"""Schema types: what endpoints declare: the schemas of their requests and responses, and their
query.

The OpenAPI document is made from these and from the table of endpoints, and from nothing else; a
test checks them against a real broker. A record lists all of its fields: an answer with a field
that is not declared is as wrong as one that lacks a field.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

Schema = Mapping[str, Any]
"""JSON Schema, with `Shape`s in place of named schemas."""

TEXT: Final[Schema] = {"type": "string"}
NUMBER: Final[Schema] = {"type": "integer"}
REAL: Final[Schema] = {"type": "number"}
FLAG: Final[Schema] = {"type": "boolean"}
TABLE: Final[Schema] = {"type": "object"}
ANY: Final[Schema] = {}
NOTHING: Final[Schema] = {"type": "null"}
BYTES: Final[Schema] = {"type": "string", "format": "binary"}


@dataclass(frozen=True, slots=True)
class Shape:
    """A schema with a name of its own in the document."""

    name: str
    schema: Schema


Part = Schema | Shape


def record(
    name: str, required: Mapping[str, Part], optional: Mapping[str, Part] | None = None
) -> Shape:
    """An object with these fields and no others."""
    return Shape(
        name,
        {
            "type": "object",
            "properties": {**required, **(optional or {})},
            "required": list(required),
            "additionalProperties": False,
        },
    )


def fields(part: Part, names: str) -> dict[str, Part]:
    """Fields of the same kind, by their names with spaces between."""
    return dict.fromkeys(names.split(), part)


def many(part: Part) -> Schema:
    return {"type": "array", "items": part}


def by_name(part: Part) -> Schema:
    """An object whose fields have names that people give."""
    return {"type": "object", "additionalProperties": part}


def maybe(part: Part) -> Schema:
    return {"anyOf": [part, NOTHING]}


def one_of(*words: str) -> Schema:
    return {"type": "string", "enum": list(words)}


def between(least: int, most: int) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most}


def with_fields(shape: Shape, name: str, more: Mapping[str, Part]) -> Shape:
    """A record that has more fields than another."""
    return record(
        name,
        {
            **{key: shape.schema["properties"][key] for key in shape.schema["required"]},
            **more,
        },
        {
            key: part
            for key, part in shape.schema["properties"].items()
            if key not in shape.schema["required"]
        },
    )


def some_of(shape: Shape) -> Shape:
    """The same record with the columns that were asked for."""
    columns = {key: value for key, value in shape.schema.items() if key != "required"}
    return Shape(f"{shape.name}Columns", columns)


def attributes(shape: Shape) -> Callable[[Any], dict[str, Any]]:
    """Makes rows from objects whose attributes have the names of the record's fields."""
    names = [(name, name.replace("-", "_")) for name in shape.schema["required"]]
    return lambda each: {name: getattr(each, attribute) for name, attribute in names}


def shape_of(kind: type, name: str = "") -> Shape:
    """The record that `asdict` makes of a dataclass."""
    assert is_dataclass(kind)
    hints = get_type_hints(kind)
    found = {each.name: _part_of(hints[each.name]) for each in dataclasses.fields(kind)}
    return record(name or kind.__name__.removesuffix("Info"), found)


def _part_of(hint: Any) -> Part:
    plain = {str: TEXT, int: NUMBER, float: REAL, bool: FLAG}.get(hint)
    if plain is not None:
        return plain
    if is_dataclass(hint) and isinstance(hint, type):
        return shape_of(hint)
    origin, parts = get_origin(hint), get_args(hint)
    if origin is tuple:
        return many(_part_of(parts[0]))
    if origin in (Union, types.UnionType):
        assert parts[1] is type(None), "the only union that rows have is with None"
        return maybe(_part_of(parts[0]))
    assert origin is Mapping, f"no shape is known for {hint}"
    return by_name(_part_of(parts[1]))


# ---- answers ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Parameter:
    """One field of the query."""

    name: str
    schema: Schema
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What an endpoint answers unless it refuses: a body, or none, by status."""

    bodies: Mapping[int, Part | None]
    query: tuple[Parameter, ...] = field(default=())
    is_long: bool = False
    """Whether it has rows of everything that exists; only a few such answers are made at a time."""
    media_type: str = "application/json"
    """The content type of the bodies. Refusals are always JSON."""


COLUMNS: Final = Parameter(
    "columns", TEXT, "Fields to answer, separated by commas; `a.b` is b of a"
)
LIST_QUERY: Final = (
    COLUMNS,
    Parameter("sort", TEXT, "Field to sort by; `a.b` is b of a"),
    Parameter("sort_reverse", FLAG, "Sort downwards"),
    Parameter("page", between(1, 1 << 31), "Page to answer; without it the whole list comes"),
    Parameter("page_size", between(1, 500), "Rows on a page; 100 unless told"),
    Parameter("name", TEXT, "Part that names must have, with `page`"),
    Parameter("use_regex", FLAG, "`name` is a regular expression"),
)


def rows_of(shape: Shape, *query: Parameter) -> Answer:
    """A list that takes the query of lists."""
    columns = some_of(shape)
    page = record(
        f"{shape.name}Page",
        {
            **fields(NUMBER, "page page_count page_size item_count filtered_count total_count"),
            "items": many(columns),
        },
    )
    return Answer({200: {"anyOf": [many(columns), page]}}, (*LIST_QUERY, *query), is_long=True)


def list_of(part: Part, *query: Parameter) -> Answer:
    """A list without the query of lists."""
    return Answer({200: many(part)}, query)


def row_of(part: Part, *query: Parameter) -> Answer:
    return Answer({200: part}, query)


def columns_of(shape: Shape, *query: Parameter) -> Answer:
    """One object, of which columns may be asked for."""
    return Answer({200: some_of(shape)}, (COLUMNS, *query))


def done_of(*query: Parameter) -> Answer:
    return Answer({204: None}, query)


DONE: Final = done_of()
MADE: Final = Answer({201: None, 204: None})
"""201: it is new."""


# ---- bodies -------------------------------------------------------------------------------------


def document(
    required: Mapping[str, Part] | None = None, optional: Mapping[str, Part] | None = None
) -> Schema:
    """The JSON object that a request carries. Fields that are not declared are ignored."""
    return {
        "type": "object",
        "properties": {**(required or {}), **(optional or {})},
        "required": list(required or {}),
    }
