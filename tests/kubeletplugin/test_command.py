"""``dra.run``: a driver as a command, with the mistakes of its user as one line."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from dra_api.resource import Device, ResourceClaim
from dra_kubeletplugin import DevicesFailed, Driver, Pool, Prepared, counter_set, device, run
from dra_kubeletplugin.commands.command import _pools


class Nothing(Driver):
    async def prepare(self, claim: ResourceClaim) -> Prepared:
        return []


@pytest.fixture
def kubeconfig(short_path: Path) -> Path:
    path = short_path / "kubeconfig"
    path.write_text(
        "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],"
        ' clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}], users: [{name: u, user: {}}]}'
    )
    return path


NODE = {"node-name": "n"}
UNUSABLE = "/proc/self"  # a folder in which not even root can make files
MISTAKES: list[tuple[str, str, dict[str, str], str, int]] = [
    ("no node", "a.example.com", {}, "the node name is missing: pass --node-name, or set NODE_NAME", 2),
    ("a bad name", "A", NODE, "the driver name 'A' is not a DNS subdomain", 2),
    (
        "a long path",
        "a.example.com",
        {**NODE, "kubelet-dir": "/" + "x" * 99},
        "has more than 107 bytes: use shorter",
        2,
    ),
    ("no kubeconfig", "a.example.com", {**NODE, "kubeconfig": "/nowhere"}, "/nowhere does not exist", 2),
    (
        "no kubelet",
        "a.example.com",
        {**NODE, "kubelet-dir": "/nowhere"},
        "for the socket a.example.com-reg.sock does not",
        1,
    ),
    (
        "no folder for CDI files",
        "a.example.com",
        {**NODE, "cdi-dir": "/proc/cdi"},
        "cannot make the folders of the plug",
        1,
    ),
    (
        "an unusable folder for CDI files",
        "a.example.com",
        {**NODE, "cdi-dir": UNUSABLE},
        "see data_dir, cdi_dir and lock",
        1,
    ),
    ("a bad endpoint", "a.example.com", {**NODE, "http-endpoint": "x"}, "'x' is not host:port", 2),
    (
        "no such host",
        "a.example.com",
        {**NODE, "http-endpoint": "256.0.0.1:1"},
        "cannot serve HTTP on 256.0.0.1:1: ",
        1,
    ),
]


@pytest.mark.parametrize(
    ("name", "flags", "message", "code"), [case[1:] for case in MISTAKES], ids=[case[0] for case in MISTAKES]
)
def test_a_mistake_ends_the_process_with_one_line(
    kubeconfig: Path, capsys: pytest.CaptureFixture[str], name: str, flags: dict[str, str], message: str, code: int
) -> None:
    (kubeconfig.parent / "plugins_registry").mkdir()
    assert message in refusal(kubeconfig, capsys, name, flags, code)


@pytest.mark.parametrize("uid", ["", "0f1e2d3c-0000-4000-8000-00000000000a"], ids=["alone", "in a rolling update"])
@pytest.mark.parametrize(("registry", "folder"), [(UNUSABLE, "plugins_registry"), ("/dev/null", "plugins")])
def test_a_folder_of_the_kubelet_that_cannot_be_used_ends_the_process_with_one_line(
    kubeconfig: Path, capsys: pytest.CaptureFixture[str], registry: str, folder: str, uid: str
) -> None:
    (kubeconfig.parent / folder).symlink_to(registry)
    if folder == "plugins":
        (kubeconfig.parent / "plugins_registry").mkdir()
    message = refusal(kubeconfig, capsys, "a.example.com", {**NODE, "rolling-update-uid": uid})
    assert f"{kubeconfig.parent}/{folder}" in message


def test_a_port_that_is_in_use_ends_the_process_before_the_kubelet_hears_of_it(
    kubeconfig: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (kubeconfig.parent / "plugins_registry").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as other:
        endpoint = "{}:{}".format(*other.getsockname())
        message = refusal(kubeconfig, capsys, "a.example.com", {**NODE, "http-endpoint": endpoint})
    assert f"cannot serve HTTP on {endpoint}: " in message
    assert message.endswith("choose another --http-endpoint")


@pytest.fixture(autouse=True)
def no_node_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)


def refusal(
    kubeconfig: Path, capsys: pytest.CaptureFixture[str], name: str, flags: dict[str, str], code: int = 1
) -> str:
    """The only line with which the driver's command ends; it leaves nothing on disk that was not there."""
    folder = kubeconfig.parent
    before = sorted(folder.rglob("*"))
    flags = {"kubeconfig": str(kubeconfig), "kubelet-dir": str(folder), "cdi-dir": str(folder / "cdi"), **flags}
    with pytest.raises(SystemExit) as end:
        run(Nothing(), name, [device("d")], [f"--{flag}={value}" for flag, value in flags.items()])
    assert end.value.code == code
    assert sorted(folder.rglob("*")) == before, "what cannot start leaves nothing on disk"
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{name}: error: ")
    return line


