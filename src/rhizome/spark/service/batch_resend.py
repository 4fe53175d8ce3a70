"""Delivers batches that were set aside: `rhizome pipeline resend`, once the cause is mended.

A batch goes through the transformation that its flow has now, and into the sink that it has now.
Tables, exchanges and queues know the write again by its name, so a resend that was killed may be
repeated; a batch that is done is marked (resent.json) and not offered again.

The flow itself may run meanwhile: nothing of its state is touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from rhizome.errors import RhizomeError
from rhizome.spark import register
from rhizome.spark.service import flow_file
from rhizome.spark.service.flow_file import FlowSettings, ServiceSettings
from rhizome.spark.service.flow_query import Flow, shipped_modules
from rhizome.spark.service.flow_supervisor import error_text
from rhizome.spark.service.set_aside_batches import SetAside
from rhizome.spark.service.state_files import StateFiles

WRITE_PREFIX: Final = "resend-"
APPEND: Final = "append"
STAGE_SINK: Final = "sink"
FILE_FORMATS: Final = ("parquet", "orc", "json", "csv", "text", "xml", "avro")
"""Formats of files that streaming queries of Spark write with a list of what counts."""


class ResendError(RhizomeError):
    """There is no such flow or batch; the text says which there are."""


@dataclass(frozen=True)
class KeptBatch:
    """A batch that was set aside and not delivered after all; `reason` is its reason.json."""

    flow: FlowSettings
    name: str
    reason: dict[str, Any]

    def document(self) -> dict[str, Any]:
        return {
            "flow": self.flow.name,
            "batch": self.name,
            "time": self.reason.get("time"),
            "messages": int(self.reason.get("messages", 0)),
            "stage": self.reason.get("stage"),
            "error": self.reason.get("error"),
        }


@dataclass(frozen=True)
class Outcome:
    """What became of a batch: `rows` were written, or `trouble` says why not."""

    batch: KeptBatch
    rows: int = 0
    trouble: str = ""

    def document(self) -> dict[str, Any]:
        found = {**self.batch.document(), "resent": not self.trouble, "rows": self.rows}
        return {**found, "trouble": self.trouble or None}


def kept_batches(
    service: ServiceSettings, flows: Sequence[str] = (), names: Sequence[str] = ()
) -> list[KeptBatch]:
    """The batches of these flows (none: of all) that have these names (none: all), oldest first."""
    known = {each.name: each for each in service.flows}
    for name in flows:
        if name not in known:
            raise ResendError(f"there is no flow '{name}'; there are {', '.join(known)}")
    files = StateFiles(service.set_aside)
    found = []
    for flow in [known[name] for name in dict.fromkeys(flows)] or list(service.flows):
        kept = SetAside(files, flow.name)
        found += [KeptBatch(flow, name, kept.reason(name) or {}) for name in kept.names()]
    found.sort(key=lambda each: (str(each.reason.get("time")), each.name))
    there = [each.name for each in found]
    for name in names:
        if name not in there:
            shown = ", ".join(there) or "none"
            raise ResendError(f"no batch '{name}' is set aside; those that are: {shown}")
    return [each for each in found if not names or each.name in names]


def obstacle(batch: KeptBatch, allow_duplicates: bool = False) -> str:
    """Why a batch can't be delivered after all, and what to do; empty if it can."""
    sink = batch.flow.sink
    written = sink.format if sink.kind == flow_file.TABLE else sink.name
    if sink.kind in (flow_file.TABLE, flow_file.FORMAT) and written.lower() in FILE_FORMATS:
        return (
            f"Spark counts those files of '{sink.path or sink.name}' alone that the flow's own "
            "query has written (_spark_metadata). Give the flow a Delta or Iceberg table, or "
            "read messages.parquet yourself"
        )
    if sink.mode != APPEND:
        return f"the sink's mode is {sink.mode}, and a single batch can only be appended"
    is_partly_there = batch.reason.get("stage") == STAGE_SINK and sink.kind != flow_file.TABLE
    if is_partly_there and not allow_duplicates:
        return (
            "the sink refused it, and may have taken a part before; --allow-duplicates sends all "
            "of it"
        )
    return ""


class BatchResend:
    """Delivers batches of a service's flows, in a session of Spark."""

    def __init__(self, spark: Any, service: ServiceSettings) -> None:
        self._spark = spark
        self._service = service
        register(spark)
        for path in shipped_modules(service):
            spark.sparkContext.addPyFile(path)

    def resend(self, batch: KeptBatch) -> Outcome:
        """Deliver a batch and mark it. What fails leaves it set aside, as it was."""
        flow = Flow(self._spark, self._service, batch.flow)
        try:
            rows = flow.redeliver(batch.name, f"{WRITE_PREFIX}{batch.name}")
        except Exception as error:
            return Outcome(batch, trouble=error_text(error))
        document = {"time": datetime.now(UTC).isoformat(), "rows": rows}
        SetAside(StateFiles(self._service.set_aside), batch.flow.name).mark_resent(
            batch.name, document
        )
        return Outcome(batch, rows)
