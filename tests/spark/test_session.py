"""Where a session runs, and the settings, environment and options that it starts with."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
import typer
from typer.testing import CliRunner

from rhizome.cli.errors import CliError
from rhizome.cli.pipeline.spark_options import SparkPlace
from rhizome.cli.shared_options import with_options
from rhizome.spark.session import (
    SessionOptions,
    launch_environment,
    properties,
    session_settings,
    user_settings,
)
from rhizome.spark.spark_master import (
    ANY,
    LOOPBACK,
    DriverAddress,
    SessionError,
    check_reachable,
    driver_address,
    endpoints,
    is_local,
)

ELSEWHERE = "203.0.113.5"  # of nobody: kept for examples


@pytest.mark.parametrize(
    ("master", "local", "found"),
    [
        ("local", True, []),
        ("local[*]", True, []),
        ("local[2,4]", True, []),
        ("local-cluster[2,1,1024]", True, []),
        ("spark://m:7078", False, [("m", 7078)]),
        ("spark://m1,m2:7078", False, [("m1", 7077), ("m2", 7078)]),
        ("spark://[::1]:7077", False, [("::1", 7077)]),
        ("k8s://https://api.example:6443", False, [("api.example", 6443)]),
        ("k8s://api.example", False, [("api.example", 443)]),
        ("yarn", False, []),
    ],
)
def test_kinds_of_masters(master: str, local: bool, found: list[tuple[str, int]]) -> None:
    assert is_local(master) is local
    assert endpoints(master) == found


def address(
    master: str,
    given: dict[str, str] | None = None,
    host: str = "",
    environment: dict[str, str] | None = None,
) -> DriverAddress:
    return driver_address(master, given or {}, host, environment or {})


def test_driver_announces_what_leads_to_the_master() -> None:
    assert address("local[2]") == DriverAddress(LOOPBACK, LOOPBACK)
    assert address(f"spark://{LOOPBACK}:7077") == DriverAddress(LOOPBACK, LOOPBACK)
    assert address("spark://127.3.2.1:7077").announced.startswith("127.")
    assert address("yarn").settings() == {}, "what leads to a master without an address?"


def test_address_that_was_chosen_is_announced() -> None:
    master = f"spark://{LOOPBACK}:7077"
    # An address of somebody else is forwarded here, so the driver listens everywhere.
    assert address(master, host=ELSEWHERE) == DriverAddress(ELSEWHERE, ANY)
    assert address(master, {"spark.driver.host": ELSEWHERE}).announced == ELSEWHERE
    assert address(master, {"spark.driver.host": ELSEWHERE}, "127.0.0.2").announced == "127.0.0.2"
    bound = {"spark.driver.bindAddress": "127.0.0.3"}
    assert address(master, bound, ELSEWHERE) == DriverAddress(ELSEWHERE, "127.0.0.3")
    of_spark = {"SPARK_LOCAL_IP": "127.0.0.4"}
    assert address(master, environment=of_spark) == DriverAddress("127.0.0.4", "127.0.0.4")


def test_master_that_nobody_serves_is_told_at_once() -> None:
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        port = taken.getsockname()[1]
        with pytest.raises(SessionError, match=rf"spark://{LOOPBACK}:{port} can't be reached"):
            check_reachable(f"spark://{LOOPBACK}:{port}")
        taken.listen()
        check_reachable(f"spark://{LOOPBACK}:{port}")


# --- settings


def settings_of(options: SessionOptions, directory: Path, **found: str) -> dict[str, str]:
    of_files = {name.replace("__", "."): value for name, value in found.items()}
    where = driver_address(options.where, of_files, options.driver_host, {})
    return session_settings("test", options, directory, of_files, where)


def test_settings_of_files_count_unless_a_command_says_otherwise(tmp_path: Path) -> None:
    options = SessionOptions("local[2]", conf={"spark.executor.cores": "3"})
    found = settings_of(
        options,
        tmp_path,
        spark__ui__enabled="true",
        spark__sql__session__timeZone="Europe/Zurich",
        spark__sql__adaptive__enabled="false",
        spark__executor__cores="2",
        spark__master="spark://elsewhere:7077",
    )
    for theirs in ("spark.ui.enabled", "spark.sql.session.timeZone", "spark.sql.adaptive.enabled"):
        assert theirs not in found
    assert found["spark.executor.cores"] == "3"
    assert found["spark.master"] == "local[2]"


def test_shuffles_and_partitions_are_left_to_spark(tmp_path: Path) -> None:
    found = settings_of(SessionOptions(), tmp_path)
    assert found["spark.sql.adaptive.enabled"] == "true"
    assert "spark.sql.shuffle.partitions" not in found
    assert found["spark.ui.enabled"] == "false"
    assert settings_of(SessionOptions(ui=True), tmp_path)["spark.ui.enabled"] == "true"


def test_what_must_not_be_shown_is_added_to_what_others_hide(tmp_path: Path) -> None:
    plain = settings_of(SessionOptions(), tmp_path)
    found = settings_of(
        SessionOptions(conf={"spark.sql.redaction.options.regex": "(?i)mine"}),
        tmp_path,
        spark__redaction__regex="theirs",
    )
    for key, given in (
        ("spark.redaction.regex", "theirs"),
        ("spark.sql.redaction.options.regex", "(?i)mine"),
    ):
        assert found[key] == f"{given}|{plain[key]}"
        assert "ur" in plain[key]


def test_options_of_the_jvm_are_added_and_a_collector_that_was_chosen_stays(tmp_path: Path) -> None:
    java = "spark.driver.extraJavaOptions"
    assert "-XX:+UseSerialGC" in settings_of(SessionOptions(), tmp_path)[java]
    found = settings_of(SessionOptions(conf={java: "-XX:+UseG1GC -Dx=y"}), tmp_path)[java]
    assert found.endswith("-XX:+UseG1GC -Dx=y")
    assert "SerialGC" not in found
    assert "-Dlog4j2.configurationFile=" in found


def test_event_logs_are_kept_in_a_directory_that_is_made(tmp_path: Path) -> None:
    kept = tmp_path / "events"
    found = settings_of(SessionOptions(event_log=str(kept)), tmp_path)
    assert found["spark.eventLog.enabled"] == "true"
    assert found["spark.eventLog.dir"] == kept.as_uri()
    assert kept.is_dir()
    remote = settings_of(SessionOptions(event_log="s3a://logs/spark"), tmp_path)
    assert remote["spark.eventLog.dir"] == "s3a://logs/spark"


def test_executors_on_other_hosts_are_not_told_of_directories_here(tmp_path: Path) -> None:
    assert "spark.local.dir" in settings_of(SessionOptions(), tmp_path)
    remote = settings_of(SessionOptions(f"spark://{LOOPBACK}:7077"), tmp_path)
    assert "spark.local.dir" not in remote


def test_paths_of_settings_mean_the_same_wherever_spark_is_started(tmp_path: Path) -> None:
    given = {
        "spark.archives": "environment.tar.gz#environment, s3a://lake/other.zip",
        "spark.app.name": "environment.tar.gz",
    }
    found = settings_of(SessionOptions(conf=given), tmp_path)
    here = Path.cwd() / "environment.tar.gz#environment"
    assert found["spark.archives"] == f"{here},s3a://lake/other.zip"
    assert found["spark.app.name"] == "environment.tar.gz"


def test_files_of_spark_are_read_as_spark_reads_them(tmp_path: Path) -> None:
    text = """
