"""The kinds of ``resource.k8s.io/v1``, and pool status requests as in v1alpha3.

Older versions of the API are converted to these shapes on the way in. Spec: api.md sections 4 to 7.
"""

from __future__ import annotations

from msgspec import Raw, field

from .core import NodeSelector
from .meta import Condition, Object, ObjectMeta, Part
from .values import Quantity

GROUP = "resource.k8s.io"
SCHEDULER_KEY = "dra.kopf.dev/scheduler"
"""Key of the taint that gives a device or node to the scheduler which its value names: to dra-operator, say."""
FINALIZER = "resource.kubernetes.io/delete-protection"
POD_CLAIM_NAME_ANNOTATION = "resource.kubernetes.io/pod-claim-name"
EXTENDED_RESOURCE_ANNOTATION = "resource.kubernetes.io/extended-resource-claim"
ADMIN_ACCESS_LABEL = "resource.kubernetes.io/admin-access"
EXTENDED_RESOURCE_PREFIX = "deviceclass.resource.kubernetes.io/"
NULL = Raw(b"null")
"""The value of a missing raw field, so that it is left out when written."""
MOST_RESULTS = 32
MOST_CONSUMERS = 256


# --- ResourceSlice ------------------------------------------------------------------------------


class DeviceAttribute(Part, frozen=True):
    """Exactly one field is set."""

    int_: int | None = field(default=None, name="int")
    bool_: bool | None = field(default=None, name="bool")
    string: str | None = None
    version: str | None = None
    ints: tuple[int, ...] | None = None
    bools: tuple[bool, ...] | None = None
    strings: tuple[str, ...] | None = None
    versions: tuple[str, ...] | None = None


class CapacityRequestPolicyRange(Part, frozen=True):
    min: Quantity | None = None
    max: Quantity | None = None
    step: Quantity | None = None


class CapacityRequestPolicy(Part, frozen=True):
    default: Quantity | None = None
    valid_values: tuple[Quantity, ...] | None = None
    valid_range: CapacityRequestPolicyRange | None = None


class DeviceCapacity(Part, frozen=True):
    value: Quantity
    request_policy: CapacityRequestPolicy | None = None


class Counter(Part, frozen=True):
    value: Quantity


class CounterSet(Part, frozen=True):
    name: str = ""
    counters: dict[str, Counter] | None = None


class DeviceCounterConsumption(Part, frozen=True):
    counter_set: str = ""
    counters: dict[str, Counter] | None = None
    compatibility_groups: tuple[str, ...] | None = None


