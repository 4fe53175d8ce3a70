"""What is shipped to executors: it is complete, works without compiled packages, and gives way."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import crc32c
import librt.strings
import mypy_extensions
import pytest
from hypothesis import given
from hypothesis import strategies as st
from librt import vecs

import rhizome
from rhizome.spark import shipment
from rhizome.spark.shipment.import_closure import Sources, imported
from rhizome.spark.shipment.substitutes import crc32c as plain_crc32c
from rhizome.spark.shipment.substitutes import librt_strings, librt_vecs
from rhizome.spark.shipment.substitutes import mypy_extensions as plain_extensions
from rhizome.spark.version_stamp import VersionMismatchError, VersionStamp, stamped
from tests.spark.cluster.bare_python import bare_python

SIZE_BYTES_MAX = 2 << 20


@pytest.fixture(scope="module")
def shipped() -> Path:
    return shipment.packed()


def bare(shipped: Path, program: str, *first: str) -> subprocess.CompletedProcess[str]:
    """Run a program as an executor's worker: nothing installed, and the zip on the path as Spark
    puts it there."""
    paths = [*first, str(shipped)]
    begin = f"import sys\nsys.path[1:1] = {paths!r}\n"
    return subprocess.run(
        [str(bare_python() / "bin/python"), "-c", begin + program],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin"},
    )


def modules_in(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith(".py")]
    return [name[:-3].replace("/", ".").removesuffix(".__init__") for name in names]


def test_everything_shipped_can_be_imported_where_nothing_is_installed(shipped: Path) -> None:
    # shipment.substitutes are modules under other names; they are tried by name below.
    done = bare(
        shipped,
        f"""
import importlib
for name in {modules_in(shipped)!r}:
    importlib.import_module(name)
import crc32c, librt.strings, rhizome
print(rhizome.__version__, librt.strings.read_i64_be(bytes(7) + b"x", 0), crc32c.crc32c(b"abc"))
""",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [rhizome.__version__, "120", str(crc32c.crc32c(b"abc"))]


def test_what_is_shipped_is_the_connector_and_not_the_broker(shipped: Path) -> None:
    packages = {".".join(name.split(".")[:2]) for name in modules_in(shipped)}
    assert {"rhizome.spark", "rhizome.client", "rhizome.amqp", "pyspark_rhizome"} <= packages
    unwanted = {"rhizome.cli", "rhizome.server", "rhizome.management", "rhizome.security"}
    assert not packages & {*unwanted, "rhizome.testing", "rhizome.console"}
    assert shipped.stat().st_size < SIZE_BYTES_MAX


def test_third_party_packages_that_are_shipped_without_are_those_that_spark_brings() -> None:
    sources = Sources(Path(rhizome.__file__).parent.parent)
    modules = sources.closure(sources.below(shipment.ROOT_PACKAGE))
    import ast

    found = {
        name.partition(".")[0]
        for path in modules.values()
        for name in imported(ast.parse(path.read_text()))
    }
    ours = {"rhizome", "crc32c", "librt", "mypy_extensions"}  # shipped, or has a substitute
    # Imported where asked for.
    late = {"deltalake", "pyiceberg", "duckdb", "matplotlib", "grpc", "prometheus_client"}
    others = found - set(sys.stdlib_module_names) - ours - late
    assert others <= {"pyspark", "py4j", "pyarrow", "numpy", "pandas"}, others


def test_a_cache_that_others_may_write_to_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They could put a zip there, whose name can be foretold, and executors would run it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "elsewhere"))
    (tmp_path / "elsewhere").mkdir()
    cache = tmp_path / "rhizome" / "spark"
    assert shipment._cache() == cache
    for mode in (0o777, 0o770, 0o722):
        cache.chmod(mode)
        assert shipment._cache().parent == tmp_path / "elsewhere"
    cache.chmod(0o755)
    assert shipment._cache() == cache


def test_zip_is_made_once_for_the_same_sources(shipped: Path) -> None:
    made = shipped.stat().st_ino
    assert shipment.packed() == shipped
    assert shipped.stat().st_ino == made


def install(directory: Path, version: str) -> Path:
    """A rhizome that is installed, as far as it is looked at."""
    package = directory / "rhizome"
    (package / "spark").mkdir(parents=True)
    (package / "__init__.py").write_text(f'__version__ = "{version}"\n')
    (package / "spark" / "__init__.py").write_text("")
    (package / "spark" / "data_source.py").write_text("MINE = True\n")
    return directory


def test_installed_package_counts_before_the_shipped_one(shipped: Path, tmp_path: Path) -> None:
    there = install(tmp_path, rhizome.__version__)
    program = f"""
