"""The log and the audit log as files: nothing forged, nothing lost, nothing for everybody."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rhizome.amqp.methods import (
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    ExchangeUnbind,
    ExchangeUnbindOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
    QueueUnbind,
    QueueUnbindOk,
)
from rhizome.security.audit_log import Audit
from rhizome.security.rate_limited_log import caused_by
from rhizome.server import log_output
from rhizome.server.config.broker_config import Config, load_config
from rhizome.server.log_output import (
    LINES_BURST,
    LINES_BURST_OF_ALL,
    MESSAGE_CHARS_MAX,
    TRACEBACK_CHARS_MAX,
    LogObserver,
    StrangerFilter,
    configure_audit,
    configure_logging,
    configure_logs_again,
    flush_logs,
)
from rhizome.server.log_thread import CHARS_MAX, LINES_MAX, LogFile, LogHandler
from rhizome.testing.in_memory_broker import Core, make_core

logger = logging.getLogger("rhizome.test")

HOSTILE = (
    "x\n2026-01-01 00:00:00,000 INFO    rhizome.broker: forged\r\x1b[2J\x85\x9b\u202e\u2028\x7f"
)
RECORD = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ +rhizome\.[a-z]+: ")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for each in [*root.handlers, *log_output.audit_logger.handlers]:
        if each not in handlers:
            each.close()
    root.handlers[:] = handlers
    root.setLevel(level)
    log_output.audit_logger.handlers.clear()


def config_of(**overrides: object) -> Config:
    return load_config(None, {key.replace("__", "."): v for key, v in overrides.items()}, {})


class Log:
    """The log in a file."""

    def __init__(self, path: Path, form: str = "text") -> None:
        self.path = path
        self.config = config_of(log__file=str(path), log__format=form, broker__memory=True)
        configure_logging(self.config.log)

    @property
    def text(self) -> str:
        flush_logs()
        return self.path.read_bytes().decode("utf-8")

    @property
    def lines(self) -> list[str]:
        return self.text.removesuffix("\n").split("\n")

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "log")


@pytest.fixture
def json_log(tmp_path: Path) -> Log:
    return Log(tmp_path / "log.json", "json")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# ---- forging ------------------------------------------------------------------------------------


def test_a_name_cannot_forge_a_line(log: Log) -> None:
    logger.warning("broker %s is refused", HOSTILE)
    (line,) = log.lines
    assert RECORD.match(line)
    assert line.isprintable()
    assert r"x\n2026-01-01" in line
    assert r"\r\x1b[2J\x85\x9b\u202e\u2028\x7f is refused" in line


def test_a_name_cannot_forge_a_line_of_json(json_log: Log) -> None:
    logger.warning("broker %s is refused", HOSTILE + "\udcff")
    (line,) = json_log.lines
    assert line.isascii()
    assert line.isprintable()
    assert "\\udcff" not in line.replace("\\\\udcff", ""), "many readers refuse lone surrogates"
    assert json_log.rows[0]["message"] == f"broker {HOSTILE}\\udcff is refused"


def test_arguments_by_name_cannot_replace_what_a_line_says(json_log: Log) -> None:
    logger.warning("%(level)s", {"level": "forged", "time": "never", "more": 1})
    (row,) = json_log.rows
    assert (row["level"], row["message"], row["more"]) == ("warning", "forged", 1)


def test_the_text_of_an_exception_cannot_forge_a_line(log: Log) -> None:
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        logger.exception("it failed")
    first, *rest = log.lines
    assert RECORD.match(first)
    assert rest[0] == "    Traceback (most recent call last):"
    assert all(line.startswith("    ") and line.isprintable() for line in rest)
    assert any("forged" in line for line in rest)
    assert sum(bool(RECORD.match(line)) for line in log.lines) == 1


def test_the_text_of_an_exception_cannot_forge_a_line_of_json(json_log: Log) -> None:
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        logger.exception("it failed")
    (row,) = json_log.rows
    assert row["exception"].startswith("Traceback")
    assert row["exception"].endswith(HOSTILE)


def test_lines_and_tracebacks_have_a_maximal_length(log: Log) -> None:
    logger.warning("%s", "x" * 1_000_000)
    assert len(log.text) < MESSAGE_CHARS_MAX + 200
    assert "of 1000000 characters" in log.text
    try:
        raise ValueError("y" * 1_000_000)
    except ValueError:
        logger.exception("it failed")
    assert len(log.text) < MESSAGE_CHARS_MAX + TRACEBACK_CHARS_MAX + 1000


def test_a_line_is_not_cut_through_a_password(log: Log) -> None:
    logger.warning("%s amqp://app:s3cret@b1", "x" * (MESSAGE_CHARS_MAX - 14))
    assert "s3" not in log.text


def test_passwords_of_uris_are_not_logged(log: Log, json_log: Log) -> None:
    for each in (log, json_log):
        configure_logging(each.config.log)
        try:
            raise ValueError("amqp://app:s3cret@b1 is wrong")
        except ValueError:
            logger.exception("no link with %s", "amqp://app:s3cret@b1")
        assert "amqp://app:***@b1" in each.text
        assert "s3cret" not in each.text.replace('raise ValueError("amqp://app:s3cret', "")


@contextlib.contextmanager
def full_disk(handler: logging.Handler) -> Iterator[None]:
    """The file of a log has no room meanwhile."""
    assert isinstance(handler, LogHandler)
    assert isinstance(handler.sink, LogFile)
    handler.flush()
    descriptor = handler.sink.descriptor
    whole, full = os.dup(descriptor), os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, descriptor)
    yield
    handler.flush()
    os.dup2(whole, descriptor)
    os.close(whole)
    os.close(full)


# ---- losing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_name_that_is_no_utf_8_is_logged(tmp_path: Path, form: str) -> None:
    log = Log(tmp_path / "log", form)
    logger.warning("VISIBLE")
    logger.warning("STEALTH %s", b"\xff\xfe".decode("utf-8", "surrogateescape"))
    assert "VISIBLE" in log.lines[0]
    assert "STEALTH" in log.lines[1]
    assert "udcff" in log.lines[1]


def test_arguments_that_do_not_fit_are_logged_all_the_same(log: Log) -> None:
    # Straight to the handler: the test runner's own would raise.
    record = logger.makeRecord(logger.name, logging.INFO, "", 0, "%d queues", ("many",), None)
    logging.getLogger().handlers[0].handle(record)
    assert "%d queues ('many',)" in log.text


def test_a_log_that_cannot_be_written_costs_lines_and_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = Log(tmp_path / "log")
    (handler,) = logging.getLogger().handlers
    with full_disk(handler):
        for _ in range(3):
            logger.warning("lost\n")
    logger.warning("back")
    assert [line.partition(": ")[2] for line in log.lines] == [
        "back",
        "3 lines before the last one could not be written to this log",
    ]
    assert capfd.readouterr() == ("", ""), "the library would print the line as it came"


def test_an_audit_log_that_cannot_be_written_says_so_in_json(tmp_path: Path) -> None:
    configure_audit(config_of(audit__file=str(tmp_path / "audit")))
    (handler,) = log_output.audit_logger.handlers
    with full_disk(handler):
        log_output.audit_logger.info("{}")
    log_output.audit_logger.info("{}")
    assert isinstance(handler, LogHandler)
    flush_logs()
    assert handler.lost_lines == 1
    rows = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    assert rows == [{}, {"event": "lost", "lines": 1}]


def test_a_file_that_cannot_be_opened_again_leaves_the_log_where_it_was(log: Log) -> None:
    wrong = config_of(log__file=str(log.path / "no" / "directory"), broker__memory=True)
    configure_logs_again(wrong)
    logger.warning("still here")
    assert sorted(line.partition(": ")[2].partition(":")[0] for line in log.lines) == [
        "a log goes on where it went",
        "still here",
    ]


# ---- hanging ------------------------------------------------------------------------------------


class Pipe:
    """A file that takes 64 KiB, and then nothing until it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        self._reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def read(self) -> str:
        """All that is written, until nothing waits any more."""
        found = bytearray()
        while True:
            waits = any(handler.waiting_lines for handler in log_output.log_handlers())
            try:
                found += os.read(self._reader, 1 << 16)
            except BlockingIOError:
                if not waits:
                    return found.decode()


