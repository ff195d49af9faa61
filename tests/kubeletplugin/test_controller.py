"""The controller part of a driver for devices of a network: election, claims, conditions beside those of the nodes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bare_client import client_of
from dra_api.meta import Condition
from dra_api.resource import ResourceClaim
from dra_devcluster.apiserver import DevApiServer
from dra_kube import (
    LEASES,
    NAMESPACES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Api,
    Election,
    KubeError,
    LeaseLock,
    Timing,
    connection,
)
from dra_kubeletplugin import (
    ClaimError,
    ClaimRef,
    Controller,
    DeviceStatus,
    Pool,
    control,
    device,
    report_devices,
    results_for,
)
from dra_kubeletplugin.controller import LeadershipLost, lead
from rbac_cases import ACCOUNTS, token_of
from waiting import becomes, until

NAME = "net.example.com"
NETWORK = Path(__file__).resolve().parents[2] / "examples" / "simulated-network.yaml"
POOLS = {"rack-1": Pool.of([device("port-0"), device("port-1")], all_nodes=True)}


@dataclass
class Switch(Controller):
    """Notes what it is told; ``fails`` is how often ``attach`` fails first."""

    calls: list[str] = field(default_factory=list)
    fails: int = 0

    async def attach(self, claim: ResourceClaim) -> Iterable[DeviceStatus]:
        ports = [result.device for result in results_for(NAME, claim)]
        self.calls.append(f"attach {claim.metadata.name}: {' '.join(ports)}")
        if self.fails:
            self.fails -= 1
            raise ClaimError("the switch is busy")
        ready = Condition(type="Attached", status="True", reason="Up", message="")
        return [DeviceStatus.of(result, conditions=[ready]) for result in results_for(NAME, claim)]

    async def detach(self, claim: ClaimRef) -> None:
        self.calls.append(f"detach {claim.name}")

    async def started(self, claims: Sequence[ResourceClaim]) -> None:
        self.calls.append(f"started with {len(claims)}")


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with DevApiServer() as server:
        async with Api(connection(server.write_kubeconfig(tmp_path / "kubeconfig"))) as client:
            yield client


async def make(api: Api, name: str, *ports: str, driver: str = NAME) -> ClaimRef:
    """A claim that is allocated these ports."""
    spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "net"}}]}}
    made = await api.create(RESOURCE_CLAIMS, {"metadata": {"name": name}, "spec": spec}, "default")
    await allocate(api, made, *ports, driver=driver)
    return ClaimRef("default", name, made["metadata"]["uid"])


async def allocate(api: Api, claim: dict[str, Any], *ports: str, driver: str = NAME) -> None:
    results = [{"request": "r", "driver": driver, "pool": "rack-1", "device": port} for port in ports]
    status = {"allocation": {"devices": {"results": results}}} if ports else {"allocation": None}
    await api.patch(RESOURCE_CLAIMS, claim["metadata"]["name"], {"status": status}, "default", subresource="status")


async def conditions(api: Api, name: str) -> dict[str, list[str]]:
    """By device the types of its conditions."""
    claim = await api.get(RESOURCE_CLAIMS, name, "default")
    return {
        entry["device"]: sorted(each["type"] for each in entry.get("conditions") or ())
        for entry in claim["status"].get("devices", ())
    }


async def has(api: Api, name: str, expected: dict[str, list[str]]) -> None:
    async with asyncio.timeout(30):
        while await conditions(api, name) != expected:  # noqa: ASYNC110  # on a server
            await asyncio.sleep(0.02)


@asynccontextmanager
async def running(switch: Switch, api: Api) -> AsyncIterator[None]:
    task = asyncio.create_task(control(switch, NAME, POOLS, api))
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (None, "attach returned None: return a list of DeviceStatus, empty for nothing to say"),
        ({"port-0": "up"}, "attach returned {'port-0': 'up'}: return a list"),
        (["up"], r"attach returned 'up' as a status: use DeviceStatus.of\(result, ...\)"),
    ],
)
async def test_an_answer_of_the_wrong_type_names_the_claim_and_what_would_be_right(
    api: Api, caplog: pytest.LogCaptureFixture, answer: Any, text: str
) -> None:
    class Wrong(Switch):
        async def attach(self, claim: ResourceClaim) -> Iterable[DeviceStatus]:
            return answer  # type: ignore[no-any-return]  # the mistake

    await make(api, "first", "port-0")
    async with running(Wrong(), api):
        await becomes(lambda: re.search(f"claim default/first: {text}", caplog.text) is not None)


def test_a_method_that_cannot_be_waited_for_is_refused() -> None:
    with pytest.raises(TypeError, match=r"X\.attach must be asynchronous"):
        type("X", (Switch,), {"attach": lambda self, claim: []})


async def test_a_controller_without_rights_is_told_which_it_needs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It was told to have those of a plugin, or nothing."""
    async with DevApiServer(authorization="rbac") as server, client_of(server) as client:
        await until("its account", partial(client.get, ACCOUNTS + "/default"))
        token = await token_of(client, "default")
        async with Api(connection(server.write_kubeconfig(tmp_path / "kubeconfig", token))) as api:
            async with running(Switch(), api):
                rights = "list and watch of resourceclaims, .* and its Lease .dra-kubelet-plugin new --network-attached"
                for what in ("cannot watch ResourceClaims", "cannot watch the ResourceSlices"):
                    await becomes(lambda what=what: re.search(f"{what}.*{rights}", caplog.text) is not None)  # type: ignore[misc]


