"""Stores that are read through their brokers: addresses, ranges, pins, and brokers that die."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from rhizome.amqp.properties import Properties
from rhizome.client.blocking import Connection
from rhizome.journal.records import crc32c
from rhizome.spark import schema
from rhizome.spark.data_source_options import OptionError, Options
from rhizome.spark.journal.broker_stores import DiskStore, OpenStore, StorePlace
from rhizome.spark.journal.journal_source import OPTIONS, JournalReader
from rhizome.spark.journal.remote_broker_stores import (
    GONE,
    BrokerSilentError,
    JournalAccessError,
    JournalClient,
    PinEndedError,
    RemotePart,
    RemoteStore,
    _direct,
    http_addresses,
    read_part,
    stores_of,
)
from rhizome.testing.broker_process import BrokerProcess
from rhizome.testing.cluster_process import ClusterProcess

PERSISTENT = Properties(delivery_mode=2)
PATIENCE_S = 20.0


# --- addresses


@pytest.mark.parametrize(
    ("uri", "labels"),
    [
        ("http://u:p@b1", ["b1:15672"]),
        ("http://u:p@b1:5672,b2:8080", ["b1:5672", "b2:8080"]),
        ("https://u:p@b1,[::1]:9", ["b1:15671", "[::1]:9"]),
        ("amqp://u:p@b1:5673,b2/orders", ["b1:15672", "b2:15672"]),
        ("amqps://u:p@b1/?verify=verify_none", ["b1:15671"]),
    ],
)
def test_management_addresses_come_from_any_kind_of_uri(uri: str, labels: list[str]) -> None:
    found = http_addresses(uri)
    assert [each.label for each in found] == labels
    assert {(each.user, each.password) for each in found} == {("u", "p")}
    assert all((each.tls is not None) == uri.partition(":")[0].endswith("s") for each in found)


def test_wrong_uri_is_told_without_its_password() -> None:
    with pytest.raises(OptionError) as error:
        http_addresses("http://u:geheim@b1:notaport")
    assert "geheim" not in str(error.value)


def test_loopback_address_of_another_machine_gets_no_password() -> None:
    far = http_addresses("http://u:p@192.0.2.1")
    near = http_addresses("http://u:p@127.0.0.1")
    urls = ["http://127.0.0.1:15672", "http://[::1]:15672", "http://192.0.2.7:15672"]
    assert [each.label for each in _direct(far, urls)] == ["192.0.2.7:15672"]
    assert len(_direct(near, urls)) == 3
    assert _direct(near, ["https://127.0.0.1:15671"]) == [], "nobody said how to check it"


def test_password_is_not_in_what_is_shown() -> None:
    place = StorePlace("", "http://u:geheim@b1")
    assert "geheim" not in repr(place)
    assert "geheim" not in repr(http_addresses(place.uri))


# --- a broker that answers as a test says


Answers = Callable[[str], tuple[int, bytes, dict[str, str]]]


@pytest.fixture
def serve() -> Iterator[Callable[[Answers], JournalClient]]:
    servers: list[ThreadingHTTPServer] = []

    def start(answers: Answers) -> JournalClient:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                status, body, headers = answers(self.path)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        address = http_addresses(f"http://u:geheim@127.0.0.1:{server.server_port}")
        return JournalClient(address, PATIENCE_S)

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def ranged(data: bytes, path: str) -> bytes:
    query = dict(pair.split("=") for pair in path.partition("?")[2].split("&"))
    start = int(query["from"])
    return data[start : start + int(query["bytes"])]


def checked(data: bytes) -> dict[str, str]:
    return {"x-rhizome-crc32c": f"{crc32c(data):08x}"}


def part(size: int) -> RemotePart:
    return RemotePart("segment-1", "segment", 1, 0, size, size, False)


def test_range_that_arrives_changed_or_short_is_asked_for_again(
    serve: Callable[[Answers], JournalClient],
) -> None:
    data = bytes(range(256)) * 20
    asked: list[str] = []

    def answers(path: str) -> tuple[int, bytes, dict[str, str]]:
        asked.append(path)
        found = ranged(data, path)
        if len(asked) == 1:
            return 200, found[:-1] + b"?", checked(found)
        if len(asked) == 2:
            return 200, found[:-1], checked(found[:-1])
        return 200, found, checked(found)

    assert read_part(serve(answers), "/p", part(len(data)), 100, 1 << 30) == data[100:]
    assert len(asked) == 3


def test_broker_that_is_busy_is_asked_again(serve: Callable[[Answers], JournalClient]) -> None:
    asked: list[str] = []

    def answers(path: str) -> tuple[int, bytes, dict[str, str]]:
        asked.append(path)
        if len(asked) < 3:
            return 503, json.dumps({"reason": "try again"}).encode(), {}
        return 200, b"x", checked(b"x")

    assert read_part(serve(answers), "/p", part(1), 0, 1) == b"x"


def test_refusal_is_told_with_its_reason_at_once(
    serve: Callable[[Answers], JournalClient],
) -> None:
    body = json.dumps({"reason": "Not auditor or administrator user"}).encode()
    with pytest.raises(JournalAccessError, match="user 'u': Not auditor") as error:
        serve(lambda path: (401, body, {})).document("GET", "/x")
    assert "geheim" not in str(error.value)


def test_pin_that_has_ended_is_told_as_gone(serve: Callable[[Answers], JournalClient]) -> None:
    body = json.dumps({"reason": "there is no such pin"}).encode()
    client = serve(lambda path: (404, body, {}))
    with pytest.raises(PinEndedError, match=GONE):
        client.range_of("/api/rhizome/journals/b1/pins/p/segment-1", 0, 1)


def test_silent_broker_is_named() -> None:
    client = JournalClient(http_addresses("http://u:geheim@127.0.0.1:1"), 0.2)
    with pytest.raises(BrokerSilentError, match=r"127\.0\.0\.1:1, tried for 0\.2 s") as error:
        client.document("GET", "/x")
    assert "geheim" not in str(error.value)


def test_client_goes_on_at_another_address_and_stays_there(
    serve: Callable[[Answers], JournalClient],
) -> None:
    client = serve(lambda path: (200, b"{}", {}))
    dead = http_addresses("http://u:p@127.0.0.1:1")
    client = JournalClient([*dead, *client.addresses], PATIENCE_S)
    assert client.document("GET", "/x") == {}
    assert pickle.loads(pickle.dumps(client))._at == 1


# --- real brokers


def published(uri: str, queue: str, count: int, size: int = 100) -> None:
    with Connection(uri) as connection:
        channel = connection.channel(confirms=True)
        channel.declare_queue(queue, durable=True)
        bodies = [b"message %d " % number + b"x" * size for number in range(count)]
        channel.publish_many(bodies, routing_key=queue, properties=PERSISTENT)


def place_of(broker: BrokerProcess) -> StorePlace:
    return StorePlace("", f"http://guest:guest@127.0.0.1:{broker.http_port}")


def reader_of(**options: str) -> JournalReader:
    return JournalReader(schema.journal(), Options(options, OPTIONS, "rhizome.journal"))


def rows_of(reader: JournalReader) -> list[dict[str, Any]]:
    reader = pickle.loads(pickle.dumps(reader))
    parts = pickle.loads(pickle.dumps(reader.partitions()))
    batches = (batch for each in parts for batch in reader.read(each))
    return [row for batch in batches for row in batch.to_pylist()]


def test_rows_of_a_running_broker_are_those_on_its_disk(own_broker: BrokerProcess) -> None:
    published(own_broker.url, "orders", 500)
    uri = place_of(own_broker).uri
    there = rows_of(reader_of(uri=uri, checkpoints="true", queue="orders"))
    here = rows_of(reader_of(path=str(own_broker.data), checkpoints="true", queue="orders"))
    assert len(there) == 500
    assert {row.pop("store") for row in there} == {"rhizome"}
    for row in here:
        row.pop("store")
    assert there == here
    (store,) = stores_of(StorePlace("", uri), PATIENCE_S)
    assert len(store.client.document("GET", f"{store.path}/pins")) == 1, "until it is not read"


def test_what_is_published_after_the_plan_is_not_read(own_broker: BrokerProcess) -> None:
    published(own_broker.url, "orders", 50)
    reader = reader_of(uri=place_of(own_broker).uri, events="enqueued")
    partitions = reader.partitions()
    published(own_broker.url, "orders", 50)
    found = [row for each in partitions for batch in reader.read(each) for row in batch.to_pylist()]
    assert len(found) == 50


def test_user_without_the_tag_is_told_what_it_takes(own_broker: BrokerProcess) -> None:
    api = JournalClient(http_addresses(place_of(own_broker).uri), PATIENCE_S)
    assert api.document("GET", "/api/whoami")["name"] == "guest"
    with pytest.raises(JournalAccessError, match="Login failed"):
        stores_of(StorePlace("", f"http://eve:x@127.0.0.1:{own_broker.http_port}"), PATIENCE_S)


def test_unknown_broker_is_told_with_those_that_there_are(own_broker: BrokerProcess) -> None:
    with pytest.raises(OptionError, match="no broker 'b7'; the cluster has rhizome"):
        reader_of(uri=place_of(own_broker).uri, brokers="b7")


def test_restarted_broker_has_lost_its_pins_and_a_dead_one_is_named(
    own_broker: BrokerProcess,
) -> None:
    published(own_broker.url, "orders", 50)
    place = place_of(own_broker)
    given = {"uri": place.uri, "readTimeout": "2"}
    reader = reader_of(**given)
    partitions = reader.partitions()
    own_broker.kill()
    with pytest.raises(BrokerSilentError, match=f"127.0.0.1:{own_broker.http_port}"):
        list(reader.read(partitions[0]))
    own_broker.start()
    with pytest.raises(PinEndedError, match=GONE):
        list(reader.read(partitions[0]))
    assert not list((own_broker.data / "pins").glob("*"))
    assert len(rows_of(reader_of(uri=place.uri, events="enqueued"))) == 50


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    cluster = ClusterProcess(tmp_path_factory.mktemp("remote"), primaries=3, seed=7)
    cluster.start()
    yield cluster
    cluster.kill()


def test_all_brokers_are_found_from_one_and_read_themselves_or_through_it(
    cluster: ClusterProcess,
) -> None:
    published(cluster.url, "orders", 100)
    first = cluster.brokers["b1"]
    found = stores_of(place_of(first), PATIENCE_S)
    assert [store.label for store in found] == ["b1", "b2", "b3"]
    for store in found:
        own = cluster.brokers[store.label]
        assert store.client.addresses[0].port == own.http_port
        relayed = RemoteStore(store.label, JournalClient(http_addresses(place_of(first).uri), 20))
        for each in (store, relayed):
            assert journal_of(each) == journal_of(DiskStore(own.data), journal_of(each))
            state = each.state()
            assert state.broker == store.label
            assert "orders" in state.names.queues.values()
            # Copies may come into sync, and homes move, between one answer and the next.
            assert state.groups.keys() == found[0].state().groups.keys()
            each.close()


def journal_of(store: OpenStore, limit: bytes = b"") -> bytes:
    """The bytes of a journal, as many as another has."""
    (segments,) = store.segments(history=False)
    files = segments.files()
    data = b"".join(files.read(each, 0, files.size(each)) for each in files.segments())
    return data[: len(limit)] if limit else data


def test_broker_that_is_away_is_named(cluster: ClusterProcess) -> None:
    cluster.brokers["b3"].kill()
    try:
        with pytest.raises(Exception, match="broker 'b3' can't be reached"):
            stores_of(place_of(cluster.brokers["b1"]), PATIENCE_S)
        named = StorePlace("", place_of(cluster.brokers["b1"]).uri, "b1,b2")
        assert [store.label for store in stores_of(named, PATIENCE_S)] == ["b1", "b2"]
    finally:
        cluster.brokers["b3"].start()
        cluster.wait_until_whole()
