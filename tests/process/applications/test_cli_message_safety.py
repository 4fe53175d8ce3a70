"""Commands about how safe messages are, as processes of their own, against a real broker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rhizome.amqp.frames import content_frames
from rhizome.amqp.properties import Properties, encode_header
from rhizome.client import blocking
from rhizome.journal.files import DiskFiles
from rhizome.journal.records import FLAG_DURABLE, enqueue_record
from rhizome.journal.salvaged_messages import Salvage, SalvageManifest, SavedQueue
from rhizome.journal.store_identity import StoreIdentity, save_identity

UUID = bytes(range(16))
NAME = "group-2-epoch-7"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rhizome", *arguments],
        capture_output=True,
        timeout=20,
        check=False,
        text=True,
    )


@pytest.fixture
def queue(broker: Any, unique: Callable[[str], str]) -> Iterator[str]:
    name = unique("q")
    with blocking.Connection(broker.url) as connection, connection.channel() as channel:
        channel.declare_queue(name, durable=True)
        yield name
        channel.delete_queue(name)


def taken(broker: Any, queue: str) -> list[bytes]:
    found: list[bytes] = []
    with blocking.Connection(broker.url) as connection, connection.channel() as channel:
        while (message := channel.get(queue, no_ack=True)) is not None:
            found.append(message.body)
    return found


def saved(directory: Path, queue: str, bodies: list[bytes]) -> Salvage:
    root = DiskFiles(directory)
    save_identity(root, StoreIdentity(UUID))
    salvage = Salvage(root, UUID)
    name, saving = salvage.begin(NAME)
    for index, body in enumerate(bodies, start=1):
        header = encode_header(len(body), Properties(delivery_mode=2))
        content = content_frames(1, header, body, 0)
        saving.add(enqueue_record(2, 7, index, [5], b"\0\0", 1, -1, 0, FLAG_DURABLE, content))
    queues = [SavedQueue(5, "/", queue, len(bodies))]
    saving.finish(SalvageManifest(2, 7, "b3", 8, 1, len(bodies), 1_700_000_000_000, queues, name))
    return salvage


def test_publish_says_which_level_was_reached(broker: Any, queue: str) -> None:
    publish = ("publish", "--key", queue, "--uri", broker.url, "--body", "x", "--levels")
    done = run(*publish, "--persistent", "--count", "3")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "published and confirmed 3 messages\n  3 persistent\n"
    assert "  1 fully transient\n" in run(*publish).stderr


def test_saved_messages_are_published_once_however_often(
    broker: Any, queue: str, tmp_path: Path
) -> None:
    salvage = saved(tmp_path, queue, [b"one", b"two", b"three"])
    for _ in range(2):
        done = run("salvage", "publish", str(tmp_path), NAME, "--uri", broker.url, "--keep")
        assert done.returncode == 0, done.stderr
    assert taken(broker, queue) == [b"one", b"two", b"three"]
    assert len(salvage.entries()) == 1
    done = run("salvage", "publish", str(tmp_path), NAME, "--uri", broker.url)
    assert done.returncode == 0, done.stderr
    assert salvage.entries() == []
    assert taken(broker, queue) == []


def test_what_has_no_queue_any_more_stays_saved(broker: Any, tmp_path: Path) -> None:
    salvage = saved(tmp_path, "no-such-queue", [b"one"])
    done = run("salvage", "publish", str(tmp_path), NAME, "--uri", broker.url)
    assert done.returncode == 1
    assert "there is no queue 'no-such-queue'" in done.stderr
    assert len(salvage.entries()) == 1
