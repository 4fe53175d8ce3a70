"""`rhizome pipeline`: jobs on Spark. Local unless --master names a Spark cluster.

Results go to stdout, progress to stderr, what Spark has to say to a log file. Exit codes: 0 done,
1 it failed, 2 the command line is wrong, 3 the audit found something, 130 interrupted.
"""

from __future__ import annotations

import re
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
from rhizome.cli.options import URI_DEFAULT, JsonOption, UriOption, VhostOption, checked_uri
from rhizome.cli.output import bytes_text, print_fields, print_json, print_table, say
from rhizome.printable import escaped

if TYPE_CHECKING:
    from rhizome.spark.jobs.watching import Figures, Tell

app = typer.Typer(no_args_is_help=True, help="Archive, report, audit and replay with Spark.")

VIOLATIONS_EXIT_CODE: Final = 3
_OUR_ERROR: Final = re.compile(r"rhizome\.[\w.]+(?:Error|Lost|Failed|Refused)\w*: (.+)")

SparkOption = Annotated[
    str, typer.Option("--master", help="Spark cluster to run on.", rich_help_panel="Spark")
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress.", rich_help_panel="Spark")
]
LogOption = Annotated[
    str,
    typer.Option(
        "--spark-log",
        metavar="DIR",
        help="Directory for Spark's log and scratch files.",
        show_default="a temporary one",
        rich_help_panel="Spark",
    ),
]
StreamOption = Annotated[
    str, typer.Option("--stream", help="Streams, comma-separated; of a partitioned one its name.")
]
ArchiveOption = Annotated[str, typer.Option("--archive", help="Path of an archive.")]
JournalOption = Annotated[
    str, typer.Option("--journal", help="Data directories of brokers; commas and patterns work.")
]
WhereOption = Annotated[
    str, typer.Option("--where", help="Condition in SQL on the columns of the source.")
]


@app.callback()
def _family() -> None:
    """Archive, report, audit and replay with Spark."""


# --- sessions and progress


class Teller:
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
def running(name: str, where: str, log: str, quiet: bool) -> Iterator[tuple[Any, Tell]]:
    """A session for one job, and what shows its progress. Failures of Spark come out in a line.

    Who has a session already, a notebook or a test, keeps it.
    """
    from pyspark.sql import SparkSession

    from rhizome.spark.session import LOG_NAME, local_session

    directory = Path(log) if log else Path(tempfile.mkdtemp(prefix="rhizome-pipeline-"))
    tell = Teller(quiet)
    tell(_starting())
    session = None
    found = SparkSession.getActiveSession()
    try:
        session = found or local_session(name, where, directory)
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
    if not log:
        shutil.rmtree(directory, ignore_errors=True)


def _starting() -> Figures:
    from rhizome.spark.jobs.watching import Figures

    return Figures("starting Spark")


def _require_spark() -> None:
    from importlib.util import find_spec

    if find_spec("pyspark") is None:
        raise CliError("the pipeline needs Spark; install it with: pip install 'rhizome[spark]'")
    if shutil.which("java") is None:
        raise CliError("Spark needs Java 17; on Debian: apt-get install openjdk-17-jre-headless")


def failure_text(error: BaseException) -> str | None:
    """The line that matters of a failure of Spark; None if it is none of Spark's."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    if not isinstance(error, (PySparkException, Py4JError)):
        return None
    text = str(error)
    ours = _OUR_ERROR.findall(text)
    if ours:
        return one_line(ours[-1])
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    return one_line(first)


def finish(result: Any, as_json: bool) -> bool:
    """Print the result for programs; whether people still have to be told."""
    if as_json:
        print_json(result.document())
    return not as_json


# --- commands


@app.command()
def archive(
    streams: Annotated[list[str], typer.Argument(metavar="STREAM...", help="Names of streams.")],
    to: Annotated[str, typer.Option("--to", help="Path of the archive, made if it isn't there.")],
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
    where: SparkOption = "local[*]",
    log: LogOption = "",
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Copy streams to Parquet, each message once; the next run goes on where this one ended."""
    _require_spark()
    from rhizome.spark.jobs import archive as job

    options = job.ArchiveOptions(
        uri, tuple(streams), to, "", start, follow, interval, fail_on_loss=not lossy
    )
    interrupted = threading.Event()
    with running("archive", where, log, quiet or as_json) as (spark, tell):
        if follow:
            with interrupts.handled(interrupted.set):
                result = job.run(spark, options, tell, interrupted.is_set)
        else:
            result = job.run(spark, options, tell)
    if finish(result, as_json):
        batches = "1 batch" if result.batches == 1 else f"{result.batches} batches"
        say(f"{result.messages:,} messages in {batches} added to {result.to}")


