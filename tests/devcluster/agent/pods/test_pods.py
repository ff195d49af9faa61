"""Pods without devices: containers as processes, restarts, status, deletion, logs and exec."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from dra_devcluster.agent.containers.runtime import LocalRuntime
from dra_devcluster.node_protocol import SERVER_ADDRESS_ANNOTATION, SERVER_KEY_ANNOTATION
from dra_kube import CONFIG_MAPS, EVENTS, LEASES, NODES, SECRETS, ApiError
from one_node import OneNode, execute, http_client
from waiting import becomes, until

Json = dict[str, Any]


def conditions(status: Json) -> dict[str, str]:
    return {condition["type"]: condition["status"] for condition in status["conditions"]}


def container(name: str, script: str, **more: Any) -> Json:
    return {"name": name, "image": "busybox", "command": ["sh", "-c", script]} | more


async def state_of(node: OneNode, pod: str, index: int = 0) -> Json:
    """The status of one container."""
    statuses = ((await node.get(pod)).get("status") or {}).get("containerStatuses") or [{}]
    found: Json = statuses[index]
    return found


def processes_in(folder: Path) -> list[int]:
    """Processes whose working directory lies below the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and Path(os.readlink(entry / "cwd")).is_relative_to(folder):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def program_of(pid: int) -> str:
    """The name of the program that a process runs; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


# --- the node itself ---


async def test_events_are_named_in_the_order_of_time(node: OneNode) -> None:
    await node.pod("first", "exit 0")
    await node.event("first", "Started")
    events, _ = await node.api.list(EVENTS, "default")
    in_time = sorted(events, key=lambda event: int(event["metadata"]["resourceVersion"]))
    names = [event["metadata"]["name"] for event in in_time if event["involvedObject"]["name"] == "first"]
    assert len(names) > 1
    assert names == sorted(names)
    assert all(int(name.rpartition(".")[2], 16) > 10**18 for name in names), "nanoseconds since 1970, as of client-go"


async def test_a_node_is_ready_and_renews_its_lease(node: OneNode) -> None:
    found = await node.api.get(NODES, "node-1")
    assert {c["type"]: c["status"] for c in found["status"]["conditions"]}["Ready"] == "True"
    assert found["metadata"]["labels"]["kubernetes.io/hostname"] == "node-1"
    assert found["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] > 0
    assert set(found["status"]["allocatable"]) == {"cpu", "memory", "pods", "ephemeral-storage"}

    async def lease() -> list[str] | None:
        leases, _ = await node.api.list(LEASES, "kube-node-lease")
        return [lease["spec"]["holderIdentity"] for lease in leases] or None

    await until("a lease", lease)
    assert await lease() == ["node-1"]


async def test_a_node_that_exists_keeps_its_labels_when_its_agent_starts_again(node: OneNode) -> None:
    await node.stop()
    await node.api.patch(NODES, "node-1", {"metadata": {"labels": {"zone": "a"}}})
    await node.start()
    assert (await node.api.get(NODES, "node-1"))["metadata"]["labels"]["zone"] == "a"


# --- phases and conditions ---


async def test_a_running_pod_is_ready_and_a_finished_one_is_completed(node: OneNode) -> None:
    await node.pod("idle")
    status = await node.phase("idle", "Running")
    assert set(conditions(status).values()) == {"True"}
    assert len(conditions(status)) == 5
    assert status["containerStatuses"][0]["ready"] is True
    assert status["podIP"] == status["hostIP"]
    assert status["startTime"]

    await node.pod("done", "exit 0")
    status = await node.phase("done", "Succeeded")
    terminated = status["containerStatuses"][0]["state"]["terminated"]
    assert (terminated["exitCode"], terminated["reason"]) == (0, "Completed")
    ready = next(c for c in status["conditions"] if c["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "PodCompleted")


ENDS = {
    "Never, success": ("Never", "exit 0", "Succeeded", 0, 0),
    "Never, failure": ("Never", "exit 3", "Failed", 3, 0),
    "Never, killed by a signal": ("Never", "kill -9 $$$$", "Failed", 137, 0),
    "OnFailure, success": ("OnFailure", "exit 0", "Succeeded", 0, 0),
    "OnFailure, success at the second try": (
        "OnFailure",
        "test -e tried || { touch tried; exit 1; }",
        "Succeeded",
        0,
        1,
    ),
}


@pytest.mark.parametrize("case", ENDS)
async def test_a_pod_ends_as_its_restart_policy_says(case: str, node: OneNode) -> None:
    policy, script, phase, code, restarts = ENDS[case]
    await node.pod("pod-a", script, policy=policy)
    status = await node.phase("pod-a", phase)
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == code
    assert status["containerStatuses"][0]["restartCount"] == restarts


async def test_e2e024_a_container_that_keeps_ending_is_restarted_with_growing_pauses(node: OneNode) -> None:
    await node.pod("pod-a", "exit 1", policy="Always")

    async def waits() -> Json | None:
        status = await state_of(node, "pod-a")
        return status if (status.get("state") or {}).get("waiting", {}).get("reason") == "CrashLoopBackOff" else None

    status = await until("CrashLoopBackOff", waits)
    assert status["lastState"]["terminated"]["exitCode"] == 1
    assert "restarting failed container=c pod=pod-a_default(" in status["state"]["waiting"]["message"]
    await until("restarts", lambda: _restarts(node, "pod-a", 3))
    assert (await node.get("pod-a"))["status"]["phase"] == "Running"
    event = await node.event("pod-a", "BackOff")
    assert event["message"].startswith("Back-off restarting failed container c in pod pod-a_default(")


async def _restarts(node: OneNode, pod: str, count: int) -> bool:
    return bool((await state_of(node, pod)).get("restartCount", 0) >= count)


async def test_a_pod_over_its_deadline_fails(node: OneNode) -> None:
    await node.pod("pod-a", activeDeadlineSeconds=1)
    status = await node.phase("pod-a", "Failed")
    assert status["reason"] == "DeadlineExceeded"
    assert processes_in(node.root) == []


# --- init containers and sidecars ---


async def test_init_containers_run_one_after_the_other_before_the_rest(node: OneNode, tmp_path: Path) -> None:
    order = tmp_path / "order"
    say = f"echo %s >> {order}"
    await node.pod("pod-a", say % "main", initContainers=[container(name, say % name) for name in ("first", "second")])
    status = await node.phase("pod-a", "Succeeded")
    assert order.read_text().split() == ["first", "second", "main"]
    assert [one["ready"] for one in status["initContainerStatuses"]] == [True, True]


@pytest.mark.parametrize("policy", ["Always", "OnFailure"])
async def test_after_a_restart_init_containers_run_again_where_the_policy_allows_it(
    policy: str, node: OneNode, tmp_path: Path
) -> None:
    order = tmp_path / "order"
    init = container("init", f"echo init >> {order}")
    main = f"echo main >> {order}; sleep 1000"
    await node.pod("pod-a", main, policy=policy, initContainers=[init])
    await becomes(lambda: order.exists() and "main" in order.read_text())
    await node.stop()
    await node.start()
    await becomes(lambda: order.read_text().count("main") == 2)
    assert order.read_text().split() == ["init", "main", *(["init"] if policy == "Always" else []), "main"]


async def test_a_failing_init_container_fails_a_pod_that_is_never_restarted(node: OneNode) -> None:
    await node.pod("pod-a", "exit 0", initContainers=[container("init", "exit 4")])
    status = await node.phase("pod-a", "Failed")
    assert status["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 4
    assert status["containerStatuses"][0]["state"]["terminated"]["reason"] == "ContainerStatusUnknown"


async def test_a_sidecar_runs_beside_the_containers_and_ends_after_them(node: OneNode, tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    sidecar = container("side", f"touch {alive}; sleep 1000", restartPolicy="Always")
    await node.pod("pod-a", f"while ! test -e {alive}; do sleep 0.05; done", initContainers=[sidecar])
    await node.phase("pod-a", "Succeeded")
    assert processes_in(node.root) == []


# --- environment and commands ---


async def test_a_container_gets_exactly_the_environment_that_the_pod_asks_for(node: OneNode) -> None:
    await node.api.create(
        CONFIG_MAPS, {"metadata": {"name": "settings", "namespace": "default"}, "data": {"A": "1", "B": "2"}}
    )
    await node.api.create(SECRETS, {"metadata": {"name": "keys", "namespace": "default"}, "data": {"K": "c2VjcmV0"}})

    def field(path: str) -> Json:
        return {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}

    env = [
        {"name": "PLAIN", "value": "x"},
        {"name": "COMPOSED", "value": "$(PLAIN)-$(UNKNOWN)-$$(PLAIN)"},
        {"name": "NAME", "valueFrom": field("metadata.name")},
        {"name": "NODE", "valueFrom": field("spec.nodeName")},
        {"name": "LABEL", "valueFrom": field("metadata.labels['app']")},
        {"name": "FROM_MAP", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "B"}}},
        {"name": "FROM_SECRET", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "K"}}},
        {"name": "ABSENT", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "B", "optional": True}}},
        {"name": "NO_KEY", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "Z", "optional": True}}},
    ]
    one = {"name": "c", "image": "busybox", "command": ["env"], "env": env}
    one["envFrom"] = [{"prefix": "MAP_", "configMapRef": {"name": "settings"}}]
    await node.pod("pod-a", containers=[one])
    await node.phase("pod-a", "Succeeded")
    lines = dict(line.split("=", 1) for line in (await node.log("pod-a")).splitlines())
    assert lines.pop("PATH") == node.settings.search_path
    server = urlsplit(node.api.connection.host)
    assert lines.pop("KUBERNETES_SERVICE_HOST") == server.hostname
    assert lines.pop("KUBERNETES_SERVICE_PORT") == str(server.port)
    assert lines == {
        "HOSTNAME": "pod-a",
        "PLAIN": "x",
        "COMPOSED": "x-$(UNKNOWN)-$(PLAIN)",
        "NAME": "pod-a",
        "NODE": "node-1",
        "LABEL": "",
        "FROM_MAP": "2",
        "FROM_SECRET": "secret",
        "MAP_A": "1",
        "MAP_B": "2",
    }


CANNOT_START: dict[str, tuple[Json, str, str]] = {
    "a ConfigMap is missing": (
        {"command": ["env"], "envFrom": [{"configMapRef": {"name": "none"}}]},
        "CreateContainerConfigError",
        'configmap "none" not found',
    ),
    "a key is missing": (
        {"command": ["env"], "env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "none"}}}]},
        "CreateContainerConfigError",
        "couldn't find key none in Secret keys",
    ),
    "a key does not contain text": (
        {"command": ["env"], "env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "K"}}}]},
        "CreateContainerConfigError",
        "key K does not contain text",
    ),
    "the program does not exist": (
        {"command": ["no-such-program"]},
        "RunContainerError",
        'exec: "no-such-program": executable file not found in $PATH',
    ),
    "the entrypoint of the image is not known": (
        {"image": "registry.example.com/app:1", "args": ["--serve"]},
        "RunContainerError",
        "give the container a command",
    ),
}


@pytest.mark.parametrize("case", CANNOT_START)
async def test_a_container_that_cannot_start_says_why_and_keeps_trying(case: str, node: OneNode) -> None:
    fields, reason, message = CANNOT_START[case]
    await node.api.create(SECRETS, {"metadata": {"name": "keys", "namespace": "default"}, "data": {"K": "/w=="}})
    await node.pod("pod-a", containers=[{"name": "c", "image": "busybox"} | fields])

    async def waiting() -> Json | None:
        found = ((await state_of(node, "pod-a")).get("state") or {}).get("waiting") or {}
        return found if found.get("reason") == reason else None

    assert message in (await until(f"waiting with {reason}", waiting))["message"]
    event = await node.event("pod-a", "Failed")
    assert message in event["message"]
    await until("counted", lambda: _counted(node, "pod-a", "Failed"))


async def _counted(node: OneNode, pod: str, reason: str) -> bool:
    return bool((await node.event(pod, reason))["count"] >= 2)


async def test_what_a_plain_process_cannot_have_is_said_in_an_event(node: OneNode) -> None:
    devices = [{"name": "data", "devicePath": "/dev/xvda"}]
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    await node.pod("pod-a", containers=[container("c", "exit 0", volumeDevices=devices)], volumes=volumes)
    await node.phase("pod-a", "Succeeded")
    assert (await node.event("pod-a", "NotCarriedOut"))["message"].endswith("without their volumeDevices")


async def test_the_image_of_this_project_has_the_programs_of_this_installation(node: OneNode) -> None:
    for name, image in (("pod-a", "ghcr.io/kopf-dra/kopf-dra:0.1.0"), ("pod-b", "example.com/driver:1")):
        one = {"name": "c", "image": image, "command": ["sh", "-c", "echo $PATH"]}
        await node.pod(name, containers=[one])
        await node.phase(name, "Succeeded")
    host = node.settings.search_path
    assert (await node.log("pod-a")).strip() == f"{host}:{Path(sys.executable).parent}"
    assert (await node.log("pod-b")).strip() == host


async def test_an_image_with_a_shell_runs_the_arguments(node: OneNode) -> None:
    await node.pod("pod-a", containers=[{"name": "c", "image": "docker.io/busybox:1.36", "args": ["echo", "hi"]}])
    await node.phase("pod-a", "Succeeded")
    assert await node.log("pod-a") == "hi\n"


# --- deletion ---


async def test_a_deleted_pod_may_clean_up_and_is_then_removed(node: OneNode, tmp_path: Path) -> None:
    cleaned, ready = tmp_path / "cleaned", tmp_path / "ready"
    script = f"trap 'touch {cleaned}; exit 0' TERM; touch {ready}; while :; do sleep 0.05; done"
    await node.pod("pod-a", script, terminationGracePeriodSeconds=20)
    await node.phase("pod-a", "Running")
    await becomes(ready.exists)
    await node.delete("pod-a")
    await node.gone("pod-a")
    assert cleaned.exists()
    assert (await node.event("pod-a", "Killing"))["message"] == "Stopping container c"


async def test_a_pod_that_ignores_the_signal_is_killed_with_all_its_processes(node: OneNode, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    await node.pod("pod-a", f"trap '' TERM; sleep 1000 & touch {ready}; while :; do sleep 0.05; done")
    await becomes(ready.exists)
    await node.delete("pod-a")
    await node.gone("pod-a")
    assert processes_in(node.root) == []


async def test_a_second_deletion_shortens_the_grace_period(node: OneNode, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = f"trap '' TERM; touch {ready}; while :; do sleep 0.05; done"
    await node.pod("pod-a", script, terminationGracePeriodSeconds=1000)
    await becomes(ready.exists)
    await node.delete("pod-a")
    await node.event("pod-a", "Killing")
    await node.delete("pod-a", grace_seconds=1)
    await node.gone("pod-a")


async def test_a_pending_pod_is_removed_without_ever_running(node: OneNode) -> None:
    await node.pod("pod-a", claims=("missing",))
    await node.event("pod-a", "FailedPrepareDynamicResources")
    await node.delete("pod-a")
    await node.gone("pod-a")


async def test_no_process_outlives_the_agent(node: OneNode) -> None:
    for index in range(3):
        await node.pod(f"pod-{index}", "sleep 1000 & sleep 1000", policy="Always")
    for index in range(3):
        await node.phase(f"pod-{index}", "Running")
    assert processes_in(node.root)
    await node.stop()
    assert processes_in(node.root) == []


async def test_an_agent_that_stops_amid_starting_loses_no_process(node: OneNode) -> None:
    for index in range(20):
        await node.pod(f"pod-{index}", "sleep 1000")
    await becomes(lambda: processes_in(node.root))
    await node.stop()
    assert processes_in(node.root) == []


async def test_leftovers_of_a_crashed_runtime_are_killed_and_count_as_killed(short_path: Path) -> None:
    crashed = LocalRuntime(short_path)
    crashed.start("uid", "c", ["sleep", "1000"], {"PATH": os.environ["PATH"]})
    async with LocalRuntime(short_path) as runtime:
        state = runtime.state("uid", "c")
        assert state is not None
        assert state.current.exit_code == 137
        await becomes(lambda: not processes_in(short_path))
    await crashed.wait("uid", "c")


@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv is not installed")
async def test_a_container_dies_when_the_process_of_the_runtime_is_killed(short_path: Path) -> None:
    program = f"""
