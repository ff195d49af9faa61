"""Random clusters, told to the ledger and to the operator's cache step by step, in whatever form an object may have.

They have shares, partitions, admin access, taints and rules, generations, alternatives, PodGroups, claims for
extended resources, and any release with any gates. The allocator is asked for each device alone, on each node.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from datetime import UTC, datetime
from random import Random
from typing import Any, Final

import msgspec
from allocator_lab import Json
from allocator_problems import CrowdedMaker, LocalMaker, Maker
from dra_api.codec import convert, to_dict
from dra_api.conversion import convert as converted
from dra_api.core import Node, Pod
from dra_api.gates import FeatureGates, GateError
from dra_api.meta import Object
from dra_api.releases import BUILT
from dra_api.resource import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from dra_ledger import DeviceEntry, Ledger
from dra_ledger.basics import DeviceId
from dra_ledger.cel_language import CelSelectors
from dra_ledger.inventory import Inventory
from dra_ledger.pools import Status
from dra_operator.allocator import Allocated, Allocator, AttributeValue, Features
from dra_operator.cache import Cluster
from dra_operator.kubectl.facts import pods_of
from dra_operator.kubectl.observed import Observed
from history_kit.game import Game, Outcome

ID: Final = "id.example.com/id"
"""An attribute that tells devices apart."""
_KINDS: Final[dict[str, type[Object]]] = {
    "ResourceSlice": ResourceSlice,
    "ResourceClaim": ResourceClaim,
    "DeviceClass": DeviceClass,
    "DeviceTaintRule": DeviceTaintRule,
    "Node": Node,
    "Pod": Pod,
}
GROUPS: Final = ("g0", "g1")
EXTENDED: Final = "resource.kubernetes.io/extended-resource-claim"


class World:
    """A cluster as a random maker draws it. ``release`` and gates are drawn too."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.maker = self.random.choice((Maker, LocalMaker, CrowdedMaker))(self.random)
        case = self.maker.case()
        self.release = self.random.choice(list(BUILT))
        self.gates = self._gates()
        self.ledger = Ledger(self.release, self.gates)
        self.features = Features.of(FeatureGates.of(self.gates, BUILT[self.release]))
        inventory = Inventory(self.features, language=CelSelectors(self.features))
        self.cluster = Cluster(inventory)
        numbers = itertools.count()
        self.allocator = Allocator(inventory, new_share_id=lambda: f"00000000-0000-4000-8000-{next(numbers):012}")
        self._ids = itertools.count()
        self._uids: dict[tuple[str, str], str] = {}
        self.objects: dict[tuple[str, str], Json] = {}
        for node in case["nodes"]:
            self.put("Node", node)
        for class_ in case["classes"]:
            self.put("DeviceClass", class_)
        for slice_ in case["slices"]:
            self.put("ResourceSlice", slice_)
        for claim in case["claims"]:
            self.put("ResourceClaim", claim)
        if self.maker.chance(30):
            for rule in case["rules"]:
                self.put("DeviceTaintRule", rule)

    def _gates(self) -> dict[str, bool]:
        changed: dict[str, bool] = {}
        for gate in ("DRAPartitionableDevices", "DRAConsumableCapacity", "DRADeviceTaints", "DRAAdminAccess"):
            wanted = {**changed, gate: self.maker.chance(80)}
            try:
                FeatureGates.of(wanted, BUILT[self.release])
            except GateError:
                continue
            changed = wanted
        return changed

    # --- what happens ---

    def put(self, kind: str, obj: Json) -> None:
        """Add or change an object, in the operator's cache and in the ledger."""
        if kind == "ResourceSlice":
            devices = [self._marked(device) for device in obj["spec"].get("devices") or ()]
            obj = {**obj, "spec": {**obj["spec"], "devices": devices}} if devices else obj
        version = "v1" if kind in ("Node", "Pod") else "resource.k8s.io/v1"
        obj = {"apiVersion": version, "kind": kind, **obj}
        meta = obj["metadata"]
        key = f"{meta['namespace']}/{meta['name']}" if "namespace" in meta else meta["name"]
        self.objects[kind, key] = obj
        has_rules = self.features.taint_rules and self.features.device_taints
        if kind != "Pod" and (kind != "DeviceTaintRule" or has_rules):
            self.cluster.apply(self._typed(kind, obj))
        self._tell("MODIFIED", kind, obj)

    def _typed(self, kind: str, obj: Json) -> Any:
        number = next(self._ids)
        meta = {"resourceVersion": str(number + 1), **obj["metadata"], "uid": self._uid(kind, obj)}
        return convert(_KINDS[kind], {**obj, "metadata": meta})

    def _uid(self, kind: str, obj: Json) -> str:
        return self._uids.setdefault((kind, obj["metadata"]["name"]), f"uid-{next(self._ids)}")

    def _marked(self, device: Json) -> Json:
        attributes = {**device.get("attributes", {}), ID: {"int": next(self._ids)}}
        return {**device, "attributes": attributes}

    def remove(self, kind: str, key: str) -> None:
        obj = self.objects.pop((kind, key))
        if kind != "Pod":
            self.cluster.delete(_KINDS[kind], key)
        self._uids.pop((kind, obj["metadata"]["name"]), None)
        self._tell("DELETED", kind, obj)

    def _tell(self, event: str, kind: str, obj: Json) -> None:
        """In any form that the ledger takes."""
        forms: tuple[Callable[[Json], object], ...] = (
            lambda it: it,
            json.dumps,
            msgspec.json.encode,
            lambda it: {"kind": "List", "apiVersion": "v1", "items": [it]},
            lambda it: convert(_KINDS[kind], it),
            lambda it: [it],
        )
        if kind == "ResourceSlice" and self.random.random() < 0.3:
            obj = converted(obj, f"resource.k8s.io/{self.random.choice(('v1beta1', 'v1beta2'))}")
        form = self.random.choice(forms if obj["apiVersion"] in ("v1", "resource.k8s.io/v1") else forms[:4])
        if self.random.random() < 0.3:
            self.ledger.feed({"type": event, "object": obj})
        elif event == "DELETED":
            self.ledger.remove(form(obj))
        else:
            self.ledger.feed(form(obj))

    def step(self) -> None:
        kind = self.random.randrange(100)
        claims = [claim for (name, _), claim in self.objects.items() if name == "ResourceClaim"]
        nodes = [obj for (name, _), obj in self.objects.items() if name == "Node"]
        if kind < 40 and nodes:
            waiting = [claim for claim in claims if "status" not in claim]
            claim = self.random.choice(waiting) if waiting else self.maker.claim(next(self._ids))
            self._allocate(claim, self.random.choice(nodes))
        elif kind < 55 and claims:
            claim = self.random.choice(claims)
            if self.random.random() < 0.5:
                self.remove("ResourceClaim", f"ns/{claim['metadata']['name']}")
            else:
                self.put("ResourceClaim", {name: part for name, part in claim.items() if name != "status"})
        elif kind < 65:
            self._change_pod()
        elif kind < 85:
            self._republish()
        elif kind < 90:
            rule = {"spec": {"deviceSelector": {"driver": "drv"}, "taint": {"key": "bad", "effect": "NoSchedule"}}}
            if ("DeviceTaintRule", "rule") in self.objects:
                self.remove("DeviceTaintRule", "rule")
            else:
                self.put("DeviceTaintRule", {"metadata": {"name": "rule"}, **rule})
        elif kind < 95 and len(nodes) > 1:
            self.remove("Node", self.random.choice(nodes)["metadata"]["name"])
        else:
            self.put("Node", self.maker.node(self.random.choice(self.maker.nodes)))

    def _allocate(self, claim: Json, node: Json) -> None:
        wanted = self._typed("ResourceClaim", claim)
        outcome = self.allocator.allocate(self._typed("Node", node), [wanted], self.cluster.allocated_devices.usage)
        if isinstance(outcome, Allocated):
            user = {"resource": "pods", "name": f"pod-{claim['metadata']['name']}", "uid": "u"}
            if self.random.random() < 0.3:
                group = self.random.choice(GROUPS)
                user = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": group, "uid": "g"}
            meta = claim["metadata"]
            if self.random.random() < 0.2:
                meta = {**meta, "annotations": {EXTENDED: "true"}}
            status = {"allocation": to_dict(outcome.results[0]), "reservedFor": [user]}
            self.put("ResourceClaim", {**claim, "metadata": meta, "status": status})
            self._change_pod(claim["metadata"]["name"])
        elif ("ResourceClaim", f"ns/{claim['metadata']['name']}") not in self.objects:
            self.put("ResourceClaim", claim)

    def _change_pod(self, claim: str = "") -> None:
        """A pod comes, with a claim of its own, of its group or for its extended resources; or it ends, or is gone."""
        pods = [key for kind, key in self.objects if kind == "Pod"]
        if pods and not claim and self.random.random() < 0.6:
            key = self.random.choice(pods)
            if self.random.random() < 0.5:
                self.remove("Pod", key)
            else:
                pod = self.objects["Pod", key]
                self.put(
                    "Pod", {**pod, "status": {**pod["status"], "phase": self.random.choice(("Failed", "Running"))}}
                )
            return
        name = claim or f"c{self.random.randrange(4)}"
        claims = [{"name": "mine", "resourceClaimName": name}]
        spec: Json = {"schedulingGroup": {"podGroupName": self.random.choice(GROUPS)}}
        status: Json = {"phase": "Running"}
        if self.random.random() < 0.3:
            status["extendedResourceClaimStatus"] = {"resourceClaimName": name, "requestMappings": []}
        else:
            spec["resourceClaims"] = claims
        meta = {"name": f"pod-{name}", "namespace": "ns", "uid": f"pod-{next(self._ids)}"}
        self.put("Pod", {"metadata": meta, "spec": spec, "status": status})

    def _republish(self) -> None:
        """A driver publishes one of its pools anew, slice by slice, or takes it back."""
        driver, pool = self.random.choice("do"), self.random.choice("pq")
        driver = {"d": "drv", "o": "other"}[driver]
        self.maker.devices_left = self.random.randint(1, 5)
        old = [
            key for kind, key in list(self.objects) if kind == "ResourceSlice" and key.startswith(f"{driver}-{pool}-")
        ]
        new = self.maker.pool(driver, pool)
        self.random.shuffle(new)
        generation = self.random.choice((2, 2, 3))
        for slice_ in new:
            slice_["spec"]["pool"]["generation"] += generation - 2
            self.put("ResourceSlice", slice_)
        for key in old:
            if key not in {slice_["metadata"]["name"] for slice_ in new} and self.random.random() < 0.8:
                self.remove("ResourceSlice", key)

    # --- what both say ---

    def faults(self) -> list[str]:
        """Where the ledger and the operator's view differ."""
        entries = self.ledger.devices()
        return [
            *self._wrong_holders(entries),
            *self._wrong_pods(entries),
            *self._wrong_availability(entries),
            *self._wrong_pools(),
            *self._wrong_classes(),
        ]

    def _wrong_holders(self, entries: list[DeviceEntry]) -> list[str]:
        held: dict[str, list[tuple[str, str, str, bool]]] = {}
        for claim in self.cluster.claims:
            for result in claim.results:
                about = (claim.key, result.request, result.share_id or "", bool(result.admin_access))
                held.setdefault(str(DeviceId.of(result)), []).append(about)
        said: dict[str, list[tuple[str, str, str, bool]]] = {}
        for entry in {entry.id: entry for entry in entries}.values():
            for holder in (*entry.holders, *entry.observers):
                said.setdefault(entry.id, []).append((holder.key, holder.request, holder.share, holder.is_admin))
        return [
            f"{id_}: held by {sorted(held.get(id_, []))}, said {sorted(said.get(id_, []))}"
            for id_ in sorted({*held, *said})
            if sorted(held.get(id_, [])) != sorted(said.get(id_, []))
        ]

    def _wrong_pods(self, entries: list[DeviceEntry]) -> list[str]:
        """The pods of a claim, as ``kubectl dra claims`` finds them."""
        typed = [convert(Pod, obj) for (kind, _), obj in self.objects.items() if kind == "Pod"]
        seen = Observed([*typed, *self.cluster.claims], datetime(2030, 1, 1, tzinfo=UTC))
        known = {claim.key: sorted(user.name for user in pods_of(seen, claim)) for claim in self.cluster.claims}
        said = {holder.key: sorted(holder.pods) for entry in entries for holder in (*entry.holders, *entry.observers)}
        return [
            f"claim {key}: used by {known.get(key)}, said {pods}"
            for key, pods in said.items()
            if known.get(key) != pods
        ]

    def _wrong_availability(self, entries: list[DeviceEntry]) -> list[str]:
        """The allocator is asked for each device alone, on each node."""
        found = []
        nodes = list(self.cluster.nodes)
        self.cluster.inventory.put_class(convert(DeviceClass, {"metadata": {"name": "every"}}))
        for entry in entries:
            number = entry.attributes.get(ID)
            if number is None or entry.published is None:
                continue
            wanted = self.allocator.compile([self._one_of_any()], AttributeValue(ID, ("int", number)))
            usage = self.cluster.allocated_devices.usage
            fits = any(isinstance(self.allocator.allocate(node, wanted, usage), Allocated) for node in nodes)
            if fits != entry.available:
                found.append(f"{entry.id} ({entry.state}, {entry.why}): the allocator says {fits}")
            if entry.state == "free" and not fits:
                found.append(f"{entry.id} is not free")
        self.cluster.inventory.remove_class("every")
        return found

    def _one_of_any(self) -> ResourceClaim:
        exactly = {"deviceClassName": "every", "allocationMode": "ExactCount", "count": 1}
        spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
        return convert(ResourceClaim, {"metadata": {"name": "w", "namespace": "ns", "uid": "w"}, "spec": spec})

    def _wrong_pools(self) -> list[str]:
        """A pool is in trouble if it is for some node."""
        troubled: dict[str, str] = {}
        seen: set[str] = set()
        for node in self.cluster.nodes:
            view = self.cluster.inventory.view(node)
            seen |= {str(pool.pool) for pool in view.pools}
            troubled |= {
                str(pool.pool): pool.status.name.lower() for pool in view.troubled if pool.status is not Status.USABLE
            }
        said = {pool.id: pool.status for pool in self.ledger.pools()}
        return [
            f"pool {id_}: {said.get(id_)} instead of {troubled.get(id_, 'usable')}"
            for id_ in sorted({*troubled, *seen})
            if (said.get(id_) != "usable") != (id_ in troubled)
        ]

    def _wrong_classes(self) -> list[str]:
        """What a class means, selector by selector."""
        found = []
        for class_ in self.cluster.classes:
            tests = [
                self.allocator.inventory.compiled.predicate(selector.cel.expression)
                for selector in class_.spec.selectors or ()
                if selector.cel is not None
            ]
            said = {id(entry) for entry in self.ledger.devices(device_class=class_.metadata.name)}
            for entry in self.ledger.devices():
                device = entry.published
                if device is not None and _holds(tests, entry.driver, device) != (id(entry) in said):
                    found.append(f"{entry.id} and class {class_.metadata.name}")
        return found


def _holds(tests: list[Any], driver: str, device: Any) -> bool:
    try:
        return all(test(driver, device) for test in tests)
    except Exception:  # the evaluator has an error of its own for each way to fail
        return False


STEPS: Final = 8


def played(seed: int) -> Outcome:
    """Compare the two at the start and after each of the steps of a cluster."""
    world = World(seed)
    for step in range(STEPS + 1):
        if found := world.faults():
            return Outcome(tuple(f"after {step} steps: {fault}" for fault in found))
        if step < STEPS:
            world.step()
    return Outcome(())


CAMPAIGN: Final = Game(played)
