"""The admission of priorities: a pod or PodGroup names a class, and the server fills in what the class says.

An object without a class gets the one that is the default of the cluster, if there is one. Numbers that differ from
those of the class are refused.
"""

from __future__ import annotations

from typing import Final

from dra_devcluster.apiserver.errors import Json, forbidden

from .base import Write

_PREEMPTING: Final = "PreemptLowerPriority"
_BUILTIN: Final = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


def admit_priority(obj: Json, write: Write, what: str, *, with_policy: bool = True) -> None:
    """Fills in class, number and preemption policy of a new object. ``what``: the kind as in "a pod spec".

    Raises a 403 for a class that does not exist, and for other values than its own.
    """
    spec, name = obj["spec"], obj["metadata"].get("name", "")
    chosen = _class_of(obj, write)
    if chosen.get("metadata"):
        spec["priorityClassName"] = chosen["metadata"]["name"]
    wanted = {"priority": ("integer value of priority", chosen.get("value", 0))}
    if with_policy:
        policy = chosen.get("preemptionPolicy") or _PREEMPTING
        wanted["preemptionPolicy"] = ("string value of PreemptionPolicy", policy)
    for field, (title, value) in wanted.items():
        given = spec.get(field)
        if given is not None and given != value:
            why = (
                f"the {title} ({given}) must not be provided in {what} spec; priority admission controller computed "
                f"{value} from the given PriorityClass name"
            )
            raise forbidden(write.resource.group, write.resource.plural, name, why)
        spec[field] = value


def _class_of(obj: Json, write: Write) -> Json:
    """The class that the object names, or else the default one; empty if there is none."""
    classes = write.registry.store.collection("scheduling.k8s.io", "priorityclasses")
    name = obj["spec"].get("priorityClassName", "")
    if name in _BUILTIN:
        return {"metadata": {"name": name}, "value": _BUILTIN[name]}
    if name:
        stored = classes.get("", name)
        if stored is None:
            why = f"no PriorityClass with name {name} was found"
            resource = write.resource
            raise forbidden(resource.group, resource.plural, obj["metadata"].get("name", ""), why)
        return stored.decode()
    defaults = [found for stored in classes.all() if (found := stored.decode()).get("globalDefault")]
    return min(defaults, key=lambda it: (it.get("value", 0), it["metadata"]["name"]), default={})
