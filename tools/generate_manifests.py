"""Write packaging/kubernetes/*.yaml: the chart of packaging/helm, rendered with its defaults, and
once more with TLS.

    python tools/generate_manifests.py            # write them
    python tools/generate_manifests.py --check    # fail if they are not what the chart says

The chart uses what Go's text/template has and nothing of Helm's own functions, so that the package
go-template, which has that engine, renders it as Helm does.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parent.parent
CHART: Final = ROOT / "packaging" / "helm" / "rhizome"
MANIFESTS: Final = ROOT / "packaging" / "kubernetes"
RELEASE: Final = "rhizome"
VARIANTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "rhizome.yaml": {},
    "rhizome-tls.yaml": {"tls": {"enabled": True}},
}
HEAD: Final = """\
# Made by tools/generate_manifests.py from packaging/helm/rhizome: change that, not this.
# docs/operating/kubernetes.md says what to create before, and what it does.
"""


class NoRendererError(Exception):
    """The package go-template isn't there, or its library not for this machine."""


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Values with some changed, as `helm --set` does."""
    found = dict(values)
    for key, value in changes.items():
        nested = isinstance(value, Mapping) and isinstance(found.get(key), Mapping)
        found[key] = merged(found[key], value) if nested else value
    return found


def render(changes: Mapping[str, Any], release: str = RELEASE) -> str:
    """All templates of the chart, in the order of their names, as one file."""
    try:
        from go_template.wrapper import render_template
    except (ImportError, OSError) as error:
        raise NoRendererError(f"go-template renders the chart, and: {error}") from None
    values = merged(yaml.safe_load((CHART / "values.yaml").read_text()), changes)
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    context = {"Values": values, "Release": {"Name": release}, "Chart": chart}
    parts = []
    with tempfile.TemporaryDirectory() as scratch:
        given, made = Path(scratch) / "values.yaml", Path(scratch) / "made.yaml"
        given.write_text(yaml.safe_dump(context))
        for template in sorted((CHART / "templates").glob("*.yaml")):
            render_template(str(template), str(given), str(made))
            parts.append(made.read_text().strip())
            made.unlink()
    return "\n---\n".join(parts) + "\n"


def main(arguments: Sequence[str]) -> int:
    try:
        wanted = {MANIFESTS / name: HEAD + render(each) for name, each in VARIANTS.items()}
    except NoRendererError as error:
        print(f"not checked: {error}", file=sys.stderr)
        return 0 if "--check" in arguments else 1
    if "--check" in arguments:
        stale = [path for path, text in wanted.items() if not _is(path, text)]
        for path in stale:
            print(f"{path} is stale; run tools/generate_manifests.py", file=sys.stderr)
        return 1 if stale else 0
    for path, text in wanted.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        print(f"wrote {path}")
    return 0


def _is(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