import asyncio, pathlib
from dra_devcluster.agent import LocalRuntime
async def main():
    async with LocalRuntime(pathlib.Path({str(short_path)!r})) as runtime:
        runtime.start("uid", "c", ["sleep", "1000"], {{"PATH": {os.environ["PATH"]!r}}})
        await runtime.wait("uid", "c")
asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    await becomes(lambda: "sleep" in map(program_of, processes_in(short_path)))  # it is tied to the runtime before
    process.kill()
    await process.wait()
    await becomes(lambda: not processes_in(short_path))


# --- logs ---


async def test_logs_are_filtered_as_asked(node: OneNode) -> None:
    await node.pod("pod-a", "echo one; echo two; printf three")
    await node.phase("pod-a", "Succeeded")
    assert await node.log("pod-a") == "one\ntwo\nthree"
    assert await node.log("pod-a", tailLines="2") == "two\nthree"
    assert await node.log("pod-a", tailLines="0") == ""
    assert await node.log("pod-a", limitBytes="5") == "one\nt"
    assert len((await node.log("pod-a", sinceSeconds="3600")).splitlines()) == 3
    assert await node.log("pod-a", sinceTime="2999-01-01T00:00:00Z") == ""
    stamped = (await node.log("pod-a", timestamps="true")).splitlines()
    assert all(line[10] == "T" and line.split(" ")[0].endswith("Z") for line in stamped)


