"""Rules of attaching that can be broken, one by one, to show what each is for.

Only tests turn one off. The simulator and the unit tests do, and must see what comes of it.
docs/internals/rules.md has the text of each rule.
"""

from __future__ import annotations

from typing import final


@final
class AttachRules:
    """Each comment names what happens without the rule."""

    numbers_counted: bool
    """A1: a home takes only the number after the last; else a publish is taken twice."""

    kept_until_committed: bool
    """A1: an edge forgets a publish when it is committed; else a takeover loses it."""

    held_presented: bool
    """A2: an edge says what its applications hold; else it is delivered to others, too."""

    settled_presented: bool
    """A2: an edge says what is settled and not yet safe; else it is delivered again."""

    lists_awaited: bool
    """A2: a new home waits for all edges; else it delivers what an edge still holds."""

    clients_awaited: bool
    """J12: a new home waits for clients whose broker is gone; else it delivers what they hold."""

    older_epochs_dropped: bool
    """A2: an edge drops what isn't of the attach that counts; else it shows a message twice."""

    epochs_compared: bool
    """A2: what an edge has from the lost end of an earlier epoch is void; else another message that
    has got the same index since is taken for it, and so is lost."""

    def __init__(self) -> None:
        self.numbers_counted = True
        self.kept_until_committed = True
        self.held_presented = True
        self.settled_presented = True
        self.lists_awaited = True
        self.clients_awaited = True
        self.older_epochs_dropped = True
        self.epochs_compared = True
