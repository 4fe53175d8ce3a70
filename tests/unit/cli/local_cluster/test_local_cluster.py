"""`rhizome up` without processes: shapes, files, and when brokers agree."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from rhizome.cli.errors import CliError
from rhizome.cli.local_cluster.directory_layout import (
    Layout,
    Shape,
    brokers_environment,
    choose_shape,
    read_shape,
)
from rhizome.cli.local_cluster.local_cluster import stop_order
from rhizome.cli.local_cluster.root_agreement import NotYet, Root, common_root, own_root
from rhizome.cli.local_cluster.up_command import hints
from rhizome.server.config.broker_config import load_config
from rhizome.server.config.cluster_section import read_keys

Rhizome = Callable[..., Result]
NOTHING: dict[str, int | None] = {}


# --- shapes


def test_defaults_are_three_brokers_on_the_usual_ports(tmp_path: Path) -> None:
    layout = Layout(tmp_path, choose_shape(tmp_path, NOTHING))
    assert [(p.name, p.role, p.port, p.http_port) for p in layout.places.values()] == [
        ("b1", "primary", 5672, 15672),
        ("b2", "primary", 5673, 15673),
        ("b3", "primary", 5674, 15674),
    ]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"brokers": 0}, "--brokers 0: give 1 to 15"),
        ({"brokers": 16}, "--brokers 16"),
        ({"secondaries": -1}, "--secondaries -1"),
        ({"base_port": 0}, "--base-port 0"),
        ({"base_port": 65_534}, "3 ports from there on must be 1 to 65535"),
        ({"base_port": 15_670}, "overlap: each takes 3 ports"),
    ],
)
def test_impossible_shapes_are_refused(tmp_path: Path, asked: dict[str, int], said: str) -> None:
    with pytest.raises(CliError, match=said):
        choose_shape(tmp_path, dict(asked))


def test_directory_remembers_its_shape(tmp_path: Path) -> None:
    Layout(tmp_path, Shape(2, 1, 7000, 8000)).write()
    assert read_shape(tmp_path) == Shape(2, 1, 7000, 8000)
    assert choose_shape(tmp_path, {"brokers": None, "base_port": 9000}) == Shape(2, 1, 9000, 8000)
    assert choose_shape(tmp_path, {"secondaries": 3}).secondaries == 3


def test_logs_of_brokers_are_closed_to_others(tmp_path: Path) -> None:
    """They have names of users, addresses, and why somebody was refused."""
    (place, *_) = Layout(tmp_path, Shape(1)).places.values()
    place.directory.mkdir()
    with place.open_log() as log:
        log.write(b"refused")
    with place.open_log() as log:
        log.write(b" again")
    assert place.log.read_bytes() == b"refused again"
    assert place.log.stat().st_mode & 0o027 == 0


def test_number_of_primaries_is_no_option_once_there_is_a_cluster(tmp_path: Path) -> None:
    Layout(tmp_path, Shape(3)).write()
    with pytest.raises(CliError, match="holds a cluster of 3 primaries"):
        choose_shape(tmp_path, {"brokers": 5})
    assert choose_shape(tmp_path, {"brokers": 3}).brokers == 3


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1, "brokers": "3"}'])
def test_damaged_shape_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "up.json").write_text(text)
    with pytest.raises(CliError, match="is damaged"):
        read_shape(tmp_path)


def test_shape_of_another_release_is_told(tmp_path: Path) -> None:
    Layout(tmp_path, Shape()).write()
    document = json.loads((tmp_path / "up.json").read_text())
    (tmp_path / "up.json").write_text(json.dumps({**document, "format": 2}))
    with pytest.raises(CliError, match="another release"):
        read_shape(tmp_path)


def test_store_of_a_lone_broker_is_not_built_over(tmp_path: Path) -> None:
    (tmp_path / "store.json").write_text("{}")
    with pytest.raises(CliError, match="the store of a lone broker"):
        choose_shape(tmp_path, NOTHING)


# --- files


def test_brokers_can_read_what_is_written_for_them(tmp_path: Path) -> None:
    layout = Layout(tmp_path, Shape(2, 1))
    layout.write()
    configs = [load_config(place.config, None, {}) for place in layout.places.values()]
    assert [config.broker.name for config in configs] == ["b1", "b2", "s1"]
    assert [config.cluster.role for config in configs] == ["primary", "primary", "secondary"]
    assert {config.cluster.primaries for config in configs} == {configs[0].cluster.primaries}
    assert configs[0].cluster.primary_names == ("b1", "b2")
    assert len({config.cluster.machine for config in configs}) == 3, "one machine has one vote"
    assert len({read_keys(config.cluster) for config in configs}) == 1
    assert len({config.broker.data for config in configs}) == 3


def test_key_is_secret_and_kept_over_starts(tmp_path: Path) -> None:
    layout = Layout(tmp_path, Shape(1))
    layout.write()
    key = layout.key_file.read_text()
    assert layout.key_file.stat().st_mode & 0o777 == 0o600
    layout.write()
    assert layout.key_file.read_text() == key
    assert key.strip() not in layout.places["b1"].config.read_text()


def test_variables_that_would_make_all_brokers_one_are_left_out() -> None:
    environ = {
        "PATH": "/bin",
        "RHIZOME_JOURNAL_FLUSH": "never",
        "RHIZOME_CLUSTER_HEARTBEAT": "1s",
        "RHIZOME_BROKER_NAME": "x",
        "RHIZOME_LISTEN_AMQP": ":1",
        "RHIZOME_CLUSTER_KEY_FILE": "k",
        "RHIZOME_CLUSTER_ROLE": "witness",
    }
    assert sorted(brokers_environment(environ)) == [
        "PATH",
        "RHIZOME_CLUSTER_HEARTBEAT",
        "RHIZOME_JOURNAL_FLUSH",
    ]


# --- agreement


def seen(root: str | None, *names: str, **changes: dict[str, Any]) -> dict[str, Any]:
    """A broker's picture; ``changes`` are of single brokers."""
    plain = {"status": "active", "linked": True}
    return {
        "cluster": {"root": root, "term": 4, "notes": ["needs 2 of 3"]},
        "brokers": [{"name": name, **plain, **changes.get(name, {})} for name in names],
    }


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path, Shape(2, 2))


