"""Device metadata: files that describe a container's devices to it (PH-11 to PH-14)."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from dra_api.resource import DeviceAttribute, NetworkDeviceData, ResourceClaim
from dra_kubeletplugin import (
    ClaimError,
    ContainerEdits,
    DeviceMetadata,
    Driver,
    MetadataError,
    Prepared,
    PreparedDevice,
    decode_metadata,
    metadata_faults,
    read_metadata,
    results_for,
)
from dra_kubeletplugin.files.claim_files import MetadataDevice, MetadataRequest
from dra_kubeletplugin.testing import ClaimFailed, Container, DriverNode

NAME = "gpu.example.com"
ROOT = "/var/run/kubernetes.io/dra-device-attributes"


class Gpu(Driver):
    """Describes its devices; those called ``bare`` have no edits."""

    async def prepare(self, claim: ResourceClaim) -> Prepared:
        return [
            PreparedDevice.of(
                result,
                edits=None if result.device == "bare" else ContainerEdits(env=(f"GPU={result.device}",)),
                attributes={"model": "A100", "cores": 80, "ecc": True, "driver": DeviceAttribute(version="1.2.3")},
            )
            for result in results_for(NAME, claim)
        ]


def mounted(container: Container) -> dict[str, Path]:
    """The files on the host, by where the container has them."""
    for mount in container.edits.mounts:
        assert mount.options == ("ro", "bind")
    return {mount.container_path: Path(mount.host_path) for mount in container.edits.mounts}


def content(file: Path) -> list[dict[str, Any]]:
    """The objects of a file."""
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.rule("K37-META-05", "PH-11")
async def test_a_container_is_told_what_is_known_of_its_devices(driver_node: DriverNode) -> None:
    async with driver_node.run(Gpu, NAME, device_metadata=True) as driver:
        claim = await driver.claim("gpu-0", "bare", request="req/big")
        container = await driver.prepare(claim)
        assert len(container.cdi_ids) == 1, "the first device of the request mounts the file, the other has no edits"
        files = mounted(container)
        (file,) = files.values()
        assert list(files) == [f"{ROOT}/resourceclaims/claim/req/{NAME}-metadata.json"]
        attributes = {
            "model": {"string": "A100"},
            "cores": {"int": 80},
            "ecc": {"bool": True},
            "driver": {"version": "1.2.3"},
        }
        described = {"driver": NAME, "pool": "worker-1", "attributes": attributes}
        assert content(file) == [
            {
                "apiVersion": "metadata.resource.k8s.io/v1alpha1",
                "kind": "DeviceMetadata",
                "metadata": {"name": "claim", "namespace": "default", "uid": claim.uid, "generation": 1},
                "requests": [
                    {"name": "req/big", "devices": [described | {"name": "gpu-0"}, described | {"name": "bare"}]}
                ],
            }
        ]
        assert stat.S_IMODE(file.stat().st_mode) == 0o644


@pytest.mark.rule("K37-META-06")
async def test_a_claim_without_devices_has_no_file(driver_node: DriverNode) -> None:
    async with driver_node.run(Gpu, NAME, device_metadata=True) as driver:
        container = await driver.prepare(await driver.claim())
        assert (container.cdi_ids, mounted(container)) == ((), {})
        assert not list(driver.settings.metadata_dir.rglob("*.json"))


async def test_a_device_without_edits_mounts_its_metadata_too(driver_node: DriverNode) -> None:
    async with driver_node.run(Gpu, NAME, device_metadata=True) as driver:
        assert len(mounted(await driver.prepare(await driver.claim("bare")))) == 1
    async with driver_node.run(Gpu, NAME) as driver:
        assert (await driver.prepare(await driver.claim("other"))).edits.mounts == (), "off unless asked for"


@pytest.mark.rule("PH-11")
async def test_a_claim_from_a_template_has_the_name_that_the_pod_knows(driver_node: DriverNode) -> None:
    async with driver_node.run(Gpu, NAME, device_metadata=True) as driver:
        claim = await driver.claim("gpu-0", name="pod-1-gpu-x7k2p", pod_claim_name="gpu")
        ((place, file),) = mounted(await driver.prepare(claim)).items()
        assert place == f"{ROOT}/resourceclaimtemplates/gpu/req/{NAME}-metadata.json"
        assert content(file)[0]["podClaimName"] == "gpu"


@pytest.mark.rule("PH-12")
async def test_prj_017_an_update_is_seen_by_a_running_container_and_survives_a_restart(
    driver_node: DriverNode,
) -> None:
    async with driver_node.run(Gpu, NAME, device_metadata=True) as driver:
        claim = await driver.claim("gpu-0", "gpu-1", pod_claim_name="gpu")
        (file,) = mounted(await driver.prepare(claim)).values()
        with file.open() as open_in_container:
            device = PreparedDevice(
                pool="worker-1",
                device="gpu-1",
                attributes={"link": DeviceAttribute(string="up")},
                network=NetworkDeviceData(interface_name="net1", ips=("10.9.8.7/24",)),
            )
            await driver.plugin.update_metadata(claim, "req", [device])
            (seen,) = [json.loads(line) for line in open_in_container.read().splitlines()]
        assert (seen["metadata"]["generation"], seen["podClaimName"]) == (2, "gpu")
        first, second = seen["requests"][0]["devices"]
        assert first["attributes"]["model"] == {"string": "A100"}
        assert second["attributes"] == {"link": {"string": "up"}}
        assert second["networkData"] == {"interfaceName": "net1", "ips": ["10.9.8.7/24"]}
        inode = file.stat().st_ino
        await driver.plugin.update_metadata(claim, "req", [replace(device, attributes={})])
        assert len(content(file)) == 1, "a shorter text leaves nothing of a longer one"
        await driver.restart()
        await driver.prepare(claim)
        assert (content(file)[0]["metadata"]["generation"], file.stat().st_ino) == (3, inode)


@pytest.mark.rule("K37-META-01", "K37-META-02", "K37-META-04", "K37-META-07")
async def test_a_file_has_the_versions_that_the_driver_wants_in_its_order_also_after_updates(
    driver_node: DriverNode,
) -> None:
    group = "metadata.resource.k8s.io"
    async with driver_node.run(Gpu, NAME, device_metadata=["v1beta1", "v1alpha1"]) as driver:
        claim = await driver.claim("gpu-0")
        (file,) = mounted(await driver.prepare(claim)).values()
        for generation in (1, 2, 3):
            newer, older = content(file)
            assert (newer.pop("apiVersion"), older.pop("apiVersion")) == (f"{group}/v1beta1", f"{group}/v1alpha1")
            assert newer == older
            assert newer["metadata"]["generation"] == generation
            await driver.plugin.update_metadata(claim, "req", [PreparedDevice(pool="worker-1", device="gpu-0")])
        assert decode_metadata(file.read_bytes()).metadata.uid == claim.uid


async def test_an_update_of_what_is_not_prepared_is_refused(driver_node: DriverNode) -> None:
    device = PreparedDevice(pool="worker-1", device="gpu-0")
    async with driver_node.run(Gpu, NAME, device_metadata=True) as driver:
        claim = await driver.claim("gpu-0")
        with pytest.raises(ClaimError, match="claim default/claim is not prepared on this node"):
            await driver.plugin.update_metadata(claim, "req", [device])
        await driver.prepare(claim)
        with pytest.raises(ClaimError, match="request 'other' not found in prepared claim default/claim"):
            await driver.plugin.update_metadata(claim, "other", [device])
        with pytest.raises(ClaimError, match="device gpu-9 of pool worker-1 does not serve request 'req'"):
            await driver.plugin.update_metadata(claim, "req", [replace(device, device="gpu-9")])
    async with driver_node.run(Gpu, NAME) as driver:
        with pytest.raises(ClaimError, match="device metadata are off: set device_metadata in the settings"):
            await driver.plugin.update_metadata(claim, "req", [device])


@pytest.mark.rule("PH-09", "PH-13")
async def test_unprepare_removes_the_files_of_the_claim_and_not_of_its_successor(driver_node: DriverNode) -> None:
    async with driver_node.run(Gpu, NAME, device_metadata=True) as driver:
        old = await driver.claim("gpu-0")
        (old_file,) = mounted(await driver.prepare(old)).values()
        new = await driver.claim("gpu-1")  # of the same name
        (new_file,) = mounted(await driver.prepare(new)).values()
        await driver.unprepare(old)
        assert (old_file.parent.parent.exists(), new_file.exists()) == (False, True)
        await driver.unprepare(new)
        assert list(driver.settings.metadata_dir.iterdir()) == []


async def test_files_of_claims_that_nothing_is_known_of_go_at_the_next_start(driver_node: DriverNode) -> None:
    async with driver_node.run(Gpu, NAME, device_metadata=True) as driver:
        await driver.prepare(await driver.claim("gpu-0"))
        left = driver.settings.metadata_dir / "some-uid" / "req"
        left.mkdir(parents=True)
        await driver.restart()
        claim = await driver.claim("gpu-1")
        await driver.prepare(claim)  # comes after the tidying
        assert not left.exists()


async def test_files_stay_with_their_claims_after_metadata_were_switched_off_and_go_with_them(
    driver_node: DriverNode,
) -> None:
    async with driver_node.run(Gpu, NAME, device_metadata=True) as driver:
        claim = await driver.claim("gpu-0")
        (file,) = mounted(await driver.prepare(claim)).values()
        unknown = driver.settings.metadata_dir / "some-uid" / "req"
        unknown.mkdir(parents=True)
    async with driver_node.run(Gpu, NAME) as driver:
        later = await driver.prepare(await driver.claim("gpu-1", name="later"))
        assert mounted(later) == {}
        assert (file.exists(), unknown.exists()) == (True, False), "a container that starts again mounts it again"
        await driver.unprepare(claim)
        assert list(driver.settings.metadata_dir.iterdir()) == []


@pytest.mark.rule("PH-11")
async def test_metadata_that_cannot_be_written_do_not_keep_a_claim_from_being_prepared(
    driver_node: DriverNode, caplog: pytest.LogCaptureFixture
) -> None:
    async with driver_node.run(Gpu, NAME, device_metadata=True) as driver:
        driver.settings.metadata_dir.write_text("in the way")
        container = await driver.prepare(await driver.claim("gpu-0"))
        assert (container.environment, container.edits.mounts) == ({"GPU": "gpu-0"}, ())
        assert "cannot write the device metadata" in caplog.text


async def test_a_folder_in_the_place_of_metadata_gives_way(driver_node: DriverNode) -> None:
    """A container runtime makes one where it is to mount a file that is missing."""
    async with driver_node.run(Gpu, NAME, device_metadata=True) as driver:
        claim = await driver.claim("gpu-0")
        (file,) = mounted(await driver.prepare(claim)).values()
        before = content(file)
        file.unlink()
        file.mkdir()
        await driver.prepare(claim)
        assert content(file) == before


@pytest.mark.rule("PH-09")
async def test_metadata_that_cannot_be_removed_are_an_error_of_their_claim(driver_node: DriverNode) -> None:
    async with driver_node.run(Gpu, NAME, device_metadata=True) as driver:
        claim = await driver.claim("gpu-0")
        await driver.prepare(claim)
        with (
            mock.patch.object(shutil, "rmtree", side_effect=OSError(errno.EBUSY, "busy")),
            pytest.raises(ClaimFailed, match="cannot remove the device metadata"),
        ):
            await driver.unprepare(claim)
        await driver.unprepare(claim)


@pytest.mark.parametrize("kind", ["file", "link", "pipe"])
async def test_what_is_no_folder_keeps_no_claim_and_stays_where_it_is(
    kind: str, driver_node: DriverNode, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The plugin has not put it there, and there are no metadata in it."""
    (other := tmp_path / "other").mkdir()
    put = {"file": Path.touch, "link": lambda it: it.symlink_to(other), "pipe": os.mkfifo}
    async with driver_node.run(Gpu, NAME, device_metadata=True) as driver:
        claim = await driver.claim("gpu-0")
        (file,) = mounted(await driver.prepare(claim)).values()
        folder = file.parent.parent
        shutil.rmtree(folder)
        put[kind](folder)
        await driver.unprepare(claim)
    assert [it.name for it in folder.parent.iterdir()] == [folder.name]
    assert other.is_dir()
    assert f"{folder} is no folder with the device metadata of a claim, and stays: remove it by hand" in caplog.text


