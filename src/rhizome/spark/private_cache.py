"""The directory in which this user's processes keep what Spark is given again and again.

Invariant: only this user can write to it. Executors and JVMs run what lies there.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


def private_cache() -> Path | None:
    """The directory, made if it isn't there; None where there can be none of this user alone."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    directory = Path(base) / "rhizome" / "spark"
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if is_private(directory) and os.access(directory, os.W_OK):
            return directory
    except OSError:
        pass
    return None


def is_private(path: Path) -> bool:
    """Whether a file or directory is this user's, and nobody else may write to it."""
    found = path.stat()
    return found.st_uid == os.getuid() and not found.st_mode & OTHERS_WRITE
