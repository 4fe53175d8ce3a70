"""Build the Debian package from a wheel, with dpkg-deb.

    python tools/build_deb.py WHEEL DIRECTORY

The package has its own environment in /opt/rhizome, with the pinned dependencies (HASHES=no: by
version alone), `rhizome` in /usr/bin, the systemd unit, a configuration file, and scripts that make
user, directories and cluster key. It runs on Debian's Python of the wheel's version.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
DEBIAN: Final = ROOT / "packaging" / "debian"
HOME: Final = "opt/rhizome"
SCRIPTS: Final = ("postinst", "prerm", "postrm")
_WHEEL: Final = re.compile(r"rhizomemq-([^-]+)-(?:cp3(\d+)|py3)-.*\.whl")


class DebError(Exception):
    """The package can't be built; the text says why."""


def debian_version(version: str) -> str:
    """0.2.0.dev0 comes before 0.2.0: dpkg sorts `~` before the end."""
    return re.sub(r"\.?(dev|a|b|rc)(\d+)", r"~\1\2", version)


def run(*command: object) -> None:
    done = subprocess.run(
        [str(each) for each in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise DebError(f"{' '.join(map(str, command[:4]))} failed:\n{done.stdout[-4000:]}")


def install_environment(wheel: Path, minor: int, stage: Path) -> None:
    """An environment at /opt/rhizome with the wheel and what it needs."""
    home = stage / HOME
    python = f"/usr/bin/python3.{minor}"
    if not Path(python).exists():
        raise DebError(f"{python} is missing: the package is built with the Python it runs on")
    run(python, "-m", "venv", "--without-pip", home)
    pip = [sys.executable, "-m", "pip", "--python", home / "bin" / "python", "--quiet"]
    pip += ["--disable-pip-version-check", "install", "--no-compile"]
    if os.environ.get("HASHES") == "no":
        run(*pip, "-c", ROOT / "requirements" / "constraints.txt", f"{wheel}[oauth]")
    else:
        run(*pip, "--require-hashes", "-r", ROOT / "requirements" / "image.txt")
        run(*pip, "--no-deps", wheel)
    make_final(home, stage)


def make_final(home: Path, stage: Path) -> None:
    """Paths of the build directory become those of the installed package."""
    for path in [home / "pyvenv.cfg", *(home / "bin").iterdir()]:
        if path.is_symlink() or not path.is_file():
            continue
        data = path.read_bytes()
        path.write_bytes(data.replace(str(stage).encode(), b""))
    for unneeded in ("activate", "activate.csh", "activate.fish", "Activate.ps1"):
        (home / "bin" / unneeded).unlink(missing_ok=True)


def add_files(stage: Path) -> None:
    """What the package has beside the environment."""
    (stage / "usr/bin").mkdir(parents=True)
    (stage / "usr/bin/rhizome").symlink_to("/opt/rhizome/bin/rhizome")
    copies = {
        "packaging/rhizome.service": "lib/systemd/system/rhizome.service",
        "packaging/debian/rhizome.toml": "etc/rhizome/rhizome.toml",
        "LICENSE": "usr/share/doc/rhizomemq/copyright",
        "CHANGELOG.md": "usr/share/doc/rhizomemq/CHANGELOG.md",
    }
    for source, target in copies.items():
        path = stage / target
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / source, path)
        path.chmod(0o644)
    examples = stage / "usr/share/doc/rhizomemq/examples"
    shutil.copytree(ROOT / "packaging" / "examples", examples)


def add_control(stage: Path, version: str, machine: str, python: str) -> None:
    control = stage / "DEBIAN"
    control.mkdir()
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["description"]
    size = sum(each.stat().st_size for each in stage.rglob("*") if each.is_file()) // 1024
    text = (DEBIAN / "control").read_text()
    facts = {"VERSION": version, "MACHINE": machine, "PYTHON": python, "SIZE": str(size)}
    for name, value in {**facts, "ABOUT": about}.items():
        text = text.replace(f"@{name}@", value)
    (control / "control").write_text(text)
    (control / "conffiles").write_text("/etc/rhizome/rhizome.toml\n")
    for name in SCRIPTS:
        shutil.copyfile(DEBIAN / name, control / name)
        (control / name).chmod(0o755)


def build(stage: Path, directory: Path, version: str, machine: str, python: str) -> Path:
    """The package of a directory that has /opt/rhizome in it."""
    add_files(stage)
    add_control(stage, version, machine, python)
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / f"rhizomemq_{version}_{machine}.deb"
    run("dpkg-deb", "--root-owner-group", "--build", stage, target)
    return target


def machine() -> str:
    """As Debian calls it. Dependencies are compiled, so it is never `all`."""
    done = subprocess.run(
        ["dpkg", "--print-architecture"], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 2:
        print("usage: build_deb.py WHEEL DIRECTORY", file=sys.stderr)
        return 2
    wheel, directory = Path(arguments[0]).absolute(), Path(arguments[1]).absolute()
    match = _WHEEL.fullmatch(wheel.name)
    try:
        if match is None or not wheel.is_file():
            raise DebError(f"{wheel} is no wheel of rhizomemq; make wheel makes one")
        minor = int(match[2] or sys.version_info[1])
        with tempfile.TemporaryDirectory() as scratch:
            stage = Path(scratch) / "stage"
            stage.mkdir(mode=0o755)
            install_environment(wheel, minor, stage)
            version = debian_version(match[1])
            python = f"python3 (>= 3.{minor}), python3 (<< 3.{minor + 1}~)"
            made = build(stage, directory, version, machine(), python)
    except DebError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{os.path.relpath(made)}  {made.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