async def test_claims_are_attached_and_detached_and_say_so(api: Api) -> None:
    first = await make(api, "first", "port-0")
    await make(api, "foreign", "gpu-0", driver="gpu.example.com")
    switch = Switch()
    async with running(switch, api):
        await has(api, "first", {"port-0": ["Attached"]})
        ready = Condition(type="Ready", status="True", reason="Up", message="")
        await report_devices(
            api, NAME, first, [DeviceStatus(pool="rack-1", device="port-0", conditions=[ready])], part="worker-1"
        )
        await has(api, "first", {"port-0": ["Attached", "Ready"]})
        await make(api, "second", "port-1")
        await has(api, "second", {"port-1": ["Attached"]})
        await api.delete(RESOURCE_CLAIMS, "first", "default")
        await becomes(lambda: "detach first" in switch.calls)
        await allocate(api, await api.get(RESOURCE_CLAIMS, "second", "default"))
        await becomes(lambda: "detach second" in switch.calls)
        # What was detached has to be attached anew, though it is the same port.
        await allocate(api, await api.get(RESOURCE_CLAIMS, "second", "default"), "port-1")
        await becomes(lambda: switch.calls[-1] == "attach second: port-1")
        slices, _ = await api.list(RESOURCE_SLICES)
        assert [each["spec"].get("allNodes") for each in slices] == [True]
        assert switch.calls == [
            "started with 1",
            "attach first: port-0",
            "attach second: port-1",
            "detach first",
            "detach second",
            "attach second: port-1",
        ]
    async with running(next_one := Switch(), api):
        await becomes(lambda: bool(next_one.calls))
        assert next_one.calls[0] == "started with 1"


async def test_what_fails_is_tried_again_and_holds_up_no_other_claim(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_kubeletplugin.controller._FIRST_ATTACH_PAUSE_SECONDS", 0.01)
    await make(api, "a", "port-0")
    await make(api, "b", "port-1")
    switch = Switch(fails=3)
    async with running(switch, api):
        await has(api, "a", {"port-0": ["Attached"]})
        await has(api, "b", {"port-1": ["Attached"]})
        assert switch.calls.count("attach a: port-0") + switch.calls.count("attach b: port-1") == 5


PROGRAM = """
import dra_kubeletplugin as dra

class Switch(dra.Controller):
    async def attach(self, claim):
        return []

dra.run_controller(Switch(), "net.example.com", {"rack-1": dra.Pool.of([dra.device("p")], all_nodes=True)})
"""


async def test_one_process_leads_and_the_next_takes_over(api: Api, tmp_path: Path) -> None:
    await api.create(NAMESPACES, {"metadata": {"name": "net"}})
    (tmp_path / "controller.py").write_text(PROGRAM)

    async def start() -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, str(tmp_path / "controller.py"), "--kubeconfig", str(tmp_path / "kubeconfig"),
            env={**os.environ, "POD_NAMESPACE": "net"},
        )  # fmt: skip

    async def holder() -> str:
        leases, _ = await api.list(LEASES)
        return next((str(lease["spec"].get("holderIdentity") or "") for lease in leases), "")

    async def leads(other_than: str) -> str:
        async with asyncio.timeout(60):
            while (found := await holder()) in ("", other_than):  # noqa: ASYNC110  # on a server
                await asyncio.sleep(0.05)
        return found

    processes = [await start()]
    try:
        first = await leads("")
        processes.append(await start())
        processes[0].send_signal(signal.SIGTERM)
        assert await processes[0].wait() == 0
        assert await leads(first) != first
    finally:
        for process in processes:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
                assert await process.wait() == 0


