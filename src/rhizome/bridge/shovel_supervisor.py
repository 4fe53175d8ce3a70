"""Bridges that follow parameters: begun, ended and begun anew as these come, go and change.

    ShovelSupervisor   looks at the parameters again and again, and tells each bridge what is wanted
    SupervisedBridge   one parameter and its bridge; one that fails is tried again after a pause

A parameter that can't be followed is told and left alone until it changes; the others don't notice.
While the parameters can't be read everything goes on as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from typing import Final, Protocol

from rhizome.bridge import bridge_events
from rhizome.bridge.address_rotation import Addresses
from rhizome.bridge.bridge_events import BridgeEvent, Counters, Report, Reporter
from rhizome.bridge.errors import BridgeError, InvalidBridge
from rhizome.bridge.settings import BridgeSettings
from rhizome.bridge.shovel_settings import OwnCluster, Parameter, ParameterContext, settings_of

LOOK_S_DEFAULT: Final = 5.0
AGAIN_S_DEFAULT: Final = 30.0

# States of a bridge that follows a parameter, by the event that brings it there.
STATES: Final = {
    bridge_events.ADDED: "starting",
    bridge_events.CHANGED: "restarting",
    bridge_events.LOST: "lost",
    bridge_events.BLOCKED: "blocked",
    bridge_events.RUNNING: "running",
    bridge_events.DRAINING: "draining",
    bridge_events.STOPPED: "stopped",
    bridge_events.FAILED: "failed",
}


class ParametersUnavailable(BridgeError):
    """Nobody has told the parameters; somebody may the next time."""


class ParametersRefused(BridgeError):
    """The parameters are not for who asked, or asking was wrong."""


@dataclass(frozen=True, slots=True)
class ParameterListing:
    """The parameters at one time. `own` is empty if no parameter needed it."""

    parameters: tuple[Parameter, ...]
    own: OwnCluster = OwnCluster()  # noqa: RUF009 - it is frozen


class RunnableBridge(Protocol):
    """As much of a bridge as is needed here."""

    @property
    def reporter(self) -> Reporter: ...

    @property
    def running(self) -> asyncio.Event: ...

    async def run(self, stop: asyncio.Event) -> None: ...


Read = Callable[[], Awaitable[ParameterListing]]
Make = Callable[[BridgeSettings, Report], RunnableBridge]
Wanted = BridgeSettings | InvalidBridge


@dataclass(frozen=True, slots=True)
class ShovelIntervals:
    """Between two looks at the parameters, and before a bridge that failed is tried again."""

    look_s: float = LOOK_S_DEFAULT
    again_s: float = AGAIN_S_DEFAULT


class SupervisedBridge:
    """One parameter and its bridge.

    Invariant: at most one bridge of a parameter runs, and none once `run` has returned.
    """

    def __init__(self, name: str, wanted: Wanted, report: Report, make: Make) -> None:
        self._name = name
        self._report_further = report
        self._make = make
        self._wanted: Wanted | None = wanted
        self._changed = asyncio.Event()
        self._stop = asyncio.Event()
        self._bridge: RunnableBridge | None = None
        self._unbinds: tuple[tuple[str, str], ...] = ()
        self._reason = ""
        self._state = ""

    # --- what is wanted

    def want(self, wanted: Wanted) -> None:
        """The parameter reads like this now; nothing happens if it did before."""
        if not _alike(wanted, self._wanted):
            self._tell(bridge_events.CHANGED, "the parameter was changed")
            self._note_unbinds(self._wanted, wanted)
            self._advise_of_queue(self._wanted, wanted)
            self._want(wanted)

    def remove(self) -> None:
        """The parameter is gone."""
        self._tell(bridge_events.REMOVED, "the parameter was removed")
        self._advise_of_queue(self._wanted, None)
        self._want(None)

    def end(self) -> None:
        """The program ends."""
        self._want(None)

    def _want(self, wanted: Wanted | None) -> None:
        self._wanted = wanted
        self._changed.set()
        self._stop.set()

    def _note_unbinds(self, old: Wanted | None, new: Wanted) -> None:
        """The bridge's own queue must not go on collecting what the new key doesn't ask for."""
        if isinstance(old, BridgeSettings) and old.exchange:
            self._unbinds += tuple((old.exchange, key) for key in old.binding_keys)
        if isinstance(new, BridgeSettings):
            kept = {(new.exchange, key) for key in new.binding_keys}
            self._unbinds = tuple(pair for pair in self._unbinds if pair not in kept)

    def _advise_of_queue(self, old: Wanted | None, new: Wanted | None) -> None:
        """Nobody takes from the bridge's own queue any more, and messages still go there."""
        if not isinstance(old, BridgeSettings) or not old.exchange:
            return
        if isinstance(new, InvalidBridge):
            return  # it is meant to go on
        if new is None or not new.exchange or not _same_place(old.source_uri, new.source_uri):
            queue = old.source_queue
            text = f"queue '{queue}' stays at the source, bound to exchange '{old.exchange}'"
            self._tell(
                bridge_events.ADVICE, f"{text}; if it isn't needed: rhizome queue delete {queue}"
            )

    # --- running

    async def run(self, again_s: float) -> None:
        """Run what is wanted until nothing is."""
        while (wanted := self._wanted) is not None:
            self._changed.clear()
            if isinstance(wanted, InvalidBridge):
                self._tell(bridge_events.FAILED, str(wanted), reason=str(wanted))
                await self._changed.wait()
            elif not await self._run_bridge(wanted):
                await self._changed_within(again_s)

    async def _run_bridge(self, wanted: BridgeSettings) -> bool:
        """Whether it has ended because it was told to."""
        self._stop.clear()
        unbinds, self._unbinds = self._unbinds, ()
        bridge = self._make(replace(wanted, unbinds=unbinds), self._report)
        self._bridge = bridge
        try:
            await bridge.run(self._stop)
        except BridgeError:
            if not bridge.running.is_set():
                self._unbinds = unbinds + self._unbinds
            return False
        return True

    async def _changed_within(self, wait_s: float) -> None:
        try:
            async with asyncio.timeout(wait_s):
                await self._changed.wait()
        except TimeoutError:
            pass

    # --- telling

    def _tell(self, name: str, text: str, **details: object) -> None:
        self._report(BridgeEvent(self._name, name, text, details))

    def _report(self, event: BridgeEvent) -> None:
        self._state = STATES.get(event.name, self._state)
        if event.name in (bridge_events.FAILED, bridge_events.LOST, bridge_events.BLOCKED):
            self._reason = str(event.details.get("reason", ""))
        elif event.name == bridge_events.RUNNING:
            self._reason = ""
        self._report_further(event)

    def tell_added(self) -> None:
        """Tell that there is this parameter."""
        self._tell(bridge_events.ADDED, f"following the parameter: {self._way()}")

    def tell_status(self) -> None:
        """Tell state, ends and counters."""
        counters = self._bridge.reporter.counters if self._bridge is not None else Counters()
        text = f"{self._state}, {self._way()}, moved {counters.moved}"
        if counters.window:
            text += f", under way {counters.window}"
        if self._reason:
            text += f"; {self._reason}"
        source, destination = self._ends()
        details: dict[str, object] = {**asdict(counters), "state": self._state}
        details |= {"from": source, "to": destination, "reason": self._reason}
        self._report_further(BridgeEvent(self._name, bridge_events.STATUS, text, details))

    def _way(self) -> str:
        source, destination = self._ends()
        return f"{source} -> {destination}" if source else "it can't be followed"

    def _ends(self) -> tuple[str, str]:
        """Without passwords; empty of a parameter that can't be followed."""
        wanted = self._wanted
        if not isinstance(wanted, BridgeSettings):
            return "", ""
        return (
            f"{wanted.source_label} at {_labels(wanted.source_uri)}",
            f"{wanted.target_label} at {_labels(wanted.destination_uri)}",
        )


