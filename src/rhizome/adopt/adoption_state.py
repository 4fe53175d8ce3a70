"""The directory of an adoption: what a restart must know, and what `rhizome adopt status` shows.

    state.json    format 1: both sides without logins, the course, what was moved, the last look
    lock          held by the process that moves messages: there is one at most

The directions are not in it: consumers decide them anew. Messages are in neither file: what was not
confirmed by one side is at the other. So losing the directory costs nothing but the totals.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from rhizome.adopt.errors import AdoptionError
from rhizome.adopt.queue_crossing import Moved
from rhizome.adopt.queue_listing import QueueKey

FORMAT: Final = 1
STATE: Final = "state.json"
LOCK: Final = "lock"


@dataclass(slots=True)
class AdoptionState:
    """What is kept. `rows` are those of the last look, for people; `ends_unclean` counts runs that
    were killed: each may have left what was under way at both sides."""

    source: str
    target: str
    goal: str = "forward"
    are_definitions_in: bool = False
    runs: int = 0
    is_running: bool = False
    ends_unclean: int = 0
    looked_ms: int = 0
    moved: dict[QueueKey, Moved] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def begin_run(self) -> None:
        """A process begins to move messages."""
        self.runs += 1
        self.ends_unclean += self.is_running
        self.is_running = True


class StateDirectory:
    """Reads and writes the state. Invariant: `state.json` is whole at any moment."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only process that moves messages for this adoption."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (self.directory / LOCK).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise AdoptionError(
                    f"another process moves messages with {self.directory}; end it first, or give"
                    " --state of another adoption"
                ) from None
            yield

    def is_locked(self) -> bool:
        """Whether a process moves messages now."""
        try:
            with (self.directory / LOCK).open("r") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False

    def read(self) -> AdoptionState | None:
        """The state, or None if there is none yet."""
        path = self.directory / STATE
        try:
            return _state(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise AdoptionError(
                f"{path} is not the state of an adoption, or of a newer release; remove it to begin"
                " anew: no message is lost by that"
            ) from None

    def read_for(self, source: str, target: str) -> AdoptionState:
        """The state of the adoption between these two, a new one if there is none."""
        state = self.read()
        if state is None:
            return AdoptionState(source, target)
        if (state.source, state.target) != (source, target):
            raise AdoptionError(
                f"{self.directory} is of the adoption from {state.source} to {state.target}, not"
                f" from {source} to {target}; give --state of another directory, or remove it if"
                " only addresses have changed"
            )
        return state

    def write(self, state: AdoptionState) -> None:
        """Replace the state."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        document = {name: getattr(state, name) for name in _PLAIN}
        moved = [{**key._asdict(), **asdict(each)} for key, each in state.moved.items()]
        new = self.directory / f"{STATE}.new"
        new.write_text(json.dumps({"format": FORMAT, **document, "moved": moved}), encoding="utf-8")
        os.replace(new, self.directory / STATE)


_PLAIN: Final = (
    *("source", "target", "goal", "are_definitions_in", "runs", "is_running", "ends_unclean"),
    *("looked_ms", "rows"),
)
_MOVED: Final = ("forward", "back", "dropped", "in_doubt", "sent_again", "taken")


def _state(document: Mapping[str, Any]) -> AdoptionState:
    if document["format"] != FORMAT:
        raise ValueError(document["format"])
    state = AdoptionState(**{name: document[name] for name in _PLAIN})
    for row in document["moved"]:
        counts = {name: row[name] for name in _MOVED}
        state.moved[QueueKey(row["vhost"], row["name"])] = Moved(**counts)
    return state
