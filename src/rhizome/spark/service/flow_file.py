"""The file of a service: which flows there are. It is checked whole, before Spark starts, and every
mistake is told with its line.

    name = "orders"
    state = "/var/lib/rhizome-pipeline/orders"
    uri_file = "/etc/rhizome/pipeline.uri"

    [flows.archive]
    source = { streams = ["orders"] }
    sink = { table = "/lake/orders", format = "delta" }

    [flows.large]
    source = { streams = ["orders"] }
    sql = "SELECT value, 'large' AS key FROM messages WHERE length(value) > 1000"
    sink = { exchange = "alerts" }

A key that may hold a password has two forms besides: NAME_env names a variable of the environment,
NAME_file a file, which others must not be able to read. So must the file itself if it holds one.
"""

from __future__ import annotations

import importlib
import os
import re
import stat
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from rhizome.client.connection_uri import parse_uri
from rhizome.errors import RhizomeError
from rhizome.printable_text import escaped, without_passwords
from rhizome.spark.service.toml_key_lines import KeyLines

FLOWS_MAX: Final = 64
FILE_BYTES_MAX: Final = 1 << 20
SECRET_BYTES_MAX: Final = 64 << 10
NAME_CHARS_MAX: Final = 100
TRIES_DEFAULT: Final = 3
PAUSE_DEFAULT: Final = "1s"
PAUSE_MAX_DEFAULT: Final = "5m"
SET_ASIDE_IN_A_ROW_DEFAULT: Final = 10
"""A flow that has set so many batches aside one after the other is halted: something is wrong with
the flow, not with messages."""
INTERVAL_DEFAULT: Final = "5s"
STOP_DEFAULT: Final = "60s"
ROWS_DEFAULT: Final = 100_000
TAP_AGE_DEFAULT: Final = "7D"
TAP_BYTES_DEFAULT: Final = 10 << 30
VIEW: Final = "messages"
"""What a flow's SQL calls the rows of its source."""

STREAMS, QUEUES, PATTERN, TAP = "streams", "queues", "pattern", "tap"
TABLE, EXCHANGE, QUEUE, FORMAT = "table", "exchange", "queue", "spark"
TABLE_FORMATS: Final = ("delta", "iceberg", "parquet")
RETRY, SET_ASIDE = "retry", "set-aside"
_PACKAGES: Final = {"delta": "deltalake", "iceberg": "pyiceberg"}
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_TIME: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_FORMS: Final = ("", "_env", "_file")
_OF_FLOWS: Final = ("uri", "subscribe", "subscribepattern", "readername", "excludedoffsets")


class FlowFileError(RhizomeError):
    """The file is wrong; each line of the text names the place of a mistake."""


@dataclass(frozen=True)
class SourceSettings:
    """What a flow reads. `names` are streams, queues, one pattern or one exchange, as `kind` says;
    `keys` are those that a tap is bound with."""

    kind: str
    names: tuple[str, ...]
    uri: str = field(repr=False)
    starting: str = "earliest"
    rows_per_batch: int = ROWS_DEFAULT
    keys: tuple[str, ...] = ("#",)
    stream: str = ""
    keep: str = TAP_AGE_DEFAULT
    keep_bytes: int = TAP_BYTES_DEFAULT
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class SinkSettings:
    """Where a flow writes. `name` is a table's path, an exchange, a queue or a format of Spark."""

    kind: str
    name: str
    uri: str = field(default="", repr=False)
    key: str = ""
    format: str = ""
    catalog: str = field(default="", repr=False)
    table_name: str = ""
    partition_by: tuple[str, ...] = ()
    path: str = ""
    mode: str = "append"
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class FlowSettings:
    """A flow: source, transformation (`sql` or `function`, or none), sink."""

    name: str
    source: SourceSettings
    sink: SinkSettings
    sql: str = ""
    function: str = ""
    interval_s: float = 5.0
    on_sink_error: str = RETRY


@dataclass(frozen=True)
class RetrySettings:
    """`tries` of a batch until it may be set aside; pauses double from the first to the longest."""

    tries: int = TRIES_DEFAULT
    pause_s: float = 1.0
    pause_max_s: float = 300.0
    set_aside_in_a_row: int = SET_ASIDE_IN_A_ROW_DEFAULT


