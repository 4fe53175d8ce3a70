"""/api/rhizome/pipelines: pipeline services on Spark, as they report themselves.

A service (`rhizome pipeline run`) reports the state of its flows to one broker, which keeps the
last report in memory and shows it in lists and in the console. The broker decides nothing by it. A
service whose report is not renewed for SILENT_MS is shown as silent, and forgotten after KEPT_MS.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import Response

from rhizome.management.api_context import PIPELINES_MAX, Context, PipelineReport
from rhizome.management.errors import BadRequest, Conflict
from rhizome.management.http.api_call import Call
from rhizome.management.http.auth import MANAGEMENT
from rhizome.management.http.endpoint import GET, POST
from rhizome.management.http.json_body import Document
from rhizome.management.http.json_responses import Row, done, part_of, shown
from rhizome.management.openapi import rhizome_schemas
from rhizome.management.openapi.endpoint_shapes import DONE, rows_of
from rhizome.management.peers import cluster_wide_queries
from rhizome.management.peers.cluster_wide_queries import ask_all, listed_everywhere, rows_of_reply

PATH: Final = "/api/rhizome/pipelines"
SILENT_MS: Final = 60_000
KEPT_MS: Final = 24 * 3_600_000
BODY_BYTES_MAX: Final = 128 * 1024
FLOWS_MAX: Final = 64
STREAMS_MAX: Final = 100
"""The most streams of one flow in a report: those with the greatest lag."""
NAME_CHARS_MAX: Final = 255
ERROR_CHARS_MAX: Final = 2000
STATES: Final = ("running", "stopping", "stopped")
FLOW_STATES: Final = ("starting", "running", "waiting", "halted", "stopped")
SILENT: Final = "silent"
NUMBERS: Final = (
    "batches",
    "rows",
    "batch_ms",
    "batch_done_ms",
    "restarts",
    "set_aside",
    "error_ms",
    "lag_total",
)
_NUMBER_MAX: Final = 1 << 62


def reports_of(context: Context) -> dict[tuple[str, str], PipelineReport]:
    """The reports here, by vhost and name, without those that are too old."""
    context.shell.begin_turn()  # which sets the clock
    found, now_ms = context.pipelines, context.now_ms()
    for key, report in list(found.items()):
        if now_ms - report.reported_ms > KEPT_MS:
            del found[key]
    return found


@dataclass(frozen=True, slots=True)
class _Shown:
    """A report and what is said of it now."""

    report: PipelineReport
    node: str
    now_ms: int


def pipeline_row(shown: _Shown) -> Row:
    """A service. ``age_ms`` is how long ago it has reported."""
    report = shown.report
    age_ms = max(0, shown.now_ms - report.reported_ms)
    is_silent = report.state != "stopped" and age_ms > SILENT_MS
    return {
        "name": report.name,
        "vhost": report.vhost,
        "node": shown.node,
        "user": report.user,
        "state": SILENT if is_silent else report.state,
        "host": report.host,
        "age_ms": age_ms,
        "flows": report.flows,
    }


async def list_pipelines(call: Call) -> Response:
    """The services that report to any broker, each once, as it has reported last. A service that
    finds its broker slow or away reports to another one, and the first still has its old report."""
    names = {vhost.name for vhost in call.vhosts()}
    context = call.context
    own = [
        pipeline_row(_Shown(report, context.name, context.now_ms()))
        for (vhost, _), report in sorted(reports_of(context).items())
        if vhost in names
    ]
    if call.asked:
        return await listed_everywhere(call, own, _same)
    # Without the query: to compare reports takes all of their columns, and all pages.
    gathered = await ask_all(call, call.question(call.target().partition("?")[0]))
    others = [row for reply in gathered.replies.values() for row in rows_of_reply(reply)]
    response = await shown(call, await part_of(call, _latest(own + others), _same), _same)
    if gathered.silent:
        response.headers[cluster_wide_queries.SILENT] = ",".join(gathered.silent)
    return response


def _latest(rows: list[Row]) -> list[Row]:
    """Of each service the report that is the youngest."""
    found: dict[tuple[object, object], Row] = {}
    for row in sorted(rows, key=_age_ms):
        found.setdefault((row["vhost"], row["name"]), row)
    return [found[key] for key in sorted(found, key=str)]


def _age_ms(row: Row) -> int:
    age_ms = row["age_ms"]
    assert isinstance(age_ms, int)
    return age_ms


def _same(row: Row) -> Row:
    return row


async def take_report(call: Call) -> Response:
    """Take the report of a service. One that another user reports is refused while it lives."""
    vhost, name = call.vhost().name, _short(call.name(), "name")
    document = await call.document(BODY_BYTES_MAX)
    context = call.context
    context.shell.begin_turn()
    flows = list(document.items("flows"))
    if len(flows) > FLOWS_MAX:
        raise BadRequest(f"the report has {len(flows)} flows; {FLOWS_MAX} are the limit")
    report = PipelineReport(
        name,
        vhost,
        call.caller.user,
        _one_of(document, "state", STATES),
        _short(document.text("host", ""), "host"),
        [flow_row(each) for each in flows],
        context.now_ms(),
    )
    _make_room(context, report)
    context.pipelines[vhost, name] = report
    return done()


def _make_room(context: Context, report: PipelineReport) -> None:
    found = reports_of(context)
    before = found.get((report.vhost, report.name))
    if before is not None:
        if before.user != report.user and report.reported_ms - before.reported_ms <= SILENT_MS:
            raise Conflict(
                f"pipeline '{report.name}' is reported by user '{before.user}'; give yours "
                "another name"
            )
        return
    if len(found) < PIPELINES_MAX:
        return
    oldest = min(found, key=lambda key: found[key].reported_ms)
    if report.reported_ms - found[oldest].reported_ms > SILENT_MS:
        del found[oldest]
        return
    # All of them live. The vhost with most gives way, so that none keeps others out.
    counts = Counter(vhost for vhost, _ in found)
    fullest, count = counts.most_common(1)[0]
    if count <= counts[report.vhost] + 1:
        raise Conflict(f"this broker shows {PIPELINES_MAX} pipelines, and no more")
    of_fullest = [key for key in found if key[0] == fullest]
    del found[min(of_fullest, key=lambda key: found[key].reported_ms)]


def flow_row(document: Document) -> Row:
    """A flow of a report, checked: only known fields are kept."""
    row: Row = {
        "name": _short(document.text("name"), "name"),
        "state": _one_of(document, "state", FLOW_STATES),
        "batch": _number(document, "batch") if "batch" in document else None,
        "rows_per_second": _real(document, "rows_per_second"),
        "error": document.text("error", "")[:ERROR_CHARS_MAX],
        "lag": _lag(document.table("lag")),
    }
    for name in NUMBERS:
        row[name] = _number(document, name)
    return row


def _number(document: Document, name: str) -> int:
    found = document.number(name, 0)
    if not 0 <= found < _NUMBER_MAX:
        raise BadRequest(f"{name} is {found}; it must be 0 or more")
    return found


def _real(document: Document, name: str) -> float:
    found: Any = document.value(name) if name in document else 0
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not 0 <= found < 1e18:
        raise BadRequest(f"{name} must be a number, 0 or more")
    return float(found)


def _lag(table: dict[str, object]) -> dict[str, int]:
    if len(table) > STREAMS_MAX:
        raise BadRequest(f"lag has {len(table)} streams; {STREAMS_MAX} are the limit")
    document = Document(dict(table))
    return {_short(name, "lag"): _number(document, name) for name in table}


def _one_of(document: Document, name: str, choices: tuple[str, ...]) -> str:
    found = document.text(name)
    if found not in choices:
        raise BadRequest(f"{name} must be one of {', '.join(choices)}")
    return found


def _short(text: str, what: str) -> str:
    if len(text) > NAME_CHARS_MAX:
        raise BadRequest(f"{what} is longer than {NAME_CHARS_MAX} characters")
    return text


ENDPOINTS: Final = (
    GET(PATH, MANAGEMENT, list_pipelines, rows_of(rhizome_schemas.PIPELINE)),
    GET(PATH + "/{vhost}", MANAGEMENT, list_pipelines, rows_of(rhizome_schemas.PIPELINE)),
    POST(
        PATH + "/{vhost}/{name}/report",
        MANAGEMENT,
        take_report,
        DONE,
        rhizome_schemas.PIPELINE_REPORT,
    ),
)
