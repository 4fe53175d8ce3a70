"""What executors need of this package, made into one zip and sent along with a job.

Executors have Python, pyspark and pyarrow. `packed()` makes a zip of the modules that
rhizome.spark imports, directly or not (import_closure). In it, zip_root_package is
`rhizome/__init__.py`: where rhizome is installed, the installed one counts. substitutes replace
compiled third-party packages that are missing. zip_pickle is for processes of Spark Connect that
were not given the zip.

Of rhizome.spark it imports cluster_manager only. Begin with `ship` here.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import rhizome
from rhizome.spark import spark_master
from rhizome.spark.private_cache import private_cache
from rhizome.spark.shipment.import_closure import Sources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT_PACKAGE: Final = "rhizome.spark"
FINDERS: Final = ("pyspark_rhizome", "pyspark_rhizome_journal", "pyspark_rhizome_table")
"""Spark finds the formats by these names, on executors too."""
SHIPPED_ROOT: Final = "rhizome.spark.shipment.zip_root_package"
KEPT_MAX: Final = 4
"""So many zips stay in the cache, the ones used last."""
VERSION_LINE: Final = "SHIPPED_VERSION = "
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


def ship(spark: SparkSession) -> Path:
    """Send the zip to all executors that a session has or will have; returns the zip. Twice does no
    harm.
    """
    path = packed()
    if spark_master.has_remote_driver(spark):
        _add_artifact(spark.addArtifacts, path)
    else:
        context = spark.sparkContext
        if path.name not in (context._python_includes or ()):
            context.addPyFile(str(path))
    return path


def _add_artifact(add_artifacts: Any, path: Path) -> None:
    try:
        add_artifacts(str(path), pyfile=True)
    except Exception as error:
        # A server keeps what it has been given under a name.
        if "ARTIFACT_ALREADY_EXISTS" not in str(error):
            raise


def packed() -> Path:
    """The zip for this version, these sources and this Python, made if it isn't in the cache."""
    sources = Sources(_source_directory())
    name = f"rhizome-{rhizome.__version__}-py{sys.version_info[0]}{sys.version_info[1]}"
    path = _cache() / f"{name}-{_digest(sources)}.zip"
    if path.exists():
        path.touch()
        return path
    descriptor, scratch = tempfile.mkstemp(dir=path.parent, suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            pack(sources, file)
        Path(scratch).rename(path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise
    _prune(path.parent)
    return path


def pack(sources: Sources, file: Any) -> None:
    """Write the zip: each module as source and bytecode, which Python takes if it made it."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in _shipped(sources):
            _add(archive, name, text.encode())
            # Unchecked: times of files in a zip say nothing.
            code = importlib.util.source_hash(text.encode())
            _add(archive, f"{name}c", _bytecode(name, text, code))


def _shipped(sources: Sources) -> Iterator[tuple[str, str]]:
    """Path in the zip and text of each module."""
    modules = sources.closure([*sources.below(ROOT_PACKAGE), *FINDERS])
    for module in sorted(modules):
        path = modules[module]
        text = path.read_text()
        if module == "rhizome":
            text = _root_text(sources)
        yield path.relative_to(sources.directory).as_posix(), text


def _root_text(sources: Sources) -> str:
    """The zip's own `rhizome/__init__.py`, with this version in it."""
    lines = sources.path_of(SHIPPED_ROOT).read_text().splitlines(keepends=True)
    version = f'{VERSION_LINE}"{rhizome.__version__}"\n'
    return "".join(version if line.startswith(VERSION_LINE) else line for line in lines)


def _bytecode(name: str, text: str, digest: bytes) -> bytes:
    import importlib._bootstrap_external as external

    code = compile(text, name, "exec", dont_inherit=True)
    made: bytes = external._code_to_hash_pyc(code, digest, False)  # type: ignore[attr-defined]
    return made


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, data)


def _source_directory() -> Path:
    return Path(rhizome.__file__).parent.parent


def _digest(sources: Sources) -> str:
    """Of all sources as they are now: who edits one gets another zip."""
    facts = hashlib.sha256(sys.version.encode())
    for path in sources.all_files():
        found = path.stat()
        facts.update(f"{path}\0{found.st_size}\0{found.st_mtime_ns}\0".encode())
    return facts.hexdigest()[:12]


def _cache() -> Path:
    """A directory that only this user can write to: executors run what lies there."""
    return private_cache() or Path(tempfile.mkdtemp(prefix="rhizome-spark-"))


def _prune(directory: Path) -> None:
    found = sorted(directory.glob("rhizome-*.zip"), key=lambda path: path.stat().st_mtime)
    for path in found[:-KEPT_MAX]:
        path.unlink(missing_ok=True)
