"""The simulated driver: what a claim's containers will see, and its configuration file (TD-01 to TD-03)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from dra_api.codec import convert, to_dict
from dra_api.resource import DeviceAttribute, ResourceClaim
from dra_kubeletplugin import ClaimError, ClaimRef, ContainerEdits, PreparedDevice, SettingsError
from dra_kubeletplugin.drivers import read_file
from dra_kubeletplugin.drivers.simulated import SimulatedConfig, SimulatedDriver, network_resources_of, resources_of

read_simulated = partial(read_file, kind=SimulatedConfig)
DRIVER = "gpu.example.com"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
REF = ClaimRef("default", "my-claim", "uid-1")


@pytest.fixture
def driver() -> SimulatedDriver:
    return SimulatedDriver(DRIVER)


def result(request: str = "req", driver: str = DRIVER, device: str = "d0", **others: Any) -> dict[str, Any]:
    return {"request": request, "driver": driver, "pool": "worker-1", "device": device, **others}


def config(parameters: Any, source: str = "FromClaim", driver: str = DRIVER, *requests: str) -> dict[str, Any]:
    return {"source": source, "requests": list(requests), "opaque": {"driver": driver, "parameters": parameters}}


def claim(results: list[dict[str, Any]], configs: list[dict[str, Any]] | None = None) -> ResourceClaim:
    devices = {"results": results, "config": configs or []}
    meta = {"namespace": REF.namespace, "name": REF.name, "uid": REF.uid}
    return convert(ResourceClaim, {"metadata": meta, "status": {"allocation": {"devices": devices}}})


MARK = "claim_my_claim_req=true"
WHICH = ["device_my_claim_req_0=worker-1/d0", "devices_my_claim_req=1"]
ENVIRONMENTS = [
    ("the marker and the device", [], [MARK, *WHICH]),
    ("of the user and of the administrator", [config({"a": "1"}, "FromClass"), config({"a": "2"})],
     ["admin_a=1", MARK, *WHICH, "user_a=2"]),
    ("later ones overwrite earlier ones", [config({"a": "1", "b": "1"}), config({"a": "2"})],
     [MARK, *WHICH, "user_a=2", "user_b=1"]),
    ("only for this request", [config({"a": "1"}, "FromClaim", DRIVER, "other")], [MARK, *WHICH]),
    ("for this request by name", [config({"a": "1"}, "FromClaim", DRIVER, "req")], [MARK, *WHICH, "user_a=1"]),
    ("only for this driver", [config({"a": "1"}, "FromClaim", "other.example.com")], [MARK, *WHICH]),
    ("values are free text", [config({"a": 'x=y "z"'})], [MARK, *WHICH, 'user_a=x=y "z"']),
]  # fmt: skip


@pytest.mark.rule("TD-01", "TD-02")
@pytest.mark.parametrize(("configs", "expected"), [c[1:] for c in ENVIRONMENTS], ids=[c[0] for c in ENVIRONMENTS])
async def test_environment(driver: SimulatedDriver, configs: list[dict[str, Any]], expected: list[str]) -> None:
    (prepared,) = await driver.prepare(claim([result()], configs))
    told = {"driverName": DRIVER, "pool": "worker-1", "device": "d0"}
    assert prepared == PreparedDevice(
        pool="worker-1",
        device="d0",
        requests=("req",),
        edits=ContainerEdits(env=tuple(expected)),
        attributes={name: DeviceAttribute(string=value) for name, value in told.items()},
    )


@pytest.mark.rule("TD-01", "TD-02")
async def test_each_device_has_the_variables_of_its_request(driver: SimulatedDriver) -> None:
    configs = [config({"a": "1"}, "FromClaim", DRIVER, "req/small"), config({"b": "1"}, "FromClaim", DRIVER, "req/big")]
    results = [result("req/small", device="d0"), result("req/small", device="d1", shareID="s"), result("two")]
    prepared = await driver.prepare(claim([*results, result("three", "other.example.com")], configs))

    def small(number: int, device: str) -> tuple[str, ...]:
        which = f"device_my_claim_req_{number}=worker-1/{device}"
        return ("claim_my_claim_req=true", which, "devices_my_claim_req=2", "user_a=1")

    assert [(item.device, item.requests, item.share_id, item.edits and item.edits.env) for item in prepared] == [
        ("d0", ("req/small",), None, small(0, "d0")),
        ("d1", ("req/small",), "s", small(1, "d1")),
        (
            "d0",
            ("two",),
            None,
            ("claim_my_claim_two=true", "device_my_claim_two_0=worker-1/d0", "devices_my_claim_two=1"),
        ),
    ]


BAD_PARAMETERS = [
    ("a list", ["a"], "parameters of the claim are invalid for driver gpu.example.com: Expected `object`"),
    ("a number", {"a": 1}, "Expected `str`, got `int`"),
    ("null", None, "Expected `object`, got `null`"),
    ("a key that is no name", {"a=b": "1"}, "cannot be the name of an environment variable"),
]


@pytest.mark.rule("TD-01")
@pytest.mark.parametrize(("value", "message"), [c[1:] for c in BAD_PARAMETERS], ids=[c[0] for c in BAD_PARAMETERS])
async def test_bad_parameters_are_refused(driver: SimulatedDriver, value: object, message: str) -> None:
    with pytest.raises(ClaimError, match=rf"claim default/my-claim: .*{message}"):
        await driver.prepare(claim([result()], [config(value)]))


# --- configuration ---


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def to_file(text: str) -> Path:
        path = tmp_path / "config.yaml"
        path.write_text(text)
        return path

    return to_file


def devices(config: SimulatedConfig) -> Mapping[str, list[dict[str, Any]]]:
    pools = resources_of(config)
    assert pools is not None
    return {name: [to_dict(device) for part in pool.slices for device in part.devices] for name, pool in pools.items()}


def test_without_a_file_there_are_four_devices_in_a_pool_named_like_the_node() -> None:
    assert devices(SimulatedConfig(node_name="worker-1")) == {
        "worker-1": [{"name": f"device-0{index}"} for index in range(4)]
    }


def test_one_file_names_pools_of_each_node(write: Callable[[str], Path]) -> None:
    config = read_simulated(write("pools: [{name: '{nodeName}/fast'}, {name: '{nodeName}/slow'}]"))
    assert list(devices(msgspec.structs.replace(config, node_name="n1"))) == ["n1/fast", "n1/slow"]


def test_pools_with_devices_in_full_and_in_short(write: Callable[[str], Path]) -> None:
    config = read_simulated(
        write("""
