"""The file in the data directory that keeps the addresses from which users have logged in.

It is read once, at the start, and written by a thread: when a login has come from a new address,
but not more often than once in `SAVE_EVERY_S`, and when the broker stops. A broker that can't read
or write it logs that and does without.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Final

from rhizome.security.known_login_addresses import KnownLogins
from rhizome.server.config.broker_config import Config

logger = logging.getLogger("rhizome.security")

SAVE_EVERY_S: Final = 10.0
FILE_NAME: Final = "known-logins.json"
FILE_BYTES_MAX: Final = 32 << 20
"""Twice what the most pairs of the longest names take, each byte of them escaped."""

FILE_VERSION: Final = 1


class KnownLoginsFile:
    """Invariant: at most one thread writes the file at a time."""

    def __init__(self, config: Config, known: KnownLogins) -> None:
        self.known = known
        self._path = None if config.broker.memory else Path(config.broker.data) / FILE_NAME
        self._saving: asyncio.Future[None] | None = None
        self._saved_s = float("-inf")
        if self._path is not None:
            problem = load_known(self._path, known)
            if problem:
                logger.warning("%s is not used: %s", self._path, problem)

    def save_aside(self, loop: asyncio.AbstractEventLoop) -> None:
        """Write the file, in a thread, if it is time to."""
        is_saving = self._saving is not None and not self._saving.done()
        if is_saving or not self.known.changed or loop.time() < self._saved_s + SAVE_EVERY_S:
            return
        self._save(loop)

    async def close(self) -> None:
        """Write what the file lacks; returns when that is done."""
        if self._saving is not None:
            await self._saving
        if self.known.changed:
            self._save(asyncio.get_running_loop())
        if self._saving is not None:
            await self._saving

    def _save(self, loop: asyncio.AbstractEventLoop) -> None:
        self.known.changed = False
        if self._path is None:
            return
        self._saved_s = loop.time()
        self._saving = loop.run_in_executor(
            None, partial(_save_or_tell, self._path, self.known.pairs())
        )


def _save_or_tell(path: Path, pairs: Iterable[tuple[str, str]]) -> None:
    try:
        save_known(path, pairs)
    except OSError as error:
        logger.warning("%s can't be written: %s", path, error)


def load_known(path: Path, known: KnownLogins) -> str:
    """Load what a file holds; return why it can't be used, for the log."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            return f"it has more than {FILE_BYTES_MAX} bytes"
        document = json.loads(data)
        if document["version"] != FILE_VERSION:
            return f"it has version {document['version']!r}, and this broker knows {FILE_VERSION}"
        known.hear(document["known"])
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        return f"{type(error).__name__}: {error}"
    known.changed = False
    return ""


def save_known(path: Path, pairs: Iterable[tuple[str, str]]) -> None:
    """Replace the file as a whole, readable by its owner alone. Raises OSError."""
    document = {"version": FILE_VERSION, "known": [list(pair) for pair in pairs]}
    temporary = path.with_name(path.name + ".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        os.fchmod(file.fileno(), 0o600)
        json.dump(document, file)
    os.replace(temporary, path)
