"""A scripted HTTP API for the commands, and a runner for them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from rhizome.cli.main import app


@dataclass
class Request:
    """One request that a command made."""

    verb: str
    target: str
    document: Any
    headers: dict[str, str]


@dataclass
class ScriptedApi:
    """Answers "VERB /path?query" as told, everything else with 404."""

    port: int = 0
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def answer(self, line: str, document: Any = None, status: int = 200) -> None:
        self.answers[line] = (status, document)


def _handler(api: ScriptedApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _any(self) -> None:
            text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            document = json.loads(text) if text else None
            api.requests.append(Request(self.command, self.path, document, dict(self.headers)))
            missing = (404, {"error": "Object Not Found", "reason": "Not Found"})
            status, answer = api.answers.get(f"{self.command} {self.path}", missing)
            body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            body = b"" if answer is None else body
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = _any  # noqa: N815 - names of the base class

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    return Handler


@contextmanager
def scripted_api() -> Iterator[ScriptedApi]:
    scripted = ScriptedApi()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(scripted))
    scripted.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield scripted
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def api() -> Iterator[ScriptedApi]:
    with scripted_api() as scripted:
        yield scripted


@pytest.fixture
def other_api() -> Iterator[ScriptedApi]:
    """Another broker's."""
    with scripted_api() as scripted:
        yield scripted


@pytest.fixture
def rhizome(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Result]:
    """Run `rhizome ...` in this process; `input` is the standard input."""
    monkeypatch.setenv("RHIZOME_CONTEXTS", str(tmp_path / "config" / "contexts.json"))
    for variable in ("RHIZOME_HTTP", "RHIZOME_URI", "RHIZOME_CONTEXT_IN_FORCE"):
        monkeypatch.setenv(variable, "")  # so that what a context sets is taken back, too
        monkeypatch.delenv(variable)
    runner = CliRunner()

    def run(*arguments: str, **options: Any) -> Result:
        return runner.invoke(app, list(arguments), **options)

    return run
