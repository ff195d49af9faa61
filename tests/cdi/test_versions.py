"""The oldest version that has what a file uses, as the interface's Go library computes it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from dra_cdi import (
    VERSIONS,
    CdiDevice,
    CdiError,
    CdiSpec,
    ContainerEdits,
    DeviceNode,
    Hook,
    IntelRdt,
    Mount,
    NetDevice,
)

PLAIN = ContainerEdits(env=("A=1",))

EDITS: dict[str, tuple[ContainerEdits, str]] = {
    "variables": (PLAIN, "0.3.0"),
    "a device node": (ContainerEdits(device_nodes=(DeviceNode("/a", type="c", major=1, uid=0),)), "0.3.0"),
    "a hook": (ContainerEdits(hooks=(Hook("poststop", "/a"),)), "0.3.0"),
    "a mount": (ContainerEdits(mounts=(Mount("/a", "/b", ("ro",)),)), "0.3.0"),
    "a mount with a type": (ContainerEdits(mounts=(Mount("/a", "/b", type="bind"),)), "0.4.0"),
    "a device node from elsewhere": (ContainerEdits(device_nodes=(DeviceNode("/a", "/b"),)), "0.5.0"),
    "groups": (ContainerEdits(additional_gids=(1,)), "0.7.0"),
    "Intel RDT": (ContainerEdits(intel_rdt=IntelRdt(clos_id="a")), "0.7.0"),
    "schemata of Intel RDT, even none": (ContainerEdits(intel_rdt=IntelRdt(schemata=())), "1.1.0"),
    "monitoring by Intel RDT": (ContainerEdits(intel_rdt=IntelRdt(enable_monitoring=True)), "1.1.0"),
    "a network interface": (ContainerEdits(net_devices=(NetDevice("a", "b"),)), "1.1.0"),
}

FILES: dict[str, tuple[dict[str, Any], str]] = {
    "a device name that starts with a digit": ({"devices": (CdiDevice("0", PLAIN),)}, "0.5.0"),
    "a dot in the class": ({"kind": "v.com/c.d"}, "0.6.0"),
    "annotations of the file": ({"annotations": {"a": "b"}}, "0.6.0"),
    "annotations of a device": ({"devices": (CdiDevice("a", PLAIN, {"a": "b"}),)}, "0.6.0"),
    "the newest of several needs": ({"kind": "v/c.d", "devices": (CdiDevice("0", PLAIN),)}, "0.6.0"),
}


def spec(**changes: Any) -> CdiSpec:
    return CdiSpec.of(**({"kind": "v.com/c", "devices": (CdiDevice("a", PLAIN),)} | changes))


@pytest.mark.parametrize("case", EDITS)
def test_edits_count_for_each_device_and_for_the_whole_file(case: str) -> None:
    edits, version = EDITS[case]
    assert spec(devices=(CdiDevice("a", edits), CdiDevice("b", PLAIN))).cdi_version == version
    assert spec(container_edits=edits).cdi_version == version


@pytest.mark.parametrize("case", FILES)
def test_names_and_annotations_count(case: str) -> None:
    changes, version = FILES[case]
    assert spec(**changes).cdi_version == version


@pytest.mark.parametrize("version", VERSIONS)
def test_a_file_may_declare_any_version_that_suffices(version: str) -> None:
    made = spec(kind="v/c.d")
    if VERSIONS.index(version) >= VERSIONS.index("0.6.0"):
        assert msgspec.structs.replace(made, cdi_version=version).cdi_version == version
    else:
        with pytest.raises(CdiError, match=f"cdiVersion {version} lacks what the file uses: declare 0.6.0 or newer"):
            msgspec.structs.replace(made, cdi_version=version)
