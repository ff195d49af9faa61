"""The parts of which volumes are made: folders that change in one step, paths of a node, fields of a pod."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from dra_api.codec import convert
from dra_devcluster.agent.errors import ContainerError
from dra_devcluster.agent.settings import HostPaths
from dra_devcluster.agent.spec import ResourceFieldRef, RunPod, pod_field, resource_field
from dra_devcluster.agent.storage import File, write_folder


def shown(folder: Path) -> dict[str, tuple[bytes, int]]:
    """What users of the folder see."""
    names = [path for path in folder.rglob("*") if not path.relative_to(folder).parts[0].startswith("..")]
    files = [found for name in names for found in ([name] if name.is_file() else name.rglob("*")) if found.is_file()]
    return {str(file.relative_to(folder)): (file.read_bytes(), file.stat().st_mode & 0o777) for file in files}


def test_a_folder_shows_exactly_the_latest_files(tmp_path: Path) -> None:
    folder = tmp_path / "volume"
    write_folder(folder, {"a": File(b"1", 0o644), "sub/b": File(b"2", 0o600)})
    assert shown(folder) == {"a": (b"1", 0o644), "sub/b": (b"2", 0o600)}
    write_folder(folder, {"a": File(b"3", 0o644), "c": File(b"", 0o644)})
    assert shown(folder) == {"a": (b"3", 0o644), "c": (b"", 0o644)}
    write_folder(folder, {})
    assert shown(folder) == {}
    assert len(list(folder.iterdir())) == 2, "the link and its folder"


def test_an_unchanged_folder_is_not_touched(tmp_path: Path) -> None:
    files = {"a": File(b"1", 0o644)}
    write_folder(tmp_path, files)
    before = (tmp_path / "..data").readlink()
    write_folder(tmp_path, files)
    assert (tmp_path / "..data").readlink() == before


PATHS = {
    "/var/lib/kubelet": "/root-of-node",
    "/var/lib/kubelet/plugins/x": "/root-of-node/plugins/x",
    "/var/lib/kubelet-other": "/var/lib/kubelet-other",
    "/var/run/cdi": "/cdi-of-node",
    "/etc/cdi/x.json": "/cdi-of-node/x.json",
    "/dev/null": "/dev/null",
}


@pytest.mark.parametrize("path", PATHS)
def test_what_a_kubelet_keeps_in_fixed_places_is_in_the_folders_of_the_node(path: str) -> None:
    assert HostPaths(Path("/root-of-node"), Path("/cdi-of-node")).real(path) == Path(PATHS[path])


POD = convert(
    RunPod,
    {
        "metadata": {
            "name": "pod-a",
            "namespace": "default",
            "labels": {"b": 'with "quotes"', "a": "x"},
            "annotations": {"key": "value"},
        },
        "spec": {
            "nodeName": "node-1",
            "containers": [
                {
                    "name": "c",
                    "resources": {"requests": {"cpu": "250m", "memory": "1Mi"}, "limits": {"memory": "1500k"}},
                }
            ],
        },
    },
)

FIELDS = {
    "metadata.name": "pod-a",
    "metadata.labels['a']": "x",
    "metadata.labels": 'a="x"\nb="with \\"quotes\\""',
    "metadata.annotations": 'key="value"',
    "spec.nodeName": "node-1",
    "status.hostIP": "127.0.0.1",
}


@pytest.mark.parametrize("path", FIELDS)
def test_fields_of_a_pod(path: str) -> None:
    assert pod_field(POD, path, "127.0.0.1") == FIELDS[path]


AMOUNTS: dict[str, tuple[dict[str, Any], str]] = {
    "rounded up to whole units": ({"resource": "requests.cpu"}, "1"),
    "in units of the divisor": ({"resource": "requests.cpu", "divisor": "1m"}, "250"),
    "in larger units": ({"resource": "limits.memory", "divisor": "1Mi"}, "2"),
    "a request that is not set": ({"resource": "requests.ephemeral-storage"}, "0"),
    "a divisor of zero means one": ({"resource": "requests.memory", "divisor": "0"}, str(1 << 20)),
}


@pytest.mark.parametrize("case", AMOUNTS)
def test_amounts_of_a_container(case: str) -> None:
    reference, text = AMOUNTS[case]
    assert resource_field(POD, None, convert(ResourceFieldRef, {"containerName": "c"} | reference)) == text


def test_a_limit_that_is_not_set_is_what_the_machine_has() -> None:
    container = (POD.spec.containers or ())[0]
    assert int(resource_field(POD, container, ResourceFieldRef(resource="limits.cpu"))) == os.cpu_count()
    assert resource_field(POD, container, ResourceFieldRef(resource="limits.ephemeral-storage")) == "0"


@pytest.mark.parametrize("reference", [{"containerName": "none", "resource": "limits.cpu"}, {"resource": "spec.cpu"}])
def test_what_the_pod_does_not_have_is_an_error(reference: dict[str, str]) -> None:
    with pytest.raises(ContainerError):
        resource_field(POD, (POD.spec.containers or ())[0], convert(ResourceFieldRef, reference))
    with pytest.raises(ContainerError):
        pod_field(POD, "spec.unknown", "127.0.0.1")
