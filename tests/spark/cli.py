"""The command line, in the process and with the Spark session of the tests."""

from __future__ import annotations

import pytest

from rhizome.cli.main import app


def command(*arguments: str) -> int:
    """Run `rhizome ...` in this process; its exit code."""
    with pytest.raises(SystemExit) as ended:
        app(list(arguments))
    code = ended.value.code
    return code if isinstance(code, int) else 0
