"""``dra-operator run`` as a process: start, probes, metrics, stop, and what it says when it cannot start."""

from __future__ import annotations

import json
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import aiohttp
import pytest
from command import Command, running
from dra_api.gates import GateError
from dra_api.releases import Release
from dra_devcluster.apiserver import DevApiServer
from dra_operator.allocator import Features
from dra_operator.gates import features_of
from dra_operator.sources.kinds import watched_kinds
from faults import FaultProxy, Hang, Refuse, Target
from supervised import LiveCluster
from waiting import until


async def run(*arguments: str) -> tuple[int, str]:
    """Exit code and what it printed, for runs that end by themselves."""
    async with operator_with(*arguments) as operator:
        return await operator.end(), operator.output


def operator_with(*arguments: str) -> AbstractAsyncContextManager[Command]:
    """A running operator."""
    return running(["dra-operator", "run", *arguments])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_works_until_a_signal_and_then_ends_with_0(
    number: signal.Signals, cluster: LiveCluster, kubeconfig: Path
) -> None:
    await cluster.furnish(template=True)
    async with operator_with("--kubeconfig", str(kubeconfig), "--metrics-port", "0", "--check-invariants") as operator:
        address = (await operator.says(r"metrics and probes on (\S+)"))[1]
        await cluster.place("pod")
        await cluster.heard()
        async with aiohttp.ClientSession(address) as http:

            async def ready() -> bool:
                async with http.get("/readyz") as answer:
                    assert answer.status == 200, await answer.text()
                return True

            await until("ready", ready)
            for probe in ("/livez", "/readyz"):
                async with http.get(probe) as answer:
                    assert answer.status == 200
            async with http.get("/metrics") as answer:
                metrics = await answer.text()
        assert await operator.end(number) == 0
    assert 'resourceclaim_controller_creates_total{admin_access="false",status="success"} 1.0' in metrics
    assert 'resource_claims{admin_access="false",allocated="true",source="resource_claim_template"} 1.0' in metrics
    assert "ERROR" not in operator.output
    assert "Traceback" not in operator.output


async def test_a_kubeconfig_that_points_nowhere_is_named_with_a_remedy(tmp_path: Path) -> None:
    code, output = await run("--kubeconfig", str(tmp_path / "missing"))
    assert code == 2
    assert str(tmp_path / "missing") in output
    assert "--kubeconfig FILE" in output
    assert "Traceback" not in output


