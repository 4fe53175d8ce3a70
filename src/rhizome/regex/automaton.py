"""The automaton of a pattern: it says in one step per character whether a name fits.

A pattern becomes a set of points, each a place in it. A name is read from its end to its beginning,
and at each place in the name the automaton is in a state: the set of points from which the rest of
the name can be matched. What follows the place has been read by then, so whether a look-ahead holds
there is known as well, and look-aheads may stand anywhere. A pattern without look-aheads can be
read forwards too; then everything is the mirror image. That is faster for patterns that begin with
^, since most names differ from them at the beginning.

All states are made when the pattern is compiled, and a table says which state follows which with
each character. A search is then one look into the table per character, whatever the pattern is:
nothing is tried, and nothing is remembered. A pattern that needs more work or a larger table than
the limits allow is refused. Work is counted and not timed, so all brokers refuse the same ones.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Final

from rhizome.regex.syntax import (
    ALWAYS,
    CODE_MAX,
    LAST_LINE_END,
    LINE_BEGIN,
    LINE_END,
    LOOK,
    NEWLINE_CODE,
    NO_WORD_EDGE,
    TEXT_BEGIN,
    TEXT_END,
    UNBOUNDED,
    WORD_EDGE,
    WORDS,
    Assertion,
    Chars,
    Choice,
    Node,
    Ranges,
    Repeat,
    Sequence,
    Syntax,
    too_large,
)

WORK_MAX: Final = 100_000
"""Visits of points while a pattern is compiled, and as much for its parts with repetitions written
out: some 50 ms on a slow machine without compiled modules."""

TABLE_CELLS_MAX: Final = 100_000
"""States times kinds of characters, two bytes each."""

KNOWN_CHARACTERS_MAX: Final = 256
"""Of each pattern's memory of which kind a character is."""

_PART_WORK: Final = 10
_STATES_MAX: Final = 65_000  # so that a state's number fits into two bytes

# What stands beside a place in the name.
_NOTHING: Final = 0
_OTHER: Final = 1
_WORD: Final = 2
_NEWLINE: Final = 3
_LAST_NEWLINE: Final = 4

# In the table: what is certain whatever follows. States are numbered from _FIRST on.
_LOST: Final = 0
_FOUND: Final = 1
_FIRST: Final = 2


class Automaton:
    """Whether a name has a match of a pattern in it.

    ``_table[state * _width + sort]`` is the state that follows when a character of a sort is read.
    Characters that no class of the pattern tells apart are of one sort; a newline at the end of the
    name is a sort of its own, the last. ``_ends[state]`` is the answer if nothing more is read.
    """

    _forward: bool
    _width: int
    _table: array[int]
    _ends: bytes
    _bounds: list[int]
    _sorts: dict[str, int]

    def __init__(self, syntax: Syntax, text: str, forward: bool = False) -> None:
        """Raises PatternError if ``text``, whose syntax it is, is too large."""
        made = _States(_Points(syntax, text, forward))
        self._forward = forward
        self._width = made.width
        self._table = made.table
        self._ends = bytes(made.ends)
        self._bounds = made.bounds
        self._sorts = {}

    def cells(self) -> int:
        """How large its table is."""
        return len(self._table)

    def search(self, text: str) -> bool:
        """Whether there is a match anywhere in ``text``."""
        table = self._table
        width = self._width
        sorts = self._sorts
        state = _FIRST
        ended = text.endswith("\n")
        if ended:
            text = text[:-1]
            if not self._forward:
                state = table[state * width + width - 1]
        if state < _FIRST:
            return state == _FOUND
        for char in text if self._forward else reversed(text):
            sort = sorts.get(char)
            if sort is None:
                sort = self._sort_of(char)
            state = table[state * width + sort]
            if state < _FIRST:
                return state == _FOUND
        if ended and self._forward:
            state = table[state * width + width - 1]
            if state < _FIRST:
                return state == _FOUND
        return self._ends[state] == 1

    def _sort_of(self, char: str) -> int:
        if len(self._sorts) >= KNOWN_CHARACTERS_MAX:
            self._sorts.clear()
        sort = bisect_right(self._bounds, ord(char)) - 1
        self._sorts[char] = sort
        return sort


