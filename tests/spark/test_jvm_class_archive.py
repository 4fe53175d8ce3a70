"""The archive of Spark's classes: who may have made it, and that a JVM starts from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rhizome.spark import jvm_class_archive
from rhizome.spark.jvm_class_archive import archive_path, java_options, make_archive
from rhizome.spark.session import SessionOptions, session_settings
from rhizome.spark.spark_master import SessionError, driver_address

JAVA = "spark.driver.extraJavaOptions"


@pytest.fixture
def archive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """One that nobody has made yet, in a cache of the test's own."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = archive_path()
    assert path is not None
    return path


def made(path: Path) -> Path:
    path.touch(mode=0o600)
    return path


def options_of_driver(directory: Path, **conf: str) -> str:
    given = {name.replace("__", "."): value for name, value in conf.items()}
    where = driver_address("local[2]", given, "", {})
    options = SessionOptions("local[2]", conf=given)
    return session_settings("test", options, directory, {}, where)[JAVA]


def test_a_jvm_that_this_session_started_has_mapped_the_archive(spark: Any) -> None:
    if not java_options():
        pytest.skip("there is no archive of Spark's classes; `rhizome pipeline prepare` makes it")
    pid = spark._jvm.java.lang.ProcessHandle.current().pid()
    assert str(archive_path()) in Path(f"/proc/{pid}/maps").read_text()


def test_an_archive_that_is_there_is_used_and_none_otherwise(archive: Path, tmp_path: Path) -> None:
    assert java_options() == ""
    assert "jsa" not in options_of_driver(tmp_path)
    made(archive)
    assert f"-XX:SharedArchiveFile={archive}" in java_options().split()
    assert str(archive) in options_of_driver(tmp_path)


@pytest.mark.parametrize("theirs", ["-Xshare:off", "-XX:SharedArchiveFile=/their.jsa"])
def test_whoever_chose_otherwise_keeps_it(archive: Path, tmp_path: Path, theirs: str) -> None:
    made(archive)
    found = options_of_driver(tmp_path, spark__driver__extraJavaOptions=theirs)
    assert theirs in found
    assert str(archive) not in found


def test_an_archive_that_others_may_have_written_is_not_used(archive: Path) -> None:
    """A JVM maps what is in it and runs it."""
    made(archive).chmod(0o620)
    assert java_options() == ""
    archive.chmod(0o600)
    assert java_options()
    archive.parent.chmod(0o777)
    assert java_options() == ""


def test_another_spark_or_java_has_another_archive(
    archive: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    another = archive_path()
    assert another not in (archive, None)
    (tmp_path / "jars").mkdir()
    assert archive_path() not in (archive, another)


def test_where_there_is_no_place_for_it_the_error_says_what_to_check(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "with blank"))
    assert java_options() == ""
    with pytest.raises(SessionError, match="XDG_CACHE_HOME"):
        make_archive(lambda java: pytest.fail(f"nothing is started with {java}"), print)


def test_archives_of_sparks_that_are_gone_are_removed(archive: Path) -> None:
    old = [made(archive.parent / f"classes-{number}.jsa") for number in range(4)]
    jvm_class_archive._prune(archive.parent)
    assert sum(path.exists() for path in old) == jvm_class_archive.KEPT_MAX
