"""The service: all flows of a file in one session of Spark, until it is told to stop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pyspark.sql import SparkSession

from rhizome.spark import register
from rhizome.spark.amqp_socket import wait_s
from rhizome.spark.service import status_file
from rhizome.spark.service.broker_reporter import StatusReports
from rhizome.spark.service.flow_file import ServiceSettings
from rhizome.spark.service.flow_query import Flow, shipped_modules
from rhizome.spark.service.flow_supervisor import Supervisor
from rhizome.spark.service.state_files import StateFiles
from rhizome.spark.service.status_endpoint import StatusEndpoint
from rhizome.spark.service.status_file import StatusWriter

LOG: Final = logging.getLogger("rhizome.pipeline")
LOOK_SECONDS: Final = 0.5
STOP_LOOK_SECONDS: Final = 0.05
QUERY_STOP_MS: Final = 30_000
"""Spark waits so long for a query that it has told to stop."""


class PipelineService:
    """Runs flows. `stop` may be called from a signal handler or another thread."""

    def __init__(self, spark: SparkSession, settings: ServiceSettings) -> None:
        self.settings = settings
        self._spark = spark
        self._files = StateFiles(settings.state)
        self._stopping = threading.Event()
        self._state = status_file.RUNNING
        self._started_s = time.time()
        self._supervisor: Supervisor | None = None
        self._counted_s = 0.0
        self.port = 0
        """The one that the status is served at, once it is."""

    def stop(self) -> None:
        """Have `run` end, once each flow has done the batch that it is amid of."""
        self._stopping.set()

    def run(self) -> bool:
        """Run until `stop`. Returns whether every flow was stopped at the end of a batch."""
        register(self._spark)
        self._spark.conf.set("spark.sql.streaming.stopTimeout", str(QUERY_STOP_MS))
        for path in shipped_modules(self.settings):
            self._spark.sparkContext.addPyFile(path)
        lock = self._files.lock()
        flows = [Flow(self._spark, self.settings, each) for each in self.settings.flows]
        self._supervisor = Supervisor(flows, self.settings.retry, time.time)
        status = StatusWriter(self._files, self.document)
        try:
            with self._endpoint(), self._reports():
                return self._run(self._supervisor, status)
        finally:
            self._state = status_file.STOPPED
            status.close()
            if lock is not None:
                lock.close()

    def _run(self, supervisor: Supervisor, status: StatusWriter) -> bool:
        try:
            while not self._stopping.is_set():
                supervisor.tend()
                self._recount_if_due(supervisor)
                self._stopping.wait(LOOK_SECONDS)
        finally:
            self._state = status_file.STOPPING
            status.tell()
            LOG.info("stopping %d flows", len(supervisor.flows))
            whole = supervisor.stop(self.settings.stop_timeout_s, lambda: wait_s(STOP_LOOK_SECONDS))
        return whole

    @contextmanager
    def _endpoint(self) -> Iterator[None]:
        listen = self.settings.listen
        if listen is None:
            yield
            return
        endpoint = StatusEndpoint(*listen, self.document)
        self.port = endpoint.port
        LOG.info("status and metrics at http://%s:%d/", listen[0], endpoint.port)
        try:
            yield
        finally:
            endpoint.close()

    @contextmanager
    def _reports(self) -> Iterator[None]:
        if not self.settings.report:
            yield
            return
        reports = StatusReports(self.settings.report, self.document)
        try:
            yield
        finally:
            self._state = status_file.STOPPED
            reports.close()

    # --- status

    def document(self) -> dict[str, Any]:
        """The status as it is now."""
        flows = self._supervisor.flows if self._supervisor is not None else []
        return status_file.status_document(
            self.settings, flows, self._state, self._started_s, time.time()
        )

    def _recount_if_due(self, supervisor: Supervisor) -> None:
        if time.time() - self._counted_s >= status_file.STATUS_SECONDS:
            self._counted_s = time.time()
            for each in supervisor.flows:
                each.recount()