class _Points:
    """A pattern as points.

    ``takers[p]`` are the points that go on at p after a character, each behind the number of its
    class; ``sources[p]`` those that go on at p without one, each before the condition for it. Each
    look-ahead has points of its own, and the pattern itself has the last ones: number k has those
    from ``accepts[k]``, where it ends, up to the next number's, and begins at ``starts[k]``. If
    names are read forwards, all of this is said of the mirror image. ``chains`` has the points of
    repeated characters (see `_build_chain`).
    """

    forward: bool
    count: int
    classes: list[Ranges]
    takers: dict[int, list[int]]
    sources: dict[int, list[int]]
    chains: dict[int, int]
    accepts: list[int]
    starts: list[int]
    conditions: set[int]
    text: str
    _work: int
    _class_numbers: dict[Ranges, int]
    _taker_points: dict[tuple[int, int], int]

    def __init__(self, syntax: Syntax, text: str, forward: bool) -> None:
        assert not (forward and syntax.looks)
        self.forward = forward
        self.count = 0
        self.classes = []
        self.takers = {}
        self.sources = {}
        self.chains = {}
        self.accepts = []
        self.starts = []
        self.conditions = set()
        self.text = text
        self._work = 0
        self._class_numbers = {}
        self._taker_points = {}
        for node in [*syntax.looks, syntax.root]:
            accept = self._point()
            self.accepts.append(accept)
            self.starts.append(self._build(node, accept))

    def do(self, work: int) -> None:
        """Count work; raises PatternError if it is too much."""
        self._work += work
        if self._work > WORK_MAX:
            raise too_large(self.text)

    def least(self, points: list[int]) -> list[int]:
        """Points in order, of each chain the first alone."""
        points.sort()
        if not self.chains:
            return points
        found: list[int] = []
        seen: set[int] = set()
        for point in points:
            chain = self.chains.get(point, -1)
            if chain < 0 or chain not in seen:
                seen.add(chain)
                found.append(point)
        return found

    # --- building, from where the pattern ends to where it begins

    def _point(self) -> int:
        self.count += 1
        return self.count - 1

    def _join(self, source: int, target: int, condition: int) -> None:
        """Let ``source`` go on at ``target`` without a character, if a condition holds."""
        self.sources.setdefault(target, []).extend((source, condition))

    def _build(self, node: Node, target: int) -> int:
        """Make the points of a node that goes on at ``target``; the one where it begins."""
        self.do(_PART_WORK)
        if isinstance(node, Chars):
            return self._build_chars(node, target)
        if isinstance(node, Sequence):
            for part in node.parts if self.forward else reversed(node.parts):
                target = self._build(part, target)
            return target
        if isinstance(node, Choice):
            arms = [self._build(arm, target) for arm in node.arms]
            return self._any_of(arms)
        if isinstance(node, Repeat):
            return self._build_repeat(node, target)
        assert isinstance(node, Assertion)
        self.conditions.add(node.condition)
        point = self._point()
        self._join(point, target, node.condition)
        return point

    def _any_of(self, points: list[int]) -> int:
        """A point that goes on at each of some others."""
        point = self._point()
        for each in dict.fromkeys(points):
            self._join(point, each, ALWAYS)
        return point

    def _build_chars(self, node: Chars, target: int) -> int:
        """The same point for the same class and target: names that end alike share their end."""
        number = self._class_number(node)
        point = self._taker_points.get((number, target))
        if point is None:
            point = self._new_taker(number, target)
            self._taker_points[(number, target)] = point
        return point

    def _class_number(self, node: Chars) -> int:
        number = self._class_numbers.setdefault(node.ranges, len(self.classes))
        if number == len(self.classes):
            self.classes.append(node.ranges)
        return number

    def _new_taker(self, number: int, target: int) -> int:
        """A point that takes a character of a class and goes on at ``target``."""
        point = self._point()
        self.takers.setdefault(target, []).extend((number, point))
        return point

    def _build_repeat(self, node: Repeat, target: int) -> int:
        if node.high == UNBOUNDED:
            loop = self._point()
            body = self._build(node.body, loop)
            self._join(loop, body, ALWAYS)
            self._join(loop, target, ALWAYS)
            begin = loop if node.low == 0 else body
            for _ in range(node.low - 1):
                begin = self._build(node.body, begin)
            return begin
        if isinstance(node.body, Chars):
            return self._build_chain(node, target)
        begin = target
        for _ in range(node.high - node.low):
            begin = self._any_of([self._build(node.body, begin), target])
        for _ in range(node.low):
            begin = self._build(node.body, begin)
        return begin

    def _build_chain(self, node: Repeat, target: int) -> int:
        """A character that is repeated up to so many times: a point for each number of times.

        Where several of these have been reached that are often enough, the least one can do all
        that the others can, and a state has it alone. Otherwise there would be a state for each of
        their subsets. So nobody else may share these points.
        """
        assert isinstance(node.body, Chars)
        number = self._class_number(node.body)
        chain = [target]
        for _ in range(node.high):
            self.do(_PART_WORK)
            chain.append(self._new_taker(number, chain[-1]))
        for point in chain[max(node.low, 1) :]:
            self.chains[point] = chain[-1]
        entries = chain[node.low :]
        return entries[0] if len(entries) == 1 else self._any_of(entries)