def test_help_names_the_driver_and_its_flags(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        run(Nothing(), "a.example.com", [], ["--help"])
    assert end.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Run the DRA driver a.example.com (Nothing) on this node" in text
    for flag in (
        "--kubelet-dir",
        "--node-name",
        "--cdi-dir",
        "--kubeconfig",
        "--http-endpoint",
        "--rolling-update-uid",
    ):
        assert flag in text


async def test_devices_that_come_and_go_are_published_one_state_after_the_other() -> None:
    async def devices() -> AsyncIterator[list[Device]]:
        yield []
        yield [device("d")]

    pools: Any = _pools("worker-1", devices())
    assert [found async for found in pools] == [{"worker-1": Pool.of([])}, {"worker-1": Pool.of([device("d")])}]


A, B = device("a"), device("b", consumes={"s": {"c": 1}})
COUNTED = Pool.of([B], shared_counters=[counter_set("s", {"c": 4})])
OFFERS: list[tuple[str, Any, dict[str, Pool]]] = [
    ("devices", [A], {"worker-1": Pool.of([A])}),
    ("none now", [], {"worker-1": Pool.of([])}),
    ("a pool with counters", COUNTED, {"worker-1": COUNTED}),
    ("several pools", {"{nodeName}/a": Pool.of([A]), "{nodeName}": COUNTED},
     {"worker-1/a": Pool.of([A]), "worker-1": COUNTED}),
    ("no pools", {}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("offer", "expected"), [case[1:] for case in OFFERS], ids=[case[0] for case in OFFERS])
async def test_a_driver_offers_devices_or_pools(offer: Any, expected: dict[str, Pool]) -> None:
    assert _pools("worker-1", offer) == expected

    async def changing() -> AsyncIterator[Any]:
        yield []
        yield offer

    pools: Any = _pools("worker-1", changing())
    assert [found async for found in pools][1] == expected


def test_what_is_no_pool_ends_the_process_with_one_line() -> None:
    with pytest.raises(DevicesFailed, match=r"pool 'p' is list: make it with Pool.of\(devices\)"):
        _pools("worker-1", {"p": [A]})  # type: ignore[arg-type]  # a mistake


def test_a_driver_gives_further_settings(kubeconfig: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are checked as all others, and flags override them."""
    arguments = [f"--kubelet-dir={kubeconfig.parent}", f"--kubeconfig={kubeconfig}", "--node-name=n"]
    for settings, message in (
        ({"device_metadata": "v9"}, "device_metadata: 'v9' is not a list of versions"),
        ({"metadata": True}, "run was called with a setting that there is not: "),
        ({"scheduler": "_"}, "the scheduler '_' cannot stand in a taint"),
    ):
        with pytest.raises(SystemExit) as end:
            run(Nothing(), "a.example.com", [A], arguments, **settings)
        assert end.value.code == 2
        assert message in capsys.readouterr().err
