"""What an API server would refuse is found before publishing, in words that name device, attribute and remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dra_api.core import NodeSelector
from dra_api.resource import Device, DeviceAttribute, DeviceTaint, ResourceClaim
from dra_devcluster.apiserver import DevApiServer
from dra_kube import NODES, Api, connection
from dra_kubeletplugin import (
    Driver,
    KubeletPlugin,
    Owner,
    Pool,
    PoolInvalid,
    PoolRefused,
    Prepared,
    Recoverable,
    Slice,
    SlicePublisher,
    check_resources,
    counter_set,
    device,
)
from dra_kubeletplugin.testing import DriverNode

DRIVER = "gpu.example.com"
LONG = "x" * 65
TAINT = DeviceTaint(key="k", effect="NoSchedule")


def of(**fields: Any) -> Pool:
    """A pool with one good device and one that has these fields."""
    return Pool(slices=(Slice(devices=(device("good"), Device(**{"name": "gpu-0", **fields}))),))


def having(**value: Any) -> Pool:
    """A pool with a device whose attribute ``model`` has this value."""
    return of(attributes={"model": DeviceAttribute(**value)})


def plain(count: int, **fields: Any) -> Pool:
    """A pool with one slice of so many devices, the first of which has these fields."""
    devices = [device(f"d{number}", **(fields if number == 0 else {})) for number in range(count)]
    return Pool(slices=(Slice(devices=tuple(devices)),))


MODEL = 'device "gpu-0", attribute "model": spec.devices[1].attributes[model]'
GPU = 'device "gpu-0": spec.devices[1]'
CASES: list[tuple[str, Pool, str, str]] = [
    ("a name in capitals", of(name="A"), 'device "A": spec.devices[1].name: Invalid value', "rename it"),
    ("a long name", of(name="a" * 64), f'device "{"a" * 64}": spec.devices[1].name', ""),
    ("a long text", having(string=LONG), f"{MODEL}.string: Too long", "shorten it"),
    ("a long text in bytes", having(string="ü" * 33), f"{MODEL}.string: Too long", "shorten it"),
    ("a version that is none", having(version="1.2"), f"{MODEL}.version: Invalid", "or make it a string"),
    ("a number of 65 bits", having(int_=2**63), f"{MODEL}.int: Invalid value: 9223372036854775808", "larger unit"),
    ("a small number of 65 bits", having(int_=-(2**63) - 1), f"{MODEL}.int: Invalid value", "larger unit"),
    ("no value", having(), f"{MODEL}: Invalid value", ""),
    ("two values", having(int_=1, string="x"), f"{MODEL}: Invalid value", ""),
    ("33 attributes", of(attributes={f"a{n}": DeviceAttribute(int_=n) for n in range(33)}), GPU, "leave out"),
    ("an attribute's name with a dash", of(attributes={"a-b": DeviceAttribute(int_=1)}), f"{GPU}.attributes", "rename"),
    ("a long attribute's name", of(attributes={"a" * 33: DeviceAttribute(int_=1)}), f"{GPU}.attributes", "shorten it"),
    ("17 taints", of(taints=(TAINT,) * 17), f"{GPU}.taints: Too many", "leave some out"),
    ("a taint without effect", of(taints=(DeviceTaint(key="k"),)), f"{GPU}.taints[0].effect", "set it"),
    ("5 conditions", of(binding_conditions=tuple("abcde"), binding_failure_conditions=("f",)), GPU, "leave some out"),
    ("129 devices", plain(129), "spec.devices: Too many: 129", "let Pool.of split"),
    ("65 devices with a taint", plain(65, taints=(TAINT,)), "spec.devices: Too many: 65", "let Pool.of split"),
    ("9 counter sets", Pool(slices=(Slice(shared_counters=tuple(counter_set(f"c{n}", {"x": 1}) for n in range(9))),)),
     "spec.sharedCounters: Too many: 9", "let Pool.of split"),
    ("33 counters", Pool(slices=(Slice(shared_counters=(counter_set("c", {f"x{n}": 1 for n in range(33)}),)),)),
     "spec.sharedCounters[0].counters: Too many", "leave some out"),
    ("devices beside counters",
     Pool(slices=(Slice(devices=(device("a"),), shared_counters=(counter_set("c", {"x": 1}),)),)),
     "only one of `sharedCounters` or `devices`", "let Pool.of split"),
    ("a node of its own", of(node_name="n"), GPU, "choose one way"),
    ("two choices of nodes", Pool(all_nodes=True), "exactly one of", "choose one way"),
    ("a selector without terms", Pool(node_selector=NodeSelector(node_selector_terms=())), "spec", ""),
    ("a generation of 65 bits", Pool(generation=2**63), "spec.pool.generation: Invalid value", "larger unit"),
]  # fmt: skip
REFUSED = {name.replace(" ", "-").replace("'", "").lower(): pool for name, pool, _, _ in CASES}


@pytest.mark.parametrize(("pool", "place", "remedy"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_the_message_names_place_and_remedy(pool: Pool, place: str, remedy: str) -> None:
    with pytest.raises(PoolInvalid) as caught:
        check_resources({"p": pool}, driver=DRIVER, node_name="n")
    assert str(caught.value).startswith('pool "p", slice #0: ')
    assert place in str(caught.value)
    assert remedy in str(caught.value)


def test_many_faults_are_counted() -> None:
    pool = Pool(slices=(Slice(devices=tuple(device(f"X{number}") for number in range(20))),))
    with pytest.raises(PoolInvalid, match=r"; and 15 more$"):
        check_resources({"p": pool}, driver=DRIVER, node_name="n")


def test_what_is_at_the_limit_passes() -> None:
    at_limit = {
        "devices": plain(128),
        "tainted": plain(64, taints=(TAINT,) * 16),
        "values": of(attributes={
            "a" * 32: DeviceAttribute(string="x" * 64),
            "largest": DeviceAttribute(int_=2**63 - 1),
            "smallest": DeviceAttribute(int_=-(2**63)),
        }),
        "nothing": Pool(),
    }  # fmt: skip
    check_resources(at_limit, driver=DRIVER, node_name="n")


@pytest.mark.parametrize(
    ("resources", "driver", "text"),
    [({"p": Pool()}, "", "spec.driver: Required"), ({"P": Pool()}, DRIVER, 'spec.pool.name: Invalid value: "P"'),
     ({"": Pool()}, DRIVER, "spec.pool.name: Required"), ({"p": Pool()}, "d" * 64, "spec.driver: Too long")],
)  # fmt: skip
def test_names_of_driver_and_pool_are_checked(resources: dict[str, Pool], driver: str, text: str) -> None:
    with pytest.raises(PoolInvalid, match=text):
        check_resources(resources, driver=driver, node_name="n")


def unheard(error: Recoverable, message: str) -> None:
    """Errors are looked at in ``problems``."""


async def test_an_api_server_refuses_the_same_and_takes_the_rest(tmp_path: Path) -> None:
    async with DevApiServer() as server, Api(connection(server.write_kubeconfig(tmp_path / "kubeconfig"))) as api:
        await api.create(NODES, {"metadata": {"name": "n"}})
        async with SlicePublisher(api, DRIVER, owner=Owner.node("n"), on_error=unheard) as publisher:
            publisher.publish({**REFUSED, "good": plain(128)})
            await publisher.settled()
            problems = publisher.problems
    formed = {"devices-beside-counters"}  # the publisher brings them into the form of its API server
    assert problems.keys() == REFUSED.keys() - formed
    assert {type(problem) for problem in problems.values()} == {PoolRefused}


WRONG = [
    ({"attributes": {"model": LONG}}, ValueError, "device 'gpu-0', attribute 'model': .* more than 64 bytes: shorten"),
    ({"attributes": {"serial": 2**63}}, ValueError, "attribute 'serial': 9223372036854775808 needs more than 64 bits"),
    ({"attributes": {"serials": [1, 2**63]}}, ValueError, "attribute 'serials': 9223372036854775808 needs more"),
    ({"attributes": {"price": b"1"}}, TypeError, "attribute 'price': b'1' is not an attribute value: use bool, int"),
    ({"attributes": {"price": 1.5}}, TypeError, "attribute 'price': 1.5 is not an attribute value: use bool, int"),
    ({"taint": []}, TypeError, "device 'gpu-0' has no field 'taint': use taints"),
    ({"consumesCounters": []}, TypeError, "device 'gpu-0' has no field 'consumesCounters': use consumes"),
    ({"allowMultipleAllocations": True}, TypeError, "'allowMultipleAllocations': use allow_multiple_allocations"),
    ({"consumes": {"gpu-0": 5}}, TypeError, "device 'gpu-0', consumes 'gpu-0': 5 is no dict of counters to amounts"),
    ({"capacity": {"memory": "40 GB"}}, ValueError, "device 'gpu-0', capacity 'memory': '40 GB' is not a quantity"),
]


@pytest.mark.parametrize(("fields", "kind", "text"), WRONG)
def test_a_bad_value_is_refused_where_it_is_made(fields: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        device("gpu-0", **fields)


class Idle(Driver):
    async def prepare(self, claim: ResourceClaim) -> Prepared:
        return []


@pytest.mark.parametrize(
    ("resources", "text"),
    [
        ([device("a")], r"\[Device.*cannot be published: give a dict of pools by name, such as {node_name: Pool.of"),
        (Pool.of([device("a")]), "Pool.* cannot be published: give a dict"),
        (None, "None cannot be published"),
        ({3: Pool.of()}, "a dict with the name 3 cannot be published"),
    ],
)
async def test_what_is_no_dict_of_pools_is_refused_where_it_is_published(
    driver_node: DriverNode, resources: Any, text: str
) -> None:
    """It was an AttributeError about "items"."""
    plugin = KubeletPlugin(Idle(), driver_node.settings(DRIVER), driver_node.api.client)
    with pytest.raises(TypeError, match=text):
        await plugin.publish(resources)


def test_a_device_in_place_of_a_list_is_refused() -> None:
    with pytest.raises(TypeError, match="is no list of devices: give a list, of one device as well"):
        Pool.of(device("a"))  # type: ignore[arg-type]
