"""Pickles that open in processes of Spark Connect which have not been given the zip.

A server of Spark Connect keeps what a client has sent under the name of the client's session, and
puts it on the path of its Python processes, but for two kinds: the process that plans a streaming
query, and the tasks that write one's batches. Both have the file at hand, a directory further down.
So a source and a streaming writer that come from the zip are pickled with its name and path, and
whoever unpickles them looks there, if it has no rhizome.
"""

from __future__ import annotations

from typing import Any, Final

import rhizome

_IN_ZIP: Final = ".zip/"
# An expression, because nothing of ours can be imported yet when it runs. The directory of files is
# that of all sessions here, with one for each of them in it.
_FINDING: Final = """(
    lambda sys, util, os, glob, files:
        util.find_spec("rhizome") is not None
        or sys.path.append(next(
            iter(glob.glob(os.path.join(files.getRootDirectory(), "*", {name!r}))), {path!r}
        ))
)(
    __import__("sys"), __import__("importlib.util").util, __import__("os"), __import__("glob"),
    __import__("pyspark").SparkFiles
)"""
_MAKING: Final = """object.__new__(
    getattr(__import__("importlib").import_module({module!r}), {kind!r})
)"""


class ZipImported:
    """A base of classes whose instances are pickled with the zip's place, if they come from one."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        path = zip_path()
        if not path:
            return super().__reduce_ex__(protocol)
        finding = _FINDING.format(path=path, name=path.rpartition("/")[2])
        making = _MAKING.format(module=type(self).__module__, kind=type(self).__name__)
        return eval, (f"({finding}, {making})[1]",), vars(self)


def zip_path() -> str:
    """The zip that this package was imported from; empty if it is installed."""
    before, found, _ = (rhizome.__file__ or "").partition(_IN_ZIP)
    return f"{before}.zip" if found else ""
