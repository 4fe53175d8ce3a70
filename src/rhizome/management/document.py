"""Document: the JSON object that a request carries, read field by field.

RabbitMQ's own tools send numbers and flags as strings now and then; they are taken here as there.
"""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn

from rhizome.management.errors import BadRequest

SECRET: Final = frozenset({"password", "password_hash", "users"})
"""Fields whose values are not quoted in errors."""


class Document:
    """A JSON object. Every method raises BadRequest if the field is not what it must be."""

    __slots__ = ("_fields",)

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    def __contains__(self, name: str) -> bool:
        return self._fields.get(name) is not None

    def keys(self) -> list[str]:
        return list(self._fields)

    def value(self, name: str) -> Any:
        """Whatever is there."""
        if name not in self._fields:
            raise BadRequest(f"key_missing: {name}")
        return self._fields[name]

    def text(self, name: str, default: str | None = None) -> str:
        if default is not None and name not in self:
            return default
        value = self.value(name)
        if not isinstance(value, str):
            _refuse(name, value, "a string")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        if name not in self:
            return default
        value = self._fields[name]
        if isinstance(value, bool):
            return value
        if value in ("true", "false"):
            return bool(value == "true")
        return _refuse(name, value, "true or false")

    def number(self, name: str, default: int | None = None) -> int:
        if default is not None and name not in self:
            return default
        value = self.value(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, str) and len(value) <= 20 and value.lstrip("-").isdecimal():
            return int(value)
        return _refuse(name, value, "a whole number")

    def table(self, name: str) -> dict[str, object]:
        """An object; absent, null and [] (an empty property list of Erlang's) are empty ones."""
        value = self._fields.get(name)
        if value is None or value == []:
            return {}
        if not isinstance(value, dict):
            _refuse(name, value, "an object")
        return value

    def items(self, name: str) -> list[Document]:
        """A list of objects; an absent one is empty."""
        value = self._fields.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            _refuse(name, value, "a list of objects")
        return [Document(item) for item in value]

    def words(self, name: str) -> tuple[str, ...]:
        """A list of strings, or one string with commas."""
        value = self.value(name)
        if isinstance(value, str):
            value = value.split(",")
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            _refuse(name, value, "a list of strings, or one with commas")
        return tuple(word for word in (item.strip() for item in value) if word)


def parse_document(body: bytes) -> Document:
    """The object in a request's body; an empty body is an empty object."""
    if not body.strip():
        return Document({})
    try:
        value = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"not_json: {error}") from None
    if not isinstance(value, dict):
        raise BadRequest("not_json: the body must be a JSON object")
    return Document(value)


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number in JSON")


def _refuse(name: str, value: object, wanted: str) -> NoReturn:
    if name in SECRET:
        raise BadRequest(f"{name} must be {wanted}")
    shown = json.dumps(value, default=str)
    raise BadRequest(f"{name} is {shown[:80]}; it must be {wanted}")
