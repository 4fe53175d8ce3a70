"""Starts the Python process of a streaming source for Spark, and connects it before PySpark is
imported.

Spark gives such a process ten seconds from its start until it has connected and shown its secret.
That is a constant of Spark's (PythonWorkerFactory), which no setting changes. PySpark imports
itself first, half a second of work, which a starved machine stretches beyond ten; then the query
fails with "Python worker failed to connect back". This program connects first, which takes a tenth
of that, and hands the connection to PySpark. From then on Spark waits as long as it takes.

Run as `python -P worker_launcher.py -m MODULE`, by the script that a session names to Spark as its
Python (session.py).

Invariant: until the process is connected it imports nothing but the standard library.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any, Final

TIMEOUT_SECONDS_DEFAULT: Final = 15
"""As PySpark has it: how long the JVM may take for an answer."""
BUFFER_BYTES_DEFAULT: Final = 65536
ACCEPTED: Final = b"ok"
LENGTH_BYTES: Final = 4


def main(arguments: list[str]) -> None:
    """Connect, then run the module that `-m MODULE` names as if Python had been asked to."""
    option, module = arguments
    assert option == "-m", f"only -m MODULE is understood, not {option}"
    sys.path.insert(0, os.getcwd())  # as `python -m` has it
    connection = _connected()
    if connection is not None:
        _hand_over(connection)
    import runpy

    sys.argv = [module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _connected() -> socket.socket | None:
    """A connection to the JVM that knows the secret; None if PySpark has to see to it."""
    port = os.environ.get("PYTHON_WORKER_FACTORY_PORT")
    secret = os.environ.get("PYTHON_WORKER_FACTORY_SECRET")
    if not port or not secret or "PYTHON_WORKER_FACTORY_SOCK_PATH" in os.environ:
        return None  # a socket of the file system, which has no secret
    is_six = os.environ.get("SPARK_PREFER_IPV6", "false").lower() == "true"
    seconds = int(os.environ.get("SPARK_AUTH_SOCKET_TIMEOUT", TIMEOUT_SECONDS_DEFAULT))
    connection = socket.create_connection(("::1" if is_six else "127.0.0.1", int(port)), seconds)
    text = secret.encode()
    connection.sendall(len(text).to_bytes(LENGTH_BYTES, "big") + text)
    length = int.from_bytes(_received(connection, LENGTH_BYTES), "big")
    if _received(connection, length) != ACCEPTED:
        raise SystemExit("Spark has refused the secret of its own worker")
    return connection


def _received(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise SystemExit("Spark has closed the connection of its own worker")
        data += more
    return data


def _hand_over(connection: socket.socket) -> None:
    """Have PySpark take this connection where it would make one."""
    import pyspark.util
    import pyspark.worker_util

    def connected(*_: Any) -> tuple[Any, socket.socket]:
        size = int(os.environ.get("SPARK_BUFFER_SIZE", BUFFER_BYTES_DEFAULT))
        return connection.makefile("rwb", size), connection

    # Whoever imports the name from now on, and who has done so.
    for module in (pyspark.util, pyspark.worker_util):
        setattr(module, "local_connect_and_auth", connected)  # noqa: B010


if __name__ == "__main__":
    main(sys.argv[1:])
