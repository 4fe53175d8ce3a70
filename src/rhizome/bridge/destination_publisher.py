"""The side that messages are taken to: publishes, and notes what is confirmed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from rhizome.bridge import bridge_events
from rhizome.bridge.bridge_sides import Flow, ensure_queue
from rhizome.bridge.errors import (
    LINK_ERRORS,
    OF_A_MESSAGE,
    BridgeFailed,
    ConfirmsOverdue,
    MessageRefused,
    advising,
    one_line,
)
from rhizome.bridge.forwarded_properties import ForwardingLoop
from rhizome.bridge.in_flight_window import Entry, State
from rhizome.bridge.settings import Refused
from rhizome.client import Channel, Connection, MessageReturned, PublishNacked, connect

# The client tells nobody that an idle connection has ended, so it is asked now and then.
LOOK_S: Final = 1.0
AGAIN: Final = "the destination takes messages again"
# Between two looks at whether the destination can take more.
STARTED_AT_ONCE_MAX: Final = 64
# A session that lasted so long was a good one, though it may have had nothing to do.
GOOD_SESSION_S: Final = 60.0
# What says no to one message, while the session goes on.
SINGLE_REFUSALS: Final = (MessageReturned, PublishNacked, MessageRefused, ValueError)


class Destination:
    """Publishes what waits in the window, session after session.

    Invariant: `_open` has one task for each entry in state SENT that this side is working on; when
    a session has ended there is none, and the entries wait again.
    """

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._side = flow.destination
        self._open: set[asyncio.Task[None]] = set()
        self._refusal: BaseException | None = None
        self._is_blocked = False
        self._suspects: list[Entry] = []
        self._one_by_one = 0
        self._progress_s = 0.0
        self._defect: BaseException | None = None

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            started_s = self._now_s()
            try:
                await self._session()
            except LINK_ERRORS as error:
                if self._now_s() - started_s > GOOD_SESSION_S:
                    self._side.backoff.reset()
                self._judge_suspects(error)
                await asyncio.sleep(self._side.went_down(error, self._flow.reporter))

    async def _session(self) -> None:
        uris = self._side.addresses.uris
        name = f"rhizome bridge {self._flow.settings.id}"
        try:
            async with connect(uris, name=name, on_blocked=self._blocked) as connection:
                self._side.connected(connection)
                channel = await connection.channel(confirms=True)
                await self._require_target(connection, channel)
                self._opened()
                await self._publish_all(connection, channel)
        finally:
            # The connection is closed, so each of them has ended or will at once.
            await asyncio.gather(*self._open, return_exceptions=True)
            self._flow.window.rewind()

    async def _require_target(self, connection: Connection, channel: Channel) -> None:
        settings = self._flow.settings
        if settings.target_queue and settings.makes_to_queue:
            await ensure_queue(connection, settings.target_queue, settings.to_arguments)
            return
        with advising("declare it there before messages are brought to it"):
            if settings.target_queue:
                await channel.declare_queue(settings.target_queue, passive=True)
            else:
                await channel.declare_exchange(settings.target_exchange, passive=True)

    def _opened(self) -> None:
        flow, side = self._flow, self._side
        flow.reporter.counters.destination_sessions += 1
        self._progress_s = self._now_s()
        flow.came_up(side, f"publishing to {flow.settings.target_label} at {side.address}")

    # --- sending

    async def _publish_all(self, connection: Connection, channel: Channel) -> None:
        """Publish in order. Ends with an exception when the session does."""
        while True:
            if self._defect is not None:
                raise self._defect
            if self._refusal is not None and not self._open:
                await self._wait_out(self._refusal)
            await self._while_alive(connection, channel, channel.ready)
            if not self._publish_some(channel):
                await self._while_alive(connection, channel, self._flow.wake.wait)
                self._flow.wake.clear()

    def _publish_some(self, channel: Channel) -> bool:
        """Start publishes of what waits; False if nothing does, or if it has to."""
        for started in range(STARTED_AT_ONCE_MAX):
            entry = None if self._must_wait() else self._flow.window.take_unsent()
            if entry is None:
                return started > 0
            self._publish(channel, entry)
        return True

    def _must_wait(self) -> bool:
        return bool(self._one_by_one and self._open) or self._refusal is not None

    def _publish(self, channel: Channel, entry: Entry) -> None:
        """Start one publish.

        Tasks begin in the order in which they were made, so messages are sent in the order in which
        they were delivered: `ready` was awaited, and nobody else makes such tasks.
        """
        if entry.sends > 1:
            self._flow.reporter.counters.sent_again += 1
        if not self._open:
            self._progress_s = self._now_s()
        task = asyncio.get_running_loop().create_task(self._send(channel, entry))
        self._open.add(task)
        task.add_done_callback(partial(self._sent, entry))

    async def _send(self, channel: Channel, entry: Entry) -> None:
        passage = self._flow.passage
        await channel.publish(
            entry.message.body,
            exchange=self._flow.settings.target_exchange,
            routing_key=passage.routing_key(entry),
            properties=passage.properties(entry),
            mandatory=True,
        )

    async def _while_alive(
        self,
        connection: Connection,
        channel: Channel,
        condition: Callable[[], Coroutine[Any, Any, object]],
    ) -> None:
        """Wait for a condition, and see whether the session is alive meanwhile."""
        is_met = False
        while channel.is_open and not is_met:
            try:
                async with asyncio.timeout(LOOK_S):
                    await condition()
                is_met = True
            except TimeoutError:
                pass
            self._require_progress(connection)
        if not channel.is_open:
            await channel.ready()

    def _require_progress(self, connection: Connection) -> None:
        """A broker that blocks its publishers has said so, and is waited for; one that is silent
        may be cut off from its cluster, while another is not."""
        now_s = self._now_s()
        if connection.blocked_reason is not None or not self._open:
            self._progress_s = now_s
        overdue_s = now_s - self._progress_s
        if overdue_s > self._flow.settings.confirm_timeout_s:
            raise ConfirmsOverdue(
                f"no confirm for {overdue_s:.0f} s; the broker may be cut off from its cluster"
            )

    def _blocked(self, reason: str | None) -> None:
        """The broker takes no publishes (a reason), or takes them again (None)."""
        self._progress_s = self._now_s()
        if reason is None:
            self._flow.reporter.tell(bridge_events.RUNNING, AGAIN)
        else:
            text = f"the destination takes no messages for now: {reason}"
            self._flow.reporter.tell(bridge_events.BLOCKED, text, reason=reason)

    # --- what became of it

    def _sent(self, entry: Entry, task: asyncio.Task[None]) -> None:
        self._open.discard(task)
        flow = self._flow
        error = None if task.cancelled() else task.exception()
        if task.cancelled():
            entry.unanswered()
        elif error is None:
            self._taken(entry)
        elif isinstance(error, ForwardingLoop):
            self._circled(entry, error)
        elif isinstance(error, SINGLE_REFUSALS):
            self._refused(entry, error)
        else:
            entry.unanswered()
            if isinstance(error, OF_A_MESSAGE):
                self._suspects.append(entry)
            elif not isinstance(error, LINK_ERRORS):
                self._defect = error
        flow.wake.set()
        flow.done.set()

    def _taken(self, entry: Entry) -> None:
        entry.state = State.TAKEN
        counters = self._flow.reporter.counters
        counters.moved += 1
        counters.moved_bytes += len(entry.message.body)
        self._progress_s = self._now_s()
        self._side.backoff.reset()
        if self._one_by_one:
            self._one_by_one -= 1
        if self._is_blocked:
            self._is_blocked = False
            self._flow.reporter.tell(bridge_events.RUNNING, AGAIN)

    def _circled(self, entry: Entry, error: ForwardingLoop) -> None:
        """Of what came through an exchange this is a copy that nobody needs; a queue's is not."""
        self._flow.reporter.counters.circles += 1
        if self._flow.settings.exchange:
            entry.state = State.TAKEN
        else:
            self._refused(entry, error)

    def _refused(self, entry: Entry, error: BaseException) -> None:
        """The destination won't take this one. A queue that is full may do so later."""
        reporter = self._flow.reporter
        counters = reporter.counters
        counters.nacked += isinstance(error, PublishNacked)
        counters.returned += isinstance(error, MessageReturned)
        what = self._flow.settings.refused
        if what is Refused.KEEP or isinstance(error, PublishNacked):
            entry.state = State.WAITING
            self._refusal = self._refusal or error
        elif what is Refused.DEAD_LETTER:
            entry.state = State.REJECTED
            counters.rejected += 1
            reporter.tell(
                bridge_events.REFUSED, f"rejected: {one_line(error)}", reason=one_line(error)
            )
        else:
            entry.state = State.TAKEN
            counters.dropped += 1
            reporter.tell(
                bridge_events.REFUSED, f"dropped: {one_line(error)}", reason=one_line(error)
            )

    async def _wait_out(self, refusal: BaseException) -> None:
        """All that was open has its answer: wait a while, and try again from the oldest on."""
        if isinstance(refusal, ForwardingLoop):
            raise BridgeFailed(one_line(refusal))
        wait_s = self._side.backoff.next_s()
        self._is_blocked = True
        self._flow.reporter.tell(
            bridge_events.BLOCKED,
            f"{one_line(refusal)}; messages are kept, next try in {wait_s:.1f} s",
            reason=one_line(refusal),
            retry_ms=int(wait_s * 1000),
        )
        await asyncio.sleep(wait_s)
        self._refusal = None
        self._flow.window.rewind()

    def _judge_suspects(self, error: BaseException) -> None:
        """The broker closed the session over a message. If one was under way it is that one.

        If there were several they are sent again one by one, until the one is found.
        """
        suspects, self._suspects = self._suspects, []
        if len(suspects) > 1:
            self._one_by_one = len(suspects)
        elif suspects:
            self._refused(suspects[0], error)
            # A message that is kept stays in front: what follows would only be sent in vain.
            self._one_by_one = max(1, self._one_by_one)
            self._flow.window.rewind()
            self._flow.done.set()

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()