async def test_both_streams_are_logged(node: OneNode) -> None:
    await node.pod("pod-a", "echo out; echo err >&2")
    await node.phase("pod-a", "Succeeded")
    assert sorted((await node.log("pod-a")).splitlines()) == ["err", "out"]


async def test_a_line_that_is_too_long_for_one_entry_comes_back_whole(node: OneNode) -> None:
    await node.pod("pod-a", "head -c 50000 /dev/zero | tr '\\0' x; echo; echo end")
    await node.phase("pod-a", "Succeeded")
    assert await node.log("pod-a") == "x" * 50000 + "\nend\n"
    assert await node.log("pod-a", tailLines="2") == "x" * 50000 + "\nend\n"
    assert await node.log("pod-a", tailLines="1") == "end\n"


async def test_logs_of_the_run_before_are_kept(node: OneNode) -> None:
    await node.pod("pod-a", "echo run $(ls | wc -l); touch run-$$; sleep 0.1; exit 1", policy="Always")
    await until("restarts", lambda: _restarts(node, "pod-a", 1))
    assert (await node.log("pod-a", previous="true")).startswith("run ")


async def test_logs_are_followed_until_the_container_ends(node: OneNode, tmp_path: Path) -> None:
    go = tmp_path / "go"
    await node.pod("pod-a", f"echo before; while ! test -e {go}; do sleep 0.05; done; echo after")
    await node.phase("pod-a", "Running")
    following = asyncio.create_task(node.log("pod-a", follow="true"))
    await until("logged", lambda: _logged(node, "before"))
    go.touch()
    assert await following == "before\nafter\n"


