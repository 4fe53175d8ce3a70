"""`rhizome pipeline`: jobs on Spark. Local unless --master names a Spark cluster.

Results go to stdout, progress to stderr, Spark's own output to a log file. Exit codes: 0 done,
1 it failed, 2 the command line is wrong, 3 the audit found something, 130 interrupted.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from rhizome.cli import interrupts
from rhizome.cli.errors import CliError, one_line
from rhizome.cli.output.printer import bytes_text, print_fields, print_json, print_table, say
from rhizome.cli.pipeline.spark_options import SparkPlace
from rhizome.cli.shared_options import (
    URI_DEFAULT,
    JsonOption,
    UriOption,
    VhostOption,
    checked_uri,
    with_options,
)
from rhizome.printable_text import escaped

if TYPE_CHECKING:
    from rhizome.spark.jobs.job_progress import Figures, Tell

app = typer.Typer(no_args_is_help=True, help="Archive, report, audit and replay with Spark.")

VIOLATIONS_EXIT_CODE: Final = 3
_OUR_ERROR: Final = re.compile(r"rhizome\.[\w.]+(?:Error|Lost|Failed|Refused)\w*: (.+)")

QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress.", rich_help_panel="Spark")
]
StreamOption = Annotated[
    str, typer.Option("--stream", help="Streams, comma-separated; of a partitioned one its name.")
]
ArchiveOption = Annotated[str, typer.Option("--archive", help="Path of an archive.")]
CatalogOption = Annotated[
    str,
    typer.Option(
        "--catalog",
        metavar="URI",
        help="Catalogue of an Iceberg archive: a database (sqlite:////DIR/catalog.db, "
        "postgresql://...) or a REST catalogue (https://...).",
        show_default="catalog.db in the archive",
        envvar="RHIZOME_CATALOG",
    ),
]
TableOption = Annotated[
    str,
    typer.Option(
        "--table",
        help="Name of an Iceberg archive in its catalogue.",
        show_default="default.LAST_PART_OF_PATH",
    ),
]
JournalOption = Annotated[
    str, typer.Option("--journal", help="Data directories of brokers; commas and patterns work.")
]
WhereOption = Annotated[
    str, typer.Option("--where", help="Condition in SQL on the columns of the source.")
]


BrokersOption = Annotated[
    str,
    typer.Option(
        "--broker",
        metavar="NAME,...",
        help="Only the journals of these brokers, when they are read through --uri.",
        show_default="those that are needed",
    ),
]


def _checked_place(uri: str) -> str:
    """An AMQP URI, or management addresses."""
    scheme, separator, rest = uri.partition("://")
    amqp = {"http": "amqp", "https": "amqps"}.get(scheme, scheme)
    checked_uri(f"{amqp}{separator}{rest}")
    return uri


JournalUriOption = Annotated[
    str,
    typer.Option(
        "--uri",
        envvar="RHIZOME_URI",
        metavar="URI",
        help="Brokers to connect to. Journals are read through their HTTP APIs:"
        " http(s)://user:password@host:15672,... or an AMQP URI of the same hosts.",
        callback=_checked_place,
    ),
]


@app.callback()
def _family() -> None:
    """Archive, report, audit and replay with Spark."""


# --- sessions and progress


class ProgressPrinter:
    """Shows progress in one line of a terminal."""

    def __init__(self, quiet: bool) -> None:
        self._shows = not quiet and sys.stderr.isatty()

    def __call__(self, figures: Figures) -> None:
        if self._shows:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r{escaped(figures_text(figures))[:width]:<{width}}")
            sys.stderr.flush()

    def clear(self) -> None:
        if self._shows:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r{'':<{width}}\r")
            sys.stderr.flush()


def figures_text(figures: Figures) -> str:
    """How far a job is, in a line."""
    parts = [figures.stage]
    if figures.rows is not None:
        parts.append(f"{figures.rows:,} rows")
    if figures.rows_per_second is not None:
        parts.append(f"{figures.rows_per_second:,.0f}/s")
    if figures.behind is not None:
        parts.append(f"{figures.behind:,} behind")
    if figures.batch is not None:
        parts.append(f"batch {figures.batch}")
    if figures.tasks:
        parts.append(f"{figures.tasks_done}/{figures.tasks} tasks")
    return "  ".join(parts)


@contextmanager
def running(name: str, place: SparkPlace, quiet: bool) -> Iterator[tuple[Any, Tell]]:
    """A session for one job, and what shows its progress. Failures of Spark come out in a line.

    A caller that has a session already, a notebook or a test, keeps it.
    """
    from pyspark.sql import SparkSession

    from rhizome.spark.session import LOG_NAME, start_session

    directory = Path(place.log) if place.log else Path(tempfile.mkdtemp(prefix="rhizome-pipeline-"))
    tell = ProgressPrinter(quiet)
    tell(_starting())
    session = None
    found = SparkSession.getActiveSession()
    try:
        options = place.session_options(directory)
        _require_java(options.where)
        session = found or start_session(name, options)
        yield session, tell
    except Exception as error:
        tell.clear()
        text = failure_text(error)
        if text is None:
            raise
        raise CliError(f"{text} (Spark's log: {directory / LOG_NAME})") from None
    finally:
        tell.clear()
        if session is not None and found is None:
            session.stop()
    if not place.log:
        shutil.rmtree(directory, ignore_errors=True)


def _starting() -> Figures:
    from rhizome.spark.jobs.job_progress import Figures

    return Figures("starting Spark")


def _require_package(name: str) -> None:
    from importlib.util import find_spec

    if find_spec(name) is None:
        raise CliError("the pipeline needs Spark; install it with: pip install 'rhizomemq[spark]'")


def _require_spark() -> None:
    _require_package("pyspark")


def _require_java(master: str) -> None:
    """A server of Spark Connect has the JVM."""
    if not master.startswith("sc://") and shutil.which("java") is None:
        raise CliError("Spark needs Java 17; on Debian: apt-get install openjdk-17-jre-headless")


def failure_text(error: BaseException) -> str | None:
    """The relevant line of a failure of Spark; None for other failures."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from rhizome.spark.spark_master import SessionError

    if isinstance(error, SessionError):
        return str(error)
    if not isinstance(error, (PySparkException, Py4JError)):
        return None
    text = str(error)
    ours = _OUR_ERROR.findall(text)
    if ours:
        return one_line(ours[-1])
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    return one_line(first)


