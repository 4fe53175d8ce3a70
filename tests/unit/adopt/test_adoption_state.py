"""What an adoption keeps on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from rhizome.adopt.adoption_state import AdoptionState, StateDirectory
from rhizome.adopt.errors import AdoptionError
from rhizome.adopt.queue_crossing import Moved
from rhizome.adopt.queue_listing import QueueKey

GOLDEN = (
    '{"format": 1, "source": "old:5672", "target": "new:5672", "goal": "back",'
    ' "are_definitions_in": true, "runs": 2, "is_running": true, "ends_unclean": 1,'
    ' "looked_ms": 5, "rows": [{"name": "q"}], "moved": [{"vhost": "/", "name": "q",'
    ' "forward": 4, "back": 3, "dropped": 0, "in_doubt": 1, "sent_again": 2, "taken": 7}]}'
)


def state() -> AdoptionState:
    moved = {QueueKey("/", "q"): Moved(4, 3, 0, 1, 2, 7)}
    return AdoptionState(
        "old:5672", "new:5672", "back", True, 2, True, 1, 5, moved, [{"name": "q"}]
    )


def test_what_is_written_is_read_and_has_the_form_it_always_had(tmp_path: Path) -> None:
    kept = StateDirectory(tmp_path / "adoption")
    kept.write(state())
    assert kept.read() == state()
    assert (tmp_path / "adoption" / "state.json").read_text() == GOLDEN


def test_there_is_none_at_first(tmp_path: Path) -> None:
    kept = StateDirectory(tmp_path / "adoption")
    assert kept.read() is None
    assert kept.read_for("a", "b") == AdoptionState("a", "b")
    assert not kept.is_locked()


def test_the_state_of_another_adoption_is_refused(tmp_path: Path) -> None:
    kept = StateDirectory(tmp_path)
    kept.write(state())
    assert kept.read_for("old:5672", "new:5672") == state()
    with pytest.raises(AdoptionError, match="from old:5672 to new:5672, not from old:5672 to x"):
        kept.read_for("old:5672", "x")


@pytest.mark.parametrize("text", ["", "[]", "{}", GOLDEN.replace('"format": 1', '"format": 2')])
def test_what_is_no_state_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(AdoptionError, match="not the state of an adoption, or of a newer release"):
        StateDirectory(tmp_path).read()


def test_one_process_holds_the_lock(tmp_path: Path) -> None:
    first, second = StateDirectory(tmp_path), StateDirectory(tmp_path)
    with first.locked():
        assert second.is_locked()
        with pytest.raises(AdoptionError, match="another process"), second.locked():
            pass
    assert not second.is_locked()
    with second.locked():
        pass
