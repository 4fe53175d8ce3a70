"""The command `rhizome`. Each family of commands is a module, loaded when it is asked for.

`serve` and `--version` must start fast, so nothing here imports more than typer; a test checks it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from rhizome.cli import interrupts
from rhizome.cli.errors import describe_failure, is_expected, one_line, print_failure

# What --help shows, in this order: a heading, and for each command the module whose `app` it is.
PANELS: Final = {
    "Run": {
        "serve": "rhizome.cli.commands.serve_command",
        "edge": "rhizome.cli.commands.edge_command",
        "up": "rhizome.cli.local_cluster.up_command",
        "context": "rhizome.cli.commands.context_command",
        "config": "rhizome.cli.commands.config_command",
    },
    "See and mend a cluster": {
        "status": "rhizome.cli.commands.cluster.status_command",
        "top": "rhizome.cli.commands.cluster.top_command",
        "doctor": "rhizome.cli.commands.cluster.doctor_command",
        "broker": "rhizome.cli.commands.cluster.broker_command",
        "cluster": "rhizome.cli.commands.cluster.cluster_command",
        "group": "rhizome.cli.commands.cluster.group_command",
    },
    "Messages": {
        "publish": "rhizome.cli.commands.messages.publish_command",
        "consume": "rhizome.cli.commands.messages.consume_command",
        "browse": "rhizome.cli.commands.messages.browse_command",
        "schedule": "rhizome.cli.commands.messages.schedule_command",
    },
    "Queues and applications": {
        "queue": "rhizome.cli.commands.resources.queue_command",
        "stream": "rhizome.cli.commands.resources.stream_command",
        "exchange": "rhizome.cli.commands.resources.exchange_command",
        "tap": "rhizome.cli.commands.resources.tap_command",
        "connection": "rhizome.cli.commands.resources.connection_command",
        "channel": "rhizome.cli.commands.resources.channel_command",
        "consumer": "rhizome.cli.commands.resources.consumer_command",
    },
    "Users and rules": {
        "user": "rhizome.cli.commands.resources.user_command",
        "vhost": "rhizome.cli.commands.resources.vhost_command",
        "policy": "rhizome.cli.commands.resources.policy_command",
        "parameter": "rhizome.cli.commands.resources.parameter_command",
        "definitions": "rhizome.cli.commands.resources.definitions_command",
    },
    "Spark": {
        "pipeline": "rhizome.cli.pipeline.pipeline_command",
    },
    "Other clusters, load, simulation": {
        "adopt": "rhizome.cli.commands.messages.adopt_command",
        "bridge": "rhizome.cli.commands.messages.bridge_command",
        "bench": "rhizome.cli.bench.bench_command",
        "sim": "rhizome.cli.commands.sim_command",
    },
    "Stores and salvage": {
        "journal": "rhizome.cli.commands.storage.journal_command",
        "store": "rhizome.cli.commands.storage.store_command",
        "salvage": "rhizome.cli.commands.storage.salvage_command",
        "tx": "rhizome.cli.commands.cluster.tx_command",
    },
}
COMMANDS: Final = {name: module for panel in PANELS.values() for name, module in panel.items()}

WITHOUT_CONTEXT: Final = ("serve", "edge", "up", "context", "journal", "store", "sim", "config")
"""Commands that talk to no broker, or start their own."""

SUGGESTED_MAX: Final = 4

_COMPLETION_OPTIONS: Final = ("install_completion", "show_completion")


class RhizomeGroup(TyperGroup):
    """Loads commands by name, and tells failures in one line.

    Exit codes: 0 done, 1 it failed, 2 the command line itself is wrong, 130 interrupted.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands and cmd_name in COMMANDS:
            self.commands[cmd_name] = _load(cmd_name)
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            ctx.fail(f"no such command '{args[0]}'{_nearest(args[0])}")
        return super().resolve_command(ctx, args)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        try:
            result = super().main(
                args, prog_name or "rhizome", complete_var, False, windows_expand_args, **extra
            )
        except typer.TyperException as error:
            sys.exit(_tell_usage(error))
        except typer.Abort:
            sys.exit(interrupts.EXIT_CODE)
        except Exception as error:
            if not is_expected(error):
                raise
            print_failure(describe_failure(error))
            sys.exit(getattr(error, "exit_code", 1))
        # Without standalone mode typer.Exit(code) comes out as the number.
        code = result if isinstance(result, int) else 0
        if standalone_mode:
            sys.exit(code)
        return code


def _load(name: str) -> Any:
    command = typer.main.get_command(import_module(COMMANDS[name]).app)
    command.name = name
    panel = next(panel for panel, names in PANELS.items() if name in names)
    setattr(command, "rich_help_panel", panel)  # noqa: B010 - not in typer's types
    _unwrap(command)
    # A sub-command would act as a whole program, and offer options to complete itself.
    command.params = [each for each in command.params if each.name not in _COMPLETION_OPTIONS]
    return command


def _unwrap(command: Any) -> None:
    """Join the lines of each paragraph of the help: it is wrapped once, at the terminal's width."""
    if command.help:
        paragraphs = inspect.cleandoc(command.help).split("\n\n")
        command.help = "\n\n".join(" ".join(each.split()) for each in paragraphs)
    for each in getattr(command, "commands", {}).values():
        _unwrap(each)


def _tell_usage(error: typer.TyperException) -> int:
    """Print what is wrong with the command line. A missing sub-command shows the help instead."""
    from rhizome.cli.output.printer import say

    message = error.format_message()
    context = getattr(error, "ctx", None)
    is_unknown = message.startswith("No such command") and "Did you mean" not in message
    if context is not None and is_unknown:
        message = f"{message.rstrip('.')}; there are {', '.join(_subcommands(context.command))}"
    if type(error).__name__ == "NoArgsIsHelpError":
        for line in message.splitlines():
            say(line, to_errors=True)
    elif context is None:
        print_failure(one_line(message))
    else:
        print_failure(f"{one_line(message).rstrip('.')}; see {context.command_path} --help")
    return error.exit_code


def _nearest(name: str) -> str:
    from difflib import get_close_matches

    nearest = get_close_matches(name, COMMANDS, n=1)
    if nearest:
        return f", did you mean '{nearest[0]}'?"
    inside = [f"'{each} {name}'" for each in COMMANDS if name in _subcommands(_load(each))]
    return f", did you mean {' or '.join(inside)}?" if 0 < len(inside) <= SUGGESTED_MAX else ""


def _subcommands(command: Any) -> Iterable[str]:
    return getattr(command, "commands", ())


app = typer.Typer(
    name="rhizome",
    cls=RhizomeGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Rhizome, a clustered AMQP 0-9-1 message broker.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from rhizome.build_info import describe
        from rhizome.cli.output.printer import say

        say(describe())
        raise typer.Exit


def _context_names(incomplete: str) -> list[str]:
    from rhizome.cli import context_file

    return context_file.known_names(incomplete)


@app.callback()
def _root(
    ctx: typer.Context,
    context: Annotated[
        str,
        typer.Option(
            "--context",
            envvar="RHIZOME_CONTEXT",
            metavar="NAME",
            help="Cluster to talk to; see `rhizome context`.",
            show_default="the current one",
            autocompletion=_context_names,
        ),
    ] = "",
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Rhizome, a clustered AMQP 0-9-1 message broker."""
    if ctx.invoked_subcommand not in WITHOUT_CONTEXT:
        from rhizome.cli import context_file

        context_file.apply(context)
