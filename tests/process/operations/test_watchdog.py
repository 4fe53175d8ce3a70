"""What holds the event loop of a real broker: its log, its metrics and its checkup tell it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rhizome.amqp import methods
from rhizome.amqp.frames import content_frames, method_frame
from rhizome.amqp.properties import Properties, encode_header
from rhizome.testing.broker_process import BrokerProcess, wait_until
from tests.process.helpers import RawClient, call_api, run

STOPPED_S = 1.0


@pytest.fixture
def sensitive(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker whose turns are slow after 2 ms, which the headers of one message may exceed."""
    broker = BrokerProcess(tmp_path, environment={"RHIZOME_BROKER_SLOW_TURN": "2ms"})
    broker.start()
    yield broker
    broker.close()


def slow_turns(broker: BrokerProcess) -> Any:
    return call_api(broker, "GET", "rhizome", "checkup", "own")["slow_turns"]


def test_a_slow_turn_is_told_with_the_connection_that_caused_it(sensitive: BrokerProcess) -> None:
    """A headers exchange reads all headers of a message to route it."""
    headers: dict[str, object] = {f"header-{number}": True for number in range(8_000)}
    published = content_frames(1, encode_header(0, Properties(headers=headers)), b"", 131_072)

    async def publish_headers() -> None:
        client = await RawClient.logged_in(sensitive)
        client.send(1, methods.ChannelOpen())
        client.send(1, methods.QueueDeclare("q", False, False, True, True, False, {}))
        client.send(1, methods.QueueBind("q", "amq.headers", "", False, {"other": 1}))
        for _ in range(10):
            client.write(method_frame(1, methods.BasicPublish("amq.headers", "")) + published)
        client.send(1, methods.QueueDeclare("q", False, False, True, True, False, {}))
        for _ in range(4):  # channel.open-ok, declare-ok, bind-ok, declare-ok
            await client.read_frame()
        await client.close()

    def told() -> bool:
        return any(
            "input of connection 127.0.0.1:" in turn["what"]
            for turn in slow_turns(sensitive)["latest"]
        )

    run(publish_headers())
    wait_until(told, "a slow turn that names the connection")
    assert slow_turns(sensitive)["work"] >= 1
    sensitive.wait_until_printed("slow turn: a turn lasted")
    metrics = call_metrics(sensitive)
    assert float(found(r'rhizome_slow_turns_total\{cause="work"\} (\S+)', metrics)) >= 1
    assert float(found(r'rhizome_longest_turn_seconds\{since="start"\} (\S+)', metrics)) > 0.002


def test_a_broker_that_was_stopped_blames_nobody(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, environment={"RHIZOME_BROKER_SLOW_TURN": "500ms"})
    broker.start()
    try:
        os.kill(broker.pid, signal.SIGSTOP)
        time.sleep(STOPPED_S)  # it has to be stopped for as long; nothing shows the time of others
        os.kill(broker.pid, signal.SIGCONT)
        wait_until(lambda: slow_turns(broker)["waited"], "the stop to be noticed")
        latest = slow_turns(broker)["latest"][-1]
        assert (latest["cause"], latest["what"], latest["where"]) == ("waited", "", "")
        assert latest["lasted_ms"] >= STOPPED_S * 1000 * 0.9
        assert latest["ran_ms"] < latest["lasted_ms"] / 2
        broker.wait_until_printed("the process was stopped")
    finally:
        broker.close()


HANGS = """
import re, time
from rhizome.broker.turn import Turn
from rhizome.management.metrics.slow_turns import SlowTurns
from rhizome.server.event_loop.stopwatch import Stopwatch
from rhizome.server.event_loop.watchdog import Watchdog

def the_function_that_hangs():
    re.match("(a|a)*!", "a" * 60)

stopwatch = Stopwatch(Turn(), time.monotonic_ns, time.thread_time_ns)
watchdog = Watchdog(stopwatch, SlowTurns(), lambda: 0)
watchdog.configure(100)
watchdog.start(0.025)
stopwatch.begin()
the_function_that_hangs()
"""


def test_a_loop_that_hangs_where_no_thread_can_run_prints_its_stack(tmp_path: Path) -> None:
    """A regular expression holds the interpreter's lock for as long as it is matched."""
    printed = tmp_path / "printed"
    with printed.open("wb") as output:
        process = subprocess.Popen([sys.executable, "-c", HANGS], stderr=output)
        try:
            wait_until(lambda: "the_function_that_hangs" in printed.read_text(), "the stack")
        finally:
            process.kill()
            process.wait()


def call_metrics(broker: BrokerProcess) -> str:
    with urllib.request.urlopen(f"{broker.http_url}/metrics") as answer:
        return str(answer.read().decode())


def found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match is not None, f"nothing like {pattern} in\n{text}"
    return match[1]
