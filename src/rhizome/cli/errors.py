"""How failures are reported: one line on stderr that says what to do, and an exit code.

The codes: 1 it failed, 2 the command line itself is wrong.
"""

from __future__ import annotations


class CliError(Exception):
    """Something that the user can put right; the text says how."""

    exit_code = 1


class UsageError(CliError):
    """An option or argument has a value that it can't have."""

    exit_code = 2


def describe_failure(error: BaseException) -> str:
    """One line for people. Imports the error classes late: `rhizome --version` needs none."""
    from rhizome.client.errors import ConnectFailed
    from rhizome.errors import AmqpError

    if isinstance(error, AmqpError) and error.code:
        return one_line(f"{error.code} {error.reply_text()}") + _remedy(error.code, str(error))
    if isinstance(error, ConnectFailed) and "certificate" in str(error).lower():
        return one_line(
            f"{error}; name the authority's file with cacertfile= in --uri, like"
            " amqps://host/?cacertfile=ca.pem"
        )
    if isinstance(error, ConnectFailed):
        return one_line(f"{error}; start a broker, or give its address with --uri")
    if isinstance(error, OSError) and error.strerror and error.filename:
        return one_line(f"{error.filename}: {error.strerror}")
    return one_line(str(error) or type(error).__name__)


def _remedy(code: int, text: str) -> str:
    """What to do about an error of a broker, where its text doesn't say so."""
    if code == 403 and "Login was refused" in text:
        return "; check the user and the password in --uri or RHIZOME_URI"
    if code == 403:
        return "; `rhizome user permissions` shows who may do what"
    if code == 530 and "vhost" in text:
        return "; the vhost is the path of --uri, `rhizome vhost list` shows which there are"
    if code == 404:
        kind = "exchange" if "exchange" in text else "queue"
        return f"; `rhizome {kind} list` shows which there are"
    return ""


def is_expected(error: BaseException) -> bool:
    """Whether this is an ordinary failure (reported in one line) or a bug (a traceback)."""
    from rhizome.errors import RhizomeError

    return isinstance(error, (CliError, RhizomeError, OSError))


def one_line(text: str) -> str:
    return " ".join(text.split())


def print_failure(text: str) -> None:
    """Print a failure; the password of a URI in it is hidden."""
    from rhizome.cli.output.printer import say

    say(f"error: {text}", to_errors=True)
