"""A folder of files, and which edits device ids resolve to."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from dra_cdi import CdiDirectory, CdiError, CdiIndex, ContainerEdits, IntelRdt, NetDevice, decode

SPEC: dict[str, Any] = {
    "cdiVersion": "0.6.0",
    "kind": "vendor.com/gpu",
    "containerEdits": {"env": ["ALL=yes"]},
    "devices": [
        {"name": "a", "containerEdits": {"env": ["GPU=a", "A=1"]}},
        {"name": "b", "containerEdits": {"env": ["GPU=b"]}},
    ],
}


@pytest.fixture
def folder(tmp_path: Path) -> CdiDirectory:
    return CdiDirectory(tmp_path)


def write(folder: CdiDirectory, name: str, **changes: Any) -> None:
    spec = SPEC | changes
    (folder.path / name).write_text(json.dumps(spec) if name.endswith("json") else yaml.safe_dump(spec))


@pytest.mark.parametrize("name", ["spec.json", "spec.yaml", ".hidden.json"])
def test_edits_of_the_file_come_once_and_then_those_of_each_device_in_the_order_asked_for(
    name: str, folder: CdiDirectory
) -> None:
    write(folder, name)
    edits = folder.index().resolve(["vendor.com/gpu=b", "vendor.com/gpu=a", "vendor.com/gpu=b"])
    assert edits.env == ("ALL=yes", "GPU=b", "GPU=a", "A=1")
    assert edits.environment() == {"ALL": "yes", "GPU": "a", "A": "1"}


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe\x00", b"", json.dumps(SPEC | {"kind": "v"}).encode()])
def test_a_malformed_file_costs_only_its_own_devices_and_is_named(content: bytes, folder: CdiDirectory) -> None:
    write(folder, "good.json")
    (folder.path / "bad.json").write_bytes(content)
    index = folder.index()
    assert index.resolve(["vendor.com/gpu=a"]).environment()["GPU"] == "a"
    with pytest.raises(CdiError, match=r"unresolvable CDI devices vendor.com/bad=a; bad.json: "):
        index.resolve(["vendor.com/bad=a"])


def test_a_device_described_twice_is_not_resolved(folder: CdiDirectory) -> None:
    write(folder, "one.json")
    write(folder, "two.json", devices=SPEC["devices"][:1])
    index = folder.index()
    with pytest.raises(CdiError, match=r"described by several files: vendor.com/gpu=a"):
        index.resolve(["vendor.com/gpu=a"])
    assert index.resolve(["vendor.com/gpu=b"]).environment()["GPU"] == "b"


def test_changed_and_removed_files_are_noticed(folder: CdiDirectory) -> None:
    write(folder, "spec.json")
    assert folder.index().resolve(["vendor.com/gpu=a"])
    write(folder, "new.json", devices=[{"name": "c", "containerEdits": {"env": ["GPU=c"]}}])
    (folder.path / "spec.json").unlink()
    index = folder.index()
    assert index.resolve(["vendor.com/gpu=c"]).environment()["GPU"] == "c"
    with pytest.raises(CdiError):
        index.resolve(["vendor.com/gpu=a"])


def test_other_names_and_folders_and_a_missing_directory_are_fine(tmp_path: Path) -> None:
    assert CdiDirectory(tmp_path / "none").index().devices == {}
    for name in ("README.txt", "spec.yml", ".claim.tmp"):
        (tmp_path / name).write_text("{")
    (tmp_path / "folder.json").mkdir()
    assert CdiDirectory(tmp_path).index() == CdiIndex()


def test_edits_of_several_devices_add_up_and_a_network_interface_moves_once() -> None:
    one = ContainerEdits(net_devices=(NetDevice("eth0", "a"),), additional_gids=(1,))
    two = ContainerEdits(net_devices=(NetDevice("eth0", "b"), NetDevice("eth1", "c")), intel_rdt=IntelRdt("x"))
    both = one + two
    assert both.net_devices == (NetDevice("eth0", "b"), NetDevice("eth1", "c"))
    assert (both.additional_gids, both.intel_rdt) == ((1,), IntelRdt("x"))
    assert both + ContainerEdits() == both


def test_an_unreadable_file_is_named(folder: CdiDirectory) -> None:
    (folder.path / "loop.json").symlink_to("loop.json")
    with pytest.raises(CdiError, match=r"loop\.json: cannot be read"):
        folder.index().resolve(["vendor.com/gpu=a"])


def test_a_pipe_is_named_and_not_opened(folder: CdiDirectory) -> None:
    """It blocked the node's agent, and so all pods of the node."""
    write(folder, "good.json")
    os.mkfifo(folder.path / "pipe.json")
    index = folder.index()
    assert index.resolve(["vendor.com/gpu=a"])
    assert str(index.errors["pipe.json"]) == "cannot be read: it is no regular file"


def test_the_index_takes_what_was_read_from_anywhere() -> None:
    index = CdiIndex()
    index.add(decode(json.dumps(SPEC)))
    assert set(index.devices) == {"vendor.com/gpu=a", "vendor.com/gpu=b"}
