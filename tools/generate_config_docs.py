"""Write docs/operating/configuration.md from the sections of the configuration.

python tools/generate_config_docs.py            write the page
python tools/generate_config_docs.py --check    exit 1 if the page is out of date
"""

from __future__ import annotations

import sys
from pathlib import Path

from rhizome.server.config.broker_config import DEFINITIONS, SECTIONS
from rhizome.server.config.config_text import render_markdown

PAGE = Path(__file__).parent.parent / "docs" / "operating" / "configuration.md"


def main(arguments: list[str]) -> int:
    wanted = render_markdown(SECTIONS, DEFINITIONS)
    if "--check" in arguments:
        if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == wanted:
            return 0
        print(f"{PAGE} is out of date; run python tools/generate_config_docs.py", file=sys.stderr)
        return 1
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(wanted, encoding="utf-8")
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
