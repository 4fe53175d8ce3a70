"""The package `rhizome` as a job ships it to executors: `rhizome/__init__.py` in the zip.

Where rhizome is installed the installed one counts: this module becomes it. An installed one of
another version than the driver's is an error here, before anything is read or written, because it
might read or write something else. Where none is installed the zip's modules count. Compiled
packages that are missing have substitutes in plain Python.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any
from zipimport import zipimporter

SHIPPED_VERSION = ""  # written into the zip
_SUBSTITUTES = {
    "crc32c": "crc32c",
    "librt.strings": "librt_strings",
    "librt.vecs": "librt_vecs",
    "mypy_extensions": "mypy_extensions",
}


class VersionError(ImportError):
    """Driver and executor have different versions; the text says which, and what to do."""


class SubstituteFinder(Loader):
    """Finds substitutes. It is the last to be asked, so whatever is installed counts."""

    def __init__(self, directory: str, loader: Any) -> None:
        self._directory = directory
        self._loader = loader

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "librt":
            return ModuleSpec(fullname, self, is_package=True)
        return ModuleSpec(fullname, self) if fullname in _SUBSTITUTES else None

    def create_module(self, spec: ModuleSpec) -> None:
        """As usual."""

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ in _SUBSTITUTES:
            file = f"{self._directory}/{_SUBSTITUTES[module.__name__]}.py"
            exec(compile(self._loader.get_data(file), file, "exec"), module.__dict__)


def _installed(shipped: str) -> ModuleSpec | None:
    """Where else `rhizome` can be imported from."""
    paths = [path for path in sys.path if path != shipped]
    found = [PathFinder.find_spec("rhizome", paths)]
    for finder in sys.meta_path:
        if finder is not PathFinder and not isinstance(finder, SubstituteFinder):
            found.append(finder.find_spec("rhizome", None))
    for spec in found:
        # A directory of the name without modules, or what another job has shipped, isn't it.
        if spec is not None and spec.origin and not isinstance(spec.loader, zipimporter):
            return spec
    return None


def _become(module: ModuleType, spec: ModuleSpec) -> None:
    assert spec.loader is not None
    module.__spec__, module.__loader__, module.__file__ = spec, spec.loader, spec.origin
    module.__path__ = list(spec.submodule_search_locations or ())
    spec.loader.exec_module(module)
    version = module.__version__
    if version != SHIPPED_VERSION:
        raise VersionError(
            f"the driver has rhizome {SHIPPED_VERSION}, and host {socket.gethostname()} has "
            f"rhizome {version} installed ({spec.origin}); install the same version on both, or "
            "remove it there: jobs ship what executors need"
        )


def _open(module: ModuleType) -> None:
    assert module.__file__ is not None
    package = module.__file__.rpartition("/")[0]
    if not any(isinstance(finder, SubstituteFinder) for finder in sys.meta_path):
        directory = f"{package}/spark/shipment/substitutes"
        sys.meta_path.append(SubstituteFinder(directory, module.__loader__))
    spec = _installed(package.rpartition("/")[0])
    if spec is not None:
        _become(module, spec)


__version__ = SHIPPED_VERSION
if SHIPPED_VERSION:
    _open(sys.modules[__name__])
