"""Print what the worst input of each AMQP method and HTTP endpoint costs a bystander.

    python tools/worst_input.py [--long] [--rows 10] [--match TEXT]

The table is the one in docs/operating/security.md.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.process.worst import amqp_inputs, http_inputs
from tests.process.worst.world import LONG, SHORT, Stall, World


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--long", action="store_true", help="the sizes of `make soak`")
    parser.add_argument("--rows", type=int, default=10)
    parser.add_argument("--match", default="", help="only inputs with this in their name")
    options = parser.parse_args()
    stalls: list[Stall] = []
    failed = 0
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory), LONG if options.long else SHORT)
        try:
            world.prepare()
            for name, what, made in [*amqp_inputs.INPUTS, *http_inputs.INPUTS]:
                if options.match in f"{name}, {what}":
                    try:
                        stalls.append(world.measured(f"`{name}`, {what}", made))
                    except (AssertionError, OSError) as error:
                        failed += 1
                        print(f"{name}, {what}: {error}", file=sys.stderr, flush=True)
                    else:
                        print(stalls[-1], file=sys.stderr, flush=True)
        finally:
            world.close()
    print("| input | processor time in one round trip | longest turn |\n|---|---|---|")
    for stall in sorted(stalls, key=lambda each: -each.ran)[: options.rows]:
        print(f"| {stall.name} | {stall.ran:.0f} ms | {stall.turn:.0f} ms |")
    if failed:
        print(f"{failed} inputs could not be measured", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
