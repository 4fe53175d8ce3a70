"""The audit: each kind of damage is found, and nothing in healthy stores."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from rhizome.cli.pipeline.pipeline_command import VIOLATIONS_EXIT_CODE
from rhizome.journal.records import KIND_ENQUEUE
from rhizome.spark.jobs.audit import READS_MAX, AuditOptions, AuditReport, run
from rhizome.spark.journal import broker_stores
from tests.spark.cli import command
from tests.spark.damage import (
    DAMAGES,
    GROUP,
    OTHER,
    Segment,
    index_of,
    lose_group,
    truncate_a_segment,
    write_copies,
)


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("copies")
    write_copies(directory)
    return directory


def audit(spark: Any, directory: Path) -> AuditReport:
    return run(spark, AuditOptions(f"{directory}/b*"))


def test_nothing_is_found_in_healthy_stores(spark: Any, copies: Path) -> None:
    report = audit(spark, copies)
    assert report.violations == []
    assert report.is_sound
    assert report.copies == {GROUP: ["b1", "b2", "b3"], OTHER: ["b2", "b3"]}
    assert report.messages > 3 * 200
    assert report.compared_at[GROUP] > 250


@pytest.mark.parametrize(
    ("changes", "is_compared"), [(1, True), pytest.param(99, False, marks=pytest.mark.soak)]
)
def test_stores_are_read_again_while_groups_get_other_standbys(
    spark: Any, copies: Path, monkeypatch: pytest.MonkeyPatch, changes: int, is_compared: bool
) -> None:
    """Each look at the three stores finds another version of their groups, until it doesn't."""
    looks = count()
    known = broker_stores.state_of

    def changing(directory: Path) -> broker_stores.StoreState:
        state = known(directory)
        version = 1 + min(next(looks) // 3, changes)
        return replace(
            state, groups={n: replace(each, version=version) for n, each in state.groups.items()}
        )

    monkeypatch.setattr(broker_stores, "state_of", changing)
    report = audit(spark, copies)
    assert report.is_sound
    assert (report.copies != {}) == is_compared
    assert len(report.notes) == (0 if is_compared else 2)
    assert next(looks) == 3 * 2 * (2 if is_compared else READS_MAX)


def test_all_kinds_of_damage_are_found_at_once(
    spark: Any, copies: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(copies, tmp_path, dirs_exist_ok=True)
    wanted: list[tuple[str, str, int | None]] = []
    for kind, damage in DAMAGES.items():
        if kind not in ("missing copy", "truncated segment"):
            wanted.append((kind, "b2", damage(tmp_path / "b2")))
    lose_group(tmp_path / "b3", OTHER)
    truncate_a_segment(tmp_path / "b3")
    wanted += [("missing copy", "b3", None), ("truncated segment", "b3", None)]
    assert command("pipeline", "audit", f"{tmp_path}/b*", "--json") == VIOLATIONS_EXIT_CODE == 3
    report = json.loads(capsys.readouterr().out)
    found = {(each["kind"], each["broker"], each["index"]) for each in report["violations"]}
    assert set(wanted) <= found, sorted(map(str, found))
    assert set(report["counts"]) == set(DAMAGES)
    assert report["sound"] is False
    # Nothing else is found in the second store but what follows from what was done to it: the
    # message is live there that the diverging record should have settled.
    (diverged,) = (index for kind, _, index in wanted if kind == "diverging copy")
    assert diverged is not None
    assert {each for each in found if each[1] == "b2"} - set(wanted) == {
        ("resurrected message", "b2", diverged + 2)
    }


@pytest.mark.soak
@pytest.mark.parametrize("kind", list(DAMAGES))
def test_each_kind_of_damage_is_found(spark: Any, copies: Path, tmp_path: Path, kind: str) -> None:
    shutil.copytree(copies, tmp_path, dirs_exist_ok=True)
    index = DAMAGES[kind](tmp_path / "b2")
    report = audit(spark, tmp_path)
    assert not report.is_sound
    found = [each for each in report.violations if each.kind == kind]
    assert found, report.document()
    assert {each.broker for each in found} == {"b2"}
    if index is not None:
        assert {(each.group, each.epoch, each.index) for each in found} == {(GROUP, 1, index)}
        assert {each.queue for each in found} <= {"orders", "payments"}
        assert found[0].message is not None
        assert found[0].message["exchange"] == "ex"


@pytest.mark.soak
def test_record_that_fails_its_checksum_is_found(spark: Any, copies: Path, tmp_path: Path) -> None:
    shutil.copytree(copies, tmp_path, dirs_exist_ok=True)
    segment = Segment(tmp_path / "b3", 1)
    place = segment.find(KIND_ENQUEUE, 4)
    record = segment.records[place]
    segment.records[place] = record[:60] + b"\xff" + record[61:]
    segment.write()
    report = audit(spark, tmp_path)
    assert report.counts["damaged record"] == 1
    assert report.counts["lost record"] >= 1
    assert {each.index for each in report.violations if each.kind == "lost record"} == {
        index_of(record)
    }
