"""Pin what a broker runs on, and is built with, by the hashes of its files.

    python tools/pin_requirements.py              # write requirements/run.txt and image.txt
    python tools/pin_requirements.py --check      # fail if they don't fit pyproject.toml

The versions are those of requirements/constraints.txt; pip-tools (pip-compile), which writing
needs, asks the package index for the hashes of all files of each version, so that every platform
finds its own among them. pip then installs nothing that has another hash, wherever it comes from.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
REQUIREMENTS: Final = ROOT / "requirements"
CONSTRAINTS: Final = REQUIREMENTS / "constraints.txt"


class Pinned(NamedTuple):
    """A file, and which requirements it has."""

    name: str
    about: str
    builds: bool
    """What it takes to build Rhizome, beside what it runs on."""
    extras: tuple[str, ...]


FILES: Final = (
    Pinned("run.txt", "What Rhizome is built with and runs on", True, ()),
    Pinned("image.txt", "What Rhizome runs on in a container, with oauth", False, ("oauth",)),
)

HEAD: Final = """\
# {about}, by the hashes of its files:
#     pip install --require-hashes -r requirements/{name}
# Made by tools/pin_requirements.py (make constraints) from pyproject.toml and constraints.txt.
"""
_PIN: Final = re.compile(r"^([A-Za-z0-9._-]+)==(\S+?)(?: \\)?$", re.MULTILINE)
_NAME: Final = re.compile(r"^[A-Za-z0-9._-]+")


def normal(name: str) -> str:
    """A package's name as all tools agree on it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def wanted(file: Pinned) -> list[str]:
    """The requirements that pyproject.toml states."""
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = document["project"]
    found = list(project["dependencies"])
    if file.builds:
        found += document["build-system"]["requires"]
    for extra in file.extras:
        found += project["optional-dependencies"][extra]
    return found


def pins(text: str) -> dict[str, str]:
    """The versions in a file, by name."""
    return {normal(name): version for name, version in _PIN.findall(text)}


def write(file: Pinned) -> None:
    target = REQUIREMENTS / file.name
    target.unlink(missing_ok=True)
    options = ["--generate-hashes", "--allow-unsafe", "--strip-extras", "--no-header", "--quiet"]
    options += ["--no-emit-index-url", "--no-emit-find-links", "--no-annotate"]
    options += ["--constraint", str(CONSTRAINTS), "--output-file", str(target)]
    subprocess.run(
        [sys.executable, "-m", "piptools", "compile", *options, "-"],
        input="\n".join(wanted(file)) + "\n",
        text=True,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    lines = [line for line in target.read_text().splitlines() if not line.startswith("#")]
    head = HEAD.format(name=file.name, about=file.about)
    target.write_text(head + "\n".join(line for line in lines if line) + "\n")


def problems(file: Pinned) -> list[str]:
    """What doesn't fit; empty if a file is up to date as far as can be told without an index."""
    name = file.name
    path = REQUIREMENTS / name
    if not path.exists():
        return [f"requirements/{name} is missing"]
    text = path.read_text()
    found = pins(text)
    known = pins(CONSTRAINTS.read_text())
    complaints = [
        f"requirements/{name} has {each} {version}, constraints.txt {known.get(each, 'nothing')}"
        for each, version in found.items()
        if known.get(each) != version
    ]
    for requirement in wanted(file):
        match = _NAME.match(requirement)
        if match is None or normal(match[0]) not in found:
            complaints.append(f"requirements/{name} lacks {requirement}")
    for block in re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)[1:]:
        if "--hash=sha256:" not in block:
            complaints.append(f"requirements/{name}: {block.split()[0]} has no hash")
    return complaints


def main(arguments: Sequence[str]) -> int:
    if list(arguments) == ["--check"]:
        found = [text for file in FILES for text in problems(file)]
        for text in found:
            print(f"{text}; run make constraints", file=sys.stderr)
        return 1 if found else 0
    for file in FILES:
        write(file)
        print(f"wrote requirements/{file.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
