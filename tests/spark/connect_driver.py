"""A program that has a session of Spark Connect, as a process of its own: a session of the other
kind can't be in the same process.

    python -m tests.spark.connect_driver REMOTE COMMANDS

COMMANDS is a JSON list of `rhizome pipeline` commands, or of SQL texts as {"sql": ...}. It prints a
JSON list with the exit code and output of each, or the rows.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any


def main(remote: str, commands: list[Any]) -> list[Any]:
    from rhizome.spark import register
    from rhizome.spark.session import SessionOptions, start_session

    with tempfile.TemporaryDirectory() as directory:
        spark = start_session("tests", SessionOptions(remote, Path(directory)))
        try:
            register(spark)
            return [_result(spark, each) for each in commands]
        finally:
            spark.stop()


def _result(spark: Any, command: Any) -> Any:
    if isinstance(command, dict):
        try:
            return [list(row) for row in spark.sql(command["sql"]).collect()]
        except Exception as error:
            return str(error)
    from rhizome.cli.main import app

    out, trouble = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(trouble):
        try:
            app(["pipeline", *command])
            code: Any = 0
        except SystemExit as ended:
            code = ended.code
    return [code or 0, out.getvalue(), trouble.getvalue()]


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], json.loads(sys.argv[2])), default=str))
