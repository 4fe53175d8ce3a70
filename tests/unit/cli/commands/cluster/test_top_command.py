"""`rhizome top`: its frames, and that it leaves the terminal as it found it."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from typer.testing import Result

from rhizome.cli.output.live_screen import NORMAL_SCREEN
from rhizome.cli.output.top_screen import QUEUE_COLUMNS, frame, rate_text
from tests.unit.cli.conftest import scripted_api

Rhizome = Callable[..., Result]
SECONDS_MAX = 50.0


def live() -> dict[str, Any]:
    load = {
        "connections": 4,
        "channels": 5,
        "queues": 2,
        "ready": 700,
        "unacked": 3,
        "rates": {"published": 1500.0, "delivered": 10.0, "acked": 9.0},
        "memory_bytes": 1 << 27,
        "disk_free_bytes": 1 << 33,
        "alarm": "",
    }
    group = {"id": 1, "home": "b1", "epoch": 2, "local": False, "copies": 2, "queues": 2}
    member = {"broker": "b2", "lag": 7}
    return {
        "seen_by": "b1",
        "cluster": {
            "name": "test",
            "root": "b1",
            "term": 3,
            "quorum": {"defined": 3, "active": 3, "needed": 2},
            "notes": [],
        },
        "brokers": [
            {"name": "b1", "role": "primary", "status": "active", "connections": 4},
            {"name": "b2", "role": "primary", "status": "stopped", "connections": 0},
        ],
        "groups": [
            {**group, "messages": 703, "in_sync": [member], "moving_to": "", "unavailable": ""}
        ],
        "loads": {"b1": load},
        "silent": [],
        "stalls": [{"broker": "b1", "kind": "disk", "what": "publishers", "why": "slow disk"}],
    }


def page() -> dict[str, Any]:
    row = {
        "name": "orders\n",
        "vhost": "/",
        "node": "b1",
        "state": "running",
        "messages_ready": 700,
        "messages_unacknowledged": 3,
        "consumers": 1,
        "message_stats": {"publish_details": {"rate": 1500.0}},
        "messages_details": {"rate": -2.0},
    }
    return {"items": [row], "total_count": 1}


@pytest.fixture
def answering(api: Any) -> Any:
    api.answer("GET /api/rhizome/live", live())
    query = f"columns={QUEUE_COLUMNS.replace(',', '%2C')}&sort=messages&sort_reverse=true"
    api.answer(f"GET /api/queues?{query}&page=1&page_size=200", page())
    return api


def test_a_frame_shows_brokers_groups_stalls_and_queues() -> None:
    text = "\n".join(frame({**live(), "queues": page()}, "messages", 200, 100))
    assert "root b1, term 3" in text
    assert "published 1.5k/s" in text
    assert "b2 -7" in text
    assert "STALL b1 publishers: slow disk" in text
    assert "orders\\n" in text  # a control character would wreck the terminal


def test_a_frame_fits_the_terminal() -> None:
    lines = frame({**live(), "queues": page()}, "messages", 40, 5)
    assert len(lines) == 5
    assert max(map(len, lines)) <= 40


def test_a_long_name_is_shortened_and_leaves_room_for_the_numbers() -> None:
    queues = page()
    queues["items"].append({**queues["items"][0], "name": "tenant-000123456789." * 9 + "created"})
    lines = frame({**live(), "queues": queues}, "messages", 110, 100)
    heading = next(line for line in lines if line.startswith("queue"))
    assert "growth/s" in heading
    long = lines[-1]
    assert long.startswith("tenant-0")
    assert "…" in long
    assert ".created " in long
    assert len(long) <= 110
    assert heading.index("vhost") == long.index(" / ") + 1


def test_rates_keep_their_width() -> None:
    assert [rate_text(each) for each in (0, 999, 1500, 2.5e6, -2)] == [
        "0",
        "999",
        "1.5k",
        "2.5M",
        "-2",
    ]


def test_once_prints_one_frame(rhizome: Rhizome, answering: Any) -> None:
    result = rhizome("top", "--once", "--http", answering.address)
    assert result.exit_code == 0, result.output
    assert "orders" in result.stdout
    assert "\x1b" not in result.stdout
    document = json.loads(rhizome("top", "--json", "--http", answering.address).stdout)
    assert document["queues"]["items"][0]["name"] == "orders\n"


def test_an_unknown_order_is_told(rhizome: Rhizome, answering: Any) -> None:
    result = rhizome("top", "--sort", "size", "--http", answering.address)
    assert (result.exit_code, "choose one of messages" in result.stderr) == (2, True)


class Terminal:
    """`rhizome top` on a terminal of its own."""

    def __init__(self, address: str) -> None:
        self.ours, theirs = pty.openpty()
        self.before = termios.tcgetattr(theirs)
        command = [sys.executable, "-m", "rhizome", "top", "--http", address]
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        self.theirs = theirs
        self.shown = ""

    def read_until(self, text: str) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while text not in self.shown:
            ready, _, _ = select.select([self.ours], [], [], deadline - time.monotonic())
            assert ready, f"{text!r} is not in {self.shown!r}"
            self.shown += os.read(self.ours, 65536).decode()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.ours)
        os.close(self.theirs)


@pytest.fixture
def terminal(answering: Any) -> Iterator[Terminal]:
    terminal = Terminal(answering.address)
    yield terminal
    terminal.close()


@pytest.mark.parametrize("way", ["q", "interrupt"])
def test_the_terminal_is_left_as_it_was(terminal: Terminal, way: str) -> None:
    terminal.read_until("orders")
    assert termios.tcgetattr(terminal.theirs) != terminal.before
    if way == "q":
        os.write(terminal.ours, b"q")
    else:
        terminal.process.send_signal(signal.SIGINT)
    terminal.read_until(NORMAL_SCREEN)
    assert terminal.process.wait(SECONDS_MAX) == 0
    assert termios.tcgetattr(terminal.theirs) == terminal.before
    assert "Traceback" not in terminal.shown


def test_top_goes_on_at_the_next_address_when_a_broker_dies(answering: Any) -> None:
    with ExitStack() as life:
        dying = life.enter_context(scripted_api())
        dying.answers = dict(answering.answers)
        dying.answer("GET /api/rhizome/live", {**live(), "seen_by": "dying"})
        with closing(Terminal(f"{dying.address},{answering.address}")) as terminal:
            terminal.read_until("seen by dying")
            assert answering.requests == []
            life.close()
            terminal.read_until("seen by b1")
    assert "no answer" not in terminal.shown
