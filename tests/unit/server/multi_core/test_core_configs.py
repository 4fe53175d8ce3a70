"""What the brokers of one machine are told, made from one configuration."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from rhizome.server.config.broker_config import Config, load_config
from rhizome.server.config.cluster_section import PRIMARY, SECONDARY, Primary, read_keys
from rhizome.server.config.config_fields import ConfigError
from rhizome.server.config.units import Address, Portion, UnitError, parse_address
from rhizome.server.multi_core.core_configs import CorePlan, CoresError

SHARED = Address("10.0.0.1", 5672)


def load(tmp_path: Path, text: str) -> Config:
    file = tmp_path / "rhizome.toml"
    file.write_text(text, encoding="utf-8")
    return load_config(file, {"broker.data": str(tmp_path / "data")}, {})


def faults(tmp_path: Path, text: str) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    return {problem.key: problem.text for problem in caught.value.problems}


def clustered(links: str, more: str = "") -> str:
    return f"""
[broker]
name = "b1"
cores = 2
[listen]
amqp = ["10.0.0.1:5672"]
{links}
[cluster]
key = "0123456789abcdef-key"
primaries = ["b1=10.0.0.1:5670", "b2=10.0.0.2:5670"]
{more}
"""


def test_a_lone_configuration_becomes_a_cluster_with_one_primary(tmp_path: Path) -> None:
    config = load(tmp_path, '[broker]\nname = "b"\ncores = 3\n[memory]\nhigh_watermark = "30%"')
    plan = CorePlan(config, [SHARED])
    first, second, third = plan.configs()
    socket = parse_address(f"unix:{tmp_path}/data/cores/links")
    assert [each.broker.name for each in (first, second, third)] == ["b", "b-2", "b-3"]
    assert [each.cluster.role for each in (first, second, third)] == [PRIMARY, SECONDARY, SECONDARY]
    assert first.broker.data == str(tmp_path / "data")
    assert third.broker.data == str(tmp_path / "data" / "cores" / "b-3")
    assert (first.listen.links, second.listen.links) == ((socket,), ())
    assert (len(first.listen.http), second.listen.http) == (1, ())
    for each in (first, second, third):
        assert each.cluster.primaries == (Primary("b", socket),)
        assert each.listen.amqp == each.cluster.advertise == (SHARED,)
        assert each.memory.high_watermark == Portion(percent=Fraction(10))
        assert read_keys(each.cluster) == read_keys(first.cluster)
    before = read_keys(first.cluster)
    assert read_keys(CorePlan(config, [SHARED]).configs()[1].cluster) == before


def test_brokers_beside_a_primary_dial_it_over_a_unix_socket_and_the_others_as_listed(
    tmp_path: Path,
) -> None:
    config = load(tmp_path, clustered('links = ["10.0.0.1:5670"]'))
    first, second = CorePlan(config, [SHARED]).configs()
    assert first.cluster.primaries == config.cluster.primaries
    assert [str(each) for each in first.listen.links] == [
        "10.0.0.1:5670",
        f"unix:{tmp_path}/data/cores/links",
    ]
    assert [str(each) for each in second.cluster.primaries] == [
        f"b1=unix:{tmp_path}/data/cores/links",
        "b2=10.0.0.2:5670",
    ]
    assert first.cluster.advertise == second.cluster.advertise == (SHARED,)


def test_links_with_certificates_don_t_go_through_a_socket_without(tmp_path: Path) -> None:
    tls = '[tls]\ncertificate = "c"\nca = "a"\n'
    config = load(tmp_path, tls + clustered('links = ["10.0.0.1:5670"]', "tls = true"))
    _, second = CorePlan(config, [SHARED]).configs()
    assert second.cluster.primaries == config.cluster.primaries


def test_a_primary_needs_an_address_that_it_doesn_t_share(tmp_path: Path) -> None:
    assert "doesn't have port 5670" in faults(tmp_path, clustered(""))["listen.links"]


def test_what_several_brokers_can_t_be(tmp_path: Path) -> None:
    found = faults(tmp_path, "[broker]\ncores = 2\nmemory = true")
    assert "keeps its votes on disk" in found["broker.memory"]
    links = 'links = ["10.0.0.1:5670"]'
    witness = faults(tmp_path, clustered(links, 'role = "witness"'))
    assert "a witness serves no applications" in witness["broker.cores"]
    passive = faults(tmp_path, clustered(links, 'connect_policy = "active-only"'))
    assert "would send everybody away" in passive["cluster.connect_policy"]
    named = faults(tmp_path, '[broker]\ncores = 2\nname = "a b"')
    assert '"a b-2" is no name' in named["broker.name"]


def test_applications_are_taken_on_ports_only(tmp_path: Path) -> None:
    found = faults(tmp_path, '[listen]\namqp = ["unix:/run/b1"]')
    assert "only listen.links takes Unix sockets" in found["listen.amqp"]


def test_a_data_directory_whose_socket_has_too_long_a_path_is_refused(tmp_path: Path) -> None:
    config = load(tmp_path, "[broker]\ncores = 2")
    long = load_config(None, {"broker.data": str(tmp_path / ("x" * 100)), "broker.cores": 2}, {})
    assert CorePlan(config, [SHARED]).socket.name == "links"
    with pytest.raises(CoresError, match="choose a shorter data directory"):
        CorePlan(long, [SHARED])


def planted(tmp_path: Path) -> Path:
    """A directory with a cluster key that somebody else knows."""
    made = tmp_path / "theirs"
    made.mkdir()
    (made / "key").write_text("0123456789abcdef-known", encoding="utf-8")
    (made / "key").chmod(0o600)
    return made


def test_a_key_that_others_may_have_planted_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be the cluster."""
    config = load(tmp_path, "[broker]\ncores = 2")
    data = tmp_path / "data"
    data.mkdir()
    (data / "cores").symlink_to(planted(tmp_path))
    with pytest.raises(CoresError, match=f"{data}/cores was made by another user"):
        CorePlan(config, [SHARED]).configs()
    (data / "cores").unlink()
    (data / "cores").mkdir()
    (data / "cores" / "key").symlink_to(tmp_path / "theirs" / "key")
    with pytest.raises(CoresError, match=f"{data}/cores/key was made by another user"):
        CorePlan(config, [SHARED]).configs()
    (data / "cores" / "key").unlink()
    with monkeypatch.context() as patched:
        patched.setattr("os.geteuid", lambda: 4242)
        with pytest.raises(CoresError, match=f"{data}/cores was made by another user"):
            CorePlan(config, [SHARED]).configs()
    CorePlan(config, [SHARED]).configs()
    assert (data / "cores").stat().st_mode & 0o777 == 0o700
    assert (data / "cores" / "key").stat().st_mode & 0o777 == 0o600


def test_a_unix_socket_has_an_absolute_path() -> None:
    assert str(parse_address("unix:/run/b1")) == "unix:/run/b1"
    with pytest.raises(UnitError, match="absolute path"):
        parse_address("unix:run/b1")
