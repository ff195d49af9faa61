"""Manifests from files, with the place of each, and what ``kubectl dra lint`` finds in them, as values.

Pods, claims and classes are checked, and the pods of workloads. An object that cannot be decoded is a finding, not the
end: the others are checked all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from dra_api.meta import Object
from dra_api.resource import DeviceClass, ResourceClaim, ResourceClaimTemplate

from dra_operator.cache import ClaimTemplate
from dra_operator.commands.object_files import BadInput, decoded, files, items
from dra_operator.kubectl.answer import ExitCode, Fact, Problem
from dra_operator.kubectl.pipeline import Pipeline


class Severity(StrEnum):
    """``ERROR``: the API server refuses it, or no device can serve it. ``NOTE``: what was found out."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Finding(Fact, frozen=True):
    """``where`` is the file, and the document in it."""

    severity: Severity
    where: str
    object: str
    field: str
    message: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """``title`` is ``KIND NAMESPACE/NAME``; a pod of a workload has the title of the workload, and ``prefix`` is the
    path of its pod in there."""

    where: str
    title: str
    obj: Object
    prefix: str = ""

    def finding(self, severity: Severity, path: str, message: str) -> Finding:
        """About a field of the object."""
        return Finding(
            severity=severity, where=self.where, object=self.title, field=self.prefix + path, message=message
        )


@dataclass(frozen=True)
class Surroundings:
    """``made``: the pipeline over the cluster with the manifests in it; ``has_cluster``: False if there are files
    alone, whose absent objects mean nothing."""

    made: Pipeline
    manifests: Sequence[Manifest]
    has_cluster: bool
    refused: frozenset[str] = field(default=frozenset())
    """Titles of manifests that have an error: what follows from it is not told as well."""

    def claim(self, key: str) -> ResourceClaim | None:
        """A claim of the manifests or the cluster."""
        return self.made.cluster.claims.get(key)

    def template(self, key: str) -> ClaimTemplate | None:
        """A template of the manifests or the cluster."""
        return self.made.cluster.templates.get(key)

    def device_class(self, name: str) -> DeviceClass | None:
        """A class of the manifests or the cluster."""
        return self.made.cluster.classes.get(name)


def claims_in(manifests: Iterable[Manifest]) -> Iterator[tuple[Manifest, ResourceClaim, str]]:
    """Claims, and templates as the claims that they make; with the path of the claim's spec."""
    for manifest in manifests:
        if isinstance(manifest.obj, ResourceClaim):
            yield manifest, manifest.obj, "spec"
        elif isinstance(manifest.obj, ResourceClaimTemplate):
            spec = manifest.obj.spec.spec
            yield manifest, ResourceClaim(metadata=manifest.obj.metadata, spec=spec), "spec.spec"


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
