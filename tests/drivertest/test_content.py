"""What tells containers with different devices apart."""

from __future__ import annotations

import pytest
from dra_cdi import ContainerEdits, DeviceNode, Mount
from dra_driver_test.checks.configuration import _changed
from dra_driver_test.errors import Finding
from dra_driver_test.harness.content import Content, Known, content_of, shown
from dra_driver_test.harness.devices import Device


def content(*env: str) -> Content:
    return content_of(ContainerEdits(env=env))


def known(name: str, marks: Content) -> Known:
    return Known(Device("gpu.example.com", "pool", name, {}), marks, marks)


ONE, OTHER = known("gpu-0", content("DEVICE_0=gpu-0")), known("gpu-1", content("DEVICE_0=gpu-1"))


@pytest.mark.parametrize(
    "env",
    [
        (),
        ("LIBRARY=/lib",),
        ("DEVICE_0=gpu-0",),
        ("DEVICE_7=gpu-0",),
        ("ALL=gpu-1,gpu-0",),
        ("DEVICE_0=gpu-1", "DEVICE_1=gpu-0"),
    ],
)
def test_a_container_that_may_have_its_device_is_right(env: tuple[str, ...]) -> None:
    ONE.check(content(*env), OTHER, "the claim")


@pytest.mark.parametrize("env", [("DEVICE_0=gpu-1",), ("DEVICE_3=gpu-1",), ("ALL=gpu-1 gpu-2",)])
def test_a_container_with_another_device_alone_is_wrong(env: tuple[str, ...]) -> None:
    with pytest.raises(Finding, match=r"the claim holds gpu-0, and its container gets .* of gpu-1"):
        ONE.check(content(*env), OTHER, "the claim")


def test_device_nodes_count_by_their_path_on_the_host() -> None:
    nodes = [DeviceNode(path="/dev/gpu", host_path=f"/dev/gpu{number}") for number in range(2)]
    assert not content_of(ContainerEdits(device_nodes=(nodes[0],))) & content_of(
        ContainerEdits(device_nodes=(nodes[1],))
    )


def test_contents_are_shown_once() -> None:
    mount = Mount(host_path="/scratch/0", container_path="/scratch")
    assert shown(content_of(ContainerEdits(env=("A=gpu-0",), mounts=(mount,)))) == "A=gpu-0, mount /scratch/0 /scratch"
    assert shown(frozenset()) == "nothing"


def test_other_parameters_differ_in_one_value_of_the_same_type() -> None:
    good = {"apiVersion": "v1", "kind": "Gpu", "mode": {"color": "red", "is-fast": True}, "size": 2}
    others = [{**good, "mode": {"color": color, "is-fast": True}} for color in ("red2", "blue")]
    others += [{**good, "mode": {"color": "red", "is-fast": False}}, {**good, "size": 3}, {**good, "size": 1}]
    assert list(_changed(good, ["red", "blue"])) == others