@app.command()
def traffic(
    stream: StreamOption = "",
    archive_path: ArchiveOption = "",
    journal: JournalOption = "",
    html: Annotated[str, typer.Option("--html", help="Where the report goes.")] = "traffic.html",
    where_sql: WhereOption = "",
    uri: UriOption = URI_DEFAULT,
    where: SparkOption = "local[*]",
    log: LogOption = "",
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Rates, sizes, latencies and top talkers of a stream, an archive or a journal."""
    _require_spark()
    from rhizome.spark.jobs import traffic as job

    options = job.TrafficOptions(uri, stream, archive_path, journal, where_sql, html)
    with running("traffic", where, log, quiet or as_json) as (spark, tell):
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
def audit(
    paths: Annotated[
        list[str], typer.Argument(metavar="DIR...", help="Data directories of brokers.")
    ],
    listed: Annotated[
        int, typer.Option("--list", min=1, help="List at most so many of each kind.")
    ] = 100,
    where: SparkOption = "local[*]",
    log: LogOption = "",
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare all copies of all groups, and look for lost, doubled, changed and damaged records.

    Brokers may be running: copies are compared at an index that all of them have reached. The exit
    code is 3 if something was found.
    """
    _require_spark()
    from rhizome.spark.jobs import audit as job

    options = job.AuditOptions(",".join(paths), listed)
    job.check_paths(options.paths)
    with running("audit", where, log, quiet or as_json) as (spark, tell):
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
def replay(
    name: Annotated[str, typer.Option("--name", help="Under one name each message is sent once.")],
    archive_path: ArchiveOption = "",
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
    where: SparkOption = "local[*]",
    log: LogOption = "",
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Send messages of an archive, a stream or a journal again, as they were published."""
    _require_spark()
    from rhizome.spark.jobs import replay as job

    options = job.ReplayOptions(
        uri, name, archive_path, stream, journal, uri_from, exchange, queue, key, where_sql, rate,
        exact=exact,
    )  # fmt: skip
    with running("replay", where, log, quiet or as_json) as (spark, tell):
        result = job.run(spark, options, tell)
    if finish(result, as_json):
        say(f"{result.messages:,} messages sent as '{result.name}'")


@app.command()
def deadletters(
    queue: Annotated[str, typer.Option("--queue", help="Dead-letter queue, with --journal.")] = "",
    journal: JournalOption = "",
    stream: StreamOption = "",
    archive_path: ArchiveOption = "",
    where_sql: WhereOption = "",
    vhost: VhostOption = "/",
    uri: UriOption = URI_DEFAULT,
    where: SparkOption = "local[*]",
    log: LogOption = "",
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Dead letters by the queue they died in, the reason, and what they look like."""
    _require_spark()
    from rhizome.spark.jobs import deadletters as job

    options = job.DeadletterOptions(uri, stream, archive_path, journal, queue, vhost, where_sql)
    with running("deadletters", where, log, quiet or as_json) as (spark, tell):
        result = job.run(spark, options, tell)
    if finish(result, as_json):
        shown = ("messages", "died_in", "reason", "exchange", "key", "shape", "last", "example")
        rows = [[group[name] for name in shown] for group in result.groups]
        print_table(shown, rows, "no dead letters")


@app.command()
def redrive(
    queue: Annotated[str, typer.Argument(help="Dead-letter queue.")],
    where_sql: WhereOption = "",
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="Look at so many messages.")
    ] = 10_000,
    exchange: Annotated[
        str | None, typer.Option("--exchange", help="Send them there instead.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="Instead of the one they had.")] = None,
    uri: UriOption = URI_DEFAULT,
    where: SparkOption = "local[*]",
    log: LogOption = "",
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Put dead letters back into the queue they died in: those that --where chooses, each once."""
    _require_spark()
    from rhizome.spark.jobs import deadletters as job

    options = job.RedriveOptions(uri, queue, where_sql, limit, exchange, key)
    with running("redrive", where, log, quiet or as_json) as (spark, tell):
        result = job.redrive(spark, options, tell)
    if finish(result, as_json):
        say(f"{result.sent:,} of {result.seen:,} messages sent back, {result.left:,} left")


@app.command()
def timetravel(
    queue: Annotated[str, typer.Argument(help="Name of a queue.")],
    at: Annotated[str, typer.Option("--at", help="A time, like 2026-11-16T08:00:00Z.")],
    journal: Annotated[
        str, typer.Option("--journal", help="Data directory of the queue's home, or of copies.")
    ],
    until: Annotated[str, typer.Option("--until", help="Compare with this time.")] = "",
    to: Annotated[str, typer.Option("--to", help="Write the messages there, as Parquet.")] = "",
    listed: Annotated[int, typer.Option("--list", min=0, help="Show so many messages.")] = 20,
    vhost: VhostOption = "/",
    where: SparkOption = "local[*]",
    log: LogOption = "",
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """What was in a queue at a time, and with --until what came and went since."""
    _require_spark()
    from rhizome.spark.jobs import timetravel as job

    until_ms = job.time_ms(until) if until else None
    options = job.TimetravelOptions(
        journal, queue, job.time_ms(at), until_ms, vhost, to, listed_max=listed
    )
    with running("timetravel", where, log, quiet or as_json) as (spark, tell):
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