class DeviceTaint(Part, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: str | None = None


class NodeAllocatableResourceMapping(Part, frozen=True):
    """Up to 1.36."""

    capacity_key: str | None = None
    allocation_multiplier: Quantity | None = None


class NodeAllocatableMapping(Part, frozen=True):
    """From 1.37 on, as all that belongs to ``NodeAllocatableResource``."""

    capacity_key: str | None = None
    capacity_multiplier: Quantity | None = None
    device_multiplier: Quantity | None = None


class NodeAllocatableOverhead(Part, frozen=True):
    per_pod: Quantity | None = None
    per_container: Quantity | None = None


class NodeAllocatableResource(Part, frozen=True):
    mapping: NodeAllocatableMapping | None = None
    overhead: NodeAllocatableOverhead | None = None


class Device(Part, frozen=True):
    name: str = ""
    attributes: dict[str, DeviceAttribute] | None = None
    capacity: dict[str, DeviceCapacity] | None = None
    consumes_counters: tuple[DeviceCounterConsumption, ...] | None = None
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    taints: tuple[DeviceTaint, ...] | None = None
    binds_to_node: bool | None = None
    binding_conditions: tuple[str, ...] | None = None
    binding_failure_conditions: tuple[str, ...] | None = None
    allow_multiple_allocations: bool | None = None
    node_allocatable_resource_mappings: dict[str, NodeAllocatableResourceMapping] | None = None
    node_allocatable_resources: dict[str, NodeAllocatableResource] | None = None


class ResourcePool(Part, frozen=True):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class ResourceSliceSpec(Part, frozen=True):
    driver: str = ""
    pool: ResourcePool = ResourcePool()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    devices: tuple[Device, ...] | None = None
    shared_counters: tuple[CounterSet, ...] | None = None
    partition_type_attribute: str | None = None
    skip_node_operations: tuple[str, ...] | None = None


class ResourceSlice(Object, frozen=True):
    spec: ResourceSliceSpec = ResourceSliceSpec()


# --- DeviceClass --------------------------------------------------------------------------------


class CELDeviceSelector(Part, frozen=True):
    expression: str = ""


class DeviceSelector(Part, frozen=True):
    cel: CELDeviceSelector | None = None


class OpaqueDeviceConfiguration(Part, frozen=True):
    """``parameters`` are the exact bytes of a JSON object; null when there are none."""

    driver: str = ""
    parameters: Raw = NULL


class DeviceClassConfiguration(Part, frozen=True):
    opaque: OpaqueDeviceConfiguration | None = None


class DeviceClassSpec(Part, frozen=True):
    selectors: tuple[DeviceSelector, ...] | None = None
    config: tuple[DeviceClassConfiguration, ...] | None = None
    extended_resource_name: str | None = None


class DeviceClass(Object, frozen=True):
    spec: DeviceClassSpec = DeviceClassSpec()


# --- ResourceClaim ------------------------------------------------------------------------------


class CapacityRequirements(Part, frozen=True):
    requests: dict[str, Quantity] | None = None


class DeviceToleration(Part, frozen=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class DeviceDerivedAttribute(Part, frozen=True):
    name: str = ""
    expression: str = ""


class DeviceSubRequest(Part, frozen=True):
    name: str = ""
    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] | None = None
    allocation_mode: str = ""
    count: int = 0
    tolerations: tuple[DeviceToleration, ...] | None = None
    capacity: CapacityRequirements | None = None
    derived_attributes: tuple[DeviceDerivedAttribute, ...] | None = None


class ExactDeviceRequest(Part, frozen=True):
    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] | None = None
    allocation_mode: str = ""
    count: int = 0
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] | None = None
    capacity: CapacityRequirements | None = None
    derived_attributes: tuple[DeviceDerivedAttribute, ...] | None = None


class DeviceRequest(Part, frozen=True):
    name: str = ""
    exactly: ExactDeviceRequest | None = None
    first_available: tuple[DeviceSubRequest, ...] | None = None


class DeviceConstraint(Part, frozen=True):
    requests: tuple[str, ...] | None = None
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class DeviceClaimConfiguration(Part, frozen=True):
    requests: tuple[str, ...] | None = None
    opaque: OpaqueDeviceConfiguration | None = None


class DeviceClaim(Part, frozen=True):
    requests: tuple[DeviceRequest, ...] | None = None
    constraints: tuple[DeviceConstraint, ...] | None = None
    config: tuple[DeviceClaimConfiguration, ...] | None = None


class ResourceClaimSpec(Part, frozen=True):
    devices: DeviceClaim = DeviceClaim()


class DeviceRequestAllocationResult(Part, frozen=True):
    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] | None = None
    binding_conditions: tuple[str, ...] | None = None
    binding_failure_conditions: tuple[str, ...] | None = None
    share_id: str | None = field(default=None, name="shareID")
    consumed_capacity: dict[str, Quantity] | None = None
    skip_node_operations: tuple[str, ...] | None = None


class DeviceAllocationConfiguration(Part, frozen=True):
    source: str = ""
    requests: tuple[str, ...] | None = None
    opaque: OpaqueDeviceConfiguration | None = None


class DeviceAllocationResult(Part, frozen=True):
    results: tuple[DeviceRequestAllocationResult, ...] | None = None
    config: tuple[DeviceAllocationConfiguration, ...] | None = None


