"""A real celery worker process, results over rpc://."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

import pytest

from rhizome.testing.broker_process import Broker, wait_until

from .conftest import PATIENCE_SECONDS

HERE = Path(__file__).parent


class Worker:
    """A worker process, and the client side of the same application."""

    def __init__(self, broker: Broker, queue_type: str, directory: Path) -> None:
        self.environment = {
            # Two slashes: the vhost of the URL is "/".
            "CELERY_AMQP": f"{broker.url}/",
            "CELERY_QUEUE": f"celery.{queue_type}.{os.getpid()}.{os.urandom(3).hex()}",
            "CELERY_QUEUE_TYPE": queue_type,
        }
        self.log = directory / "worker.txt"
        self.tasks = self._load_tasks()
        command = [sys.executable, "-m", "celery", "-A", "celery_app", "worker"]
        options = ["--concurrency", "2", "--loglevel", "INFO", "-n", f"w{os.urandom(3).hex()}@here"]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, *options],
                cwd=HERE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment},
            )
        wait_until(self._is_ready, "the worker's ready line", PATIENCE_SECONDS)

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(PATIENCE_SECONDS)
        self.tasks.app.close()

    def _is_ready(self) -> bool:
        text = self.log.read_text(errors="replace")
        assert self.process.poll() is None, text
        return " ready." in text

    def _load_tasks(self) -> ModuleType:
        """A fresh copy of the module, since it reads its settings when it is loaded."""
        module = ModuleType("celery_app")
        saved = os.environ.copy()
        os.environ.update(self.environment)
        try:
            source = HERE / "celery_app.py"
            exec(compile(source.read_text(), str(source), "exec"), module.__dict__)
        finally:
            os.environ.clear()
            os.environ.update(saved)
        return module


@pytest.fixture(scope="module", params=["classic", "quorum"])
def worker(
    request: pytest.FixtureRequest, broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Worker]:
    """With quorum queues celery delays tasks in the broker, through queues with a TTL."""
    started = Worker(broker, request.param, tmp_path_factory.mktemp("celery"))
    yield started
    started.stop()


def test_tasks_return_their_results(worker: Worker) -> None:
    results = [worker.tasks.add.delay(number, 1) for number in range(50)]
    assert [result.get(timeout=PATIENCE_SECONDS) for result in results] == list(range(1, 51))


def test_an_error_comes_back_as_an_exception(worker: Worker) -> None:
    with pytest.raises(ValueError, match="as asked"):
        worker.tasks.fail.delay().get(timeout=PATIENCE_SECONDS)


def test_a_task_that_retries_succeeds_in_the_end(worker: Worker) -> None:
    assert worker.tasks.succeed_at_third_try.delay().get(timeout=PATIENCE_SECONDS) == 2


def test_a_task_with_an_eta_runs_no_earlier(worker: Worker) -> None:
    started = time.monotonic()
    eta = datetime.now(UTC) + timedelta(seconds=2)
    result = worker.tasks.add.apply_async((1, 2), eta=eta)
    assert result.get(timeout=PATIENCE_SECONDS) == 3
    # Delays in the broker are counted in whole seconds.
    assert time.monotonic() - started >= 0.9


def test_a_task_acked_late_runs_again_after_its_process_was_killed(
    worker: Worker, tmp_path: Path
) -> None:
    result = worker.tasks.die_once.delay(str(tmp_path / "died"))
    assert result.get(timeout=PATIENCE_SECONDS) == {"redelivered": True}


def test_chains_and_groups_complete(worker: Worker) -> None:
    from celery import chain, group

    add = worker.tasks.add
    chained = chain(add.s(1, 1), add.s(10), add.s(100)).apply_async()
    assert chained.get(timeout=PATIENCE_SECONDS) == 112
    grouped = group(add.s(number, number) for number in range(10)).apply_async()
    assert grouped.get(timeout=PATIENCE_SECONDS) == [2 * number for number in range(10)]


def test_large_arguments_pass(worker: Worker) -> None:
    text = "x" * 2_000_000
    assert worker.tasks.echo.delay(text).get(timeout=PATIENCE_SECONDS) == text


def test_remote_control_reaches_the_worker(worker: Worker) -> None:
    replies = worker.tasks.app.control.ping(timeout=PATIENCE_SECONDS, limit=1)
    assert [list(reply.values()) for reply in replies] == [[{"ok": "pong"}]]
    active = worker.tasks.app.control.inspect(timeout=PATIENCE_SECONDS, limit=1).active_queues()
    queues = [queue["name"] for queue in next(iter(active.values()))]
    assert queues == [worker.environment["CELERY_QUEUE"]]
