"""Options of the format `rhizome.table`, checked on the driver."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final

from rhizome.spark.data_source_options import OptionError, Options
from rhizome.spark.lakehouse.table_location import (
    OPTION_PREFIX,
    Storage,
    exists,
    is_remote,
    normal_location,
)

NAME: Final = "rhizome.table"
DELTA: Final = "delta"
ICEBERG: Final = "iceberg"
PARQUET: Final = "parquet"
FORMATS: Final = (DELTA, ICEBERG)
COMPRESSIONS: Final = ("zstd", "snappy", "gzip", "none")
NAMESPACE_DEFAULT: Final = "default"
CATALOG_FILE: Final = "catalog.db"
CATALOG_PREFIX: Final = "catalog."
OPTIONS: Final = (
    "path",
    "format",
    "catalog",
    "table",
    "partitionBy",
    "compression",
    "writeId",
)
_ESCAPE: Final = re.compile(r"%[0-9A-Fa-f]{2}")
# What each kind of table has in its directory.
_MARKS: Final = {DELTA: "_delta_log", ICEBERG: "metadata", PARQUET: "_spark_metadata"}


@dataclass(frozen=True)
class TableSettings:
    """Which table, and how to write to it. `path` is empty for a table whose catalogue knows where
    it is; `partition_by` is None if the user did not say."""

    path: str
    format: str
    catalog: str = field(default="", repr=False)
    table: str = ""
    partition_by: tuple[str, ...] | None = None
    compression: str = "zstd"
    write_id: str = ""
    storage: Storage = field(default_factory=Storage)
    catalog_properties: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def called(self) -> str:
        """The table's name in errors."""
        return f"{self.format} table '{self.path or self.table}'"


def table_settings(given: Mapping[str, str]) -> TableSettings:
    """Check options; raises OptionError."""
    prefixes = (OPTION_PREFIX, CATALOG_PREFIX)
    plain = {name: each for name, each in given.items() if not name.lower().startswith(prefixes)}
    options = Options(plain, OPTIONS, NAME)
    storage = _storage(_with_prefix(given, OPTION_PREFIX))
    path = normal_location(options.text("path")) if options.has("path") else ""
    chosen = _chosen_format(options, path, storage)
    settings = TableSettings(
        path,
        chosen,
        options.text("catalog"),
        options.text("table"),
        tuple(options.names("partitionBy")) if options.has("partitionBy") else None,
        options.choice("compression", COMPRESSIONS, "zstd"),
        options.text("writeId"),
        storage,
        _with_prefix(given, CATALOG_PREFIX),
    )
    return _delta(settings, options) if chosen == DELTA else _iceberg(settings)


def _chosen_format(options: Options, path: str, storage: Storage) -> str:
    found = found_format(path, storage) if path else None
    fallback = ICEBERG if options.has("catalog") or options.has("table") else DELTA
    chosen = options.choice("format", FORMATS, found if found in FORMATS else fallback)
    if found not in (None, chosen):
        raise OptionError(f"'{path}' holds a table of format {found}, not {chosen}")
    return chosen


def _delta(settings: TableSettings, options: Options) -> TableSettings:
    options.required("path", "/lake/events")
    if not is_remote(settings.path) and _ESCAPE.search(settings.path):
        raise OptionError(f"deltalake can't use '{settings.path}': it has a % before two digits")
    for name in ("catalog", "table"):
        if options.has(name):
            raise OptionError(f"option '{name}' of {NAME} is for Iceberg; a Delta table has a path")
    return settings


def _iceberg(settings: TableSettings) -> TableSettings:
    """With the catalogue and the name that a table has by default."""
    catalog, table, path = settings.catalog, settings.table, settings.path
    if not catalog and (not path or is_remote(path)):
        raise OptionError(
            f"an Iceberg table at '{path}' needs the option 'catalog' of {NAME}: only a table in a "
            "directory has its own; give a database (sqlite:////DIR/catalog.db, postgresql://...) "
            "or a REST catalogue (https://...)"
        )
    if not table and not path:
        raise OptionError(f"{NAME} needs the option 'path' or 'table', like sales.orders")
    catalog = catalog or f"sqlite:///{path}/{CATALOG_FILE}"
    table = table or path.rpartition("/")[2]
    if "." not in table:
        table = f"{NAMESPACE_DEFAULT}.{table}"
    return TableSettings(**{**vars(settings), "catalog": catalog, "table": table})


def found_format(path: str, storage: Storage | None = None) -> str | None:
    """What lies at a path: delta, iceberg or parquet (an archive that Spark wrote); None if none
    of them does."""
    known = storage or Storage()
    location = normal_location(path)
    return next((name for name, mark in _MARKS.items() if exists(known, location, mark)), None)


def _with_prefix(given: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {
        name[len(prefix) :]: str(value)
        for name, value in given.items()
        if name.lower().startswith(prefix)
    }


def _storage(given: dict[str, str]) -> Storage:
    known = [each.name for each in fields(Storage)]
    for name in given:
        if name.lower() not in known:
            choices = ", ".join(OPTION_PREFIX + each for each in known)
            raise OptionError(f"{NAME} has no option '{OPTION_PREFIX}{name}'; it has {choices}")
    return Storage(**{name.lower(): value for name, value in given.items()})
