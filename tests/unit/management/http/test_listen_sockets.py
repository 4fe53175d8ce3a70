"""Unix sockets are for the broker's user alone, whatever the umask."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from rhizome.listen_sockets import bind_unix


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("no_umask")
def test_nobody_else_may_connect_to_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "links"
    with bind_unix(str(path)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.umask(0) == 0, "files that come later have the modes that they had"


def test_a_socket_that_was_left_behind_gives_way_and_a_file_does_not(tmp_path: Path) -> None:
    path = tmp_path / "links"
    bind_unix(str(path)).close()
    with bind_unix(str(path)) as sock:
        sock.listen()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    file = tmp_path / "file"
    file.write_text("kept")
    with pytest.raises(OSError, match=r"cannot listen on unix:.*file: Address already in use"):
        bind_unix(str(file))
    assert file.read_text() == "kept"