@pytest.fixture
def pipe(tmp_path: Path) -> Pipe:
    return Pipe(tmp_path / "pipe")


def test_an_audit_log_that_hangs_holds_nobody_up_and_says_what_is_missing(pipe: Pipe) -> None:
    configure_audit(config_of(audit__file=str(pipe.path)))
    (handler,) = log_output.audit_logger.handlers
    assert isinstance(handler, LogHandler)
    sent = 3 * LINES_MAX
    for number in range(sent):  # would hang after 64 KiB
        log_output.audit_logger.info('{"n": %d}', number)
    assert handler.lost_lines > 0
    assert handler.waiting_lines <= LINES_MAX
    assert handler.stuck_ms >= 0
    read = pipe.read()
    log_output.audit_logger.info('{"n": -1}')
    rows = [json.loads(line) for line in (read + pipe.read()).splitlines()]
    assert rows[-2]["event"] == "lost"
    assert rows.pop() == {"n": -1}
    # A slow thread may have lost some before the pipe was full: then they are told in two parts.
    assert sum(row["lines"] for row in rows if "lines" in row) == handler.lost_lines
    written = [row["n"] for row in rows if "n" in row]
    assert len(written) == sent - handler.lost_lines
    assert written == sorted(set(written))


class SlowSink:
    """Takes a line each time the test allows one."""

    def __init__(self) -> None:
        self.allowed = threading.Semaphore(0)

    def write(self, _line: bytes) -> None:
        self.allowed.acquire()

    def close(self) -> None:
        pass


