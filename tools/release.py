"""Make everything that a release publishes, up to the upload.

    python tools/release.py [--draft] [DIRECTORY]

It checks first, and stops at what is wrong: version, changelog, tag and work tree. Then it makes
the source archive, the wheel of this interpreter, the list of parts (SBOM) and the checksums, in
DIRECTORY (dist), and says what is left to do. Wheels of cibuildwheel that lie in DIRECTORY already
get checksums too. --draft makes everything of a version that is no release yet, and tells what is
wrong at the end.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import build_wheel
import sbom
from pin_requirements import FILES, ROOT, problems

RELEASE: Final = re.compile(r"\d+\.\d+\.\d+")
CHECKSUMS: Final = "SHA256SUMS"
LATER: Final = """\
Left to do:
    make check-wheel                        # the wheel in an empty environment, with Spark
    cibuildwheel --output-dir {directory}      # wheels of the other interpreters and machines
    sign {directory}/{checksums} with your key, and upload all but it with your package client
    push the tag v{version}, add the commit to packaging/releases.txt, set the next version
"""


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def version_faults(version: str) -> list[str]:
    faults = []
    if not RELEASE.fullmatch(version):
        faults.append(f"version {version} is no release: write X.Y.Z into pyproject.toml")
    text = (ROOT / "src" / "rhizome" / "__init__.py").read_text()
    if f'__version__ = "{version}"' not in text:
        faults.append(f"src/rhizome/__init__.py has another version than pyproject.toml, {version}")
    listed = [
        line.split()[0]
        for line in (ROOT / "packaging" / "releases.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    if version in listed:
        faults.append(f"version {version} is in packaging/releases.txt: it was released before")
    return faults


def changelog_faults(version: str) -> list[str]:
    text = (ROOT / "CHANGELOG.md").read_text()
    sections = re.findall(r"^## \[([^\]]+)\](?: - (\d{4}-\d\d-\d\d))?$", text, re.MULTILINE)
    for name, date in sections:
        if name == version:
            return [] if date else [f"CHANGELOG.md: {version} has no date (## [{version}] - DATE)"]
    return [f"CHANGELOG.md has no section for {version}"]


def tag_faults(version: str) -> list[str]:
    """The tag must name the commit that is checked out, and nothing may differ from it."""
    faults = []
    if git("status", "--porcelain", "--untracked-files=no"):
        faults.append("the work tree has changes that are in no commit")
    here, tagged = git("rev-parse", "HEAD"), git("rev-parse", f"v{version}^{{commit}}")
    if not tagged:
        faults.append(f"there is no tag v{version}: git tag -s v{version}")
    elif tagged != here:
        faults.append(f"tag v{version} is {tagged[:12]}, and {here[:12]} is checked out")
    return faults


def faults_of(version: str) -> list[str]:
    pins = [text for file in FILES for text in problems(file)]
    return [*version_faults(version), *changelog_faults(version), *tag_faults(version), *pins]


def write_checksums(directory: Path) -> Path:
    """In the format of sha256sum, for `sha256sum --check`."""
    files = sorted(
        each for each in directory.iterdir() if each.name.endswith((".tar.gz", ".whl", ".json"))
    )
    lines = [f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in files]
    target = directory / CHECKSUMS
    target.write_text("".join(lines))
    return target


def make(directory: Path, name: str, version: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for stale in directory.iterdir():
        if stale.name.startswith(name) and version not in stale.name and stale.is_file():
            stale.unlink()
    if build_wheel.main([str(directory)]) != 0:
        raise SystemExit(1)
    sbom.main([str(directory / f"{name}.cdx.json")])
    print(f"wrote {write_checksums(directory)}")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--draft", action="store_true", help="make all of it, whatever is wrong")
    parser.add_argument("directory", nargs="?", type=Path, default=ROOT / "dist")
    options = parser.parse_args(arguments)
    about = project()
    name, version = str(about["name"]), str(about["version"])
    faults = faults_of(version)
    if not faults or options.draft:
        make(options.directory.absolute(), name, version)
    for fault in faults:
        print(f"not a release: {fault}", file=sys.stderr)
    if faults:
        return 0 if options.draft else 1
    print(LATER.format(directory=options.directory, checksums=CHECKSUMS, version=version))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
