"""How failures are told: one line on stderr, what to do in it, exit code 1."""

from __future__ import annotations

import sys


class CliError(Exception):
    """Something that the user can put right; the text says how."""


def describe_failure(error: BaseException) -> str:
    """One line for people. Imports the error classes late: `rhizome --version` needs none."""
    from rhizome.errors import AmqpError

    if isinstance(error, AmqpError) and error.code:
        return one_line(f"{error.code} {error.reply_text()}")
    if isinstance(error, OSError) and error.strerror and error.filename:
        return one_line(f"{error.filename}: {error.strerror}")
    return one_line(str(error) or type(error).__name__)


def is_expected(error: BaseException) -> bool:
    """Whether this is a failure of the world (told in one line) or a defect (a traceback)."""
    from rhizome.errors import RhizomeError

    return isinstance(error, (CliError, RhizomeError, OSError))


def one_line(text: str) -> str:
    return " ".join(text.split())


def print_failure(text: str) -> None:
    print(f"error: {text}", file=sys.stderr)