# a comment
spark.master            spark://master:7077
spark.executor.memory=2g
spark.driver.extraJavaOptions  -Da=b -XX:+UseG1GC
spark.long  one,\\
two
spark.empty
"""
    assert properties(text) == {
        "spark.master": "spark://master:7077",
        "spark.executor.memory": "2g",
        "spark.driver.extraJavaOptions": "-Da=b -XX:+UseG1GC",
        "spark.long": "one,two",
        "spark.empty": "",
    }
    (tmp_path / "spark-defaults.conf").write_text(text)
    environment = {
        "SPARK_CONF_DIR": str(tmp_path),
        "PYSPARK_SUBMIT_ARGS": "--conf spark.executor.memory=3g -c 'spark.a=b c' pyspark-shell",
    }
    found = user_settings(environment)
    assert found["spark.master"] == "spark://master:7077"
    assert found["spark.executor.memory"] == "3g"
    assert found["spark.a"] == "b c"
    other = tmp_path / "other.conf"
    other.write_text("spark.b 1\n")
    environment["PYSPARK_SUBMIT_ARGS"] = f"--properties-file {other} pyspark-shell"
    assert user_settings(environment) == {"spark.b": "1"}


# --- the command line


def options_for(
    monkeypatch: pytest.MonkeyPatch, directory: Path, *arguments: str
) -> SessionOptions:
    """What a command with these arguments would start a session with."""
    found: list[SessionOptions] = []
    app = typer.Typer()

    @app.callback()
    def family() -> None:
        """A family of commands."""

    @app.command()
    @with_options
    def job(place: SparkPlace) -> None:
        found.append(place.session_options(directory))

    monkeypatch.setenv("SPARK_CONF_DIR", str(directory))
    result = CliRunner().invoke(app, ["job", *arguments])
    if result.exception is not None:
        raise result.exception
    return found[0]


def test_every_command_that_has_a_master_has_the_options_of_spark(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    arguments = ["--conf", "a=b", "--conf", "c=d=e", "--ui", "--driver-host", "here", "--no-ship"]
    more = ["--executor-timeout", "5", "--event-log", "logs", "--master", "spark://m:1"]
    assert options_for(monkeypatch, tmp_path, *arguments, *more) == SessionOptions(
        "spark://m:1",
        tmp_path,
        ui=True,
        event_log="logs",
        driver_host="here",
        executor_timeout_s=5.0,
        ship=False,
        conf={"a": "b", "c": "d=e"},
    )
    with pytest.raises(CliError, match="--conf takes KEY=VALUE"):
        options_for(monkeypatch, tmp_path, "--conf", "nonsense")


def test_master_of_sparks_own_files_counts_if_none_is_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert options_for(monkeypatch, tmp_path) == SessionOptions("local[*]", tmp_path)
    (tmp_path / "spark-defaults.conf").write_text("spark.master spark://of-the-file:7077\n")
    assert options_for(monkeypatch, tmp_path).where == "spark://of-the-file:7077"
    assert options_for(monkeypatch, tmp_path, "--master", "local[*]").where == "local[*]"
    by_setting = options_for(monkeypatch, tmp_path, "--conf", "spark.master=local[3]")
    assert by_setting.where == "local[3]"
    assert by_setting.conf == {}


# --- what Spark finds when it starts


def launched(
    monkeypatch: pytest.MonkeyPatch, directory: Path, where: str, **environment: str
) -> dict[str, str]:
    """The environment that a session on `where` starts in."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP", "SPARK_LOCAL_DIRS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    address = driver_address(where, {}, "", environment)
    with launch_environment(SessionOptions(where), directory, {}, address):
        found = {**os.environ, "PWD": os.getcwd()}
    assert dict(os.environ) == before
    return found


