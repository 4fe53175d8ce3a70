"""KEY=VALUE options: headers, arguments."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rhizome.cli.errors import CliError


def parse_pairs(option: str, pairs: Sequence[str], *, guess_types: bool) -> dict[str, object]:
    """KEY=VALUE pairs as a table. KEY:=JSON gives the value as JSON, whatever its type.

    With `guess_types` whole numbers, true and false are taken as such: arguments of queues are
    numbers more often than not, while headers are mostly text.
    """
    table: dict[str, object] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.rstrip(":"):
            raise CliError(f"{option} {pair}: give it as KEY=VALUE")
        if key.endswith(":"):
            table[key[:-1]] = _json(option, pair, text)
        else:
            table[key] = _guess(text) if guess_types else text
    return table


def _json(option: str, pair: str, text: str) -> object:
    try:
        value: object = json.loads(text)
    except ValueError:
        raise CliError(f"{option} {pair}: what follows := is no JSON") from None
    return value


def _guess(text: str) -> object:
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text)
    except ValueError:
        return text