def finish(result: Any, as_json: bool) -> bool:
    """Print the result for programs; returns whether it must still be printed for people."""
    if as_json:
        print_json(result.document())
    return not as_json


# --- commands


@app.command()
def prepare(quiet: QuietOption = False, as_json: JsonOption = False) -> None:
    """Halve the work of starting Spark on this machine, for all later commands. Java keeps Spark's
    classes as it has them once they are loaded: 180 MB in ~/.cache/rhizome/spark, for this user,
    this Java and this Spark. Do it again after an update of one of them."""
    _require_spark()
    _require_java("local")
    from rhizome.spark import jvm_class_archive
    from rhizome.spark.jobs.job_progress import Figures
    from rhizome.spark.session import SessionOptions, start_session

    tell = ProgressPrinter(quiet)
    found = jvm_class_archive.archive_path()
    if found is not None and found.is_file():
        _tell_archive(found, "is there already", as_json)
        return

    def start(java: str) -> Any:
        tell(_starting())
        conf = {"spark.driver.extraJavaOptions": java}
        return start_session("prepare", SessionOptions("local[2]", Path(directory), conf=conf))

    with tempfile.TemporaryDirectory(prefix="rhizome-pipeline-") as directory:
        try:
            path = jvm_class_archive.make_archive(start, lambda text: tell(Figures(text)))
        except Exception as error:
            text = failure_text(error)
            if text is None:
                raise
            raise CliError(text) from None
        finally:
            tell.clear()
    _tell_archive(path, "is what Spark's JVM starts from now", as_json)