class AllocationResult(Part, frozen=True):
    devices: DeviceAllocationResult = DeviceAllocationResult()
    node_selector: NodeSelector | None = None
    allocation_timestamp: str | None = None

    @property
    def results(self) -> tuple[DeviceRequestAllocationResult, ...]:
        """The devices that were given."""
        return self.devices.results or ()


class ResourceClaimConsumerReference(Part, frozen=True):
    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class NetworkDeviceData(Part, frozen=True):
    interface_name: str = ""
    ips: tuple[str, ...] | None = None
    hardware_address: str = ""


class AllocatedDeviceStatus(Part, frozen=True):
    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str | None = field(default=None, name="shareID")
    conditions: tuple[Condition, ...] | None = None
    data: Raw = NULL
    network_data: NetworkDeviceData | None = None


class ResourceClaimStatus(Part, frozen=True):
    allocation: AllocationResult | None = None
    reserved_for: tuple[ResourceClaimConsumerReference, ...] | None = None
    devices: tuple[AllocatedDeviceStatus, ...] | None = None


class ResourceClaim(Object, frozen=True):
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()

    @property
    def results(self) -> tuple[DeviceRequestAllocationResult, ...]:
        """The devices that the claim was given; none before it is allocated."""
        return self.status.allocation.results if self.status.allocation is not None else ()


# --- ResourceClaimTemplate ----------------------------------------------------------------------


class ResourceClaimTemplateSpec(Part, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimSpec = ResourceClaimSpec()


class ResourceClaimTemplate(Object, frozen=True):
    spec: ResourceClaimTemplateSpec = ResourceClaimTemplateSpec()


# --- DeviceTaintRule ----------------------------------------------------------------------------


class DeviceTaintSelector(Part, frozen=True):
    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class DeviceTaintRuleSpec(Part, frozen=True):
    device_selector: DeviceTaintSelector | None = None
    taint: DeviceTaint = DeviceTaint()


class DeviceTaintRuleStatus(Part, frozen=True):
    conditions: tuple[Condition, ...] | None = None


class DeviceTaintRule(Object, frozen=True):
    spec: DeviceTaintRuleSpec = DeviceTaintRuleSpec()
    status: DeviceTaintRuleStatus = DeviceTaintRuleStatus()


# --- ResourcePoolStatusRequest ------------------------------------------------------------------


class ResourcePoolStatusRequestSpec(Part, frozen=True):
    driver: str = ""
    pool_name: str | None = None
    limit: int | None = None
    default_partition_type_attribute: str | None = None


class PartitionTypeStatus(Part, frozen=True):
    attribute: str = ""
    type: str = ""
    total: int | None = None
    allocatable: int | None = None


class ShareableCapacityStatus(Part, frozen=True):
    name: str = ""
    total: Quantity | None = None
    consumed: Quantity | None = None
    available: Quantity | None = None


class ShareableSummaryStatus(Part, frozen=True):
    fully_available_devices: int | None = None
    partially_available_devices: int | None = None
    capacity: tuple[ShareableCapacityStatus, ...] | None = None


class PoolStatus(Part, frozen=True):
    driver: str = ""
    pool_name: str = ""
    generation: int = 0
    resource_slice_count: int | None = None
    total_devices: int | None = None
    allocated_devices: int | None = None
    available_devices: int | None = None
    unavailable_devices: int | None = None
    node_name: str | None = None
    validation_error: str | None = None
    partition_summary: tuple[PartitionTypeStatus, ...] | None = None
    shareable_summary: ShareableSummaryStatus | None = None


class ResourcePoolStatusRequestStatus(Part, frozen=True):
    pool_count: int | None = None
    pools: tuple[PoolStatus, ...] | None = None
    conditions: tuple[Condition, ...] | None = None


class ResourcePoolStatusRequest(Object, frozen=True):
    spec: ResourcePoolStatusRequestSpec = ResourcePoolStatusRequestSpec()
    status: ResourcePoolStatusRequestStatus | None = None
