"""A Python for executors that has pyspark, pyarrow and what they need, and nothing else.

`bare_python()` makes a virtual environment under `.cache` once per set of versions and returns its
directory. Its packages are links to those of the Python that runs the tests: copying Spark would
take minutes and 500 MB. It has no `rhizome`, no `librt`, no `crc32c`, and no .pth file that leads
to them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
LINKED: Final = (
    "pyspark",
    "py4j",
    "pyarrow",
    "numpy",
    "numpy.libs",
    "pandas",
    "pandas.libs",
    "pytz",
    "tzdata",
    "dateutil",
    "six.py",
)
ABSENT: Final = ("rhizome", "librt", "crc32c", "mypy_extensions")
"""What the connector imports, and this Python must not have."""


def bare_python(*more: str) -> Path:
    """The directory of the environment; `more` are further packages (names in site-packages) that
    it has, for tests of programs that executors do have installed.
    """
    packages = Path(sysconfig.get_paths()["purelib"])
    versions = [sys.version, str(packages), version("pyspark"), version("pyarrow"), *more]
    key = hashlib.sha256("\0".join(versions).encode()).hexdigest()[:12]
    environment = ROOT / ".cache" / f"bare-python-{key}"
    if not environment.exists():
        _make(environment, packages, (*LINKED, *more))
    return environment


def _make(environment: Path, packages: Path, names: tuple[str, ...]) -> None:
    """Make it beside, and move it there at once: several runs may want it."""
    environment.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=environment.parent) as scratch:
        made = Path(scratch) / "environment"
        command = [sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(made)]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": ""})
        site = next(made.glob("lib/python*/site-packages"))
        for name in names:
            if (packages / name).exists():
                (site / name).symlink_to(packages / name)
        _check(made)
        try:
            made.rename(environment)
        except OSError:
            assert environment.exists()


def _check(environment: Path) -> None:
    probe = f"""
import importlib.util, pyarrow, pyspark
print(*(name for name in {ABSENT!r} if importlib.util.find_spec(name)))
"""
    command = [str(environment / "bin/python"), "-c", probe]
    bare = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=bare)
    assert done.returncode == 0, done.stderr
    assert not done.stdout.strip(), f"a bare Python must not have {done.stdout}"


def forget() -> None:
    """Delete all that were made."""
    for path in (ROOT / ".cache").glob("bare-python-*"):
        shutil.rmtree(path)
