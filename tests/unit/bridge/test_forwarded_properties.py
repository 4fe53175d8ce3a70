"""What is added to messages and taken from them, and circles."""

from __future__ import annotations

from typing import Any, cast

import pytest

from rhizome.amqp.properties import Properties, encode_header
from rhizome.bridge.errors import MessageRefused
from rhizome.bridge.forwarded_properties import ForwardedProperties, ForwardingLoop
from rhizome.bridge.in_flight_window import Entry
from rhizome.bridge.message_ids import MessageIds, fingerprint
from rhizome.bridge.settings import BridgeSettings
from rhizome.client import Message

URI = "amqp://guest:guest@127.0.0.1/"


def message(body: bytes = b"", key: str = "key", **properties: Any) -> Message:
    header = encode_header(len(body), Properties(**properties))
    return Message(cast(Any, None), 1, "tag", False, "", key, header, body)


def passage(
    *, source: str = "a:/", destination: str = "b:/", **settings: Any
) -> ForwardedProperties:
    settings.setdefault("queue", "q")
    made = BridgeSettings("id", URI, URI, **settings)
    ids = MessageIds("id", "run", made.content_ids)
    passing = ForwardedProperties(made, ids, "guest")
    passing.source_place, passing.destination_place = source, destination
    return passing


def test_a_message_without_an_id_gets_one_and_keeps_it() -> None:
    passing = passage()
    first, second = Entry(message(b"same")), Entry(message(b"same"))
    given = passing.properties(first).message_id
    assert given == passing.properties(first).message_id
    assert given != passing.properties(second).message_id


def test_an_id_from_the_contents_is_the_same_in_the_next_run() -> None:
    runs = [passage(content_ids=True) for _ in range(2)]
    ids = [run.properties(Entry(message(b"body"))).message_id for run in runs]
    assert ids[0] == ids[1]
    assert ids[0] != runs[0].properties(Entry(message(b"other"))).message_id


def test_the_publishers_id_stays() -> None:
    assert passage().properties(Entry(message(message_id="mine"))).message_id == "mine"


def test_no_id_is_made_without_dedup() -> None:
    assert passage(dedup=False).properties(Entry(message())).message_id is None


def test_forward_headers_are_added_with_the_latest_first() -> None:
    forwarded: dict[str, object] = {"shovel-name": "s"}
    earlier = {"shovel-name": "r"}
    for before, wanted in (([], [forwarded]), ([earlier], [forwarded, earlier])):
        headers = {"x-shovelled": before} if before else {}
        made = passage(forwarded=forwarded).properties(Entry(message(headers=headers)))
        assert made.headers is not None
        assert made.headers["x-shovelled"] == wanted
    unmarked = passage().properties(Entry(message())).headers
    assert unmarked is not None
    assert "x-shovelled" not in unmarked


def test_places_are_added_in_order() -> None:
    headers = {"x-bridged": ["z:/"], "other": 1}
    made = passage().properties(Entry(message(headers=headers)))
    assert made.headers == {"x-bridged": ["z:/", "a:/"], "other": 1}


def test_a_message_is_not_sent_where_it_has_been() -> None:
    with pytest.raises(ForwardingLoop, match="b:/"):
        passage().properties(Entry(message(headers={"x-bridged": ["b:/"]})))


def test_a_message_passes_so_many_bridges_and_no_more() -> None:
    headers: dict[str, object] = {"x-bridged": ["x:/", "y:/"]}
    assert passage(hops_max=3).properties(Entry(message(headers=headers))).headers
    with pytest.raises(ForwardingLoop, match="raise max-hops"):
        passage(hops_max=2).properties(Entry(message(headers=headers)))


def test_within_one_place_nothing_is_counted() -> None:
    made = passage(destination="a:/").properties(Entry(message(headers={"x-bridged": ["a:/"]})))
    assert made.headers == {"x-bridged": ["a:/"]}
    assert passage(destination="a:/").properties(Entry(message())).headers is None


def test_a_strange_header_of_that_name_is_replaced() -> None:
    made = passage().properties(Entry(message(headers={"x-bridged": "text"})))
    assert made.headers == {"x-bridged": ["a:/"]}


def test_the_user_id_of_another_user_is_left_out() -> None:
    assert passage().properties(Entry(message(user_id="guest"))).user_id == "guest"
    assert passage().properties(Entry(message(user_id="app"))).user_id is None


def test_further_receivers_count_for_exchanges_only() -> None:
    headers: dict[str, object] = {"CC": ["x"], "BCC": ["y"]}
    to_queue = passage().properties(Entry(message(headers=headers))).headers
    to_exchange = passage(to_exchange="e").properties(Entry(message(headers=headers))).headers
    assert to_queue == {"x-bridged": ["a:/"]}
    assert to_exchange == {**headers, "x-bridged": ["a:/"]}


def test_properties_that_cannot_be_read_are_refused() -> None:
    broken = Message(cast(Any, None), 1, "tag", False, "", "q", b"\x00\x3c", b"")
    with pytest.raises(MessageRefused, match="can't be read"):
        passage().properties(Entry(broken))


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({}, "q"),
        ({"to_queue": "other"}, "other"),
        ({"to_exchange": "e"}, "key"),
        ({"to_exchange": "e", "to_key": ""}, ""),
        ({"to_exchange": "e", "to_key": "k"}, "k"),
        ({"queue": "", "exchange": "e"}, "key"),
    ],
)
def test_routing_keys(settings: dict[str, str], key: str) -> None:
    assert passage(**settings).routing_key(Entry(message())) == key


def test_fingerprints_tell_where_one_field_ends() -> None:
    header = encode_header(0, Properties())
    one = Message(cast(Any, None), 1, "tag", False, "ab", "c", header, b"")
    two = Message(cast(Any, None), 1, "tag", False, "a", "bc", header, b"")
    assert fingerprint(one) != fingerprint(two)