# --- readers ---

KNOWN = '{"apiVersion": "metadata.resource.k8s.io/v1alpha1", "kind": "DeviceMetadata", "podClaimName": "x"}'
BETA = KNOWN.replace("v1alpha1", "v1beta1")
NEWER = '{"apiVersion": "metadata.resource.k8s.io/v9", "kind": "DeviceMetadata", "podClaimName": {"new": "shape"}}'

BROKEN: dict[str, tuple[str, str]] = {
    "nothing": (" \n", "no metadata objects found in stream"),
    "only versions to come": (
        NEWER + NEWER,
        r"no compatible metadata version found in stream \(unknown versions: metadata.resource.k8s.io/v9, metadata",
    ),
    "half an object": (KNOWN[:40], "read metadata object from stream: "),
    "half an object behind one of an unknown version": (NEWER + KNOWN[:40], "read metadata object from stream: "),
    "a list": ("[]", "expected an object in the stream"),
    "no version": ('{"kind": "DeviceMetadata"}', "an object without apiVersion or kind"),
    "another kind": (KNOWN.replace("DeviceMetadata", "Other"), "has no kind 'Other', only DeviceMetadata"),
    "another type": (KNOWN.replace('"x"', "1"), "decode metadata.resource.k8s.io/v1alpha1: "),
    "nested without end": ("[" * 100_000, "read metadata object from stream: "),
}


