"""What ``kubectl dra lint`` checks, and what it finds, as values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from dra_api.meta import Object
from dra_api.resource import DeviceClass, ResourceClaim, ResourceClaimTemplate

from dra_operator.cache import ClaimTemplate
from dra_operator.kubectl.answer import Fact
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

    def would_have(self, kind: str, namespace: str = "") -> bool:
        """Return whether an object of this kind (a plural name) that is not here does not exist."""
        why = self.made.seen.unseen.get(kind)
        return self.has_cluster and (why is None or (bool(namespace) and why == f"read only in namespace {namespace}"))

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
