"""Commands that ask a cluster over its HTTP API, and the options that they all have."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property
from typing import Any, Concatenate, Final, ParamSpec

from rhizome.cli.api import Api, endpoint
from rhizome.cli.options import HTTP_DEFAULT, HttpOption, JsonOption, PasswordOption, UserOption
from rhizome.cli.output import print_done

P = ParamSpec("P")


class Remote:
    """The cluster that a command asks, and whether it answers programs. Its parameters are options
    of the command."""

    def __init__(
        self,
        http: HttpOption = HTTP_DEFAULT,
        user: UserOption = "",
        password: PasswordOption = "",
        as_json: JsonOption = False,
    ) -> None:
        self._login = (http, user, password)
        self.as_json = as_json

    @cached_property
    def api(self) -> Api:
        """Made when it is used first: a password may be asked for, and what is wrong with the
        command line is told before."""
        return Api(endpoint(*self._login))

    def done(self, text: str) -> None:
        """Say what was done."""
        print_done(text, self.as_json)


_OPTIONS: Final = inspect.signature(Remote, eval_str=True).parameters


def remote_command(command: Callable[Concatenate[Remote, P], None]) -> Callable[..., None]:
    """A command for typer: instead of the ``Remote`` it has its options, after all others."""
    _, *own = inspect.signature(command, eval_str=True).parameters.values()
    asked: Callable[..., None] = command

    def run(**given: Any) -> None:
        options = {name: given.pop(name) for name in _OPTIONS}
        asked(Remote(**options), **given)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    # What typer reads.
    run.__signature__ = inspect.Signature([*own, *_OPTIONS.values()])  # type: ignore[attr-defined]
    return run
