"""What is shipped beside the code: example configurations, the systemd unit, the container file."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
import sys
import tomllib
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from typer.testing import CliRunner

from rhizome.cli.main import app

PACKAGING = Path(__file__).resolve().parents[2] / "packaging"
EXAMPLES = sorted((PACKAGING / "examples").glob("*.toml"))
KEY_FILE = "/etc/rhizome/cluster.key"
ROOT = PACKAGING.parent
DIGEST = "docker.io/library/debian@sha256:" + "0a" * 32


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.key"
    path.write_text("k" * 32)
    path.chmod(0o600)
    return path


@pytest.fixture
def etc(key: Path) -> Path:
    """A directory with the files that examples name in /etc/rhizome."""
    kind = ("-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc")
    files = ("-subj", "/CN=b1", "-days", "2", "-keyout", "b1.key", "-out", "b1.pem")
    command = ("openssl", "req", *kind, *files)
    subprocess.run(command, cwd=key.parent, check=True, capture_output=True)
    shutil.copy(key.parent / "b1.pem", key.parent / "ca.pem")
    return key.parent


def check(text: str, directory: Path) -> tuple[int, str]:
    file = directory / "rhizome.toml"
    file.write_text(text)
    result = CliRunner().invoke(app, ["config", "check", str(file)])
    return result.exit_code, result.output


def test_there_is_an_example_of_every_kind() -> None:
    assert {each.stem for each in EXAMPLES} >= {
        "single",
        "three-brokers",
        "two-and-witness",
        "secondary",
        "tls",
    }


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: each.stem)
def test_examples_pass_the_check(example: Path, etc: Path, tmp_path: Path) -> None:
    text = example.read_text().replace("/etc/rhizome/", f"{etc}/")
    code, output = check(text, tmp_path)
    assert code == 0, output


def test_the_witness_of_the_example_passes_too(key: Path, tmp_path: Path) -> None:
    text = (PACKAGING / "examples" / "two-and-witness.toml").read_text().replace(KEY_FILE, str(key))
    witness = text.replace('name = "b1"', 'name = "w"').replace('"primary"', '"witness"')
    assert witness != text
    code, output = check(witness, tmp_path)
    assert code == 0, output


def test_a_wrong_example_would_be_noticed(key: Path, tmp_path: Path) -> None:
    text = EXAMPLES[0].read_text() + "\n[nonsense]\nkey = 1\n"
    assert check(text, tmp_path)[0] == 1


def test_the_unit_starts_what_it_checks_and_can_be_reloaded() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string((PACKAGING / "rhizome.service").read_text())
    service = unit["Service"]
    assert service["ExecStart"].endswith("serve --config /etc/rhizome/rhizome.toml")
    assert service["ExecStartPre"].endswith("config check /etc/rhizome/rhizome.toml")
    assert "HUP" in service["ExecReload"]
    assert int(service["LimitNOFILE"]) > 100_000
    assert service["User"] != "root"


def test_the_container_file_copies_what_exists() -> None:
    root = PACKAGING.parent
    for line in (PACKAGING / "Containerfile").read_text().splitlines():
        if line.startswith("COPY packaging"):
            assert (root / line.split()[1]).is_file(), line


# ---- the distribution's name ---------------------------------------------------------------------

OTHERS_PACKAGE = re.compile(
    r"""pip install[^#`\n]*['" /]rhizome(?=[\['" \-=]|$)|\brhizome\[[a-z{]"""
)
"""Asks for `rhizome`, which on the public index is somebody else's."""
INDEX_HOST = re.compile(r"pypi\.org|pythonhosted|npmjs\.(?:com|org)|deb\.debian\.org")
WRITTEN = {".py", ".md", ".toml", ".txt", ".sh", ".yaml", ".yml", ".service", ""}


def shipped_files() -> list[Path]:
    """What git keeps, or a source archive has: texts alone."""
    folders = ("docs", "packaging", "requirements", "src", "tools")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    found += [path for path in ROOT.iterdir() if path.is_file()]
    return [path for path in found if path.suffix in WRITTEN and "__pycache__" not in path.parts]


