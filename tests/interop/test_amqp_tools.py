"""librabbitmq's command line tools (Debian package amqp-tools)."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from rhizome.testing.broker_process import Broker, wait_until

from .conftest import PATIENCE_SECONDS

Unique = Callable[[str], str]
Run = Callable[..., subprocess.CompletedProcess[bytes]]
EMPTY = 2
"""What amqp-get exits with if there is no message."""

pytestmark = pytest.mark.skipif(
    shutil.which("amqp-publish") is None, reason="amqp-tools is not installed"
)


def tool_command(command: str, broker: Broker) -> list[str]:
    server = [f"--server={broker.host}", f"--port={broker.port}"]
    return [command, *server, f"--username={broker.user}", f"--password={broker.password}"]


@pytest.fixture
def tool(broker: Broker) -> Run:
    """Runs one tool: `tool("amqp-get", "-q", name)`."""

    def run(
        command: str, *arguments: str, stdin: bytes = b"", check: bool = True
    ) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(
            [*tool_command(command, broker), *arguments],
            input=stdin,
            capture_output=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert not check or done.returncode == 0, done.stderr.decode()
        return done

    return run


@pytest.fixture
def queue(tool: Run, unique: Unique) -> str:
    name = unique("tools")
    assert tool("amqp-declare-queue", "-q", name).stdout.decode().strip() == name
    return name


def got(tool: Run, queue: str) -> bytes:
    """The next message. In a cluster it may be on its way yet: it was published without a confirm,
    through another broker."""

    def found() -> subprocess.CompletedProcess[bytes] | None:
        done = tool("amqp-get", "-q", queue, check=False)
        return None if done.returncode == EMPTY else done

    done = wait_until(found, f"a message in {queue}", PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def test_a_published_message_is_got_once(tool: Run, queue: str) -> None:
    tool("amqp-publish", "-r", queue, "-b", "hello")
    assert got(tool, queue) == b"hello"
    empty = tool("amqp-get", "-q", queue, check=False)
    assert (empty.returncode, empty.stdout) == (EMPTY, b"")
    tool("amqp-delete-queue", "-q", queue)


def test_a_persistent_message_with_properties_is_consumed(tool: Run, queue: str) -> None:
    tool(
        *("amqp-publish", "-r", queue, "-p", "-C", "text/plain", "-E", "utf-8"),
        *("-t", "answers", "-H", "colour: red", "-b", "hello"),
    )
    consumed = tool("amqp-consume", "-q", queue, "-c", "1", "cat")
    assert consumed.stdout == b"hello"
    tool("amqp-delete-queue", "-q", queue)


def test_lines_are_published_one_by_one_and_consumed_in_order(tool: Run, queue: str) -> None:
    lines = b"".join(b"line %d\n" % number for number in range(50))
    tool("amqp-publish", "-r", queue, "-l", stdin=lines)
    consumed = tool("amqp-consume", "-q", queue, "-c", "50", "-p", "10", "cat")
    assert consumed.stdout == lines
    tool("amqp-delete-queue", "-q", queue)


def test_a_large_body_from_stdin_comes_back(tool: Run, queue: str) -> None:
    body = bytes(range(256)) * 8000
    tool("amqp-publish", "-r", queue, stdin=body)
    assert got(tool, queue) == body
    tool("amqp-delete-queue", "-q", queue)


def test_consuming_from_an_exchange_binds_a_private_queue(
    tool: Run, broker: Broker, unique: Unique
) -> None:
    key = unique("key")
    consumer = subprocess.Popen(
        [*tool_command("amqp-consume", broker), "-e", "amq.topic", "-r", f"{key}.#", "-c1", "cat"],
        stdout=subprocess.PIPE,
    )

    def published_and_consumed() -> bool:
        tool("amqp-publish", "-e", "amq.topic", "-r", f"{key}.a.b", "-b", "bound")
        return consumer.poll() is not None

    try:
        # Published again and again, since nothing tells when the consumer has bound its queue.
        wait_until(published_and_consumed, "the consumer to take one message")
    finally:
        consumer.kill()
        output, _ = consumer.communicate(timeout=PATIENCE_SECONDS)
    assert output == b"bound"


def test_deleting_a_queue_in_use_or_not_empty_is_refused(
    tool: Run, queue: str, channel: BlockingChannel
) -> None:
    tool("amqp-publish", "-r", queue, "-b", "left")

    def count() -> int:
        declared: int = channel.queue_declare(queue, passive=True).method.message_count
        return declared

    # Not confirmed either: in a cluster the queue may be empty yet, and would go.
    wait_until(lambda: count() == 1, f"the message in {queue}", PATIENCE_SECONDS)
    refused = tool("amqp-delete-queue", "-q", queue, "-e", check=False)
    assert refused.returncode != 0
    assert b"406" in refused.stderr
    tool("amqp-delete-queue", "-q", queue)


def test_a_missing_queue_is_reported_with_404(tool: Run, unique: Unique) -> None:
    refused = tool("amqp-get", "-q", unique("missing"), check=False)
    assert refused.returncode == 1
    assert b"404" in refused.stderr


def test_a_wrong_password_is_reported(tool: Run) -> None:
    refused = tool("amqp-publish", "--password=wrong", "-r", "q", "-b", "x", check=False)
    assert refused.returncode != 0
    assert b"ACCESS_REFUSED" in refused.stderr or b"403" in refused.stderr
