"""Settings of the C library's allocator and of the limit of open files that suit a broker."""

from __future__ import annotations

import ctypes
import logging
import resource
from typing import Final

logger = logging.getLogger("rhizome.openfiles")

OPEN_FILES_MAX: Final = 1 << 20
"""The limit that is asked for where there is none: what most systems allow a process without
further settings."""


def raise_open_files_limit() -> None:
    """Raise the limit set by the shell to what the system allows; each connection is an open
    file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            logger.warning("no more than %d open files: %s", soft, error)


RESERVED_FILES: Final = 256
"""Open files for the journal, for links and logs; half of the limit, if that is less."""


def connections_possible(http_connections_max: int) -> int:
    """How many AMQP connections may be open, so that files are left for the journal and HTTP."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return OPEN_FILES_MAX
    return max(limit // 2, limit - RESERVED_FILES - http_connections_max)


logger = logging.getLogger("rhizome.memory")

_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3


def tune_malloc() -> None:
    """Keep freed receive buffers instead of returning them to the system page by page."""
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(_M_TRIM_THRESHOLD, 64 << 20)
        libc.mallopt(_M_TOP_PAD, 4 << 20)
    except (OSError, AttributeError):
        logger.debug("the C library has no mallopt; memory is managed by its defaults")


def trim_malloc() -> None:
    """Give back to the system what was freed and kept."""
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):
        logger.debug("the C library has no malloc_trim")
