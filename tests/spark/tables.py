"""Tables as programs of others read them: each knows which files count, and DuckDB asks them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

FORMATS = ("delta", "iceberg")
Ask = Callable[[str, str], list[tuple[Any, ...]]]


def delta_table(path: str) -> Any:
    from deltalake import DeltaTable

    return DeltaTable(path)


def iceberg_table(path: str) -> Any:
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("rhizome", type="sql", uri=f"sqlite:///{path}/catalog.db")
    return catalog.load_table(f"default.{Path(path).name}")


def readers(kind: str) -> dict[str, Ask]:
    """Ways to ask a table, by name; a question calls it `messages`."""
    if kind == "delta":
        return {
            "delta-rs": lambda path, ask: _by_arrow(delta_table(path).to_pyarrow_table(), ask),
            "dataset": lambda path, ask: _by_arrow(delta_table(path).to_pyarrow_dataset(), ask),
            "files": lambda path, ask: _by_files(delta_table(path).file_uris(), ask),
        }
    return {
        "pyiceberg": lambda path, ask: _by_arrow(iceberg_table(path).scan().to_arrow(), ask),
        "files": lambda path, ask: _by_files(
            [task.file.file_path for task in iceberg_table(path).scan().plan_files()], ask
        ),
    }


def _by_arrow(messages: Any, question: str) -> list[tuple[Any, ...]]:
    import duckdb

    with duckdb.connect() as database:
        database.register("messages", messages)
        return database.execute(question).fetchall()


def _by_files(paths: list[str], question: str) -> list[tuple[Any, ...]]:
    """DuckDB reads the Parquet files that a table names."""
    import duckdb

    with duckdb.connect() as database:
        database.from_parquet(paths).create_view("messages")
        return database.execute(question).fetchall()