def test_the_line_that_says_how_many_were_lost_counts_against_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rhizome.server.log_thread.LINES_MAX", 3)
    sink = SlowSink()
    handler = LogHandler(
        "main", sink, lambda count: logging.makeLogRecord({"msg": f"lost {count}"})
    )
    line = logging.makeLogRecord({"msg": "line"})
    for _ in range(4):
        handler.emit(line)
    assert (handler.waiting_lines, handler.lost_lines) == (3, 1)
    sink.allowed.release()
    while handler.waiting_lines > 2:
        time.sleep(0.001)
    handler.emit(line)  # one line has room, but it would come with the one that says what was lost
    assert (handler.waiting_lines, handler.lost_lines) == (2, 2)
    sink.allowed.release(10)
    handler.close()


def test_what_waits_for_a_log_has_a_maximal_size(pipe: Pipe) -> None:
    configure_logging(config_of(log__file=str(pipe.path), broker__memory=True).log)
    (handler,) = logging.getLogger().handlers
    assert isinstance(handler, LogHandler)
    for _ in range(2 * CHARS_MAX // MESSAGE_CHARS_MAX):
        logger.warning("x" * MESSAGE_CHARS_MAX)
    assert handler.dropped_lines > 0
    assert handler.waiting_lines <= CHARS_MAX // MESSAGE_CHARS_MAX
    assert "x" in pipe.read()


def test_a_file_that_hangs_when_it_is_opened_holds_nobody_up(log: Log, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "unread")  # opening it waits for a reader
    configure_logs_again(config_of(log__file=str(tmp_path / "unread"), broker__memory=True))
    logger.warning("it waits")
    (handler,) = log_output.log_handlers()
    assert handler.waiting_lines == 1
    reader = os.open(tmp_path / "unread", os.O_RDONLY)
    assert b"it waits" in os.read(reader, 1000)
    os.close(reader)


# ---- files --------------------------------------------------------------------------------------


def test_audit_files_have_a_maximal_size_and_number(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    for files_max, kept in ((3, ["audit", "audit.1", "audit.2"]), (1, ["audit"])):
        sink = LogFile(str(path), 1000, files_max)
        for number in range(500):
            sink.write(b"%099d\n" % number)
        sink.close()
        assert path.read_bytes().endswith(b"499\n")
        assert all((tmp_path / name).stat().st_size <= 1000 for name in kept)
        assert sorted(each.name for each in tmp_path.iterdir()) == kept
        for name in kept:
            (tmp_path / name).unlink()


# ---- reading ------------------------------------------------------------------------------------


def test_others_cannot_read_the_logs(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        log = Log(tmp_path / "log")
        config = config_of(audit__file=str(tmp_path / "audit"), audit__file_size="64KiB")
        configure_audit(config)
        for _ in range(70):
            log_output.audit_logger.info("x" * 1000)
    finally:
        os.umask(umask)
    logger.warning("x")
    flush_logs()
    assert mode_of(log.path) == 0o640
    assert mode_of(tmp_path / "audit") == 0o640
    assert mode_of(tmp_path / "audit.1") == 0o640


def test_files_that_others_could_read_lose_that_when_they_are_opened(tmp_path: Path) -> None:
    for name in ("log", "audit"):
        (tmp_path / name).touch(0o644)
        (tmp_path / name).chmod(0o644)
    Log(tmp_path / "log")
    configure_audit(config_of(audit__file=str(tmp_path / "audit")))
    assert mode_of(tmp_path / "log") == 0o640
    assert mode_of(tmp_path / "audit") == 0o640
    (tmp_path / "log").chmod(0o600)
    Log(tmp_path / "log")
    assert mode_of(tmp_path / "log") == 0o600, "nothing is opened up"


# ---- noise --------------------------------------------------------------------------------------


class Clock:
    now_ms = 1_000_000


@pytest.fixture
def clock(log: Log) -> Clock:
    clock = Clock()
    (handler,) = logging.getLogger().handlers
    handler.filters[:] = [StrangerFilter(lambda: clock.now_ms)]
    return clock


def test_lines_that_a_stranger_causes_are_few_and_counted(log: Log, clock: Clock) -> None:
    for number in range(300):
        logger.warning("connection %s: refused", number, extra=caused_by("10.0.0.66"))
    assert len(log.lines) == LINES_BURST
    logger.warning("connection %s: refused", 1, extra=caused_by("10.0.0.1"))
    logger.warning("another kind", extra=caused_by("10.0.0.66"))
    assert len(log.lines) == LINES_BURST + 2, "nobody else is silenced, and nothing else"
    clock.now_ms += 1000
    logger.warning("connection %s: refused", 1, extra=caused_by("10.0.0.66"))
    assert log.lines[-1].endswith(f"({300 - LINES_BURST} more like this were left out)")


def test_a_stranger_with_many_addresses_is_held_back_too(log: Log, clock: Clock) -> None:
    for number in range(1000):
        logger.warning("refused", extra=caused_by(f"10.0.{number // 250}.{number % 250}"))
    assert len(log.lines) == LINES_BURST_OF_ALL
    clock.now_ms += 1000
    logger.warning("refused", extra=caused_by("10.9.9.9"))
    assert log.lines[-1].endswith(f"({1000 - LINES_BURST_OF_ALL} more like this were left out)")


def test_every_line_that_was_left_out_is_counted_once(log: Log, clock: Clock) -> None:
    sent = 0
    for step in range(200):
        clock.now_ms += 37
        for number in range(step % 23):
            logger.warning("refused", extra=caused_by(f"10.0.0.{number % 5}"))
            sent += 1
    told = sum(int(found) for found in re.findall(r"\((\d+) more like", log.text))
    left = sent - len(log.lines) - told
    assert 0 <= left <= 23 * 30, "only what no later line could tell is left"
    assert len(log.lines) < sent


def test_lines_of_libraries_are_held_back_by_the_place_that_writes_them(
    log: Log, clock: Clock
) -> None:
    library = logging.getLogger("uvicorn.error")
    for number in range(100):
        library.warning(f"Invalid HTTP request {number}")
    library.warning("another place")
    assert len(log.lines) == LINES_BURST + 1


def test_what_the_broker_says_of_itself_is_never_held_back(log: Log, clock: Clock) -> None:
    for _ in range(500):
        logger.warning("the link is down")
    assert len(log.lines) == 500


def test_consumers_that_time_out_together_are_not_logged_one_by_one(log: Log, clock: Clock) -> None:
    core = make_core()
    core.broker.observer = LogObserver(lambda: None, Audit("b1", lambda line: None))
    client = core.connect()
    queue = client.declare("q", x_consumer_timeout=60_000)
    client.prefetch(1)
    for number in range(5 * LINES_BURST):
        client.consume(queue, f"c{number}")
    client.send_bytes(client.published("", queue, b"x") * (5 * LINES_BURST))
    core.advance(80_000)
    assert core.queue(queue).consumer_count == 0
    assert log.text.count("it held a message too long") == LINES_BURST


# ---- what applications change -------------------------------------------------------------------


class Audited:
    def __init__(self, core: Core, topology: str) -> None:
        self.lines: list[str] = []
        audit = Audit("b1", self.lines.append, topology=topology)
        core.broker.observer = LogObserver(lambda: None, audit)
        self.client = core.connect()
        self.lines.clear()

    def rows(self) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.lines]
        self.lines.clear()
        return [row for row in found if row["event"] == "topology"]

    def change_everything(self) -> None:
        call = self.client.call
        for _ in range(2):  # the second time nothing changes
            call(QueueDeclare("orders", durable=True), QueueDeclareOk)
            call(ExchangeDeclare("in", "topic"), ExchangeDeclareOk)
            call(ExchangeDeclare("out", "fanout"), ExchangeDeclareOk)
            call(QueueBind("orders", "in", "a.#"), QueueBindOk)
            call(ExchangeBind("out", "in", "b"), ExchangeBindOk)
        self.client.publish("", "orders", b"x")
        call(QueuePurge("orders"), QueuePurgeOk)
        call(QueueUnbind("orders", "in", "a.#"), QueueUnbindOk)
        call(ExchangeUnbind("out", "in", "b"), ExchangeUnbindOk)
        call(QueueDelete("orders"), QueueDeleteOk)
        call(ExchangeDelete("in"), ExchangeDeleteOk)


@pytest.fixture
def core() -> Core:
    return make_core()


def test_changes_of_the_topology_are_audited_once_with_who_and_where(core: Core) -> None:
    audited = Audited(core, "shared")
    audited.change_everything()
    rows = audited.rows()
    for row in rows:
        assert row.pop("time")
        assert row.pop("event") == "topology"
        assert row.pop("broker") == "b1"
        assert row.pop("user") == "guest"
        assert row.pop("address") == "127.0.0.1:1"
        assert row.pop("connection") == "client"
        assert row.pop("vhost") == "/"
        assert row.pop("via") == "amqp"
        assert row.pop("result") == "ok"
    assert rows == [
        {"what": "queue.declare", "queue": "orders"},
        {"what": "exchange.declare", "exchange": "in", "type": "topic"},
        {"what": "exchange.declare", "exchange": "out", "type": "fanout"},
        {"what": "queue.bind", "queue": "orders", "exchange": "in", "key": "a.#"},
        {"what": "exchange.bind", "destination": "out", "exchange": "in", "key": "b"},
        {"what": "queue.purge", "queue": "orders", "messages": 1},
        {"what": "queue.unbind", "queue": "orders", "exchange": "in", "key": "a.#"},
        {"what": "exchange.unbind", "destination": "out", "exchange": "in", "key": "b"},
        {"what": "queue.delete", "queue": "orders"},
        {"what": "exchange.delete", "exchange": "in"},
    ]


@pytest.mark.parametrize(("topology", "count"), [("none", 0), ("shared", 0), ("all", 4)])
def test_exclusive_queues_are_audited_if_all_are(core: Core, topology: str, count: int) -> None:
    audited = Audited(core, topology)
    call = audited.client.call
    call(QueueDeclare("mine", exclusive=True), QueueDeclareOk)
    call(QueueBind("mine", "amq.topic", "k"), QueueBindOk)
    call(QueuePurge("mine"), QueuePurgeOk)
    call(QueueDelete("mine"), QueueDeleteOk)
    assert len(audited.rows()) == count


def test_nothing_is_audited_of_the_topology_if_none_is_wanted(core: Core) -> None:
    audited = Audited(core, "none")
    audited.change_everything()
    assert audited.rows() == []


def test_messages_and_closing_leave_no_line(core: Core) -> None:
    audited = Audited(core, "all")
    audited.client.declare("q")
    audited.rows()
    audited.client.publish("", "q", b"x")
    assert audited.client.get("q") is not None
    assert audited.rows() == []
