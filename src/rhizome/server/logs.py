"""Logging: the core's events in words, as text or as JSON lines."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from logging.handlers import RotatingFileHandler
from typing import Any, Final

from rhizome.broker.channel import Channel
from rhizome.broker.connection import Connection
from rhizome.broker.observer import Observer
from rhizome.errors import AccessRefused, AmqpError, NotAllowed
from rhizome.security.audit import Audit
from rhizome.security.bearer import Expiries
from rhizome.server.config import Config
from rhizome.server.sections import LogSection

logger = logging.getLogger("rhizome.broker")
audit_logger = logging.getLogger("rhizome.audit")

AMQP: Final = "amqp"

TEXT_FORMAT: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
CORE_TEXT_FORMAT: Final = "%(asctime)s %(levelname)-7s {broker} %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """One JSON object a line, with the broker's name if several write to one log."""

    def __init__(self, broker: str = "") -> None:
        super().__init__()
        self._broker = broker

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._broker:
            fields["broker"] = self._broker
        if isinstance(record.args, Mapping):
            fields.update(record.args)
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


def configure_logging(section: LogSection, broker: str = "") -> None:
    """Send the log where configuration says; with the name of a broker that shares it."""
    handler: logging.Handler
    if section.file:
        handler = logging.FileHandler(section.file)
    else:
        handler = logging.StreamHandler(sys.stderr)
    text_format = CORE_TEXT_FORMAT.format(broker=broker) if broker else TEXT_FORMAT
    handler.setFormatter(
        JsonFormatter(broker) if section.format == "json" else logging.Formatter(text_format)
    )
    root = logging.getLogger()
    for old in root.handlers:
        if isinstance(old, logging.FileHandler):
            old.close()
    root.handlers[:] = [handler]
    root.setLevel(section.level.upper())


class PrivateFile(RotatingFileHandler):
    """Files that nobody but their owner reads."""

    def _open(self) -> Any:
        return open(self.baseFilename, self.mode, encoding=self.encoding, opener=_open_private)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def configure_audit(config: Config) -> None:
    """Send the audit log where configuration says; an open file is closed first, and opened anew.

    A disk that is full costs lines, not the broker.
    """
    for handler in list(audit_logger.handlers):
        audit_logger.removeHandler(handler)
        handler.close()
    audit_logger.propagate = False
    audit_logger.setLevel(logging.INFO)
    path = config.audit_file()
    if path is None:
        audit_logger.addHandler(logging.NullHandler())
        return
    section = config.audit
    kept = PrivateFile(
        path, maxBytes=section.file_size_bytes, backupCount=section.files_max - 1, encoding="ascii"
    )
    kept.setFormatter(logging.Formatter("%(message)s"))
    audit_logger.addHandler(kept)


def audit_of(config: Config) -> Audit:
    return Audit(config.broker.name, _write_audit)


def _write_audit(line: str) -> None:
    audit_logger.info("%s", line)


class LogObserver(Observer):
    """Writes what the core tells to the log; ``on_closed`` is called when a connection is gone."""

    def __init__(self, on_closed: Callable[[], None], audit: Audit) -> None:
        super().__init__()
        self.on_closed = on_closed
        self.audit = audit
        self.expiries = Expiries()

    def connection_opened(self, connection: Connection) -> None:
        logger.info(
            "connection %s opened by user %r on vhost %r",
            connection.name,
            connection.identity.user,
            connection.router.vhost,
        )
        self.expiries.opened(connection)
        self.audit.login(AMQP, connection.identity.user, connection.peer, connection.router.vhost)

    def connection_closed(self, connection: Connection) -> None:
        logger.info("connection %s closed", connection.name)
        self.expiries.closed(connection)
        self.on_closed()

    def connection_failed(self, connection: Connection, error: AmqpError) -> None:
        logger.warning("connection %s: %s %s", connection.name, error.code, error.reply_text())
        self._refused(connection, error)

    def channel_failed(self, channel: Channel, error: AmqpError) -> None:
        logger.warning(
            "connection %s, channel %d: %s %s",
            channel.connection.name,
            channel.number,
            error.code,
            error.reply_text(),
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
            )

    def login_refused(self, connection: Connection, reason: str) -> None:
        logger.warning("connection %s: login refused: %s", connection.name, reason)
        self.audit.login_refused(AMQP, "", connection.peer, reason)

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

    def consumer_timed_out(self, queue: str, tag: str, connection: str) -> None:
        logger.warning(
            "consumer %r of queue %r on connection %s cancelled: it held a message too long",
            tag,
            queue,
            connection,
        )

    def letter_dropped(self, vhost: str, queue: str, error: AmqpError) -> None:
        logger.error(
            "a message that left queue %r in vhost %r is dropped: %s", queue, vhost, error.text
        )

    def bug(self, error: BaseException, where: str) -> None:
        logger.error("a fault of the broker itself at %s", where, exc_info=error)