async def _logged(node: OneNode, text: str) -> bool:
    return text in await node.log("pod-a")


NO_LOG: dict[str, tuple[Json, str]] = {
    "several containers and none named": ({}, "a container name must be specified for pod pod-a, choose one of: [a b]"),
    "an unknown container": ({"container": "x"}, "container x is not valid for pod pod-a"),
    "no earlier run": (
        {"container": "a", "previous": "true"},
        'previous terminated container "a" in pod "pod-a" not found',
    ),
    "a filter that is no number": ({"container": "a", "tailLines": "x"}, "tailLines: 'x' is not a number"),
}


@pytest.mark.parametrize("case", NO_LOG)
async def test_a_log_that_cannot_be_had_is_refused_with_the_reason(case: str, node: OneNode) -> None:
    query, message = NO_LOG[case]
    await node.pod("pod-a", containers=[container("a", "sleep 100"), container("b", "sleep 100")])
    await node.phase("pod-a", "Running")
    with pytest.raises(ApiError, match=re.escape(message)) as caught:
        await node.log("pod-a", **query)
    assert caught.value.code == 400


async def test_the_log_of_a_container_that_never_ran_says_what_it_waits_for(node: OneNode) -> None:
    await node.pod("pod-a", claims=("missing",))
    await node.event("pod-a", "FailedPrepareDynamicResources")
    with pytest.raises(ApiError, match='container "c" in pod "pod-a" is waiting to start: ContainerCreating'):
        await node.log("pod-a")


