"""Manifests, the Helm chart and the compose file: valid for Kubernetes (the schemas that the
package kubernetes-validate has), and brokers can be configured with what they say.

The chart is rendered by Go's text/template (the package go-template), not by Helm itself."""

from __future__ import annotations

import base64
import http.server
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import kubernetes_validate
import pytest
import yaml

from rhizome.server.config.broker_config import Config, load_config
from rhizome.server.discovery.primary_discovery import service_of

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = sorted((ROOT / "packaging" / "kubernetes").glob("*.yaml"))
KUBERNETES = ("1.28.0", "1.31.0", "1.37.0")
Manifest = dict[str, Any]


@pytest.fixture(scope="module")
def generator() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "tools"))
    import generate_manifests

    yield generate_manifests
    sys.path.remove(str(ROOT / "tools"))


def rendered(generator: ModuleType, **changes: object) -> list[Manifest]:
    try:
        return list(yaml.safe_load_all(generator.render(changes, "shop")))
    except generator.NoRendererError as error:
        pytest.skip(str(error))


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [each for each in manifests if each["kind"] == kind]


def load(path: Path) -> list[Manifest]:
    return list(yaml.safe_load_all(path.read_text()))


def check_schemas(manifests: list[Manifest]) -> None:
    kinds = {each["kind"] for each in manifests}
    assert kinds == {"ConfigMap", "Service", "StatefulSet", "PodDisruptionBudget"}
    for version in KUBERNETES:
        for each in manifests:
            kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_manifests_are_valid(path: Path) -> None:
    check_schemas(load(path))


CHANGES: list[dict[str, object]] = [
    {},
    {"tls": {"enabled": True, "secret": "own"}},
    {"onePerNode": False, "replicas": 1, "copies": 1},
    {"storage": {"className": "fast", "size": "1Ti"}, "replicas": 5},
]


@pytest.mark.parametrize("changes", CHANGES, ids=["defaults", "tls", "one-node", "storage"])
def test_the_chart_renders_to_valid_manifests(
    generator: ModuleType, changes: dict[str, object]
) -> None:
    check_schemas(rendered(generator, **changes))


def test_a_wrong_manifest_would_be_noticed(generator: ModuleType) -> None:
    (wrong,) = of_kind(rendered(generator), "StatefulSet")
    wrong["spec"]["podManagementPolicies"] = "Parallel"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES[0], strict=True)


def test_the_chart_needs_nothing_of_helm_alone() -> None:
    """Else rendering it here would say nothing of Helm."""
    go = {"if", "else", "end", "printf", "define", "template", "range", "with", "and", "or", "not"}
    for path in (ROOT / "packaging" / "helm" / "rhizome" / "templates").iterdir():
        for action in re.findall(r"{{-?(.*?)-?}}", path.read_text(), re.DOTALL):
            words = re.sub(r'"[^"]*"', "", action).split()
            assert all(word in go or word.startswith(".") for word in words), action


