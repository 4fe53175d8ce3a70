"""Dead letters: x-death, cycles, CC and BCC."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhizome.amqp.field_table import Timestamp, check_table, encode_table
from rhizome.amqp.frames import body_of, content_frames, frame, header_payload_of
from rhizome.amqp.properties import Properties, decode_properties, encode_header
from rhizome.broker.dead_letters.dead_letter_headers import (
    cc_keys,
    claimed_deaths,
    dead_letter,
    is_cycle,
    strip_bcc,
)
from rhizome.errors import AmqpError, PreconditionFailed, SyntaxErrorFault

Headers = dict[str, object]


def content_of(properties: Properties, body: bytes = b"hello") -> bytes:
    return content_frames(5, encode_header(len(body), properties), body, 12)


def with_headers(headers: Headers) -> bytes:
    return content_of(Properties(headers=headers))


def with_table(table: bytes) -> bytes:
    """A content with these bytes as its headers."""
    header = encode_header(0, Properties(headers={}))
    return content_frames(5, header[:-4] + len(table).to_bytes(4, "big") + table, b"", 12)


def headers_of(content: bytes) -> Headers:
    return decode_properties(header_payload_of(content)).headers or {}


def die(
    content: bytes,
    queue: str = "q",
    reason: str = "expired",
    time_s: int = 1000,
    drop_cc: bool = False,
) -> bytes:
    return dead_letter(content, "e", ["k"], queue, reason, time_s, drop_cc)


def deaths(content: bytes) -> list[tuple[object, object, object]]:
    found = []
    entries = headers_of(content)["x-death"]
    assert isinstance(entries, list)
    for entry in entries:
        assert isinstance(entry, dict)
        found.append((entry["queue"], entry["reason"], entry["count"]))
    return found


def test_deaths_that_a_client_wrote_are_marked_once() -> None:
    told: list[object] = [{"queue": "a", "claimed": False}, "b", [{"queue": "c"}], {}]
    before = with_headers({"a": 1, "x-death": told, "z": None})
    marked = claimed_deaths(before)
    assert headers_of(marked) == {
        "a": 1,
        "x-death": [{"claimed": True, "queue": "a"}, "b", [{"queue": "c"}], {"claimed": True}],
        "z": None,
    }
    assert claimed_deaths(marked) == marked
    assert body_of(marked) == body_of(before)


@pytest.mark.parametrize("deaths", ["text", 5, {"queue": "a"}, None])
def test_an_x_death_without_entries_is_not_marked(deaths: object) -> None:
    content = with_headers({"x-death": deaths})
    assert claimed_deaths(content) == content


def test_each_of_two_headers_of_one_name_is_marked() -> None:
    one = encode_table({"x-death": [{"queue": "a"}]})[4:]
    marked = claimed_deaths(with_table(one + one))
    assert marked.count(b"\x07claimedt\x01") == 2


def test_a_death_that_was_claimed_and_is_real_now_says_what_the_broker_saw() -> None:
    claim = {"queue": "q", "reason": "expired", "exchange": "bank", "routing-keys": ["paid"]}
    died = die(claimed_deaths(with_headers({"x-death": [{"queue": "a", "count": 1}, claim]})))
    found = headers_of(died)["x-death"]
    assert found == [
        {
            "count": 2,
            "exchange": "e",
            "queue": "q",
            "reason": "expired",
            "routing-keys": ["k"],
            "time": Timestamp(1000),
        },
        {"claimed": True, "queue": "a", "count": 1},
    ]


def test_first_death_is_written_in_full() -> None:
    dead = die(content_of(Properties()))
    assert headers_of(dead) == {
        "x-first-death-exchange": "e",
        "x-first-death-queue": "q",
        "x-first-death-reason": "expired",
        "x-death": [
            {
                "count": 1,
                "exchange": "e",
                "queue": "q",
                "reason": "expired",
                "routing-keys": ["k"],
                "time": Timestamp(1000),
            }
        ],
    }
    assert body_of(dead) == b"hello"


def test_first_death_has_these_bytes() -> None:
    dead = die(content_of(Properties(), b""))
    entry = (
        b"\x05countl\x00\x00\x00\x00\x00\x00\x00\x01"
        b"\x08exchangeS\x00\x00\x00\x01e"
        b"\x05queueS\x00\x00\x00\x01q"
        b"\x06reasonS\x00\x00\x00\x07expired"
        b"\x0crouting-keysA\x00\x00\x00\x06S\x00\x00\x00\x01k"
        b"\x04timeT\x00\x00\x00\x00\x00\x00\x03\xe8"
    )
    table = (
        b"\x16x-first-death-exchangeS\x00\x00\x00\x01e"
        b"\x13x-first-death-queueS\x00\x00\x00\x01q"
        b"\x14x-first-death-reasonS\x00\x00\x00\x07expired"
        b"\x07x-deathA"
        + (len(entry) + 5).to_bytes(4, "big")
        + b"F"
        + len(entry).to_bytes(4, "big")
        + entry
    )
    payload = b"\x00\x3c\x00\x00" + bytes(8) + b"\x20\x00" + len(table).to_bytes(4, "big") + table
    assert dead == frame(2, 5, payload)


def test_second_death_elsewhere_goes_to_the_front() -> None:
    dead = die(die(with_headers({}), "a", "expired"), "b", "rejected", 2000)
    assert deaths(dead) == [("b", "rejected", 1), ("a", "expired", 1)]
    assert headers_of(dead)["x-first-death-queue"] == "a"


def test_same_death_again_is_counted_and_moved_to_the_front() -> None:
    dead = with_headers({})
    for queue in ("a", "b", "a"):
        dead = die(dead, queue, "expired", 1000 if queue == "a" else 2000)
    dead = die(dead, "b", "maxlen")
    assert deaths(dead) == [("b", "maxlen", 1), ("a", "expired", 2), ("b", "expired", 1)]
    dead = die(dead, "a", "expired", 9999)
    assert deaths(dead)[0] == ("a", "expired", 3)
    entries = headers_of(dead)["x-death"]
    assert isinstance(entries, list)
    assert entries[0]["time"] == Timestamp(1000)


def test_expiration_goes_and_is_remembered() -> None:
    properties = Properties(content_type="t", expiration="500", message_id="m", app_id="a")
    dead = die(content_of(properties), reason="expired")
    found = decode_properties(header_payload_of(dead))
    assert found.expiration is None
    assert (found.content_type, found.message_id, found.app_id) == ("t", "m", "a")
    assert found.headers is not None
    entries = found.headers["x-death"]
    assert isinstance(entries, list)
    assert entries[0]["original-expiration"] == "500"


def test_other_headers_and_properties_stay_byte_for_byte() -> None:
    # A short, a repeated name, a float of 32 bits: nothing that encoding again would give.
    table = b"\x01as\x00\x01\x01af\x3f\x80\x00\x00\x01bV"
    properties = b"\x03abc" + len(table).to_bytes(4, "big") + table + b"\x02\x01i" + b"junk"
    payload = b"\x00\x3c\x00\x00" + (2).to_bytes(8, "big") + b"\xb4\x00" + properties
    content = frame(2, 9, payload) + frame(3, 9, b"x") + frame(3, 9, b"y")
    dead = die(content)
    header = header_payload_of(dead)
    assert header[:18] == payload[:18]
    assert header[22 : 22 + len(table)] == table
    assert header.endswith(b"\x02\x01ijunk")
    assert dead.endswith(frame(3, 9, b"x") + frame(3, 9, b"y"))
    assert dead[1:3] == b"\x00\x09"


def test_keys_of_the_cc_header_are_among_the_routing_keys() -> None:
    dead = die(with_headers({"CC": ["x", "y", "k"]}))
    entries = headers_of(dead)["x-death"]
    assert isinstance(entries, list)
    assert entries[0]["routing-keys"] == ["k", "x", "y"]
    assert headers_of(dead)["CC"] == ["x", "y", "k"]


def test_cc_header_goes_if_the_queue_sets_a_key() -> None:
    dead = die(with_headers({"CC": ["x"], "z": 1}), drop_cc=True)
    assert "CC" not in headers_of(dead)
    assert headers_of(dead)["z"] == 1


@pytest.mark.parametrize("junk", ["text", 5, None, {"a": 1}])
def test_x_death_that_is_no_array_starts_afresh(junk: object) -> None:
    dead = die(with_headers({"x-death": junk}))
    assert deaths(dead) == [("q", "expired", 1)]
    assert "x-first-death-queue" not in headers_of(dead)


def test_entries_that_a_client_made_up_are_kept() -> None:
    dead = die(
        with_headers({"x-death": ["text", {"queue": 5}, {"queue": "q", "reason": "expired"}]})
    )
    entries = headers_of(dead)["x-death"]
    assert entries == [{"count": 2, "queue": "q", "reason": "expired"}, "text", {"queue": 5}]


@pytest.mark.parametrize("count", [2**63 - 1, -5, "3", True])
def test_count_that_a_client_made_up_starts_afresh(count: object) -> None:
    entry = {"queue": "q", "count": count, "reason": "expired"}
    assert deaths(die(with_headers({"x-death": [entry]}))) == [("q", "expired", 1)]


def test_garbled_x_death_starts_afresh() -> None:
    table = b"\x07x-deathA\x00\x00\x00\x02zz"
    payload = b"\x00\x3c\x00\x00" + bytes(8) + b"\x20\x00" + len(table).to_bytes(4, "big") + table
    content = frame(2, 1, payload)
    assert not is_cycle(content, "q")
    assert deaths(die(content)) == [("q", "expired", 1)]


# --- cycles


def test_queue_that_a_message_died_in_is_a_cycle() -> None:
    dead = die(die(with_headers({}), "a", "expired"), "b", "maxlen")
    assert is_cycle(dead, "a")
    assert is_cycle(dead, "b")
    assert not is_cycle(dead, "c")


def test_rejection_breaks_the_cycle() -> None:
    dead = die(die(with_headers({}), "a", "expired"), "b", "rejected")
    assert not is_cycle(dead, "a")
    assert not is_cycle(dead, "b")


def test_rejection_before_the_cycle_does_not_break_it() -> None:
    dead = die(die(with_headers({}), "a", "rejected"), "b", "expired")
    assert is_cycle(dead, "b")
    assert not is_cycle(dead, "a")


def test_message_that_never_died_is_in_no_cycle() -> None:
    assert not is_cycle(content_of(Properties()), "q")
    assert not is_cycle(with_headers({"x-death": "text"}), "q")


def test_entry_of_a_client_makes_it_no_cycle() -> None:
    entries = ["text", {"queue": "q", "reason": "expired"}]
    assert not is_cycle(with_headers({"x-death": entries}), "q")


# --- CC and BCC


def test_keys_of_cc_come_before_those_of_bcc() -> None:
    content = with_headers({"BCC": ["c"], "x": 1, "CC": ["a", 5, "b"]})
    assert cc_keys(content) == ["a", "b", "c"]
    assert cc_keys(content_of(Properties())) == []
    assert cc_keys(with_headers({})) == []


def test_bcc_is_hidden_from_consumers() -> None:
    content = with_headers({"BCC": ["c"], "CC": ["a"], "x": 1})
    assert headers_of(strip_bcc(content)) == {"CC": ["a"], "x": 1}
    assert body_of(strip_bcc(content)) == b"hello"
    plain = with_headers({"CC": ["a"]})
    assert strip_bcc(plain) is plain
    timed = content_of(Properties(headers={"BCC": []}, expiration="5"))
    assert decode_properties(header_payload_of(strip_bcc(timed))).expiration == "5"


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [("CC", 5, "signedint"), ("BCC", "a", "longstr"), ("CC", None, "void")],
)
def test_cc_that_is_no_array_is_refused(name: str, value: object, kind: str) -> None:
    with pytest.raises(PreconditionFailed) as caught:
        cc_keys(with_headers({name: value}))
    assert caught.value.text == (
        f'invalid message: {{unacceptable_type_in_header,"{name}",{kind}}}'
    )
    assert (caught.value.class_id, caught.value.method_id) == (60, 40)


def test_garbled_headers_are_found_even_after_cc_and_bcc() -> None:
    table = encode_table({"CC": ["a"], "BCC": ["b"]})[4:] + b"\x01"
    payload = b"\x00\x3c\x00\x00" + bytes(8) + b"\x20\x00" + len(table).to_bytes(4, "big") + table
    with pytest.raises(SyntaxErrorFault) as caught:
        cc_keys(frame(2, 1, payload))
    assert (caught.value.class_id, caught.value.method_id) == (60, 40)


names = st.sampled_from(["claimed", "CC", "BCC", "x-death", "count", "queue", "reason", "z"])
values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-5, 5), st.sampled_from(["q", "expired", "rejected"])
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(names, values, max_size=4))
def test_whatever_a_client_sends_can_die_or_is_refused_when_published(headers: Headers) -> None:
    content = with_headers(headers)
    try:
        cc_keys(content)
    except PreconditionFailed:
        return
    dead = die(die(claimed_deaths(strip_bcc(content))), "b", "maxlen")
    assert is_cycle(dead, "b")
    others = {name: value for name, value in headers.items() if name not in ("x-death", "BCC")}
    assert {name: headers_of(dead)[name] for name in others} == others
    assert body_of(dead) == b"hello"


@given(st.binary(max_size=60))
def test_random_headers_that_can_be_published_can_die(table: bytes) -> None:
    payload = b"\x00\x3c\x00\x00" + bytes(8) + b"\x20\x00" + len(table).to_bytes(4, "big") + table
    content = frame(2, 1, payload)
    try:
        check_table(payload, 18, len(payload))
        cc_keys(content)
    except AmqpError:
        return
    assert is_cycle(die(claimed_deaths(strip_bcc(content))), "q")
