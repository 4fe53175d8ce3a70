"""What a service tells of its flows: the document in its state, at its address, and in the console.

STATE/status.json      written every STATUS_SECONDS, and at the end

A thread of its own writes it. The supervisor may wait for a broker or for a job of Spark, longer
than it takes until a status counts as that of a service that is gone.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from rhizome import __version__
from rhizome.spark.service.flow_file import ServiceSettings
from rhizome.spark.service.flow_supervisor import SupervisedFlow
from rhizome.spark.service.state_files import StateFiles

LOG: Final = logging.getLogger("rhizome.pipeline")
FILE: Final = "status.json"
VERSION: Final = 1
STATUS_SECONDS: Final = 5.0
SILENT_SECONDS: Final = 30.0
"""A status that is older tells of a service that is gone, though it says that it runs."""
RUNNING: Final = "running"
STOPPING: Final = "stopping"
STOPPED: Final = "stopped"
SILENT: Final = "silent"


def status_document(
    settings: ServiceSettings,
    flows: list[SupervisedFlow],
    state: str,
    started_s: float,
    now_s: float,
) -> dict[str, Any]:
    """The service and its flows at a moment."""
    return {
        "version": VERSION,
        "release": __version__,
        "name": settings.name,
        "state": state,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started": time_text(started_s),
        "written": time_text(now_s),
        "set_aside": settings.set_aside,
        "flows": [_flow_row(each) for each in flows],
    }


def _flow_row(flow: SupervisedFlow) -> dict[str, Any]:
    figures = flow.figures
    return {
        "name": flow.name,
        "state": str(flow.state),
        "batch": figures.batch,
        "batches": figures.batches,
        "rows": figures.rows,
        "rows_per_second": round(figures.rows_per_second, 1),
        "batch_seconds": figures.batch_s,
        "batch_done": time_text(figures.batch_done_s),
        "seen": time_text(figures.seen_s),
        "lag": figures.lag,
        "restarts": figures.restarts,
        "set_aside": figures.set_aside,
        "error": figures.error or None,
        "error_time": time_text(figures.error_s),
        "next_try": time_text(figures.next_try_s) if flow.state == "waiting" else None,
    }


def time_text(seconds: float) -> str | None:
    if not seconds:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def write_status(files: StateFiles, document: dict[str, Any]) -> None:
    files.write(FILE, json.dumps(document, indent=2).encode())


class StatusWriter:
    """Writes the status now, every `seconds` until it is closed, and then once more."""

    def __init__(
        self,
        files: StateFiles,
        document: Callable[[], dict[str, Any]],
        seconds: float = STATUS_SECONDS,
    ) -> None:
        self._files = files
        self._document = document
        self._seconds = seconds
        self._ended = threading.Event()
        self._writing = threading.Lock()
        self.tell()
        self._thread = threading.Thread(target=self._run, name="rhizome status file", daemon=True)
        self._thread.start()

    def tell(self) -> None:
        """Write it now."""
        with self._writing:
            try:
                write_status(self._files, self._document())
            except OSError as error:
                LOG.warning("the status can't be written to %s: %s", self._files.location, error)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self.tell()

    def _run(self) -> None:
        while not self._ended.wait(self._seconds):
            self.tell()


def read_status(files: StateFiles, now_s: float) -> dict[str, Any] | None:
    """What the service wrote last. `silent` if it says that it runs and has not written for long:
    then its flows are as they were at that time, and nobody runs them."""
    data = files.read(FILE)
    if data is None:
        return None
    document = dict(json.loads(data))
    age_s = now_s - datetime.fromisoformat(document["written"]).timestamp()
    if document["state"] != STOPPED and (age_s > SILENT_SECONDS or _is_gone(document)):
        document["state"] = SILENT
    return document


def _is_gone(document: dict[str, Any]) -> bool:
    """Whether the process that wrote it was on this host and is no more."""
    if document["host"] != socket.gethostname():
        return False
    try:
        os.kill(int(document["pid"]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