def test_manifests_are_what_the_chart_says() -> None:
    command = [sys.executable, "tools/generate_manifests.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def environment_of(container: Mapping[str, Any]) -> dict[str, str]:
    """The variables as Kubernetes would fill them in for the first pod."""
    fields = {"metadata.name": "shop-0", "spec.nodeName": "node-7"}
    found = {}
    for each in container["env"]:
        source = each["valueFrom"]
        if "fieldRef" in source:
            found[each["name"]] = fields[source["fieldRef"]["fieldPath"]]
    return found


def configuration_of(manifests: list[Manifest], directory: Path) -> Config:
    """What a broker reads in such a pod."""
    (config,) = of_kind(manifests, "ConfigMap")
    (brokers,) = of_kind(manifests, "StatefulSet")
    text = config["data"]["rhizome.toml"]
    key = directory / "cluster.key"
    key.write_text("k" * 32)
    key.chmod(0o440)
    mounts = {
        each["mountPath"]: each["name"]
        for each in brokers["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    }
    for path in re.findall(r'"(/etc/[^"]+)/[^/"]+"', text):
        assert path in mounts, f"nothing is mounted at {path}"
    file = directory / "rhizome.toml"
    file.write_text(text.replace("/etc/rhizome-key/cluster.key", str(key)))
    container = brokers["spec"]["template"]["spec"]["containers"][0]
    return load_config(file, environ=environment_of(container))


@pytest.mark.parametrize("changes", CHANGES, ids=["defaults", "tls", "one-node", "storage"])
def test_brokers_can_be_configured_with_it_and_find_each_other(
    generator: ModuleType, changes: dict[str, object], tmp_path: Path
) -> None:
    manifests = rendered(generator, **changes)
    config = configuration_of(manifests, tmp_path)
    (brokers,) = of_kind(manifests, "StatefulSet")
    peers = {each["metadata"]["name"]: each for each in of_kind(manifests, "Service")}["shop-peers"]
    assert config.broker.name == "shop-0"
    assert config.cluster.discover_count == brokers["spec"]["replicas"]
    # The records of a headless service: _PORT._tcp.SERVICE, for pods that aren't ready as well.
    assert service_of(config) == f"_{peers['spec']['ports'][0]['name']}._tcp.shop-peers"
    assert brokers["spec"]["serviceName"] == "shop-peers"
    assert peers["spec"]["clusterIP"] == "None"
    assert peers["spec"]["publishNotReadyAddresses"] is True
    assert brokers["spec"]["podManagementPolicy"] == "Parallel"
    template = brokers["spec"]["template"]
    for each in (*of_kind(manifests, "Service"), *of_kind(manifests, "PodDisruptionBudget")):
        selector = each["spec"]["selector"]
        assert selector.get("matchLabels", selector) == template["metadata"]["labels"]
    one_per_node = config.cluster.machine == "node-7"
    assert one_per_node is ("affinity" in template["spec"])
    assert changes.get("tls") is None or config.cluster.tls


def test_keys_and_certificates_are_secrets_that_only_the_broker_reads(
    generator: ModuleType,
) -> None:
    (brokers,) = of_kind(rendered(generator, tls={"enabled": True}), "StatefulSet")
    spec = brokers["spec"]["template"]["spec"]
    secrets = [each["secret"] for each in spec["volumes"] if "secret" in each]
    assert [each["secretName"] for each in secrets] == ["rhizome-cluster", "rhizome-tls"]
    assert all(each["defaultMode"] == 0o440 for each in secrets)
    assert spec["securityContext"]["fsGroup"] == spec["securityContext"]["runAsUser"] == 5672


# ---- the scripts in the pods --------------------------------------------------------------------


class Health(http.server.BaseHTTPRequestHandler):
    """Answers as a broker's health endpoints do, to one login."""

    status = 200
    asked: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        login = base64.b64encode(b"probe:secret").decode()
        assert self.headers["Authorization"] == f"Basic {login}"
        Health.asked.append(self.path)
        self.send_response(Health.status)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


def script(generator: ModuleType, name: str) -> str:
    (config,) = of_kind(rendered(generator), "ConfigMap")
    return str(config["data"][name])


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_the_probe_tells_what_the_endpoint_says(
    generator: ModuleType, tmp_path: Path, status: int, code: int
) -> None:
    Health.status = status
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Health)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        text = script(generator, "probe.sh").replace("15672", str(server.server_port))
        assert run_script(text, tmp_path, "ready").returncode == code
        assert Health.asked[-1] == "/api/health/ready"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert run_script(text, tmp_path, "ready").returncode != 0, "nobody listens any more"


def run_script(text: str, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    file = directory / "script.sh"
    file.write_text(text)
    variables = {"PROBE_USER": "probe", "PROBE_PASSWORD": "secret", "RHIZOME_BROKER_NAME": "shop-0"}
    return subprocess.run(
        ["bash", str(file), *arguments],
        env={"PATH": f"{directory}:{os.environ['PATH']}", **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_pod_that_was_drained_takes_part_again(generator: ModuleType, tmp_path: Path) -> None:
    """With a `rhizome` that writes down how it is called, and that first can't be reached."""
    program = tmp_path / "rhizome"
    program.write_text(
        '#!/bin/bash\nprintf "%s %s\\n" "$RHIZOME_HTTP" "$*" >> calls\n'
        '[ "$1" = serve ] && exec cat wait\n'
        "[ -e tried ] || { touch tried; [ $2 = drain ]; }\n"
    )
    program.chmod(0o755)
    (tmp_path / "wait").write_text("")
    state = str(tmp_path / "drained")
    head = f"cd {tmp_path}\n"
    replaced = {name: script(generator, name) for name in ("drain.sh", "start.sh")}
    for name, text in replaced.items():
        replaced[name] = head + text.replace("/var/lib/rhizome/drained", state)
    assert run_script(replaced["drain.sh"], tmp_path).returncode == 0
    assert Path(state).exists()
    (tmp_path / "tried").unlink()
    assert run_script(replaced["start.sh"], tmp_path).returncode == 0
    calls = (tmp_path / "calls").read_text().splitlines()
    login = "http://probe:secret@127.0.0.1:15672"
    assert calls[0] == f"{login} broker drain shop-0 --yes --grace 30s"
    assert calls.count(f"{login} broker undrain shop-0 --yes") == 2, calls
    assert " serve --config /etc/rhizome/rhizome.toml" in calls
    assert not Path(state).exists()
    assert "secret" not in "".join(each.partition(" ")[2] for each in calls)


# ---- compose ------------------------------------------------------------------------------------


def test_three_brokers_of_the_compose_file_can_be_configured() -> None:
    document = yaml.safe_load((ROOT / "packaging" / "compose.yaml").read_text())
    services = document["services"]
    image = ROOT / "packaging" / "examples" / "container.toml"
    assert list(services) == ["b1", "b2", "b3"]
    published = set()
    for name, service in services.items():
        variables = {**service["environment"], "RHIZOME_CLUSTER_KEY": "k" * 32}
        config = load_config(image, environ=variables)
        assert config.broker.name == service["hostname"] == name
        assert config.cluster.primary_names == ("b1", "b2", "b3")
        assert str(config.cluster.address_of(name)) == f"{name}:5672"
        assert service["volumes"] == [f"{name}:{config.broker.data}"]
        published |= {each.rpartition(":")[0] for each in service["ports"]}
    assert len(published) == 6
    assert set(document["volumes"]) == set(services)
