"""The messages that each copy of a group would serve at one index, for the audit to compare."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

MESSAGE: Final = ["group", "queue_id", "index"]
"""What names a message in every copy."""


class Messages:
    """What each copy would serve at the index at which they are compared.

    What lies before a store's newest checkpoint counts only as far as that names it: the records
    that settled the rest may be gone with their segments.
    """

    def __init__(self, events: DataFrame, reach: DataFrame) -> None:
        self.reach = reach
        place = (F.col("segment") * (1 << 32) + F.col("offset")).alias("place")
        begins = (
            events.where("event = 'checkpoint'").groupBy("store").agg(F.max(place).alias("begins"))
        )
        self.events = (
            events.join(F.broadcast(reach), ["store", "group"])
            .where("record IS NULL OR record <= reach OR event = 'moved'")
            .join(F.broadcast(begins), "store", "left")
            .withColumn("begins", F.coalesce("begins", F.lit(0)))
            .withColumn("place", place)
        )

    def settled(self) -> DataFrame:
        return self.events.where("event = 'dequeued'")

    def live(self) -> DataFrame:
        """Messages that came and did not go: by a settlement, a purge, the end of their queue, or
        an epoch that began below them."""
        came = (
            self.events.where("event IN ('enqueued', 'moved', 'checkpointed') AND index <= reach")
            .where("event = 'checkpointed' OR place >= begins")
            .groupBy("store", *MESSAGE)
            .agg(*(F.max(name).alias(name) for name in ("place", "epoch", "vhost", "queue")))
        )
        purged = (
            self.events.where("event = 'purged'")
            .groupBy("store", "queue_id")
            .agg(F.max("index").alias("purged_to"))
        )
        dropped = self.events.where("event = 'queue-dropped'").select("store", "queue_id")
        stayed = (
            came.join(self.settled().select("store", *MESSAGE), ["store", *MESSAGE], "left_anti")
            .join(F.broadcast(dropped.distinct()), ["store", "queue_id"], "left_anti")
            .join(F.broadcast(purged), ["store", "queue_id"], "left")
            .where("purged_to IS NULL OR index > purged_to")
            .drop("purged_to")
            .alias("message")
        )
        epochs = self.events.where("event = 'epoch'").alias("begun")
        is_void = (
            "message.store = begun.store AND message.group = begun.group "
            "AND begun.place > message.place AND begun.record <= message.index"
        )
        return stayed.join(F.broadcast(epochs), F.expr(is_void), "left_anti")
