"""Document: the JSON object in a request's body, read field by field.

RabbitMQ's own tools sometimes send numbers and flags as strings; they are accepted here as there.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final, NoReturn

from rhizome.management.errors import BadRequest, TooLarge
from rhizome.management.http.json_decoder import decoded, decoded_at_once, decoded_stream, dispose

_NUMBER: Final = re.compile(r"-?[0-9]{1,19}")
SHORT_BYTES_MAX: Final = 16 * 1024
"""The largest body that is decoded at once."""

SHOWN_CHARS_MAX: Final = 80
SHOWN_ITEMS_MAX: Final = 10
"""The most characters of a value that an error quotes."""

SECRET: Final = frozenset({"password", "password_hash", "users"})
"""Fields whose values are not quoted in errors."""


class Document:
    """A JSON object. Every method raises BadRequest if the field is not what it must be."""

    __slots__ = ("_fields",)

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    async def release(self) -> None:
        """Free a long document, in steps."""
        await dispose(self._fields)

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
        if isinstance(value, str) and _NUMBER.fullmatch(value):
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

    def items(self, name: str) -> Iterator[Document]:
        """A list of objects; an absent one is empty."""
        value = self._fields.get(name)
        if value is None:
            return
        if not isinstance(value, list):
            _refuse(name, value, "a list of objects")
        for at, item in enumerate(value):
            if not isinstance(item, dict):
                _refuse(f"{name}[{at}]", item, "an object")
            yield Document(item)

    def words(self, name: str) -> tuple[str, ...]:
        """A list of strings, or one string with commas."""
        value = self.value(name)
        if isinstance(value, str):
            value = value.split(",")
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            _refuse(name, value, "a list of strings, or one with commas")
        return tuple(word for word in (item.strip() for item in value) if word)


def parse_document(body: bytes) -> Document:
    """The object in a request's body, which is short; an empty body is an empty object."""
    if len(body) > SHORT_BYTES_MAX:
        raise too_large(SHORT_BYTES_MAX)
    return _document(decoded_at_once(body) if body.strip() else {})


async def read_document(body: bytes) -> Document:
    """The same for a body that may be long, while other work goes on."""
    return _document(await decoded(body) if body.strip() else {})


async def stream_document(pieces: AsyncIterator[bytes], values_max: int) -> Document:
    """The same for a body that comes in pieces, none of which is kept."""
    found = await decoded_stream(pieces, values_max)
    return _document({} if found is None else found)


def too_large(bytes_max: int, why: str = "") -> TooLarge:
    return TooLarge(
        f"the body is larger than the {bytes_max} bytes that this request may have{why}"
    )


def _document(value: object) -> Document:
    if not isinstance(value, dict):
        raise BadRequest("not_json: the body must be a JSON object")
    return Document(value)


def _refuse(name: str, value: object, wanted: str) -> NoReturn:
    if name in SECRET:
        raise BadRequest(f"{name} must be {wanted}")
    raise BadRequest(f"{name} is {_shown(value)}; it must be {wanted}")


def _shown(value: object) -> str:
    """A value, abbreviated."""
    if isinstance(value, (list, dict)) and len(value) > SHOWN_ITEMS_MAX:
        return f"{'an object' if isinstance(value, dict) else 'a list'} with {len(value)} items"
    if isinstance(value, str):
        value = value[:SHOWN_CHARS_MAX]
    return json.dumps(value, default=str)[:SHOWN_CHARS_MAX]
