"""The claim checkpoint: the file format shared with the kubelet (KM-11)."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest
from dra_api.codec import convert
from dra_api.resource import DeviceAllocationResult
from dra_devcluster.agent.checkpoint import CheckpointFile, ClaimInfo, decode, encode
from dra_devcluster.agent.errors import CheckpointCorrupted
from dra_devcluster.agent.plugins.plugin import PreparedDevice

CLAIM = ClaimInfo(
    uid="claim-uid",
    name="gpu",
    namespace="default",
    pods={"pod-2", "pod-1"},
    drivers={
        "gpu.example.com": (
            PreparedDevice("pool", "dev-0", None, ("req",), ("vendor/class=a", "vendor/class=b")),
            PreparedDevice("pool", "dev-1", "share-1"),
        ),
        "idle.example.com": (),
    },
)
DATA = (
    '{"kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/v1","ClaimInfoStateList":['
    '{"ClaimUID":"claim-uid","ClaimName":"gpu","Namespace":"default","PodUIDs":{"pod-1":{},"pod-2":{}},'
    '"DriverState":{"gpu.example.com":{"Devices":['
    '{"PoolName":"pool","DeviceName":"dev-0","ShareID":null,"RequestNames":["req"],'
    '"CDIDeviceIDs":["vendor/class=a","vendor/class=b"]},'
    '{"PoolName":"pool","DeviceName":"dev-1","ShareID":"share-1","RequestNames":null,"CDIDeviceIDs":null}]},'
    '"idle.example.com":{"Devices":[]}}}]}'
)


def wrapped(data: str) -> bytes:
    return json.dumps({"Data": data, "Checksum": zlib.crc32(data.encode())}).encode()


@pytest.mark.rule("KM-11")
def test_the_file_has_exactly_the_kubelets_format() -> None:
    envelope = json.loads(encode([CLAIM]))
    assert envelope == {"Data": DATA, "Checksum": zlib.crc32(DATA.encode())}


ALLOCATED = ClaimInfo(
    "u3",
    "new",
    "default",
    allocation=convert(
        DeviceAllocationResult,
        {
            "results": [
                {"request": "r", "driver": "d", "pool": "p", "device": "x", "consumedCapacity": {"memory": "1.50Gi"}}
            ],
            "config": [{"source": "FromClaim", "opaque": {"driver": "d", "parameters": {"mode": "shared"}}}],
        },
    ),
)


@pytest.mark.parametrize(
    "claims", [[], [ALLOCATED], [CLAIM], [CLAIM, ClaimInfo("u2", "nic", "other", {"p"}, {"d": ()})]]
)
def test_what_is_written_is_read_back(claims: list[ClaimInfo]) -> None:
    assert decode(encode(claims)) == claims


def test_prepared_is_not_kept() -> None:
    claim = ClaimInfo("u", "n", "ns", prepared=True)
    assert [restored.prepared for restored in decode(encode([claim]))] == [False]


TOLERATED = {
    "unknown fields": DATA.replace('"ClaimName"', '"Future":{"x":1},"ClaimName"'),
    "another apiVersion": DATA.replace("k8s.io/v1", "k8s.io/v2"),
    "escaped characters": DATA.replace("claim-uid", "claim\\u002duid"),
}


@pytest.mark.parametrize("case", TOLERATED)
def test_a_file_of_another_version_is_read(case: str) -> None:
    assert decode(wrapped(TOLERATED[case])) == [CLAIM]


def test_missing_fields_are_empty() -> None:
    data = '{"ClaimInfoStateList":[{"ClaimUID":"u","ClaimName":"n","Namespace":"ns","DriverState":{"d":{}}}]}'
    assert decode(wrapped(data)) == [ClaimInfo("u", "n", "ns", drivers={"d": ()})]
    assert decode(wrapped("{}")) == []


DAMAGED = {
    "a wrong checksum": json.dumps({"Data": DATA, "Checksum": 1}).encode(),
    "no JSON": b"{",
    "no JSON inside": wrapped("{"),
    "not an object": b"[]",
    "nothing inside": wrapped("null"),
    "an allocation without shape": wrapped(DATA.replace('"ClaimName"', '"Allocation":{"results":1},"ClaimName"')),
    "no checksum": json.dumps({"Data": DATA}).encode(),
    "an empty file": b"",
}


@pytest.mark.rule("KM-11")
@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_file_stops_the_start_and_says_what_to_do(case: str, tmp_path: Path) -> None:
    file = CheckpointFile(tmp_path / "dra_manager_state")
    file.path.write_bytes(DAMAGED[case])
    with pytest.raises(CheckpointCorrupted, match=r"checkpoint is corrupted.*; drain the node, remove this file"):
        file.load()


def test_a_missing_file_is_made_and_empty(tmp_path: Path) -> None:
    file = CheckpointFile(tmp_path / "new" / "dra_manager_state")
    assert file.load() == []
    assert decode(file.path.read_bytes()) == []


def test_a_write_leaves_nothing_but_the_file(tmp_path: Path) -> None:
    file = CheckpointFile(tmp_path / "dra_manager_state")
    file.store([CLAIM])
    assert [path.name for path in tmp_path.iterdir()] == ["dra_manager_state"]
    assert file.load() == [CLAIM]
