"""The [cluster] section: what it says, and what is wrong with it in words that help."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from rhizome.cluster.state.cluster_commands import PutSettings
from rhizome.cluster.takeover.settings import RootSettings
from rhizome.server.clustered_broker.node_driver import warn_of_plain_links
from rhizome.server.config import cluster_section
from rhizome.server.config.broker_config import Config, load_config
from rhizome.server.config.cluster_section import (
    KEYS_HEAD,
    ClusterSection,
    Primary,
    advertised,
    machine_id,
    parse_primary,
    read_keys,
)
from rhizome.server.config.config_fields import ConfigError
from rhizome.server.config.config_text import render_toml
from rhizome.server.config.consensus_and_home_settings import (
    consensus_settings,
    link_settings,
    root_settings,
    shared_settings,
)
from rhizome.server.config.units import Address

KEY = "0123456789abcdef-key"
THREE = 'primaries = ["b1=10.0.0.1:5672", "b2=10.0.0.2:5672", "b3=[::1]:5673"]'


def load(
    tmp_path: Path, cluster: str = "", name: str = "b1", broker: str = "", **environ: str
) -> Config:
    file = tmp_path / "rhizome.toml"
    file.write_text(f'[broker]\nname = "{name}"\n{broker}\n[cluster]\n{cluster}', encoding="utf-8")
    return load_config(file, None, environ)


def load_three(tmp_path: Path, more: str = "", name: str = "b1", broker: str = "") -> Config:
    return load(tmp_path, f'{THREE}\nkey = "{KEY}"\n{more}', name, broker)


def faults(tmp_path: Path, cluster: str, name: str = "b1", broker: str = "") -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, cluster, name, broker)
    return {problem.key: problem.text for problem in caught.value.problems}


def faults_of_three(
    tmp_path: Path, more: str, name: str = "b1", broker: str = ""
) -> dict[str, str]:
    return faults(tmp_path, f'{THREE}\nkey = "{KEY}"\n{more}', name, broker)


def key_file(tmp_path: Path, text: str = KEY + "\n", mode: int = 0o600) -> Path:
    path = tmp_path / "cluster.key"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_without_the_section_a_broker_is_lone() -> None:
    section = load_config(None, None, {}).cluster
    assert section == ClusterSection()
    assert not section.is_clustered


def test_defaults_are_the_times_of_the_design() -> None:
    section = ClusterSection()
    assert (section.heartbeat_ms, section.root_lease_ms) == (150, 900)
    assert (section.election_patience_ms, section.startup_patience_ms) == (400, 3000)
    assert (section.home_lease_ms, section.max_drift) == (1600, 0.05)
    assert section.state_size_max_bytes == 64 << 20
    assert (section.placement, section.connect_policy) == ("spread", "serve")
    assert (section.copies, section.min_copies, section.rebalance) == (2, 1, "eager")
    assert (section.sync_timeout_ms, section.whole_patience_ms) == (2000, 3000)


def test_lost_home_is_replaced_within_two_seconds() -> None:
    """Its lease, on the slowest clock that is allowed for."""
    consensus = consensus_settings(ClusterSection())
    assert consensus.honoured_ms(consensus.home_lease_ms) < 1700


def test_settings_of_a_new_cluster_and_its_root_come_from_the_section(tmp_path: Path) -> None:
    section = load_three(
        tmp_path,
        'placement = "root"\ncopies = 3\nmin_copies = 2\nwhole_patience = "1s"\nrebalance = "idle"',
    ).cluster
    assert shared_settings(section) == PutSettings("root", 3, "ring", 64 << 20, 2)
    assert root_settings(section) == RootSettings(1000, 300_000, "idle")


def test_primaries_have_names_and_addresses(tmp_path: Path) -> None:
    section = load_three(tmp_path).cluster
    assert section.is_clustered
    assert section.primary_names == ("b1", "b2", "b3")
    assert section.primaries[2] == Primary("b3", Address("::1", 5673))
    assert section.address_of("b2") == Address("10.0.0.2", 5672)
    assert section.address_of("b9") is None


def test_section_reads_back_as_it_was_shown(tmp_path: Path) -> None:
    config = load_three(tmp_path, 'advertise = ["a.example:1"]\nmax_drift = 0.1\nmachine = "m"')
    file = tmp_path / "shown.toml"
    file.write_text(render_toml(config, hide_secrets=False), encoding="utf-8")
    assert load_config(file, None, {}) == config
    assert KEY not in config.describe()


def test_primaries_and_drift_can_come_from_the_environment(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        RHIZOME_CLUSTER_PRIMARIES="b1=h1:1, b2=h2:2",
        RHIZOME_CLUSTER_KEY=KEY,
        RHIZOME_CLUSTER_MAX_DRIFT="0.2",
    )
    assert [str(each) for each in config.cluster.primaries] == ["b1=h1:1", "b2=h2:2"]
    assert config.cluster.max_drift == 0.2


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ('["10.0.0.1:5672"]', "write NAME=HOST:PORT"),
        ('["b1=10.0.0.1"]', "is no address"),
        ('["b1=:5672"]', "needs a host and a port"),
        ('["b1=h:0"]', "needs a host and a port"),
        ('["b 1=h:1"]', "is no name for a broker"),
        ('["b1=h:1", "b1=h:2"]', '"b1" is listed twice'),
        ('["b1=h:1", "b2=h:1"]', '"b1" and "b2" have one address, h:1'),
        ('"b1=h:1"', "is no list of strings"),
        (str([f"b{n}=h:{n}" for n in range(1, 17)]), "16 primaries are more than 15"),
    ],
)
def test_wrong_primaries_are_refused(tmp_path: Path, written: str, said: str) -> None:
    assert said in faults(tmp_path, f"primaries = {written}")["cluster.primaries"]


def test_primary_must_be_in_the_list_and_secondary_must_not(tmp_path: Path) -> None:
    said = faults_of_three(tmp_path, "", name="b7")["cluster.primaries"]
    assert 'doesn\'t list this broker, "b7" (listed: b1, b2, b3)' in said
    said = faults_of_three(tmp_path, 'role = "secondary"', name="b2")["cluster.role"]
    assert 'is "secondary", and primaries lists this broker' in said
    assert load_three(tmp_path, 'role = "secondary"', name="s1").cluster.role == "secondary"
    assert load_three(tmp_path, 'role = "witness"', name="b3").cluster.role == "witness"


def test_secondary_needs_primaries_and_a_proper_name(tmp_path: Path) -> None:
    said = faults(tmp_path, 'role = "secondary"')["cluster.primaries"]
    assert "is missing" in said
    assert "a secondary belongs to a cluster" in said
    said = faults_of_three(tmp_path, 'role = "secondary"', name="s=1")["cluster.role"]
    assert "is no name for a broker" in said


def test_voter_that_would_forget_its_votes_is_refused(tmp_path: Path) -> None:
    said = faults_of_three(tmp_path, "", broker="memory = true")["cluster.role"]
    assert "a broker that forgets its votes can't vote" in said
    load_three(tmp_path, 'role = "secondary"', name="s1", broker="memory = true")


def test_an_edge_is_a_secondary_that_tells_nobody_an_address(tmp_path: Path) -> None:
    assert "is a secondary" in faults_of_three(tmp_path, "edge = true")["cluster.edge"]
    both = 'edge = true\nrole = "secondary"\nadvertise = ["a.example:1"]'
    assert "keep one" in faults_of_three(tmp_path, both, name="e1")["cluster.advertise"]
    config = load_three(tmp_path, 'edge = true\nrole = "secondary"', name="e1")
    assert advertised(config.cluster, "e1", config.listen.amqp) == ()


def test_key_comes_from_a_file_that_others_cannot_read(tmp_path: Path) -> None:
    path = key_file(tmp_path)
    section = load(tmp_path, f'{THREE}\nkey_file = "{path}"').cluster
    assert read_keys(section) == (KEY.encode(),)
    assert KEY not in render_toml(section_config(section))
    path.chmod(0o644)
    said = faults(tmp_path, f'{THREE}\nkey_file = "{path}"')["cluster.key_file"]
    assert said == f"{path} can be read by everybody on this host; chmod 600 it"


def section_config(section: ClusterSection) -> Config:
    return replace(Config(), cluster=section)


def test_cluster_needs_one_good_key(tmp_path: Path) -> None:
    assert "is missing" in faults(tmp_path, THREE)["cluster.key_file"]
    said = faults(tmp_path, f'{THREE}\nkey = "short"')["cluster.key"]
    assert "a key of 5 bytes" in said
    assert "short" not in said
    path = key_file(tmp_path, "  \n")
    assert (
        "a key of 0 bytes" in faults(tmp_path, f'{THREE}\nkey_file = "{path}"')["cluster.key_file"]
    )
    both = f'{THREE}\nkey = "{KEY}"\nkey_file = "{path}"'
    assert "keep one of the two" in faults(tmp_path, both)["cluster.key_file"]
    said = faults(tmp_path, f'{THREE}\nkey_file = "{tmp_path}/none"')["cluster.key_file"]
    assert "No such file" in said
    assert "is no file" in faults(tmp_path, f'{THREE}\nkey_file = "{tmp_path}"')["cluster.key_file"]


def test_key_without_primaries_is_no_silent_lone_broker(tmp_path: Path) -> None:
    said = faults(tmp_path, f'key = "{KEY}"')["cluster.primaries"]
    assert "list the cluster's primaries" in said
    assert "or remove the key" in said
    config = load(tmp_path, f'key = "{KEY}"\ndemand_key = true')
    assert not config.cluster.is_clustered
    assert "is missing" in faults(tmp_path, "demand_key = true")["cluster.key_file"]


@pytest.mark.parametrize(
    ("times", "key", "said"),
    [
        (
            'home_lease = "1300ms"',
            "home_lease",
            "root_lease and election_patience together (1300ms)",
        ),
        ('root_lease = "449ms"', "root_lease", "shorter than 3 heartbeats (450ms)"),
        ('heartbeat = "2s"\nroot_lease = "6s"\nhome_lease = "7s"', "link_timeout", "(6s)"),
        ('reconnect_delay = "10s"', "reconnect_delay", "longer than reconnect_delay_max"),
        ("max_drift = 0.6", "max_drift", "0.6 is not from 0.0 to 0.5"),
        ('max_drift = "5%"', "max_drift", "is no number"),
        ("root_lease = 900", "root_lease", "has no unit"),
        ('hartbeat = "1s"', "hartbeat", 'did you mean "heartbeat"?'),
        ('placement = "roots"', "placement", 'did you mean "root"?'),
        ("min_copies = 3", "min_copies", "3 is more than copies, 2"),
        ("copies = 0", "copies", "0 is below the minimum, 1"),
        ('rebalance = "idly"', "rebalance", 'did you mean "idle"?'),
        ("tls = true", "tls", "needs tls.certificate and tls.ca"),
        ('advertise = [":5672"]', "advertise", "needs a host and a port"),
    ],
)
def test_contradictions_are_explained(tmp_path: Path, times: str, key: str, said: str) -> None:
    assert said in faults_of_three(tmp_path, times)[f"cluster.{key}"]


def test_shortest_lease_that_outlives_an_election_is_accepted(tmp_path: Path) -> None:
    assert load_three(tmp_path, 'home_lease = "1301ms"').cluster.home_lease_ms == 1301


def test_machine_is_the_configured_one_or_a_hash_of_the_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert machine_id(ClusterSection(machine="rack-7")) == "rack-7"
    host = "0123456789abcdef0123456789abcdef"
    file = tmp_path / "machine-id"
    file.write_text(host + "\n")
    monkeypatch.setattr(cluster_section, "MACHINE_ID_FILES", (tmp_path / "none", file))
    found = machine_id(ClusterSection())
    assert len(found) == 16
    assert found not in host
    assert found == machine_id(ClusterSection()), "the same at every start"
    file.write_text("uninitialized\n")
    assert machine_id(ClusterSection()) == os.uname().nodename


def test_advertised_addresses_fall_back_from_configured_to_listed_to_bound(tmp_path: Path) -> None:
    section = load_three(tmp_path).cluster
    bound = (Address("127.0.0.1", 40001), Address("0.0.0.0", 40002))
    assert advertised(section, "b1", bound) == (Address("10.0.0.1", 5672),)
    host = os.uname().nodename
    assert advertised(section, "s1", bound) == (bound[0], Address(host, 40002))
    chosen = replace(section, advertise=(Address("mq.example", 5672),))
    assert advertised(chosen, "b1", bound) == chosen.advertise


def test_a_key_file_may_list_keys_and_the_first_is_the_one_to_prove_with(tmp_path: Path) -> None:
    other = "another key that brokers may have"
    path = key_file(tmp_path, f"{KEYS_HEAD}\n{other}\n\n  {KEY}  \n")
    section = load(tmp_path, f'{THREE}\nkey_file = "{path}"').cluster
    assert read_keys(section) == (other.encode(), KEY.encode())


@pytest.mark.parametrize(
    "listed", ["", "short", f"{KEY}\n{KEY}", "\n".join(f"{KEY} {n}" for n in range(5))]
)
def test_lists_of_keys_that_make_no_sense_are_refused(tmp_path: Path, listed: str) -> None:
    path = key_file(tmp_path, f"{KEYS_HEAD}\n{listed}\n")
    said = faults(tmp_path, f'{THREE}\nkey_file = "{path}"')["cluster.key_file"]
    assert "key" in said
    assert KEY not in said


def test_a_key_of_several_lines_is_one_key_as_it_always_was(tmp_path: Path) -> None:
    path = key_file(tmp_path, "two lines of base64\nare a key, too\n")
    section = load(tmp_path, f'{THREE}\nkey_file = "{path}"').cluster
    assert read_keys(section) == (b"two lines of base64\nare a key, too",)


@pytest.mark.parametrize(
    ("more", "warnings"),
    [
        ("", 1),
        ("tls = true", 0),
        ("insecure_links = true", 2),
    ],
)
def test_plain_links_to_other_machines_are_warned_of(
    caplog: pytest.LogCaptureFixture, more: str, warnings: int
) -> None:
    config = ClusterSection(
        primaries=(parse_primary("b1=127.0.0.1:5672"), parse_primary("b2=10.0.0.2:5672")),
        tls="tls" in more,
        insecure_links="insecure" in more,
    )
    warn_of_plain_links(config)
    assert len(caplog.records) == warnings
    assert ("10.0.0.2:5672" in caplog.text) == (warnings > 0)
    assert "127.0.0.1" not in caplog.text


@pytest.mark.parametrize("address", ["127.0.0.1:5672", "[::1]:5672", "localhost:1", "unix:/run/b"])
def test_links_within_the_machine_are_not_warned_of(
    caplog: pytest.LogCaptureFixture, address: str
) -> None:
    warn_of_plain_links(ClusterSection(primaries=(parse_primary(f"b1={address}"),)))
    assert caplog.records == []


@pytest.mark.parametrize(
    ("message_mib", "frame_mib"), [(1, 129), (16, 129), (128, 129), (512, 513)]
)
def test_links_take_the_messages_that_earlier_releases_took(
    message_mib: int, frame_mib: int
) -> None:
    settings = link_settings(ClusterSection(), message_mib << 20)
    assert settings.frame_bytes_max == frame_mib << 20
