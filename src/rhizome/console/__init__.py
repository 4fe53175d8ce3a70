"""The console: static files for the browser, served as they are by every broker.

Plain ES modules, one style sheet, nothing from elsewhere and nothing to build. `main.js` begins;
each page is a module. All text that comes from the broker goes into the document as text, never
as markup (`dom.js`), and the content security policy allows no inline script or style.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class File(NamedTuple):
    content: bytes
    content_type: str
    etag: str


@cache
def files() -> dict[str, File]:
    """All files of the console by name. What isn't here isn't served, whatever a path says."""
    return {
        path.name: _read(path)
        for path in sorted(Path(__file__).parent.iterdir())
        if path.suffix in TYPES
    }


def _read(path: Path) -> File:
    content = path.read_bytes()
    return File(content, TYPES[path.suffix], f'"{sha256(content).hexdigest()[:20]}"')
