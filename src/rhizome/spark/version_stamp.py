"""Which version of rhizome made something that Spark carries from process to process.

Readers and writers are pickled on the driver and unpickled on executors by name: another version
there may read or write something else. A `VersionStamp` that is pickled along compares the versions
when it is unpickled, which is before the first row.
"""

from __future__ import annotations

import socket
from typing import Any, TypeVar

import rhizome
from rhizome.errors import RhizomeError

T = TypeVar("T")


class VersionMismatchError(RhizomeError):
    """Driver and executor have different versions; the text says which, and where."""


class VersionStamp:
    """The version of the process that made it. Invariant: it can only be unpickled by the same."""

    def __init__(self) -> None:
        self.version = rhizome.__version__

    def __reduce__(self) -> tuple[Any, ...]:
        return _checked, (self.version,)


def _checked(version: str) -> VersionStamp:
    if version != rhizome.__version__:
        raise VersionMismatchError(
            f"the driver has rhizome {version}, and host {socket.gethostname()} has rhizome "
            f"{rhizome.__version__} ({rhizome.__file__}); install the same version on both"
        )
    return VersionStamp()


def stamped(carried: T) -> T:
    """Something to be pickled, with this version in it."""
    vars(carried)["release"] = VersionStamp()
    return carried
