"""One bridge: both sides, from the first connection to the last acknowledgement."""

from __future__ import annotations

import asyncio
from random import Random

from rhizome.bridge import bridge_events
from rhizome.bridge.bridge_events import Report, Reporter
from rhizome.bridge.bridge_sides import Flow, Side
from rhizome.bridge.destination_publisher import Destination
from rhizome.bridge.errors import BridgeError
from rhizome.bridge.forwarded_properties import ForwardedProperties
from rhizome.bridge.message_ids import MessageIds
from rhizome.bridge.settings import BridgeSettings
from rhizome.bridge.source_consumer import Source
from rhizome.client import parse_uris


class Bridge:
    """Moves messages until it is stopped.

    Example:
        bridge = Bridge(BridgeSettings("orders", uri_a, uri_b, queue="orders"), print, Random())
        await bridge.run(stop)  # stop: an asyncio.Event
    """

    def __init__(self, settings: BridgeSettings, report: Report, chance: Random) -> None:
        settings.check()
        self.settings = settings
        self.reporter = Reporter(settings.id, report)
        ids = MessageIds(settings.id, f"{chance.getrandbits(64):016x}", settings.content_ids)
        user = parse_uris(settings.destination_uri)[0].user
        self._flow = Flow(
            settings,
            ForwardedProperties(settings, ids, user),
            self.reporter,
            Side("source", settings.source_uri, settings.source_name, settings, chance),
            Side(
                "destination", settings.destination_uri, settings.destination_name, settings, chance
            ),
        )

    @property
    def running(self) -> asyncio.Event:
        """Set once both sides have been connected."""
        return self._flow.running

    async def run(self, stop: asyncio.Event) -> None:
        """Move messages until `stop` is set, then let arrive what is under way.

        Raises BridgeFailed when somebody has to do something about it. Whatever happens, what was
        not confirmed is not acknowledged, and stays at the source.
        """
        try:
            await self._run(stop)
        except BridgeError as error:
            self.reporter.tell(bridge_events.FAILED, str(error), reason=str(error))
            raise
        left = self.reporter.counters.window
        text = f"stopped; moved {self.reporter.counters.moved}"
        if left:
            text += f"; {left} without an answer stay at the source and may come again"
        self.reporter.tell(
            bridge_events.STOPPED, text, moved=self.reporter.counters.moved, left=left
        )

    async def _run(self, stop: asyncio.Event) -> None:
        source = asyncio.create_task(Source(self._flow, stop).run())
        destination = asyncio.create_task(Destination(self._flow).run())
        stopping = asyncio.create_task(self._patience(stop))
        tasks = (source, destination, stopping)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # The window is counted here: closing the source gives back what is in it.
            self._flow.count_window()
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _patience(self, stop: asyncio.Event) -> None:
        """Ends when the time is over that a stop leaves for what is under way."""
        await stop.wait()
        self._flow.count_window()
        count = self.reporter.counters.window
        self.reporter.tell(bridge_events.DRAINING, f"draining: {count} under way", left=count)
        await asyncio.sleep(self.settings.drain_s)
