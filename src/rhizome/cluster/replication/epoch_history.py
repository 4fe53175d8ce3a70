"""Epoch history: where two copies of a group's log diverge (L2).

A history is the list of (epoch, first index) of the epochs that a log has records of, or whose home
it knows. Two logs that share an epoch, and all epochs before it, have the same records up to where
that epoch ends in either of them.
"""

from __future__ import annotations

from mypy_extensions import i64


def epoch_in(starts: list[tuple[int, int]], index: i64) -> i64:
    """The epoch that a record belongs to, in a history that has one."""
    at: i64 = len(starts) - 1
    while at > 0 and i64(starts[at][1]) > index:
        at -= 1
    return 0 if at < 0 else i64(starts[at][0])


def shared_epochs(own: list[tuple[int, int]], other: list[tuple[int, int]]) -> i64:
    """How many leading epochs two histories have in common."""
    count: i64 = 0
    while count < len(own) and count < len(other) and own[count] == other[count]:
        count += 1
    return count


def common_end(own: list[tuple[int, int]], index: i64, other: list[tuple[int, int]]) -> i64:
    """The last index that a log up to `index` with the history `own` shares with the other log.

    The other log is assumed to be long enough: it is the home's, and has what it ever sent.
    """
    count = shared_epochs(own, other)
    if count == 0:
        return 0
    end = index
    for history in (own, other):
        if count < len(history):
            next_start: i64 = history[count][1]
            end = min(end, next_start - 1)
    return end


def from_same_epoch(
    own: list[tuple[int, int]], other: list[tuple[int, int]]
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Two histories that may have forgotten their beginnings, from the first epoch that both
    know."""
    if len(own) == 0 or len(other) == 0:
        return own, other
    first = max(own[0][0], other[0][0])
    return [each for each in own if each[0] >= first], [each for each in other if each[0] >= first]