# --- ephemeral containers ---


async def test_an_ephemeral_container_runs_once_beside_the_others_and_ends_with_the_pod(node: OneNode) -> None:
    await node.pod("pod-a", policy="Always", containers=[container("c", "sleep 100")])
    await node.phase("pod-a", "Running")
    await node.debug("pod-a", container("looker", "echo seen; exit 3"))

    async def states() -> dict[str, Json]:
        statuses = (await node.get("pod-a"))["status"].get("ephemeralContainerStatuses") or ()
        return {status["name"]: status["state"] for status in statuses}

    async def ended() -> Json | None:
        state = (await states()).get("looker", {})
        return state if "terminated" in state else None

    assert (await until("the debugger has ended", ended))["terminated"]["exitCode"] == 3
    assert await node.log("pod-a", container="looker") == "seen\n"
    status = (await node.get("pod-a"))["status"]
    assert (status["phase"], status["containerStatuses"][0]["restartCount"]) == ("Running", 0)
    await node.debug("pod-a", container("stayer", "sleep 100"))

    async def runs() -> bool:
        return "running" in (await states()).get("stayer", {})

    await until("the second debugger runs", runs)
    await node.delete("pod-a")
    await node.gone("pod-a")


# --- exec ---


async def test_exec_runs_a_program_in_the_environment_of_the_container(node: OneNode) -> None:
    await node.pod("pod-a", containers=[container("c", "sleep 100", env=[{"name": "X", "value": "seen"}])])
    await node.phase("pod-a", "Running")
    output, status = await execute(node, "sh", "-c", "echo $X; exit 0")
    assert (output, status["status"]) == (b"seen\n", "Success")
    assert await execute(node, "cat", stdin=b"in and out") == (b"in and out", {"metadata": {}, "status": "Success"})
    _, status = await execute(node, "sh", "-c", "exit 7", protocol="v4.channel.k8s.io")
    assert status["details"]["causes"] == [{"reason": "ExitCode", "message": "7"}]
    _, status = await execute(node, "no-such-program")
    assert "executable file not found" in status["message"]


