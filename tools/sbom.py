"""List what Rhizome is made of (SBOM), as CycloneDX 1.6 in JSON.

    python tools/sbom.py FILE

Its parts are those of requirements/run.txt and image.txt with the hashes of the files that may be
installed, and which needs which as their own metadata says, where they are installed. The same
sources and environment give the same list, but for its time, which SOURCE_DATE_EPOCH sets.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import tomllib
import uuid
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from pin_requirements import FILES, REQUIREMENTS, ROOT, normal

SPEC_VERSION: Final = "1.6"
NAMESPACE: Final = uuid.UUID("6f1d3c8e-6f0b-5a57-9d3c-0d8a7a8f2b11")
HASH_PROPERTY: Final = "rhizome:sha256"
"""One for each file of a version: which one is installed depends on the platform."""

REQUIRED: Final = "required"
OPTIONAL: Final = "optional"
EXCLUDED: Final = "excluded"
"""Scopes: needed to run, an extra, needed to build alone."""

_BLOCK: Final = re.compile(r"^(?=[A-Za-z0-9])", re.MULTILINE)
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


def read_pins(path: Path) -> dict[str, tuple[str, list[str]]]:
    """Name -> version and hashes."""
    found = {}
    for block in _BLOCK.split(path.read_text())[1:]:
        name, _, rest = block.partition("==")
        found[normal(name)] = (rest.split()[0], _HASH.findall(block))
    return found


def names_of(requirements: Sequence[str]) -> list[str]:
    """The packages that are required, those of extras apart."""
    plain = [each for each in requirements if "extra ==" not in each]
    return [normal(match[0]) for each in plain if (match := _NAME.match(each))]


def needs(name: str) -> list[str]:
    """What a package says that it needs; nothing is known of one that isn't installed."""
    try:
        return names_of(metadata.requires(name) or [])
    except metadata.PackageNotFoundError:
        return []


def closure(names: Sequence[str], known: dict[str, Any]) -> set[str]:
    """These, what they need, and so on."""
    found: set[str] = set()
    left = [name for name in names if name in known]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += [each for each in needs(name) if each in known]
    return found


def licences(name: str) -> list[dict[str, str]]:
    try:
        said = metadata.metadata(name).json.get("license_expression")
    except metadata.PackageNotFoundError:
        said = None
    return [{"expression": str(said)}] if said else []


def component(name: str, version: str, hashes: Sequence[str], scope: str) -> dict[str, Any]:
    reference = f"pkg:pypi/{name}@{version}"
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": reference,
        "name": name,
        "version": version,
        "purl": reference,
        "scope": scope,
        "properties": [{"name": HASH_PROPERTY, "value": each} for each in sorted(hashes)],
    }
    if licences(name):
        found["licenses"] = licences(name)
    return found


def document() -> dict[str, Any]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins: dict[str, tuple[str, list[str]]] = {}
    for file in FILES:
        pins |= read_pins(REQUIREMENTS / file.name)
    direct = names_of(project["dependencies"])
    running = closure(direct, pins)
    image = set(read_pins(REQUIREMENTS / "image.txt"))
    me = f"pkg:pypi/{project['name']}@{project['version']}"
    components = []
    for name, (version, hashes) in sorted(pins.items()):
        scope = REQUIRED if name in running else OPTIONAL if name in image else EXCLUDED
        components.append(component(name, version, hashes, scope))
    references = {each["name"]: each["bom-ref"] for each in components}
    depends = [{"ref": me, "dependsOn": sorted(references[each] for each in direct)}]
    for each in components:
        on = sorted({references[one] for one in needs(each["name"]) if one in references})
        depends.append({"ref": each["bom-ref"], "dependsOn": on})
    return {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "serialNumber": f"urn:uuid:{uuid.uuid5(NAMESPACE, json.dumps([me, components]))}",
        "version": 1,
        "metadata": _metadata(project, me),
        "components": components,
        "dependencies": depends,
    }


def _metadata(project: dict[str, Any], reference: str) -> dict[str, Any]:
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    return {
        "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds)),
        "tools": {"components": [{"type": "application", "name": "rhizome tools/sbom.py"}]},
        "component": {
            "type": "application",
            "bom-ref": reference,
            "name": project["name"],
            "version": project["version"],
            "purl": reference,
            "description": project["description"],
            "licenses": [{"license": {"id": project["license"]}}],
        },
    }


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        print("usage: sbom.py FILE", file=sys.stderr)
        return 2
    found = document()
    Path(arguments[0]).write_text(json.dumps(found, indent=2) + "\n")
    print(f"wrote {arguments[0]}: {len(found['components'])} parts")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
