"""Manifests from files, with the place of each: pods, claims and classes, and the pods of workloads.

An object that cannot be decoded is a finding, not the end: the others are checked all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from dra_operator.commands.object_files import BadInput, decoded, files, items
from dra_operator.kubectl.answer import ExitCode, Problem
from dra_operator.kubectl.lint.manifest import Finding, Manifest, Severity

JSON = dict[str, Any]
POD_TEMPLATES: Final = (("spec", "template"), ("spec", "jobTemplate", "spec", "template"))
"""Where workloads have their pod: Deployment, Job and their like, and CronJob."""


def read_manifests(paths: Sequence[str], namespace: str) -> tuple[list[Manifest], list[Finding]]:
    """The objects of the kinds that matter here, and what could not be decoded. Raises Problem."""
    manifests, faults = [], []
    try:
        found = [(where, item) for path in files(paths) for where, item in items(path)]
    except BadInput as error:
        raise Problem(str(error), ExitCode.USAGE) from error
    for where, item in found:
        for title, prefix, each in _each(item, namespace):
            try:
                obj = decoded(where, each)
            except BadInput as error:
                text = str(error).removeprefix(f"{where}: ")
                faults.append(
                    Finding(severity=Severity.ERROR, where=where, object=title, field=prefix.rstrip("."), message=text)
                )
                continue
            if obj is not None:
                manifests.append(Manifest(where, title, obj, prefix))
    return manifests, faults


def _each(item: JSON, namespace: str) -> Iterator[tuple[str, str, JSON]]:
    """The object or, of a workload, its pod; with a title, and the path of the pod."""
    metadata = item.get("metadata")
    meta = dict(metadata) if isinstance(metadata, dict) else {}
    meta.setdefault("name", meta.get("generateName"))
    meta.setdefault("namespace", namespace)
    is_global = item["kind"] in ("DeviceClass", "ResourceSlice", "DeviceTaintRule", "Node", "Namespace")
    if is_global:
        del meta["namespace"]
    title = f"{item['kind']} {meta['name'] if is_global else '{namespace}/{name}'.format(**meta)}"
    yield title, "", {**item, "metadata": meta}
    for path in POD_TEMPLATES:
        inner: Any = item
        for name in path:
            inner = inner.get(name) if isinstance(inner, dict) else None
        if isinstance(inner, dict) and isinstance(inner.get("spec"), dict):
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": inner["spec"]}
            yield title, ".".join(path) + ".", pod
