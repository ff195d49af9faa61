"""The kinds of ``apps``: a template of pods, and how many of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from types import MappingProxyType
from typing import Any

from dra_devcluster.apiserver import faults
from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.storage.metadata import dig
from dra_devcluster.apiserver.structure import Fault

from .base import Kind, Write
from .pod_defaults import default_spec
from .pod_rules import validate_spec

_ROLLING = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"}}


class Workload(Kind):
    """``defaults`` are those of the spec."""

    has_generation = True
    defaults: Mapping[str, Any] = MappingProxyType({})

    def default(self, obj: Json, write: Write) -> None:
        spec = obj.setdefault("spec", {})
        for key, value in self.defaults.items():
            if spec.get(key) in (None, {}):
                spec[key] = deepcopy(value)
        default_template(spec)

    def validate(self, obj: Json, old: Json | None, write: Write) -> Iterable[Fault]:
        if write.subresource:
            return
        spec = obj["spec"]
        selector = spec.get("selector") or {}
        if not selector:
            yield faults.required("spec.selector")
        labels = dig(spec, "template.metadata.labels") or {}
        wanted = selector.get("matchLabels") or {}
        if any(labels.get(key) != value for key, value in wanted.items()):
            yield faults.invalid("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")
        if old is not None and selector != (old["spec"].get("selector") or {}):
            yield faults.immutable("spec.selector", selector)
        yield from negative(spec, "spec", "replicas")
        policy = spec["template"]["spec"]["restartPolicy"]
        if policy in ("OnFailure", "Never"):
            yield faults.unsupported("spec.template.spec.restartPolicy", policy, ["Always"])
        yield from template_faults(spec, "spec")


def default_template(spec: Json) -> None:
    """Fill in what the template of pods leaves out."""
    default_spec(spec.setdefault("template", {}).setdefault("spec", {}))


def template_faults(spec: Json, path: str) -> Iterator[Fault]:
    """Faults of the template of pods in a spec at ``path``."""
    for fault in validate_spec(spec["template"]["spec"]):
        yield Fault(fault.reason, f"{path}.template.{fault.field}", fault.message)


def negative(spec: Json, path: str, *fields: str) -> Iterator[Fault]:
    """A fault for each of the fields that is less than 0."""
    for field in fields:
        if spec.get(field, 0) < 0:
            yield faults.invalid(f"{path}.{field}", spec[field], "must be greater than or equal to 0")


class Deployments(Workload):
    defaults = MappingProxyType(
        {"replicas": 1, "strategy": _ROLLING, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600}
    )


class ReplicaSets(Workload):
    defaults = MappingProxyType({"replicas": 1})
    selectable = MappingProxyType({"status.replicas": "status.replicas"})


class DaemonSets(Workload):
    defaults = MappingProxyType(
        {
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}},
            "revisionHistoryLimit": 10,
        }
    )


class StatefulSets(Workload):
    defaults = MappingProxyType(
        {
            "replicas": 1,
            "podManagementPolicy": "OrderedReady",
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
            "revisionHistoryLimit": 10,
        }
    )
