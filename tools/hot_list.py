"""Reads tools/hot_modules.txt: which modules are compiled."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOT_LIST = ROOT / "tools" / "hot_modules.txt"


def hot_modules() -> list[Path]:
    """The modules to compile. A later line counts more: `!` takes out what was put in before."""
    chosen: set[Path] = set()
    for line in HOT_LIST.read_text().splitlines():
        pattern = line.partition("#")[0].strip()
        if not pattern:
            continue
        found = {p for p in ROOT.glob(pattern.removeprefix("!")) if p.name != "__init__.py"}
        if not found:
            raise SystemExit(f"{HOT_LIST}: '{pattern}' matches no module; correct or remove it")
        if pattern.startswith("!"):
            chosen -= found
        else:
            chosen |= found
    return sorted(chosen)
