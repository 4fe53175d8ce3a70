"""The command `rhizome` against a real broker, as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from rhizome.client import blocking
from rhizome.errors import ConnectionForced, NotFound
from rhizome.testing.broker_process import wait_until

Unique = Callable[[str], str]
SECONDS_MAX = 120

# A test run that was started in the background ignores SIGINT, and so would its children.
HEED_INTERRUPTS = ("env", "--default-signal=INT")


class Command:
    """Runs `rhizome ...` against one broker."""

    def __init__(self, broker: Any) -> None:
        self.broker = broker

    def run(self, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*HEED_INTERRUPTS, sys.executable, "-m", "rhizome", *arguments],
            input=given,
            capture_output=True,
            timeout=SECONDS_MAX,
            check=False,
        )

    def amqp(self, *arguments: str, given: bytes = b"") -> str:
        """A command that talks AMQP; must succeed."""
        return self._succeed(*arguments, "--uri", self.broker.url, given=given)

    def http(self, *arguments: str) -> str:
        """A command that talks to the HTTP API; must succeed."""
        return self._succeed(*arguments, *self.where())

    def where(self) -> list[str]:
        address = f"{self.broker.host}:{self.broker.http_port}"
        login = ["--user", self.broker.user, "--password", self.broker.password]
        return ["--http", address, *login]

    def _succeed(self, *arguments: str, given: bytes = b"") -> str:
        done = self.run(*arguments, given=given)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()


@pytest.fixture
def command(broker: Any) -> Command:
    return Command(broker)


@pytest.fixture
def queue(broker: Any, unique: Unique) -> Any:
    """A durable queue of the test's own."""
    name = unique("q")
    with blocking.Connection(broker.url) as connection, connection.channel() as channel:
        channel.declare_queue(name, durable=True)
        yield name
        channel.delete_queue(name)


# --- messages


def test_lines_of_the_standard_input_are_published_and_consumed(
    command: Command, queue: str
) -> None:
    command.amqp("publish", "--key", queue, "--confirm", given=b"one\ntwo\n\nfour")
    assert command.amqp("consume", queue, "--count", "4") == "one\ntwo\n\nfour\n"
    assert command.amqp("consume", queue, "--timeout", "0.2") == ""