def _tell_archive(path: Path, what: str, as_json: bool) -> None:
    size = path.stat().st_size
    if as_json:
        print_json({"path": str(path), "bytes": size})
    else:
        say(f"{path} ({bytes_text(size)}) {what}")


@app.command()
@with_options
def script(
    place: SparkPlace,
    file: Annotated[
        typer.FileText, typer.Argument(metavar="[FILE]", help="Commands, a line each; - is stdin.")
    ] = "-",  # type: ignore[assignment]
    quiet: QuietOption = False,
) -> None:
    """Run several commands of `rhizome pipeline` in one session of Spark, which takes longer to
    start than most of them to run. A line is a command as a shell would have it, without `rhizome
    pipeline`; # begins a comment. The first one that fails ends the script, with its exit code."""
    _require_spark()
    from rhizome.cli.main import app as rhizome

    # A program that writes the commands may take its time, in which Spark starts.
    is_known = file.name != "<stdin>"
    commands = script_commands(file.read()) if is_known else []
    with running("script", place, quiet):
        for line, arguments in commands if is_known else script_commands(file.read()):
            if not quiet:
                say(f"$ rhizome pipeline {escaped(shlex.join(arguments))}", to_errors=True)
            code = _exit_code(rhizome, ["pipeline", *arguments])
            if code:
                say(f"line {line} ended with exit code {code}", to_errors=True)
                raise typer.Exit(code)


def _exit_code(command: Any, arguments: list[str]) -> int:
    """The exit code of a command; one that fails has printed why."""
    try:
        code = command(arguments, standalone_mode=False)
    except SystemExit as ended:
        code = ended.code
    return code if isinstance(code, int) else 0


def script_commands(text: str) -> list[tuple[int, list[str]]]:
    """The commands of a script, with the numbers of their lines."""
    known = {
        each.name or each.callback.__name__ for each in app.registered_commands if each.callback
    }
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            arguments = shlex.split(line, comments=True)
        except ValueError as error:
            raise CliError(f"line {number}: {error}") from None
        if not arguments:
            continue
        if arguments[0] not in known - {"script"}:
            raise CliError(
                f"line {number}: '{arguments[0]}' is no command for a script; those are "
                + ", ".join(sorted(known - {"script"}))
            )
        found.append((number, arguments))
    return found


