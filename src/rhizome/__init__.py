"""Rhizome: one virtual AMQP 0-9-1 broker made of many.

Begin with broker/ (one broker, no input or output), then cluster/ (several as one), then server/
(sockets, files and clocks around both). pyproject.toml says which package may import which.

The hot modules are compiled when the package is built. With RHIZOME_PURE=1 in the environment
the same modules are loaded from their .py files, though compiled ones lie beside them: for
debugging, for coverage, and to show that both forms behave alike.
"""

import importlib as _importlib
import os as _os
import typing as _typing

__version__ = "0.2.0.dev0"

if _os.environ.get("RHIZOME_PURE") == "1":
    from rhizome import _source_import_hook

    _source_import_hook.install()


_FACE: _typing.Final = {
    "connect": "rhizome.client",
    "embedded": "rhizome.testing.embedded_broker",
    "open_session": "rhizome.client",
}
"""What programs begin with, and where it is: loaded when it is asked for."""


def __getattr__(name: str) -> _typing.Any:
    if name in _FACE:
        return getattr(_importlib.import_module(_FACE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
