"""/api/rhizome/checkup: the facts that `rhizome doctor` checks, of every broker that answers.

These are facts only; `rhizome doctor` decides what is wrong with them.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from time import time
from typing import Final

from starlette.responses import Response

from rhizome import __version__
from rhizome.broker.metadata.vhost_metadata_byte_quota import quota_of
from rhizome.management.api_context import Context
from rhizome.management.certificate_expiry import ends_of
from rhizome.management.http.api_call import Call
from rhizome.management.http.auth import MONITORING
from rhizome.management.http.endpoint import GET
from rhizome.management.http.json_responses import Row, answer
from rhizome.management.metrics.process_stats import open_files, open_files_max, resident_set_bytes
from rhizome.management.metrics.slow_turns import SLOW_TURNS
from rhizome.management.openapi.endpoint_shapes import (
    FLAG,
    NUMBER,
    TEXT,
    attributes,
    by_name,
    fields,
    many,
    maybe,
    record,
    row_of,
    with_fields,
)
from rhizome.management.openapi.rhizome_schemas import CLUSTER, STALL
from rhizome.management.peers.cluster_wide_queries import documents
from rhizome.management.rhizome_api.cluster_status_and_changes import view_of
from rhizome.management.rhizome_api.damaged_message_list import DAMAGED, own_rows
from rhizome.management.rhizome_api.stalls import cluster_stalls, own_stalls
from rhizome.management.rhizome_api.stream_readers import at_risk

PATH: Final = "/api/rhizome/checkup"
OWN_PATH: Final = PATH + "/own"
FULL_SHARE: Final = 0.9
"""A vhost is reported as full from this share of its quota on."""

FAULTY_PATTERNS_SHOWN_MAX: Final = 100
DAMAGED_TOLD_MAX: Final = 100
"""The most damaged messages listed; /api/rhizome/damaged has all."""

CERTIFICATE: Final = record("Certificate", {"file": TEXT, "ends_ms": maybe(NUMBER), "error": TEXT})
SALVAGED: Final = record(
    "Salvaged", {"name": TEXT, "group": NUMBER, "messages": NUMBER, "saved_ms": NUMBER}
)
FULL_VHOST: Final = record(
    "FullVhost", {"name": TEXT, "state_bytes": NUMBER, "state_bytes_max": NUMBER}
)
FAULTY_PATTERN: Final = record(
    "FaultyPattern", {"kind": TEXT, "vhost": TEXT, "name": TEXT, "exchange": TEXT, "fault": TEXT}
)
DAMAGED_COPY: Final = record(
    "DamagedCopy", {"vhost": TEXT, "queue": TEXT, "index": NUMBER, "reason": TEXT}
)
FAULT: Final = record(
    "Fault", {"kind": TEXT, "count": NUMBER, "where": TEXT, "text": TEXT, "last_ms": NUMBER}
)
READER_AT_RISK: Final = record(
    "ReaderAtRisk", {"vhost": TEXT, "stream": TEXT, "reader": TEXT, "unread": NUMBER}
)
LOG: Final = record("Log", {"log": TEXT, **fields(NUMBER, "lost_lines waiting_lines stuck_ms")})
ISSUER: Final = record(
    "Issuer",
    {
        **fields(TEXT, "name url trouble"),
        **fields(NUMBER, "keys_count fetches failures"),
        "age_ms": maybe(NUMBER),
        "left_out": many(TEXT),
    },
)
FACTS: Final = record(
    "CheckupFacts",
    {
        **fields(TEXT, "version alarm disabled"),
        **fields(
            NUMBER,
            "clock_ms uptime_ms disk_free_bytes disk_free_min_bytes "
            "memory_bytes memory_max_bytes files_open files_max "
            "connections connections_max cluster_keys torn_bytes",
        ),
        "certificates": many(CERTIFICATE),
        "stalls": many(STALL),
        "salvaged": many(SALVAGED),
        "unseen_groups": many(NUMBER),
        **fields(many(TEXT), "exposed_links troubled_homes"),
        "full_vhosts": many(FULL_VHOST),
        "faulty_patterns": many(FAULTY_PATTERN),
        "slow_turns": SLOW_TURNS,
        "stopped_unsynced": FLAG,
        "damaged": many(DAMAGED),
        "damaged_copies": many(DAMAGED_COPY),
        "faults": many(FAULT),
        "readers_at_risk": many(READER_AT_RISK),
        "logs": many(LOG),
        "issuers": many(ISSUER),
    },
)
CHECKUP: Final = with_fields(
    CLUSTER,
    "Checkup",
    {
        **fields(NUMBER, "asked_ms answered_ms"),
        "facts": by_name(FACTS),
        "silent": many(TEXT),
        "stalls": many(STALL),
    },
)


def facts(context: Context) -> Row:
    """What is known of this broker."""
    broker = context.broker
    view = view_of(context)
    return {
        "version": __version__,
        "clock_ms": clock_ms(),
        "uptime_ms": context.uptime_ms(),
        "alarm": context.shell.alarm,
        "disk_free_bytes": context.store.free_bytes(),
        "disk_free_min_bytes": context.config.disk.free_min_bytes,
        "memory_bytes": resident_set_bytes(),
        "memory_max_bytes": context.memory_max_bytes(),
        "files_open": open_files(),
        "files_max": open_files_max(),
        "connections": len(broker.running_connections()),
        "connections_max": int(broker.limits.connections_max),
        "certificates": certificates(context.config.tls.certificate),
        "stalls": own_stalls(context),
        "salvaged": salvaged(context),
        "unseen_groups": view.unseen_groups(),
        "cluster_keys": len(view.key_fingerprints()),
        "exposed_links": view.exposed_links(),
        "troubled_homes": view.troubled_homes(),
        "full_vhosts": full_vhosts(context),
        "faulty_patterns": [
            asdict(each) for each in broker.state.faulty_patterns()[:FAULTY_PATTERNS_SHOWN_MAX]
        ],
        "slow_turns": context.slow_turns.row(),
        "torn_bytes": context.store.torn_bytes(),
        "stopped_unsynced": context.store.stopped_unsynced(),
        "damaged": own_rows(context)[:DAMAGED_TOLD_MAX],
        "damaged_copies": damaged_copies(context)[:DAMAGED_TOLD_MAX],
        "faults": fault_rows(context),
        "disabled": broker.disabled,
        "readers_at_risk": at_risk(context),
        "logs": list(map(attributes(LOG), context.logs)),
        "issuers": list(map(attributes(ISSUER), context.issuers())),
    }


def salvaged(context: Context) -> list[Row]:
    """What copies had that a forced home lacks."""
    return list(map(attributes(SALVAGED), context.store.salvage.entries()))


def damaged_copies(context: Context) -> list[Row]:
    """Messages that can't be read in copies of groups that are active elsewhere."""
    broker = context.broker
    rows: list[Row] = []
    for (queue_id, index), reason in broker.damage.in_copies.items():
        queue = broker.shared.get(queue_id)
        if queue is not None and queue.away is not None:
            rows.append(
                {"vhost": queue.vhost, "queue": queue.name, "index": index, "reason": reason}
            )
    return rows