@app.command()
@with_options
def archive(
    place: SparkPlace,
    streams: Annotated[list[str], typer.Argument(metavar="STREAM...", help="Names of streams.")],
    to: Annotated[str, typer.Option("--to", help="Path of the archive, made if it isn't there.")],
    table_format: Annotated[
        str,
        typer.Option(
            "--format",
            help="parquet, delta or iceberg.",
            show_default="that of the archive, parquet for a new one",
        ),
    ] = "",
    catalog: CatalogOption = "",
    table: TableOption = "",
    checkpoint: Annotated[
        str,
        typer.Option(
            "--checkpoint",
            metavar="DIR",
            help="Where Spark keeps how far it is.",
            show_default="_checkpoint in the archive",
        ),
    ] = "",
    uri: UriOption = URI_DEFAULT,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until interrupted.")
    ] = False,
    interval: Annotated[
        float, typer.Option("--interval", min=0.1, help="Seconds between batches, with --follow.")
    ] = 10,
    start: Annotated[
        str, typer.Option("--from", help="Where a new archive begins: earliest or latest.")
    ] = "earliest",
    lossy: Annotated[
        bool, typer.Option("--allow-loss", help="Go on if messages are gone before their turn.")
    ] = False,
    reader: Annotated[
        str | None,
        typer.Option(
            "--reader-name",
            help="Name under which `rhizome stream readers` shows how far the archive is; '' for "
            "one that brokers don't remember.",
            show_default="archive:PATH",
        ),
    ] = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Copy streams to Parquet, or to a Delta or Iceberg table, each message once.

    The next run goes on where this one ended.
    """
    _require_spark()
    from rhizome.spark.jobs import archive as job

    options = job.checked(
        job.ArchiveOptions(
            uri, tuple(streams), to, checkpoint, start, follow, interval, fail_on_loss=not lossy,
            format=table_format, catalog=catalog, table=table, reader=reader,
        )
    )  # fmt: skip
    interrupted = threading.Event()
    with running("archive", place, quiet or as_json) as (spark, tell):
        if follow:
            with interrupts.handled(interrupted.set):
                result = job.run(spark, options, tell, interrupted.is_set)
        else:
            result = job.run(spark, options, tell)
    if finish(result, as_json):
        batches = "1 batch" if result.batches == 1 else f"{result.batches} batches"
        say(f"{result.messages:,} messages in {batches} added to {result.to}")


@app.command()
def vacuum(
    path: Annotated[str, typer.Argument(help="Path of a Delta or Iceberg table or archive.")] = "",
    hours: Annotated[
        int, typer.Option("--older-than", min=0, metavar="HOURS", help="Only files so old.")
    ] = 168,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    catalog: CatalogOption = "",
    table: TableOption = "",
    as_json: JsonOption = False,
) -> None:
    """Remove files that no commit of a table names: what killed runs have left.

    A batch that is being written has files that no commit names yet: don't go below the time that
    your longest batch takes. Snapshots of an Iceberg table that are older go, too. Needs no Spark.
    """
    _require_package("pyarrow")
    from rhizome.spark.lakehouse.table_format import open_table
    from rhizome.spark.lakehouse.table_options import DELTA, found_format, table_settings

    given = {"path": path, "catalog": catalog, "table": table}
    is_delta = bool(path) and found_format(path) == DELTA
    settings = table_settings({"path": path} if is_delta else given)
    found = open_table(settings).vacuum(hours, dry_run)
    if as_json:
        print_json({"files": found, "removed": not dry_run})
        return
    for name in found:
        say(escaped(name))
    files = "1 file" if len(found) == 1 else f"{len(found):,} files"
    say(f"{files} {'would be ' if dry_run else ''}removed from the {settings.called}")


@app.command()
@with_options
def traffic(
    place: SparkPlace,
    stream: StreamOption = "",
    archive_path: ArchiveOption = "",
    catalog: CatalogOption = "",
    table: TableOption = "",
    journal: JournalOption = "",
    html: Annotated[str, typer.Option("--html", help="Where the report goes.")] = "traffic.html",
    title: Annotated[str, typer.Option("--title", help="What the report is called.")] = "Traffic",
    where_sql: WhereOption = "",
    uri: JournalUriOption = URI_DEFAULT,
    brokers: BrokersOption = "",
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Rates, sizes, latencies and top talkers of a stream, an archive or a journal; without one of
    those, of the journals of the brokers at --uri. A journal beside a stream or an archive adds how
    long messages waited in their queues."""
    _require_spark()
    from rhizome.spark.jobs import traffic as job

    options = job.TrafficOptions(
        uri,
        stream,
        archive_path,
        journal,
        where_sql,
        html,
        catalog=catalog,
        table=table,
        brokers=brokers,
        title=title,
    )
    with running("traffic", place, quiet or as_json) as (spark, tell):
        result = job.run(spark, options, tell)
    if finish(result, as_json):
        print_fields(
            [
                ("messages", f"{result.messages:,}"),
                ("bytes", bytes_text(result.bytes)),
                ("first", result.first),
                ("last", result.last),
                ("report", result.html),
            ]
        )


