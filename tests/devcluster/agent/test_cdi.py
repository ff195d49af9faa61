"""CDI: spec files, and which edits device ids resolve to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from dra_devcluster.agent.cdi import CdiDirectory, CdiError, missing_paths

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


@pytest.mark.parametrize("name", ["spec.json", "spec.yaml", "spec.yml"])
def test_edits_of_the_file_come_once_and_then_those_of_each_device_in_the_order_asked_for(
    name: str, folder: CdiDirectory
) -> None:
    write(folder, name)
    edits = folder.index().resolve(["vendor.com/gpu=b", "vendor.com/gpu=a", "vendor.com/gpu=b"])
    assert edits.env == ("ALL=yes", "GPU=b", "GPU=a", "A=1")
    assert edits.environment() == {"ALL": "yes", "GPU": "a", "A": "1"}


@pytest.mark.parametrize("version", ["0.3.0", "0.5.0", "0.8.0"])
def test_known_versions_are_read(version: str, folder: CdiDirectory) -> None:
    write(folder, "spec.json", cdiVersion=version)
    assert folder.index().resolve(["vendor.com/gpu=a"]).environment()["GPU"] == "a"


MALFORMED: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown version": ({"cdiVersion": "9.0.0"}, "unsupported CDI version '9.0.0'"),
    "a kind without class": ({"kind": "vendor.com"}, "kind 'vendor.com' is not of the form vendor/class"),
    "no devices": ({"devices": []}, "has no devices"),
    "a device without name": ({"devices": [{}]}, "name"),
    "an invalid device name": ({"devices": [{"name": "-a"}]}, "device name '-a'"),
    "a variable without a name": ({"containerEdits": {"env": ["=x"]}}, "'=x' is not of the form NAME=value"),
    "devices that are no list": ({"devices": {"a": 1}}, "Expected `array`"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_file_costs_only_its_own_devices_and_is_named(case: str, folder: CdiDirectory) -> None:
    changes, message = MALFORMED[case]
    write(folder, "bad.json", **({"kind": "vendor.com/bad"} | changes))
    write(folder, "good.json")
    index = folder.index()
    assert index.resolve(["vendor.com/gpu=a"]).environment()["GPU"] == "a"
    with pytest.raises(CdiError, match=r"unresolvable CDI devices vendor.com/bad=a; bad.json: ") as caught:
        index.resolve(["vendor.com/bad=a"])
    assert message in str(caught.value)


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe\x00", b""])
def test_a_file_that_is_no_json_is_named(content: bytes, folder: CdiDirectory) -> None:
    (folder.path / "bad.json").write_bytes(content)
    with pytest.raises(CdiError, match=r"bad.json"):
        folder.index().resolve(["vendor.com/gpu=a"])


def test_a_device_described_twice_is_not_resolved(folder: CdiDirectory) -> None:
    write(folder, "one.json")
    write(folder, "two.json", devices=[{"name": "a"}])
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


def test_other_files_and_a_missing_directory_are_fine(tmp_path: Path) -> None:
    assert CdiDirectory(tmp_path / "none").index().devices == {}
    (tmp_path / "README.txt").write_text("hello")
    (tmp_path / ".hidden.json").write_text("{")
    assert CdiDirectory(tmp_path).index().errors == {}


def test_device_nodes_and_mounts_need_their_paths_on_the_host(folder: CdiDirectory) -> None:
    edits = {
        "deviceNodes": [{"path": "/dev/null"}, {"path": "/dev/gpu", "hostPath": "/dev/zero"}, {"path": "/dev/none"}],
        "mounts": [{"hostPath": "/", "containerPath": "/x"}, {"hostPath": "/none/at/all", "containerPath": "/y"}],
    }
    write(folder, "spec.json", devices=[{"name": "a", "containerEdits": edits}])
    assert missing_paths(folder.index().resolve(["vendor.com/gpu=a"])) == ["/dev/none", "/none/at/all"]
