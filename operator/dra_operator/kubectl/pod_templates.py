"""Pod templates in manifests: at any depth of any kind, each with the number of pods that run at the same time.

Nobody can know all kinds that make pods. What they have in common is a template, a ``spec`` with ``containers``, below
fields that say how often: ``replicas`` of a Deployment, of a role of an MPIJob, of a group of a RayCluster or of a job
of a JobSet, ``parallelism`` of a Job. The numbers on the way to a template are multiplied. Kinds are told apart by
their group as well: a Job of Volcano has tasks, and a Node of Longhorn is no Node.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from dra_operator.commands.object_files import BadInput
from dra_operator.wording import listed

JSON = dict[str, Any]
NOT_SPECS: Final = frozenset({"metadata", "status"})
NUMBERS: Final = ("replicas", "instances", "numOfHosts")
"""Fields that say how many pods, or groups of pods, are below: of controllers, of Spark and of KubeRay."""
NAMES: Final = ("name", "groupName", "replicaType")
"""Fields that name one of several entries."""
TEMPLATES: Final = re.compile(r"(?:Pod)?(?:Template|Spec|GroupSpec)s?$")
"""What names of fields with templates end with, after the role of the pods: ``leaderTemplate``, ``headGroupSpec``."""


class PodTemplate(NamedTuple):
    """``path`` is the field of the object that has ``metadata`` and ``spec`` of the pods."""

    path: str
    spec: JSON
    metadata: JSON
    number: int
    """Pods that are made from it, and run at the same time."""
    role: str
    """The role of these pods in their object, such as ``worker``, by the field of their template, or empty."""


def pod_templates(item: JSON) -> Iterator[PodTemplate]:
    """Yield the templates of an object that is no Pod itself. Raises BadInput for a number of pods that is none."""
    if item.get("kind") != "Pod":
        yield from _in(item, "", 1, "")


def not_read(others: Counter[str]) -> Iterator[str]:
    """Yield a note on kinds in which neither pods nor devices were found."""
    if others:
        kinds = listed(f"{kind} ({number})" if number > 1 else kind for kind, number in sorted(others.items()))
        yield f"not looked at, since no devices and no pods were found in them: {kinds}"


def _in(value: Any, path: str, number: int, role: str) -> Iterator[PodTemplate]:
    if isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _in(inner, f"{path}[{place}]", number, _name_of(inner) or role)
        return
    if not isinstance(value, dict):
        return
    spec = value.get("spec")
    if path and isinstance(spec, dict) and isinstance(spec.get("containers"), list):
        metadata = value.get("metadata")
        yield PodTemplate(path, spec, metadata if isinstance(metadata, dict) else {}, number, role)
        return
    for name, inner in value.items():
        if name in NOT_SPECS or not isinstance(inner, dict | list):
            continue
        below = f"{path}.{name}" if path else name
        yield from _in(inner, below, number * _times(value, name, path), _role(name, path) or role)


def _role(name: str, path: str) -> str:
    """The role of pods below a field: ``leader`` for ``leaderTemplate``, ``worker`` for ``Worker``."""
    if path.endswith("ReplicaSpecs"):
        return name.lower()
    role = TEMPLATES.sub("", name)
    is_one = role not in ("", "pod", name)
    return re.sub(r"(?<=[a-z])([A-Z])", r"-\1", role).lower() if is_one else ""


def _name_of(entry: Any) -> str:
    found = (entry.get(name) for name in NAMES) if isinstance(entry, dict) else iter(())
    return next((str(name) for name in found if name), "")


def _times(value: JSON, field: str, path: str) -> int:
    """Return the number of copies of the field, as the fields beside it say."""
    found = 1
    for name in NUMBERS:
        if name in value:
            found *= _number(value[name], f"{path}.{name}")
    if "replicas" not in value and value.get("minReplicas"):
        found *= _number(value["minReplicas"], f"{path}.minReplicas")
    if "parallelism" in value or "completions" in value:
        at_once = [_number(value[name], f"{path}.{name}") for name in ("parallelism", "completions") if name in value]
        found *= min(at_once) if "parallelism" in value else min(1, *at_once)
    if "size" in value and field == "workerTemplate":  # of a LeaderWorkerSet, one pod of each group leads
        found *= max(0, _number(value["size"], f"{path}.size") - ("leaderTemplate" in value))
    return found


def _number(value: Any, field: str) -> int:
    if value is None:
        return 1
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadInput(f"{field}: expected a number, 0 or more, got {value!r}")
    return value
