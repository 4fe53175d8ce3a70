"""A hook of mkdocs: pages of the site that lie in the root, where others look for them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT: Final = Path(__file__).resolve().parent.parent
PAGES: Final = {
    "GLOSSARY.md": "glossary.md",
    "SECURITY.md": "reporting.md",
    "CHANGELOG.md": "changelog.md",
}


def linked(text: str, up: str) -> str:
    for source, page in PAGES.items():
        text = text.replace(f"]({up}{source}", f"]({up[:-3]}{page}")
    return text


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, page in PAGES.items():
        text = linked((ROOT / source).read_text().replace("](docs/", "]("), "")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, **_page: object) -> str:
    return linked(markdown, "../../")
