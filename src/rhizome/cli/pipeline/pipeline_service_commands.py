"""`rhizome pipeline run, check, status, resend`: a service that runs flows for ever
(docs/pipeline/service.md)."""

from __future__ import annotations

import dataclasses
import logging
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from rhizome.cli import interrupts
from rhizome.cli.errors import CliError, UsageError
from rhizome.cli.output.printer import print_fields, print_json, print_table, say
from rhizome.cli.pipeline import pipeline_command
from rhizome.cli.pipeline.pipeline_command import app
from rhizome.cli.pipeline.spark_options import SparkPlace
from rhizome.cli.shared_options import JsonOption, with_options

if TYPE_CHECKING:
    from rhizome.spark.service.batch_resend import KeptBatch, Outcome
    from rhizome.spark.service.flow_file import ServiceSettings
    from rhizome.spark.service.pipeline_service import PipelineService
    from rhizome.spark.session import SessionOptions

FileArgument = Annotated[str, typer.Argument(metavar="FILE", help="File with the flows, in TOML.")]
NOT_RUNNING_EXIT_CODE: Final = 3
ERROR_CHARS_SHOWN: Final = 100
_FAIR: Final = {"spark.scheduler.mode": "FAIR"}
_LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(message)s"


@app.command()
@with_options
def run(place: SparkPlace, file: FileArgument) -> None:
    """Run the flows of a file until SIGTERM or Ctrl-C; each then ends its batch.

    Flows that fail are started again. See docs/pipeline/service.md.
    """
    pipeline_command._require_spark()
    from rhizome.spark.service.pipeline_service import PipelineService

    settings = _load(file)
    _log_to_stderr()
    directory = _spark_directory(settings, place.log)
    options = _session_options(settings, place, directory)
    say(f"starting {len(settings.flows)} flows of '{settings.name}' on {options.where}")
    session = _start_session(settings.name, options, directory)
    try:
        service = PipelineService(session, settings)
        _stop_on_signals(service)
        whole = service.run()
    finally:
        session.stop()
    say("stopped" if whole else "stopped amid a batch, which the next start repeats")


def _start_session(name: str, options: SessionOptions, directory: Path) -> Any:
    from rhizome.spark.session import LOG_NAME, start_session

    try:
        return start_session(name, options)
    except Exception as error:
        text = pipeline_command.failure_text(error)
        if text is None:
            raise
        raise CliError(f"{text} (Spark's log: {directory / LOG_NAME})") from None


def _load(file: str) -> ServiceSettings:
    from rhizome.spark.service.flow_file import FlowFileError, load

    try:
        return load(Path(file))
    except FlowFileError as error:
        for line in str(error).splitlines():
            say(f"error: {line}", to_errors=True)
        raise typer.Exit(1) from None


def _log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_LOG_FORMAT))
    logger = logging.getLogger("rhizome.pipeline")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def _spark_directory(settings: ServiceSettings, log: str) -> Path:
    if log:
        return Path(log)
    if "://" in settings.state:
        return Path(tempfile.mkdtemp(prefix="rhizome-pipeline-"))
    return Path(settings.state) / "spark"


def _session_options(
    settings: ServiceSettings, place: SparkPlace, directory: Path
) -> SessionOptions:
    """The command line overrides the file, and the file overrides Spark's own defaults."""
    found = place.session_options(directory)
    if found.where.startswith("sc://"):
        raise CliError("the service has its own driver and can't run over Spark Connect")
    conf = {**_FAIR, **settings.conf, **found.conf}
    cluster = settings.master if settings.master and not place.where else found.where
    return dataclasses.replace(found, conf=conf, where=cluster)


def _stop_on_signals(service: PipelineService) -> None:
    """The first signal stops the service in good order, the second one at once: nothing is lost
    by that, but batches are repeated."""
    strikes: list[int] = []

    def strike(number: int, frame: FrameType | None) -> None:
        strikes.append(number)
        if len(strikes) > 1:
            interrupts.leave()
        service.stop()

    signal.signal(signal.SIGTERM, strike)
    signal.signal(signal.SIGINT, strike)


@app.command()
def check(file: FileArgument, as_json: JsonOption = False) -> None:
    """Check a file of flows, without starting Spark; every mistake is told with its line."""
    settings = _load(file)
    if as_json:
        names = [each.name for each in settings.flows]
        print_json({"name": settings.name, "state": settings.state, "flows": names})
        return
    flows = "1 flow" if len(settings.flows) == 1 else f"{len(settings.flows)} flows"
    say(f"{file} is right: {flows} of '{settings.name}', state in {settings.state}")