driverName: gpu.example.com
nodeName: worker-1
pools:
- devices:
  - name: gpu
    count: 2
    attributes: {model: A100, index: 3, ecc: true, driverVersion: {version: 1.2.3}}
    capacity: {memory: 40Gi, cores: {value: "8"}}
    taints: [{key: example.com/x, effect: NoSchedule}]
- name: plain
  devices: 1
- name: shared
  sharedCounters: [{name: mem, counters: {slices: {value: "8"}}}]
  devices:
  - {name: part, consumesCounters: [{counterSet: mem, counters: {slices: {value: "1"}}}]}
- {name: nothing, devices: 0, generation: 5}
""")
    )
    gpu = {
        "attributes": {
            "model": {"string": "A100"},
            "index": {"int": 3},
            "ecc": {"bool": True},
            "driverVersion": {"version": "1.2.3"},
        },
        "capacity": {"memory": {"value": "40Gi"}, "cores": {"value": "8"}},
        "taints": [{"key": "example.com/x", "effect": "NoSchedule"}],
    }
    assert devices(config) == {
        "worker-1": [{"name": "gpu-0", **gpu}, {"name": "gpu-1", **gpu}],
        "plain": [{"name": "device-00"}],
        "shared": [
            {"name": "part", "consumesCounters": [{"counterSet": "mem", "counters": {"slices": {"value": "1"}}}]}
        ],
        "nothing": [],
    }
    pools = resources_of(config)
    assert pools is not None
    assert pools["nothing"].generation == 5
    assert len(pools["shared"].slices) == 2


def test_the_example_configuration_is_usable() -> None:
    config = read_simulated(EXAMPLES / "simulated.yaml")
    pools = devices(msgspec.structs.replace(config, node_name="worker-1"))
    assert {name: [entry["name"] for entry in entries] for name, entries in pools.items()} == {
        "worker-1": ["gpu-0", "gpu-1", "gpu-2", "gpu-3", "old-gpu"],
        "partitioned": ["whole", "half-0", "half-1"],
        "plain": ["device-00", "device-01"],
    }


def test_pools_of_no_node_are_for_the_controller() -> None:
    config = read_simulated(EXAMPLES / "simulated-network.yaml")
    assert list(devices(msgspec.structs.replace(config, node_name="worker-1"))) == ["worker-1"]
    network = network_resources_of(config)
    assert {name: (pool.all_nodes, pool.node_selector is not None) for name, pool in network.items()} == {
        "switch": (True, False),
        "rack-a": (False, True),
        "shelf": (False, False),
    }
    assert [one.node_name or one.all_nodes for one in network["shelf"].slices[0].devices] == ["node-1", True]


def test_a_node_publishes_nothing_if_all_pools_are_for_the_controller(write: Callable[[str], Path]) -> None:
    config = read_simulated(write("pools: [{name: switch, allNodes: true, devices: 1}]"))
    assert resources_of(config) is None
    assert list(network_resources_of(config)) == ["switch"]
    with pytest.raises(SettingsError, match="no pool is for the controller: give one allNodes, a nodeSelector"):
        network_resources_of(read_simulated(write("")))


def test_json_and_an_empty_file_will_do(write: Callable[[str], Path]) -> None:
    assert read_simulated(write('{"numDevices": 2}')).num_devices == 2
    assert read_simulated(write("")) == SimulatedConfig()
    assert resources_of(read_simulated(write("pools: []"))) == {}


POOL = "pools: [{name: p, devices: [%s]}]"
BAD_FILES = [
    ("no YAML", "a: [", "neither YAML nor JSON"),
    ("a list", "[]", "config.yaml is invalid: Expected `object`"),
    ("an unknown field", "drivername: x", "unknown field `drivername`"),
    ("a wrong type", "numDevices: many", r"Expected `int`, got `str` - at `\$\.numDevices`"),
    (
        "an unknown field of a device",
        POOL % "{name: a, attributs: {}, taint: x}",
        r"pools\[0\]\.devices\[0\]\.taint: unknown field",
    ),
    (
        "an unknown field deeper down",
        POOL % "{name: a, taints: [{ky: a}]}",
        r"devices\[0\]\.taints\[0\]\.ky: unknown field",
    ),
    ("a quantity that is none", POOL % "{name: a, capacity: {memory: 40 GB}}", r"pools\[0\]\.devices\[0\]: .*40 GB"),
    (
        "two ways to say which nodes reach a pool",
        "pools: [{name: p, allNodes: true, nodeSelector: {}}]",
        r"pools\[0\]: allNodes and nodeSelector exclude each other: keep one of them",
    ),
    (
        "a pool of all nodes that is named like one",
        "pools: [{name: 'p-{nodeName}', allNodes: true}]",
        r"pools\[0\]\.name: a pool with allNodes belongs to no node: give it a name without \{nodeName\}",
    ),
    ("too many devices", "pools: [{name: p, devices: 10001}]", "from 0 to 10000, got 10001"),
    (
        "too many copies",
        POOL % "{name: a, count: 9999999999}",
        r"devices\[0\]\.count: expected a number of devices from 0",
    ),
    ("a count that is none", POOL % "{name: a, count: two}", r"devices\[0\]\.count: expected a number of devices"),
    ("a negative number of devices", "pools: [{name: p, devices: -1}]", "a number of devices from 0 to 10000, got -1"),
    (
        "a device name that the API refuses",
        POOL % "{name: A_1}",
        r"would reject .*pool \"p\", slice #0: device \"A_1\": spec\.devices\[0\]\.name",
    ),
    ("a device twice", POOL % "{name: a}, {name: a}", 'duplicate device "a" in pool "p"'),
    ("a pool twice", "pools: [{name: p}, {name: p}]", r"pools\[1\]\.name: there is already a pool 'p'"),
    (
        "a counter set that is missing",
        POOL % "{name: a, consumesCounters: [{counterSet: x}]}",
        'counter set "x" referenced',
    ),
]


@pytest.mark.parametrize(("text", "message"), [case[1:] for case in BAD_FILES], ids=[case[0] for case in BAD_FILES])
def test_a_bad_file_is_refused_naming_the_place(write: Callable[[str], Path], text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        resources_of(read_simulated(write(text if text == "[]" else f"nodeName: n\n{text}")))


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot read the configuration .*nowhere\.yaml: .*No such file"):
        read_simulated(tmp_path / "nowhere.yaml")
