"""The tasks that the worker of test_celery.py runs; configured by its environment."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from celery import Celery

app = Celery("interop", broker=os.environ["CELERY_AMQP"], backend="rpc://")
app.conf.update(
    task_default_queue=os.environ["CELERY_QUEUE"],
    task_default_queue_type=os.environ.get("CELERY_QUEUE_TYPE", "classic"),
    worker_detect_quorum_queues=True,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"confirm_publish": True},
    worker_prefetch_multiplier=2,
    result_expires=60,
    worker_send_task_events=False,
    # By default 4 s, which connecting, or a forked process, may take on a busy machine.
    broker_connection_timeout=60,
    worker_proc_alive_timeout=60,
)


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task(bind=True, max_retries=5)
def succeed_at_third_try(self: Any) -> int:
    tries: int = self.request.retries
    if tries < 2:
        raise self.retry(countdown=0.1)
    return tries


@app.task
def fail() -> None:
    raise ValueError("as asked")


@app.task(acks_late=True, reject_on_worker_lost=True, bind=True)
def die_once(self: Any, marker: str) -> dict[str, Any]:
    """Kills its own process the first time, so that the broker must deliver it again."""
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"redelivered": self.request.delivery_info["redelivered"]}


@app.task
def echo(value: Any) -> Any:
    return value