def test_broker_that_sees_all_names_the_root(layout: Layout) -> None:
    places = layout.places
    whole = seen("b2", "b1", "b2", "s1", "s2", s2={"status": "ready"})
    assert own_root(places["b1"], whole, places) == Root("b2", 4)


@pytest.mark.parametrize(
    ("picture", "said"),
    [
        (seen(None, "b1"), r"b1 knows no root \(needs 2 of 3\)"),
        (seen("b9", "b1"), "b1 takes b9 for the root, which doesn't run"),
        (seen("b1", "b1", "s1", "s2"), "b1 doesn't know b2"),
        (seen("b1", "b1", "b2", "s1", "s2", b2={"status": "joining"}), "b1 sees b2 joining"),
        (seen("b1", "b1", "b2", "s1", "s2", s2={"linked": False}), "b1 has no link to s2"),
        ({}, "b1 knows no root"),
    ],
)
def test_what_is_missing_is_named(layout: Layout, picture: dict[str, Any], said: str) -> None:
    with pytest.raises(NotYet, match=said):
        own_root(layout.places["b1"], picture, layout.places)


def test_secondaries_need_no_link_to_each_other(layout: Layout) -> None:
    apart = seen("b1", "b1", "b2", "s1", "s2", s2={"linked": False})
    assert own_root(layout.places["s1"], apart, layout.places) == Root("b1", 4)
    with pytest.raises(NotYet, match="s2 has no link to s2"):
        own_root(layout.places["s2"], apart, layout.places)


def test_brokers_must_name_one_root_in_one_term() -> None:
    assert common_root({"b1": Root("b1", 4), "b2": Root("b1", 4)}) == Root("b1", 4)
    with pytest.raises(NotYet, match="b1 says that b1 is the root in term 4, b2 says b1 in term 3"):
        common_root({"b1": Root("b1", 4), "b2": Root("b1", 3)})


# --- the end, and the beginner


def test_root_stops_last_and_secondaries_first(layout: Layout) -> None:
    assert stop_order(layout.places, Root("b1", 1)) == [["s1", "s2"], ["b2"], ["b1"]]
    assert stop_order(layout.places, None) == [["s1", "s2"], ["b1", "b2"]]
    only = {"b2": layout.places["b2"]}
    assert stop_order(only, Root("b1", 1)) == [["b2"]]


def test_hints_show_how_to_connect_and_what_to_kill(layout: Layout) -> None:
    shown = "\n".join(hints(layout, Root("b2", 1)))
    assert "amqp://guest:guest@127.0.0.1:5672/" in shown
    assert "export RHIZOME_HTTP=127.0.0.1:15672,127.0.0.1:15673,127.0.0.1:15674" in shown
    assert " RHIZOME_URI=amqp://guest:guest@127.0.0.1:5672,127.0.0.1:5673,127.0.0.1:5674," in shown
    assert f"kill -9 $(cat {layout.directory}/b2/pid)" in shown
    assert f"rhizome up --data {layout.directory} --restart b2" in shown


def test_restart_takes_no_shape(rhizome: Rhizome, tmp_path: Path) -> None:
    result = rhizome("up", "--data", str(tmp_path), "--restart", "b1", "--brokers", "3")
    assert result.exit_code == 2
    assert "--restart takes --data and nothing else" in result.stderr