@app.command()
@with_options
def audit(
    place: SparkPlace,
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DIR]...", help="Data directories of brokers."),
    ] = None,
    uri: JournalUriOption = URI_DEFAULT,
    brokers: BrokersOption = "",
    listed: Annotated[
        int, typer.Option("--list", min=1, help="List at most so many of each kind.")
    ] = 100,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare all copies of all groups, and look for lost, doubled, changed and damaged records.

    Without directories the brokers at --uri are asked, which read their own. Brokers may be
    running: copies are compared at an index that all of them have reached. The exit code is 3 if
    something was found.
    """
    _require_spark()
    from rhizome.spark.jobs import audit as job

    options = job.AuditOptions(
        ",".join(paths or ()), listed, uri="" if paths else uri, brokers=brokers
    )
    job.check_place(options)
    with running("audit", place, quiet or as_json) as (spark, tell):
        result = job.run(spark, options, tell)
    if finish(result, as_json):
        _print_audit(result)
    if not result.is_sound:
        raise typer.Exit(VIOLATIONS_EXIT_CODE)


def _print_audit(report: Any) -> None:
    say(f"{report.records:,} records, {report.messages:,} messages in {len(report.stores)} stores")
    rows = [
        [group, ", ".join(copies), report.compared_at[group]]
        for group, copies in sorted(report.copies.items())
    ]
    if rows:
        print_table(("group", "copies", "compared at index"), rows, "")
    for note in report.notes:
        say(f"note: {note}")
    if report.is_sound:
        say("nothing is wrong")
        return
    say()
    print_table(("violation", "count"), sorted(report.counts.items()), "")
    say()
    listed = [
        [
            each.kind,
            each.broker,
            each.group,
            each.epoch,
            each.index,
            each.queue,
            f"{each.segment}:{each.offset}" if each.segment is not None else None,
            each.detail,
        ]
        for each in report.violations
    ]
    headings = ("violation", "broker", "group", "epoch", "index", "queue", "at", "detail")
    print_table(headings, listed, "")


@app.command()
@with_options
def replay(
    place: SparkPlace,
    name: Annotated[str, typer.Option("--name", help="Under one name each message is sent once.")],
    archive_path: ArchiveOption = "",
    catalog: CatalogOption = "",
    table: TableOption = "",
    stream: StreamOption = "",
    journal: JournalOption = "",
    exchange: Annotated[
        str | None, typer.Option("--exchange", help="Instead of the one it was published to.")
    ] = None,
    queue: Annotated[str, typer.Option("--queue", help="Send all to this queue.")] = "",
    key: Annotated[
        str | None, typer.Option("--key", help="Routing key, instead of the one it had.")
    ] = None,
    where_sql: WhereOption = "",
    rate: Annotated[
        int, typer.Option("--rate", min=0, help="Messages per second; 0: no limit.")
    ] = 0,
    exact: Annotated[
        bool,
        typer.Option("--exact", help="The very bytes, without the headers that make it once."),
    ] = False,
    uri: UriOption = URI_DEFAULT,
    uri_from: Annotated[
        str,
        typer.Option(
            "--uri-from",
            metavar="URI",
            help="Where the stream is.",
            show_default="as --uri",
            callback=checked_uri,
        ),
    ] = "",
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Send messages of an archive, a stream or a journal again, as they were published."""
    _require_spark()
    from rhizome.spark.jobs import replay as job

    options = job.ReplayOptions(
        uri, name, archive_path, stream, journal, uri_from, exchange, queue, key, where_sql, rate,
        exact=exact, catalog=catalog, table=table,
    )  # fmt: skip
    with running("replay", place, quiet or as_json) as (spark, tell):
        result = job.run(spark, options, tell)
    if finish(result, as_json):
        say(f"{result.messages:,} messages sent as '{result.name}'")


