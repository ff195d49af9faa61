"""CDI files: content, names, atomic writing, removal by claim (TD-02, TD-03)."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from dra_kubeletplugin import CdiDevice, CdiError, CdiFolder, CdiSpec, ContainerEdits, DeviceNode, Mount

EDITS = ContainerEdits(env=("A=1",))


def spec(kind: str = "gpu.example.com/test", name: str = "claim-1-req", *env: str) -> CdiSpec:
    return CdiSpec(kind=kind, devices=(CdiDevice(name=name, container_edits=ContainerEdits(env=env)),))


@pytest.fixture
def cdi(tmp_path: Path) -> CdiFolder:
    folder = CdiFolder(tmp_path / "deep" / "cdi", "gpu.example.com")
    folder.create()
    return folder


def test_a_file_says_what_the_container_runtime_needs(cdi: CdiFolder) -> None:
    edits = ContainerEdits(
        env=("A=1", "B="),
        device_nodes=(DeviceNode(path="/dev/gpu0", host_path="/dev/real", permissions="rw"),),
        mounts=(Mount(host_path="/opt", container_path="/opt", options=("ro", "bind")),),
    )
    assert cdi.write("uid-1", "req", edits) == "gpu.example.com/claim=claim-uid-1-req"
    (path,) = cdi.folder.iterdir()
    assert path.name == "gpu.example.com-uid-1-req.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert json.loads(path.read_text()) == {
        "cdiVersion": "0.5.0",
        "kind": "gpu.example.com/claim",
        "devices": [
            {
                "name": "claim-uid-1-req",
                "containerEdits": {
                    "env": ["A=1", "B="],
                    "deviceNodes": [{"path": "/dev/gpu0", "hostPath": "/dev/real", "permissions": "rw"}],
                    "mounts": [{"hostPath": "/opt", "containerPath": "/opt", "options": ["ro", "bind"]}],
                },
            }
        ],
    }


def test_the_oldest_version_that_suffices_is_declared() -> None:
    assert spec().cdi_version == "0.3.0"
    node = ContainerEdits(device_nodes=(DeviceNode(path="/dev/a", host_path="/dev/b"),))
    assert CdiSpec(kind="v/c", devices=(CdiDevice(name="d", container_edits=node),)).cdi_version == "0.5.0"


def test_all_files_of_a_claim_go_and_no_others(cdi: CdiFolder) -> None:
    for uid, part in (("uid-1", "a"), ("uid-1", "b"), ("uid-10", "a"), ("uid", "1-a")):
        cdi.write(uid, part, EDITS)
    (cdi.folder / "other.example.com-uid-1-a.json").write_text("{}")
    cdi.remove("uid-1")
    cdi.remove("uid-1")
    left = sorted(path.name for path in cdi.folder.iterdir())
    # uid "uid" with part "1-a" has the same file name as uid "uid-1" with part "a": real uids have one form
    assert left == ["gpu.example.com-uid-10-a.json", "other.example.com-uid-1-a.json"]


def test_writing_again_replaces(cdi: CdiFolder) -> None:
    cdi.write("uid-1", "a", EDITS)
    cdi.write("uid-1", "a", ContainerEdits(env=("X=1",)))
    (path,) = cdi.folder.iterdir()
    assert json.loads(path.read_text())["devices"][0]["containerEdits"] == {"env": ["X=1"]}


def test_a_failed_write_leaves_nothing_behind(cdi: CdiFolder) -> None:
    (cdi.folder / "gpu.example.com-uid-1-a.json").mkdir()
    with pytest.raises(CdiError, match=r"cannot write the CDI file .*gpu\.example\.com-uid-1-a\.json"):
        cdi.write("uid-1", "a", EDITS)
    assert [path.name for path in cdi.folder.iterdir()] == ["gpu.example.com-uid-1-a.json"]
    with pytest.raises(CdiError, match="cannot remove the CDI file"):
        cdi.remove("uid-1")


@pytest.mark.parametrize("kind", ["", "vendor", "vendor/", "/class", "1vendor/class", "vendor/a b", "vendor/a/b"])
def test_kinds_that_cdi_does_not_allow(kind: str) -> None:
    with pytest.raises(CdiError, match="not a CDI kind"):
        spec(kind)


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "a-"])
def test_device_names_that_cdi_does_not_allow(name: str) -> None:
    with pytest.raises(CdiError, match="not a CDI device name"):
        spec(name=name)


@pytest.mark.parametrize("variable", ["", "A", "=1", "A=\0"])
def test_what_is_no_environment_variable(variable: str) -> None:
    with pytest.raises(CdiError, match="not an environment variable"):
        spec("v/c", "d", variable)


@pytest.mark.parametrize("uid", ["", "../../etc/passwd", "*", "a/b"])
def test_a_uid_cannot_lead_out_of_the_folder(cdi: CdiFolder, uid: str) -> None:
    with pytest.raises(CdiError, match="cannot be part of a CDI file name"):
        cdi.write(uid, "a", EDITS)
    with pytest.raises(CdiError, match="cannot be part of a CDI file name"):
        cdi.remove(uid)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CdiError, match="cannot create the CDI folder"):
        CdiFolder(tmp_path / "file" / "cdi", "d").create()
