"""Celery Flower's broker page: a real worker, a real Flower, and our HTTP API in between."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from rhizome.testing.broker_process import Broker, wait_until
from rhizome.testing.free_ports import free_port

from .conftest import PATIENCE_SECONDS
from .test_celery import HERE, Worker

HELD = 3
ROW = re.compile(r"<tr id=.*?</tr>", re.DOTALL)
CELL = re.compile(r"<td[^>]*>(.*?)</td>", re.DOTALL)


class Flower:
    """A Flower process that watches the application of a worker."""

    def __init__(self, broker: Broker, worker: Worker, directory: Path) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self.log = directory / "flower.txt"
        api = broker.http_url.replace("://", f"://{broker.user}:{broker.password}@") + "/api/"
        command = [sys.executable, "-m", "celery", "-A", "celery_app", "flower"]
        options = ["--address=127.0.0.1", f"--port={self.url.rpartition(':')[2]}"]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, *options, f"--broker_api={api}"],
                cwd=HERE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **worker.environment},
            )

    def queues(self) -> dict[str, list[str]]:
        """The rows of its broker page: messages, unacked, ready, consumers, idle since."""
        assert self.process.poll() is None, self.log.read_text()
        try:
            with urllib.request.urlopen(f"{self.url}/broker", timeout=10) as answer:
                page = answer.read().decode()
        except OSError:
            return {}
        rows = [CELL.findall(row) for row in ROW.findall(page)]
        return {html.unescape(row[0]): row[1:] for row in rows}

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(PATIENCE_SECONDS)


@pytest.fixture
def worker(broker: Broker, tmp_path: Path) -> Iterator[Worker]:
    started = Worker(broker, "classic", tmp_path)
    yield started
    started.stop()


@pytest.fixture
def flower(broker: Broker, worker: Worker, tmp_path: Path) -> Iterator[Flower]:
    started = Flower(broker, worker, tmp_path)
    yield started
    started.stop()


def test_the_broker_page_shows_the_queues_of_workers(worker: Worker, flower: Flower) -> None:
    assert worker.tasks.add.delay(1, 2).get(timeout=PATIENCE_SECONDS) == 3
    queue = worker.environment["CELERY_QUEUE"]

    def shows(*counts: str) -> bool:
        return flower.queues().get(queue, [])[:4] == list(counts)

    try:
        wait_until(lambda: shows("0", "0", "0", "1"), "an empty queue", PATIENCE_SECONDS)
        for number in range(HELD):
            # The worker holds what is not due yet, unacknowledged.
            worker.tasks.echo.apply_async((number,), countdown=3600)
        held = str(HELD)
        wait_until(lambda: shows(held, held, "0", "1"), "what is held", PATIENCE_SECONDS)
    except TimeoutError as error:
        raise AssertionError(
            f"{error}; {flower.queues()}\n{flower.log.read_text()[-2000:]}"
        ) from None