@app.command()
def status(
    file: Annotated[
        str, typer.Argument(metavar="[FILE]", help="File with the flows, in TOML.")
    ] = "",
    state: Annotated[
        str, typer.Option("--state", metavar="DIR", help="State of the service, instead of FILE.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """How the flows of a service do. The exit code is 3 if it does not run, or a flow is halted."""
    pipeline_command._require_package("pyarrow")
    from rhizome.spark.service.flow_file import state_of
    from rhizome.spark.service.state_files import StateFiles
    from rhizome.spark.service.status_file import RUNNING, read_status

    if bool(file) == bool(state):
        raise UsageError("say either FILE or --state DIR")
    where = state or state_of(Path(file))
    if "://" not in where and not Path(where).is_dir():
        raise CliError(f"there is no state at {where}: the service was never started")
    document = read_status(StateFiles(where), time.time())
    if document is None:
        raise CliError(f"there is no status at {where}: the service was never started")
    if as_json:
        print_json(document)
    else:
        _print_status(document)
    halted = any(each["state"] == "halted" for each in document["flows"])
    if document["state"] != RUNNING or halted:
        raise typer.Exit(NOT_RUNNING_EXIT_CODE)


def _print_status(document: dict[str, Any]) -> None:
    print_fields(
        [
            ("service", document["name"]),
            ("state", document["state"]),
            ("where", f"{document['host']}, process {document['pid']}"),
            ("started", document["started"]),
            ("as of", document["written"]),
            ("set aside in", document["set_aside"]),
        ]
    )
    say()
    rows = [
        [
            each["name"],
            each["state"],
            each["batch"],
            f"{each['rows']:,}",
            f"{each['rows_per_second']:,.0f}",
            f"{each['batch_seconds']:.1f}",
            f"{sum(each['lag'].values()):,}" if each["lag"] else None,
            each["restarts"],
            each["set_aside"],
        ]
        for each in document["flows"]
    ]
    headings = ("flow", "state", "batch", "rows", "rows/s", "batch s", "lag", "restarts", "aside")
    print_table(headings, rows, "")
    for each in document["flows"]:
        if each["error"]:
            lines = each["error"].splitlines()
            say(f"{each['name']}: failed at {each['error_time']}: {lines[0]}")


@app.command()
@with_options
def resend(
    place: SparkPlace,
    file: FileArgument,
    flows: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FLOW...]", help="Of these flows; default: of all."),
    ] = None,
    batches: Annotated[
        list[str] | None,
        typer.Option("--batch", metavar="QUERY-BATCH", help="These alone; may be repeated."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list what is set aside, without Spark.")
    ] = False,
    duplicates: Annotated[
        bool,
        typer.Option(
            "--allow-duplicates", help="Also what an exchange or a queue may have a part of."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Deliver batches that were set aside, once their flow can take them.

    They go through the SQL or function and into the sink that the flow has now. The exit code is 1
    if one of them still can't be delivered; it stays set aside.
    """
    pipeline_command._require_package("pyarrow")
    from rhizome.spark.service.batch_resend import kept_batches

    settings = _load(file)
    found = kept_batches(settings, flows or (), batches or ())
    if dry_run or not found:
        _print_kept([each.document() for each in found], as_json)
        return
    outcomes = _redelivered(settings, found, duplicates, place)
    _print_outcomes([each.document() for each in outcomes], as_json)
    if any(each.trouble for each in outcomes):
        raise typer.Exit(1)


def _redelivered(
    settings: ServiceSettings, found: list[KeptBatch], duplicates: bool, place: SparkPlace
) -> list[Outcome]:
    from rhizome.spark.service.batch_resend import BatchResend, Outcome, obstacle

    told = [Outcome(each, trouble=obstacle(each, duplicates)) for each in found]
    if all(each.trouble for each in told):
        return told  # Spark need not start for that
    pipeline_command._require_spark()
    with _session(settings, place) as session:
        redelivery = BatchResend(session, settings)
        return [each if each.trouble else redelivery.resend(each.batch) for each in told]


@contextmanager
def _session(settings: ServiceSettings, place: SparkPlace) -> Iterator[Any]:
    """A session beside that of the service, which may run. An existing session is kept."""
    from pyspark.sql import SparkSession

    found = SparkSession.getActiveSession()
    if found is not None:
        yield found
        return
    directory = Path(place.log) if place.log else Path(tempfile.mkdtemp(prefix="rhizome-pipeline-"))
    options = _session_options(settings, place, directory)
    session = _start_session(f"{settings.name} resend", options, directory)
    try:
        yield session
    finally:
        session.stop()
    if not place.log:
        shutil.rmtree(directory, ignore_errors=True)


def _print_kept(documents: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json({"batches": documents})
        return
    rows = [
        [each["flow"], each["batch"], each["time"], each["messages"], each["stage"],
         _first_line(each["error"])]
        for each in documents
    ]  # fmt: skip
    headings = ("flow", "batch", "set aside at", "messages", "stage", "error")
    print_table(headings, rows, "nothing is set aside")


def _print_outcomes(documents: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json({"batches": documents})
        return
    for each in documents:
        what = f"{each['flow']} {each['batch']}: {each['messages']:,} messages"
        if each["resent"]:
            say(f"{what} delivered as {each['rows']:,} rows")
        else:
            say(f"error: {what} stay set aside: {each['trouble']}", to_errors=True)


def _first_line(text: str | None) -> str:
    return (text or "").partition("\n")[0][:ERROR_CHARS_SHOWN]