@dataclass(frozen=True)
class ServiceSettings:
    """The whole file, checked."""

    name: str
    state: str
    set_aside: str
    flows: tuple[FlowSettings, ...]
    retry: RetrySettings = field(default_factory=RetrySettings)
    stop_timeout_s: float = 60.0
    listen: tuple[str, int] | None = None
    report: str = field(default="", repr=False)
    master: str = ""
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    py_files: tuple[str, ...] = ()
    directory: str = ""


def load(path: Path) -> ServiceSettings:
    """The settings of a file. Raises FlowFileError with every mistake in it."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FlowFileError(f"{path}: {error.strerror}") from None
    if len(data) > FILE_BYTES_MAX:
        raise FlowFileError(f"{path} has {len(data)} bytes; {FILE_BYTES_MAX} are the limit")
    try:
        text = data.decode()
        document = tomllib.loads(text)
    except UnicodeDecodeError:
        raise FlowFileError(f"{path} is no UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise FlowFileError(f"{path}: {error}") from None
    problems = Problems(path, KeyLines(text))
    found = _service(Section(problems, document), path)
    problems.raise_if_any()
    return found


def state_of(path: Path) -> str:
    """Where the state of a file's service is, for those who may not read its secrets."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8")).get("state")
    except OSError as error:
        raise FlowFileError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise FlowFileError(f"{path}: {error}") from None
    if not isinstance(found, str) or not found:
        raise FlowFileError(f"{path} names no state")
    return found if "://" in found else str((path.parent / found).absolute())


class Problems:
    """The mistakes that were found so far."""

    def __init__(self, path: Path, lines: KeyLines) -> None:
        self.path = path
        self._lines = lines
        self._found: list[tuple[int, str]] = []

    def add(self, text: str, *key: str) -> None:
        self._found.append((self._lines.of(*key), without_passwords(escaped(text))))

    def raise_if_any(self) -> None:
        if self._found:
            lines = [f"{self.path}:{line}: {text}" for line, text in sorted(self._found)]
            raise FlowFileError("\n".join(dict.fromkeys(lines)))


