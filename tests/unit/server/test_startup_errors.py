"""Why a broker doesn't start."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from rhizome.listen_sockets import bind
from rhizome.server.config.broker_config import load_config
from rhizome.server.startup_errors import reason_of, report_startup_error


def test_a_port_in_use_is_named_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"AMQP on 127.0.0.1:{port}: .*choose another port"):
            bind("127.0.0.1", port, "AMQP")


def test_what_is_no_directory_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(FileExistsError) as caught:
        file.mkdir()
    assert reason_of(caught.value) == (
        f"{file}: File exists; broker.data (--data) must be a directory"
    )


@pytest.mark.parametrize(
    ("settings", "told"),
    [({}, 1), ({"log.format": "json"}, 0), ({"log.file": "broker.log"}, 1)],
)
def test_it_is_told_once_on_standard_error(
    settings: dict[str, object], told: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A log in JSON gets no line that is none; the log itself is configured by the application."""
    assert report_startup_error(OSError("no"), load_config(None, settings)) == 1
    assert capsys.readouterr().err.count("error: no\n") == told
