"""How far the copies of groups at a broker are, asked by the root (G3).

    ASK_STANDING 59   root -> broker  {"groups": [number, ...]}
    STANDING 60       broker -> root  {"standings": [{"group", "epoch", "index"}, ...]}

``epoch`` and ``index`` are of the last record that the copy has. A copy that must not become home
(it is being installed, or is damaged), or isn't there, has the index `NO_COPY`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rhizome.amqp.values import encode_table, read_table
from rhizome.errors import SyntaxErrorFault

ASK_STANDING: Final = 59
STANDING: Final = 60

NO_COPY: Final = -1


@dataclass(frozen=True, order=True)
class Standing:
    """Of one copy of one group. Ordered: who has more comes later."""

    epoch: int
    index: int

    def is_usable(self) -> bool:
        return self.index != NO_COPY


def encode_question(groups: Sequence[int]) -> bytes:
    return encode_table({"groups": list(groups)})


def decode_question(data: bytes) -> list[int]:
    groups = read_table(data, 0)[0].get("groups")
    if not isinstance(groups, list):
        raise SyntaxErrorFault("a question for standings names no groups")
    return [group for group in groups if isinstance(group, int)]


def encode_answer(standings: dict[int, Standing]) -> bytes:
    rows = [
        {"group": group, "epoch": each.epoch, "index": each.index}
        for group, each in standings.items()
    ]
    return encode_table({"standings": rows})


def decode_answer(data: bytes) -> dict[int, Standing]:
    rows = read_table(data, 0)[0].get("standings")
    if not isinstance(rows, list):
        raise SyntaxErrorFault("an answer has no standings")
    found: dict[int, Standing] = {}
    for row in rows:
        numbers = [row.get(key) for key in ("group", "epoch", "index")]
        group, epoch, index = (each if isinstance(each, int) else NO_COPY for each in numbers)
        found[group] = Standing(epoch, index)
    return found
