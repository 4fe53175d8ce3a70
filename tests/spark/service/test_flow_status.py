"""What a service tells of itself: status file, its own address, reports to brokers."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import urllib.error
import urllib.request
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from rhizome.management.http.json_body import Document
from rhizome.management.rhizome_api.spark_pipelines import flow_row
from rhizome.spark.service.broker_reporter import StatusReports, report_of
from rhizome.spark.service.flow_file import ServiceSettings
from rhizome.spark.service.set_aside_batches import REASON, Checkpoint, SetAside
from rhizome.spark.service.state_files import StateError, StateFiles
from rhizome.spark.service.status_endpoint import REQUESTS_MAX, StatusEndpoint
from rhizome.spark.service.status_file import (
    SILENT_SECONDS,
    StatusWriter,
    read_status,
    status_document,
    time_text,
    write_status,
)
from rhizome.testing.broker_process import Broker, wait_until
from tests.process.helpers import call_api
from tests.spark.service.test_flow_supervisor import FakeFlow, Play

NOW_S = 1_800_000_000.0


def document_of(play: Play, state: str = "running") -> dict[str, Any]:
    settings = ServiceSettings("orders", "/state", "/aside", ())
    return status_document(settings, play.supervisor.flows, state, NOW_S - 60, NOW_S)


@pytest.fixture
def play() -> Play:
    """A flow that has done two batches and failed."""
    found = Play(FakeFlow())
    found.tend()
    found.flow.queries[-1].do(0)
    found.flow.queries[-1].do(1, lag=7)
    found.tend()
    found.fail("it broke")
    return found


def test_status_is_written_again_and_again_whatever_the_supervisor_waits_for(
    play: Play, tmp_path: Path
) -> None:
    files = StateFiles(str(tmp_path))
    clock = iter(range(1_000_000))
    states = ["running"]

    def document() -> dict[str, Any]:
        found = document_of(play, states[-1])
        return {**found, "written": time_text(NOW_S + SILENT_SECONDS * next(clock))}

    def written_s() -> float:
        found = read_status(files, NOW_S)
        assert found is not None
        return datetime.fromisoformat(found["written"]).timestamp()

    # This thread, which is the supervisor's, does nothing but wait.
    writer = StatusWriter(files, document, seconds=0.01)
    assert written_s() >= NOW_S
    wait_until(lambda: written_s() >= NOW_S + 3 * SILENT_SECONDS, "the status to be renewed")
    states.append("stopped")
    writer.close()
    found = read_status(files, NOW_S)
    assert found is not None
    assert found["state"] == "stopped"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".status")]


def test_status_is_read_as_it_was_written(play: Play, tmp_path: Path) -> None:
    files = StateFiles(str(tmp_path))
    assert read_status(files, NOW_S) is None
    write_status(files, document_of(play))
    found = read_status(files, NOW_S + 5)
    assert found is not None
    assert found["state"] == "running"
    (flow,) = found["flows"]
    assert (flow["state"], flow["rows"], flow["batch"]) == ("waiting", 20, 1)
    assert (flow["lag"], flow["error"]) == ({"s": 7}, "it broke")


def test_service_that_no_longer_writes_is_silent(play: Play, tmp_path: Path) -> None:
    files = StateFiles(str(tmp_path))
    write_status(files, document_of(play))
    found = read_status(files, NOW_S + 31)
    assert found is not None
    assert found["state"] == "silent"
    write_status(files, document_of(play, "stopped"))
    found = read_status(files, NOW_S + 31)
    assert found is not None
    assert found["state"] == "stopped"


def test_service_whose_process_is_gone_is_silent_at_once(play: Play, tmp_path: Path) -> None:
    files = StateFiles(str(tmp_path))
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    write_status(files, {**document_of(play), "pid": child})
    found = read_status(files, NOW_S + 1)
    assert found is not None
    assert found["state"] == "silent"


def test_broker_takes_the_report(play: Play) -> None:
    report = report_of(document_of(play))
    assert report["state"] == "running"
    row = flow_row(Document(report["flows"][0]))
    assert (row["rows"], row["lag_total"], row["batch_ms"]) == (20, 7, 2000)
    assert row["error"] == "it broke"
    assert row["error_ms"] == 1_000_000


def test_metrics_and_health_are_served(play: Play) -> None:
    endpoint = StatusEndpoint("127.0.0.1", 0, lambda: document_of(play))
    where = f"http://127.0.0.1:{endpoint.port}"
    try:
        with urllib.request.urlopen(f"{where}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        assert 'rhizome_pipeline_rows_total{flow="f"} 20.0' in text
        assert 'rhizome_pipeline_lag_messages{flow="f",stream="s"} 7.0' in text
        assert 'rhizome_pipeline_last_error_timestamp_seconds{flow="f"} 1000.0' in text
        assert 'rhizome_pipeline_flow_state{flow="f",state="waiting"} 1.0' in text
        with urllib.request.urlopen(f"{where}/health", timeout=30) as answer:
            assert json.load(answer)["healthy"] is True
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{where}/else", timeout=30)
    finally:
        endpoint.close()


def test_slow_client_holds_neither_others_nor_the_end_up(play: Play) -> None:
    endpoint = StatusEndpoint("127.0.0.1", 0, lambda: document_of(play))
    where = ("127.0.0.1", endpoint.port)
    with contextlib.ExitStack() as slow:
        # One fewer than are served at the same time: each has begun a request and ends it never.
        for _ in range(REQUESTS_MAX - 1):
            connection = slow.enter_context(socket.create_connection(where))
            connection.sendall(b"GET /health HTTP/1.1\r\nX: ")
        url = f"http://127.0.0.1:{endpoint.port}/health"
        with urllib.request.urlopen(url, timeout=30) as answer:
            assert answer.status == 200
        endpoint.close()


def test_the_oldest_request_gives_way_to_one_more(play: Play) -> None:
    """Silent clients would keep those out who ask for the health of the service."""
    endpoint = StatusEndpoint("127.0.0.1", 0, lambda: document_of(play))
    where = ("127.0.0.1", endpoint.port)
    try:
        with contextlib.ExitStack() as opened:
            silent = [
                opened.enter_context(socket.create_connection(where, timeout=30))
                for _ in range(REQUESTS_MAX)
            ]
            url = f"http://127.0.0.1:{endpoint.port}/health"
            with urllib.request.urlopen(url, timeout=30) as answer:
                assert answer.status == 200
            assert silent[0].recv(1) == b""
    finally:
        endpoint.close()


@pytest.mark.parametrize(
    ("host", "code"),
    [("evil.example", 421), ("127.0.0.1:80", 200), ("localhost", 200), ("[::1]:80", 200)],
)
def test_page_of_another_site_can_t_read_the_status(play: Play, host: str, code: int) -> None:
    endpoint = StatusEndpoint("127.0.0.1", 0, lambda: document_of(play))
    try:
        connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=30)
        connection.request("GET", "/status", headers={"Host": host})
        assert connection.getresponse().status == code
        connection.close()
    finally:
        endpoint.close()


def test_two_services_can_t_have_one_state(tmp_path: Path) -> None:
    files = StateFiles(str(tmp_path))
    lock = files.lock()
    with pytest.raises(StateError, match="another service"):
        StateFiles(str(tmp_path)).lock()
    assert lock is not None
    lock.close()
    again = files.lock()
    assert again is not None
    again.close()


def offset(**following: int) -> str:
    return json.dumps({"version": 1, "next": following, "parts": 1, "least": 4096})


def test_batch_under_way_is_found_in_the_checkpoint(tmp_path: Path) -> None:
    files = StateFiles(str(tmp_path))
    checkpoint = Checkpoint(files, "c", {"a": 5})
    assert checkpoint.pending() is None
    files.write("c/metadata", b'{"id": "q"}')
    files.write("c/offsets/0", f"v1\n{{}}\n{offset(a=20)}".encode())
    first = checkpoint.pending()
    assert first is not None
    assert (first.name, first.bounds(), first.messages) == ("q-0", {"a": (5, 20)}, 15)
    files.write("c/commits/0", b"v1\n{}")
    assert checkpoint.pending() is None
    files.write("c/offsets/1", f"v1\n{{}}\n{offset(a=30, b=4)}".encode())
    second = checkpoint.pending()
    assert second is not None
    assert second.bounds() == {"a": (20, 30), "b": (0, 4)}

    kept = SetAside(files, "f")
    assert kept.excluded(second) == {}
    files.write(f"f/{second.name}/{REASON}", b"{}")
    assert kept.excluded(second) == {"a": (20, 30), "b": (0, 4)}
    assert kept.excluded(first) == {}
    assert kept.count() == 1


def test_reports_reach_the_console_of_a_broker(play: Play, broker: Broker) -> None:
    uri = f"http://guest:guest@{broker.host}:{broker.http_port}/"
    reports = StatusReports(uri, lambda: {**document_of(play), "name": "told"})

    def told() -> list[dict[str, Any]]:
        return list(call_api(broker, "GET", "rhizome", "pipelines"))

    try:
        wait_until(lambda: bool(told()), "the report", 60)
    finally:
        reports.close()
    (row,) = told()
    assert (row["name"], row["state"], row["user"]) == ("told", "running", "guest")
    assert row["flows"][0]["lag"] == {"s": 7}
