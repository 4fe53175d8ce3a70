"""JSON of requests: what it is, what is refused and where, and that it is decoded in steps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhizome.management.errors import BadRequest
from rhizome.management.http.json_decoder import (
    DEPTH_MAX,
    ENTRY_CHARS_MAX,
    ENTRY_FIELDS_MAX,
    ENTRY_VALUES_MAX,
    VALUES_MAX,
    WINDOW_CHARS,
    decoded,
    decoded_at_once,
    decoded_stream,
)

NUMBERS = st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=30,
)


def decode(text: str) -> Any:
    return decoded_at_once(text.encode("utf-8", "surrogatepass"))


def refusal(text: str) -> str:
    with pytest.raises(BadRequest) as refused:
        decode(text)
    return refused.value.reason


@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_what_is_valid_is_decoded_as_by_everybody(
    value: object, ascii_only: bool, indent: int | None
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert decode(text) == value == json.loads(text)


@given(st.lists(VALUES, max_size=5))
def test_entries_of_lists_are_decoded_as_all_else(entries: list[object]) -> None:
    document = {"queues": [{"name": "q", "arguments": entry} for entry in entries]}
    for text in (json.dumps(document), json.dumps({**document, "é": 1}, ensure_ascii=False)):
        assert decode(text)["queues"] == document["queues"]


@given(st.text(alphabet='{}[],:"\\ 0123456789.eE+-truefalsn\n', max_size=30))
def test_what_is_no_json_is_refused_and_nothing_else_happens(text: str) -> None:
    try:
        wanted = json.loads(text, parse_constant=pytest.fail)
    except ValueError:
        assert refusal(text)
        return
    try:
        found = decode(text)
    except BadRequest as error:
        found = error.reason
    if isinstance(found, str) and ("is there twice" in found or "no broker can keep" in found):
        return
    assert found == wanted


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"value": 1e999}', "value is a number"),
        ('{"value": [1, {"x": -1e999}]}', "value[1].x is a number"),
        ('{"queues": [{"a": 1}, {"arguments": {"x": 1e400}}]}', "queues[1].arguments.x is a"),
        ('{"value": 18446744073709551616}', "value is a number"),
        ('{"value": -9223372036854775809}', "value is a number"),
        ('{"value": ' + "9" * 5000 + "}", "value is a number"),
        ('{"value": "\\ud800"}', "value has half a surrogate pair"),
        ('{"value": ["\\udc00"]}', "value[0] has half a surrogate pair"),
        ('{"value": {"\\udbff": 1}}', "value has a name with half a surrogate pair"),
        ('{"a": 1, "a": 2}', "a is there twice"),
        ('{"q": [{"a": 1, "a": 2}]}', "q[0].a is there twice"),
        ('{"value": NaN}', "not_json"),
        ('{"value": Infinity}', "not_json"),
        ('{"value": -Infinity}', "not_json"),
        ('{"value": [1, 2', "not_json"),
        ('{"value": 1} x', "not_json: it should end at line 1 column 14"),
        ('{\n "value": wrong}', "not_json: a value should be at line 2 column 11"),
    ],
)
def test_what_can_not_be_kept_is_refused_with_its_place(text: str, place: str) -> None:
    assert place in refusal(text)


def test_bytes_of_names_that_are_no_text_are_taken() -> None:
    assert decode('{"name": "\\udcff\\udc80"}') == {"name": "\udcff\udc80"}


def test_numbers_of_64_bits_are_taken() -> None:
    numbers = [(1 << 64) - 1, -(1 << 63), 1.7976931348623157e308, 5e-324, -0.0]
    assert decode(json.dumps(numbers)) == numbers


def test_depth_is_bounded() -> None:
    assert decode("[" * DEPTH_MAX + "]" * DEPTH_MAX)
    assert "nested deeper" in refusal("[" * (DEPTH_MAX + 1) + "]" * (DEPTH_MAX + 1))
    deep = '{"q": [{"a": ' + "[" * DEPTH_MAX + "]" * DEPTH_MAX + "}]}"
    assert "nested deeper" in refusal(deep)


def test_values_are_counted() -> None:
    assert "values" in refusal("[" + "0," * ENTRY_VALUES_MAX + "0]")
    entry = {"arguments": [0] * (ENTRY_VALUES_MAX + ENTRY_FIELDS_MAX)}
    with pytest.raises(BadRequest, match="belong together"):
        asyncio.run(decoded(json.dumps({"queues": [entry]}).encode(), VALUES_MAX))
    entries = [{"name": "x", "arguments": {}}] * (ENTRY_VALUES_MAX // 2)
    found = asyncio.run(decoded(json.dumps({"queues": entries}).encode(), VALUES_MAX))
    assert found == {"queues": entries}


def test_an_entry_is_not_longer_than_a_maximum() -> None:
    entry = {"name": "x", "value": ["a" * ENTRY_CHARS_MAX]}
    assert "characters" in refusal(json.dumps({"parameters": [entry]}))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_encodings_of_json_are_known(encoding: str) -> None:
    assert decoded_at_once('{"é": 1}'.encode(encoding)) == {"é": 1}


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(BadRequest, match="no UTF-8 at byte 2"):
        decoded_at_once(b'{"\xff": 1}')


def test_others_have_their_turns_meanwhile() -> None:
    body = json.dumps({"queues": [{"name": f"q{at}"} for at in range(20_000)]}).encode()

    async def scenario() -> int:
        decoding = asyncio.create_task(decoded(body, VALUES_MAX))
        turns = 0
        while not decoding.done():
            await asyncio.sleep(0)
            turns += 1
        await decoding
        return turns

    assert asyncio.run(scenario()) > 5


# ---- bodies that come in pieces


def decode_pieces(body: bytes, size: int) -> Any:
    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(body), size):
            yield body[at : at + size]

    return asyncio.run(decoded_stream(pieces(), VALUES_MAX))


def long_document() -> dict[str, Any]:
    """Several windows of text, with entries of all lengths and characters of all sizes."""
    text = 'a"é中\U0001f600\n\udc80' * 5000
    entries = [{"name": f"q{at}", "arguments": {"x": text[: at * 97]}} for at in range(300)]
    return {"queues": entries, "é": "\U0001f600", "bindings": [{"a": 1}] * 50_000}


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("size", [4095, 1 << 20])
def test_a_body_in_pieces_is_decoded_as_a_whole_one(
    ascii_only: bool, indent: int | None, size: int
) -> None:
    document = long_document()
    body = json.dumps(document, ensure_ascii=ascii_only, indent=indent)
    assert len(body) > WINDOW_CHARS
    assert decode_pieces(body.encode("utf-8", "surrogatepass"), size) == document


@pytest.mark.parametrize("text", ["", " ", '{"a":[1,"é"]}', "17", "[]"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32-le"])
@pytest.mark.parametrize("size", [1, 3])
def test_a_short_body_in_pieces_is_decoded_too(text: str, encoding: str, size: int) -> None:
    if not text.strip() and encoding != "utf-8":
        return
    assert decode_pieces(text.encode(encoding), size) == (
        json.loads(text) if text.strip() else None
    )


def test_what_is_wrong_far_behind_is_told_with_its_place() -> None:
    body = json.dumps(long_document(), indent=2)
    lines = body.count("\n") + 1
    for wrong, reason in (
        (body[:-1] + ",}", f"not_json: a name in quotes should be at line {lines} column 2"),
        (body[:-2] + "\n}}", f"not_json: it should end at line {lines} column 2"),
        (body[:-1] + ',"x":1e999}', "x is a number that no broker can keep: it is too large"),
        (body[:-1] + ',"', f"not_json: Unterminated string starting at: line {lines} column 2"),
    ):
        with pytest.raises(BadRequest) as refused:
            decode_pieces(wrong.encode(), 70_000)
        assert refused.value.reason == reason


def test_a_string_without_end_is_not_collected() -> None:
    taken = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        yield b'{"a":"'
        while True:
            taken += 65_536
            yield b"x" * 65_536

    with pytest.raises(BadRequest, match="more than"):
        asyncio.run(decoded_stream(endless(), VALUES_MAX))
    assert taken < 3 * WINDOW_CHARS


def test_bytes_that_are_no_text_are_found_behind_the_first_piece() -> None:
    with pytest.raises(BadRequest, match=r"no UTF-8 at byte 10$"):
        decode_pieces(b'{"abcdef":\xff}', 4)
