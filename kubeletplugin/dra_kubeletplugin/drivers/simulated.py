"""The simulated driver and its configuration.

The configuration file of the simulated driver, YAML or JSON. Everything in it is optional::

    driverName: gpu.example.com
    nodeName: worker-1
    pools:
      - name: worker-1            # the node's name if left out
        sharedCounters: [...]
        devices:                  # a number is short for that many devices without properties
          - name: gpu             # as in a ResourceSlice, and plain values for attributes and capacity
            count: 4              # gpu-0 to gpu-3
            attributes: {model: A100, index: 3, ecc: true, driverVersion: {version: 1.2.3}}
            capacity: {memory: 40Gi}

Without ``pools`` there is one with ``numDevices`` devices (4), ``device-00`` and so on (plugin-helper.md 7.1).

A pool that several nodes reach says which: ``allNodes: true``, a ``nodeSelector``, or ``perDeviceNodeSelection: true``
with ``nodeName``, ``allNodes`` or ``nodeSelector`` in each device. Nodes do not publish it: the controller of the
driver does, with the same file. It also reports as true what the scheduler waits for (``bindingConditions``).

A driver without hardware: a container sees its devices as environment variables.

Configuration of a claim or of its class, ``{"key": "value"}``, becomes ``user_key`` or ``admin_key``; a marker names
claim and request, and further variables say which and how many devices there are::

    claim_train_gpus=true
    devices_train_gpus=2
    device_train_gpus_0=worker-1/gpu-3
    device_train_gpus_1=worker-1/gpu-4
    user_color=red

Spec: plugin-helper.md section 7.2, TD-01 to TD-03.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import msgspec
from dra_api.codec import DecodeError, convert, to_dict
from dra_api.core import NodeSelector
from dra_api.meta import Condition
from dra_api.references import base_request
from dra_api.resource import CounterSet, Device, DeviceRequestAllocationResult, ResourceClaim

from dra_kubeletplugin import (
    ClaimError,
    ContainerEdits,
    Controller,
    DeviceStatus,
    Driver,
    Pool,
    PoolInvalid,
    Prepared,
    PreparedDevice,
    Resources,
    SettingsError,
    check_resources,
    configs_for,
    device,
    results_for,
)
from dra_kubeletplugin.drivers import ProcessConfig

_DEFAULT_DEVICES = 4
_MOST_DEVICES = 10_000
"""Of one pool; each is an entry of a ResourceSlice, at most 128 of which fit into one."""


class PoolConfig(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """One pool. In its name ``{nodeName}`` stands for that of the node: nodes must not share pools."""

    name: str = ""
    devices: int | list[dict[str, Any]] = []
    shared_counters: list[dict[str, Any]] = []
    all_nodes: bool = False
    node_selector: dict[str, Any] | None = None
    per_device_node_selection: bool = False
    generation: int = 0

    @property
    def reach(self) -> list[str]:
        """The fields that say which nodes reach the pool; none for a pool of the node that publishes it."""
        given = {
            "allNodes": self.all_nodes,
            "nodeSelector": self.node_selector is not None,
            "perDeviceNodeSelection": self.per_device_node_selection,
        }
        return [field for field, is_given in given.items() if is_given]


class SimulatedConfig(ProcessConfig, frozen=True, kw_only=True):
    """The content of the file; flags of the same meaning override it."""

    driver_name: str = "test-driver.cdi.k8s.io"
    num_devices: int = _DEFAULT_DEVICES
    pools: list[PoolConfig] | None = None


def resources_of(config: SimulatedConfig) -> Resources | None:
    """Return the pools that the node publishes; None if the file has pools, and all are for the controller.

    Raises SettingsError, which names the pool, the device and the field at fault.
    """
    of_node, of_network = _pools(config)
    if not of_node and of_network:
        return None
    return _checked(config, of_node, config.node_name)


def network_resources_of(config: SimulatedConfig) -> Resources:
    """Return the pools that the controller publishes. Raises SettingsError, also if there are none."""
    _, of_network = _pools(config)
    if not of_network:
        raise SettingsError(
            "no pool is for the controller: give one allNodes, a nodeSelector or perDeviceNodeSelection; "
            "`dra-kubelet-plugin simulated` publishes the others on their nodes"
        )
    return _checked(config, of_network)


def _pools(config: SimulatedConfig) -> tuple[dict[str, Pool], dict[str, Pool]]:
    """Return the pools of the node, and those that several nodes may reach."""
    of_node: dict[str, Pool] = {}
    of_network: dict[str, Pool] = {}
    configured = [PoolConfig(devices=config.num_devices)] if config.pools is None else config.pools
    for index, pool in enumerate(configured):
        where = f"pools[{index}]"
        if len(pool.reach) > 1:
            raise SettingsError(f"{where}: {' and '.join(pool.reach)} exclude each other: keep one of them")
        if pool.reach and (not pool.name or "{nodeName}" in pool.name):
            raise SettingsError(
                f"{where}.name: a pool with {pool.reach[0]} belongs to no node: give it a name without {{nodeName}}"
            )
        name = pool.name.replace("{nodeName}", config.node_name) or config.node_name
        if name in of_node or name in of_network:
            raise SettingsError(f"{where}.name: there is already a pool {name!r}: give each pool its own name")
        selector = pool.node_selector
        (of_network if pool.reach else of_node)[name] = Pool.of(
            _devices(pool.devices, f"{where}.devices"),
            shared_counters=[
                _decoded(CounterSet, given, f"{where}.sharedCounters[{at}]")
                for at, given in enumerate(pool.shared_counters)
            ],
            all_nodes=pool.all_nodes,
            node_selector=None if selector is None else _decoded(NodeSelector, selector, f"{where}.nodeSelector"),
            per_device_node_selection=pool.per_device_node_selection,
            generation=pool.generation,
        )
    return of_node, of_network


def _checked(config: SimulatedConfig, pools: dict[str, Pool], node_name: str = "") -> Resources:
    try:
        check_resources(pools, driver=config.driver_name, node_name=node_name)
    except PoolInvalid as error:
        raise SettingsError(f"the API server would reject this configuration: {error}") from error
    return pools


def _devices(given: int | list[dict[str, Any]], where: str) -> list[Device]:
    if isinstance(given, int):
        if not 0 <= given <= _MOST_DEVICES:
            raise SettingsError(f"{where}: expected a number of devices from 0 to {_MOST_DEVICES}, got {given}")
        return [device(f"device-{index:02}") for index in range(given)]
    found: list[Device] = []
    for index, entry in enumerate(given):
        found += _copies(entry, f"{where}[{index}]")
        if len(found) > _MOST_DEVICES:
            raise SettingsError(f"{where}: more than {_MOST_DEVICES} devices in one pool: make several pools")
    return found


def _copies(given: dict[str, Any], where: str) -> Iterator[Device]:
    entry = dict(given)
    count = entry.pop("count", None)
    for field, plain in (("attributes", _attribute), ("capacity", _capacity)):
        if isinstance(entry.get(field), dict):
            entry[field] = {key: plain(value) for key, value in entry[field].items()}
    template: Device = _decoded(Device, entry, where)
    if count is None:
        yield template
        return
    if type(count) is not int or not 0 <= count <= _MOST_DEVICES:
        raise SettingsError(f"{where}.count: expected a number of devices from 0 to {_MOST_DEVICES}, got {count!r}")
    for index in range(count):
        yield msgspec.structs.replace(template, name=f"{template.name}-{index}")


def _attribute(value: Any) -> Any:
    """``model: A100`` instead of ``model: {string: A100}``."""
    match value:
        case bool():
            return {"bool": value}
        case int():
            return {"int": value}
        case str():
            return {"string": value}
    return value


def _capacity(value: Any) -> Any:
    """``memory: 40Gi`` instead of ``memory: {value: 40Gi}``."""
    return {"value": str(value)} if isinstance(value, str | int) else value


def _decoded(type_: type[Any], given: Any, where: str) -> Any:
    try:
        decoded = convert(type_, given)
    except DecodeError as error:
        raise SettingsError(f"{where}: {error}") from error
    if unknown := next(_unknown(given, to_dict(decoded), where), None):
        raise SettingsError(f"{unknown}: unknown field; the ResourceSlice API lists the fields")
    return decoded


def _unknown(given: Any, kept: Any, where: str) -> Iterator[str]:
    """Paths of unknown fields, which decoding dropped. Empty ones do not count."""
    if isinstance(given, dict):
        for key, value in given.items():
            if key in (kept or {}):
                yield from _unknown(value, kept[key], f"{where}.{key}")
            elif value not in (None, "", 0, False, [], {}):
                yield f"{where}.{key}"
    elif isinstance(given, list):
        for index, (value, kept_value) in enumerate(zip(given, kept, strict=True)):
            yield from _unknown(value, kept_value, f"{where}[{index}]")


_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9]")


class SimulatedDriver(Driver):
    """Prepares claims of the driver ``name``."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def prepare(self, claim: ResourceClaim) -> Prepared:
        """Give each device the variables of its request."""
        results = results_for(self._name, claim)
        counts = Counter(base_request(result.request) for result in results)
        seen: Counter[str] = Counter()
        prepared = []
        for result in results:
            request = base_request(result.request)
            name = _NOT_IN_NAMES.sub("_", f"{claim.metadata.name}_{request}")
            variables = {
                f"claim_{name}": "true",
                f"devices_{name}": str(counts[request]),
                f"device_{name}_{seen[request]}": f"{result.pool}/{result.device}",
            }
            seen[request] += 1
            prepared.append(self._prepared(claim, result, variables))
        return prepared

    def _prepared(
        self, claim: ResourceClaim, result: DeviceRequestAllocationResult, variables: dict[str, str]
    ) -> PreparedDevice:
        for config in configs_for(self._name, claim, result, dict[str, str]):
            for key, value in config.parameters.items():
                if "=" in key or "\0" in key + value:
                    raise ClaimError(
                        f"claim {claim.key}: the parameter {key!r} cannot be the name of an environment variable"
                    )
                variables[("admin_" if config.from_class else "user_") + key] = value
        edits = ContainerEdits(env=tuple(sorted(f"{name}={value}" for name, value in variables.items())))
        told = {"driverName": self._name, "pool": result.pool, "device": result.device}
        return PreparedDevice.of(result, edits=edits, attributes=told)


class SimulatedController(Controller):
    """Publishes the pools that belong to no node, and reports their devices as attached.

    Each condition for which the scheduler waits becomes true, and ``Attached`` for devices without any.
    """

    def __init__(self, name: str, pools: Collection[str]) -> None:
        self._name, self._pools = name, frozenset(pools)

    async def attach(self, claim: ResourceClaim) -> Iterable[DeviceStatus]:
        """Return the conditions of the claim's devices in these pools."""
        return [
            DeviceStatus.of(result, conditions=[_true(kind) for kind in result.binding_conditions or ("Attached",)])
            for result in results_for(self._name, claim)
            if result.pool in self._pools
        ]


def _true(kind: str) -> Condition:
    return Condition(type=kind, status="True", reason="Simulated", message="")
