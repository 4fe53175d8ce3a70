"""Compile the hot modules in place, if they changed since the last time.

Writes build/hot.stamp with a digest of everything that the result depends on, and build/form with
`compiled` or `interpreted`, so that the tests know which of the two they must be running on.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

from hot_list import HOT_LIST, ROOT, hot_modules

SOURCES = ROOT / "src"
STAMP = ROOT / "build" / "hot.stamp"
FORM = ROOT / "build" / "form"


def digest() -> str:
    """Of everything that the compiled modules depend on.

    That includes their neighbours: mypyc compiles the types of what a hot module imports into it.
    """
    sha = hashlib.sha256()
    for fact in (platform.python_version(), platform.machine(), version("mypy"), version("librt")):
        sha.update(fact.encode() + b"\0")
    neighbours = {p for hot in hot_modules() for p in hot.parent.glob("*.py")}
    inputs = [ROOT / "setup.py", HOT_LIST, *sorted(neighbours)]
    for path in inputs:
        sha.update(str(path.relative_to(ROOT)).encode() + b"\0")
        sha.update(path.read_bytes() + b"\0")
    return sha.hexdigest()


def extension_modules() -> list[Path]:
    return sorted(SOURCES.rglob("*.so"))


def build() -> None:
    for stale in extension_modules():
        stale.unlink()  # else a module that left the list would go on running its old code
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{done.stdout}\nthe hot modules could not be compiled; see above")


def main() -> int:
    pure = os.environ.get("RHIZOME_PURE") == "1"
    wanted = digest()
    up_to_date = STAMP.exists() and STAMP.read_text() == wanted and extension_modules()
    if up_to_date and not pure:
        print("hot modules are up to date")
        return 0
    begun = time.monotonic()
    STAMP.unlink(missing_ok=True)
    build()
    form = "compiled" if extension_modules() else "interpreted"
    FORM.parent.mkdir(exist_ok=True)
    FORM.write_text(form + "\n")
    if form == "compiled":
        STAMP.write_text(wanted)
    print(f"hot modules are {form} ({time.monotonic() - begun:.0f} s)")
    if form == "compiled":
        print("nothing is compiled the next time unless sources change")
    return 0


if __name__ == "__main__":
    sys.exit(main())
