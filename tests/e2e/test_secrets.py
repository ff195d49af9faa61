"""Nothing of ours shows a secret, however much is logged: not in a log, event, condition, metric, nor message.

Everything runs with its most verbose log. Pods, claims, classes and Secrets carry a marker wherever users put what is
theirs, and some of them are wrong, so that errors are told as well.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from command import MARK, Command, run, running, secret_in
from dra_devcluster.cluster import DRIVER, DevCluster
from dra_kube import (
    DEVICE_CLASSES,
    EVENTS,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    SECRETS,
    Api,
    Object,
)
from rounds import LONG
from waiting import until

NAMESPACE = "default"


def opaque(**parameters: Any) -> list[Object]:
    return [{"opaque": {"driver": DRIVER, "parameters": parameters}}]


def template(name: str, config: list[Object]) -> Object:
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]
    return {"metadata": {"name": name}, "spec": {"spec": {"devices": {"requests": requests, "config": config}}}}


def pod(name: str, **container: Any) -> Object:
    """It uses the template of its name, and waits to be deleted."""
    main = {"name": "main", "image": "busybox", "command": ["sh", "-c", "sleep 600 & wait"], **container}
    return {
        "metadata": {"name": name},
        "spec": {
            "schedulerName": "dra-scheduler",
            "terminationGracePeriodSeconds": 0,
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": name}],
            "containers": [main | {"resources": {"claims": [{"name": "gpu"}]}}],
        },
    }


FROM_SECRET = {"name": "B", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "password"}}}
PODS_AND_CONFIGURATIONS: dict[str, tuple[list[Object], Object]] = {
    "works": (opaque(password=MARK), {"env": [{"name": "A", "value": MARK}, FROM_SECRET]}),
    "refused-by-the-driver": (opaque(**{"password=": MARK, "other": f"{MARK}\0"}), {}),
    "of-the-wrong-type": (opaque(password={"a": MARK}), {}),
    "cannot-start": (opaque(password=MARK), {"command": ["/no/such/program"], "env": [FROM_SECRET]}),
}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path, for sockets."""
    with tempfile.TemporaryDirectory(prefix="s-") as name:
        yield Path(name)


@pytest.fixture
async def cluster(folder: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[DevCluster]:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("asyncio").setLevel(logging.INFO)
    async with DevCluster(folder, nodes=1) as running_cluster:
        yield running_cluster


Words = list[str | Path]


def plugin_command(cluster: DevCluster) -> Words:
    agent = cluster.nodes[0].agent
    config = agent.root / "simulated.yaml"
    places = {
        "pluginRegistrationPath": agent.registration_directory,
        "datadir": agent.root / "p",
        "cdiDir": agent.cdi_root,
    }
    settings = {"driverName": DRIVER, "nodeName": agent.node_name, **{key: str(path) for key, path in places.items()}}
    config.write_text(json.dumps(settings))
    where: Words = ["--config", config, "--kubeconfig", cluster.kubeconfig, "--http-endpoint", "127.0.0.1:0"]
    return ["dra-kubelet-plugin", "simulated", *where, "--log-level", "debug"]


async def populate(api: Api) -> None:
    await api.create(SECRETS, {"metadata": {"name": "keys"}, "stringData": {"password": MARK}}, NAMESPACE)
    await api.create(
        DEVICE_CLASSES,
        {
            "metadata": {"name": "gpu"},
            "spec": {
                "selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}],
                "config": opaque(secret=MARK),
            },
        },
    )
    for name, (config, container) in PODS_AND_CONFIGURATIONS.items():
        await api.create(RESOURCE_CLAIM_TEMPLATES, template(name, config), NAMESPACE)
        await api.create(PODS, pod(name, **container), NAMESPACE)


async def all_told(api: Api) -> None:
    """Wait until each pod has got where it gets."""

    async def told() -> bool:
        pods = {each["metadata"]["name"]: each for each in (await api.list(PODS, NAMESPACE))[0]}
        reasons = {
            (event["involvedObject"]["name"], event["reason"]) for event in (await api.list(EVENTS, NAMESPACE))[0]
        }
        phase = pods["works"].get("status", {}).get("phase")
        refused = {name for name, reason in reasons if reason == "FailedPrepareDynamicResources"}
        return phase == "Running" and {"refused-by-the-driver", "of-the-wrong-type"} <= refused

    await until("the pods' ends", told)


async def shown_by(api: Api) -> str:
    """Whatever the cluster's objects tell of what happened: events, conditions, statuses of containers."""
    events, _ = await api.list(EVENTS, NAMESPACE)
    pods, _ = await api.list(PODS, NAMESPACE)
    claims, _ = await api.list(RESOURCE_CLAIMS, NAMESPACE)
    told = [each.get("status") for each in pods]
    told += [each.get("status", {}).get("devices") for each in claims]
    return json.dumps([events, told])


async def page(said: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"{said.rstrip('/')}/metrics") as answer:
        assert answer.status == 200
        return await answer.text()


@LONG
async def test_nothing_shows_a_secret_at_the_greatest_verbosity(
    cluster: DevCluster, caplog: pytest.LogCaptureFixture
) -> None:
    operator_words: Words = ["dra-operator", "run", "-vv", "--metrics-port", "0", "--kubeconfig", cluster.kubeconfig]
    async with (
        Api(cluster.connection()) as api,
        running(plugin_command(cluster)) as plugin,
        running(operator_words) as operator,
    ):
        addresses = [(await each.says(r"(http://[\d.]+:\d+)"))[1] for each in (plugin, operator)]
        await populate(api)
        await all_told(api)
        told = {"objects": await shown_by(api)}
        for number, address in enumerate(addresses):
            told[f"metrics {number}"] = await page(address)
        for name in PODS_AND_CONFIGURATIONS:
            words: Words = ["kubectl-dra", "why", "pod", name, "--kubeconfig", cluster.kubeconfig]
            told[f"why {name}"] = (await run(words))[1]
        await _end(plugin, operator)
        told |= {"plugin": plugin.output, "operator": operator.output, "cluster": caplog.text}
    assert "request method=" in told["operator"], "requests are logged"
    assert "NodePrepareResources" in told["plugin"], "calls are logged"
    assert {where: shown for where, text in told.items() if (shown := secret_in(text))} == {}


async def _end(*commands: Command) -> None:
    await asyncio.gather(*(command.end(signal.SIGTERM) for command in commands))
