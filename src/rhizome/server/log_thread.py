"""LogHandler: a log that a thread of its own writes.

A write to a disk that is dead, or to a pipe that nobody reads, may hang for ever. In the event loop
it would hang the broker. So the loop formats a line and puts it into a queue of bounded length, and
the thread writes it. A line that finds the queue full, or that can't be written, is lost; it is
counted, and the next line that gets through is preceded or followed by one that says how many are
missing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

LINES_MAX: Final = 10_000
CHARS_MAX: Final = 8 << 20
"""How much of a log waits to be written; what is beyond is lost."""

FLUSH_SECONDS_MAX: Final = 2.0
"""How long the end of the broker waits for a log."""

FILE_MODE: Final = 0o640
"""The mode of log files: for the broker's user, and for the group of log shippers."""

ERROR_DESCRIPTOR: Final = 2


class Sink:
    """Where the lines of a log go; this one is for those of a log that is not kept."""

    def write(self, line: bytes) -> None:
        """Write a line, with its end. Raises OSError."""

    def close(self) -> None:
        """Nothing more is written."""


class ErrorStream(Sink):
    """Standard error."""

    def write(self, line: bytes) -> None:
        _write_whole(ERROR_DESCRIPTOR, line)


class LogFile(Sink):
    """A file that others can't read. With a size it is begun anew when it would become larger, and
    ``files_max`` are kept: the older ones as PATH.1, PATH.2 and so on."""

    def __init__(self, path: str, size_max: int = 0, files_max: int = 1) -> None:
        """Raises OSError."""
        self.path = path
        self.size_max = size_max
        self.files_max = files_max
        self.descriptor = _open_private(path)
        self._size, self._is_regular = _size_of(self.descriptor)

    def write(self, line: bytes) -> None:
        if self._is_regular and 0 < self.size_max < self._size + len(line):
            self._roll_over()
        _write_whole(self.descriptor, line)
        self._size += len(line)

    def close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _roll_over(self) -> None:
        """Begin a new file; the oldest is dropped. If that fails, the old one goes on."""
        for number in range(self.files_max - 1, 0, -1):
            older = self.path if number == 1 else f"{self.path}.{number - 1}"
            if os.path.exists(older):
                os.replace(older, f"{self.path}.{number}")
        if self.files_max == 1:
            os.truncate(self.path, 0)
        opened = _open_private(self.path)
        os.close(self.descriptor)
        self.descriptor = opened
        self._size, self._is_regular = _size_of(opened)


