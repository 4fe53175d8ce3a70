"""Role hooks: commands that are run when this broker gains or loses a role.

They are for resource managers and virtual addresses. A command gets EVENT ROLE GROUP NUMBER BROKER,
where the event is `promoted` or `demoted`, the role `root` or `home`, the group a number or `-`,
and the number the term or epoch. One command runs at a time, each for a limited time, and none
holds the broker up.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from rhizome.cluster.node import Node

logger = logging.getLogger("rhizome.hooks")

PROMOTED: Final = "promoted"
DEMOTED: Final = "demoted"
ROOT: Final = "root"
HOME: Final = "home"
NO_GROUP: Final = "-"
OUTPUT_CHARS_MAX: Final = 400


class HookSettings(Protocol):
    @property
    def promoted(self) -> str: ...
    @property
    def demoted(self) -> str: ...
    @property
    def timeout_ms(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Role:
    """A role of a broker. ``group`` is empty for the root."""

    name: str
    group: str = NO_GROUP


Roles = Mapping[Role, int]
"""The roles that a broker has, each with its term or epoch."""


def roles_of(node: Node | None) -> dict[Role, int]:
    """The roles of a broker now; a standalone broker is always root."""
    if node is None:
        return {Role(ROOT): 1}
    found: dict[Role, int] = {}
    if node.consensus.root == node.me.name:
        found[Role(ROOT)] = int(node.consensus.term)
    for number, home in node.roles.homes.items():
        if not home.log.silent:
            found[Role(HOME, str(number))] = int(home.log.epoch)
    return found


class Hooks:
    """Invariant: ``_told`` is what the commands were last told; a task runs while it differs from
    ``_wanted``. If a role comes and goes while a command runs, only its last state is told."""

    def __init__(self, settings: HookSettings, broker: str) -> None:
        self.settings = settings
        self.broker = broker
        self._wanted: dict[Role, int] = {}
        self._told: dict[Role, int] = {}
        self._telling: asyncio.Task[None] | None = None

    @property
    def has_commands(self) -> bool:
        """Whether there are commands: with many groups it takes time to find out the roles."""
        return bool(self.settings.promoted or self.settings.demoted)

    def observe(self, roles: Roles) -> None:
        """The roles that this broker has now. Costs nothing while they stay the same."""
        if roles == self._wanted:
            return
        self._wanted = dict(roles)
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell(), name="hooks")

    async def close(self) -> None:
        """The broker stops and has no role any more. Returns when the commands have run."""
        self.observe({})
        if self._telling is not None:
            await self._telling

    async def _tell(self) -> None:
        while True:
            # Demotions first: an address must leave the old place before it comes to a new one.
            gone = [role for role in self._told if role not in self._wanted]
            if gone:
                number = self._told.pop(gone[0])
                await self._run(DEMOTED, self.settings.demoted, gone[0], number)
                continue
            come = [role for role in self._wanted if self._told.get(role) != self._wanted[role]]
            if not come:
                return
            number = self._told[come[0]] = self._wanted[come[0]]
            await self._run(PROMOTED, self.settings.promoted, come[0], number)

    async def _run(self, event: str, command: str, role: Role, number: int) -> None:
        if not command:
            return
        words = [*shlex.split(command), event, role.name, role.group, str(number), self.broker]
        text = shlex.join(words)
        begun = time.monotonic()
        try:
            process = await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            logger.error("hook %s can't be run: %s", text, error)
            return
        try:
            async with asyncio.timeout(self.settings.timeout_ms / 1000):
                output, _ = await process.communicate()
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            logger.error("hook %s was killed: not done after %d ms", text, self.settings.timeout_ms)
            return
        took = time.monotonic() - begun
        if process.returncode == 0:
            logger.info("hook %s: done after %.1f s", text, took)
        else:
            said = output.decode("utf-8", "replace").strip()[-OUTPUT_CHARS_MAX:]
            logger.error("hook %s failed with %s: %s", text, process.returncode, said)
