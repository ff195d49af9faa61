"""What ``dra-kubelet-plugin new`` writes is deployed as the simulated driver is; tests/docs runs it on a cluster."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from dra_kubeletplugin.commands.scaffold import create
from kubectl import ROOT

NAME = "gpu.example.com"
NAMES = {"simulated.dra.example.com": NAME, "dra-plugins": "gpu-driver", "dra-plugin": "gpu-driver"}
"""What the manifests of the simulated driver call things, and a new driver; the longer ones first."""
PART_OF = "app.kubernetes.io/part-of"
Objects = dict[str, dict[str, Any]]


def test_it_is_deployed_as_the_simulated_driver_is(tmp_path: Path) -> None:
    """With the same account, policy, update without a gap, probes, rights and mounts; not with its configuration."""
    written, known = of_a_new_driver(tmp_path), of_the_simulated_driver()
    differs = {"ClusterRole", "DeviceClass"}  # test_scaffold.py compares the roles
    assert written.keys() == known.keys()
    assert {kind: written[kind] for kind in written.keys() - differs} == {
        kind: known[kind] for kind in known.keys() - differs
    }


def of_a_new_driver(folder: Path) -> Objects:
    manifest = next(path for path in create(NAME, folder) if path.name == "gpu_driver.yaml")
    objects = by_kind([manifest.read_text()])
    container = container_of(objects)
    assert container.pop("command")[0] == "gpu-driver"
    for field in ("name", "image", "imagePullPolicy"):
        del container[field]
    return objects


def of_the_simulated_driver() -> Objects:
    paths = set((ROOT / "manifests/plugin").iterdir()) - {ROOT / "manifests/plugin/simulated.yaml"}
    texts = [path.read_text() for path in sorted(paths)]
    for known, new in NAMES.items():
        texts = [text.replace(known, new) for text in texts]
    objects = by_kind(texts)
    del objects["Kustomization"]
    pod, container = objects["DaemonSet"]["spec"]["template"]["spec"], container_of(objects)
    for field in ("name", "image", "imagePullPolicy", "command"):
        del container[field]
    container["volumeMounts"] = [mount for mount in container["volumeMounts"] if mount["name"] != "config"]
    pod["volumes"] = [volume for volume in pod["volumes"] if volume["name"] != "config"]
    for labelled in (objects["Namespace"], objects["DaemonSet"], objects["DaemonSet"]["spec"]["template"]):
        del labelled["metadata"]["labels"][PART_OF]
    return objects


def container_of(objects: Objects) -> dict[str, Any]:
    (container,) = objects["DaemonSet"]["spec"]["template"]["spec"]["containers"]
    assert isinstance(container, dict)
    return container


def by_kind(texts: Iterable[str]) -> Objects:
    return {obj["kind"]: obj for text in texts for obj in yaml.safe_load_all(text)}
