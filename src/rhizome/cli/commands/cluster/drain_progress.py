"""The progress of a drain: waits until a broker is empty, and tells what it still has."""

from __future__ import annotations

import threading
import time
from typing import Final

from rhizome.cli.errors import CliError
from rhizome.cli.http_api.api_client import Api, Row, path
from rhizome.cli.output.printer import say

POLL_S: Final = 0.5
PATIENCE_S: Final = 600.0
"""For homes and copies; the grace period of the connections is added to it."""


def wait_until_drained(api: Api, name: str, grace_ms: int, quiet: bool) -> str:
    """Return when a broker may be stopped, and say so; each change of what it still has is told,
    unless ``quiet``."""
    give_up_s = time.monotonic() + PATIENCE_S + grace_ms / 1000
    told = ""
    pause = threading.Event()
    while True:
        row = _broker(api, name)
        left = left_of(row)
        if not left:
            return f"{name} is empty: stop it"
        if left != told and not quiet:
            say(f"{name} still has {left}")
            told = left
        if time.monotonic() > give_up_s:
            raise CliError(f"{name} still has {left}; it goes on being drained, see `status`")
        pause.wait(POLL_S)


def left_of(row: Row) -> str:
    """What keeps a broker from being stopped, in words; empty if nothing does."""
    homes = row.get("homes", 0) - row.get("stuck", 0)
    parts = [
        _count(homes, "home"),
        _count(row.get("copies", 0), "copy", "copies"),
        _count(row.get("connections", 0), "connection"),
    ]
    return ", ".join(part for part in parts if part)


def _count(number: int, noun: str, nouns: str = "") -> str:
    if number <= 0:
        return ""
    return f"{number} {noun}" if number == 1 else f"{number} {nouns or noun + 's'}"


def _broker(api: Api, name: str) -> Row:
    document = api.row(path("rhizome", "cluster"))
    for row in document.get("brokers") or ():
        if isinstance(row, dict) and row.get("name") == name:
            if not row.get("draining"):
                raise CliError(f"{name} is not drained any more: somebody has undrained it")
            return row
    raise CliError(f"{name} is not in the cluster any more")