def test_a_line_is_sent_before_the_next_one_comes(command: Command, queue: str) -> None:
    arguments = ["publish", "--key", queue, "--uri", command.broker.url]
    with (
        blocking.Connection(command.broker.url) as connection,
        connection.channel() as channel,
        subprocess.Popen(
            [*HEED_INTERRUPTS, sys.executable, "-m", "rhizome", *arguments],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process,
        channel.consume(queue, no_ack=True, timeout_s=SECONDS_MAX) as messages,
    ):
        assert process.stdin is not None
        for line in (b"first", b"second"):
            process.stdin.write(line + b"\n")
            process.stdin.flush()
            assert next(messages).body == line
            assert process.poll() is None
        process.stdin.close()
        assert process.wait(SECONDS_MAX) == 0


def test_ctrl_c_ends_publish_though_its_input_stays_open(command: Command, queue: str) -> None:
    arguments = ["publish", "--key", queue, "--uri", command.broker.url]
    with (
        blocking.Connection(command.broker.url) as connection,
        connection.channel() as channel,
        subprocess.Popen(
            [*HEED_INTERRUPTS, sys.executable, "-m", "rhizome", *arguments],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process,
        channel.consume(queue, no_ack=True, timeout_s=SECONDS_MAX) as messages,
    ):
        assert process.stdin is not None
        process.stdin.write(b"sent\n")
        process.stdin.flush()
        assert next(messages).body == b"sent"
        process.send_signal(signal.SIGINT)
        try:
            code = process.wait(SECONDS_MAX)
        finally:
            process.kill()
        assert process.stderr is not None
        assert (code, b"Traceback" in process.stderr.read()) == (130, False)


def test_consumed_json_has_headers_and_properties(command: Command, queue: str) -> None:
    command.amqp(
        *("publish", "--key", queue, "--body", "hello", "--persistent", "--confirm"),
        *("--header", "a=b", "--header", "n:=[1]", "--content-type", "text/plain"),
    )
    document = json.loads(command.amqp("consume", queue, "--count", "1", "--format", "json"))
    assert document["payload"] == "hello"
    assert document["routing_key"] == queue
    assert document["properties"] == {
        "content_type": "text/plain",
        "delivery_mode": 2,
        "headers": {"a": "b", "n": [1]},
    }


def test_properties_are_sent_and_wrong_ones_refused(command: Command, queue: str) -> None:
    properties = {"priority": 7, "expiration": "60000", "message_id": "a=b"}
    given = [f"--property={name}={value}" for name, value in properties.items()]
    command.amqp("publish", queue, "hello", *given)
    document = json.loads(command.amqp("consume", queue, "--count", "1", "--json"))
    assert document["properties"] == properties
    for wrong, said in (("colour=red", b"there are priority,"), ("priority=high", b"0 to 255")):
        done = command.run("publish", queue, "x", "--property", wrong, "--uri", command.broker.url)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_a_vhost_may_be_named_beside_the_uri(command: Command, unique: Unique) -> None:
    vhost, name = unique("shop/1"), "orders"
    command.http("vhost", "add", vhost)
    try:
        command.http("queue", "declare", name, "--vhost", vhost)
        command.amqp("publish", name, "hello", "--vhost", vhost, "--mandatory")
        assert command.amqp("consume", name, "--count", "1", "--vhost", vhost) == "hello\n"
    finally:
        command.http("vhost", "delete", vhost, "--yes")


def test_somebody_at_a_terminal_is_told_that_a_queue_is_empty(command: Command, queue: str) -> None:
    ours, theirs = os.openpty()
    arguments = ["consume", queue, "--uri", command.broker.url]
    with subprocess.Popen(
        [*HEED_INTERRUPTS, sys.executable, "-m", "rhizome", *arguments], stderr=theirs
    ) as process:
        try:
            assert b"nothing is there yet" in os.read(ours, 1000)
        finally:
            process.send_signal(signal.SIGINT)
            os.close(theirs)
    os.close(ours)


def test_the_password_of_a_new_user_is_asked_for_twice(command: Command, unique: Unique) -> None:
    name = unique("ann")
    ours, theirs = os.openpty()
    arguments = [sys.executable, "-m", "rhizome", "user", "add", name, *command.where()]
    # Of a session of its own, so that it can't ask the terminal of these tests.
    with subprocess.Popen(
        arguments,
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        for prompt in (b"Password of", b"Repeat"):
            shown = b""
            # The blank comes when the echo is off, and what was typed before is dropped.
            while not (prompt in shown and shown.endswith(b": ")):
                byte = process.stdout.read(1)
                assert byte, f"ended after {shown!r}"
                shown += byte
            os.write(ours, b"secret\n")
        assert process.wait(SECONDS_MAX) == 0
    command.http("user", "delete", name)
    os.close(ours)
    os.close(theirs)


def test_publish_takes_queue_and_body_as_arguments(command: Command, queue: str) -> None:
    command.amqp("publish", queue, "hello")
    assert command.amqp("consume", queue, "--count", "1") == "hello\n"


def test_publish_says_that_messages_reached_no_queue(command: Command) -> None:
    done = command.run("publish", "no-such-queue", "x", "-n", "3", "--uri", command.broker.url)
    assert done.returncode == 0
    assert done.stderr.decode().splitlines() == [
        "published and confirmed 3 messages",
        "3 of them reached no queue: there is no queue 'no-such-queue'",
    ]
    given = ("--exchange", "amq.topic", "--key", "nobody.listens", "--body", "x", "--json")
    told = json.loads(command.amqp("publish", *given))
    assert told == {"published": 1, "confirmed": 1, "reached_no_queue": 1, "levels": {}}


def test_consume_without_ack_leaves_the_messages(command: Command, queue: str) -> None:
    command.amqp("publish", "--key", queue, "--body", "x", "--count", "3", "--confirm")
    assert command.amqp("consume", queue, "--no-ack", "--count", "3") == "x\n" * 3
    assert command.amqp("consume", queue, "--count", "3", "--format", "hex") == "78\n" * 3


def test_consume_with_a_count_takes_no_more_than_that(command: Command, queue: str) -> None:
    command.amqp("publish", "--key", queue, given=b"a\nb\nc\n")
    assert command.amqp("consume", queue, "--count", "1", "--json")
    left = json.loads(command.amqp("consume", queue, "--count", "1", "--format", "json"))
    assert (left["payload"], left["redelivered"]) == ("b", False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["consume", "no-such-queue"], "404 NOT_FOUND - no queue 'no-such-queue'"),
        (["publish", "--mandatory", "--key", "no-such-queue", "--body", "x"], "312 NO_ROUTE"),
        (["publish", "--exchange", "no-such", "--confirm", "--body", "x"], "404 NOT_FOUND"),
    ],
)
def test_what_the_broker_refuses_is_told_in_one_line(
    command: Command, arguments: list[str], said: str
) -> None:
    done = command.run(*arguments, "--uri", command.broker.url)
    assert done.returncode == 1
    assert done.stderr.decode().startswith("error: ")
    assert said in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


def test_ctrl_c_ends_consume_without_a_traceback(command: Command, queue: str) -> None:
    command.amqp("publish", "--key", queue, "--body", "seen", "--confirm")
    arguments = [*HEED_INTERRUPTS, sys.executable, "-m", "rhizome", "consume", queue]
    arguments += ["--uri", command.broker.url]
    with subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"seen\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=SECONDS_MAX)
        assert process.returncode == 130
        assert b"Traceback" not in errors


@pytest.mark.rhizome_only
def test_browse_shows_messages_and_changes_nothing(command: Command, queue: str) -> None:
    command.amqp("publish", "--key", queue, "--confirm", given=b"one\ntwo\nthree\n")
    first = json.loads(command.http("browse", queue, "--json"))
    assert [message["payload"] for message in first] == ["one", "two", "three"]
    assert json.loads(command.http("browse", queue, "--json")) == first
    two = json.loads(command.http("browse", queue, "--count", "1", "--offset", "1", "--json"))
    assert [message["payload"] for message in two] == ["two"]
    consumed = json.loads(command.amqp("consume", queue, "--count", "1", "--format", "json"))
    assert (consumed["payload"], consumed["redelivered"]) == ("one", False)


# --- the HTTP API


@pytest.mark.rhizome_only
def test_status_says_that_the_broker_is_there(command: Command) -> None:
    assert json.loads(command.http("status", "--json"))
    assert command.http("status").strip()


def test_queues_can_be_declared_shown_purged_and_deleted(command: Command, unique: Unique) -> None:
    name = unique("http")
    command.http("queue", "declare", name, "--argument", "x-max-length=5")
    command.amqp("publish", "--key", name, "--body", "x", "--count", "2", "--confirm")
    shown = json.loads(command.http("queue", "show", name, "--json"))
    assert shown["arguments"] == {"x-max-length": 5}
    assert name in [each["name"] for each in json.loads(command.http("queue", "list", "--json"))]
    assert name in command.http("queue", "list", "--vhost", "/")
    command.http("queue", "purge", name)
    assert command.amqp("consume", name, "--timeout", "0.2") == ""
    command.http("queue", "delete", name)
    done = command.run("queue", "show", name, *command.where())
    assert done.returncode == 1
    assert b"there is no queue" in done.stderr


def test_exchanges_are_listed(command: Command) -> None:
    names = [each["name"] for each in json.loads(command.http("exchange", "list", "--json"))]
    assert {"", "amq.direct", "amq.topic"} <= set(names)


@pytest.mark.rhizome_only
def test_a_connection_is_listed_at_once_and_can_be_closed(command: Command) -> None:
    broker = command.broker
    with blocking.Connection(broker.url, name="to be closed") as connection:
        listed = json.loads(command.http("connection", "list", "--json"))
        ours = [
            each["name"]
            for each in listed
            if each["client_properties"].get("connection_name") == "to be closed"
        ]
        assert len(ours) == 1
        command.http("connection", "close", ours[0], "--reason", "maintenance")
        with pytest.raises(ConnectionForced, match="maintenance"):
            _use_until_it_fails(connection)


def _use_until_it_fails(connection: blocking.Connection) -> None:
    while True:
        connection.channel().close()


def test_users_can_be_added_permitted_and_deleted(
    command: Command, unique: Unique, queue: str
) -> None:
    name = unique("user")[:60]
    command.http("user", "add", name, "--new-password", "pw")
    uri = f"amqp://{name}:pw@{command.broker.host}:{command.broker.port}/"
    refused = command.run("publish", "--uri", uri, "--key", queue, "--body", "x")
    assert refused.returncode == 1
    command.http("user", "permit", name)
    allowed = command.run("publish", "--uri", uri, "--key", queue, "--body", "x")
    assert allowed.returncode == 0, allowed.stderr
    listed = [each["name"] for each in json.loads(command.http("user", "list", "--json"))]
    assert name in listed
    command.http("user", "delete", name)
    listed = [each["name"] for each in json.loads(command.http("user", "list", "--json"))]
    assert name not in listed


def test_policies_can_be_set_and_deleted(command: Command, unique: Unique, queue: str) -> None:
    name = unique("policy")
    command.http("policy", "set", name, f"^{queue}$", '{"max-length": 2}')
    policies = json.loads(command.http("policy", "list", "--json"))
    ours = [each for each in policies if each["name"] == name]
    assert ours[0]["definition"] == {"max-length": 2}
    command.http("policy", "delete", name)
    assert name not in command.http("policy", "list")


# --- load


@pytest.mark.parametrize(
    "options",
    [
        ["--size", "16", "--size", "1KiB"],
        ["--confirm", "100", "--ack", "10", "--persistent", "--publishers", "2", "--queues", "2"],
        ["--rate", "500", "--processes", "2", "--ack", "1"],
    ],
)
def test_bench_measures_rates_and_latencies(command: Command, options: list[str]) -> None:
    consumers = ["--consumers", "2"] if "--queues" in options else []
    runs = json.loads(command.amqp("bench", "--seconds", "0.7", "--json", *options, *consumers))
    assert len(runs) == options.count("--size") or len(runs) == 1
    for each in runs:
        assert each["consumed"] > 0
        assert each["published"] >= each["consumed"]
        assert 0 < each["latency_us"]["p50"] <= each["latency_us"]["max"]


@pytest.mark.parametrize("consumers", [0, 1])
def test_ctrl_c_ends_a_benchmark_early_and_leaves_no_queue(
    command: Command, consumers: int
) -> None:
    """As soon as its queue is there (nothing has run yet), and when it has consumers (results)."""
    arguments = ["bench", "--seconds", "30", "--json", "--uri", command.broker.url]
    with (
        blocking.Connection(command.broker.url) as connection,
        subprocess.Popen(
            [*HEED_INTERRUPTS, sys.executable, "-m", "rhizome", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process,
    ):
        queue = f"rhizome-bench-{process.pid}-0"
        wait_until(lambda: _consumer_count(connection, queue) >= consumers, "the benchmark")
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=SECONDS_MAX)
        assert b"Traceback" not in errors
        if consumers:
            assert process.returncode == 0, errors
            assert json.loads(output)[0]["seconds"] < 30
        else:
            assert process.returncode in (0, 130), errors
        assert _consumer_count(connection, queue) == -1


@pytest.mark.parametrize("seconds", [0.0, 0.03, 0.08, 0.15, 0.3, 0.6])
def test_ctrl_c_of_a_terminal_reaches_all_processes_of_a_benchmark_and_shows_nothing(
    command: Command, seconds: float
) -> None:
    """At any instant: its queue is there, its processes start, connect, run, end."""
    arguments = ["bench", "--seconds", "0.2", "--processes", "2", "--uri", command.broker.url]
    with (
        blocking.Connection(command.broker.url) as connection,
        subprocess.Popen(
            [*HEED_INTERRUPTS, sys.executable, "-m", "rhizome", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process,
    ):
        queue = f"rhizome-bench-{process.pid}-0"
        wait_until(lambda: _consumer_count(connection, queue) >= 0, "the benchmark's queue")
        # Not waiting for the process: while it isn't, the number of its group stays its own.
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=SECONDS_MAX)
        assert errors.strip() == b""
        # In its very last moments Python leaves the signal to the system.
        assert process.returncode in (0, 130, -signal.SIGINT)
        assert _consumer_count(connection, queue) == -1
        wait_until(lambda: not _is_group(process.pid), "the end of the worker processes")


def _is_group(number: int) -> bool:
    try:
        os.killpg(number, 0)
    except ProcessLookupError:
        return False
    return True


def _consumer_count(connection: blocking.Connection, queue: str) -> int:
    """How many consumers the queue has; -1 if there is no such queue."""
    with connection.channel() as channel:
        try:
            return channel.declare_queue(queue, passive=True).consumer_count
        except NotFound:
            return -1


# --- stores


@pytest.mark.rhizome_only
def test_journal_inspect_reads_the_store_of_a_stopped_broker(own_broker: Any) -> None:
    command = Command(own_broker)
    with blocking.Connection(own_broker.url) as connection, connection.channel() as channel:
        channel.declare_queue("kept", durable=True)
    command.amqp(
        "publish",
        "--key",
        "kept",
        "--body",
        "kept body",
        "--count",
        "3",
        "--persistent",
        "--confirm",
    )
    assert own_broker.stop() == 0
    store = str(own_broker.data)
    report = json.loads(command.run("journal", "inspect", store, "--json").stdout)
    assert report["clean"] is True
    assert [(each["name"], each["messages"]) for each in report["queues"]] == [("kept", 3)]
    text = command.run("journal", "inspect", store).stdout.decode()
    assert "kept" in text
    rows = command.run("journal", "inspect", store, "--queue", "kept", "--json").stdout
    bodies = [json.loads(row).get("body") for row in rows.splitlines()]
    assert bodies.count("kept body") == 3