def version_run_by(python: str, **environment: str) -> str:
    """The Python that a name leads to, in an environment."""
    done = subprocess.run(
        [python, "-c", "import sys; print(sys.prefix)"],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    return done.stdout.strip()


def test_local_workers_import_the_pyspark_that_is_installed_and_not_the_archive(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing compiled is kept of what is imported from an archive."""
    monkeypatch.delenv("SPARK_HOME", raising=False)
    mine = tmp_path / "a b"
    home = Path(pyspark.__file__).parent
    archives = [home / "python" / "lib" / "pyspark.zip", *(home / "python" / "lib").glob("py4j*")]
    path = os.pathsep.join(map(str, [*archives, mine]))

    def path_in(python: str) -> str:
        program = "import os, pyspark; print(pyspark.__file__, os.environ['PYTHONPATH'])"
        environment = {"PYTHONPATH": path}
        return subprocess.check_output([python, "-c", program], text=True, env=environment).strip()

    python = launched(monkeypatch, tmp_path / "session", "local[2]")["PYSPARK_PYTHON"]
    assert path_in(python) == f"{pyspark.__file__} {mine}"

    # The archive of another Spark may be of another release.
    other = launched(monkeypatch, tmp_path, "local[2]", SPARK_HOME=str(home))["PYSPARK_PYTHON"]
    assert path_in(other).endswith(f" {path}")


def test_workers_on_the_drivers_host_run_the_drivers_python_under_any_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    remote = f"spark://{LOOPBACK}:7077"
    local = launched(monkeypatch, tmp_path, "local[2]")
    assert version_run_by(local["PYSPARK_PYTHON"]) == sys.prefix
    assert "SPARK_LOCAL_DIRS" not in local
    theirs = launched(monkeypatch, tmp_path, "local[2]", PYSPARK_PYTHON="/their/python")
    assert theirs["PYSPARK_PYTHON"] == "/their/python"

    by_name = launched(monkeypatch, tmp_path, remote)
    assert by_name["PYSPARK_PYTHON"] == "python3"
    assert by_name["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert by_name["SPARK_LOCAL_DIRS"] == str(tmp_path)
    python = shutil.which("python3", path=by_name["PATH"])
    assert python is not None
    assert version_run_by(python) == sys.prefix

    chosen = "./environment/bin/python"
    unpacked = launched(monkeypatch, tmp_path, remote, PYSPARK_PYTHON=chosen, SPARK_LOCAL_IP="::1")
    assert unpacked["SPARK_LOCAL_IP"] == "::1"
    assert unpacked["PYSPARK_PYTHON"] == chosen
    assert unpacked["PWD"] == str(tmp_path), "the JVM looks for it where it starts"
    assert version_run_by(str(tmp_path / chosen)) == sys.prefix

    with pytest.raises(SessionError, match="must not lead upwards"):
        launched(monkeypatch, tmp_path, remote, PYSPARK_PYTHON="../bin/python")
    with pytest.raises(SessionError, match="/no/python, which is not on this host"):
        launched(monkeypatch, tmp_path, remote, PYSPARK_PYTHON="/no/python")
