"""The automaton of a pattern: it says in linear time whether a name fits.

A name is read from its end to its beginning. At each place the automaton knows the set of points
of the pattern from which the rest of the name can be matched. What follows the place has been read
by then, so whether a look-ahead holds there is known as well, and look-aheads may stand anywhere.
Each character costs at most one visit to each point, whatever the pattern is: nothing is tried, so
nothing is taken back.

A pattern without look-aheads can be read forwards too; then everything is the mirror image. That is
faster for patterns that begin with ^, since most names differ from them at the beginning.

Each set of points that has occurred is kept as a state, with the state that follows for each
character. After a few names a search is one look into a dictionary per character. All automata
together keep at most ``REMEMBERED_CELLS_MAX``; when that is full, all of them forget what they
have kept, which changes no answer.
"""

from __future__ import annotations

from typing import Final

from rhizome.patterns.syntax import (
    ALWAYS,
    LAST_LINE_END,
    LINE_BEGIN,
    LINE_END,
    LOOK,
    NO_WORD_EDGE,
    TEXT_BEGIN,
    TEXT_END,
    UNBOUNDED,
    WEIGHT_MAX,
    WILD_WEIGHT,
    WORD_EDGE,
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

REMEMBERED_CELLS_MAX: Final = 200_000
"""Points in remembered states and ways between them, of all automata together; some 25 MB."""

_STATE_CELLS: Final = 4
_NO_CHARS: Final = -1

# What stands beside a place in the name.
_NOTHING: Final = 0
_OTHER: Final = 1
_WORD: Final = 2
_NEWLINE: Final = 3
_LAST_NEWLINE: Final = 4


_UNKNOWN: Final = -1
_NO: Final = 0
_YES: Final = 1


class _State:
    """What is known at a place: ``points`` whose character is the one read last and from which what
    was read can be matched, and the kind of that character. ``answer`` is whether there is a match,
    if that is known whatever comes; ``end_answer`` whether there is one if nothing more comes."""

    points: list[int]
    behind: int
    moves: dict[str, _State]
    answer: int
    end_answer: int

    def __init__(self, points: list[int], behind: int, answer: int = _UNKNOWN) -> None:
        self.points = points
        self.behind = behind
        self.moves = {}
        self.answer = answer
        self.end_answer = _UNKNOWN


_FOUND: Final = _State([], _NOTHING, _YES)
_LOST: Final = _State([], _NOTHING, _NO)


class _Memory:
    """Counts what automata remember, and has all of them forget it when it is too much."""

    cells: int
    automata: list[Automaton]

    def __init__(self) -> None:
        self.cells = 0
        self.automata = []

    def add(self, cells: int) -> None:
        self.cells += cells
        if self.cells > REMEMBERED_CELLS_MAX:
            for automaton in self.automata:
                automaton.forget()
            self.automata = []
            self.cells = 0


MEMORY: Final = _Memory()


class Automaton:
    """Whether a name has a match of a pattern in it.

    A point is a place in the pattern. Point p with ``_classes[p]`` takes a character of that class
    and goes on at p - 1; ``_sources[p]`` are the points that go on at p without taking one, each
    with the condition for it. Each look-ahead is an automaton of its own, and the pattern is the
    last one: number k has the points from ``_accepts[k]``, where it ends, up to the next number's,
    and begins at ``_starts[k]``. If names are read forwards, the pattern's parts are built in the
    other order, so that all of this is said of the mirror image.
    """

    weight: int
    visits: int
    _text: str
    _forward: bool
    _only_at_end: bool
    _classes: list[int]
    _ranges: list[Ranges]
    _class_numbers: dict[Ranges, int]
    _sources: dict[int, list[int]]
    _starts: list[int]
    _accepts: list[int]
    _states: dict[tuple[int, tuple[int, ...]], _State]
    _last: _State | None

    def __init__(self, syntax: Syntax, text: str, forward: bool = False) -> None:
        """Raises PatternError if ``text``, whose syntax it is, weighs too much."""
        assert not (forward and syntax.looks)
        self.weight = 0
        self.visits = 0
        self._text = text
        self._forward = forward
        self._classes = []
        self._ranges = []
        self._class_numbers = {}
        self._sources = {}
        self._starts = []
        self._accepts = []
        self._states = {}
        self._last = None
        for node in [*syntax.looks, syntax.root]:
            accept = self._point()
            self._accepts.append(accept)
            self._starts.append(self._build(node, accept))
        self._classes.append(_NO_CHARS)
        self._only_at_end = self._ends_only_at_end()

    # --- building: from the end of the pattern to its beginning

    def _point(self) -> int:
        self._classes.append(_NO_CHARS)
        return len(self._classes) - 1

    def _join(self, source: int, target: int, condition: int) -> None:
        """Let ``source`` go on at ``target`` without a character, if a condition holds."""
        self._sources.setdefault(target, []).extend((source, condition))

    def _build(self, node: Node, target: int) -> int:
        """Make the points of a node that goes on at ``target``; the one where it begins."""
        self._weigh(node)
        if isinstance(node, Chars):
            return self._build_chars(node, target)
        if isinstance(node, Sequence):
            for part in node.parts if self._forward else reversed(node.parts):
                target = self._build(part, target)
            return target
        if isinstance(node, Choice):
            arms = [self._build(arm, target) for arm in node.arms]
            point = self._point()
            for arm in arms:
                self._join(point, arm, ALWAYS)
            return point
        if isinstance(node, Repeat):
            return self._build_repeat(node, target)
        assert isinstance(node, Assertion)
        point = self._point()
        self._join(point, target, node.condition)
        return point

    def _weigh(self, node: Node) -> None:
        if isinstance(node, Choice):
            self.weight += len(node.arms)
        elif isinstance(node, Sequence) or (isinstance(node, Chars) and node.is_literal()):
            self.weight += 1
        else:
            self.weight += WILD_WEIGHT
        if self.weight > WEIGHT_MAX:
            raise too_large(self._text)

    def _build_chars(self, node: Chars, target: int) -> int:
        if target != len(self._classes) - 1:
            self._join(self._point(), target, ALWAYS)
        number = self._class_numbers.get(node.ranges)
        if number is None:
            number = len(self._ranges)
            self._class_numbers[node.ranges] = number
            self._ranges.append(node.ranges)
        self._classes.append(number)
        return len(self._classes) - 1

    def _build_repeat(self, node: Repeat, target: int) -> int:
        low = node.low
        begin = target
        if node.high == UNBOUNDED:
            loop = self._point()
            body = self._build(node.body, loop)
            self._join(loop, body, ALWAYS)
            self._join(loop, target, ALWAYS)
            begin = loop if low == 0 else body
            low = max(low, 1) - 1
        else:
            for _ in range(node.high - low):
                body = self._build(node.body, begin)
                begin = self._point()
                self._join(begin, body, ALWAYS)
                self._join(begin, target, ALWAYS)
        for _ in range(low):
            begin = self._build(node.body, begin)
        return begin

    def _ends_only_at_end(self) -> bool:
        """Whether a match must reach the end of the name that is read first."""
        ends = (TEXT_BEGIN,) if self._forward else (TEXT_END, LAST_LINE_END)
        holds = bytearray(b"\1" * (LOOK + 2 * len(self._starts)))
        for condition in ends:
            holds[condition] = 0
        seen = bytearray(len(self._classes))
        reached = [self._accepts[-1]]
        self._follow(reached, 0, seen, holds)
        return not (seen[self._starts[-1]] or any(self._classes[at + 1] >= 0 for at in reached))

    def points(self) -> int:
        """How many points it has: the work for each character is bounded by it."""
        return len(self._classes)

    # --- searching

    def search(self, text: str) -> bool:
        """Whether there is a match anywhere in ``text``. Forwards nobody could tell a line's end
        from the last one's, so a text that is read forwards must be one line."""
        state = self._last
        if state is None:
            state = self._state([], _NOTHING)
            self._last = state
            MEMORY.automata.append(self)
        for char in text if self._forward else reversed(text):
            following = state.moves.get(char)
            if following is None:
                following = self._move(state, char)
            if following.answer >= 0:
                return following.answer == _YES
            state = following
        if state.end_answer < 0:
            state.end_answer = _NO if self._reached(state, _NOTHING) else _YES
        return state.end_answer == _YES

    def forget(self) -> None:
        """Give up what is remembered of earlier searches."""
        self._states = {}
        self._last = None

    def _state(self, points: list[int], behind: int) -> _State:
        key = (behind, tuple(points))
        state = self._states.get(key)
        if state is None:
            state = _State(points, behind)
            self._states[key] = state
            MEMORY.add(2 * len(points) + _STATE_CELLS)
        return state

    def _move(self, state: _State, char: str) -> _State:
        """The state that follows when ``char`` is read."""
        kind = _kind_of(char)
        reached = self._reached(state, kind)
        if not reached:
            following = _FOUND
        else:
            if kind == _NEWLINE and state.behind == _NOTHING:
                kind = _LAST_NEWLINE
            points = self._takers(reached, ord(char))
            hopeless = self._only_at_end and kind != _LAST_NEWLINE
            if hopeless and (not points or points[-1] < self._accepts[-1]):
                following = _LOST
            else:
                following = self._state(points, kind)
        state.moves[char] = following
        MEMORY.add(1)
        return following

    def _takers(self, reached: list[int], code: int) -> list[int]:
        """The points that take a character and go on at a point that was reached."""
        classes = self._classes
        fits = [-1] * len(self._ranges)
        found: list[int] = []
        for point in reached:
            number = classes[point + 1]
            if number >= 0:
                if fits[number] < 0:
                    fits[number] = 1 if _has(self._ranges[number], code) else 0
                if fits[number]:
                    found.append(point + 1)
        found.sort()
        return found

    def _reached(self, state: _State, ahead: int) -> list[int]:
        """The points from which what was read can be matched, if a character of the kind ``ahead``
        is read next; none if the pattern's beginning is one of them."""
        if self._forward:
            holds = self._conditions(state.behind, ahead)
        else:
            holds = self._conditions(ahead, state.behind)
        points = state.points
        seen = bytearray(len(self._classes))
        reached: list[int] = []
        taken = 0
        last = len(self._starts) - 1
        for number in range(last + 1):
            at = len(reached)
            end = self._accepts[number + 1] if number < last else len(self._classes)
            reached.append(self._accepts[number])
            while taken < len(points) and points[taken] < end:
                reached.append(points[taken])
                taken += 1
            self._follow(reached, at, seen, holds)
            if seen[self._starts[number]]:
                if number == last:
                    return []
                holds[LOOK + 2 * number] = 1
            elif number < last:
                holds[LOOK + 2 * number + 1] = 1
        return reached

    def _follow(self, reached: list[int], at: int, seen: bytearray, holds: bytearray) -> None:
        """Add to ``reached`` what leads to its points from ``at`` on without a character."""
        first = at
        for point in reached[at:]:
            seen[point] = 1
        while at < len(reached):
            sources = self._sources.get(reached[at])
            at += 1
            if sources is not None:
                for entry in range(0, len(sources), 2):
                    source = sources[entry]
                    if not seen[source] and holds[sources[entry + 1]]:
                        seen[source] = 1
                        reached.append(source)
        self.visits += len(reached) - first

    def _conditions(self, left: int, right: int) -> bytearray:
        """Which conditions hold at a place between two kinds of characters."""
        holds = bytearray(LOOK + 2 * len(self._starts))
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


def _kind_of(char: str) -> int:
    if char == "\n":
        return _NEWLINE
    return _WORD if char == "_" or (char.isascii() and char.isalnum()) else _OTHER


def _has(ranges: Ranges, code: int) -> bool:
    for low, high in ranges:
        if code <= high:
            return low <= code
    return False
