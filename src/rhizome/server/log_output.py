"""Log output: the core's events in words, as text or as JSON lines."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from rhizome.broker.channel.channel import Channel
from rhizome.broker.channel.consumer import Consumer
from rhizome.broker.connection.connection import Connection
from rhizome.broker.metadata.metadata_commands import (
    EXCHANGE,
    Bind,
    Command,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    Unbind,
)
from rhizome.broker.observer import Observer
from rhizome.broker.queue.queue import Queue
from rhizome.errors import AccessRefused, AmqpError, NotAllowed
from rhizome.printable_text import escaped, json_line, without_passwords
from rhizome.security.audit_log import Audit, Author, wall_clock_ms
from rhizome.security.rate_limited_log import STRANGER, RateLimitedLog, caused_by
from rhizome.security.token_login import TokenExpiries
from rhizome.server.config.broker_config import Config
from rhizome.server.config.config_sections import LogSection
from rhizome.server.log_thread import ErrorStream, LogFile, LogHandler, Sink

logger = logging.getLogger("rhizome.broker")
audit_logger = logging.getLogger("rhizome.audit")

AMQP: Final = "amqp"

TEXT_FORMAT: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
CORE_TEXT_FORMAT: Final = "%(asctime)s %(levelname)-7s {broker} %(name)s: %(message)s"


MESSAGE_CHARS_MAX: Final = 4096
"""A longer message of the log is cut, and says how long it was."""

TRACEBACK_CHARS_MAX: Final = 32 * 1024
"""The most characters of a traceback; a longer one keeps its end, where the error is."""

INDENT: Final = "    "
"""The prefix of each line of a traceback: a record begins with its time, so none can be forged in
one."""

LINES_BURST: Final = 10
LINES_INTERVAL_MS: Final = 1000
"""How many lines of one kind and source, caused by strangers, are written at once; then one per
interval, which says how many were left out."""

LINES_BURST_OF_ALL: Final = 100
LINES_INTERVAL_OF_ALL_MS: Final = 100
"""The same for one kind, whatever the source: a stranger may have many addresses."""

LIBRARIES: Final = ("uvicorn", "asyncio", "concurrent")
"""Loggers of libraries. Strangers can cause their lines, which don't say who did."""


def message_of(record: logging.LogRecord) -> str:
    """The text of a record, of bounded length and without passwords; not escaped yet.

    Arguments that don't fit their format are shown rather than losing the line.
    """
    try:
        text = record.getMessage()
    except Exception:
        text = f"{record.msg} {record.args!r}"
    text = without_passwords(text)  # before the cut: half a password would not be recognised
    if len(text) > MESSAGE_CHARS_MAX:
        text = f"{text[:MESSAGE_CHARS_MAX]}... (cut, of {len(text)} characters)"
    left_out = getattr(record, "left_out", 0)
    more = f" ({left_out} more like this were left out)" if left_out else ""
    return text + more


def traceback_of(record: logging.LogRecord) -> str:
    """The traceback of a record, of bounded length and without passwords; empty without one."""
    if not record.exc_info or not isinstance(record.exc_info[1], BaseException):
        return ""
    text = "".join(traceback.format_exception(record.exc_info[1])).rstrip("\n")
    text = "\n".join(without_passwords(line) for line in text.split("\n"))
    if len(text) > TRACEBACK_CHARS_MAX:
        text = f"... (cut, of {len(text)} characters)\n{text[-TRACEBACK_CHARS_MAX:]}"
    return text


class TextFormatter(logging.Formatter):
    """One line a record, and its traceback below it, indented.

    Names and reasons come from outside. Nothing in a record ends its line, moves a cursor or turns
    the direction of writing, and no line of a traceback looks like a record.
    """

    def format(self, record: logging.LogRecord) -> str:
        record.message = escaped(message_of(record))
        record.asctime = self.formatTime(record)
        lines = [self.formatMessage(record)]
        trace = traceback_of(record)
        if trace:
            lines += [INDENT + escaped(line) for line in trace.split("\n")]
        return "\n".join(lines)