class Section:
    """A table of the file. What it is asked for are the keys that it knows; `finish` refuses any
    other, with the nearest of those."""

    def __init__(self, problems: Problems, document: Mapping[str, Any], *path: str) -> None:
        self.problems = problems
        self.document = document
        self.path = path
        self.known: dict[str, None] = {}

    @property
    def called(self) -> str:
        return ".".join(self.path) or "the file"

    def has(self, name: str) -> bool:
        return any(name + form in self.document for form in _FORMS)

    def wrong(self, name: str, text: str) -> None:
        self.problems.add(text, *self.path, *([name] if name else ()))

    def taken(self, name: str, kind: type | tuple[type, ...], said: str) -> Any:
        """The value of a key; None if it isn't there, or is no `said`."""
        self.known[name] = None
        value = self.document.get(name)
        if value is None:
            return None
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            self.wrong(name, f"'{name}' of {self.called} must be {said}")
            return None
        return value

    def text(self, name: str, default: str = "") -> str:
        found = self.taken(name, str, "a text")
        if found == "":
            self.wrong(name, f"'{name}' of {self.called} is empty")
        return default if found is None else str(found)

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        found = self.text(name, default)
        if found not in choices:
            self.wrong(name, f"'{name}' of {self.called} must be one of {', '.join(choices)}")
            return default
        return found

    def number(self, name: str, default: int, least: int = 1) -> int:
        found = self.taken(name, int, "a whole number")
        if found is not None and found < least:
            self.wrong(name, f"'{name}' of {self.called} must be {least} or more")
        return default if found is None else int(found)

    def seconds(self, name: str, default: str) -> float:
        found = self.taken(name, str, "a time, like 500ms, 30s or 5m") or default
        match = _TIME.fullmatch(found)
        if match is None or float(match[1]) == 0:
            self.wrong(name, f"'{name}' of {self.called} must be a time, like 500ms, 30s or 5m")
            return 1.0
        return float(match[1]) * _UNITS[match[2]]

    def names(self, name: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        said = "a list of texts that are not empty"
        found = self.taken(name, (list, str), said)
        if found is None:
            return default
        listed = [found] if isinstance(found, str) else found
        if not listed or not all(isinstance(each, str) and each for each in listed):
            self.wrong(name, f"'{name}' of {self.called} must be {said}")
            return default
        return tuple(listed)

    def section(self, name: str) -> Section:
        found = self.taken(name, dict, "a table")
        return Section(self.problems, found or {}, *self.path, name)

    def options(self, name: str) -> dict[str, str]:
        """A table of texts, numbers and booleans, of which each may be a secret."""
        inner = self.section(name)
        found: dict[str, str] = {}
        for key, value in inner.document.items():
            plain = re.sub(r"_(env|file)$", "", key)
            if plain != key:
                found[plain] = inner.secret(plain)
            elif isinstance(value, bool):
                found[key] = "true" if value else "false"
            elif isinstance(value, (str, int, float)):
                found[key] = str(value)
            else:
                inner.wrong(key, f"'{key}' of {inner.called} must be a text, a number or a boolean")
        return found

    def secret(self, name: str, default: str = "") -> str:
        """A value that may be given by itself, in the environment, or in a file."""
        given = [name + form for form in _FORMS if name + form in self.document]
        self.known.update(dict.fromkeys(name + form for form in _FORMS))
        if not given:
            return default
        if len(given) > 1:
            self.wrong(given[1], f"{self.called} has {' and '.join(given)}: give one of them")
        value = self.text(given[0])
        if given[0].endswith("_env"):
            return self._from_environment(given[0], value)
        if given[0].endswith("_file"):
            return self._from_file(given[0], value)
        if without_passwords(value) != value:
            self._check_own_mode(given[0])
        return value

    def _from_environment(self, name: str, variable: str) -> str:
        found = os.environ.get(variable, "")
        if variable and not found:
            self.wrong(name, f"'{name}' of {self.called} names {variable}, which is not set")
        return found

    def _from_file(self, name: str, path: str) -> str:
        where = self.problems.path.parent / path
        try:
            status = where.stat()
            mode = stat.S_IMODE(status.st_mode)
            if not stat.S_ISREG(status.st_mode):
                self.wrong(name, f"{path} is no file")
            elif mode & (stat.S_IRWXO | stat.S_IWGRP):
                self.wrong(name, f"{path} has mode {mode:o}: others may read or change it; run "
                                 f"chmod 600 {path}")  # fmt: skip
            else:
                with where.open("rb") as file:
                    return file.read(SECRET_BYTES_MAX).decode().strip()
        except OSError as error:
            self.wrong(name, f"{path} can't be read: {error.strerror}")
        except UnicodeDecodeError:
            self.wrong(name, f"{path} is no UTF-8")
        return ""

    def _check_own_mode(self, name: str) -> None:
        path = self.problems.path
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & (stat.S_IRWXO | stat.S_IWGRP):
            self.wrong(
                name,
                f"'{name}' holds a password and the file has mode {mode:o}: run chmod 600 "
                f"{path.name}, or use {name}_file or {name}_env",
            )

    def finish(self) -> None:
        """Refuse keys that nobody has asked for."""
        for name in self.document:
            if name in self.known:
                continue
            nearest = get_close_matches(name, self.known, n=1)
            hint = f"did you mean '{nearest[0]}'?" if nearest else f"it has {', '.join(self.known)}"
            self.wrong(name, f"{self.called} has no key '{name}'; {hint}")


# --- the tables


def _service(top: Section, path: Path) -> ServiceSettings:
    name = _name(top, "name", path.stem)
    state = _place(top, "state", path)
    if not state:
        top.wrong("state", "'state' is missing: a directory or an address that lasts")
    uri = _brokers(top, "")
    spark, retry, flows = top.section("spark"), top.section("retry"), top.section("flows")
    settings = ServiceSettings(
        name,
        state,
        _place(top, "set_aside", path) or f"{state}/set_aside",
        _flows(flows, uri, path),
        _retry(retry),
        top.seconds("stop_timeout", STOP_DEFAULT),
        _listen(top),
        _report(top),
        _master(spark),
        spark.options("conf"),
        tuple(str(path.parent / each) for each in spark.names("py_files")),
        str(path.parent.absolute()),
    )
    for each in settings.py_files:
        if not Path(each).exists():
            spark.wrong("py_files", f"{each} is not there")
    spark.finish()
    top.finish()
    return settings


def _place(section: Section, name: str, path: Path) -> str:
    """A directory, relative to the file, or an address of an object store."""
    found = section.text(name).rstrip("/")
    if not found or "://" in found:
        return found
    return str((path.parent / found).absolute())


def _name(section: Section, key: str, default: str) -> str:
    found = section.text(key, default)
    if not _NAME.fullmatch(found) or len(found) > NAME_CHARS_MAX:
        section.wrong(key, f"'{found}' is no name: letters, digits, '_', '.' and '-', at most "
                           f"{NAME_CHARS_MAX}")  # fmt: skip
    return found


def _master(spark: Section) -> str:
    found = spark.text("master")
    if found.startswith("sc://"):
        spark.wrong("master", "the service has its own driver and can't run over Spark Connect: "
                              "name the master itself")  # fmt: skip
    return found


def _retry(section: Section) -> RetrySettings:
    found = RetrySettings(
        section.number("tries", TRIES_DEFAULT),
        section.seconds("pause", PAUSE_DEFAULT),
        section.seconds("pause_max", PAUSE_MAX_DEFAULT),
        section.number("set_aside_in_a_row", SET_ASIDE_IN_A_ROW_DEFAULT),
    )
    section.finish()
    return found


def _listen(top: Section) -> tuple[str, int] | None:
    text = top.text("listen")
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        top.wrong("listen", "'listen' must be HOST:PORT, like 127.0.0.1:15693")
        return None
    return host.strip("[]"), int(port)


def _brokers(section: Section, default: str) -> str:
    found = section.secret("uri", default)
    if section.has("uri") and found:
        try:
            parse_uri(found)
        except (RhizomeError, ValueError) as error:
            section.wrong("uri", f"'uri' of {section.called}: {error}")
    return found


def _report(top: Section) -> str:
    """An address of brokers' HTTP APIs, or an AMQP URI of the same hosts."""
    found = top.secret("report")
    scheme, separator, rest = found.partition("://")
    amqp = {"http": "amqp", "https": "amqps"}.get(scheme, scheme)
    try:
        if found:
            parse_uri(f"{amqp}{separator}{rest}")
    except (RhizomeError, ValueError) as error:
        top.wrong("report", f"'report': {error}")
    return found


def _flows(section: Section, uri: str, path: Path) -> tuple[FlowSettings, ...]:
    names = list(section.document)
    if not 1 <= len(names) <= FLOWS_MAX:
        section.wrong("", f"the file has {len(names)} flows; it must have 1 to {FLOWS_MAX}")
    found = []
    for name in names[:FLOWS_MAX]:
        if not _NAME.fullmatch(name) or len(name) > NAME_CHARS_MAX:
            section.wrong(name, f"'{name}' is no name of a flow: letters, digits, '_', '.', '-'")
        found.append(_flow(section.section(name), name, uri, path))
    return tuple(found)


def _flow(section: Section, name: str, uri: str, path: Path) -> FlowSettings:
    found = FlowSettings(
        name,
        _source(section.section("source"), uri),
        _sink(section.section("sink"), uri, path),
        _sql(section, path),
        section.text("function"),
        section.seconds("interval", INTERVAL_DEFAULT),
        section.choice("on_sink_error", (RETRY, SET_ASIDE), RETRY),
    )
    if found.sql and found.function:
        section.wrong("function", f"flow '{name}' has SQL and a function: give one of them")
    if found.function:
        _check_function(section, found.function, path)
    section.finish()
    return found


def _one_of(section: Section, kinds: tuple[str, ...]) -> str:
    given = [kind for kind in kinds if kind in section.document]
    if len(given) != 1:
        section.wrong(
            given[1] if given else "", f"{section.called} must have one of {', '.join(kinds)}"
        )
    return given[0] if given else kinds[0]


def _source(section: Section, uri: str) -> SourceSettings:
    kind = _one_of(section, (STREAMS, PATTERN, QUEUES, TAP))
    names = section.names(kind, ("?",)) if kind in (STREAMS, QUEUES) else (section.text(kind, "?"),)
    for each in (STREAMS, PATTERN, QUEUES, TAP):
        section.known[each] = None
    found = SourceSettings(
        kind,
        names,
        _brokers(section, uri),
        "earliest" if kind == QUEUES else section.text("starting", "earliest"),
        section.number("rows_per_batch", ROWS_DEFAULT),
        options=section.options("options"),
    )
    if kind == TAP:
        found = SourceSettings(**{
            **vars(found),
            "keys": section.names("keys", ("#",)),
            "stream": section.text("stream"),
            "keep": section.text("keep", TAP_AGE_DEFAULT),
            "keep_bytes": section.number("keep_bytes", TAP_BYTES_DEFAULT),
        })  # fmt: skip
    if not found.uri:
        section.wrong("", f"{section.called} has no brokers: give 'uri' here or for the whole file")
    for name in found.options:
        if name.lower() in _OF_FLOWS:
            section.wrong("options", f"option '{name}' of {section.called} is set by the service")
    section.finish()
    return found


def _sink(section: Section, uri: str, path: Path) -> SinkSettings:
    kind = _one_of(section, (TABLE, EXCHANGE, QUEUE, FORMAT))
    for each in (TABLE, EXCHANGE, QUEUE, FORMAT):
        section.known[each] = None
    options = section.options("options")
    if kind == TABLE:
        found = _table(section, path, options)
    elif kind == FORMAT:
        found = SinkSettings(
            kind, section.text(kind, "?"), path=section.text("path"), options=options,
            mode=section.choice("mode", ("append", "update", "complete"), "append"),
            partition_by=section.names("partition_by"),
        )  # fmt: skip
    else:
        found = SinkSettings(
            kind,
            section.text(kind, "?"),
            _brokers(section, uri),
            section.text("key") if kind == EXCHANGE else "",
            options=options,
        )
        if not found.uri:
            section.wrong("", f"{section.called} has no brokers: give 'uri' here or for the file")
    section.finish()
    return found


def _table(section: Section, path: Path, options: dict[str, str]) -> SinkSettings:
    kind = section.choice("format", TABLE_FORMATS, "delta")
    package = _PACKAGES.get(kind)
    if package is not None and find_spec(package) is None:
        section.wrong(
            "format", f"a table of format {kind} needs {package}: pip install 'rhizomemq[{kind}]'"
        )
    catalog, name = section.secret("catalog"), section.text("name")
    if kind != "iceberg" and (catalog or name):
        section.wrong("catalog", "a catalogue and a name are for tables of format iceberg")
    return SinkSettings(
        TABLE,
        _place(section, TABLE, path) or "?",
        format=kind,
        catalog=catalog,
        table_name=name,
        partition_by=section.names("partition_by"),
        options=options,
    )


def _sql(section: Section, path: Path) -> str:
    text, file = section.text("sql"), section.text("sql_file")
    if text and file:
        section.wrong("sql_file", f"{section.called} has sql and sql_file: give one of them")
    if file:
        try:
            text = (path.parent / file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            section.wrong("sql_file", f"{file} can't be read: {error}")
            return ""
    if text and not re.search(rf"\b{VIEW}\b", text, re.IGNORECASE):
        section.wrong(
            "sql_file" if file else "sql",
            f"the SQL of {section.called} does not read '{VIEW}', which is what its source gives",
        )
    return text


def _check_function(section: Section, text: str, path: Path) -> None:
    try:
        function_of(text, str(path.parent.absolute()))
    except FlowFileError as error:
        section.wrong("function", str(error))


def function_of(text: str, directory: str) -> Any:
    """The function `module:name`; modules beside the file are found."""
    module, colon, name = text.partition(":")
    if not colon or not module or not name:
        raise FlowFileError(f"'{text}' is no function; write it as module:function")
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        found = getattr(importlib.import_module(module), name, None)
    except Exception as error:
        # Whatever a module does when it is imported, the place to look at is the file.
        raise FlowFileError(f"'{module}' can't be imported: {error}") from None
    if not callable(found):
        raise FlowFileError(f"module '{module}' has no function '{name}'")
    return found