@pytest.mark.rule("PH-14")
@pytest.mark.parametrize("case", BROKEN)
def test_what_a_reader_refuses(case: str) -> None:
    text, message = BROKEN[case]
    with pytest.raises(MetadataError, match=message):
        decode_metadata(text)


@pytest.mark.rule("PH-14")
@pytest.mark.parametrize("text", [KNOWN, NEWER + "\n" + KNOWN, KNOWN + NEWER, KNOWN + "garbage", BETA])
def test_a_reader_takes_the_first_version_that_it_knows(text: str) -> None:
    assert decode_metadata(text.encode()) == DeviceMetadata(pod_claim_name="x")


@pytest.mark.rule("PH-14")
@pytest.mark.parametrize(("folder", "template"), [("resourceclaims", False), ("resourceclaimtemplates", True)])
def test_a_reader_gets_the_devices_of_all_drivers(folder: str, template: bool, tmp_path: Path) -> None:
    place = tmp_path / folder / "gpu" / "req"
    place.mkdir(parents=True)
    for driver in ("a.example.com", "b.example.com"):
        devices = [{"driver": driver, "pool": "p", "name": "d"}]
        entry = json.loads(KNOWN) | {"requests": [{"name": "req", "devices": devices}]}
        (place / f"{driver}-metadata.json").write_text(json.dumps(entry))
    found = read_metadata("gpu", "req", template=template, root=tmp_path)
    both = tuple(MetadataDevice(driver=f"{name}.example.com", pool="p", name="d") for name in "ab")
    assert found == DeviceMetadata(pod_claim_name="x", requests=(MetadataRequest(name="req", devices=both),))


