"""Timers: everything that happens because time passes, driven by the shell's tick.

There is no timer per message, queue or connection. Those that need attention are in sets, and each
tick looks through these.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from rhizome.amqp.methods import BasicCancel
from rhizome.broker.channel.consumer import Consumer
from rhizome.broker.channel.unacked import REQUEUE
from rhizome.broker.connection.connection import HEARTBEAT_FRAME, Connection
from rhizome.broker.connection.connection_states import CLOSED, CLOSING, RUNNING
from rhizome.broker.fault_log import FAULT_QUEUE, FAULT_TIMER
from rhizome.broker.queue.message_ttl import expire
from rhizome.broker.queue.queue import Queue
from rhizome.errors import ConnectionForced

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.channel.channel import Channel

CONNECTIONS_EVERY_MS: Final = 500
CLOSE_OK_TIMEOUT_MS: Final = 3_000
TIMEOUT_MARKS: Final = 16
"""A consumer timeout is noticed within this fraction of it."""


class Timers:
    """Invariant: every queue with a TTL, an expiring message or x-expires is in ``queues``."""

    broker: Broker
    queues: dict[Queue, None]
    connections_checked_ms: int

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.queues = {}
        self.connections_checked_ms = 0

    def watch(self, queue: Queue) -> None:
        self.queues[queue] = None

    def unwatch(self, queue: Queue) -> None:
        self.queues.pop(queue, None)

    def tick(self, now_ms: int) -> None:
        turn = self.broker.turn
        for queue in list(self.queues):
            turn.doing = queue
            try:
                self._check_queue(queue, now_ms)
            except Exception as error:
                where = f"queue '{queue.name}' in vhost '{queue.vhost}'"
                self.broker.report_bug(error, where, FAULT_QUEUE)
        turn.doing = "timers"
        try:
            self.broker.delayed.release_due(now_ms)
        except Exception as failure:
            self.broker.report_bug(failure, "delayed messages", FAULT_TIMER)
        try:
            self.broker.leases.tick(now_ms)
        except Exception as fault:
            self.broker.report_bug(fault, "leases", FAULT_TIMER)
        if now_ms - self.connections_checked_ms >= CONNECTIONS_EVERY_MS:
            self.connections_checked_ms = now_ms
            for connection in list(self.broker.connections.values()):
                try:
                    self._check_connection(connection, now_ms)
                except Exception as bug:
                    self.broker.connection_fault(connection, bug)

    def _check_queue(self, queue: Queue, now_ms: int) -> None:
        if queue.away is not None or queue.log.still:
            # Its home does this, and knows who uses it.
            queue.last_used_ms = now_ms
            return
        if queue.may_expire and queue.ready > 0:
            expire(queue, now_ms)
        expires_ms = queue.options.expires_ms
        if expires_ms < 0:
            return
        if queue.consumer_count > 0:
            queue.last_used_ms = now_ms
        elif now_ms - queue.last_used_ms >= expires_ms:
            self.broker.delete_queue(queue)

    # ---- connections ----------------------------------------------------------------------------

    def _check_connection(self, connection: Connection, now_ms: int) -> None:
        if connection.stage == RUNNING:
            self._heartbeat(connection, now_ms)
            for channel in list(connection.channels.values()):
                self._check_consumers(channel, now_ms)
        elif connection.stage == CLOSING:
            if now_ms - connection.last_received_ms > CLOSE_OK_TIMEOUT_MS:
                connection.stop()
        elif connection.stage != CLOSED:
            if now_ms - connection.connected_ms > self.broker.limits.handshake_timeout_ms:
                self.broker.observer.login_refused(connection, "the handshake took too long")
                connection.stop()

    def _heartbeat(self, connection: Connection, now_ms: int) -> None:
        interval_ms = connection.heartbeat_s * 1000
        if interval_ms == 0:
            return
        if now_ms - connection.last_sent_ms >= interval_ms // 2:
            connection.outbox.put(HEARTBEAT_FRAME)
            connection.touch()
        # A connection that we do not read from cannot show that it is alive.
        if not connection.wants_input():
            connection.last_received_ms = now_ms
        elif now_ms - connection.last_received_ms > interval_ms * 2 + CONNECTIONS_EVERY_MS:
            silent_s = (now_ms - connection.last_received_ms) // 1000
            error = ConnectionForced(f"missed heartbeats from client, silent for {silent_s}s")
            self.broker.observer.connection_failed(connection, error)
            connection.close_channels()
            connection.stop()

    # ---- consumers that don't acknowledge -------------------------------------------------------

    def _check_consumers(self, channel: Channel, now_ms: int) -> None:
        """Cancel consumers that hold a delivery for longer than their timeout.

        For each timeout in use a channel notes its delivery tag now and then. What is unacked below
        a note that is older than the timeout has been held too long. Only that consumer is
        cancelled, never the channel.
        """
        if channel.unacked.count == 0:
            channel.timeout_marks = {}
            return
        old = channel.timeout_marks
        channel.timeout_marks = {}
        late_tags: dict[int, int] = {}
        for timeout_ms in self._timeouts(channel):
            marks = old.get(timeout_ms, [])
            channel.timeout_marks[timeout_ms] = marks
            if not marks or now_ms - marks[-1][0] >= max(timeout_ms // TIMEOUT_MARKS, 1):
                marks.append((now_ms, channel.delivery_tag))
            while len(marks) > 1 and now_ms - marks[1][0] >= timeout_ms:
                marks.pop(0)
            noted_ms, tag = marks[0]
            if now_ms - noted_ms >= timeout_ms and channel.unacked.lowest() <= tag:
                late_tags[timeout_ms] = tag
        if len(late_tags) > 0:
            self._time_out(channel, late_tags)

    def _timeouts(self, channel: Channel) -> list[int]:
        """The timeouts in use on a channel, including that of cancelled consumers."""
        timeouts = {self.broker.limits.consumer_timeout_ms}
        timeouts.update([self._timeout_of(consumer) for consumer in channel.consumers.values()])
        timeouts.update([self._timeout_of(consumer) for consumer in channel.pulls.values()])
        return sorted([timeout_ms for timeout_ms in timeouts if timeout_ms > 0])

    def _timeout_of(self, consumer: Consumer) -> int:
        """How long a consumer may hold a delivery: by its own argument, its queue's, by policy or
        by configuration; 0: any time."""
        queue = consumer.queue
        limits = self.broker.limits
        if consumer.timeout_ms > 0:
            return consumer.timeout_ms
        if queue.options.queue_type == "classic" and not limits.classic_consumer_timeouts:
            return max(0, queue.definition.declared.consumer_timeout_ms)
        own = queue.options.consumer_timeout_ms
        return own if own > 0 else limits.consumer_timeout_ms

    def _time_out(self, channel: Channel, late_tags: dict[int, int]) -> None:
        """Cancel the consumers that hold something up to the tag of their timeout, and requeue all
        that they hold. ``late_tags`` is by timeout, ascending. Each step is one pass over the
        deliveries, however many consumers and timeouts there are."""
        late: dict[Consumer, None] = {}
        timeouts = list(late_tags)
        for tag in channel.unacked.tags_up_to(max(late_tags.values())):
            consumer = channel.unacked.consumer(tag)
            own_ms = 0 if consumer is None else self._timeout_of(consumer)
            # That of a cancelled consumer may be none of those in use: the next longer one counts.
            at = bisect_left(timeouts, own_ms)
            if consumer is not None and own_ms > 0 and at < len(timeouts):
                if tag <= late_tags[timeouts[at]]:
                    late[consumer] = None
        for consumer in late:
            self._cancel(channel, consumer)
        for tag in channel.unacked.tags():
            if channel.unacked.consumer(tag) in late:
                channel.settle_one(tag, REQUEUE)
                channel.forgive(tag)
        if len(late) > 0:
            channel.wake_if_global()

    def _cancel(self, channel: Channel, consumer: Consumer) -> None:
        connection = channel.connection
        self.broker.observer.consumer_timed_out(consumer)
        if channel.consumers.get(consumer.tag) is consumer:
            del channel.consumers[consumer.tag]
            if connection.cancel_notify:
                channel.send(BasicCancel(consumer.tag, True))
            self.broker.remove_consumer(consumer)