def _alike(one: Wanted, other: Wanted | None) -> bool:
    if isinstance(one, InvalidBridge) and isinstance(other, InvalidBridge):
        return str(one) == str(other)
    return one == other


def _labels(uri: str) -> str:
    return ",".join(Addresses(uri).labels)


def _same_place(one: str, other: str) -> bool:
    """Whether two URIs mean one cluster and vhost, as far as their addresses tell."""
    first, second = Addresses(one), Addresses(other)
    return first.vhost == second.vhost and bool(set(first.labels) & set(second.labels))


class ShovelSupervisor:
    """Follows the parameters of a cluster until it is stopped.

    Invariant: there is one `SupervisedBridge` for each parameter of the last listing; one whose
    parameter is gone ends on its own, and a parameter of the same name that comes meanwhile waits
    for it.
    """

    def __init__(
        self,
        read: Read,
        origin: ParameterContext,
        report: Report,
        pauses: ShovelIntervals,
        make: Make,
    ) -> None:
        self._read = read
        self._origin = origin
        self._report = report
        self._pauses = pauses
        self._make = make
        self._tended: dict[str, SupervisedBridge] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._was_read = False
        self._lost_text = ""

    async def run(self, stop: asyncio.Event) -> None:
        """Follow until `stop` is set, then end all bridges cleanly.

        Raises ParametersRefused if the parameters were refused and never told before.
        """
        stopping = asyncio.create_task(stop.wait())
        try:
            async with asyncio.TaskGroup() as group:
                while not stop.is_set():
                    await self._look(group, stopping)
                    await asyncio.wait([stopping], timeout=self._pauses.look_s)
                for tended in self._tended.values():
                    tended.end()
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            stopping.cancel()

    def tell_status(self) -> None:
        """Tell of each bridge how it is."""
        for tended in self._tended.values():
            tended.tell_status()

    async def _look(self, group: asyncio.TaskGroup, stopping: asyncio.Task[bool]) -> None:
        reading = asyncio.ensure_future(self._read())
        await asyncio.wait([reading, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            reading.cancel()
            return
        try:
            listing = reading.result()
        except (ParametersUnavailable, ParametersRefused) as error:
            if isinstance(error, ParametersRefused) and not self._was_read:
                raise
            self._lost(str(error))
        else:
            self._follow(listing, group)
            self._found()

    def _lost(self, text: str) -> None:
        """The same is told once."""
        if text != self._lost_text:
            self._lost_text = text
            whole = f"the parameters can't be read: {text}; bridges go on, and it is tried again"
            self._report(
                BridgeEvent("", bridge_events.LOST, whole, {"side": "parameters", "reason": text})
            )

    def _found(self) -> None:
        if not self._was_read:
            text = f"following {', '.join(self._tended) or 'parameters; there is none yet'}"
            self._report(BridgeEvent("", bridge_events.READY, text))
        elif self._lost_text:
            text = "the parameters can be read again"
            self._report(BridgeEvent("", bridge_events.CONNECTED, text, {"side": "parameters"}))
        self._was_read = True
        self._lost_text = ""

    # --- what has changed

    def _follow(self, listing: ParameterListing, group: asyncio.TaskGroup) -> None:
        self._note_own(listing.own)
        self._ending = {name: each for name, each in self._ending.items() if not each.done()}
        wanted = {each.id: self._wanted(each) for each in listing.parameters}
        for name in [name for name in self._tended if name not in wanted]:
            self._tended.pop(name).remove()
            self._ending[name] = self._tasks.pop(name)
        for name, each in wanted.items():
            if name in self._tended:
                self._tended[name].want(each)
            else:
                self._begin(name, each, group)

    def _wanted(self, parameter: Parameter) -> Wanted:
        try:
            return settings_of(parameter, self._origin)
        except InvalidBridge as error:
            return error

    def _note_own(self, own: OwnCluster) -> None:
        """Addresses that have one in common with those in use are not worth a restart."""
        known = self._origin.own
        if own.addresses and not set(own.addresses) & set(known.addresses):
            self._origin = replace(self._origin, own=own)

    def _begin(self, name: str, wanted: Wanted, group: asyncio.TaskGroup) -> None:
        tended = SupervisedBridge(name, wanted, self._report, self._make)
        tended.tell_added()
        before = self._ending.pop(name, None)
        self._tended[name] = tended
        self._tasks[name] = group.create_task(self._tend(tended, before))

    async def _tend(self, tended: SupervisedBridge, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        await tended.run(self._pauses.again_s)
