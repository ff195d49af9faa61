"""Probes and lifecycle hooks of containers, as the pod's status and events show them."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from aiohttp import web
from dra_devcluster.agent.containers.probes import HandlerFailed, ProbeTarget, perform
from dra_devcluster.agent.pod_network import Network, Streams
from dra_devcluster.agent.processes.logs import LogFile
from dra_devcluster.agent.processes.process import ContainerProcess
from dra_devcluster.agent.spec import ExecAction, GrpcAction, Handler, HttpGetAction, HttpHeader, TcpSocketAction
from dra_kube import EVENTS
from one_node import OneNode
from waiting import stays, until

Json = dict[str, Any]


def container(script: str = "sleep 100", **fields: Any) -> Json:
    return {"name": "c", "image": "busybox", "command": ["sh", "-c", script]} | fields


def shell(script: str, **fields: int) -> Json:
    """A probe or hook that runs a script; probes ask once a second and give up at once."""
    return {"exec": {"command": ["sh", "-c", script]}} | fields


async def state(node: OneNode, **wanted: Any) -> Json:
    """The status of the container, once its fields are as wanted."""

    async def reached() -> Json | None:
        statuses = (await node.get("pod-a"))["status"].get("containerStatuses") or [{}]
        found: Json = statuses[0]
        return found if all(found.get(field) == value for field, value in wanted.items()) else None

    return await until(f"container {wanted}", reached)


async def test_a_container_is_ready_when_its_readiness_probe_says_so(node: OneNode, tmp_path: Path) -> None:
    flag = tmp_path / "ready"
    probe = shell(f"test -e {flag}", periodSeconds=1, failureThreshold=1)
    await node.pod("pod-a", containers=[container(readinessProbe=probe)])
    await node.event("pod-a", "Unhealthy", "Readiness probe failed: ")
    status = await node.phase("pod-a", "Running")
    assert (status["containerStatuses"][0]["ready"], status["containerStatuses"][0]["started"]) == (False, True)
    flag.touch()
    await state(node, ready=True)
    flag.unlink()
    assert (await state(node, ready=False))["restartCount"] == 0


async def test_a_probe_finds_a_port_by_its_name(node: OneNode) -> None:
    probe = {"httpGet": {"port": "web"}, "periodSeconds": 1, "failureThreshold": 1}
    ports = [{"containerPort": 2}, {"name": "web", "containerPort": 1}]
    await node.pod("pod-a", containers=[container(ports=ports, readinessProbe=probe)])
    await node.event("pod-a", "Unhealthy", 'Readiness probe failed: Get "http://127.0.0.1:1/": ')


async def test_a_container_is_restarted_when_its_liveness_probe_gives_up(node: OneNode, tmp_path: Path) -> None:
    flag = tmp_path / "alive"
    flag.touch()
    probe = shell(f"test -e {flag} || {{ echo no pulse; exit 1; }}", periodSeconds=1, failureThreshold=1)
    await node.pod("pod-a", policy="Always", containers=[container(livenessProbe=probe)])
    await state(node, ready=True)
    flag.unlink()
    event = await node.event("pod-a", "Unhealthy")
    assert event["message"] == "Liveness probe failed: no pulse\n"
    flag.touch()

    async def restarted() -> bool:
        status = await state(node, ready=True)
        return bool(status["restartCount"])  # more than 1, if the flag came late

    await until("restarted", restarted)
    assert (await node.event("pod-a", "Killing"))["message"] == "Container c failed liveness probe, will be restarted"


async def test_other_probes_and_containers_wait_for_the_startup_probe(node: OneNode, tmp_path: Path) -> None:
    flag = tmp_path / "started"
    startup = shell(f"test -e {flag}", periodSeconds=1, failureThreshold=100)
    sidecar = container(name="side", restartPolicy="Always", startupProbe=startup, livenessProbe=shell("exit 0"))
    await node.pod("pod-a", containers=[container("exit 0")], initContainers=[sidecar])
    await node.event("pod-a", "Unhealthy", "Startup probe failed")
    assert (await node.get("pod-a"))["status"]["phase"] == "Pending"
    flag.touch()
    await node.phase("pod-a", "Succeeded")


async def test_a_startup_probe_that_gives_up_ends_the_container(node: OneNode) -> None:
    probe = shell("exit 1", periodSeconds=1, failureThreshold=1, terminationGracePeriodSeconds=0)
    await node.pod("pod-a", containers=[container(startupProbe=probe)])
    status = await node.phase("pod-a", "Failed")
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137


async def test_hooks_run_after_the_start_and_before_the_end(node: OneNode, tmp_path: Path) -> None:
    log = tmp_path / "log"
    lifecycle = {"postStart": shell(f"echo start >> {log}"), "preStop": shell(f"echo stop >> {log}")}
    script = f"trap 'echo term >> {log}; exit 0' TERM; while :; do sleep 0.05; done"
    await node.pod("pod-a", containers=[container(script, lifecycle=lifecycle)])

    async def started() -> bool:
        return log.exists()

    await until("the start hook has run", started)
    await node.delete("pod-a")
    await node.gone("pod-a")
    assert log.read_text().split() == ["start", "stop", "term"]


HOOKS = {
    "postStart": ("FailedPostStartHook", "PostStartHook failed: no\n"),
    "preStop": ("FailedPreStopHook", "PreStopHook failed: no\n"),
}


@pytest.mark.parametrize("hook", HOOKS)
async def test_a_hook_that_fails_is_told_in_an_event(hook: str, node: OneNode) -> None:
    reason, message = HOOKS[hook]
    await node.pod("pod-a", containers=[container(lifecycle={hook: shell("echo no; exit 1")})])
    if hook == "preStop":
        await state(node, ready=True)
        await node.delete("pod-a")
    assert (await node.event("pod-a", reason))["message"] == message
    if hook == "postStart":
        await node.phase("pod-a", "Failed")


@pytest.mark.parametrize("case", ["as the pod says", "of a machine that may be slow"])
async def test_a_probe_has_the_time_that_the_pod_gives_it_or_the_settings(
    case: str, node: OneNode, tmp_path: Path
) -> None:
    flag = tmp_path / "go"
    if case != "as the pod says":
        await node.stop()
        node.settings = replace(node.settings, probe_timeout=60.0)
        await node.start()
    probe = shell(f"until test -e {flag}; do sleep 0.05; done", timeoutSeconds=1, periodSeconds=1)
    await node.pod("pod-a", containers=[container(readinessProbe=probe)])
    if case == "as the pod says":
        await node.event("pod-a", "Unhealthy", "Readiness probe failed: timed out after 1 s")
    else:
        await stays("not ready", lambda: _is_unready(node), 1.5)
        flag.touch()
        await state(node, ready=True)
        events, _ = await node.api.list(EVENTS, "default")
        assert [event for event in events if event["reason"] == "Unhealthy"] == []


async def _is_unready(node: OneNode) -> bool:
    return not any(one["ready"] for one in (await node.get("pod-a"))["status"].get("containerStatuses") or ())


# --- what a handler does ---


@pytest.fixture
async def target(tmp_path: Path) -> Any:
    """A container, with a port that nothing listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        log = LogFile(tmp_path / "log")
        process = ContainerProcess(["sleep", "100"], {"PATH": "/usr/bin:/bin"}, tmp_path, log)
        attending = asyncio.create_task(process.log_until_end())
        yield ProbeTarget(process, Network(), {"dead": free.getsockname()[1]})
        attending.add_done_callback(lambda task: process.over.set())
        await process.stop(0.0)


