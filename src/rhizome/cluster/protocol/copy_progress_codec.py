"""Copy progress codec: payloads with which a root asks how far the copies at a broker are, and with
which that broker answers."""

from __future__ import annotations

from collections.abc import Sequence

from rhizome.amqp.field_table import encode_table, read_table
from rhizome.cluster.takeover.copy_progress import NO_COPY, CopyProgress
from rhizome.errors import SyntaxErrorFault


def encode_question(groups: Sequence[int]) -> bytes:
    return encode_table({"groups": list(groups)})


def decode_question(data: bytes) -> list[int]:
    groups = read_table(data, 0)[0].get("groups")
    if not isinstance(groups, list):
        raise SyntaxErrorFault("a question for standings names no groups")
    return [group for group in groups if isinstance(group, int)]


def encode_answer(standings: dict[int, CopyProgress]) -> bytes:
    rows = [
        {"group": group, "epoch": each.epoch, "index": each.index}
        for group, each in standings.items()
    ]
    return encode_table({"standings": rows})


def decode_answer(data: bytes) -> dict[int, CopyProgress]:
    rows = read_table(data, 0)[0].get("standings")
    if not isinstance(rows, list):
        raise SyntaxErrorFault("an answer has no standings")
    found: dict[int, CopyProgress] = {}
    for row in rows:
        numbers = [row.get(key) for key in ("group", "epoch", "index")]
        group, epoch, index = (each if isinstance(each, int) else NO_COPY for each in numbers)
        found[group] = CopyProgress(epoch, index)
    return found
