"""Proposal deduplication (R10).

A broker that doesn't hear the outcome of its proposal proposes it again, perhaps to another root,
and then the log may have it twice. The state remembers, per incarnation, the outcomes of the latest
proposals: one that comes again has the same outcome and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from rhizome.broker.metadata.metadata_changes import Outcome
from rhizome.errors import AmqpError, InternalFault

# A broker must not have more proposals on their way than this.
OUTCOMES_MAX: Final = 1024

# The proposer has said that it knows the outcome, or has too many proposals on their way.
FORGOTTEN: Final = "this was proposed before, and its outcome is not known any more"


@dataclass(frozen=True)
class Answer:
    """An outcome as it is remembered: ``error`` is the name of an exception, "" for none."""

    number: int
    changed: bool
    error: str
    text: str

    def outcome(self) -> Outcome:
        return Outcome(self.changed, _make_error(self.error, self.text))


@dataclass
class ProposalWindow:
    """The remembered outcomes of one incarnation.

    Invariant: ``answers`` are of numbers above ``forgotten``, and all numbers up to that are
    answered; there are never more than `OUTCOMES_MAX`.
    """

    forgotten: int = 0
    answers: dict[int, Answer] = field(default_factory=dict)

    def forget(self, up_to: int) -> None:
        if up_to > self.forgotten:
            self.forgotten = up_to
            self.answers = {n: answer for n, answer in self.answers.items() if n > up_to}


class ProposalDedup:
    windows: dict[str, ProposalWindow]

    def __init__(self) -> None:
        self.windows = {}

    def find(self, incarnation: str, number: int) -> Answer | None:
        """The outcome of a proposal; None if it is new."""
        window = self.windows.get(incarnation)
        if window is None:
            return None
        if number <= window.forgotten:
            return Answer(number, False, "PreconditionFailed", FORGOTTEN)
        return window.answers.get(number)

    def remember(self, incarnation: str, number: int, answered: int, outcome: Outcome) -> None:
        window = self.windows.setdefault(incarnation, ProposalWindow())
        error = outcome.error
        window.answers[number] = Answer(
            number,
            outcome.changed,
            "" if error is None else type(error).__name__,
            "" if error is None else error.text,
        )
        window.forget(min(answered, number - 1))
        if len(window.answers) > OUTCOMES_MAX:
            window.forget(min(window.answers))

    def retire(self, incarnation: str) -> None:
        """An incarnation is over: whatever still comes from it is refused anyway."""
        self.windows.pop(incarnation, None)


def _make_error(name: str, text: str) -> AmqpError | None:
    if name == "":
        return None
    return _ERRORS.get(name, InternalFault)(text)


def _leaves(error: type[AmqpError]) -> dict[str, type[AmqpError]]:
    found: dict[str, type[AmqpError]] = {}
    for each in error.__subclasses__():
        found[each.__name__] = each
        found.update(_leaves(each))
    return found


_ERRORS: Final = _leaves(AmqpError)
