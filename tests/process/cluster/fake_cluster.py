"""`rhizome up` over brokers that are not there: small processes that answer what it asks them.

    fake_cluster.py up DIR BROKERS SECONDARIES BASE_PORT HTTP_BASE_PORT
    fake_cluster.py serve --config FILE

A fake broker takes for a member of its cluster whoever has a pid file, and for the root the first
of the primaries among them. What is written in DIR/<name>/mood makes it misbehave: `crash` (ends
before it is ready), `early` (ends after it), `alone` (never sees the others).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


def up(arguments: list[str]) -> None:
    from rhizome.cli.coroutine_runner import run
    from rhizome.cli.errors import CliError, print_failure
    from rhizome.cli.local_cluster.directory_layout import Layout, LocalBroker, Shape
    from rhizome.cli.local_cluster.local_cluster import LocalCluster, lock_directory
    from rhizome.cli.local_cluster.up_command import Screen

    def command(place: LocalBroker) -> list[str]:
        return [sys.executable, __file__, "serve", "--config", str(place.config)]

    directory = Path(arguments[0])
    layout = Layout(directory, Shape(*map(int, arguments[1:])))
    screen = Screen()
    screen.begin(layout)

    async def whole_life() -> None:
        await LocalCluster(layout, screen.say, command).run(screen.ready)

    try:
        lock = lock_directory(directory)
        run(whole_life())
    except CliError as error:
        print_failure(str(error))
        sys.exit(1)
    lock.release()


class FakeBroker:
    def __init__(self, config: Path) -> None:
        settings = tomllib.loads(config.read_text())
        self.name: str = settings["broker"]["name"]
        self.directory = config.parent.parent
        self.primaries = [each.partition("=")[0] for each in settings["cluster"]["primaries"]]
        self.port = int(settings["listen"]["http"][0].rpartition(":")[2])
        mood = config.parent / "mood"
        self.mood = mood.read_text() if mood.exists() else ""

    def members(self) -> list[str]:
        return sorted(path.parent.name for path in self.directory.glob("*/pid"))

    def document(self) -> dict[str, Any]:
        members = [self.name] if self.mood == "alone" else self.members()
        root = next((name for name in self.primaries if name in members), None)
        term = 1 + self.primaries.index(root) if root else 0
        return {
            "cluster": {"root": root, "term": term, "notes": []},
            "brokers": [{"name": name, "status": "active", "linked": True} for name in members],
        }

    def run(self) -> None:
        if self.mood == "crash":
            sys.exit(f"{self.name} can't start: no luck today")
        server = ThreadingHTTPServer(("127.0.0.1", self.port), self._handler())
        signal.signal(signal.SIGTERM, self._stop)
        print(f"ready {self.name} amqp://fake http://127.0.0.1:{self.port}", flush=True)
        if self.mood == "early":
            sys.exit(7)
        server.serve_forever()

    def _stop(self, *_: object) -> None:
        with (self.directory / "stops").open("a") as stops:
            stops.write(f"{self.name}\n")
        os._exit(0)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = json.dumps(fake.document()).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        return Handler


if __name__ == "__main__":
    if sys.argv[1] == "up":
        up(sys.argv[2:])
    else:
        FakeBroker(Path(sys.argv[3])).run()
