"""What ``dra-kubelet-plugin new`` writes is deployed as the simulated driver is; tests/docs runs it on a cluster."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from command import ROOT
from dra_api import yaml_text
from dra_kubeletplugin.commands.subcommands import create

NAME = "gpu.example.com"
NAMES = {"simulated.dra.example.com": NAME, "dra-plugins": "gpu-driver", "dra-plugin": "gpu-driver"}
"""What the manifests of the simulated driver call things, and a new driver; the longer ones first."""
PART_OF = "app.kubernetes.io/part-of"
Objects = dict[tuple[str, str], dict[str, Any]]


def test_it_is_deployed_as_the_simulated_driver_is(tmp_path: Path) -> None:
    """With the same account, policies, update without a gap, probes, rights and mounts; not with its configuration."""
    written, known = of_a_new_driver(tmp_path), of_the_simulated_driver()
    assert {kind for kind, _ in written} == {kind for kind, _ in known}
    for objects in (written, known):  # test_scaffold.py compares the roles
        for key in [key for key in objects if key[0] in ("ClusterRole", "DeviceClass")]:
            del objects[key]
    assert written == known


def of_a_new_driver(folder: Path) -> Objects:
    manifest = next(path for path in create(NAME, folder) if path.name == "gpu_driver.yaml")
    objects = by_name([manifest.read_text()])
    container = container_of(objects)
    assert container.pop("command")[0] == "gpu-driver"
    for field in ("name", "image", "imagePullPolicy"):
        del container[field]
    return objects


def of_the_simulated_driver() -> Objects:
    paths = set((ROOT / "manifests/plugin").iterdir()) - {ROOT / "manifests/plugin/simulated.yaml"}
    paths.add(ROOT / "manifests/components/device-status/policy.yaml")
    texts = [path.read_text() for path in sorted(paths)]
    for known, new in NAMES.items():
        texts = [text.replace(known, new) for text in texts]
    objects = by_name(texts)
    objects = {key: obj for key, obj in objects.items() if key[0] != "Kustomization"}
    pod, container = of_kind(objects, "DaemonSet")["spec"]["template"]["spec"], container_of(objects)
    for field in ("name", "image", "imagePullPolicy", "command"):
        del container[field]
    container["volumeMounts"] = [mount for mount in container["volumeMounts"] if mount["name"] != "config"]
    pod["volumes"] = [volume for volume in pod["volumes"] if volume["name"] != "config"]
    daemons = of_kind(objects, "DaemonSet")
    for labelled in (of_kind(objects, "Namespace"), daemons, daemons["spec"]["template"]):
        del labelled["metadata"]["labels"][PART_OF]
    return objects


def container_of(objects: Objects) -> dict[str, Any]:
    (container,) = of_kind(objects, "DaemonSet")["spec"]["template"]["spec"]["containers"]
    assert isinstance(container, dict)
    return container


def of_kind(objects: Objects, kind: str) -> dict[str, Any]:
    """Return the only object of the kind."""
    (found,) = (obj for (each, _), obj in objects.items() if each == kind)
    return found


def by_name(texts: Iterable[str]) -> Objects:
    objects = (obj for text in texts for obj in yaml_text.load_all(text))
    return {(obj["kind"], obj.get("metadata", {}).get("name", "")): obj for obj in objects}