class JsonFormatter(logging.Formatter):
    """One JSON object a line, in ASCII, with the broker's name if several write to one log."""

    def __init__(self, broker: str = "") -> None:
        super().__init__()
        self._broker = broker

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {}
        if isinstance(record.args, Mapping):
            fields.update(record.args)
        fields |= {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message_of(record),
        }
        if self._broker:
            fields["broker"] = self._broker
        trace = traceback_of(record)
        if trace:
            fields["exception"] = trace
        return json_line(fields)


class StrangerFilter(logging.Filter):
    """Holds back lines that strangers cause, if there are too many of one kind.

    A kind is the text of a line without its arguments, or the place in a library that writes it.
    The next line of the kind that goes through says how many were left out.
    """

    def __init__(self, clock_ms: Callable[[], int] = wall_clock_ms) -> None:
        super().__init__()
        self._clock_ms = clock_ms
        self._by_source = RateLimitedLog(LINES_BURST, LINES_INTERVAL_MS)
        self._by_kind = RateLimitedLog(LINES_BURST_OF_ALL, LINES_INTERVAL_OF_ALL_MS)
        # Kind -> lines held back because of their kind although their source had a share left
        self._untold: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        source = getattr(record, STRANGER, None)
        kind = f"{record.name} {record.msg}"
        if source is None:
            if record.name.partition(".")[0] not in LIBRARIES:
                return True
            source = ""
            kind = f"{record.pathname}:{record.lineno}"
        now_ms = self._clock_ms()
        of_source = self._by_source.held_back(f"{kind} {source}", now_ms)
        if of_source < 0:
            return False
        untold = of_source + self._untold.pop(kind, 0)
        of_kind = self._by_kind.held_back(kind, now_ms)
        if of_kind < 0:
            self._untold[kind] = untold
            return False
        record.left_out = untold + of_kind
        return True


def configure_logging(section: LogSection, broker: str = "", in_background: bool = True) -> None:
    """Send the log where configuration says; with the name of a broker that shares it.

    Raises OSError if that can't be opened; the log then stays where it was. A process that forks
    writes it itself (``in_background``).
    """
    handler = LogHandler("main", _log_sink(section), _lost_lines, in_background)
    handler.setFormatter(_formatter(section, broker))
    handler.addFilter(StrangerFilter())
    root = logging.getLogger()
    for old in root.handlers:
        if isinstance(old, LogHandler):
            old.close()
    root.handlers[:] = [handler]
    root.setLevel(section.level.upper())


def configure_audit(config: Config) -> None:
    """Send the audit log where configuration says.

    Raises OSError if that can't be done; the audit log then stays where it was. A disk that is full
    or hangs costs lines, not the broker.
    """
    handler = LogHandler("audit", _audit_sink(config), _lost_audit_lines)
    handler.setFormatter(logging.Formatter("%(message)s"))
    for old in list(audit_logger.handlers):
        audit_logger.removeHandler(old)
        old.close()
    audit_logger.propagate = False
    audit_logger.setLevel(logging.INFO)
    audit_logger.addHandler(handler)


def configure_logs_again(config: Config, broker: str = "") -> None:
    """Configure both logs again while the broker runs; open files are reopened. A log that can't be
    opened is reported, and nothing is lost."""
    logging.getLogger().setLevel(config.log.level.upper())
    for handler in log_handlers():
        if handler.log == "audit":
            handler.replace(partial(_audit_sink, config), _report_unopened)
        else:
            handler.setFormatter(_formatter(config.log, broker))
            handler.replace(partial(_log_sink, config.log), _report_unopened)


def log_handlers() -> list[LogHandler]:
    """The handlers of both logs."""
    found = [*logging.getLogger().handlers, *audit_logger.handlers]
    return [handler for handler in found if isinstance(handler, LogHandler)]


def flush_logs() -> None:
    """Wait until the logs are written, but not for ever."""
    for handler in log_handlers():
        handler.flush()


def _log_sink(section: LogSection) -> Sink:
    return LogFile(section.file) if section.file else ErrorStream()


def _audit_sink(config: Config) -> Sink:
    path, section = config.audit_file(), config.audit
    if path is None:
        return Sink()
    return LogFile(str(path), section.file_size_bytes, section.files_max)


