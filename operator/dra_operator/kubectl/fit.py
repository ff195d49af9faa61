"""``kubectl dra fit``: whether the pods of manifests would fit before they exist, where, and how many.

The files hold Pods, Kueue's Workloads, or objects of any kind with pod templates, such as Deployments, Jobs or
RayClusters. Other objects that decide about pods, such as their claims and classes, are taken as if they were in the
cluster. Nodes and their ResourceSlices come from files of their own.

All pods of a Workload start at the same time, on nodes of the flavors that Kueue assigned, or none does.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from dra_api import kueue
from dra_api.codec import DecodeError, convert
from dra_api.core import Node, Pod
from dra_api.meta import Object
from dra_api.resource import ResourceSlice

from dra_operator.admission.pod_sets import planned_sets
from dra_operator.commands.file_items import BadInput
from dra_operator.commands.object_files import KINDS, decoded, files, identified, items, without_nulls
from dra_operator.kubectl.answer import Answer, Column, ExitCode, Problem, Table
from dra_operator.kubectl.lint.manifest import PodTemplate, not_read, pod_templates
from dra_operator.kubectl.observed import Observed, joined, notes_on, require
from dra_operator.kubectl.settings import Settings
from dra_operator.kubectl.whatif.fitting import (
    MOST_PLACED_PODS,
    Fitting,
    Promised,
    Wanted,
    WantedPods,
    fitted,
    overlay_of,
)
from dra_operator.kubectl.whatif.overlay import PodFact
from dra_operator.wording import counted, listed

JSON = dict[str, Any]
Items = Iterable[tuple[str, JSON]]
"""Objects, and where each is."""
NEED_TEMPLATE: Final = {"Deployment": "apps", "ReplicaSet": "apps", "StatefulSet": "apps", "Job": "batch"}
"""Kinds that make pods from ``spec.template`` alone, with their API groups: Volcano has a Job as well."""
KUEUE: Final = {"Workload": kueue.GROUP, "ResourceFlavor": kueue.GROUP}
LEFT_OUT: Final = {"DaemonSet": "apps", "CronJob": "batch"}


MOST_WANTED_BYTES: Final = 32 << 20
"""Of a file of manifests, as text: as values it takes up to 13 times as much, and a dump of a cluster is none."""


def read_wanted(paths: Sequence[str], added: Sequence[str], namespace: str) -> Wanted:
    """From files; ``added``: those of nodes. Raises Problem."""
    return wanted_of(_items(paths, MOST_WANTED_BYTES), _items(added), namespace)


def wanted_of(given: Items, added: Items, namespace: str) -> Wanted:
    """``namespace`` is that of manifests that name none; ``added``: nodes and their slices. Raises Problem."""
    pods: list[WantedPods] = []
    objects: list[Object] = []
    notes: list[str] = []
    promised: list[Promised] = []
    others: Counter[str] = Counter()
    try:
        manifests = list(_placed(given, namespace))
        flavors = _flavors(manifests)
        for where, item in manifests:
            if _is_among(KUEUE, item):
                if item["kind"] == "Workload":
                    found, owns = _of_kueue(where, item, flavors, notes)
                    if owns is None:
                        pods += found
                    else:
                        promised.append(Promised(found, owns))
            elif _is_among(LEFT_OUT, item):
                title = f"{where}: {item['kind']} {_name(item)}"
                notes.append(f"{title} is left out: how many pods it has depends on nodes or time")
            elif found := _of_templates(where, item):
                pods += found
                if _is_among({"StatefulSet": "apps"}, item) and item["spec"].get("volumeClaimTemplates"):
                    notes.append(f"{where}: volumeClaimTemplates are left out: volumes are not looked at")
            elif (obj := decoded(where, item)) is not None:
                _sort_in(where, identified(obj), pods, objects)
            else:
                others[item["kind"]] += 1
        nodes = [
            identified(obj) for where, item in _placed(added, namespace) if (obj := _of_node(where, item)) is not None
        ]
    except BadInput as error:
        raise Problem(str(error), ExitCode.USAGE) from error
    notes += not_read(others)
    if not pods:
        known = "the manifests hold no Pod, no Workload of Kueue and nothing with a pod template to place"
        raise Problem("; ".join([known, *notes]), ExitCode.USAGE)
    return Wanted(pods, objects, nodes, notes, promised)


def _items(paths: Sequence[str], most: float = math.inf) -> Iterator[tuple[str, JSON]]:
    """Yield the objects of the files, with their places. Raises BadInput."""
    return (item for path in files(paths) for item in items(path, most))


def _placed(given: Items, namespace: str) -> Iterator[tuple[str, JSON]]:
    """Each object with a namespace, if its kind has one."""
    for where, item in given:
        known = KINDS.get(item["kind"])
        metadata = item.get("metadata")
        if isinstance(metadata, dict) and (known is None or known[0].namespaced):
            item = {**item, "metadata": {"namespace": namespace, **metadata}}
        yield where, item


def _is_among(kinds: Mapping[str, str], item: JSON) -> bool:
    return kinds.get(item["kind"]) == str(item.get("apiVersion") or "").rpartition("/")[0]


def _sort_in(where: str, obj: Object, pods: list[WantedPods], objects: list[Object]) -> None:
    if isinstance(obj, Node | ResourceSlice):
        title = f"{where}: {type(obj).__name__} {obj.key}"
        raise BadInput(
            f"{title} is neither a pod nor what one refers to: pass it as an added node (--add-nodes, addNodes)"
        )
    if not isinstance(obj, Pod):
        objects.append(obj)
    elif obj.spec.node_name:
        raise BadInput(f"{where}: Pod {obj.key} names its node (spec.nodeName), so that no scheduler decides about it")
    else:
        pods.append(WantedPods(obj, 1, is_single=True))


def _of_node(where: str, item: JSON) -> Object | None:
    obj = decoded(where, item)
    if not isinstance(obj, Node | ResourceSlice):
        raise BadInput(f"{where}: {item['kind']} {_name(item)}: expected a Node or ResourceSlice among the added nodes")
    return obj


def _of_templates(where: str, item: JSON) -> Sequence[WantedPods]:
    """The pods of each template of an object, all alike. Raises BadInput."""
    title = f"{where}: {item['kind']} {_name(item)}"
    try:
        found = list(pod_templates(item))
    except BadInput as error:
        raise BadInput(f"{title}: {error}") from error
    if not found and _is_among(NEED_TEMPLATE, item):
        raise BadInput(f"{title}: spec.template with the spec of a pod is missing")
    if found and not isinstance(item.get("metadata"), dict):
        raise BadInput(f"{title}: metadata is missing")
    return [_made_from(title, item, each, is_one=len(found) == 1) for each in found]


def _made_from(title: str, item: JSON, template: PodTemplate, *, is_one: bool) -> WantedPods:
    """``is_one``: the object has no other template, so that its name is enough for the pods. Raises BadInput."""
    name = _name(item) if is_one or not template.role else f"{_name(item)}-{template.role}"
    owner = {"apiVersion": item.get("apiVersion"), "kind": item["kind"], "name": _name(item), "controller": True}
    meta = {
        **template.metadata,
        "name": name,
        "namespace": item["metadata"].get("namespace"),
        "ownerReferences": [{**owner, "uid": f"wanted {_name(item)}"}],
    }
    pod = decoded(
        f"{title}: {template.path}", {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template.spec}
    )
    if not isinstance(pod, Pod):
        raise BadInput(f"{title}: {template.path} holds no pod")
    return WantedPods(pod, template.number, is_single=False)


def _flavors(manifests: Items) -> dict[str, kueue.ResourceFlavor]:
    """Return the flavors by name. Raises BadInput."""
    found = (
        _kueue_object(where, item, kueue.ResourceFlavor)
        for where, item in manifests
        if item["kind"] == "ResourceFlavor" and _is_among(KUEUE, item)
    )
    return {flavor.metadata.name: flavor for flavor in found}


def _of_kueue(
    where: str, item: JSON, flavors: Mapping[str, kueue.ResourceFlavor], notes: list[str]
) -> tuple[Sequence[WantedPods], Callable[[Pod], bool] | None]:
    """The pods that a Workload starts with; if it is admitted, also which pods of the cluster are its.

    Raises BadInput.
    """
    workload = _kueue_object(where, item, kueue.Workload)
    title = f"{where}: Workload {workload.key}"
    if workload.settled:
        notes.append(f"{title} is left out: it {workload.settled}")
        return (), None
    if workload.status.admission is None:
        notes.append(f"{title} has no quota yet: its pods may use nodes of any flavor")
    try:
        found = planned_sets(workload, flavors)
    except kueue.WorkloadError as error:
        is_missing = isinstance(error, kueue.FlavorMissing)
        remedy = "; pass what `kubectl get resourceflavors -o yaml` prints, as a further file" if is_missing else ""
        raise BadInput(f"{title}: {error}{remedy}") from error
    pods = [WantedPods(pod, count, is_single=False, together=f"workload {workload.key}") for pod, count in found]
    if not workload.has("Admitted"):
        return pods, None
    notes.append(f"{title} is admitted: what its pods still lack is taken before all others")
    return pods, workload.owns


T = TypeVar("T", bound=Object)


def _kueue_object(where: str, item: JSON, type_: type[T]) -> T:
    """Raises BadInput."""
    if not _name(item):
        raise BadInput(f"{where}: {item['kind']}: metadata.name is missing")
    try:
        return convert(type_, without_nulls(item))
    except DecodeError as error:
        raise BadInput(f"{where}: {item['kind']} {_name(item)}: {error}") from error


def _name(item: JSON) -> str:
    metadata = item.get("metadata")
    return str(metadata.get("name") or metadata.get("generateName") or "") if isinstance(metadata, dict) else ""


OUT_OF_TIME: Final = "the time limit was reached; kubectl dra fit --time-limit gives more"


def answer(seen: Observed, options: argparse.Namespace) -> Answer:
    require(seen, "resourceslices.resource.k8s.io", "resourceclaims.resource.k8s.io", "nodes")
    if not options.file:
        raise Problem("name the manifests by -f FILE, a directory, or - for standard input", ExitCode.USAGE)
    wanted = read_wanted(options.file, options.add_nodes, seen.namespace)
    copies = None if options.max else options.count
    if not wanted.size or wanted.size * (copies or 1) > MOST_PLACED_PODS:
        number = wanted.size * (copies or 1)
        raise Problem(
            f"the manifests ask for {counted(number, 'pod')}: expected 1 to {MOST_PLACED_PODS}", ExitCode.USAGE
        )
    overlay = overlay_of(seen, Settings.of(options), wanted)
    found = fitted(overlay, wanted, copies, drain=options.drain, without=options.without, seconds=options.time_limit)
    code = ExitCode.CLEAR if found.fits and not found.is_cut else ExitCode.IN_THE_WAY
    columns: list[Column[PodFact]] = [
        Column("POD", lambda it: it.pod),
        Column("NODE", lambda it: it.node or "<none>", colour=lambda it: "green" if it.node else "red"),
        Column("DEVICES", lambda it: joined(it.devices)),
    ]
    table = Table(columns, found.pods, lambda it: f"pod/{it.pod.partition('/')[2]}", "No copy fits")
    notes = [*wanted.notes, *notes_on(seen)]
    return Answer(table, list(_lines(found, wanted, copies)), found, notes=notes, code=code)


def _lines(found: Fitting, wanted: Wanted, copies: int | None) -> Iterator[str]:
    if found.drained is not None:
        going = [one for one in found.drained.pods if one.fate in ("moves", "waits")]
        waiting = [PodFact(pod=one.pod, reason=one.reason) for one in going if one.fate == "waits"]
        moved = len(going) - len(waiting)
        yield f"{moved} of {counted(len(going), 'pod')} of node {found.drained.name} would move first"
        yield from _reasons(waiting)
    if found.promised:
        placed = sum(bool(one.node) for one in found.promised)
        number = counted(len(found.promised), "pod")
        yield f"{placed} of {number} that Kueue has admitted and that have not started would have a place first"
        yield from _reasons(found.promised)
    if found.is_cut:
        size, placed = counted(wanted.size, "pod"), sum(bool(one.node) for one in found.pods)
        if copies is None:
            yield f"at least {counted(found.copies, 'copy', 'copies')} of {size} would fit; {OUT_OF_TIME}"
        else:
            number = counted(wanted.size * copies, "pod")
            yield f"{placed} of {number} would fit, {len(found.pods)} of them tried; {OUT_OF_TIME}"
        yield from _reasons(found.pods)
    elif found.next is not None:
        number = counted(found.copies, "copy", "copies")
        yield f"{number} of {counted(wanted.size, 'pod')} would fit; the next would not:"
        yield from _reasons([found.next])
    elif wanted.size * found.copies == len(found.pods):
        yield f"{'all ' if len(found.pods) > 1 else ''}{counted(len(found.pods), 'pod')} would fit"
    else:
        placed = sum(bool(one.node) for one in found.pods)
        yield f"{placed} of {counted(len(found.pods), 'pod')} would fit"
        yield from _reasons(found.pods)
    if found.left is None:
        yield f"what would be left was not found out: {OUT_OF_TIME}"
    elif found.left:
        yield f"largest request of a class that would fit then: {', '.join(left.text for left in found.left)}"


def _reasons(pods: Sequence[PodFact]) -> Iterator[str]:
    """Pods without a node, by what is in the way."""
    groups: dict[str, list[str]] = {}
    for one in pods:
        if not one.node:
            groups.setdefault(one.reason, []).append(one.pod)
    for reason, names in groups.items():
        yield f"  {listed(names)}: {reason}"
