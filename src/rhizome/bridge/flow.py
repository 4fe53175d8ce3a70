"""What the two sides of a bridge share."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any, Final

from rhizome.bridge import events
from rhizome.bridge.addresses import Addresses
from rhizome.bridge.backoff import Backoff
from rhizome.bridge.errors import BridgeFailed, needs_a_person, one_line
from rhizome.bridge.events import Reporter
from rhizome.bridge.passage import Passage, place
from rhizome.bridge.settings import BridgeSettings
from rhizome.bridge.window import Recall, Window
from rhizome.client import Connection

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
            events.LOST,
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
        passage: Passage,
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
        self.recall = Recall(2 * settings.prefetch)
        self.window = Window(self.recall)
        self.wake = asyncio.Event()
        self.done = asyncio.Event()
        self.running = asyncio.Event()

    def came_up(self, side: Side, text: str) -> None:
        """A session does what it is for. With that of the other side, the bridge runs."""
        side.came_up()
        self.reporter.tell(events.CONNECTED, text, side=side.word, address=side.address)
        source, destination = self.source, self.destination
        if not (source.is_up and destination.is_up):
            return
        self.passage.source_place = source.place(destination)
        self.passage.destination_place = destination.place(source)
        if not self.running.is_set() and source.is_namesake(destination):
            advice = f"both sides call themselves '{source.name}'; {NAME_THEM}"
            self.reporter.tell(events.ADVICE, advice)
        self.running.set()
        self._tell_running()

    def _tell_running(self) -> None:
        settings, passage = self.settings, self.passage
        self.reporter.tell(
            events.RUNNING,
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
