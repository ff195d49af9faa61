"""The state of the cache: objects, indexes over them, devices and room in use, and the look-ups that others need.

Nothing in here changes the state by itself, and nothing awaits. ``Cluster`` takes changes in; ``hints`` asks this
which keys a change concerns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from datetime import datetime
from typing import Any, Final

from dra_api.core import Namespace, Node, Pod
from dra_api.quota import classes_by_resource
from dra_api.references import (
    ClaimNotCreatedYet,
    ClaimReferenceError,
    ClaimUse,
    claim_names,
    claims_of_pod,
    group_name,
    is_pod_group,
    is_reserved_for,
    pod_is_done,
)
from dra_api.resource import (
    AllocationResult,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceSlice,
)
from dra_api.scheduling import PodGroup
from dra_ledger.usage import AllocatedDevices

from dra_operator.allocator import Allocator, DeviceId, Inventory
from dra_operator.cache.index import Index, PodGroupView, groups_named, owner_id
from dra_operator.cache.key import Hinted, TimesFreed, WakeConditions
from dra_operator.cache.loads import FreedNodes, NodeLoads, StorageView
from dra_operator.cache.shared_drivers import NominatedPods, OthersDecide, OwnDevices, SharedDrivers
from dra_operator.cache.store import ClaimTemplate, ObjectChange, Store
from dra_operator.eviction import DeviceTaints, EvictingRules
from dra_operator.scheduling import Nodes, Snapshot
from dra_operator.scheduling.claims import BINDING_TIMEOUT_SECONDS
from dra_operator.scheduling.rules import NodeResources
from dra_operator.scheduling.state import (
    MOST_GANG_PODS,
    Gang,
    Obstacle,
    asks_for_more,
    claim_behind,
    ends_as_one,
    extended_resources,
    gang_of,
    is_at_gate,
    is_immediate,
    is_parked,
    is_placeholder,
    names_gang,
    pod_requests,
)

_Note = Callable[["ClusterState", ObjectChange[Any]], None]
_MOST_LATE_CHANGES: Final = 1000
"""Batches of changes that may wait to be noted."""


class ClusterState:
    """``scheduler_name``: pods that name it are ours to place. ``inventory`` gets the slices, classes and rules.

    ``scoring_strategy``: see ``Nodes``.
    """

    def __init__(self, inventory: Inventory, scheduler_name: str, scoring_strategy: str) -> None:
        self.pods: Store[Pod] = Store()
        self.nodes: Store[Node] = Store()
        self.namespaces: Store[Namespace] = Store()
        self.claims: Store[ResourceClaim] = Store()
        self.templates: Store[ClaimTemplate] = Store()
        self.classes: Store[DeviceClass] = Store()
        self.slices: Store[ResourceSlice] = Store()
        self.rules: Store[DeviceTaintRule] = Store()
        self.scheduler_name = scheduler_name
        inventory.territory.scheduler = scheduler_name  # before it has any slice: which taints are our own
        self.features = inventory.features
        self.inventory = inventory
        self.allocated_devices = AllocatedDevices(inventory, shares=self.features.consumable_capacity)
        self._loaded_nodes = Nodes(strategy=scoring_strategy)
        self.pods_by_node = self._loaded_nodes.pods_by_node
        self._freed_nodes, self.loads = FreedNodes(), NodeLoads(self.pods_by_node, self._room_came_free)
        self.nominated_pods = NominatedPods(
            lambda uid: self.loads.node_of(uid) is not None, self.gang_key_of, self.priority_of
        )
        self.bound: set[str] = set()
        """UIDs of pods whose binding was answered; the watch has not shown it yet."""
        self.placeholders: dict[str, Pod] = {}
        """Those of immediate claims, which wait among the pods as long as they have no devices."""
        self.waiting: dict[str, WakeConditions] = {}
        """Pods without a node that wait for us, in order of arrival, and what can help them."""
        self._arrived = 0
        self.arrivals: dict[str, int] = {}
        """The places of these pods in that order."""
        self.gives_hints = True
        """Whether changes say which waiting pods they may help. False where nobody acts on that, as in an overlay: with
        ten thousand placed pods each change would name all of them."""
        self.hinted = Hinted()
        self._shared_drivers = SharedDrivers()
        self._own_devices = OwnDevices(inventory.territory)
        self._late_sharing: list[tuple[_Note, Sequence[ObjectChange[Any]]]] = []
        self.pods_by_claim, self.pods_by_template = Index[str](), Index[str]()
        self.pods_aside: Set[str] = frozenset()
        """Keys of pods that are set aside; not all claims of one of them may be known, see ``any_claim``."""
        self.others_pods, self.queued_pods = Index[str](), Index[str]()
        """Pods of other schedulers that are not done, and the queued ones among them, by the claims they use."""
        self.claims_by_owner, self.claims_by_class = Index[str](), Index[str]()
        self.claims_by_consumer: Index[str] = Index()
        """Claims by the UIDs of pods, and the keys of PodGroups, for which they are reserved."""
        self.pods_by_resource: Index[str] = Index()
        """Waiting pods by the extended resources that they ask for."""
        self.device_taints = DeviceTaints()
        self.evicting_rules = EvictingRules()
        self.changed_rules: dict[str, list[DeviceTaintRule]] = {}
        """By name: versions of rules, whose taint ends or ended pods, and whose pods have not been looked at yet."""
        self.contested: dict[str, ResourceClaim] = {}
        """By UID of claims of ours with which no pod runs: a claim that has a device of them, or had one meanwhile."""
        self.unparking: set[str] = set()
        """UIDs of claims that gave the devices of a contest back just now."""
        self.large_claims: set[str] = set()
        """Keys of claims of which little is kept here: to read or write one takes much memory."""
        self.claims_by_device: Index[DeviceId] = Index()
        """Allocated claims by their devices, with admin access too."""
        self.pods_by_gang: Index[str] = Index()
        """Pods of our scheduler that have not failed, by the key of their gang."""
        self._gang_members: dict[str, tuple[list[Pod], list[Pod]]] = {}
        """By the key of a gang: its members, if they were asked for since a pod changed."""
        self.pods_by_volume_claim: Index[str] = Index()
        """Pods that are not done by the PersistentVolumeClaims that they use."""
        self.storage = StorageView(self._volume_users)
        self.groups = PodGroupView(self.pods.get, self._is_placed, self._uses_of_its_group)

    @property
    def to_wake(self) -> Mapping[str, WakeConditions]:
        """Return ``waiting``, or nothing where no hints are wanted."""
        return self.waiting if self.gives_hints else {}

    @property
    def has_evicting_taints(self) -> bool:
        """Return whether any taint that evicts is in force."""
        return bool(self.device_taints.tainted or self.evicting_rules)

    @property
    def shared_drivers(self) -> SharedDrivers:
        """What other schedulers have and want."""
        if self._late_sharing:
            self._catch_up_with_sharing()
        return self._shared_drivers

    @property
    def own_devices(self) -> OwnDevices:
        """Which devices other schedulers leave alone, and what those have and want that do not."""
        if self._late_sharing:
            self._catch_up_with_sharing()
        return self._own_devices

    def _catch_up_with_sharing(self) -> None:
        # Emptied first: the functions below read ``shared_drivers``, which would come here again.
        late, self._late_sharing = self._late_sharing, []
        for note, changes in late:
            for change in changes:
                note(self, change)

    def _note_sharing(self, note: _Note, changes: Sequence[ObjectChange[Any]], *, late: bool = False) -> None:
        """Have changes noted in ``shared_drivers``; ``late``, or if others wait for that: at the next look at it."""
        # Changes are noted in their order: one that is not late waits behind those that are.
        if not late and not self._late_sharing:
            for change in changes:
                note(self, change)
            return
        self._late_sharing.append((note, changes))
        # The line would grow with each change of the cluster while nobody asks about other schedulers.
        if len(self._late_sharing) > _MOST_LATE_CHANGES:
            self._catch_up_with_sharing()

    def claims_of(self, pod: Pod) -> Iterator[tuple[ClaimUse, ResourceClaim | None]]:
        """The claims that the pod uses, each with the claim itself if it exists; unresolvable entries are left out.

        Of a pod whose claims are not all kept, those are added that are reserved for it.
        """
        for use in claims_of_pod(pod):
            yield use, self.claims.get(f"{pod.metadata.namespace}/{use.name}")
        # Most pods have no node selector, and nearly all clusters no such pod.
        if pod.spec.node_selector and asks_for_more(pod):
            yield from self._further_claims(pod)

    def known_claims(self, pod: Pod) -> list[ResourceClaim]:
        """Return the claims of ``claims_of`` that exist."""
        return [claim for _, claim in self.claims_of(pod) if claim is not None]

    def _further_claims(self, pod: Pod) -> Iterator[tuple[ClaimUse, ResourceClaim]]:
        named = {f"{pod.metadata.namespace}/{use.name}" for use in claims_of_pod(pod)}
        consumers = (pod.metadata.uid, *groups_named(pod))
        for key in dict.fromkeys(key for it in consumers for key in self.claims_by_consumer.keys(it)):
            claim = self.claims.get(key) if key not in named else None
            # Who writes the status of a claim elsewhere may name any pod in it.
            if claim is not None and claim.metadata.namespace == pod.metadata.namespace:
                yield ClaimUse(None, claim.metadata.name, must_check_owner=False), claim

    def users_of(self, key: str, version: ResourceClaim | None = None) -> Sequence[str]:
        """Return the keys of the pods that use a claim, and of those for which it is reserved if not all is known.

        ``version``: the version of the claim with the reservations, or None for the known one.
        """
        users, claim = self.pods_by_claim.keys(key), (version or self.claims.get(key)) if self.pods_aside else None
        return users if claim is None else (*users, *self.further_users(claim))

    def further_users(self, claim: ResourceClaim) -> list[str]:
        """Return the keys of pods for which the claim is reserved, and of which it is not known that they use it."""
        # The cache lacks claims of pods that are set aside, but the reservations of claims name their pods.
        consumers, namespace = claim.status.reserved_for or (), claim.metadata.namespace
        reserved = [pod for it in consumers for pod in self.pods_behind(it, namespace)]
        further = [pod.key for pod in reserved if asks_for_more(pod)]
        # Not by a look through the users, of whom a claim may have thousands.
        return [pod for pod in further if claim.key not in self.pods_by_claim.values_of(pod)]

    def _uses_of_its_group(self, pod: Pod, claim: ResourceClaim) -> bool:
        """Whether a pod uses a claim that is reserved for its group; not by a look through all users of the claim."""
        is_known = claim.key in self.pods_by_claim.values_of(pod.key)
        return is_known or (bool(self.pods_aside) and asks_for_more(pod))

    def pods_behind(self, consumer: ResourceClaimConsumerReference, namespace: str) -> Iterable[Pod]:
        """Return the pods for which a consumer of a claim of the namespace stands."""
        key = f"{namespace}/{consumer.name}"
        if is_pod_group(consumer):
            return self.groups.active(key)
        pod = self.pods.get(key, consumer.uid)
        return () if pod is None else (pod,)

    def lacks_generated_claim(self, pod: Pod) -> bool:
        """Whether the pod cannot be tried, and no more be said of it, before a claim from a template is recorded in it.

        Another claim that is missing has to be told of, if its entry comes first, and a PodGroup that is missing.
        """
        # Without its group it is not known which entries mean a claim of the group.
        if group_name(pod) is not None and self.groups.of(pod) is None:
            return False
        name_of = claim_names(pod)
        for entry in pod.spec.resource_claims or ():
            try:
                # Entries in their order: the first fault is the one of which the pod is told.
                name, _ = name_of(entry)
            except ClaimNotCreatedYet:
                return True
            except ClaimReferenceError:
                return False
            claim = self.claims.get(f"{pod.metadata.namespace}/{name}") if name is not None else None
            if name is not None and (claim is None or claim.metadata.deletion_timestamp is not None):
                return False
        return False

    def _volume_users(self, claim: str) -> Iterator[str]:
        """UIDs of the pods with a node, or on their way to one, that use a PersistentVolumeClaim."""
        for key in self.pods_by_volume_claim.keys(claim):
            pod = self.pods.get(key)
            # A pod whose binding is under way mounts the volume as surely as one that runs.
            if pod is not None and (pod.spec.node_name or self.loads.node_of(pod.metadata.uid) is not None):
                yield pod.metadata.uid

    def owner_of(self, claim: ResourceClaim) -> Pod | None:
        """The pod that the claim was made for, if that is still there."""
        owner = claim.metadata.controller
        return self.pods.get(f"{claim.metadata.namespace}/{owner.name}", owner.uid) if owner is not None else None

    def claims_owned_by(self, owner: Pod | PodGroup) -> Iterator[ResourceClaim]:
        """Claims in the namespace whose controller is this very pod or group: those of another one only say so."""
        # An owner reference may name any UID. The index has it beside the namespace, so a claim elsewhere is not taken
        # for one.
        for key in self.claims_by_owner.keys(owner_id(owner.metadata.namespace, owner.metadata.uid)):
            claim = self.claims.get(key)
            if claim is not None:
                yield claim

    def _is_placed(self, pod: Pod) -> bool:
        return self.is_bound(pod) or self.loads.node_of(pod.metadata.uid) is not None

    def holds_devices(self, pod: Pod) -> bool:
        """Whether a claim is reserved for the pod."""
        return any(is_reserved_for(pod, it) for it in self.known_claims(pod))

    def node_of(self, pod: Pod) -> str:
        """The node that the pod has, or is on its way to; empty if there is none."""
        return pod.spec.node_name or self.loads.node_of(pod.metadata.uid) or ""

    def classes_serving(self, pod: Pod) -> dict[str, str]:
        """The class of each extended resource that the pod asks for and that one serves (scheduling.md 7.1)."""
        # Most pods ask for no extended resource: then no class is looked at.
        wanted = extended_resources(pod) if self.features.extended_resources else []
        classes = classes_by_resource(self.classes) if wanted else {}
        return {resource: classes[resource] for resource in wanted if resource in classes}

    def drivers_of(self, classes: Iterable[str]) -> frozenset[str]:
        """The drivers whose devices the classes may hold."""
        return frozenset(map(self._shared_drivers.driver_of_class, classes))

    def has_shared_driver(self, allocation: AllocationResult) -> bool:
        """Whether another scheduler allocates devices of the same drivers, so that both may have taken the same one.

        Devices of our own territory count only for claims that may enter it.
        """
        # Without another scheduler there is nobody to clash with: most clusters end here.
        if not self.shared_drivers:
            return False
        own = self.own_devices
        return any(
            (own.visitors if own.is_safe(DeviceId.of(result)) else self._shared_drivers).is_shared(result.driver)
            for result in allocation.results
            if not result.admin_access
        )

    def others_decide(self, drivers: frozenset[str]) -> OthersDecide:
        """Whether other schedulers may be giving away devices of the drivers right now."""
        return self.own_devices.others_decide(drivers, self._shared_drivers)

    def is_bound(self, pod: Pod) -> bool:
        """Whether the pod has its node, on the server or by a binding that was answered."""
        return bool(pod.spec.node_name) or pod.metadata.uid in self.bound

    def assumed_pods(self) -> Iterator[tuple[Pod, str, Mapping[str, int]]]:
        """Yield the pods that are on their way to a node, with the node and what they take there."""
        # Pods that wait may have room in advance; those whose binding was answered wait no more, but the watch does not
        # know.
        waiting = (pod.metadata.uid for key in self.waiting if (pod := self.pods.get(key)) is not None)
        for uid in (*waiting, *self.bound):
            if (place := self.pods_by_node.at(uid)) is not None:
                yield *place, self.loads.requests_of(uid)

    def is_ours_to_place(self, pod: Pod) -> bool:
        """Whether the pod waits for us to give it a node."""
        return (
            pod.spec.scheduler_name == self.scheduler_name
            and not pod.spec.node_name
            and not pod_is_done(pod)
            and not pod.spec.scheduling_gates
        )

    def applicant(self, key: str) -> Pod | None:
        """A pod, or the placeholder pod of an immediate claim."""
        return self.pods.get(key) or self.placeholders.get(key)

    def awaiting(self, claim: ResourceClaim) -> Iterator[Pod]:
        """Pods without a node that use the claim: what it needs is decided with them, by their scheduler or by us."""
        for key in self.pods_by_claim.keys(claim.key):
            pod = self.pods.get(key)
            if pod is None or pod.spec.node_name or pod_is_done(pod):
                continue
            # A pod behind other gates may never be let go: the claim is not left to it.
            if is_at_gate(pod) or not pod.spec.scheduling_gates:
                yield pod

    def waits_for_us(self, pod: Pod) -> bool:
        """Whether the pod waits for us to give it a node, or to give it devices and open its scheduling gate.

        A placeholder pod does when its claim has no devices and no pod waits with it, or when another claim has one of
        them.
        """
        if is_placeholder(pod):
            claim = self.claims.get(claim_behind(pod))
            # A claim with consumers is decided with the pods that use it.
            if claim is None or claim.status.reserved_for:
                return False
            # A pod that waits with the claim says more about where its devices have to be than the claim alone.
            is_open = claim.status.allocation is None
            return not any(self.awaiting(claim)) if is_open else bool(self.clashes(claim))
        return self.is_ours_to_place(pod) or (is_at_gate(pod) and not pod.spec.node_name and not pod_is_done(pod))

    def clashes(self, claim: ResourceClaim) -> list[DeviceId]:
        """Return the claim's devices that another claim holds as well, parked ones aside."""
        devices = self.allocated_devices.clashes(claim)
        if is_parked(claim):
            return []
        # It was held twice. Though the other claim is gone, kube-scheduler takes these devices for free
        # (docs/contests.md).
        if claim.metadata.uid in self.contested and claim.status.allocation is not None:
            return [DeviceId.of(it) for it in claim.status.allocation.results if not it.admin_access]
        # Parked claims keep a device only so that nobody sees it come free: no pod runs with them.
        return devices if not all(map(is_parked, self.sharers(claim, devices))) else []

    def rivals(self, claim: ResourceClaim, devices: Iterable[DeviceId]) -> Iterator[ResourceClaim]:
        """Yield the other claims that hold one of the devices and do not give way, because their pods are not ours.

        Neither does a claim whose pod runs.
        """
        for other in self.sharers(claim, devices):
            if is_parked(other):
                continue
            consumers = other.status.reserved_for or ()
            # Ours give way to each other by themselves: one whose pods all wait loses nothing but time.
            gives_way = all(self._still_waits(other, it) for it in consumers) if consumers else is_immediate(other)
            if not gives_way:
                yield other

    def is_only_for_ours(self, claim: ResourceClaim) -> bool:
        """Return whether the claim is reserved for pods of our scheduler, or parked, and for nothing else."""
        if is_parked(claim):
            return True
        consumers = claim.status.reserved_for or ()
        pods = [self.pods.get(f"{claim.metadata.namespace}/{it.name}", it.uid) for it in consumers]
        # An unknown consumer may be a pod of another scheduler that the watch has not shown yet.
        return bool(pods) and all(pod is not None and pod.spec.scheduler_name == self.scheduler_name for pod in pods)

    def sharers(self, claim: ResourceClaim, devices: Iterable[DeviceId]) -> Iterator[ResourceClaim]:
        """Yield the other claims that hold one of the devices."""
        # Each claim once, in an order that does not change from run to run.
        keys = dict.fromkeys(key for device in devices for key in self.claims_by_device.keys(device))
        for other in filter(None, map(self.claims.get, keys)):
            if other.metadata.uid != claim.metadata.uid:
                yield other

    def is_parked(self, claim: ResourceClaim) -> bool:
        """Return whether no pod may use the claim, because it lost a contest, or its end is not certain yet."""
        # A claim that just gave its devices back may still be seen with them by kube-scheduler.
        return claim.metadata.uid in self.unparking or is_parked(claim)

    def is_dispensable(self, pod: Pod, claim: ResourceClaim) -> bool:
        """Whether all that the claim is reserved for, this pod apart, still wait for us, so that none runs with it."""
        consumers = claim.status.reserved_for or ()
        return all(one.uid == pod.metadata.uid or self._still_waits(claim, one) for one in consumers)

    def _still_waits(self, claim: ResourceClaim, consumer: ResourceClaimConsumerReference) -> bool:
        key = f"{claim.metadata.namespace}/{consumer.name}"
        # A group stands for all of its pods: if one of them runs, it runs with the claim.
        if is_pod_group(consumer):
            return all(self.waits_for_us(it) and not self._is_placed(it) for it in self.groups.active(key))
        pod = self.pods.get(key, consumer.uid)
        return pod is not None and self.waits_for_us(pod) and not self.is_bound(pod)

    def gang_of(self, pod: Pod) -> Gang | Obstacle | None:
        """The gang of the pod, or what is wrong with its wish for one."""
        return gang_of(pod, self.groups.of(pod))

    def gang_pods(self, gang: Gang) -> int:
        """See ``Snapshot``."""
        keys = self.pods_by_gang.count(gang.key)
        # Too few or too many by any count: the pods need not be looked at.
        if keys < gang.size or keys > MOST_GANG_PODS:
            return keys
        running, waiting = self.members_of(gang)
        return len(running) + len(waiting)

    def members_of(self, gang: Gang) -> tuple[list[Pod], list[Pod]]:
        """The pods of the gang that run or have run, and those that wait for us; each in the order of arrival.

        All pods of a gang are looked at one after the other, and each asks for all.
        """
        # Otherwise a gang of a thousand pods would cost a million looks for one decision.
        found = self._gang_members.get(gang.key)
        if found is None:
            pods = [pod for key in self.pods_by_gang.keys(gang.key) if (pod := self.pods.get(key)) is not None]
            running = [pod for pod in pods if self.is_bound(pod)]
            found = self._gang_members[gang.key] = running, [pod for pod in pods if self.is_waiting_member(pod)]
        # Callers sort and shorten them.
        return found[0].copy(), found[1].copy()

    def is_waiting_member(self, pod: Pod) -> bool:
        """Whether a pod of a gang waits for us."""
        # A pod that is being deleted would leave the gang one short as soon as it is placed.
        return not self.is_bound(pod) and self.is_ours_to_place(pod) and pod.metadata.deletion_timestamp is None

    def gang_key_of(self, pod: Pod) -> str | None:
        """The key of the pod's gang, if it is in one that can be understood."""
        gang = self.gang_of(pod)
        return gang.key if isinstance(gang, Gang) else None

    def gang_of_pod(self, pod: Pod) -> str | None:
        """The key of what ends with the pod: a PodGroup that ends as one, or its gang; None if the pod may end alone.

        None as well for a pod that has failed.
        """
        if group_name(pod) is not None:
            group = self._ending_as_one(pod)
            if group is not None:
                return group if not pod_is_done(pod) else None
            if not names_gang(pod):
                return None
        return next(iter(self.pods_by_gang.values_of(pod.key)), None)

    def priority_of(self, pod: Pod) -> int:
        """What counts where pods end for others: the priority of the pod's PodGroup, if it is in one that has one."""
        group = self.groups.of(pod) if self.features.groups_end_as_one else None
        found = pod if group is None else group
        return found.spec.priority or 0

    def ending_with(self, pod: Pod) -> Iterator[Pod]:
        """The other pods with a node that end when this one does, because their PodGroup says so."""
        group = self._ending_as_one(pod)
        for mate in self.groups.active(group) if group is not None else ():
            if mate.spec.node_name and mate.metadata.uid != pod.metadata.uid:
                yield mate

    def _ending_as_one(self, pod: Pod) -> str | None:
        """The key of the pod's PodGroup if its pods end together.

        Those of one that is too large end alone: all of it would be looked at for each of them.
        """
        group = self.groups.of(pod) if self.features.groups_end_as_one else None
        # Anyone can make a group of thousands of pods: the work for one pod must not grow with it.
        is_one = group is not None and ends_as_one(group) and self.groups.members.count(group.key) <= MOST_GANG_PODS
        return group.key if group is not None and is_one else None

    def placed_of_gang(self, gang: str) -> Iterator[Pod]:
        """The pods of the gang with this key, or of the PodGroup, that run, or are on their way to a node."""
        for pod in map(self.pods.get, (*self.pods_by_gang.keys(gang), *self.groups.members.keys(gang))):
            if pod is not None and not pod_is_done(pod) and self.pods_by_node.at(pod.metadata.uid) is not None:
                yield pod

    def snapshot(
        self,
        allocator: Allocator,
        now: datetime,
        binding_timeout: float = BINDING_TIMEOUT_SECONDS,
        *,
        is_unsettled: Callable[[ResourceClaim], bool] = lambda _claim: False,
        defers: Callable[[Pod, frozenset[str]], float] = lambda _pod, _drivers: 0.0,
    ) -> Snapshot:
        """What a decision looks at, as it is now; ``is_unsettled`` and ``defers`` as there."""
        return Snapshot(
            claim=self.claims.get,
            claims_owned_by=self.claims_owned_by,
            has_class=self.classes.__contains__,
            classes_serving=self.classes_serving,
            assumed=self._is_being_written,
            clashes=self.clashes,
            is_parked=self.is_parked,
            is_dispensable=self.is_dispensable,
            is_unsettled=is_unsettled,
            drivers_of=self.drivers_of,
            defers=defers,
            storage=self.storage,
            nodes=self.loaded_nodes(),
            allocator=allocator,
            usage=self.allocated_devices.usage.snapshot,
            gang_pods=self.gang_pods,
            features=self.features,
            group_of=self.groups.of,
            has_placed_members=self.groups.has_placed,
            now=now,
            nominations=self.nominated_pods.as_seen_by,
            binding_timeout=binding_timeout,
        )

    def times_freed(self) -> TimesFreed:
        """How often devices and room came free."""
        return TimesFreed(self.allocated_devices.freed_devices.number, self._freed_nodes.number)

    def may_preempt(self, key: str) -> bool:
        """Whether others end for a waiting pod, or may: a pod of lower priority has a place."""
        pod = self.pods.get(key)
        # The priority of a single pod says little if its group is evicted as a whole, so nothing is ruled out.
        if pod is None or self.features.groups_end_as_one or self.nominated_pods.get(pod.metadata.uid) is not None:
            return True
        return self.loads.has_lower(self.priority_of(pod))

    def may_find_more(self, key: str) -> bool:
        """Whether what came free since a waiting pod was tried may help it, and is free still.

        If not, all that kept it from each node is as it was, and the next answer begins from now.
        """
        pod, wake_on = self.pods.get(key), self.waiting.get(key)
        if pod is None or wake_on is None or wake_on.tried_at is None:
            return True
        # Asked for devices first: that is one look, and room is a look at each node.
        if wake_on.freed and self.allocated_devices.freed_devices.any_since(wake_on.tried_at.devices):
            return True
        if wake_on.room and self._has_room(pod, wake_on.tried_at.room):
            return True
        # Nothing of what came free is left: the next look need not ask about it again.
        self.waiting[key] = wake_on._replace(tried_at=self.times_freed())
        return False

    def _has_room(self, pod: Pod, since: int) -> bool:
        """Whether the pod fits by its requests on a node where room came free after so many times.

        Resources that devices may serve are left out, and a pod whose devices may bring cpu or memory may always fit.
        """
        # What its devices add to its requests differs from node to node: only an attempt tells.
        if self.features.node_allocatable_resources and pod.spec.resource_claims:
            return any(True for _ in self._freed_nodes.since(since))
        requests, served = NodeResources(tuple(pod_requests(pod).items())), extended_resources(pod)
        nodes = self.loaded_nodes()
        freed = (nodes.get(name) for name in self._freed_nodes.since(since))
        return any(node is not None and requests.obstacle(node, served) is None for node in freed)

    def _room_came_free(self, node: str) -> None:
        """Of a node that is gone nothing is remembered: another one of its name wakes the pods that it may help."""
        # A pod may leave a node that is gone, and the name would stay in memory for ever.
        if self._loaded_nodes.get(node) is not None:
            self._freed_nodes.freed(node)

    def _is_being_written(self, claim: ResourceClaim) -> bool:
        # Neither may be planned with: an allocation on its way may land, and a reservation that goes may free the
        # devices.
        uid = claim.metadata.uid
        return self.allocated_devices.assumed(uid) is not None or uid in self.groups.releasing

    def loaded_nodes(self) -> Nodes:
        """All nodes with what is used of them: the live ones, brought up to date by this call."""
        # Only nodes whose sum changed since the last call: a decision costs as much as changed, not as much as there
        # is.
        touched, self.loads.touched = self.loads.touched, set()
        for name in touched:
            state = self._loaded_nodes.get(name)
            if state is not None:
                self._loaded_nodes.put(state.with_load(self.loads.used(name)))
        return self._loaded_nodes
