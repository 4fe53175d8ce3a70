"""pika's SelectConnection: callbacks, pipelining, confirms as they come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
from pika.adapters.select_connection import SelectConnection

from rhizome.testing.broker_process import Broker

from .conftest import PATIENCE_SECONDS


class Run:
    """One connection that calls `on_channel` once it has a channel, and stops when told to."""

    def __init__(self, broker: Broker, on_channel: Callable[[Run], None]) -> None:
        self.error: BaseException | None = None
        self.on_channel = on_channel
        self.channel: Any = None
        credentials = pika.PlainCredentials(broker.user, broker.password)
        parameters = pika.ConnectionParameters(broker.host, broker.port, credentials=credentials)
        self.connection = SelectConnection(
            parameters,
            on_open_callback=self._opened,
            on_open_error_callback=self._failed,
            on_close_callback=lambda connection, _reason: connection.ioloop.stop(),
        )

    def run(self) -> None:
        ioloop = self.connection.ioloop
        ioloop.call_later(PATIENCE_SECONDS, self._timed_out)
        ioloop.start()
        if self.error is not None:
            raise self.error

    def done(self) -> None:
        self.connection.close()

    def _opened(self, connection: SelectConnection) -> None:
        connection.channel(on_open_callback=self._channel_opened)

    def _channel_opened(self, channel: Any) -> None:
        self.channel = channel
        self.on_channel(self)

    def _failed(self, connection: SelectConnection, error: BaseException) -> None:
        self.error = error
        connection.ioloop.stop()

    def _timed_out(self) -> None:
        self.error = TimeoutError(f"not done after {PATIENCE_SECONDS} s")
        self.connection.ioloop.stop()


def test_a_burst_of_publishes_is_confirmed_completely_and_partly_in_batches(broker: Broker) -> None:
    count = 1000
    settled: list[tuple[int, bool]] = []

    def confirmed(run: Run, frame: Any) -> None:
        assert isinstance(frame.method, pika.spec.Basic.Ack)
        settled.append((frame.method.delivery_tag, frame.method.multiple))
        if frame.method.delivery_tag == count:
            run.done()

    def publish(run: Run, declared: Any) -> None:
        run.channel.confirm_delivery(lambda frame: confirmed(run, frame))
        for number in range(count):
            run.channel.basic_publish("", declared.method.queue, str(number).encode())

    def on_channel(run: Run) -> None:
        run.channel.queue_declare("", exclusive=True, callback=lambda frame: publish(run, frame))

    Run(broker, on_channel).run()
    covered = 0
    for tag, multiple in sorted(settled):
        assert multiple or tag == covered + 1
        covered = tag
    assert covered == count
    assert any(multiple for _, multiple in settled)


def test_consumed_messages_arrive_in_order_while_publishing_goes_on(broker: Broker) -> None:
    count = 3000
    bodies: list[bytes] = []

    def delivered(run: Run, channel: Any, method: Any, body: bytes) -> None:
        bodies.append(body)
        channel.basic_ack(method.delivery_tag)
        if len(bodies) == count:
            run.done()

    def start(run: Run, queue: str) -> None:
        channel = run.channel
        channel.basic_qos(prefetch_count=100)
        channel.basic_consume(
            queue, lambda _channel, method, _properties, body: delivered(run, channel, method, body)
        )
        for number in range(count):
            channel.basic_publish("", queue, str(number).encode())

    def on_channel(run: Run) -> None:
        run.channel.queue_declare(
            "", exclusive=True, callback=lambda frame: start(run, frame.method.queue)
        )

    Run(broker, on_channel).run()
    assert bodies == [str(number).encode() for number in range(count)]


def test_a_channel_error_reaches_the_close_callback_with_its_code(broker: Broker) -> None:
    reasons: list[Any] = []

    def closed(run: Run, reason: Any) -> None:
        reasons.append(reason)
        run.done()

    def on_channel(run: Run) -> None:
        run.channel.add_on_close_callback(lambda _channel, reason: closed(run, reason))
        run.channel.basic_publish("no-such-exchange", "k", b"x")

    Run(broker, on_channel).run()
    text = "NOT_FOUND - no exchange 'no-such-exchange' in vhost '/'"
    assert (reasons[0].reply_code, reasons[0].reply_text) == (404, text)


def test_unroutable_mandatory_messages_are_returned_before_their_confirm(broker: Broker) -> None:
    events: list[str] = []

    def confirmed(run: Run, _frame: Any) -> None:
        events.append("confirmed")
        run.done()

    def on_channel(run: Run) -> None:
        run.channel.add_on_return_callback(lambda *_: events.append("returned"))
        run.channel.confirm_delivery(lambda frame: confirmed(run, frame))
        run.channel.basic_publish("", "no-such-queue", b"x", mandatory=True)

    Run(broker, on_channel).run()
    assert events == ["returned", "confirmed"]
