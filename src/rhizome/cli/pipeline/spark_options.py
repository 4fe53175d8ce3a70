"""Options of Spark that the commands of `rhizome pipeline` have."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rhizome.cli.errors import UsageError

if TYPE_CHECKING:
    from rhizome.spark.session import SessionOptions

PANEL: Final = "Spark"
EXECUTOR_SECONDS_DEFAULT: Final = 60.0
MASTER_DEFAULT: Final = "local[*]"

SparkOption = Annotated[
    str,
    typer.Option(
        "--master",
        "--remote",
        help="Spark cluster to run on: local[N], spark://HOST:7077, k8s://..., yarn, sc://HOST.",
        show_default="spark-defaults.conf's, or local[*]",
        rich_help_panel=PANEL,
    ),
]
LogOption = Annotated[
    str,
    typer.Option(
        "--spark-log",
        metavar="DIR",
        help="Directory for Spark's log and scratch files.",
        show_default="a temporary one",
        rich_help_panel=PANEL,
    ),
]


@dataclass(frozen=True)
class SparkPlace:
    """Where a command runs Spark, and with which settings. Its fields are options."""

    where: SparkOption = ""
    log: LogOption = ""
    conf: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="A setting of Spark; may be repeated.",
            rich_help_panel=PANEL,
        ),
    ] = None
    driver_host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Address that executors connect to.",
            show_default="the one that leads to --master",
            rich_help_panel=PANEL,
        ),
    ] = ""
    executor_timeout: Annotated[
        float,
        typer.Option(min=1, help="Wait so long for an executor, in s.", rich_help_panel=PANEL),
    ] = EXECUTOR_SECONDS_DEFAULT
    ui: Annotated[
        bool,
        typer.Option("--ui", help="Serve Spark's page while the job runs.", rich_help_panel=PANEL),
    ] = False
    event_log: Annotated[
        str,
        typer.Option(metavar="DIR", help="Keep Spark's event log there.", rich_help_panel=PANEL),
    ] = ""
    no_ship: Annotated[
        bool,
        typer.Option(
            "--no-ship",
            help="Send executors nothing: rhizome is installed on them.",
            rich_help_panel=PANEL,
        ),
    ] = False

    def session_options(self, directory: Path) -> SessionOptions:
        """The options of a session; without a named cluster, Spark's own files may name one."""
        from rhizome.spark.session import SessionOptions, user_settings

        conf = dict(_setting(each) for each in self.conf or ())
        named = conf.pop("spark.master", "")
        where = self.where or named or user_settings().get("spark.master") or MASTER_DEFAULT
        return SessionOptions(
            where,
            directory,
            ui=self.ui,
            event_log=self.event_log,
            driver_host=self.driver_host,
            executor_timeout_s=self.executor_timeout,
            ship=not self.no_ship,
            conf=conf,
        )


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"--conf takes KEY=VALUE, like spark.executor.memory=2g, and not '{text}'")
    return key.strip(), value.strip()
