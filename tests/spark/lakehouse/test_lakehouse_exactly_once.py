"""Archives in Delta and Iceberg have each message once, with real processes.

The driver is killed -9 between data files and commit, and between commit and Spark's own note of
it; tasks are killed, and commits fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rhizome.spark.jobs import archive
from rhizome.spark.lakehouse.table_format import open_table
from rhizome.spark.lakehouse.table_options import table_settings
from rhizome.testing.broker_process import Broker, wait_until
from tests.spark.streams import declare_stream, fill, numbered
from tests.spark.table_driver import TableDriver, TableDriverSettings
from tests.spark.tables import FORMATS, readers

Unique = Callable[[str], str]
SECONDS_MAX = 600.0
QUESTION = 'SELECT count(*), count(DISTINCT "offset"), min("offset"), max("offset") FROM messages'
BODIES = 'SELECT "offset" FROM messages WHERE decode(value) <> "offset"::VARCHAR'


@pytest.fixture
def driver(broker: Broker, unique: Unique, tmp_path: Path) -> Iterator[TableDriver]:
    stream = unique("events")
    declare_stream(broker.url, stream)
    settings = TableDriverSettings(broker.url, stream, str(tmp_path / "driver"), 1000)
    Path(settings.directory).mkdir()
    driver = TableDriver(settings)
    yield driver
    driver.kill()


def live_until(driver: TableDriver, when: str) -> None:
    """A life of the driver, ended by kill -9 when both commits are there."""
    driver.plan(f"halt-{when}")
    driver.start()
    wait_until(lambda: driver.has_reached(when), f"{when} the commit", SECONDS_MAX)
    driver.kill()


def check(driver: TableDriver, count: int) -> None:
    """Everybody reads the numbers up to `count`, each once."""
    expected = [(count, count, 0 if count else None, count - 1 if count else None)]
    for kind in FORMATS:
        for name, ask in readers(kind).items():
            if count or name != "files":
                assert ask(driver.settings.table(kind), QUESTION) == expected, (kind, name)
                assert ask(driver.settings.table(kind), BODIES) == [], (kind, name)


def unnamed(driver: TableDriver, kind: str, dry_run: bool = True) -> list[str]:
    table = open_table(table_settings({"path": driver.settings.table(kind)}))
    return [name for name in table.vacuum(0, dry_run) if name.endswith(".parquet")]


@pytest.mark.timeout(2400)
def test_each_message_is_in_the_tables_once_whatever_is_killed(
    spark: Any, driver: TableDriver
) -> None:
    uri, stream = driver.settings.uri, driver.settings.stream
    fill(uri, stream, numbered(3000))
    live_until(driver, "before")
    check(driver, 0)
    assert all(unnamed(driver, kind) for kind in FORMATS)  # written, and not to be counted

    live_until(driver, "after")
    check(driver, 1000)

    fill(uri, stream, numbered(1000, 3000))
    driver.plan("kill-task", "fail-before", "fail-after")
    driver.start()
    assert driver.finish(SECONDS_MAX) == 0, driver.said()
    assert not any(map(driver.is_left, ("kill-task", "fail-before", "fail-after")))
    check(driver, 4000)

    for kind in FORMATS:
        # The first life, the second commit of batch 0, the killed task, the failed commits.
        assert len(unnamed(driver, kind)) >= 4
        assert unnamed(driver, kind, dry_run=False)
        assert unnamed(driver, kind) == []
        rows = archive.read(spark, driver.settings.table(kind)).select("offset").collect()
        assert sorted(row.offset for row in rows) == list(range(4000))
    check(driver, 4000)