async def test_a_leader_outlives_failed_requests_and_ends_when_another_one_has_the_lease(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait for calls of the driver then, and leaves the Lease to its new holder."""
    results = iter([KubeError("away"), None, KubeError("away")])
    attempts = 0

    class Shaky(LeaseLock):
        async def attempt(self) -> bool:
            nonlocal attempts
            attempts += 1
            if error := next(results, None):
                raise error
            return await super().attempt()

    class Stuck(Switch):
        async def attach(self, claim: ResourceClaim) -> Iterable[DeviceStatus]:
            await super().attach(claim)
            await asyncio.Event().wait()
            return []

    monkeypatch.setattr("dra_kubeletplugin.controller.LeaseLock", Shaky)
    monkeypatch.setattr("dra_kubeletplugin.controller.Election", partial(Election, timing=Timing(60, 40, 0.05)))
    monkeypatch.setattr("dra_kubeletplugin.controller._LAST_CALLS_SECONDS", 60)
    switch = Stuck()
    await make(api, "first", "port-0")
    leading = asyncio.create_task(lead(switch, NAME, POOLS, kubeconfig=str(tmp_path / "kubeconfig")))
    try:
        await becomes(lambda: switch.calls == ["started with 1", "attach first: port-0"] and attempts > 4)
        assert not leading.done()
        (lease,) = (await api.list(LEASES))[0]
        name, spec = lease["metadata"]["name"], {**lease["spec"], "holderIdentity": "another one"}
        await api.patch(LEASES, name, {"spec": spec}, "default")
        with pytest.raises(LeadershipLost, match="another one holds it now"):
            await asyncio.wait_for(leading, 20)
    finally:
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
    assert (await api.get(LEASES, name, "default"))["spec"]["holderIdentity"] == "another one"


@pytest.mark.parametrize("ends", [True, False])
async def test_the_lease_stays_while_a_thread_of_attach_is_at_work(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """The next leader would begin beside it."""
    begun, may_end = threading.Event(), threading.Event()

    class Slow(Switch):
        def _attach(self) -> None:
            begun.set()
            may_end.wait()

        async def attach(self, claim: ResourceClaim) -> Iterable[DeviceStatus]:
            await asyncio.to_thread(self._attach)
            self.calls.append("attached")
            return []

    async def holder() -> str:
        (lease,) = (await api.list(LEASES))[0]
        return str(lease["spec"].get("holderIdentity") or "")

    if not ends:
        monkeypatch.setattr("dra_kubeletplugin.controller._LAST_CALLS_SECONDS", 0.1)
    switch = Slow()
    await make(api, "first", "port-0")
    leading = asyncio.create_task(lead(switch, NAME, POOLS, kubeconfig=str(tmp_path / "kubeconfig")))
    try:
        await becomes(begun.is_set)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.3)
        assert await holder() != ""
        if ends:
            may_end.set()
        await leading
        assert (switch.calls[1:], await holder() == "") == ((["attached"], True) if ends else ([], False))
    finally:
        may_end.set()
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)


async def test_the_simulated_devices_of_a_network_are_published_and_attached(api: Api, tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dra_kubeletplugin.cli", "simulated-controller", "--config", str(NETWORK),
        "--drivername", NAME, "--kubeconfig", str(tmp_path / "kubeconfig"),
    )  # fmt: skip
    try:
        async with asyncio.timeout(60):
            while len(slices := (await api.list(RESOURCE_SLICES))[0]) < 3:  # noqa: ASYNC110  # on a server
                await asyncio.sleep(0.05)
        assert {(each["spec"]["pool"]["name"], each["spec"]["driver"]) for each in slices} == {
            ("switch", NAME), ("rack-a", NAME), ("shelf", NAME),
        }  # fmt: skip
        assert not any(each["metadata"].get("ownerReferences") for each in slices)
        spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "net"}}]}}
        await api.create(RESOURCE_CLAIMS, {"metadata": {"name": "waits"}, "spec": spec}, "default")
        results = [
            {"request": "r", "driver": NAME, "pool": "switch", "device": "port-0", "bindingConditions": ["ex.com/up"],
             "bindingFailureConditions": ["ex.com/down"]},
            {"request": "r", "driver": NAME, "pool": "rack-a", "device": "device-01"},
            {"request": "r", "driver": NAME, "pool": "worker-1", "device": "device-01"},
        ]  # fmt: skip
        status = {"status": {"allocation": {"devices": {"results": results}}}}
        await api.patch(RESOURCE_CLAIMS, "waits", status, "default", subresource="status")
        await has(api, "waits", {"port-0": ["ex.com/up"], "device-01": ["Attached"]})
        waits = await api.get(RESOURCE_CLAIMS, "waits", "default")
        assert {(entry["pool"], entry["device"]) for entry in waits["status"]["devices"]} == {
            ("switch", "port-0"), ("rack-a", "device-01"),
        }  # fmt: skip
    finally:
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