FAILING: dict[str, tuple[Handler, str]] = {
    "a program that fails": (Handler(exec=ExecAction(command=("sh", "-c", "echo out; echo err >&2; exit 3"))), "out"),
    "a program that does not exist": (Handler(exec=ExecAction(command=("no-such-program",))), "not found in \\$PATH"),
    "a program that takes too long": (Handler(exec=ExecAction(command=("sleep", "50"))), "timed out after 0.5 s"),
    "nothing listens": (Handler(tcp_socket=TcpSocketAction(port="dead")), "Connect call failed"),
    "no HTTP server": (Handler(http_get=HttpGetAction(port="dead")), 'Get "http://127.0.0.1:'),
    "no gRPC server": (Handler(grpc=GrpcAction(port=1)), "gRPC probe failed: UNAVAILABLE"),
    "an unknown port": (Handler(http_get=HttpGetAction(port="web")), "couldn't find port: web"),
}


@pytest.mark.parametrize("case", FAILING)
async def test_a_check_that_fails_says_why(case: str, target: ProbeTarget) -> None:
    handler, message = FAILING[case]
    with pytest.raises(HandlerFailed, match=message):
        await perform(handler, target, 0.5)


async def test_a_check_of_a_port_closes_its_connection_before_it_ends(target: ProbeTarget) -> None:
    class Recorded(Network):
        async def connect(self, port: int) -> Streams:
            streams = await super().connect(port)
            made.append(streams[1].get_extra_info("socket"))
            return streams

    made: list[Any] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        handler = Handler(tcp_socket=TcpSocketAction(port=server.getsockname()[1]))
        await perform(handler, replace(target, network=Recorded()), 30.0)
        assert [it.fileno() for it in made] == [-1]


@pytest.mark.parametrize(("code", "good"), [(200, True), (302, True), (404, False), (500, False)])
async def test_an_http_check_goes_by_the_code_of_the_last_answer(code: int, good: bool, target: ProbeTarget) -> None:
    asked: list[tuple[str, str | None]] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        asked.append((request.path, request.headers.get("X-Probe")))
        if request.path == "/elsewhere":
            return web.Response()
        return web.Response(status=code, headers={"Location": "/elsewhere"} if code == 302 else {})

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        headers = (HttpHeader(name="X-Probe", value="yes"),)
        action = HttpGetAction(path="healthz", port=runner.addresses[0][1], http_headers=headers)
        handler = Handler(http_get=action)
        if good:
            await perform(handler, target, 30.0)
        else:
            with pytest.raises(HandlerFailed, match=f"HTTP probe failed with statuscode: {code}"):
                await perform(handler, target, 30.0)
        assert asked[0] == ("/healthz", "yes")
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(("service", "answer", "good"), [("", b"\x08\x01", True), ("gpu", b"\x08\x02", False)])
async def test_a_grpc_check_asks_the_health_service(
    service: str, answer: bytes, good: bool, target: ProbeTarget
) -> None:
    asked: list[bytes] = []

    async def check(request: bytes, context: Any) -> bytes:
        asked.append(request)
        return answer

    server = grpc.aio.server()
    methods = {"Check": grpc.unary_unary_rpc_method_handler(check)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("grpc.health.v1.Health", methods)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        handler = Handler(grpc=GrpcAction(port=port, service=service))
        if good:
            await perform(handler, target, 30.0)
        else:
            with pytest.raises(HandlerFailed, match="service unhealthy"):
                await perform(handler, target, 30.0)
        assert asked == [b"\x0a\x03gpu" if service else b""]
    finally:
        await server.stop(None)
