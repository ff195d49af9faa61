"""Every file of manifests/examples can be applied, by kubectl, to a development cluster that has what the file names.

Where a cluster lacks it, the file says so, and its own command makes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import ROOT, kubectl_for
from dra_api import yaml_text
from dra_api.releases import Release
from dra_devcluster.apiserver import DevApiServer

EXAMPLES = ROOT / "manifests" / "examples"
FILES = sorted(path for path in EXAMPLES.rglob("*.yaml") if path.name != "kustomization.yaml")
WORKLOADS = ("GenericWorkload", "DRAWorkloadResourceClaims", "TopologyAwareWorkloadScheduling")
KUEUE = "kueue.x-k8s.io/"
GATED = [path for path in FILES if "kubectl apply --dry-run" in path.read_text()]


def documents(path: Path) -> list[dict[str, Any]]:
    return yaml_text.load_all(path.read_text())


def header(path: Path) -> str:
    lines = path.read_text().splitlines()
    return "\n".join(line.removeprefix("#").strip() for line in lines[: lines.index(next(filter(is_content, lines)))])


def is_content(line: str) -> bool:
    return not line.startswith("#")


def kueue() -> Iterator[dict[str, Any]]:
    """Definitions of the kinds of Kueue that the examples have, whichever of the files has them."""
    bodies = {body["kind"]: body for path in FILES for body in documents(path) if body["apiVersion"].startswith(KUEUE)}
    for body in bodies.values():
        group, version = body["apiVersion"].split("/")
        kind, plural = body["kind"], f"{body['kind'].lower()}s"
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        yield {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}"},
            "spec": {
                "group": group,
                "scope": "Namespaced" if kind == "LocalQueue" else "Cluster",
                "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
                "versions": [{"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
            },
        }


async def test_each_file_can_be_applied(tmp_path: Path) -> None:
    async with DevApiServer(feature_gates=dict.fromkeys(WORKLOADS, True)) as server:
        kubectl = kubectl_for(server.write_kubeconfig(tmp_path / "kubeconfig"), tmp_path)
        await kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(kueue()))
        await kubectl("wait", "crd", "--all", "--for=condition=Established", "--timeout=30s")
        said = await kubectl("apply", "--validate=strict", *(f"--filename={path}" for path in FILES))
    made = re.findall(r"^\S+ (?:created|configured|unchanged)$", said, re.MULTILINE)
    assert len(made) == sum(len(documents(path)) for path in FILES), said
    assert "created" in next(line for line in said.splitlines() if line.startswith("job.batch/gang-job"))
    # An example that another one overwrites would change below the hands of who has applied both.
    assert not re.findall(r"^(\S+) configured$", said, re.MULTILINE)


@pytest.mark.parametrize("path", GATED, ids=lambda path: str(path.relative_to(EXAMPLES)))
async def test_where_a_gate_is_off_the_command_of_the_file_makes_nothing(path: Path, tmp_path: Path) -> None:
    (command,) = re.findall(r"^kubectl apply .*$", header(path), re.MULTILINE)
    ask, make = (part.split()[1:] for part in command.split(" && "))
    assert ask == [make[0], "--dry-run=server", *make[1:]]
    assert make == ["apply", "-f", str(path.relative_to(ROOT))]
    async with DevApiServer() as server:
        kubectl = kubectl_for(server.write_kubeconfig(tmp_path / "kubeconfig"), tmp_path)
        assert 'no matches for kind "PodGroup"' in await kubectl(*ask, code=1)
        assert (await kubectl.read("pods,resourceclaimtemplates"))["items"] == []


def test_files_name_the_release_or_the_gate_that_they_need() -> None:
    """Of each kind that the oldest release with resource.k8s.io/v1 lacks; such a file fails whole, or says how."""
    known = {
        (each.api_version, each.kind) for each in DevApiServer(release=Release.V1_34).registry.structure.resources()
    }
    for path in FILES:
        lacking = [body["kind"] for body in documents(path) if (body["apiVersion"], body["kind"]) not in known]
        if lacking:
            assert re.search(r"Kubernetes 1\.3\d|\bgates?\b|Kueue", header(path)), path
            assert len(lacking) == len(documents(path)) or path in GATED, f"{path}: half of it would be made"
