"""A REST catalogue of Iceberg tables, as far as tests ask it: it keeps them in SQLite."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

TOKEN = "let-me-in"


def _answer(catalog: Any, method: str, path: list[str], body: bytes) -> tuple[int, Any]:
    """Status and document. Paths: config, namespaces, namespaces/N/tables[/T]."""
    from pyiceberg.exceptions import (
        CommitFailedException,
        NamespaceAlreadyExistsError,
        NoSuchTableError,
    )
    from pyiceberg.table import CommitTableRequest

    try:
        match method, path:
            case "GET", ["config"]:
                return 200, {"defaults": {}, "overrides": {}}
            case "POST", ["namespaces"]:
                catalog.create_namespace(tuple(json.loads(body)["namespace"]))
                return 200, json.loads(body)
            case "POST", ["namespaces", namespace, "tables"]:
                return 200, _staged(catalog, namespace, body)
            case "GET", ["namespaces", namespace, "tables", name]:
                found = catalog.load_table((namespace, name))
                return 200, _document(found.metadata, found.metadata_location)
            case "POST", ["namespaces", namespace, "tables", name]:
                request = CommitTableRequest.model_validate_json(body)
                table = SimpleNamespace(name=lambda: (namespace, name))
                done = catalog.commit_table(table, request.requirements, request.updates)
                return 200, _document(done.metadata, done.metadata_location)
    except NamespaceAlreadyExistsError as error:
        return 409, _error(409, error)
    except CommitFailedException as error:
        return 409, _error(409, error)
    except NoSuchTableError as error:
        return 404, _error(404, error)
    return 404, _error(404, f"{method} {path}")


def _staged(catalog: Any, namespace: str, body: bytes) -> Any:
    from pyiceberg.catalog.rest import CreateTableRequest

    asked = CreateTableRequest.model_validate_json(body)
    assert asked.stage_create
    table = catalog._create_staged_table(
        (namespace, asked.name), asked.table_schema, asked.location, properties=asked.properties
    )
    return _document(table.metadata, table.metadata_location)


def _document(metadata: Any, location: str) -> Any:
    document = json.loads(metadata.model_dump_json())
    return {"metadata-location": location, "metadata": document, "config": {}}


def _error(code: int, text: object) -> Any:
    return {"error": {"message": str(text), "type": type(text).__name__, "code": code}}


@contextmanager
def rest_catalog(directory: Path) -> Iterator[str]:
    """Its address, while it runs. Who doesn't show TOKEN is refused."""
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("rest", uri=f"sqlite:///{directory}/rest.db", warehouse=str(directory))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._respond("GET")

        def do_POST(self) -> None:
            self._respond("POST")

        def _respond(self, method: str) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            path = self.path.partition("?")[0].removeprefix("/v1/").split("/")
            status, document = 401, _error(401, "no token")
            if self.headers.get("Authorization") == f"Bearer {TOKEN}":
                status, document = _answer(catalog, method, path, body)
            text = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Tests are quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        catalog.close()