async def test_what_is_not_offered_is_refused_clearly(node: OneNode) -> None:
    await node.pod("pod-a")
    await node.phase("pod-a", "Running")
    async with http_client(node) as session:
        paths = ("attach", "portforward", "exec?command=sh", "proxy/")
        for path in (*(f"namespaces/default/pods/pod-a/{path}" for path in paths), "nodes/node-1/proxy/configz"):
            async with session.get(f"/api/v1/{path}") as answer:
                assert answer.status == 501
                assert (await answer.json())["kind"] == "Status"


async def test_no_reader_of_nodes_gets_the_key_to_their_servers(node: OneNode) -> None:
    """With it any reader of nodes could run programs in all pods."""
    await node.pod("pod-a")
    await node.phase("pod-a", "Running")
    assert (await execute(node, "echo", "seen"))[0] == b"seen\n", "the API server has it"
    assert SERVER_KEY_ANNOTATION not in str(await node.api.get(NODES, "node-1"))
    await node.api.patch(NODES, "node-1", {"metadata": {"annotations": {"a": "b"}}})
    assert (await node.api.get(NODES, "node-1"))["metadata"]["annotations"] == {"a": "b"}
    assert (await execute(node, "echo", "seen"))[0] == b"seen\n"


async def test_who_writes_the_status_of_a_node_does_not_get_the_key_to_its_server(node: OneNode) -> None:
    """He points the node at a listener of his own, and waits for the next request for a log."""
    heard: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(4096))
        writer.close()

    await node.pod("pod-a")
    await node.phase("pod-a", "Running")
    async with await asyncio.start_server(listen, "127.0.0.1", 0) as thief:
        port = thief.sockets[0].getsockname()[1]
        status: Json = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }
        annotations = {SERVER_ADDRESS_ANNOTATION: f"127.0.0.1:{port}"}
        patch = {"metadata": {"annotations": annotations}, "status": status}
        await node.api.patch(NODES, "node-1", patch, subresource="status")
        await node.api.patch(NODES, "node-1", {"metadata": {"annotations": annotations}})
        assert (await execute(node, "echo", "seen"))[0] == b"seen\n"
        assert heard == []
        assert SERVER_ADDRESS_ANNOTATION not in str(await node.api.get(NODES, "node-1"))


async def test_the_server_of_the_node_answers_only_to_the_api_server(node: OneNode) -> None:
    port = (await node.api.get(NODES, "node-1"))["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    async with aiohttp.ClientSession() as session:
        for key in ("", "Bearer of bad news", "Bearer \u00fc"):
            url = f"http://127.0.0.1:{port}/containerLogs/default/pod-a/c"
            async with session.get(url, headers={"Authorization": key}) as answer:
                assert answer.status == 401