def fault_rows(context: Context) -> list[Row]:
    """Unexpected exceptions, and what the last one of each kind was about."""
    return list(map(attributes(FAULT), context.broker.faults.faults.values()))


def full_vhosts(context: Context) -> list[Row]:
    """Vhosts that have nearly all that they may have of the cluster state, or more."""
    state = context.broker.state
    rows: list[Row] = []
    for name in state.vhosts:
        used, quota = state.sizes.of(name), quota_of(state, name)
        if used >= quota * FULL_SHARE:
            rows.append({"name": name, "state_bytes": used, "state_bytes_max": quota})
    return rows


def clock_ms() -> int:
    """The wall clock now, not at the beginning of the turn: it is compared with others."""
    return int(time() * 1000)


def certificates(path: str) -> list[Row]:
    """When the certificates in a file end; one that can't be read says why."""
    if not path:
        return []
    try:
        ends = ends_of(Path(path).read_text())
    except (OSError, ValueError, IndexError) as error:
        return [{"file": path, "ends_ms": None, "error": str(error)}]
    return [{"file": path, "ends_ms": int(end.timestamp() * 1000), "error": ""} for end in ends]


async def show_own(call: Call) -> Response:
    """The facts of the broker that is asked."""
    return answer(facts(call.context))


async def show_checkup(call: Call) -> Response:
    """The facts of every broker, its clock read between ``asked_ms`` and ``answered_ms``."""
    context = call.context
    asked_ms = clock_ms()
    found, gathered = await documents(call, call.question(OWN_PATH))
    answered_ms = clock_ms()
    document = await view_of(context).cluster_document()
    return answer(
        {
            **document.row(),
            "asked_ms": asked_ms,
            "answered_ms": answered_ms,
            "facts": {context.name: facts(context), **found},
            "silent": gathered.silent,
            "stalls": cluster_stalls(document),
        }
    )


ENDPOINTS: Final = (
    GET(PATH, MONITORING, show_checkup, row_of(CHECKUP)),
    GET(OWN_PATH, MONITORING, show_own, row_of(FACTS)),
)
