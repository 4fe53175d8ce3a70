"""Everything that a core says and writes in a session, as a digest.

    python -m tests.fuzz.footprint SEED...

prints one line for each seed. The same seeds must print the same lines wherever they run: with
strings hashed another way, after other sessions, compiled or not.
"""

from __future__ import annotations

import hashlib
import random
import sys

from tests.fuzz.attacked_core import Arena

from .session import run_session

INPUT_BYTES_MAX = 3000


def session_of(seed: int) -> bytes:
    """An input for `run_session`."""
    chance = random.Random(seed)
    return chance.randbytes(chance.randrange(200, INPUT_BYTES_MAX))


def footprint(arena: Arena) -> str:
    digest = hashlib.sha256()

    def add(name: str, data: bytes | bytearray) -> None:
        digest.update(f"{name} {len(data)} ".encode() + data)

    for number, client in enumerate(arena.hostile):
        add(f"client {number}", client.output)
    if arena.good is not None:
        add("good client", arena.good.client.output)
    core = arena.core
    for segment, content in core.files.contents.items():
        add(f"segment {segment}", content)
    for name, stored in core.files.named.items():
        add(name, stored)
    add("state", core.broker.state.snapshot(transient=True))
    return digest.hexdigest()


def main() -> None:
    for seed in sys.argv[1:]:
        print(seed, footprint(run_session(session_of(int(seed)))))


if __name__ == "__main__":
    main()
