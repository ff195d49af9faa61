"""Alerts fire when they should, and dashboard and alerts find what operator and plugin really serve.

Prometheus itself evaluates: its tool the alerts on made-up series (alerts.yaml), its server all expressions on scrapes.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from command import running
from dra_api import yaml_text
from dra_devcluster.cluster import DRIVER, DevCluster
from dra_kube import Api
from monitoring import PANELS, RULES, SPEC
from supervised import LiveCluster
from waiting import until

_PATH = os.environ.get("KOPF_DRA_PROMETHEUS") or os.environ.get("PATH", "")
PROMTOOL, _SERVER = shutil.which("promtool", path=_PATH), shutil.which("prometheus", path=_PATH)

needs_prometheus = pytest.mark.skipif(
    not (PROMTOOL and _SERVER), reason="no Prometheus: KOPF_DRA_PROMETHEUS=$(.ci/prometheus) fetches one. NOT evaluated"
)


class Prometheus:
    """A running server that scrapes its targets each second."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that the expression gives now. Raises AssertionError with the server's own words."""
        return list((await self._get("query", query=expression))["result"])

    async def rules(self) -> dict[str, dict[str, Any]]:
        """The alerts by name, as they were evaluated last."""
        groups = (await self._get("rules"))["groups"]
        return {rule["name"]: rule for group in groups for rule in group["rules"]}

    async def _get(self, what: str, **query: str) -> dict[str, Any]:
        async with self._http.get(f"/api/v1/{what}", params=query) as answer:
            said = await answer.json()
        assert said["status"] == "success", f"{query}: {said}"
        data: dict[str, Any] = said["data"]
        return data


@asynccontextmanager
async def prometheus(folder: Path, targets: Mapping[str, str], rules: Path) -> AsyncIterator[Prometheus]:
    """A server with one target per job, ``{job: host:port}``, once each was scraped twice."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = "{}:{}".format(*free.getsockname())
    scrapes = [
        {"job_name": job, "static_configs": [{"targets": [target], "labels": {"pod": f"{job}-0"}}]}
        for job, target in targets.items()
    ]
    config = folder / "prometheus.yaml"
    pace = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config.write_text(yaml.safe_dump({"global": pace, "rule_files": [str(rules)], "scrape_configs": scrapes}))
    assert _SERVER is not None
    words = (
        _SERVER,
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address={address}",
    )
    async with running(words) as program, aiohttp.ClientSession(f"http://{address}") as http:
        await program.says("Server is ready to receive web requests")
        server = Prometheus(http)

        async def scraped() -> bool:
            found = await server.query("count_over_time(up[1m]) > 1 and up == 1")
            return {series["metric"]["job"] for series in found} == targets.keys()

        await until("two scrapes of each target", scraped)
        yield server


CASES = Path(__file__).with_name("alerts.yaml")
QUIET = {
    "Preempted pods": "preemption is off",
    "Waiting gangs": "no pod is in a gang",
    "Fragmentation: share of free devices beside devices in use": "no device is free",
    "Retries": "nothing failed",
    "Pods deleted because of tainted devices": "nothing is tainted",
}
"""Panels that may be empty, and why."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path, for sockets, with the rules in Prometheus' own form."""
    with tempfile.TemporaryDirectory(prefix="p-") as made:
        (Path(made) / "rules.yaml").write_text(yaml.safe_dump(SPEC))
        yield Path(made)


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    asked = [one for case in yaml_text.load(CASES.read_text())["tests"] for one in case["alert_rule_test"]]
    alerts = {rule["alert"] for rule in RULES}
    assert {one["alertname"] for one in asked if "exp_alerts" in one} == alerts
    assert {one["alertname"] for one in asked if "exp_alerts" not in one} == alerts


@needs_prometheus
def test_alerts_fire_when_they_should_and_say_so(folder: Path) -> None:
    (folder / CASES.name).write_text(CASES.read_text())
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, "test", "rules", CASES.name], cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_prometheus
async def test_dashboard_and_alerts_find_what_operator_and_plugin_serve(folder: Path) -> None:
    async with DevCluster(folder / "cluster", nodes=1) as cluster, Api(cluster.connection()) as api:
        (node,) = cluster.nodes
        plugin = {
            "drivername": DRIVER,
            "node-name": node.name,
            "kubeconfig": cluster.kubeconfig,
            "num-devices": 1,
            "plugin-registration-path": node.registry_dir,
            "datadir": node.agent.root / "plugins",
            "cdi-dir": node.cdi_dir,
            "http-endpoint": "127.0.0.1:0",
        }
        flags = [f"--{name}={value}" for name, value in plugin.items()]
        run = ("dra-operator", "run", "--kubeconfig", cluster.kubeconfig, "--metrics-port", "0")
        async with running(("dra-kubelet-plugin", "simulated", *flags)) as driver, running(run) as operator:
            speaks = r"metrics and probes on http://(\S+)"
            targets = {"dra-plugin": (await driver.says(speaks))[1], "dra-operator": (await operator.says(speaks))[1]}
            live = LiveCluster(api)
            await live.furnish(nodes=0, selector=f'device.driver == "{DRIVER}"')
            await live.add_template()
            await live.place("first")
            await live.add_pod("second")
            async with prometheus(folder, targets, folder / "rules.yaml") as server:

                async def everything_is_found() -> bool:
                    empty = [
                        f"{panel['title']}: {target['expr']}"
                        for panel in PANELS
                        for target in panel["targets"]
                        if panel["title"] not in QUIET and not await server.query(target["expr"])
                    ]
                    assert not empty
                    return True

                await until("a series in each panel", everything_is_found)

                async def the_devices_are_missed() -> bool:
                    rules = await server.rules()
                    assert [rule for rule in rules.values() if rule["health"] != "ok"] == []
                    states = {name: rule["state"] for name, rule in rules.items() if rule["state"] != "inactive"}
                    assert states == {"DRADevicesAllInUse": "pending", "DRAPodsWaitForDevices": "pending"}
                    return True

                await until("alerts of one device for two pods", the_devices_are_missed)
