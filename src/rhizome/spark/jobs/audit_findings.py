"""What an audit can find, and the form in which it is reported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

LOST: Final = "lost record"
DUPLICATED: Final = "duplicated record"
SWAPPED: Final = "swapped order"
CHANGED: Final = "changed body"
MISSING: Final = "missing copy"
DIVERGING: Final = "diverging copy"
RESURRECTED: Final = "resurrected message"
TRUNCATED: Final = "truncated segment"
DAMAGED: Final = "damaged record"
KINDS: Final = (
    LOST, DUPLICATED, SWAPPED, CHANGED, MISSING, DIVERGING, RESURRECTED, TRUNCATED, DAMAGED
)  # fmt: skip


@dataclass(frozen=True)
class Violation:
    """What is wrong, and where. What doesn't apply is None."""

    kind: str
    broker: str
    store: str
    group: int | None = None
    epoch: int | None = None
    index: int | None = None
    vhost: str | None = None
    queue: str | None = None
    segment: int | None = None
    offset: int | None = None
    detail: str = ""
    message: dict[str, Any] | None = None


def odd_copies(compared: DataFrame, keys: list[str], content: str) -> DataFrame:
    """Rows of copies with another epoch or content than the rest. What most copies have is right;
    of two that differ, that of the higher epoch. `usual_epoch` and `usual_content` are added."""
    forms = compared.groupBy(*keys, "epoch", content).agg(F.countDistinct("store").alias("stores"))
    rank = Window.partitionBy(*keys).orderBy(F.desc("stores"), F.desc("epoch"), content)
    usual = (
        forms.withColumn("rank", F.row_number().over(rank))
        .where("rank = 1")
        .withColumnsRenamed({content: "usual_content", "epoch": "usual_epoch"})
        .drop("rank", "stores")
    )
    odd = compared.join(usual, keys)
    return odd.where(f"{content} <> usual_content OR epoch <> usual_epoch")


def violations(found: DataFrame, kind: Any, detail: Any) -> DataFrame:
    """Rows as violations, whatever columns they have."""
    types = {
        "store": "STRING", "group": "INT", "epoch": "BIGINT", "index": "BIGINT",
        "vhost": "STRING", "queue": "STRING", "segment": "BIGINT", "offset": "BIGINT",
    }  # fmt: skip
    columns = [
        (F.col(name) if name in found.columns else F.lit(None)).cast(type_).alias(name)
        for name, type_ in types.items()
    ]
    return found.select(kind.alias("kind"), *columns, detail.cast("string").alias("detail"))
