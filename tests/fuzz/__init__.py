"""What fuzzing shares: `choices` (decisions from bytes), `traffic` (frames, right and wrong),
`arena` (a core under attack and what must hold for it), `session` (one attack).

The hypothesis tests in tests/unit/broker run sessions from random bytes; tools/fuzz.py runs the
same sessions guided by coverage.
"""
