"""Contexts: where clusters are and who asks, remembered under names.

They are in one JSON file that only its owner can read, since it holds passwords; a file that others
can read is refused, as ssh does. A context counts like the variables RHIZOME_HTTP and RHIZOME_URI,
so every command uses it, and options override it.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from rhizome.cli.errors import CliError

FILE_VARIABLE: Final = "RHIZOME_CONTEXTS"
CONTEXT_VARIABLE: Final = "RHIZOME_CONTEXT"
APPLIED_VARIABLE: Final = "RHIZOME_CONTEXT_IN_FORCE"
"""Set if RHIZOME_URI comes from a context: its password is not for other addresses."""

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Context:
    """One cluster. ``http`` and ``uri`` hold no credentials; ``user`` and ``password`` do. Each may
    name several brokers, with commas between them."""

    http: str
    uri: str = ""
    user: str = ""
    password: str = field(default="", repr=False)

    def variables(self) -> dict[str, str]:
        """What the commands read from their environment."""
        found = {"RHIZOME_HTTP": self._with_login(self.http, "http")}
        if self.uri:
            found["RHIZOME_URI"] = self._with_login(self.uri, "amqp")
        return found

    def _with_login(self, address: str, scheme: str) -> str:
        before, separator, rest = address.partition("://")
        if not separator or "," in before:  # a later one of several has a scheme, the first not
            before, rest = scheme, address
        if not self.user:
            return f"{before}://{rest}"
        login = f"{quote(self.user, safe='')}:{quote(self.password, safe='')}"
        return f"{before}://{login}@{rest}"


@dataclass(slots=True)
class Contexts:
    """Invariant: ``current`` is empty or among ``found``."""

    found: dict[str, Context] = field(default_factory=dict)
    current: str = ""

    def one(self, name: str) -> Context:
        if name not in self.found:
            known = ", ".join(sorted(self.found)) or "none"
            raise CliError(
                f"there is no context '{name}' (known: {known}); add it with"
                f" `rhizome context add {name} --http HOST:PORT`"
            )
        return self.found[name]


def contexts_file() -> Path:
    given = os.environ.get(FILE_VARIABLE)
    if given:
        return Path(given)
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "rhizome" / "contexts.json"


def load(file: Path) -> Contexts:
    """The stored contexts; none if there is no file."""
    try:
        with file.open() as opened:
            _check_private(file, os.fstat(opened.fileno()).st_mode)
            document = json.load(opened)
        if document["version"] != VERSION:
            raise CliError(
                f"{file} is of another version of rhizome; use that one, or move it away"
            )
        found = {name: Context(**each) for name, each in document["contexts"].items()}
        current = document["current"]
    except FileNotFoundError:
        return Contexts()
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CliError(f"{file} can't be read; move it away and add the contexts again") from None
    return Contexts(found, current if current in found else "")


def known_names(incomplete: str) -> list[str]:
    """Names for completion, which ignores a file that can't be read."""
    try:
        found = load(contexts_file()).found
    except (CliError, OSError):
        return []
    return [name for name in found if name.startswith(incomplete)]


def save(file: Path, contexts: Contexts) -> None:
    """Write the file, readable by its owner alone from the first byte on."""
    document: dict[str, Any] = {
        "version": VERSION,
        "current": contexts.current,
        "contexts": {name: asdict(each) for name, each in contexts.found.items()},
    }
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = file.with_name(f"{file.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as opened:
            json.dump(document, opened, indent=2)
        fresh.replace(file)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def _check_private(file: Path, mode: int) -> None:
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise CliError(
            f"{file} holds passwords and others may read it; run `chmod 600 {file}`,"
            " and change the passwords if they may have been seen"
        )


def apply(name: str) -> None:
    """Make the commands of this process use a context: the named one, which overrides environment
    variables, or else the current one, which they override."""
    file = contexts_file()
    if not name and not file.exists():
        return
    contexts = load(file)
    wanted = name or contexts.current
    if not wanted:
        return
    os.environ[APPLIED_VARIABLE] = wanted
    for variable, value in contexts.one(wanted).variables().items():
        if name or variable not in os.environ:
            os.environ[variable] = value
