"""Laws of CDI files: writing and reading are inverse, and the declared version is the oldest that is accepted."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from dra_cdi import (
    VERSIONS,
    CdiDevice,
    CdiError,
    CdiIndex,
    CdiSpec,
    ContainerEdits,
    DeviceNode,
    Hook,
    IntelRdt,
    Mount,
    NetDevice,
    decode,
    encode,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from rounds import fewer

UINT32 = st.integers(0, 2**32 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=8)
NAME = st.from_regex(r"\A[A-Za-z0-9]([A-Za-z0-9_.:-]{0,6}[A-Za-z0-9])?\Z")
PART = st.from_regex(r"\A[A-Za-z]([A-Za-z0-9_.-]{0,6}[A-Za-z0-9])?\Z")
ENV = st.builds("{}={}".format, TEXT.filter(lambda text: "=" not in text), TEXT)


few = settings(max_examples=fewer(25), deadline=None)


def several(items: st.SearchStrategy[Any], unique_by: Any = None) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(items, max_size=2, unique_by=unique_by).map(tuple)


NODES = st.builds(
    DeviceNode,
    TEXT,
    host_path=st.just("") | TEXT,
    type=st.sampled_from(["", "b", "c", "u", "p"]),
    major=INT64,
    minor=INT64,
    file_mode=st.none() | UINT32,
    permissions=st.text("rwm", max_size=3),
    uid=st.none() | UINT32,
    gid=st.none() | UINT32,
)
RDT = st.builds(
    IntelRdt, st.sampled_from(["", "/", "a"]), schemata=st.none() | several(TEXT), enable_monitoring=st.booleans()
)
EDITS = st.builds(
    ContainerEdits,
    env=several(ENV),
    device_nodes=several(NODES),
    net_devices=several(
        st.builds(NetDevice, TEXT, TEXT), unique_by=(lambda item: item.host_interface_name, lambda item: item.name)
    ),
    hooks=several(st.builds(Hook, st.just("prestart"), TEXT, env=several(ENV), timeout=st.none() | INT64)),
    mounts=several(st.builds(Mount, TEXT, TEXT, options=several(TEXT), type=st.just("") | TEXT)),
    intel_rdt=st.none() | RDT,
    additional_gids=several(UINT32),
)
DEVICES = st.builds(CdiDevice, NAME, EDITS.filter(bool), annotations=st.dictionaries(TEXT, TEXT, max_size=1))
SPECS = st.builds(
    CdiSpec.of,
    st.builds("{}/{}".format, PART, PART),
    st.lists(DEVICES, min_size=1, max_size=3, unique_by=lambda device: device.name),
    container_edits=st.none() | EDITS.filter(bool),
    annotations=st.dictionaries(TEXT, TEXT, max_size=1),
)


@few
@given(SPECS)
def test_what_is_written_is_read_again(spec: CdiSpec) -> None:
    assert decode(encode(spec)) == spec


@pytest.mark.rule("K37-META-08")
@few
@given(SPECS)
def test_the_declared_version_is_the_oldest_that_is_accepted(spec: CdiSpec) -> None:
    least = VERSIONS.index(spec.cdi_version)
    for index, version in enumerate(VERSIONS):
        if index >= least:
            assert msgspec.structs.replace(spec, cdi_version=version).cdi_version == version
        else:
            with pytest.raises(CdiError, match="lacks what the file uses"):
                msgspec.structs.replace(spec, cdi_version=version)


@few
@given(SPECS)
def test_every_device_of_a_file_can_be_resolved_alone(spec: CdiSpec) -> None:
    index = CdiIndex()
    index.add(spec)
    before = spec.container_edits or ContainerEdits()
    for device in spec.devices:
        try:
            own = index.resolve([f"{spec.kind}={device.name}"])
        except CdiError as error:  # two network interfaces would get one name
            with pytest.raises(CdiError, match=re.escape(str(error))):
                before + device.container_edits
            continue
        assert own.mounts == before.mounts + device.container_edits.mounts
        assert own.env == before.env + device.container_edits.env


@few
@given(EDITS, EDITS, EDITS)
def test_edits_add_up_in_any_grouping(one: ContainerEdits, two: ContainerEdits, three: ContainerEdits) -> None:
    def total(left: bool) -> ContainerEdits | str:
        try:
            return (one + two) + three if left else one + (two + three)
        except CdiError:  # two network interfaces would get one name
            return "refused"

    assert total(True) == total(False)
