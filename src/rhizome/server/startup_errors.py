"""Startup errors: why a broker doesn't start, in one line that says what to do."""

from __future__ import annotations

import logging
import sys

from rhizome.server.config.broker_config import Config

logger = logging.getLogger("rhizome.server")


def report_startup_error(error: Exception, config: Config) -> int:
    """Report the error once on standard error, in the log's format, and in the log file if there is
    one; return the exit code."""
    text = reason_of(error)
    if config.log.file or config.log.format == "json":
        logger.error("cannot run: %s", text)
    if config.log.file or config.log.format == "text":
        sys.stderr.write(f"error: {text}\n")
    return 1


def reason_of(error: Exception) -> str:
    """What went wrong, with which file, and what to do about it."""
    if not isinstance(error, OSError) or error.filename is None:
        return str(error)
    text = f"{error.filename}: {error.strerror}"
    if isinstance(error, (FileExistsError, NotADirectoryError)):
        return f"{text}; broker.data (--data) must be a directory"
    if isinstance(error, PermissionError):
        return f"{text}; the user that the broker runs as needs access to it"
    return text
