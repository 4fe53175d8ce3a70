"""Loads rhizome.* from .py files even where compiled extension modules lie beside them."""

import sys
from collections.abc import Sequence
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from types import ModuleType


class SourceOnlyFinder:
    """Finds modules of this package, and only as source; everything else is left to others."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("rhizome.") or path is None:
            return None
        for directory in path:
            spec = FileFinder(directory, (SourceFileLoader, SOURCE_SUFFIXES)).find_spec(
                fullname, target
            )
            if spec is not None:
                return spec
        return None


def install() -> None:
    """Put the finder before the one that prefers extension modules; twice does no harm."""
    if not any(isinstance(finder, SourceOnlyFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, SourceOnlyFinder())
