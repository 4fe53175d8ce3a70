"""Topic exchanges: binding keys with wildcards, matched by walking a trie of words.

The trie is run like an automaton over the words of a routing key: all nodes that the first n words
can have reached are active together. A node of the tree has one parent, so only `#` nodes, which
stay active over any number of words, can be reached twice; they are stamped per word. A match
therefore costs no more than (words x nodes that match a prefix), without the blow-up of
backtracking over several `#`, and the number of bindings that don't match is of no account. A key
has at most 256 words; how many nodes match at once is up to those who bind, so each visit counts
as a step of the routing (`Walk`), which has a maximum.
"""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from rhizome.broker.routing.bindings_and_destinations import (
    Binding,
    CountedDestinations,
    Destination,
    Walk,
)
from rhizome.broker.routing.exchange import Exchange


def split_words(key: str) -> list[str]:
    """The words of a key; the empty key has none, though "." has two empty ones."""
    return key.split(".") if key else []


def pattern_words(pattern: str) -> list[str]:
    """The words of a binding key, in the normal form that the trie is built from.

    In a run of wildcards only the number of `*` and the presence of `#` count, so `#.*.#` becomes
    `*.#`. That no `#` follows another is what lets the walk open a `#` without recursion.
    """
    words: list[str] = []
    run_has_rest = False
    for word in split_words(pattern):
        if word == "#":
            run_has_rest = True
            continue
        if word != "*" and run_has_rest:
            words.append("#")
            run_has_rest = False
        words.append(word)
    if run_has_rest:
        words.append("#")
    return words


@final
class _Node:
    """The end of a prefix of patterns. ``is_rest``: its own word is `#`, so it swallows words.

    Invariant: ``only``, behind ``word``, is the literal child while there is one; several are in
    ``literal``. A pattern has up to 256 words and most of them lead to one child and to no
    destination, so a node has no table and no ``fan`` before it needs them. ``step`` is the last
    step of a walk that activated this node, if it is a `#` node.
    """

    word: str
    only: _Node | None
    literal: dict[str, _Node] | None
    star: _Node | None
    rest: _Node | None
    is_rest: bool
    step: i64
    fan: CountedDestinations | None

    def __init__(self, is_rest: bool) -> None:
        self.word = ""
        self.only = None
        self.literal = None
        self.star = None
        self.rest = None
        self.is_rest = is_rest
        self.step = 0
        self.fan = None

    def is_empty(self) -> bool:
        return (
            self.only is None
            and self.literal is None
            and self.star is None
            and self.rest is None
            and self.fan is None
        )

    def child(self, word: str) -> _Node | None:
        if word == "*":
            return self.star
        if word == "#":
            return self.rest
        if self.literal is not None:
            return self.literal.get(word)
        return self.only if self.word == word else None

    def grow(self, word: str) -> _Node:
        """The child for ``word``, made if need be."""
        child = self.child(word)
        if child is None:
            child = _Node(word == "#")
            if word == "*":
                self.star = child
            elif word == "#":
                self.rest = child
            else:
                self._add_literal(word, child)
        return child

    def _add_literal(self, word: str, child: _Node) -> None:
        literal = self.literal
        if literal is not None:
            literal[word] = child
        elif self.only is None:
            self.word = word
            self.only = child
        else:
            self.literal = {self.word: self.only, word: child}
            self.word = ""
            self.only = None

    def prune(self, word: str) -> None:
        if word == "*":
            self.star = None
        elif word == "#":
            self.rest = None
        elif self.literal is not None:
            del self.literal[word]
            if not self.literal:
                self.literal = None
        else:
            self.word = ""
            self.only = None

    def add(self, destination: Destination) -> None:
        fan = self.fan
        if fan is None:
            fan = CountedDestinations()
            self.fan = fan
        fan.add(destination)

    def remove(self, destination: Destination) -> None:
        fan = self.fan
        assert fan is not None
        fan.remove(destination)
        if len(fan) == 0:
            self.fan = None


@final
class TopicExchange(Exchange):
    """Destinations whose binding key, with `*` for a word and `#` for any number, fits the key."""

    _root: _Node
    _step: i64

    def __init__(
        self,
        vhost: str,
        name: str,
        kind: str = "topic",
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: dict[str, object] | None = None,
    ) -> None:
        super().__init__(vhost, name, kind, durable, auto_delete, internal, arguments)
        self._root = _Node(False)
        self._step = 0

    def match(self, key: str, headers: dict[str, object] | None, walk: Walk) -> bool:
        step: i64 = self._step + 1
        spent: i64 = 0
        allowed = walk.steps_max - walk.steps
        root = self._root
        active: list[_Node] = [root]
        rest = root.rest
        if rest is not None:
            active.append(rest)
        for word in split_words(key):
            step += 1
            spent += len(active)
            if spent > allowed:
                # The stamps of this walk must not be given again.
                self._step = step
                walk.spend(spent)
            following: list[_Node] = []
            for node in active:
                _advance(node, word, step, following)
            active = following
        self._step = step
        walk.steps += spent
        found = False
        for node in active:
            fan = node.fan
            if fan is not None and fan.collect(walk):
                found = True
        return found

    def _added(self, binding: Binding) -> None:
        node = self._root
        for word in pattern_words(binding.key):
            node = node.grow(word)
        node.add(binding.destination)

    def _removed(self, binding: Binding) -> None:
        words = pattern_words(binding.key)
        path = [self._root]
        for word in words:
            path.append(path[-1].grow(word))
        path[-1].remove(binding.destination)
        depth = len(words)
        while depth > 0 and path[depth].is_empty():
            depth -= 1
            path[depth].prune(words[depth])


def _advance(node: _Node, word: str, step: i64, following: list[_Node]) -> None:
    """Activate what ``node`` leads to by ``word``."""
    only = node.only
    if only is not None:
        if node.word == word:
            _activate(only, step, following)
    elif node.literal is not None:
        literal = node.literal.get(word)
        if literal is not None:
            _activate(literal, step, following)
    star = node.star
    if star is not None:
        _activate(star, step, following)
    if node.is_rest and node.step != step:
        node.step = step
        following.append(node)


def _activate(node: _Node, step: i64, following: list[_Node]) -> None:
    """Activate a word's node and the `#` behind it, which may stand for no word at all."""
    following.append(node)
    rest = node.rest
    if rest is not None and rest.step != step:
        rest.step = step
        following.append(rest)
