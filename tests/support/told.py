"""What ``kubectl dra why`` says of a pod in a cluster of objects as JSON, and the cluster after a fix.

``python -m campaign why`` tries what it prints as a fix: in a random cluster, the change made from outside, a fresh
pipeline.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from random import Random
from typing import Any, Final

from allocator_problems import CrowdedMaker, LocalMaker, Maker, make_case
from dra_api.codec import convert
from dra_api.core import Node, Pod
from dra_api.meta import Object
from dra_api.resource import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from dra_operator.allocator import AllocationError
from dra_operator.commands.object_files import decoded
from dra_operator.kubectl.commands import COMMANDS
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.pipeline import pipeline
from dra_operator.kubectl.why.answer import answer
from dra_operator.kubectl.why.changes import Edit, Fix, Trial, applied
from dra_operator.kubectl.why.published import Published
from dra_operator.kubectl.why.search import FixSearch
from dra_operator.scheduling import NoPlace, decided, plan
from history_kit.game import Game, Outcome
from msgspec.structs import replace as changed
from scheduling_causes import NAMESPACE, POD

Json = dict[str, Any]
NOW: Final = datetime(2030, 1, 1, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Told:
    """The lines without their indents, and the fixes as programs get them."""

    lines: Sequence[str]
    fixes: Sequence[Json]
    code: int
    seen: Observed

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def advice(self) -> list[str]:
        return [f"on {fix['node']}: {fix['text']}" for fix in self.fixes]


def seen_of(objects: Iterable[Json], *, is_whole: bool = True, **more: Any) -> Observed:
    """A live cluster with these objects. Each gets a UID, as from an API server."""
    found: list[Object] = []
    for item in objects:
        obj = decoded("test", item)
        assert obj is not None, item
        meta = obj.metadata
        found.append(changed(obj, metadata=changed(meta, uid=meta.uid or f"uid-{meta.name}")))
    return Observed(found, NOW, namespace=NAMESPACE, is_whole=is_whole, **more)


def told(objects: Iterable[Json] | Observed, target: str = f"pod/{POD}", **more: Any) -> Told:
    """What is answered about the pod that waits."""
    seen = objects if isinstance(objects, Observed) else seen_of(objects, **more)
    parser = argparse.ArgumentParser()
    COMMANDS["why"].add_arguments(parser)
    found = answer(seen, parser.parse_args([target, "--time-limit", "0"] if target else ["-A", "--time-limit", "0"]))
    lines = [line.strip() for line in found.lines]
    return Told(lines, found.value.get("fixes", []), int(found.code), seen)


def after_edits(seen: Observed, fix: Json) -> Observed:
    edits = [_edit(seen, each) for each in fix["edits"]]
    return replace(seen, objects=applied(seen.objects, edits))


def _edit(seen: Observed, edit: Json) -> Any:

    kinds = {type(obj).__name__: type(obj) for obj in seen.objects}
    return Edit(kinds[edit["kind"]], edit["key"], edit["after"])


WEB = "ns/web"


def waiting_pod(random: Random, maker: type[Maker] = Maker) -> Observed:
    """A cluster with the pod ``ns/web``, which may or may not fit."""
    case = make_case(random, maker)
    objects: list[Object] = [convert(DeviceClass, each) for each in case["classes"]]
    objects += [convert(ResourceSlice, each) for each in case["slices"]]
    objects += [convert(DeviceTaintRule, each) for each in case["rules"]]
    objects += [convert(ResourceClaim, each) for each in case["claims"]]
    objects += [convert(Node, _node(random, each)) for each in case["nodes"]]
    objects += list(_holders(random, case))
    return Observed([*objects, convert(Pod, _pod(random, case["claims"]))], NOW, namespace="ns")


def _node(random: Random, node: Json) -> Json:
    taints = [{"key": "dedicated", "value": "x", "effect": "NoSchedule"}] if random.random() < 0.3 else []
    if random.random() < 0.1:
        taints.append({"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"})
    spec = {"taints": taints, "unschedulable": random.random() < 0.15}
    return {**node, "spec": spec, "status": {"allocatable": {"cpu": random.choice("248"), "pods": "10"}}}


def _pod(random: Random, claims: list[Json]) -> Json:
    entries = [{"name": c["metadata"]["name"], "resourceClaimName": c["metadata"]["name"]} for c in claims]
    containers = [{"name": "main", "resources": {"requests": {"cpu": random.choice("1112345")}}}]
    spec: Json = {"schedulerName": "dra-scheduler", "containers": containers, "resourceClaims": entries}
    if random.random() < 0.3:
        spec["nodeSelector"] = {"zone": random.choice("abc")}
    return {"metadata": {"name": "web", "namespace": "ns", "uid": "uid-web"}, "spec": spec}


def _holders(random: Random, case: Json) -> Iterator[Object]:
    """Claims that hold devices, most of them with the pod that they are reserved for."""
    state = case["allocatedState"]
    amounts = {(one["driver"], one["pool"], one["device"]): one["capacity"] for one in state["aggregatedCapacity"]}
    for number, entry in enumerate([*state["allocatedDevices"], *state["allocatedSharedDeviceIDs"]]):
        name = f"held-{number}"
        result = {"request": "r", **entry}
        if "shareID" in entry and (taken := amounts.get((entry["driver"], entry["pool"], entry["device"]))):
            result["consumedCapacity"] = taken
        user = {"resource": "pods", "name": name, "uid": f"uid-pod-{name}"}
        status: Json = {"allocation": {"devices": {"results": [result]}}}
        meta = {"namespace": "other", "name": name}
        if random.random() < 0.8:
            status["reservedFor"] = [user]
            spec = {"nodeName": random.choice(case["nodes"])["metadata"]["name"], "containers": []}
            pod = {"metadata": {**meta, "uid": user["uid"]}, "spec": spec, "status": {"phase": "Running"}}
            yield convert(Pod, pod)
        yield convert(ResourceClaim, {"metadata": {**meta, "uid": f"uid-{name}"}, "status": status})


MAKERS: Final = (Maker, LocalMaker, CrowdedMaker)


def cluster_of(seed: int) -> Observed:
    return waiting_pod(Random(seed), MAKERS[seed % len(MAKERS)])


def fits(seen: Observed) -> bool | None:
    """Whether the pod would get a node; None if it is not even tried."""
    node = node_of(seen)
    return None if node is None else bool(node)


def node_of(seen: Observed) -> str | None:
    """Which node the pod would get; empty if it fits none, None if it is not even tried."""
    pod = seen.one(Pod, WEB)
    assert pod is not None
    trial = Trial(pipeline(seen), pod)
    return None if trial.cycle_state() is None else trial.node()


def fixes_of(seen: Observed) -> tuple[list[Fix], bool]:
    """What would be printed, and whether the view is afterwards as it was."""
    pod = seen.one(Pod, WEB)
    assert pod is not None
    trial = Trial(pipeline(seen), pod)
    cycle_state = trial.cycle_state()
    assert cycle_state is not None
    nodes = [state.name for state in cycle_state.nodes]
    before = _refusal(trial)
    fixes = FixSearch(trial, nodes, Published(seen.every(ResourceSlice))).fixes()
    return fixes, _refusal(trial) == before


def _refusal(trial: Trial) -> str:
    """Why the pod does not fit, in all words."""
    cycle_state = trial.cycle_state()
    assert cycle_state is not None
    outcome = decided(plan(cycle_state))
    assert isinstance(outcome, NoPlace)
    return outcome.message


def failures(seen: Observed, fixes: list[Fix]) -> Iterator[Fix]:
    """The fixes with which the pod does not get the node that they name."""
    for fix in fixes:
        if node_of(replace(seen, objects=applied(seen.objects, fix.edits))) != fix.node:
            yield fix


def played(seed: int) -> Outcome:
    """Try each fix that is printed for the cluster of a number."""
    seen = cluster_of(seed)
    try:
        outcome = fits(seen)
    except AllocationError:
        outcome = None
    if outcome is not False:
        return Outcome((), kinds=("fit" if outcome else "are not tried",))
    fixes, is_restored = fixes_of(seen)
    wrong = [f"on {fix.node}: {fix.text}" for fix in failures(seen, fixes)]
    wrong += [] if is_restored else ["the view is not restored"]
    return Outcome(tuple(wrong), kinds=("with a fix" if fixes else "without a fix", *["fixes"] * len(fixes)))


CAMPAIGN: Final = Game(played)
