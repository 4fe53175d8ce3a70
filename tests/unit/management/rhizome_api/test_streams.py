"""/api/rhizome/streams."""

from __future__ import annotations

from tests.unit.management.conftest import Api, Core


def fill(api: Api, name: str, count: int) -> None:
    for number in range(count):
        api.publish(name, f"m{number}")


def test_a_stream_is_declared_shown_and_deleted(api: Api) -> None:
    assert api.put("rhizome", "streams", "/", "s", arguments={"x-max-age": "1h"}).status == 201
    assert api.put("rhizome", "streams", "/", "s", arguments={"x-max-age": "1h"}).status == 204
    fill(api, "s", 5)
    row = api.get("rhizome", "streams", "/", "s").json
    assert (row["first"], row["next"], row["segments"]) == (0, 5, 1)
    assert row["arguments"] == {"x-max-age": "1h", "x-queue-type": "stream"}
    assert [one["next"] for one in row["segment_details"]] == [5]
    assert api.get("queues", "/", "s").json["type"] == "stream"
    assert api.get("queues", "/", "s").json["messages"] == 5
    assert api.delete("rhizome", "streams", "/", "s").status == 204
    assert api.get("rhizome", "streams", "/", "s").status == 404


def test_a_queue_is_no_stream(api: Api) -> None:
    api.put("queues", "/", "q", durable=True)
    assert api.get("rhizome", "streams", "/", "q").status == 404
    assert api.get("rhizome", "streams").json == []


def test_a_time_in_milliseconds_is_answered_with_an_offset(api: Api, core: Core) -> None:
    api.put("rhizome", "streams", "/", "s")
    for number in range(4):
        core.now_ms = 2_000_000 + number * 1000
        api.publish("s", f"m{number}")
    for asked, offset in ((0, 0), (2_000_000, 0), (2_000_001, 1), (2_002_500, 3), (9_000_000, 4)):
        row = api.get("rhizome", "streams", "/", "s", query=f"timestamp={asked}").json
        assert row["offset_at"] == offset
    assert (row["first_timestamp"], row["last_timestamp"]) == (2_000_000, 2_003_000)
    assert api.get("rhizome", "streams", "/", "s", query="timestamp=now").status == 400


def test_offsets_are_set_read_and_forgotten(api: Api) -> None:
    api.put("rhizome", "streams", "/", "s")
    fill(api, "s", 3)
    where = ("rhizome", "streams", "/", "s", "offsets")
    assert api.get(*where).json == {}
    assert api.get(*where, "job").status == 404
    assert api.put(*where, "job", offset=1).status == 204
    assert api.get(*where, "job").json == {"offset": 1}
    assert api.get("rhizome", "streams", "/", "s").json["offsets"] == {"job": 1}
    assert api.put(*where, "job", offset=-1).status == 400
    assert api.delete(*where, "job").status == 204
    assert api.delete(*where, "job").status == 404


def test_readers_are_shown_with_their_lag(api: Api, core: Core) -> None:
    api.put("rhizome", "streams", "/", "s")
    fill(api, "s", 5)
    where = ("rhizome", "streams", "/", "s", "offsets")
    api.put(*where, "job", offset=1)
    stream = core.broker.state.vhosts["/"].destinations["s"].stream  # type: ignore[attr-defined]
    stream.positions.tell(b"passing", 4, False, core.now_ms)
    rows = api.get("rhizome", "stream-readers").json
    assert [(row["name"], row["stream"], row["next"], row["lag"]) for row in rows] == [
        ("job", "s", 2, 3),
        ("passing", "s", 4, 1),
    ]
    assert [row["kept"] for row in rows] == [True, False]
    assert api.get("rhizome", "stream-readers", "/").json == rows
    assert api.get("rhizome", "streams", "/", "s").json["reader_details"] == rows
    assert api.get(*where).json == {"job": 1}
    assert api.delete(*where, "passing").status == 204
    assert len(api.get("rhizome", "stream-readers").json) == 1
    core.broker.limits.stream_readers_max = 1
    refused = api.put(*where, "more", offset=1)
    assert refused.status == 409
    assert "limits.stream_readers_max" in refused.json["reason"]


def test_a_partitioned_stream_is_one_name(api: Api) -> None:
    assert api.put("rhizome", "streams", "/", "p", partitions=3).status == 201
    assert api.put("rhizome", "streams", "/", "p", partitions=3).status == 204
    api.put("rhizome", "streams", "/", "alone")
    keys = [f"key {number}" for number in range(60)]
    for key in keys:
        answer = api.post(
            "exchanges",
            "/",
            "p",
            "publish",
            routing_key=key,
            payload=key,
            payload_encoding="string",
            properties={},
        )
        assert answer.json == {"routed": True}
    row = api.get("rhizome", "streams", "/", "p").json
    assert (row["kind"], row["partitions"], row["messages"]) == ("partitioned", 3, 60)
    assert [one["name"] for one in row["streams"]] == ["p-0", "p-1", "p-2"]
    assert all(one["messages"] >= 10 for one in row["streams"])
    found = [payload for number in range(3) for payload in api.payloads(f"p-{number}")]
    assert sorted(found) == sorted(keys)
    assert [one["name"] for one in api.get("rhizome", "streams").json] == ["alone", "p"]
    assert api.put("rhizome", "streams", "/", "p", partitions=2).status == 409
    assert api.put("rhizome", "streams", "/", "p", partitions=5000).status == 400
    assert api.delete("rhizome", "streams", "/", "p").status == 204
    assert [one["name"] for one in api.get("queues").json] == ["alone"]


def test_messages_of_a_stream_are_looked_at_by_their_place(api: Api) -> None:
    api.put("rhizome", "streams", "/", "s")
    fill(api, "s", 20)
    rows = api.browse("s", "offset=3&count=2")
    assert [(row["index"], row["payload"]) for row in rows] == [(3, "m3"), (4, "m4")]
    assert rows[0]["properties"] == {"headers": {"x-stream-offset": 3}}
    assert len(api.browse("s")) == 20


def test_taking_and_purging_are_refused(api: Api) -> None:
    api.put("rhizome", "streams", "/", "s")
    fill(api, "s", 1)
    refused = api.post("queues", "/", "s", "get", count=1, ackmode="ack_requeue_true")
    assert (refused.status, "basic.get not supported" in refused.reason) == (400, True)
    refused = api.delete("queues", "/", "s", "contents")
    assert (refused.status, "queue.purge not supported" in refused.reason) == (400, True)
    assert api.get("queues", "/", "s").json["messages"] == 1
