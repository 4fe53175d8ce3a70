"""Reports of a service to a broker, which shows them in its console (`report` in the file).

Sent by a thread of their own: a broker that is slow or away holds nothing up. What is told is what
`status_document` has, without texts that are too long; a report that fails is dropped, and the next
one tells more.
"""

from __future__ import annotations

import http.client
import json
import logging
import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

from rhizome.client.connection_uri import Address
from rhizome.spark.journal.remote_broker_stores import (
    http_addresses,
    http_connection,
    login_headers,
)

LOG: Final = logging.getLogger("rhizome.pipeline")
REPORT_SECONDS: Final = 10.0
ANSWER_SECONDS_MAX: Final = 10.0
STREAMS_MAX: Final = 100
"""Of one flow: those with the greatest lag."""
ERROR_CHARS_MAX: Final = 1000


class StatusReports:
    """Reports every REPORT_SECONDS until it is closed, and then once more."""

    def __init__(self, uri: str, document: Callable[[], dict[str, Any]]) -> None:
        self._addresses = http_addresses(uri)
        self._document = document
        self._ended = threading.Event()
        self._failure = ""
        self._thread = threading.Thread(target=self._run, name="rhizome report", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Report the end; no longer than an answer of each broker takes."""
        self._ended.set()
        self._thread.join(ANSWER_SECONDS_MAX * len(self._addresses))

    def _run(self) -> None:
        while True:
            self._report()
            if self._ended.wait(REPORT_SECONDS):
                self._report()
                return

    def _report(self) -> None:
        """To the first broker that takes it, beginning with the one that did last."""
        document = self._document()
        body = json.dumps(report_of(document)).encode()
        failure = ""
        for address in list(self._addresses):
            try:
                _send(address, document["name"], body)
            except (OSError, http.client.HTTPException) as error:
                failure = f"{address.label}: {str(error) or type(error).__name__}"
                self._addresses = [*self._addresses[1:], self._addresses[0]]
            else:
                failure = ""
                break
        if failure and failure != self._failure:
            LOG.warning("the status can't be reported to a broker: %s", failure)
        self._failure = failure


def _send(address: Address, name: str, body: bytes) -> None:
    connection = http_connection(address, ANSWER_SECONDS_MAX)
    try:
        path = f"/api/rhizome/pipelines/{quote(address.vhost, safe='')}/{quote(name, safe='')}"
        headers = {**login_headers(address), "content-type": "application/json"}
        connection.request("POST", f"{path}/report", body, headers)
        answer = connection.getresponse()
        said = answer.read(ERROR_CHARS_MAX)
        if answer.status >= 300:
            raise OSError(f"{answer.status} {said.decode(errors='replace')}")
    finally:
        connection.close()


def report_of(document: dict[str, Any]) -> dict[str, Any]:
    """A status as brokers take it."""
    return {
        "state": document["state"],
        "host": document["host"],
        "flows": [_flow_of(each) for each in document["flows"]],
    }


def _flow_of(flow: dict[str, Any]) -> dict[str, Any]:
    greatest = sorted(flow["lag"].items(), key=lambda item: -item[1])[:STREAMS_MAX]
    same = ("name", "state", "batch", "batches", "rows", "rows_per_second", "restarts", "set_aside")
    return {
        **{name: flow[name] for name in same},
        "lag": dict(greatest),
        "lag_total": sum(flow["lag"].values()),
        "batch_ms": int(flow["batch_seconds"] * 1000),
        "batch_done_ms": _ms(flow["batch_done"]),
        "error": (flow["error"] or "")[:ERROR_CHARS_MAX],
        "error_ms": _ms(flow["error_time"]),
    }


def _ms(text: str | None) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000) if text else 0
