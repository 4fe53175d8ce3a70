"""Regular expressions that users set and send, matched in linear time.

Policies, permissions and filters of lists use this package and never `re`: Python's matcher
backtracks, so a short pattern can keep a broker's only thread busy for years (ADR 17). What a
pattern means depends on its text alone, as all brokers of a cluster must decide alike; a change
of the dialect goes by ADR 15. Imports errors only. Begin with pattern.py; syntax.py parses,
automaton.py matches.
"""

from rhizome.regex.pattern import (
    PATTERN_CHARACTERS_MAX,
    Pattern,
    check_pattern,
    compile_pattern,
    escape,
    pattern_of,
)
from rhizome.regex.syntax import PatternError

__all__ = [
    "PATTERN_CHARACTERS_MAX",
    "Pattern",
    "PatternError",
    "check_pattern",
    "compile_pattern",
    "escape",
    "pattern_of",
]