@pytest.fixture
def dead_server(server: DevApiServer, kubeconfig: Path, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """An address at which no server listens, and a kubeconfig that names it."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        unserved = f"https://127.0.0.1:{unused.getsockname()[1]}"
        config = tmp_path / "dead"
        config.write_text(kubeconfig.read_text().replace(server.url, unserved))
        yield unserved, config


async def test_among_json_lines_the_reason_of_the_end_is_one_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So is the warning of a setting that is given by a former name."""
    monkeypatch.setenv("DRA_OPERATOR_CONCERNS", "placement")
    code, output = await run("--log-format", "json", "--kubeconfig", str(tmp_path / "none"))
    assert code == 2
    warning, reason = (json.loads(line) for line in output.splitlines())
    assert warning["level"] == "warning"
    former = (
        "setting concerns from variable DRA_OPERATOR_CONCERNS is called controllers now, and counts for it; rename it"
    )
    assert warning["message"] == former
    assert reason["level"] == "error"
    assert reason["message"].startswith("no usable API server settings in ")


async def test_a_server_that_does_not_answer_is_named(dead_server: tuple[str, Path]) -> None:
    address, config = dead_server
    code, output = await run("--kubeconfig", str(config))
    assert code == 1
    assert address in output
    assert output.count("is it running") == 1, output
    assert "Traceback" not in output


async def test_a_missing_permission_is_named_with_the_role_that_grants_it(proxy: FaultProxy, tmp_path: Path) -> None:
    config = proxy.write_kubeconfig(tmp_path / "proxied")
    classes = Target(verbs=("list",), resource="deviceclasses")
    with proxy.suffering(Refuse(classes, code=403, message="deviceclasses.resource.k8s.io is forbidden")):
        code, output = await run("--kubeconfig", str(config), "--no-leader-elect")
    assert code == 1
    assert "deviceclasses.resource.k8s.io is forbidden" in output
    assert "apply manifests/operator/rbac.yaml, or upgrade the chart" in output
    assert "is it running" not in output
    assert "Traceback" not in output


async def test_a_metrics_port_in_use_is_named(kubeconfig: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, output = await run("--kubeconfig", str(kubeconfig), "--metrics-port", port)
    assert code == 2
    assert f"cannot serve metrics on port {port}" in output
    assert "Traceback" not in output


async def test_a_port_in_use_is_noticed_before_the_server_is_asked(dead_server: tuple[str, Path]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, output = await run("--kubeconfig", str(dead_server[1]), "--metrics-port", port)
    assert code == 2
    assert f"cannot serve metrics on port {port}" in output


async def test_probes_are_answered_while_the_cluster_is_being_listed(
    cluster: LiveCluster, proxy: FaultProxy, tmp_path: Path
) -> None:
    await cluster.furnish()
    config = proxy.write_kubeconfig(tmp_path / "proxied")
    with proxy.suffering(Hang(Target(verbs=("list",), resource="nodes"))):
        async with operator_with("--kubeconfig", str(config), "--metrics-port", "0", "--no-leader-elect") as operator:
            address = (await operator.says(r"metrics and probes on (\S+)"))[1]
            async with aiohttp.ClientSession(address) as http:
                async with http.get("/livez") as answer:
                    assert (answer.status, await answer.text()) == (200, "ok\n")
                async with http.get("/readyz") as answer:
                    assert (answer.status, await answer.text()) == (503, "the cluster is being listed\n")
            assert await operator.end(signal.SIGTERM) == 0
    assert "Traceback" not in operator.output


async def test_settings_of_a_file_are_used(cluster: LiveCluster, proxy: FaultProxy, tmp_path: Path) -> None:
    await cluster.furnish()
    settings = tmp_path / "settings.yaml"
    settings.write_text(f"kubeconfig: {proxy.write_kubeconfig(tmp_path / 'proxied')}\nrequest-timeout: 1\n")
    with proxy.suffering(Hang(Target(verbs=("list",), resource="nodes"))):
        async with operator_with("--config", str(settings), "--no-leader-elect") as operator:
            await operator.says(r"/nodes\S*: no answer within 1 s")  # and the start is tried again
            assert await operator.end(signal.SIGTERM) == 0
    assert "Traceback" not in operator.output


async def test_credentials_that_are_refused_at_the_start_are_to_be_renewed(proxy: FaultProxy, tmp_path: Path) -> None:
    config = proxy.write_kubeconfig(tmp_path / "proxied")
    with proxy.suffering(Refuse(Target(), code=401, message="Unauthorized")):
        code, output = await run("--kubeconfig", str(config))
    assert code == 1
    assert re.search("refuses the credentials: GET .*/version: Unauthorized; renew them", output)
    assert "Traceback" not in output


async def test_probes_say_over_http_what_is_wrong(cluster: LiveCluster, proxy: FaultProxy, tmp_path: Path) -> None:
    await cluster.furnish()
    config = proxy.write_kubeconfig(tmp_path / "proxied")
    watches = Target(verbs=("watch",), resource="pods")
    with proxy.suffering(Refuse(watches, code=403, message="pods is forbidden")):
        async with operator_with("--kubeconfig", str(config), "--metrics-port", "0") as operator:
            address = (await operator.says(r"metrics and probes on (\S+)"))[1]
            async with aiohttp.ClientSession(address) as http:

                async def unready() -> bool:
                    async with http.get("/readyz") as answer:
                        body = await answer.text()
                        assert answer.status == 503
                        said, _, remedy = body.partition("; ")
                        assert said == "pods: not watched yet: WATCH answered 403: pods is forbidden"
                        assert "ClusterRole dra-operator" in remedy
                    return True

                await until("unready", unready)
                async with http.get("/livez") as answer:
                    assert answer.status == 200
                async with http.get("/metrics") as answer:
                    metrics = await answer.text()
            assert await operator.end(signal.SIGTERM) == 0
    ages = dict(re.findall(r'dra_operator_stream_age_seconds{resource="(\w+)[.\w]*"} (\S+)', metrics))
    assert set(ages) == {resource.plural for resource in watched_kinds(Features())}
    assert re.search(r'dra_operator_watch_failures_total{resource="pods"} [1-9]', metrics)
    assert "_created{" not in metrics


@pytest.mark.parametrize("gates", ["DRADeviceTaint=true", "DRADeviceTaints=maybe", "DRADeviceTaints"])
async def test_an_unknown_feature_gate_is_named_with_a_remedy(gates: str) -> None:
    code, output = await run("--feature-gates", gates)
    assert code == 2
    assert "DRADeviceTaint" in output
    assert "NAME=true or NAME=false" in output
    assert "Traceback" not in output


async def test_a_gate_that_the_release_of_the_server_does_not_have_ends_it_with_one_line(tmp_path: Path) -> None:
    async with DevApiServer(release=Release.V1_35) as server:
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        flags = ("--no-leader-elect", "--feature-gates", "DRAListTypeAttributes=true")
        code, output = await run("--kubeconfig", str(kubeconfig), *flags)
    assert code == 2
    assert output.splitlines()[-1] == (
        "dra-operator: --feature-gates: Kubernetes 1.35 has no feature gate DRAListTypeAttributes, which came with "
        "1.36: leave it out, or choose another release with --kubernetes-version"
    )


@pytest.mark.parametrize("gate", ["ResourceHealthStatus", "DynamicResourceAllocation", "SchedulerPreQueueingHints"])
def test_a_gate_that_nothing_looks_at_is_refused_with_the_names_of_those_that_are_looked_at(gate: str) -> None:
    with pytest.raises(GateError) as caught:
        features_of({"DRADeviceTaints": False, gate: True})
    refused, _, known = str(caught.value).partition(", only at ")
    assert refused == f"the operator does not look at {gate}"
    assert "DRADeviceTaintRules" in known.split(", ")
    assert gate not in known
    features_of(dict.fromkeys(known.split(", "), True))


def test_gates_change_what_the_allocator_may_use() -> None:
    assert features_of({}) == Features()
    assert features_of({"DRADeviceTaintRules": False}) == Features(taint_rules=False)
    changes = {"DRADeviceTaints": False, "DRADeviceTaintRules": False, "DRAListTypeAttributes": True}
    assert features_of(changes) == Features(device_taints=False, taint_rules=False, list_attributes=True)
