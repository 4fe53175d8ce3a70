"""LocalCluster: starts a cluster of processes, reports its changes, and stops it in order.

The life of `rhizome up`: lock the directory, end leftovers, write files, start all brokers, wait
until they agree, print `ready`; then report which brokers end and which is root, and start brokers
again when `up --restart` asks on the control socket; at a signal stop the secondaries, then the
other primaries, then the root, so that no election is needed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from shlex import quote
from typing import Any, Final, TypeVar

from rhizome.cli.errors import CliError, describe_failure
from rhizome.cli.local_cluster.broker_processes import (
    LocalBrokerProcess,
    check_ports,
    end_leftovers,
    leftovers,
    serve_command,
)
from rhizome.cli.local_cluster.directory_layout import (
    HOST,
    Layout,
    LocalBroker,
    brokers_environment,
)
from rhizome.cli.local_cluster.root_agreement import Root, agreed_root
from rhizome.cluster.link.cluster_key_proof import LinkKeys
from rhizome.journal.errors import StoreInUse
from rhizome.journal.files import DirectoryLock
from rhizome.server.clustered_broker.death_messenger import bring, witness
from rhizome.server.clustered_broker.incarnation_file import ended_incarnation
from rhizome.server.config.cluster_section import SECONDARY, read_key_file
from rhizome.server.config.units import Address

AGREE_SECONDS_MAX: Final = 60.0
REQUEST_BYTES_MAX: Final = 1024
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Say = Callable[[str], None]
Command = Callable[[LocalBroker], list[str]]
T = TypeVar("T")


class Stopped(Exception):
    """A signal came while something else was waited for."""


class LocalCluster:
    """The brokers of one directory. ``say`` prints a line for the person in front of it,
    ``command`` makes the command line of a broker."""

    def __init__(self, layout: Layout, say: Say, command: Command = serve_command) -> None:
        self.layout = layout
        self.say = say
        self._command = command
        self.runs: dict[str, LocalBrokerProcess] = {}
        self.root: Root | None = None
        self._stopping = asyncio.Event()
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._telling: asyncio.Task[None] | None = None
        self._restarting = asyncio.Lock()

    async def run(self, told_ready: Callable[[Root], None]) -> None:
        """Everything until the last broker's end, under the lock of the directory that the caller
        holds; raises CliError."""
        self._heed_signals()
        try:
            root = await self._unless_stopped(self._bring_up())
            async with await self._listen():
                told_ready(root)
                await self._stopping.wait()
        except Stopped:
            pass
        finally:
            await self._take_down()
            self.layout.control.unlink(missing_ok=True)

    # ---- up -------------------------------------------------------------------------------------

    async def _bring_up(self) -> Root:
        directory = self.layout.directory
        found = leftovers(directory)
        await asyncio.to_thread(end_leftovers, found, directory, self.say)
        check_ports(self.layout.places)
        self.layout.write()
        # Together: primaries that wait for each other must not be started one after the other.
        for place in self.layout.places.values():
            await self._start(place)
        for run in list(self.runs.values()):
            await run.ready()
            self.say(f"{run.place.name} takes connections (process {run.pid})")
        self.root = await self._agree(list(self.runs.values()), self._say_waiting)
        return self.root

    async def _agree(self, needed: list[LocalBrokerProcess], said: Say) -> Root:
        """The root, once all agree; raises CliError if one of ``needed`` ends before that."""
        agreeing = asyncio.create_task(agreed_root(self.running, AGREE_SECONDS_MAX, said))
        ends = [run.ended for run in needed]
        try:
            await asyncio.wait([agreeing, *ends], return_when=asyncio.FIRST_COMPLETED)
            for run in needed:
                if run.ended.done():
                    raise run.early_end()
            return await agreeing
        finally:
            agreeing.cancel()

    async def _start(self, place: LocalBroker) -> LocalBrokerProcess:
        run = await LocalBrokerProcess.start(
            place, self._command(place), brokers_environment(os.environ)
        )
        self.runs[place.name] = run
        self._watching[place.name] = asyncio.create_task(self._watch(run))
        return run

    def running(self) -> Mapping[str, LocalBroker]:
        return {name: run.place for name, run in self.runs.items() if not run.ended.done()}

    def _say_waiting(self, missing: str) -> None:
        self.say(f"waiting: {missing}")

    # ---- while it runs --------------------------------------------------------------------------

    async def _watch(self, run: LocalBrokerProcess) -> None:
        """Report a broker that ends without having been asked to."""
        await asyncio.shield(run.ended)
        if run.is_stopping or self._stopping.is_set() or self.root is None:
            return
        await self._report_end(run.place)
        name = run.place.name
        self.say(f"{name} {run.how_it_ended()} and stays down; start it again with")
        self.say(f"    rhizome up --data {quote(str(self.layout.directory))} --restart {name}")
        self._tell_root()

    async def _report_end(self, place: LocalBroker) -> None:
        """Tell the other brokers that one has ended for certain, so that they take over at once."""
        try:
            certificate = ended_incarnation(place.store, witness("`rhizome up`"))
        except (StoreInUse, OSError):
            return  # started again meanwhile: then its registration says it
        if certificate is not None:
            keys = LinkKeys(*read_key_file(self.layout.key_file))
            others = [Address(HOST, each.port) for each in self.running().values()]
            await bring(certificate, keys, others)

    def _tell_root(self) -> None:
        """Report the root as soon as the remaining brokers agree on it."""
        if self._telling is not None:
            self._telling.cancel()
        self._telling = asyncio.create_task(self._tell_root_once_agreed())

    async def _tell_root_once_agreed(self) -> None:
        before = self.root
        count = len(self.running())
        if not count:
            self.say("no broker runs any more")
            return
        try:
            self.root = await agreed_root(self.running, AGREE_SECONDS_MAX)
        except CliError as error:
            self.say(str(error))
            return
        is_new = before is None or before.name != self.root.name
        has = f"is the {'new ' if is_new else ''}root (term {self.root.term})"
        self.say(f"{self.root.name} {has}, {count} of {len(self.layout.places)} brokers run")

    # ---- restarts -------------------------------------------------------------------------------

    async def _listen(self) -> asyncio.Server:
        sock = bind_control(self.layout.control)
        return await asyncio.start_unix_server(self._answer, sock=sock, limit=REQUEST_BYTES_MAX)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request: {"restart": NAME} -> {"done": TEXT} or {"error": TEXT}."""
        try:
            answer = await self._answer_to(await reader.readline())
            writer.write(json.dumps(answer).encode() + b"\n")
        finally:
            writer.close()

    async def _answer_to(self, line: bytes) -> dict[str, str]:
        try:
            return {"done": await self._obey(line)}
        except Stopped:
            return {"error": "the cluster is being stopped"}
        except (CliError, OSError) as error:
            return {"error": describe_failure(error)}

    async def _obey(self, line: bytes) -> str:
        try:
            name = json.loads(line)["restart"]
        except (ValueError, KeyError, TypeError):
            raise CliError("the running `up` doesn't understand; is it another release?") from None
        place = self.layout.places.get(name)
        if place is None:
            raise CliError(f"there is no broker {name} here ({', '.join(self.layout.places)})")
        async with self._restarting:
            return await self._unless_stopped(self._restart(place))

    async def _restart(self, place: LocalBroker) -> str:
        """Start a broker again; one that still runs is stopped first."""
        run = self.runs[place.name]
        if not run.ended.done():
            self.say(f"{place.name} is stopped to be started again")
        await run.stop()
        if self._telling is not None:
            self._telling.cancel()
        fresh = await self._start(place)
        await fresh.ready()
        self.root = await self._agree([fresh], lambda _: None)
        text = f"{place.name} is back (process {fresh.pid}); root is {self.root.name}"
        self.say(text)
        return text

    # ---- down -----------------------------------------------------------------------------------

    def _heed_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # nohup
            loop.add_signal_handler(number, self._signalled, number)

    def _signalled(self, number: signal.Signals) -> None:
        if not self._stopping.is_set():
            self._stopping.set()
            return
        self.say(f"{number.name} again: killing all brokers")
        for run in self.runs.values():
            if not run.ended.done():
                run.kill()

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of ``work``; raises Stopped at a signal."""
        working = asyncio.create_task(work)
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([working, stopped], return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise Stopped
            return await working
        finally:
            for task in (working, stopped):
                task.cancel()
            await asyncio.gather(working, stopped, return_exceptions=True)

    async def _take_down(self) -> None:
        self._stopping.set()
        if self._telling is not None:
            self._telling.cancel()
        for stage in stop_order(self.running(), self.root):
            self.say(f"stopping {', '.join(stage)}")
            cleanly = await asyncio.gather(*(self.runs[name].stop() for name in stage))
            for name, is_clean in zip(stage, cleanly, strict=True):
                if not is_clean:
                    self.say(f"{name} did not stop in time and was killed; see its log")
        for run in self.runs.values():
            await run.ended
        await asyncio.gather(*self._watching.values())


def stop_order(running: Mapping[str, LocalBroker], root: Root | None) -> list[list[str]]:
    """Secondaries, the other primaries, the root: no election on the way down."""
    secondaries = [name for name, place in running.items() if place.role == SECONDARY]
    root_name = root.name if root is not None else ""
    others = [name for name in running if name not in secondaries and name != root_name]
    last = [root_name] if root_name in running else []
    return [stage for stage in (secondaries, others, last) if stage]


# ---- the directory ------------------------------------------------------------------------------


def lock_directory(directory: Path) -> DirectoryLock:
    try:
        return DirectoryLock(directory)
    except StoreInUse:
        owner = (directory / "lock").read_text("ascii", "replace").strip() or "unknown"
        raise CliError(
            f"a cluster runs in {directory} already (process {owner}); stop it with Ctrl-C or"
            f" `kill {owner}`, or give another --data"
        ) from None


def bind_control(path: Path) -> socket.socket:
    """The listening end of the control socket; for the owner of the directory only."""
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX)
    with _Short(path) as short:
        sock.bind(short)
    path.chmod(0o600)
    return sock


def ask_running(directory: Path, request: Mapping[str, str]) -> str:
    """Send a request to the `up` that runs on a directory; raises CliError."""
    path = directory / "control"
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            with _Short(path) as short:
                sock.connect(short)
            sock.sendall(json.dumps(request).encode() + b"\n")
            with sock.makefile("rb") as answers:
                line = answers.readline()
    except (FileNotFoundError, ConnectionRefusedError):
        raise CliError(
            f"no cluster runs in {directory}; start it with `rhizome up --data {directory}`"
        ) from None
    answer = json.loads(line) if line else {"error": "the running `up` ended before it was done"}
    if "error" in answer:
        raise CliError(str(answer["error"]))
    return str(answer["done"])


class _Short:
    """A path to a socket that fits into a socket address, however deep its directory is."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._directory = -1

    def __enter__(self) -> str:
        self._directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        return f"/proc/self/fd/{self._directory}/{self._path.name}"

    def __exit__(self, *_: object) -> None:
        os.close(self._directory)
