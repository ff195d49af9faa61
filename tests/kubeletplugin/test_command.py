"""``dra.run``: a driver as a command, with the mistakes of its user as one line."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from dra_api.resource import Device, ResourceClaim
from dra_kubeletplugin import Driver, Pool, Prepared, device, run
from dra_kubeletplugin.command import _pools


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


MISTAKES: list[tuple[str, str, dict[str, str], str]] = [
    ("no node", "a.example.com", {}, "the node name is missing: pass --node-name, or set NODE_NAME"),
    ("a bad name", "A", {"node-name": "n"}, "the driver name 'A' is not a DNS subdomain"),
    ("no kubeconfig", "a.example.com", {"node-name": "n", "kubeconfig": "/nowhere"}, "/nowhere does not exist"),
    (
        "no kubelet",
        "a.example.com",
        {"node-name": "n"},
        "for the socket a.example.com-reg.sock does not",
    ),
    ("a bad endpoint", "a.example.com", {"node-name": "n", "http-endpoint": "x"}, "'x' is not host:port"),
]


@pytest.mark.parametrize(
    ("name", "flags", "message"), [case[1:] for case in MISTAKES], ids=[case[0] for case in MISTAKES]
)
def test_a_mistake_ends_the_process_with_one_line(
    kubeconfig: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    flags: dict[str, str],
    message: str,
) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    folder = kubeconfig.parent
    flags = {"kubeconfig": str(kubeconfig), "kubelet-dir": str(folder), "cdi-dir": str(folder / "cdi"), **flags}
    with pytest.raises(SystemExit) as end:
        run(Nothing(), name, [device("d")], [f"--{flag}={value}" for flag, value in flags.items()])
    assert end.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{name}: error: ")
    assert message in line
    assert list(folder.iterdir()) == [kubeconfig], "what cannot start leaves nothing on disk"


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
