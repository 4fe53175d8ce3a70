"""What the operating system says about this process and its machine."""

from __future__ import annotations

import os
import resource
from functools import cache
from pathlib import Path
from typing import Final

STATM: Final = Path("/proc/self/statm")
PROCESSOR_PRESSURE: Final = Path("/proc/pressure/cpu")
FILE_DESCRIPTORS: Final = "/proc/self/fd"
MEMORY_LIMITS: Final = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)


def resident_set_bytes() -> int:
    try:
        return int(STATM.read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):
        return 0


def processors_waited_for_us() -> int:
    """For how long at least one process on this machine had to wait for a processor; 0: unknown."""
    try:
        some = PROCESSOR_PRESSURE.read_text().splitlines()[0]
        return int(some.partition("total=")[2])
    except (OSError, IndexError, ValueError):
        return 0


def open_files() -> int:
    try:
        return len(os.listdir(FILE_DESCRIPTORS))
    except OSError:
        return 0


def open_files_max() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


@cache
def machine_memory_bytes() -> int:
    """Memory of the machine, or of its control group where that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in MEMORY_LIMITS:
        try:
            total = min(total, int(Path(name).read_text()))
        except (OSError, ValueError):
            continue
    return total