def _formatter(section: LogSection, broker: str) -> logging.Formatter:
    if section.format == "json":
        return JsonFormatter(broker)
    shown = escaped(broker).replace("%", "%%")
    return TextFormatter(CORE_TEXT_FORMAT.format(broker=shown) if broker else TEXT_FORMAT)


def _lost_lines(count: int) -> logging.LogRecord:
    text = "%d lines before the last one could not be written to this log"
    return logging.LogRecord(logger.name, logging.ERROR, __file__, 0, text, (count,), None)


def _lost_audit_lines(count: int) -> logging.LogRecord:
    line = json_line({"event": "lost", "lines": count})
    return logging.LogRecord(audit_logger.name, logging.ERROR, __file__, 0, line, None, None)


def _report_unopened(error: OSError) -> None:
    logger.error("a log goes on where it went: %s", error)


def audit_of(config: Config) -> Audit:
    return Audit(config.broker.name, _write_audit, topology=config.audit.topology)


def _write_audit(line: str) -> None:
    audit_logger.info("%s", line)


class LogObserver(Observer):
    """Writes the core's events to the log; ``on_closed`` is called when a connection is gone."""

    def __init__(self, on_closed: Callable[[], None], audit: Audit) -> None:
        super().__init__()
        self.on_closed = on_closed
        self.audit = audit
        self.expiries = TokenExpiries()

    def connection_opened(self, connection: Connection) -> None:
        logger.info(
            "connection %s opened by user %r on vhost %r",
            connection.name,
            connection.identity.user,
            connection.router.vhost,
        )
        self.expiries.opened(connection)
        self.audit.login(
            AMQP,
            connection.identity.user,
            connection.peer,
            connection.router.vhost,
            connection.name,
        )

    def connection_closed(self, connection: Connection) -> None:
        # A connection that never logged in is a stranger's.
        extra = None if connection.identity.user else caused_by(connection.peer.address)
        logger.info("connection %s closed", connection.name, extra=extra)
        self.expiries.closed(connection)
        self.on_closed()

    def connection_failed(self, connection: Connection, error: AmqpError) -> None:
        logger.warning(
            "connection %s: %s %s",
            connection.name,
            error.code,
            error.reply_text(),
            extra=_caused_by(connection),
        )
        self._refused(connection, error)

    def channel_failed(self, channel: Channel, error: AmqpError) -> None:
        logger.warning(
            "connection %s, channel %d: %s %s",
            channel.connection.name,
            channel.number,
            error.code,
            error.reply_text(),
            extra=_caused_by(channel.connection),
        )
        self._refused(channel.connection, error)

    def _refused(self, connection: Connection, error: AmqpError) -> None:
        if isinstance(error, AccessRefused | NotAllowed):
            self.audit.access_refused(
                AMQP,
                connection.identity.user,
                connection.peer,
                connection.router.vhost,
                error.text,
                connection.name,
            )

    def login_refused(self, connection: Connection, reason: str) -> None:
        logger.warning(
            "connection %s: login refused: %s",
            connection.name,
            reason,
            extra=caused_by(connection.peer.address),
        )
        self.audit.login_refused(AMQP, "", connection.peer, reason, connection.name)

    def topology_changed(
        self, connection: Connection, command: Command, private: bool, error: AmqpError | None
    ) -> None:
        if self.audit.wants_topology(private):
            code = 0 if error is None else int(error.code)
            self.audit.topology_change(_author(connection), changed_by(command), code)

    def queue_purged(self, connection: Connection, queue: Queue, count: int) -> None:
        if self.audit.wants_topology(queue.definition.is_private()):
            what: dict[str, str | int] = {"what": "queue.purge", "queue": queue.name}
            self.audit.topology_change(_author(connection), {**what, "messages": count}, 0)

    def key_disclosed(self, connection: Connection) -> None:
        logger.error(
            "connection %s of user %r has sent the cluster key itself as a client property%s:"
            " whoever has read it can act as a broker. Give the application what `rhizome cluster"
            " app-token` prints, and rotate the key (docs/operating/runbook.md)",
            connection.name,
            connection.identity.user,
            "" if connection.peer.tls else ", in clear",
        )

    def publishers_blocked(self, reason: str) -> None:
        if reason:
            logger.warning("publishers are blocked: %s", reason)
        else:
            logger.debug("publishers: blocked or released by flow control")

    def consumer_timed_out(self, consumer: Consumer) -> None:
        connection = consumer.channel.connection
        logger.warning(
            "consumer %r of queue %r on connection %s cancelled: it held a message too long",
            consumer.tag,
            consumer.queue.name,
            connection.name,
            extra=_caused_by(connection),
        )

    def letter_dropped(self, vhost: str, queue: str, error: AmqpError) -> None:
        logger.error(
            "a message that left queue %r in vhost %r is dropped: %s", queue, vhost, error.text
        )

    def readers_left_behind(self, queue: Queue, unread: dict[bytes, int], dropped: bool) -> None:
        name, count = max(unread.items(), key=lambda each: each[1])
        others = f" (and {len(unread) - 1} other readers)" if len(unread) > 1 else ""
        logger.warning(
            "retention %s %d messages of stream %r in vhost %r that reader %r has not read%s; see"
            " `rhizome stream readers`",
            "has dropped" if dropped else "is about to drop",
            count,
            queue.name,
            queue.vhost,
            name.decode("utf-8", "replace"),
            others,
            extra=caused_by(f"{queue.vhost}/{queue.name}"),
        )

    def reader_expired(self, queue: Queue, name: bytes) -> None:
        logger.info(
            "the position of reader %r of stream %r in vhost %r is forgotten: it was not used for"
            " limits.stream_reader_expires",
            name.decode("utf-8", "replace"),
            queue.name,
            queue.vhost,
            extra=caused_by(f"{queue.vhost}/{queue.name}"),
        )

    def message_damaged(self, queue: Queue, index: int, reason: str) -> None:
        logger.error(
            "message %d of queue %r in vhost %r is damaged on disk and set aside: %s; see `rhizome"
            " queue damaged`",
            index,
            queue.name,
            queue.vhost,
            reason,
            extra=caused_by(f"{queue.vhost}/{queue.name}"),
        )

    def copy_damaged(self, queue_id: int, index: int, reason: str) -> None:
        logger.error(
            "message %d of queue number %d, of which a copy is kept here, is damaged on disk: %s",
            index,
            queue_id,
            reason,
            extra=caused_by(str(queue_id)),
        )

    def message_repaired(self, queue: Queue, index: int) -> None:
        logger.warning(
            "message %d of queue %r in vhost %r was damaged on disk; a copy had it",
            index,
            queue.name,
            queue.vhost,
            extra=caused_by(f"{queue.vhost}/{queue.name}"),
        )

    def bug(self, error: BaseException, where: str) -> None:
        extra = caused_by(type(error).__name__)
        logger.error("a fault of the broker itself at %s", where, exc_info=error, extra=extra)