def _open_private(path: str) -> int:
    """Open a file, and remove permissions beyond FILE_MODE that an earlier release or a log
    rotation left."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    status = os.fstat(descriptor)
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISREG(status.st_mode) and mode & ~FILE_MODE and status.st_uid == os.geteuid():
        os.fchmod(descriptor, mode & FILE_MODE)
    return descriptor


def _size_of(descriptor: int) -> tuple[int, bool]:
    status = os.fstat(descriptor)
    return status.st_size, stat.S_ISREG(status.st_mode)


def _write_whole(descriptor: int, line: bytes) -> None:
    while line:
        line = line[os.write(descriptor, line) :]


class LogHandler(logging.Handler):
    """Invariant: the thread alone uses the sink and writes what begins with ``_thread_``; all else
    is written under the handler's lock. Without ``in_background`` there is no thread, for processes
    that fork."""

    def __init__(
        self,
        log: str,
        sink: Sink,
        lost_record: Callable[[int], logging.LogRecord],
        in_background: bool = True,
    ) -> None:
        """``lost_record`` makes the record that says how many lines are missing."""
        super().__init__()
        self.log = log
        self.sink = sink
        self.dropped_lines = 0
        self._lost_record = lost_record
        self._in_background = in_background
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self._queue: SimpleQueue[str | Callable[[], None] | None] = SimpleQueue()
        self._put_lines = 0
        self._put_chars = 0
        self._dropped_untold = 0
        self._thread_lines = 0
        self._thread_chars = 0
        self._thread_failed_lines = 0
        self._thread_failed_untold = 0
        self._thread_began_ns = 0

    # ---- what is known of it --------------------------------------------------------------------

    @property
    def lost_lines(self) -> int:
        """The lines that were not written, because they could not be or too many waited."""
        return self.dropped_lines + self._thread_failed_lines

    @property
    def waiting_lines(self) -> int:
        return self._put_lines - self._thread_lines

    @property
    def stuck_ms(self) -> int:
        """How long the write in progress takes already."""
        began_ns = self._thread_began_ns
        return (time.monotonic_ns() - began_ns) // 1_000_000 if began_ns else 0

    # ---- the side of the event loop -------------------------------------------------------------

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
        except Exception:
            text = f"a line of {record.name} that could not be formatted: {record.msg!r}"
        waiting_chars = self._put_chars - self._thread_chars
        lines = 2 if self._dropped_untold else 1  # a line says first how many were dropped
        if self.waiting_lines + lines > LINES_MAX or waiting_chars + len(text) > CHARS_MAX:
            self.dropped_lines += 1
            self._dropped_untold += 1
            return
        self._tell_dropped()
        self._put(text)

    def replace(self, open_sink: Callable[[], Sink], failed: Callable[[OSError], None]) -> None:
        """Write to another sink after what waits. If that can't be opened, ``failed`` is called and
        nothing changes. Opening may hang as well, so the thread does it."""

        def work() -> None:
            try:
                opened = open_sink()
            except OSError as error:
                failed(error)
                return
            self.sink.close()
            self.sink = opened

        self.acquire()
        try:
            self._put(work)
        finally:
            self.release()

    def flush(self) -> None:
        """Wait until everything is written, but not for ever."""
        if self._thread is None:
            return
        deadline_s = time.monotonic() + FLUSH_SECONDS_MAX
        while (left_s := deadline_s - time.monotonic()) > 0:
            written = threading.Event()
            self._queue.put(written.set)
            written.wait(left_s)
            if not self.waiting_lines:  # the thread itself may have had something to report
                return

    def close(self) -> None:
        self.acquire()
        try:
            if self._is_closed:
                return
            self._is_closed = True
            self._tell_dropped()
            self.flush()
            if self._thread is not None:
                self._queue.put(None)
            else:
                self.sink.close()
            self._thread = None
        finally:
            self.release()
        super().close()

    def _tell_dropped(self) -> None:
        if self._dropped_untold:
            count, self._dropped_untold = self._dropped_untold, 0
            self._put(self.format(self._lost_record(count)))

    def _put(self, item: str | Callable[[], None]) -> None:
        if not self._in_background:
            self._do(item)
            return
        if isinstance(item, str):
            self._put_lines += 1
            self._put_chars += len(item)
        self._queue.put(item)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"{self.log} log", daemon=True)
            self._thread.start()

    # ---- the side of the thread -----------------------------------------------------------------

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            if item is None:
                self.sink.close()
                return
            self._thread_began_ns = time.monotonic_ns()
            self._do(item)
            self._thread_began_ns = 0
            if isinstance(item, str):
                self._thread_lines += 1
                self._thread_chars += len(item)

    def _do(self, item: str | Callable[[], None]) -> None:
        if not isinstance(item, str):
            item()
            return
        try:
            self.sink.write(_encoded(item))
        except OSError:
            self._thread_failed_lines += 1
            self._thread_failed_untold += 1
            return
        if self._thread_failed_untold:
            record = self._lost_record(self._thread_failed_untold)
            with contextlib.suppress(OSError):
                self.sink.write(_encoded(self.format(record)))
                self._thread_failed_untold = 0


def _encoded(line: str) -> bytes:
    return line.encode("utf-8", "backslashreplace") + b"\n"
