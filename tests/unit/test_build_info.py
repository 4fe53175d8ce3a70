"""The two forms of the package: compiled, and interpreted from the same files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import rhizome
from rhizome import build_info

PACKAGE = Path(rhizome.__file__).parent


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if k != "RHIZOME_PURE"}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_the_form_under_test_is_the_one_that_was_asked_for() -> None:
    expected = os.environ.get("RHIZOME_EXPECT")
    if expected is None:
        pytest.skip("RHIZOME_EXPECT is not set: any form will do")
    assert build_info.is_compiled() == (expected == "compiled")


def test_description_names_version_and_form() -> None:
    form = "compiled with mypyc" if build_info.is_compiled() else "interpreted"
    assert build_info.describe() == f"rhizome {rhizome.__version__} ({form})"


def test_pure_mode_runs_interpreted() -> None:
    code = "from rhizome import build_info; print(build_info.describe())"
    done = run_python(code, RHIZOME_PURE="1", PYTHONPATH=str(PACKAGE.parent))
    assert done.stdout.strip() == f"rhizome {rhizome.__version__} (interpreted)", done.stderr


@pytest.fixture
def package_with_a_broken_extension(tmp_path: Path) -> Path:
    """A copy of the package's front door, and a module whose compiled form can't be loaded."""
    package = tmp_path / "rhizome"
    package.mkdir()
    for name in ("__init__.py", "_source_import_hook.py"):
        shutil.copy(PACKAGE / name, package / name)
    (package / "twofold.py").write_text("form = 'source'\n")
    (package / f"twofold{EXTENSION_SUFFIXES[0]}").write_bytes(b"not an object file")
    return tmp_path


def test_pure_mode_prefers_source_beside_an_extension(
    package_with_a_broken_extension: Path,
) -> None:
    path = str(package_with_a_broken_extension)
    code = "from rhizome import twofold; print(twofold.form)"
    pure = run_python(code, RHIZOME_PURE="1", PYTHONPATH=path)
    assert pure.stdout.strip() == "source", pure.stderr
    assert run_python(code, PYTHONPATH=path).returncode != 0  # the extension is what counts else
