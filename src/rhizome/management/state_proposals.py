"""State proposals: changes of the cluster state on behalf of HTTP requests."""

from __future__ import annotations

import asyncio
from typing import Final

from rhizome.broker.cluster_port import Waiter
from rhizome.broker.metadata.metadata_changes import Outcome
from rhizome.broker.metadata.metadata_commands import Command, encode
from rhizome.management.api_context import Context
from rhizome.management.errors import BadRequest, Unavailable

COMMIT_SECONDS_MAX: Final = 30.0


class Proposal(Waiter):
    """A command that was proposed; ``answer`` comes when it is committed and safe."""

    def __init__(self, takes_whole_state: bool = False) -> None:
        super().__init__()
        self._takes_whole_state = takes_whole_state
        self.answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def takes_whole_state(self) -> bool:
        return self._takes_whole_state

    def resolved(self, outcome: Outcome) -> None:
        if not self.answer.done():
            self.answer.set_result(outcome)


def start(context: Context, command: Command, takes_whole_state: bool = False) -> Proposal:
    """Propose a command without waiting for its outcome. ``takes_whole_state``: an administrator
    restores an export, and the quota of a vhost does not apply."""
    try:
        # What can't be recorded must not be applied either.
        encode(command)
    except ValueError as error:
        raise BadRequest(str(error)) from None
    context.shell.begin_turn()
    proposal = Proposal(takes_whole_state)
    context.broker.cluster.propose(command, proposal)
    return proposal


async def finish(context: Context, proposal: Proposal) -> Outcome:
    """Wait for the outcome; raises its error, or Unavailable while this broker is isolated."""
    try:
        async with asyncio.timeout(COMMIT_SECONDS_MAX):
            outcome = await proposal.answer
    except TimeoutError:
        raise Unavailable(
            f"the change is made but not safe after {COMMIT_SECONDS_MAX:g} s; is the disk full?"
        ) from None
    if outcome.error is not None:
        if context.broker.isolation:
            raise Unavailable(outcome.error.text)
        raise outcome.error
    return outcome


async def propose(context: Context, command: Command) -> Outcome:
    """Have a command committed; raises the error if it is refused."""
    return await finish(context, start(context, command))
