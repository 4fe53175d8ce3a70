"""`pyarrow.compute`, imported when it is first used.

The import takes a fifth of a second, about as long as everything else that a source imports. Spark
starts a Python process for each step of planning a read or a write, and none of them computes
anything: only the processes that make rows do.
"""

from __future__ import annotations

from typing import Any, Final


class _Compute:
    """Has the functions of `pyarrow.compute`."""

    def __getattr__(self, name: str) -> Any:
        import pyarrow.compute

        found = getattr(pyarrow.compute, name)
        setattr(self, name, found)
        return found


compute: Final[Any] = _Compute()