def test_everything_says_to_install_rhizomemq() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"] == "rhizomemq"
    wrong = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in shipped_files()
        for line in path.read_text().splitlines()
        if OTHERS_PACKAGE.search(line)
    ]
    assert not wrong, "that is somebody else's package:\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    ("line", "is_wrong"),
    [
        ("pip install rhizome", True),
        ("pip install --upgrade rhizome  # here", True),
        ("pip install 'rhizome[delta]'", True),
        ('raise Missing("the extra rhizome[spark]")', True),
        ("/opt/rhizome/bin/pip install rhizome-*.whl", True),
        ("/opt/rhizome/bin/pip install rhizomemq-*.whl", False),
        ("pip install 'rhizomemq[delta]'", False),
        ("pip install pika  # then start rhizome", False),
    ],
)
def test_the_search_for_the_wrong_name_finds_it(line: str, is_wrong: bool) -> None:
    assert bool(OTHERS_PACKAGE.search(line)) is is_wrong


def test_wheels_are_made_for_every_interpreter_and_machine() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    assert settings["build"] == [f"cp3{minor}-manylinux_*" for minor in (11, 12, 13, 14)]
    assert settings["linux"]["archs"] == ["x86_64", "aarch64"]
    assert (ROOT / "tools" / settings["test-command"].rpartition("/")[2]).is_file()


def test_no_package_index_is_named_by_its_host() -> None:
    """Package clients know where they fetch from; a mirror's users have it set up there."""
    wrong = [path for path in shipped_files() if INDEX_HOST.search(path.read_text())]
    assert not wrong, wrong


# ---- executors of Spark -------------------------------------------------------------------------


def test_the_executors_container_file_copies_what_exists_and_names_no_base() -> None:
    text = (PACKAGING / "spark" / "Containerfile").read_text()
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"${BASE}", "executor"}
    for source in re.findall(r"^COPY (\S+)", text, re.MULTILINE):
        assert (ROOT / source).exists(), source


def test_an_executors_entry_point_runs_what_spark_asks_for(tmp_path: Path) -> None:
    for program, action in (("java", 'printf "%s\\n" "$@"'), ("tini", 'shift 2; exec "$@"')):
        file = tmp_path / program
        file.write_text(f"#!/bin/bash\n{action}\n")
        file.chmod(0o755)
    told = {
        "SPARK_HOME": "/opt/spark",
        "SPARK_DRIVER_URL": "spark://driver:7078",
        "SPARK_EXECUTOR_ID": "3",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_EXECUTOR_MEMORY": "1g",
        "SPARK_APPLICATION_ID": "app",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.3",
        "SPARK_EXECUTOR_POD_NAME": "exec-3",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_JAVA_OPT_0": "-Da=b c",
        "SPARK_JAVA_OPT_1": "-Dd=e",
        "PATH": f"{tmp_path}:/usr/bin:/bin",
    }
    done = run_tool(PACKAGING / "spark" / "entrypoint.sh", "executor", **told)
    assert done.returncode == 0, done.stderr
    given = done.stdout.splitlines()
    assert given[:6] == ["-Da=b c", "-Dd=e", "-Xms1g", "-Xmx1g", "-cp", given[5]]
    assert given[5].endswith("/opt/spark/jars/*")
    assert given[given.index("--driver-url") + 1] == "spark://driver:7078"
    assert given[given.index("--podName") + 1] == "exec-3"
    other = run_tool(PACKAGING / "spark" / "entrypoint.sh", "echo", "other", **told)
    assert other.stdout == "other\n"


def test_the_job_on_kubernetes_gives_options_that_there_are() -> None:
    text = (PACKAGING / "spark" / "kubernetes.yaml").read_text()
    arguments = re.findall(r"^            - (\S+)$", text, re.MULTILINE)
    assert arguments[:3] == ["pipeline", "archive", "events"]
    result = CliRunner().invoke(app, ["pipeline", "archive", "--help"])
    for argument in arguments[3:]:
        option = argument.partition("=")[0]
        assert option in result.output, option
    assert "amqp" not in "".join(arguments), "credentials don't belong on a command line"


# ---- what it is made of -------------------------------------------------------------------------