@app.command()
@with_options
def deadletters(
    place: SparkPlace,
    queue: Annotated[str, typer.Option("--queue", help="Dead-letter queue, in journals.")] = "",
    journal: JournalOption = "",
    stream: StreamOption = "",
    archive_path: ArchiveOption = "",
    catalog: CatalogOption = "",
    table: TableOption = "",
    where_sql: WhereOption = "",
    vhost: VhostOption = "/",
    uri: JournalUriOption = URI_DEFAULT,
    brokers: BrokersOption = "",
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Dead letters by the queue they died in, the reason, and what they look like. With --queue
    alone they are read from the journal of its home, through --uri."""
    _require_spark()
    from rhizome.spark.jobs import deadletters as job

    options = job.DeadletterOptions(
        uri,
        stream,
        archive_path,
        journal,
        queue,
        vhost,
        where_sql,
        catalog=catalog,
        table=table,
        brokers=brokers,
    )
    with running("deadletters", place, quiet or as_json) as (spark, tell):
        result = job.run(spark, options, tell)
    if finish(result, as_json):
        shown = ("messages", "died_in", "reason", "exchange", "key", "shape", "last", "example")
        rows = [[group[name] for name in shown] for group in result.groups]
        print_table(shown, rows, "no dead letters")


@app.command()
@with_options
def redrive(
    place: SparkPlace,
    queue: Annotated[str, typer.Argument(help="Dead-letter queue.")],
    died_in: Annotated[
        list[str] | None,
        typer.Option("--died-in", help="Queue that letters may go back to; may be repeated."),
    ] = None,
    where_sql: WhereOption = "",
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="Look at so many messages.")
    ] = 10_000,
    exchange: Annotated[
        str | None, typer.Option("--exchange", help="Send them there instead.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="Instead of the one they had.")] = None,
    uri: UriOption = URI_DEFAULT,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Put dead letters back into the queue they died in: those that --where chooses, each once."""
    _require_spark()
    from rhizome.spark.jobs import deadletters as job

    back = tuple(died_in or ())
    options = job.RedriveOptions(uri, queue, where_sql, limit, exchange, key, back)
    with running("redrive", place, quiet or as_json) as (spark, tell):
        result = job.redrive(spark, options, tell)
    if finish(result, as_json):
        say(f"{result.sent:,} of {result.seen:,} messages sent back, {result.left:,} left")


@app.command()
@with_options
def timetravel(
    place: SparkPlace,
    queue: Annotated[str, typer.Argument(help="Name of a queue.")],
    at: Annotated[str, typer.Option("--at", help="A time, like 2026-11-16T08:00:00Z.")],
    journal: Annotated[
        str, typer.Option("--journal", help="Data directory of the queue's home, or of copies.")
    ] = "",
    uri: JournalUriOption = URI_DEFAULT,
    brokers: BrokersOption = "",
    until: Annotated[str, typer.Option("--until", help="Compare with this time.")] = "",
    to: Annotated[str, typer.Option("--to", help="Write the messages there, as Parquet.")] = "",
    listed: Annotated[int, typer.Option("--list", min=0, help="Show so many messages.")] = 20,
    vhost: VhostOption = "/",
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """What was in a queue at a time, and with --until what came and went since. Without --journal
    the queue's home is asked, through --uri."""
    _require_spark()
    from rhizome.spark.jobs import timetravel as job

    until_ms = job.time_ms(until) if until else None
    options = job.TimetravelOptions(
        journal, queue, job.time_ms(at), until_ms, vhost, to, listed_max=listed,
        uri="" if journal else uri, brokers=brokers,
    )  # fmt: skip
    with running("timetravel", place, quiet or as_json) as (spark, tell):
        result = job.run(spark, options, tell)
    if finish(result, as_json):
        _print_travel(result)


def _print_travel(result: Any) -> None:
    for moment in (result.first, result.second):
        if moment is None:
            continue
        unkept = f", {moment.unkept:,} of them without content" if moment.unkept else ""
        say(f"{moment.at}: {moment.messages:,} messages, {bytes_text(moment.bytes)}{unkept}")
    if result.came is not None:
        say(f"{result.came:,} came, {result.went:,} went, {result.stayed:,} stayed")
    if result.reach is not None:
        say(f"note: the journal is complete from {result.reach} on")
    shown = ("index", "arrived", "exchange", "key", "message_id", "bytes", "body")
    rows = [[each.get(name) for name in shown] for each in result.first.listed]
    if rows:
        print_table(shown, rows, "")


# --- the service that runs flows for ever, in a module of its own

import rhizome.cli.pipeline.pipeline_service_commands  # noqa: E402, F401