def _caused_by(connection: Connection) -> dict[str, str]:
    """The source of a line. Applications of one host may have many faults, so they are told apart
    by their users."""
    user = connection.identity.user
    return caused_by(f"{user}@{connection.peer.address}" if user else connection.peer.address)


def _author(connection: Connection) -> Author:
    return Author(
        AMQP,
        connection.identity.user,
        connection.peer,
        connection.router.vhost,
        connection.name,
    )


def changed_by(command: Command) -> dict[str, str | int]:
    """What a command of an application does, in the words of AMQP."""
    if isinstance(command, DeclareQueue):
        return {"what": "queue.declare", "queue": command.name}
    if isinstance(command, DeleteQueue):
        return {"what": "queue.delete", "queue": command.name}
    if isinstance(command, DeclareExchange):
        return {"what": "exchange.declare", "exchange": command.name, "type": command.kind}
    if isinstance(command, DeleteExchange):
        return {"what": "exchange.delete", "exchange": command.name}
    if isinstance(command, Bind | Unbind):
        verb = "bind" if isinstance(command, Bind) else "unbind"
        found: dict[str, str | int] = {"exchange": command.source, "key": command.key}
        if command.destination_kind == EXCHANGE:
            return {"what": f"exchange.{verb}", "destination": command.destination, **found}
        return {"what": f"queue.{verb}", "queue": command.destination, **found}
    return {"what": type(command).__name__}