sys.path.append({str(there)!r})
import rhizome.spark.data_source
print(rhizome.__file__, rhizome.__version__, rhizome.spark.data_source.MINE)
"""
    done = bare(shipped, program)
    assert done.returncode == 0, done.stderr
    expected = [str(there / "rhizome/__init__.py"), rhizome.__version__, "True"]
    assert done.stdout.split() == expected


def test_installed_package_of_another_version_is_an_error(shipped: Path, tmp_path: Path) -> None:
    there = install(tmp_path, "0.1.9")
    done = bare(shipped, f"sys.path.append({str(there)!r})\nimport rhizome.spark.data_source")
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert said.startswith("rhizome.VersionError: the driver has rhizome " + rhizome.__version__)
    assert "has rhizome 0.1.9 installed" in said


class Carried:
    """Something that Spark would pickle."""


def test_what_another_version_has_pickled_is_refused() -> None:
    data = pickle.dumps(stamped(Carried()))
    assert isinstance(pickle.loads(data).release, VersionStamp)
    other = "9" * len(rhizome.__version__)
    with pytest.raises(VersionMismatchError, match=f"the driver has rhizome {other}, and host"):
        pickle.loads(data.replace(rhizome.__version__.encode(), other.encode()))


# --- substitutes


def test_substitutes_have_all_that_is_used() -> None:
    names = {
        "crc32c": plain_crc32c,
        "librt.strings": librt_strings,
        "librt.vecs": librt_vecs,
        "mypy_extensions": plain_extensions,
    }
    sources = Sources(Path(rhizome.__file__).parent.parent)
    modules = sources.closure(sources.below(shipment.ROOT_PACKAGE))
    import ast

    for path in modules.values():
        for name in imported(ast.parse(path.read_text())):
            module, _, attribute = name.rpartition(".")
            if module in names:
                assert hasattr(names[module], attribute), f"{path.name} needs {name}"


@given(st.binary(max_size=200), st.integers(0, 30_000), st.integers(0, 0xFFFFFFFF))
def test_checksums_are_the_same(data: bytes, times: int, before: int) -> None:
    long = (data * (times // max(len(data), 1)))[:times]
    for each in (data, long, bytearray(long), memoryview(long)[1:]):
        assert plain_crc32c.crc32c(each, before) == crc32c.crc32c(each, before)


@given(st.lists(st.tuples(st.sampled_from("hiqdb"), st.integers(-(2**15), 2**15 - 1))))
def test_writers_and_readers_are_the_same(written: list[tuple[str, int]]) -> None:
    plain, real = librt_strings.BytesWriter(), librt.strings.BytesWriter()
    for kind, number in written:
        for module, writer in ((librt_strings, plain), (librt.strings, real)):
            if kind == "b":
                writer.append(number & 0xFF)  # type: ignore[attr-defined]
            else:
                name = {"h": "i16", "i": "i32", "q": "i64", "d": "f64"}[kind]
                getattr(module, f"write_{name}_be")(writer, number)
    data = plain.getvalue()
    assert data == real.getvalue()
    assert len(plain) == len(real)
    for name in ("i16", "i32", "i64", "f32", "f64"):
        for at in range(-1, len(data) + 1):
            results = [_result(module, name, data, at) for module in (librt_strings, librt.strings)]
            assert results[0] == results[1] or str(results[0]) == str(results[1]) == "nan"


def _result(module: object, name: str, data: bytes, at: int) -> object:
    try:
        return getattr(module, f"read_{name}_be")(data, at)
    except (IndexError, ValueError) as error:
        return type(error)


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_packed_arrays_are_the_same(numbers: list[int]) -> None:
    plain = librt_vecs.vec[plain_extensions.i32]()
    real = vecs.vec[mypy_extensions.i32]()
    for number in numbers:
        plain = librt_vecs.append(plain, plain_extensions.i32(number))
        real = vecs.append(real, mypy_extensions.i32(number))
    assert list(plain) == list(real) == numbers
    if numbers:
        plain, last = librt_vecs.pop(plain)
        assert last == numbers[-1]
        assert len(plain) == len(numbers) - 1
    assert isinstance(5, plain_extensions.i64)


def test_substitutes_are_not_in_the_way_of_what_is_installed() -> None:
    """The zip has them under other names: `crc32c` of whoever has it is the compiled one."""
    assert importlib.import_module("crc32c") is crc32c
    assert not any(name in ("crc32c", "librt") for name in modules_in(shipment.packed()))
