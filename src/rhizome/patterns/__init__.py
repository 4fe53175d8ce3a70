"""Patterns: the regular expressions that users set and send, matched in linear time.

Policies, permissions and filters of lists use this package and never `re`: Python's matcher tries
alternatives one after the other, so a pattern of eight characters can keep it busy for years, and
with it the only thread that a broker has. ADR 17 says why it is an automaton of our own.

What a pattern means depends on its text alone: each broker of a cluster decides for itself which
policy applies to a queue, and all must decide alike. So a change of the dialect is a change of what
brokers agree on, and goes by ADR 15.
"""

from rhizome.patterns.pattern import (
    PATTERN_CHARACTERS_MAX,
    Pattern,
    check_pattern,
    compile_pattern,
    escape,
    pattern_of,
)
from rhizome.patterns.syntax import PatternError

__all__ = [
    "PATTERN_CHARACTERS_MAX",
    "Pattern",
    "PatternError",
    "check_pattern",
    "compile_pattern",
    "escape",
    "pattern_of",
]
