"""A server of Spark Connect from the pip package, for tests.

Its Python has pyspark and pyarrow and no more, so that what works is what was shipped. Start-up
takes 10 to 60 s and 600 MB.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyspark

from rhizome.testing.broker_process import wait_until
from tests.spark.cluster.bare_python import bare_python
from tests.spark.quick_jvm import QUICK_JVM

SPARK_HOME: Final = Path(pyspark.__file__).parent
SERVER: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"
READY: Final = re.compile(r"Spark Connect server started at: \S*:(\d+)")
START_SECONDS_MAX: Final = 300.0
STOP_SECONDS_MAX: Final = 60.0
SETTINGS: Final = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": QUICK_JVM,
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}


class ConnectServer:
    """The process, on a free port of loopback, or on the host that `launcher` leads to and that has
    `address`. Invariant: none is left behind after `stop` or `kill`.

    Where `master` is a cluster, `python` counts on the server's host only; executors run the
    `python3` of theirs.
    """

    def __init__(
        self,
        directory: Path,
        python: str = "",
        launcher: Sequence[str] = (),
        address: str = "127.0.0.1",
        master: str = "local[2]",
        **conf: str,
    ) -> None:
        self.directory = directory
        self.output = directory / "connect.txt"
        self.python = python or str(bare_python() / "bin/python")
        self.address = address
        self.master = master
        self._launcher = list(launcher)
        self._conf = {
            **SETTINGS,
            "spark.connect.grpc.binding.address": address,
            "spark.driver.host": address,
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            **conf,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def remote(self) -> str:
        """What clients connect to."""
        return f"sc://{self.address}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it and return once it takes connections."""
        settings = [f"--conf={key}={value}" for key, value in self._conf.items()]
        submit = str(SPARK_HOME / "bin/spark-submit")
        command = [submit, "--class", SERVER, "--master", self.master, *settings]
        with self.output.open("wb") as output:
            self._process = subprocess.Popen(
                [*self._launcher, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                env=self._environment(),
                process_group=0,
            )
        try:
            self.port = wait_until(
                self._ready_port, "the server of Spark Connect", START_SECONDS_MAX
            )
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End it and its Python workers, which are in its group."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                pass
            finally:
                _kill_group(process.pid)
                process.wait()

    def kill(self) -> None:
        """kill -9 for it and its Python workers."""
        process, self._process = self._process, None
        if process is not None:
            _kill_group(process.pid)
            process.wait()

    def said(self) -> str:
        return self.output.read_text()

    def _ready_port(self) -> int:
        assert self._process is not None
        assert self._process.poll() is None, self.said()[-4000:]
        found = READY.search(self.said())
        return int(found[1]) if found is not None else 0

    def _environment(self) -> dict[str, str]:
        """Nothing of the tests' own Python: not its path, nor its package."""
        left_out = ("PYTHONPATH", "SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_HOME")
        kept = {name: value for name, value in os.environ.items() if name not in left_out}
        # Spark runs the same name on the driver's host and on executors.
        python = self.python if self.master.startswith("local") else "python3"
        return {
            **kept,
            "PATH": f"{Path(self.python).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "PYSPARK_PYTHON": python,
            "PYSPARK_DRIVER_PYTHON": python,
            "SPARK_LOCAL_IP": self.address,
            "SPARK_LOCAL_DIRS": str(self.directory / "scratch"),
        }


def _kill_group(number: int) -> None:
    try:
        os.killpg(number, signal.SIGKILL)
    except ProcessLookupError:
        return
