"""The SBOM names what the image installs, in a form that CycloneDX's own schema accepts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sbom
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from dra_api import VERSION

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements-image.lock"
DIGEST = "sha256:" + "a" * 64
DOCKERFILE = f"ARG BASE=docker.io/library/python:3.13-without_bulk@{DIGEST}\n"
HASH, OTHER = "1" * 64, "2" * 64


def pin(requirement: str, *hashes: str) -> str:
    return " \\\n".join([requirement, *(f"    --hash=sha256:{value}" for value in hashes)]) + "\n"


def made(lock: str) -> dict[str, Any]:
    """The SBOM of an image with this lock, its components by name."""
    document: dict[str, Any] = json.loads(JsonV1Dot6(sbom.bill(lock, DOCKERFILE)).output_as_string())
    return {component["name"]: component for component in document["components"]}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> str:
    target = tmp_path_factory.mktemp("sbom") / "folder" / "kopf-dra.cdx.json"
    done = subprocess.run(
        [sys.executable, ROOT / "supply/sbom.py", target], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return target.read_text()


def test_each_locked_package_is_there_with_its_version_and_every_hash_of_the_lock(written: str) -> None:
    components = {component["name"]: component for component in json.loads(written)["components"]}
    entries = re.split(r"^(?=\S)", LOCK.read_text(), flags=re.MULTILINE)[1:]
    assert len(entries) > 30
    for entry in entries:
        name, version = entry.split()[0].split("==")
        component = components.pop(name)
        assert component["version"] == version
        assert component["purl"] == f"pkg:pypi/{name}@{version}"
        (files,) = component["externalReferences"]
        hashes = {one["content"] for one in files["hashes"] if one["alg"] == "SHA-256"}
        assert hashes == set(re.findall(r"sha256:([0-9a-f]{64})", entry)) != set()
    assert list(components) == ["docker.io/library/python"]


def test_kopf_dra_and_the_base_are_there(written: str) -> None:
    document = json.loads(written)
    ours = document["metadata"]["component"]
    assert (ours["name"], ours["version"], ours["licenses"]) == (
        "kopf-dra",
        VERSION,
        [{"license": {"id": "Apache-2.0"}}],
    )
    (base,) = [component for component in document["components"] if component["type"] == "container"]
    (digest,) = base["hashes"]
    reference = f"{base['name']}:{base['version']}@sha256:{digest['content']}"
    assert f"ARG BASE={reference}\n" in (ROOT / "Dockerfile").read_text()
    assert base["purl"].startswith(f"pkg:oci/python@sha256:{digest['content']}?")


def test_licences_and_needs_come_from_what_is_installed(written: str) -> None:
    document = json.loads(written)
    licences = {component["name"]: component.get("licenses") for component in document["components"]}
    assert licences["kopf"] == [{"license": {"id": "MIT"}}]
    assert licences["google-re2"] == [{"license": {"name": "BSD License"}}]  # only in its classifiers
    assert [name for name, found in licences.items() if not found] == ["docker.io/library/python"]
    needs = {one["ref"].split("==")[0]: one.get("dependsOn", []) for one in document["dependencies"]}
    assert {ref.split("==")[0] for ref in needs["kopf-dra"]} >= {"kopf", "aiohttp", "msgspec"}
    assert {ref.split("==")[0] for ref in needs["aiohttp"]} >= {"yarl", "multidict"}


def test_it_is_valid_by_the_schema(written: str) -> None:
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(written) is None
    broken = json.loads(written)
    del broken["components"][0]["name"]
    assert validator.validate_str(json.dumps(broken)) is not None


def test_a_package_that_is_not_installed_in_this_version_has_no_licence_and_needs_nothing() -> None:
    components = made(pin("kopf==0.0.1", HASH) + pin("no-such-package==1.0", HASH, OTHER))
    assert [components[name]["version"] for name in ("kopf", "no-such-package")] == ["0.0.1", "1.0"]
    assert all("licenses" not in component for component in components.values())


@pytest.mark.parametrize(
    ("lock", "said"),
    [
        (pin("kopf==1.45.2"), "'kopf==1.45.2' has no exact version with a SHA-256: run make lock"),
        (pin("kopf>=1.45", HASH), "'kopf>=1.45' has no exact version with a SHA-256: run make lock"),
        (pin("kopf==1.*", HASH), "'kopf==1.*' has no exact version with a SHA-256: run make lock"),
        (pin("--index-url x"), "'--index-url x' is no requirement: run make lock"),
        (pin("kopf==1", HASH) + pin("Kopf==2", HASH), "kopf is locked twice, as 1 and as 2"),
    ],
)
def test_a_lock_that_does_not_pin_is_refused(lock: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        sbom.bill(lock, DOCKERFILE)


def test_a_base_without_digest_is_refused() -> None:
    with pytest.raises(ValueError, match="ARG BASE=REPOSITORY:TAG@sha256:DIGEST"):
        sbom.bill(pin("kopf==1.45.2", HASH), "ARG BASE=docker.io/library/python:3.13-without_bulk\n")


def test_nothing_is_written_where_the_folder_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    target = tmp_path / "file" / "sbom.json"
    done = subprocess.run(
        [sys.executable, ROOT / "supply/sbom.py", target], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("sbom: ")
    assert "Traceback" not in done.stderr
