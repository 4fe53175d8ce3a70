"""tools/release.py: what it refuses to release, and that what it makes can be checked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import release

    return release


@pytest.fixture
def tree(release: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small work tree of version 1.2.3 that may be released."""
    (tmp_path / "src" / "rhizome").mkdir(parents=True)
    (tmp_path / "packaging").mkdir()
    (tmp_path / "src" / "rhizome" / "__init__.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "packaging" / "releases.txt").write_text("# all\n1.2.2 abcdef\n")
    (tmp_path / "CHANGELOG.md").write_text("## [Unreleased]\n\n## [1.2.3] - 2026-01-02\n")
    monkeypatch.setattr(release, "ROOT", tmp_path)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    git(tmp_path, "tag", "v1.2.3")
    return tmp_path


def git(tree: Path, *arguments: str) -> None:
    who = ["-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, *arguments], cwd=tree, check=True, capture_output=True)


def test_a_tree_in_order_has_no_faults(release: ModuleType, tree: Path) -> None:
    assert release.faults_of("1.2.3") == []


@pytest.mark.parametrize("version", ["1.2.3.dev0", "1.2", "1.2.3rc1"])
def test_only_whole_versions_are_released(release: ModuleType, tree: Path, version: str) -> None:
    assert any("is no release" in fault for fault in release.version_faults(version))


def test_the_package_must_have_the_same_version(release: ModuleType, tree: Path) -> None:
    (tree / "src" / "rhizome" / "__init__.py").write_text('__version__ = "1.2.4"\n')
    assert any("__init__.py" in fault for fault in release.version_faults("1.2.3"))


def test_a_version_is_released_once(release: ModuleType, tree: Path) -> None:
    assert any("released before" in fault for fault in release.version_faults("1.2.2"))


def test_the_changelog_must_have_a_dated_section(release: ModuleType, tree: Path) -> None:
    assert release.changelog_faults("1.2.4") == ["CHANGELOG.md has no section for 1.2.4"]
    (tree / "CHANGELOG.md").write_text("## [1.2.3]\n")
    assert "has no date" in release.changelog_faults("1.2.3")[0]


def test_the_tag_must_be_what_is_checked_out(release: ModuleType, tree: Path) -> None:
    assert "there is no tag v1.2.4" in release.tag_faults("1.2.4")[0]
    git(tree, "commit", "--allow-empty", "-qm", "two")
    assert "is checked out" in release.tag_faults("1.2.3")[0]
    (tree / "CHANGELOG.md").write_text("")
    assert "in no commit" in release.tag_faults("1.2.3")[0]


def test_checksums_are_those_of_sha256sum(release: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a-1.whl").write_bytes(b"wheel")
    (tmp_path / "a-1.tar.gz").write_bytes(b"archive")
    (tmp_path / "a-1.cdx.json").write_bytes(b"parts")
    (tmp_path / "notes.txt").write_bytes(b"not published")
    release.write_checksums(tmp_path)
    command = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert sorted(done.stdout.split(": OK\n"))[1:] == ["a-1.cdx.json", "a-1.tar.gz", "a-1.whl"]


def test_this_tree_is_not_released_by_accident() -> None:
    """A development version ends with every reason, before anything is built."""
    command = [sys.executable, "tools/release.py", "/nowhere"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "not a release: " in done.stderr
    assert not Path("/nowhere").exists()
