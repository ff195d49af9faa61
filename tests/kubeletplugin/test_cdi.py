"""CDI files: content, names, atomic writing, removal by claim (TD-02, TD-03)."""

from __future__ import annotations

import json
import os
import resource
import signal
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from dra_kubeletplugin import CdiError, CdiFolder, ContainerEdits, DeviceNode, Mount

EDITS = ContainerEdits(env=("A=1",))


@pytest.fixture
def cdi(tmp_path: Path) -> CdiFolder:
    folder = CdiFolder(tmp_path / "deep" / "cdi", "gpu.example.com")
    folder.create()
    return folder


@pytest.mark.rule("TD-02")
def test_a_file_says_what_the_container_runtime_needs(cdi: CdiFolder) -> None:
    edits = ContainerEdits(
        env=("A=1", "B="),
        device_nodes=(DeviceNode(path="/dev/gpu0", host_path="/dev/real", permissions="rw"),),
        mounts=(Mount(host_path="/opt", container_path="/opt", options=("ro", "bind")),),
    )
    assert cdi.write("uid-1", "req", edits) == "gpu.example.com/claim=claim-uid-1-req"
    (path,) = cdi.folder.iterdir()
    assert path.name == "gpu.example.com-uid-1-req.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
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


@pytest.mark.rule("TD-03")
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
    (cdi.folder / "gpu.example.com-uid-1-a.json" / "of somebody").mkdir(parents=True)
    with pytest.raises(CdiError, match=r"cannot write the CDI file .*gpu\.example\.com-uid-1-a\.json"):
        cdi.write("uid-1", "a", EDITS)
    assert [path.name for path in cdi.folder.iterdir()] == ["gpu.example.com-uid-1-a.json"]
    cdi.remove("uid-1")  # a folder is no CDI file, and the claim must not wait for whoever made it
    assert cdi.kept.lost() == set()


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _loop(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize("make", [Path.mkdir, _pipe, _loop])
def test_what_stands_in_the_place_of_a_file_gives_way(make: Callable[[Path], object], cdi: CdiFolder) -> None:
    """A container runtime makes a folder where it is to mount a file that is missing; nobody ever writes to a pipe."""
    for part in ("a", "b"):
        make(cdi.folder / f"gpu.example.com-uid-1-{part}.json")
    with _limited(seconds=2):
        cdi.write("uid-1", "a", EDITS)
        cdi.sweep(keep=())
        assert [path.is_file() for path in cdi.folder.glob("*-a.json")] == []
        cdi.write("uid-1", "a", EDITS)
        assert json.loads((cdi.folder / "gpu.example.com-uid-1-a.json").read_text())["kind"] == "gpu.example.com/claim"
        cdi.remove("uid-1")
    assert list(cdi.folder.iterdir()) == []


@contextmanager
def _limited(seconds: int) -> Iterator[None]:
    """Fail if the block takes longer, also while it is blocked in the kernel."""

    class Blocked(BaseException):
        """It is no OSError: the block may take that for one of its own."""

    def interrupt(*_: object) -> None:
        raise Blocked

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("ask", [lambda cdi: cdi.remove("uid-1"), lambda cdi: cdi.sweep(keep=()), CdiFolder.create])
def test_a_process_without_descriptors_gets_an_error_that_names_the_folder(
    ask: Callable[[CdiFolder], object], cdi: CdiFolder
) -> None:
    cdi.write("uid-1", "a", EDITS)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(CdiError, match=rf"cannot read the CDI folder {cdi.folder}: .*Too many open files"):
            ask(cdi)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [path.name for path in cdi.folder.iterdir()] == ["gpu.example.com-uid-1-a.json"]


REFUSED: dict[str, tuple[ContainerEdits, str]] = {
    "nothing that changes": (ContainerEdits(), "the containerEdits are empty: add at least one variable in env"),
    "text instead of a list": (
        ContainerEdits(mounts=(Mount("/a", "/b", options="ro"),)),  # type: ignore[arg-type]  # a user's mistake
        r"device 'claim-uid-1-a', containerEdits.mounts\[0\].options: Expected `array`, got `str`",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_runtimes_refuse_is_not_written(case: str, cdi: CdiFolder) -> None:
    edits, message = REFUSED[case]
    with pytest.raises(CdiError, match=f"CDI file gpu.example.com-uid-1-a.json: {message}"):
        cdi.write("uid-1", "a", edits)
    assert list(cdi.folder.iterdir()) == []


def test_a_driver_name_that_cdi_cannot_carry_is_refused_before_anything_is_prepared(tmp_path: Path) -> None:
    with pytest.raises(CdiError, match=r"kind '3d\.example\.com/claim'.* the vendor '3d\.example\.com' has to start"):
        CdiFolder(tmp_path, "3d.example.com")


def test_what_a_killed_process_left_half_written_goes_with_its_claim_or_at_the_next_start(cdi: CdiFolder) -> None:
    left = {uid: cdi.folder / f".gpu.example.com={uid}-x1y2.tmp" for uid in ("uid-1", "uid-2", "uid-3")}
    other = cdi.folder / ".other.example.com=uid-2-x1y2.tmp"
    for path in (*left.values(), other):
        path.write_text("{")
    for path in (left["uid-2"], other):
        os.utime(path, (0, 0))
    cdi.remove("uid-1")
    cdi.create()  # uid-3 may be what another instance writes at this moment
    assert set(cdi.folder.iterdir()) == {left["uid-3"], other}


def test_what_another_instance_is_writing_when_the_clock_is_set_forward_is_written(
    cdi: CdiFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is begun seems to be left by a process that was killed, and is removed."""
    rename, set_at = os.replace, list[str]()

    def start_meanwhile(hidden: str, path: Path) -> None:
        if not set_at:
            set_at.append(hidden)
            os.utime(hidden, (time.time() - 3600, time.time() - 3600))
            CdiFolder(cdi.folder, "gpu.example.com").create()
            assert not os.path.exists(hidden)
        rename(hidden, path)

    monkeypatch.setattr(os, "replace", start_meanwhile)
    cdi.write("uid-1", "a", EDITS)
    assert [path.name for path in cdi.folder.iterdir()] == ["gpu.example.com-uid-1-a.json"]


def test_what_a_driver_with_a_longer_name_is_writing_stays(cdi: CdiFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two drivers on a node, one may start while the other one writes."""
    neighbour, rename = CdiFolder(cdi.folder, "gpu.example.com-nic"), os.replace

    def start_meanwhile(hidden: str, path: Path) -> None:
        os.utime(hidden, (0, 0))
        cdi.create()
        cdi.sweep(keep=())
        cdi.remove("nic")
        rename(hidden, path)

    monkeypatch.setattr(os, "replace", start_meanwhile)
    neighbour.write("uid-1", "a", EDITS)
    assert [path.name for path in cdi.folder.iterdir()] == ["gpu.example.com-nic-uid-1-a.json"]


def test_a_file_is_on_the_disk_before_it_has_its_name(cdi: CdiFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []

    def flush(descriptor: int) -> None:
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        steps.append(f"flush {kind}, {len(list(cdi.folder.glob('[!.]*')))} named")

    monkeypatch.setattr(os, "fsync", flush)
    cdi.write("uid-1", "a", EDITS)
    assert steps == ["flush file, 0 named", "flush folder, 1 named"]


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
