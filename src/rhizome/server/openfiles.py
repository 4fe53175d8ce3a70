"""Open files: a broker takes as many as its process may have."""

from __future__ import annotations

import logging
import resource
from typing import Final

logger = logging.getLogger("rhizome.openfiles")

OPEN_FILES_MAX: Final = 1 << 20
"""Asked for where there is no limit: what most systems allow a process without further settings."""


def open_files_to_the_limit() -> None:
    """Raise what the shell has set to what the system allows; each connection is an open file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            logger.warning("no more than %d open files: %s", soft, error)
