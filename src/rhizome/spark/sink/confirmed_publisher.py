"""Publisher: sends frames of messages and knows which of them the broker has confirmed.

Messages are numbered from 0 in the order in which they are given. At most WINDOW of them are on
their way unanswered. When the connection breaks, everything from the first unconfirmed one on is
sent again, to the next broker of the list; when one is refused (nack: a full queue, say), the same
happens on the connection as it is, once all others are answered. The frames carry producer and
sequence, so what had arrived is not stored twice (L5), and a refused sequence is still taken, as
the window is not larger than the one in which the broker remembers gaps.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from rhizome.amqp import methods
from rhizome.client.connection_uri import Address
from rhizome.client.protocol_events import ConnectionBlocked, ContentReceived, MethodReceived
from rhizome.errors import RhizomeError
from rhizome.journal.dedup_state import SEQUENCE_WINDOW
from rhizome.spark.amqp_socket import AmqpSocket, connect_patiently, is_passing, wait_s
from rhizome.spark.sink.publish_frames import FrameBatch

WINDOW: Final = SEQUENCE_WINDOW
UNSENT_BYTES_MAX: Final = 4 << 20
REFUSED_PAUSE_SECONDS: Final = 0.2
POLL_SECONDS: Final = 1.0


class UnroutableError(RhizomeError):
    """No queue took a message; the text says where it was sent."""


class NotConfirmedError(RhizomeError):
    """The broker did not confirm in time; the text says how many messages, and why if known."""


class Publisher:
    """Invariant: all messages below `_answered` are answered, those in `_beyond` too, and none
    below `_refused` (-1: no limit) was refused. `_kept` holds the batches that may have to be sent
    again, each with the number of its first message; `_next` is the next one to send. `_sent`
    counts what was sent on this channel, and the message with delivery tag t has the number
    `_base` + t - 1.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        name: str,
        patience_s: float,
        first_address: int = 0,
    ) -> None:
        self._addresses = addresses
        self._name = name
        self._patience_s = patience_s
        self._first_address = first_address
        self._kept: deque[tuple[int, FrameBatch]] = deque()
        self._end = 0
        self._next = 0
        self._answered = 0
        self._refused = -1
        self._beyond: set[int] = set()
        self._sent = 0
        self._base = 0
        self._progress_s = time.monotonic()
        self._trouble = ""
        self._wire = self._connect()

    @property
    def frame_bytes_max(self) -> int:
        return self._wire.frame_bytes_max

    def publish(self, batch: FrameBatch) -> None:
        """Send the messages of a batch; returns when the last one is on its way."""
        if len(batch) == 0:
            return
        self._kept.append((self._end, batch))
        self._end += len(batch)
        while self._next < self._end:
            self._step(finishing=False)

    def finish(self) -> int:
        """Wait until everything is confirmed, and close; returns how many messages there were."""
        while self._confirmed() < self._end:
            self._step(finishing=True)
        self._wire.close()
        return self._end

    def drop(self) -> None:
        self._wire.drop()

    # --- one step: send, listen, perhaps start again

    def _step(self, finishing: bool) -> None:
        before = self._confirmed()
        try:
            self._send()
            more = self._next < self._end
            self._listen(POLL_SECONDS if more or finishing else 0)
            if self._refused >= 0 and self._answered == self._next:
                wait_s(REFUSED_PAUSE_SECONDS)
                self._rewind(self._refused)
        except (RhizomeError, OSError) as error:
            if not is_passing(error):
                raise
            self._start_again(error)
        if self._confirmed() > before:
            self._progress_s = time.monotonic()
            self._trouble = ""
            self._forget()
        elif time.monotonic() - self._progress_s > self._patience_s:
            raise self._lost_patience()

    def _confirmed(self) -> int:
        """How many messages from the first on are confirmed."""
        return self._answered if self._refused < 0 else min(self._answered, self._refused)

    def _limit(self) -> int:
        """Up to which message may be sent. Behind a refused one nothing new goes out."""
        if self._refused >= 0:
            return self._next
        return min(self._end, self._answered + WINDOW)

    def _send(self) -> None:
        limit = self._limit()
        for first, batch in self._kept:
            if self._next >= limit or self._wire.unsent_bytes > UNSENT_BYTES_MAX:
                return
            stop = min(first + len(batch), limit)
            if stop <= self._next:
                continue
            begin = int(batch.bounds[self._next - first])
            self._wire.write(batch.data[begin : int(batch.bounds[stop - first])])
            self._sent += stop - self._next
            self._next = stop

    def _listen(self, seconds: float) -> None:
        for event in self._wire.poll(seconds):
            if isinstance(event, MethodReceived):
                self._answer(event.method)
            elif isinstance(event, ConnectionBlocked):
                self._trouble = f"the broker takes no messages: {event.reason}"
            elif isinstance(event, ContentReceived):
                raise _unroutable(event.method)

    # --- answers

    def _answer(self, method: methods.Method) -> None:
        if isinstance(method, methods.BasicAck):
            self._settle(int(method.delivery_tag), method.multiple, refused=False)
        elif isinstance(method, methods.BasicNack):
            self._trouble = "the broker refuses messages (a queue is full or unavailable)"
            self._settle(int(method.delivery_tag), method.multiple, refused=True)

    def _settle(self, tag: int, multiple: bool, refused: bool) -> None:
        last = self._base + tag - 1
        first = self._answered if multiple else last
        if refused:
            for number in range(first, last + 1):
                if number not in self._beyond:
                    self._refused = number if self._refused < 0 else min(self._refused, number)
                    break
        if first > self._answered:
            self._beyond.add(last)
            return
        self._answered = max(self._answered, last + 1)
        while self._answered in self._beyond:
            self._beyond.discard(self._answered)
            self._answered += 1

    def _forget(self) -> None:
        """Drop the batches that are confirmed."""
        confirmed = self._confirmed()
        while self._kept and self._kept[0][0] + len(self._kept[0][1]) <= confirmed:
            self._kept.popleft()

    # --- again

    def _rewind(self, number: int) -> None:
        """Send everything from a message on again."""
        self._next = self._answered = number
        self._base = number - self._sent
        self._refused = -1
        self._beyond.clear()

    def _start_again(self, error: BaseException) -> None:
        self._trouble = str(error)
        self._wire.drop()
        self._first_address += 1
        confirmed = self._confirmed()
        self._wire = self._connect()
        self._rewind(confirmed)

    def _connect(self) -> AmqpSocket:
        wire = connect_patiently(self._addresses, self._name, self._patience_s, self._first_address)
        wire.call(methods.ConfirmSelect(), methods.ConfirmSelectOk)
        self._sent = 0
        return wire

    def _lost_patience(self) -> NotConfirmedError:
        why = f": {self._trouble}" if self._trouble else ""
        return NotConfirmedError(
            f"{self._end - self._confirmed()} messages were not confirmed within "
            f"{self._patience_s:g} s{why}"
        )


def _unroutable(method: methods.Method) -> UnroutableError:
    assert isinstance(method, methods.BasicReturn)
    return UnroutableError(
        f"no queue took a message to exchange '{method.exchange}' with key "
        f"'{method.routing_key}' ({method.reply_text}); bind one, or set the option mandatory to "
        "false to let such messages go"
    )
