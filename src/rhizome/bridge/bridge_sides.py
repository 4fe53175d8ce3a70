"""What the two sides of a bridge share."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import suppress
from random import Random
from typing import Any, Final

from rhizome.bridge import bridge_events
from rhizome.bridge.address_rotation import Addresses
from rhizome.bridge.bridge_events import Reporter
from rhizome.bridge.errors import BridgeFailed, needs_a_person, one_line
from rhizome.bridge.forwarded_properties import ForwardedProperties, place
from rhizome.bridge.in_flight_window import ExpectedRedeliveries, Window
from rhizome.bridge.settings import BridgeSettings
from rhizome.client import Connection
from rhizome.errors import NotFound


async def ensure_queue(connection: Connection, queue: str, arguments: Mapping[str, object]) -> None:
    """See that there is a queue; one that is there is left as it is, whatever its arguments are.

    On channels of its own: the answer that there is none closes the one that it comes on. A queue
    whose home is down is there.
    """
    try:
        async with connection.channel() as channel:
            await channel.declare_queue(queue, passive=True)
    except NotFound as error:
        if not needs_a_person(error):
            raise
        async with connection.channel() as channel:
            await channel.declare_queue(queue, durable=True, arguments=dict(arguments) or None)


async def unbind(connection: Connection, queue: str, pairs: Iterable[tuple[str, str]]) -> None:
    """Remove bindings by exchange and key; with an exchange that is gone they are gone."""
    for exchange, key in pairs:
        with suppress(NotFound):
            async with connection.channel() as channel:
                await channel.unbind_queue(queue, exchange, key)


FIRST_S: Final = 0.2
FACTOR: Final = 2.0
JITTER: Final = 0.5


class Backoff:
    """Waits that double up to a maximum, each shortened by chance.

    Without the chance all bridges that one broker's end has cut off would come back at once.
    """

    def __init__(self, s_max: float, chance: Random) -> None:
        self._s_max = s_max
        self._chance = chance
        self._next_s = FIRST_S

    def next_s(self) -> float:
        """Seconds to wait now."""
        whole = min(self._next_s, self._s_max)
        self._next_s = min(self._next_s * FACTOR, self._s_max)
        return whole * (1 - JITTER * self._chance.random())

    def reset(self) -> None:
        """It works again: the next failure is a new one."""
        self._next_s = FIRST_S


NAME_THEM: Final = (
    "their addresses tell them apart as long as all bridges write these alike: better set"
    " cluster.name in their configuration, or give --from-name and --to-name"
)


class Side:
    """How one side is connected to, given up, and tried again."""

    def __init__(self, word: str, uri: str, name: str, settings: BridgeSettings, chance: Random):
        self.word = word
        self.addresses = Addresses(uri)
        self.backoff = Backoff(settings.retry_s_max, chance)
        self.is_up = False
        self.address = ""
        self._given_name = name
        self.name = ""
        self._was_up = False

    def connected(self, connection: Connection) -> None:
        """A connection is open: who is it?"""
        self.address = connection.address.label
        told = connection.server_properties.get("cluster_name")
        self.name = told if isinstance(told, str) else ""

    def came_up(self) -> None:
        """The session does what it is for."""
        self._was_up = True
        self.is_up = True

    def went_down(self, error: BaseException, reporter: Reporter) -> float:
        """The session ended; returns how long to wait. Raises BridgeFailed if that is no use.

        Only of a session that never worked: later, a queue that is missing may be one whose broker
        is, and comes back.
        """
        self.is_up = False
        reason = f"{self.word} {self.address or ','.join(self.addresses.labels)}: {one_line(error)}"
        if needs_a_person(error) and not self._was_up:
            raise BridgeFailed(reason)
        wait_s = self.backoff.next_s()
        reporter.tell(
            bridge_events.LOST,
            f"{reason}; next try in {wait_s:.1f} s",
            side=self.word,
            reason=one_line(error),
            retry_ms=int(wait_s * 1000),
        )
        self.addresses.move_on(self.address)
        self.address = ""
        return wait_s

    def place(self, other: Side) -> str:
        """The cluster and vhost, in a word that differs from the other side's if they differ.

        Clusters that nobody named may have the same name: then their addresses tell them apart.
        """
        if self._given_name:
            return place(self._given_name, self.addresses.vhost)
        if self.is_namesake(other):
            return place(f"{self.name}@{min(self.addresses.labels)}", self.addresses.vhost)
        return place(self.name or min(self.addresses.labels), self.addresses.vhost)

    def is_namesake(self, other: Side) -> bool:
        """Whether both sides call themselves the same, and seem to be two clusters all the same."""
        if self._given_name or other._given_name or self.name != other.name:
            return False
        return not set(self.addresses.labels) & set(other.addresses.labels)


class Flow:
    """The window between the sides, and how each tells the other that there is something to do.

    `wake` is set when the destination has something to send or to look at, `done` when the source
    has something to settle, `running` when both sides are connected for the first time.
    """

    def __init__(
        self,
        settings: BridgeSettings,
        passage: ForwardedProperties,
        reporter: Reporter,
        source: Side,
        destination: Side,
    ) -> None:
        self.settings = settings
        self.passage = passage
        self.reporter = reporter
        self.source = source
        self.destination = destination
        # What two sessions can leave behind: the second may end before it got all of the first.
        self.recall = ExpectedRedeliveries(2 * settings.prefetch)
        self.window = Window(self.recall)
        self.wake = asyncio.Event()
        self.done = asyncio.Event()
        self.running = asyncio.Event()

    def came_up(self, side: Side, text: str) -> None:
        """A session does what it is for. With that of the other side, the bridge runs."""
        side.came_up()
        self.reporter.tell(bridge_events.CONNECTED, text, side=side.word, address=side.address)
        source, destination = self.source, self.destination
        if not (source.is_up and destination.is_up):
            return
        self.passage.source_place = source.place(destination)
        self.passage.destination_place = destination.place(source)
        if not self.running.is_set() and source.is_namesake(destination):
            advice = f"both sides call themselves '{source.name}'; {NAME_THEM}"
            self.reporter.tell(bridge_events.ADVICE, advice)
        self.running.set()
        self._tell_running()

    def _tell_running(self) -> None:
        settings, passage = self.settings, self.passage
        self.reporter.tell(
            bridge_events.RUNNING,
            f"running: {settings.source_label} of {passage.source_place} ->"
            f" {settings.target_label} of {passage.destination_place}",
            source=passage.source_place,
            destination=passage.destination_place,
        )

    def count_window(self) -> None:
        """Keep the counter of what is under way."""
        self.reporter.counters.window = len(self.window)


async def together(*works: Coroutine[Any, Any, None]) -> None:
    """Run all to their end; the first failure ends the others and is raised alone."""
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
