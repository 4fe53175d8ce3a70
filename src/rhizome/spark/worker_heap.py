"""The heap of a Python worker of Spark: what is imported stays, and need not be searched.

Spark keeps workers from task to task, and has each collect garbage after every task. That searches
everything that was ever imported, pyarrow and pyspark above all, for 30 to 60 ms.
"""

from __future__ import annotations

import gc


def freeze_imports() -> None:
    """Leave what there is now out of later searches for garbage; the first call in a process
    counts."""
    if gc.get_freeze_count() == 0:
        gc.freeze()