@pytest.mark.rule("K37-META-09")
@pytest.mark.parametrize(
    ("attributes", "faults"),
    [
        ({"model": {"string": "A100"}, "links": {"ints": [1, 2]}}, []),
        (
            {"model": {"string": "A100", "int": 1}, "ok": {"bool": True}},
            ["attributes[model]: Invalid value: {...}: exactly one value must be specified"],
        ),
        ({"model": {}}, ["attributes[model]: Invalid value: {...}: exactly one value must be specified"]),
        ({"links": {"ints": []}}, ["attributes[links].ints: Invalid value: []: must not be empty if specified"]),
        ({"driver": {"version": "1"}}, ['attributes[driver].version: Invalid value: "1": must be a string compatible']),
        ({"a b": {"int": 1}}, ['attributes: Invalid value: "a b": ']),
    ],
)
def test_what_is_wrong_with_attributes_is_told_apart_from_what_can_be_read(attributes: Any, faults: list[str]) -> None:
    device = {"driver": "d.example.com", "pool": "p", "name": "d", "attributes": attributes}
    content = decode_metadata(json.dumps(json.loads(BETA) | {"requests": [{"name": "r", "devices": [device]}]}))
    assert set(content.requests[0].devices[0].attributes) == set(attributes), "all is read"
    found = [re.sub(r"\{.*\}", "{...}", text) for text in metadata_faults(content)]
    assert len(found) == len(faults)
    for text, start in zip(found, faults, strict=True):
        assert text.startswith(f"requests[0].devices[0].{start}")


@pytest.mark.rule("PH-14")
def test_a_reader_is_told_which_file_is_missing_or_broken(tmp_path: Path) -> None:
    with pytest.raises(MetadataError, match=r"no metadata files found in .*/resourceclaims/gpu/req"):
        read_metadata("gpu", "req", root=tmp_path)
    place = tmp_path / "resourceclaims/gpu/req"
    place.mkdir(parents=True)
    (place / "a-metadata.json").write_text("{")
    with pytest.raises(MetadataError, match=r"a-metadata\.json: read metadata object from stream"):
        read_metadata("gpu", "req", root=tmp_path)