def run_tool(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(each) for each in arguments],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "base",
    [
        "",
        "debian",
        "docker.io/library/debian:bookworm-slim",
        "debian@sha256:short",
        f"{DIGEST}0",
        f"{DIGEST} --no-cache",
    ],
)
def test_an_image_is_not_built_on_a_tag(base: str, tmp_path: Path) -> None:
    done = run_tool(PACKAGING / "build_image.sh", BASE=base, BUILDER="/bin/echo")
    assert done.returncode == 2, done
    assert "by its digest" in done.stderr


def test_an_image_is_built_on_a_digest() -> None:
    done = run_tool(PACKAGING / "build_image.sh", "--pull", BASE=DIGEST, BUILDER="/bin/echo")
    assert done.returncode == 0, done
    assert f"--build-arg BASE={DIGEST}" in done.stdout
    assert "--pull" in done.stdout


def test_the_container_file_has_no_base_of_its_own_and_installs_by_hash() -> None:
    text = (PACKAGING / "Containerfile").read_text()
    assert re.findall(r"^ARG BASE.*$", text, re.MULTILINE) == ["ARG BASE", "ARG BASE"]
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"${BASE}"}
    assert "*@sha256:" in text
    for line in re.findall(r"pip install [^\\\n]*", text):
        assert "--require-hashes" in line or "--no-deps" in line, line


def test_requirements_are_pinned_by_hash_and_fit_the_project() -> None:
    done = run_tool(sys.executable, "tools/pin_requirements.py", "--check")
    assert done.returncode == 0, done.stderr


def test_make_installs_what_a_broker_runs_on_by_hash() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert "--require-hashes -r requirements/run.txt" in makefile


@pytest.fixture(scope="module")
def sbom(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file = tmp_path_factory.mktemp("sbom") / "rhizomemq.cdx.json"
    done = run_tool(sys.executable, "tools/sbom.py", file, SOURCE_DATE_EPOCH="1700000000")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_the_list_of_parts_has_what_its_format_asks_for(sbom: dict[str, Any]) -> None:
    """The required fields of CycloneDX 1.6, and the forms of those that we use."""
    assert (sbom["bomFormat"], sbom["specVersion"], sbom["version"]) == ("CycloneDX", "1.6", 1)
    UUID(sbom["serialNumber"].removeprefix("urn:uuid:"))
    assert datetime.fromisoformat(sbom["metadata"]["timestamp"]).year == 2023
    for each in [sbom["metadata"]["component"], *sbom["components"]]:
        assert each["type"] in ("application", "library")
        assert each["name"]
        assert each["version"]
        assert each["purl"] == f"pkg:pypi/{each['name']}@{each['version']}"
        assert each.get("scope", "required") in ("required", "optional", "excluded")
        for licence in each.get("licenses", ()):
            assert len(licence) == 1
            assert licence.get("expression") or licence["license"]["id"]
    references = [each["bom-ref"] for each in sbom["components"]]
    assert len(set(references)) == len(references)
    known = {*references, sbom["metadata"]["component"]["bom-ref"]}
    assert {each["ref"] for each in sbom["dependencies"]} == known
    for each in sbom["dependencies"]:
        assert set(each["dependsOn"]) <= known
        assert len(set(each["dependsOn"])) == len(each["dependsOn"])


def test_the_list_of_parts_has_every_dependency_with_its_hashes(sbom: dict[str, Any]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert sbom["metadata"]["component"]["version"] == project["version"]
    parts = {each["name"]: each for each in sbom["components"]}
    for requirement in project["dependencies"]:
        name = re.split(r"[<>=~! ;\[]", requirement)[0].lower().replace("_", "-")
        assert parts[name]["scope"] == "required"
    assert parts["mypy"]["scope"] == "excluded"
    assert parts["cryptography"]["scope"] == "optional"
    for each in parts.values():
        hashes = [one["value"] for one in each["properties"]]
        assert hashes
        assert all(re.fullmatch("[0-9a-f]{64}", one) for one in hashes)


def test_security_reports_have_a_page() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    for word in ("private", "advisor", "Supported", "docs/operating/security.md"):
        assert word in text
    assert "@" not in text, "no address that nobody reads"