class _States:
    """The states of a pattern's points, and the table of which follows which."""

    width: int
    table: array[int]
    ends: bytearray
    bounds: list[int]
    _points: _Points
    _kinds: list[int]
    _sorts_of_class: list[list[int]]
    _numbers: dict[tuple[int, tuple[int, ...]], int]
    _keys: list[tuple[int, tuple[int, ...]]]

    def __init__(self, points: _Points) -> None:
        self._points = points
        words = WORDS if _minds_words(points.conditions) else ()
        self.bounds = _bounds_of([*points.classes, ((NEWLINE_CODE, NEWLINE_CODE),), words])
        self._kinds = [_kind_of(low, points.conditions) for low in self.bounds]
        last = _LAST_NEWLINE if LAST_LINE_END in points.conditions else _kind_of_newline(points)
        self._kinds.append(last)
        self._sorts_of_class = [self._sorts_in(ranges) for ranges in points.classes]
        self.width = len(self._kinds)
        self.table = array("H", [_LOST] * (_FIRST * self.width))
        self.ends = bytearray(_FIRST)
        self._numbers = {}
        self._keys = []
        self._state(_NOTHING, [])
        at = 0
        while at < len(self._keys):
            self._explore(at)
            at += 1
        self._give_up_hopeless()

    def _sorts_in(self, ranges: Ranges) -> list[int]:
        """The sorts of characters that a class has, with the last newline's if it has newlines."""
        found = [
            sort
            for low, high in ranges
            for sort in range(bisect_right(self.bounds, low) - 1, bisect_right(self.bounds, high))
        ]
        newline = bisect_right(self.bounds, NEWLINE_CODE) - 1
        self._points.do(len(found))
        return [*found, len(self.bounds)] if newline in found else found

    def _state(self, behind: int, points: list[int]) -> int:
        """The number of a state: where the character behind the place is of a kind, and was taken
        by ``points``."""
        key = (behind, tuple(self._points.least(points)))
        number = self._numbers.get(key, -1)
        if number < 0:
            number = _FIRST + len(self._keys)
            if number >= _STATES_MAX or (number + 1) * self.width > TABLE_CELLS_MAX:
                raise too_large(self._points.text)
            self._numbers[key] = number
            self._keys.append(key)
        return number

    def _explore(self, at: int) -> None:
        """Add a state's row to the table, and the states that follow it."""
        behind, points = self._keys[at]
        row = [_LOST] * self.width
        # The newline at the end is read last, or first if names are read from their end.
        possible = self._kinds if self._points.forward or behind == _NOTHING else self._kinds[:-1]
        if self._points.forward and behind == _LAST_NEWLINE:
            possible = []
        for kind in dict.fromkeys(possible):
            reached = self._reached(points, behind, kind)
            taken = {} if reached is None else self._taken(reached, kind)
            others = _FOUND if reached is None else self._state(kind, [])
            for sort, each in enumerate(possible):
                if each == kind:
                    takers = taken.get(sort)
                    row[sort] = others if takers is None else self._state(kind, takers)
        self.table.extend(row)
        self.ends.append(self._reached(points, behind, _NOTHING) is None)

    def _taken(self, reached: list[int], kind: int) -> dict[int, list[int]]:
        """The points that go on at one that was reached, by the sorts of characters they take."""
        found: dict[int, list[int]] = {}
        for target in reached:
            takers = self._points.takers.get(target)
            if takers is not None:
                for entry in range(0, len(takers), 2):
                    sorts = self._sorts_of_class[takers[entry]]
                    self._points.do(len(sorts))
                    for sort in sorts:
                        if self._kinds[sort] == kind:
                            found.setdefault(sort, []).append(takers[entry + 1])
        return found

    def _reached(self, taken: tuple[int, ...], behind: int, ahead: int) -> list[int] | None:
        """The points from which what was read can be matched, if a character of the kind ``ahead``
        is read next; None if the pattern's beginning is one of them."""
        points = self._points
        if points.forward:
            holds = _conditions(behind, ahead, len(points.starts))
        else:
            holds = _conditions(ahead, behind, len(points.starts))
        seen = bytearray(points.count)
        reached: list[int] = []
        used = 0
        last = len(points.starts) - 1
        for number in range(last + 1):
            at = len(reached)
            end = points.accepts[number + 1] if number < last else points.count
            reached.append(points.accepts[number])
            while used < len(taken) and taken[used] < end:
                reached.append(taken[used])
                used += 1
            self._follow(reached, at, seen, holds)
            if seen[points.starts[number]]:
                if number == last:
                    return None
                holds[LOOK + 2 * number] = 1
            elif number < last:
                holds[LOOK + 2 * number + 1] = 1
        return reached

    def _follow(self, reached: list[int], at: int, seen: bytearray, holds: bytearray) -> None:
        """Add to ``reached`` what leads to its points from ``at`` on without a character."""
        for point in reached[at:]:
            seen[point] = 1
        while at < len(reached):
            sources = self._points.sources.get(reached[at])
            at += 1
            self._points.do(1)
            if sources is not None:
                self._points.do(len(sources) // 2)
                for entry in range(0, len(sources), 2):
                    source = sources[entry]
                    if not seen[source] and holds[sources[entry + 1]]:
                        seen[source] = 1
                        reached.append(source)

    def _give_up_hopeless(self) -> None:
        """Have states be lost from which no match can be found any more."""
        before: list[list[int]] = [[] for _ in self.ends]
        hopeful = bytearray(self.ends)
        waiting = [state for state, end in enumerate(self.ends) if end]
        for at, following in enumerate(self.table):
            state = at // self.width
            if following == _FOUND and not hopeful[state]:
                hopeful[state] = 1
                waiting.append(state)
            elif following >= _FIRST:
                before[following].append(state)
        while waiting:
            for state in before[waiting.pop()]:
                if not hopeful[state]:
                    hopeful[state] = 1
                    waiting.append(state)
        for at, following in enumerate(self.table):
            if following >= _FIRST and not hopeful[following]:
                self.table[at] = _LOST


def _bounds_of(classes: list[Ranges]) -> list[int]:
    """The first character of each sort: a class has all of a sort or nothing."""
    found = {0}
    for ranges in classes:
        for low, high in ranges:
            found.add(low)
            found.add(high + 1)
    return sorted(code for code in found if code <= CODE_MAX)


def _kind_of(code: int, conditions: set[int]) -> int:
    """The kind of a character, as far as a pattern's conditions care for it."""
    if code == NEWLINE_CODE and (LINE_BEGIN in conditions or LINE_END in conditions):
        return _NEWLINE
    if _minds_words(conditions):
        for low, high in WORDS:
            if low <= code <= high:
                return _WORD
    return _OTHER


def _minds_words(conditions: set[int]) -> bool:
    return WORD_EDGE in conditions or NO_WORD_EDGE in conditions


def _kind_of_newline(points: _Points) -> int:
    return _kind_of(NEWLINE_CODE, points.conditions)


def _conditions(left: int, right: int, automata: int) -> bytearray:
    """Which conditions hold at a place between two kinds of characters."""
    holds = bytearray(LOOK + 2 * automata)
    holds[ALWAYS] = 1
    holds[TEXT_BEGIN] = left == _NOTHING
    holds[LINE_BEGIN] = left in (_NOTHING, _NEWLINE, _LAST_NEWLINE)
    holds[TEXT_END] = right == _NOTHING
    holds[LAST_LINE_END] = right in (_NOTHING, _LAST_NEWLINE)
    holds[LINE_END] = right in (_NOTHING, _LAST_NEWLINE, _NEWLINE)
    edge = (left == _WORD) != (right == _WORD)
    holds[WORD_EDGE] = edge
    holds[NO_WORD_EDGE] = not edge
    return holds
