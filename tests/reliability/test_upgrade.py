"""A release is replaced by the sources here, and comes back, while pods start and end all the time.

The wheel of the release is built from its commit, which ``supply/releases.yaml`` names. Operator and driver of both run
as processes of their own. Pods that run keep their claims, devices and CDI files through both changes; a plugin of
either version takes over the records of the other, and unprepares what that one prepared.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from io import BytesIO
from pathlib import Path

import pytest
from dra_api import yaml_text
from dra_devcluster.cluster import DRIVER, DevCluster
from dra_kube import DEVICE_CLASSES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Api, Object
from rounds import LONG
from waiting import gone, until
from witness import Witness

ROOT = Path(__file__).parents[2]
RELEASES: dict[str, str] = yaml_text.load((ROOT / "supply/releases.yaml").read_text())
NAMESPACE = "default"
KEPT = [f"kept-{number}" for number in range(3)]
DEVICES = 8
SECONDS = 120.0


@pytest.fixture(scope="module", params=RELEASES)
def released(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages of a release, installed from its wheel."""
    folder, commit = tmp_path_factory.mktemp("released"), RELEASES[request.param]
    packed = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=False)
    if packed.returncode != 0:
        pytest.skip(f"this clone has no commit {commit}, of which {request.param} is made: fetch its history")
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as tar:
        tar.extractall(folder / "source", filter="data")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder / "wheel")]
    subprocess.run(build, cwd=folder / "source", capture_output=True, check=True)
    shutil.rmtree(folder / "source")
    (wheel,) = (folder / "wheel").glob("*.whl")
    shutil.unpack_archive(wheel, folder / "site", "zip")
    return folder / "site"


class Program:
    """A process of one version, with a log."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process, self._log = process, log

    @classmethod
    async def start(cls, log: Path, site: Path | None, module: str, *words: str) -> Program:
        """Start it; of the sources here if no site is given."""
        environment = {**os.environ, "PYTHONPATH": str(site) if site else ""}
        with log.open("wb") as file:
            command = [sys.executable, "-m", module, *words]
            process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=file, stderr=file)
        return cls(process, log)

    async def says(self, text: str) -> None:
        """Wait for a line of its log."""

        async def has() -> bool:
            if self._process.returncode is not None:
                raise RuntimeError(self._log.read_text())
            return text in self._log.read_text()

        await until(f"{self._log.name} says {text!r}", has, SECONDS)

    async def stop(self) -> None:
        """End it as Kubernetes does."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        async with asyncio.timeout(60):
            assert await self._process.wait() == 0, self._log.read_text()
        assert "Traceback" not in self._log.read_text(), self._log.read_text()


class Site:
    """A cluster with one node, on which operators and drivers of several versions follow one another."""

    def __init__(self, cluster: DevCluster, api: Api) -> None:
        self._cluster, self.api = cluster, api
        self._numbers = iter(range(100))
        self.started = 0

    async def operator(self, site: Path | None) -> Program:
        log = self._cluster.folder / f"operator-{next(self._numbers)}.log"
        words = ("run", "--kubeconfig", str(self._cluster.kubeconfig), "--metrics-port", "0", "--check-invariants")
        return await Program.start(log, site, "dra_operator.cli", *words)

    async def plugin(self, site: Path | None) -> Program:
        """A plugin that registers beside an older one, as in a rolling update."""
        number, agent = next(self._numbers), self._cluster.nodes[0].agent
        words = ["simulated", "--node-name", agent.node_name, "--num-devices", str(DEVICES)]
        words += ["--kubeconfig", str(self._cluster.kubeconfig), "--drivername", DRIVER]
        words += ["--plugin-registration-path", str(agent.registration_directory), "--cdi-dir", str(agent.cdi_root)]
        words += ["--datadir", str(agent.root / "plugins"), "--rolling-update-uid", f"instance-{number}"]
        log = self._cluster.folder / f"plugin-{number}.log"
        return await Program.start(log, site, "dra_kubeletplugin.cli", *words)

    async def furnish(self) -> None:
        selectors = [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]
        await self.api.create(DEVICE_CLASSES, {"metadata": {"name": "gpu"}, "spec": {"selectors": selectors}})
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}
        body: Object = {"metadata": {"name": "one", "namespace": NAMESPACE}, "spec": {"spec": spec}}
        await self.api.create(RESOURCE_CLAIM_TEMPLATES, body)

    async def add(self, name: str) -> None:
        container = {"name": "main", "image": "none", "command": ["sleep", "600"]}
        spec = {
            "schedulerName": "dra-scheduler",
            "terminationGracePeriodSeconds": 0,
            "containers": [{**container, "resources": {"claims": [{"name": "gpu"}]}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}],
        }
        await self.api.create(PODS, {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec})

    async def runs(self, name: str) -> Object:
        async def running() -> Object | None:
            pod = await self.api.get(PODS, name, NAMESPACE)
            return pod if pod["status"].get("phase") == "Running" else None

        return await until(f"{name} runs", running, SECONDS)

    async def gone(self, name: str) -> None:
        await self.api.delete(PODS, name, NAMESPACE)
        await gone(name, lambda: self.api.get(PODS, name, NAMESPACE), SECONDS)

    async def load(self) -> None:
        """Pods that start and end, one after the other, for ever."""
        while True:
            name = f"load-{self.started}"
            await self.add(name)
            await self.runs(name)
            await self.gone(name)
            self.started += 1

    async def more(self, count: int) -> None:
        """Wait for so many pods of the load."""
        wanted = self.started + count

        async def enough() -> bool:
            return self.started >= wanted

        await until(f"{count} more pods ran", enough, SECONDS)

    async def held(self) -> dict[str, tuple[str, str]]:
        """Claim of each kept pod: its uid and its devices."""
        claims, _ = await self.api.list(RESOURCE_CLAIMS, NAMESPACE)
        return {
            owner["name"]: (claim["metadata"]["uid"], str(claim["status"]["allocation"]["devices"]["results"]))
            for claim in claims
            for owner in claim["metadata"]["ownerReferences"]
            if owner["name"] in KEPT
        }

    def cdi_files(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self._cluster.nodes[0].cdi_dir.glob("*")}


@asynccontextmanager
async def new_site() -> AsyncIterator[Site]:
    """A cluster in a folder with a short name: sockets of plugins allow 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="dra-") as folder:
        async with DevCluster(Path(folder)) as cluster, Api(cluster.connection()) as api:
            yield Site(cluster, api)


@LONG
async def test_a_release_is_replaced_and_comes_back_under_load(released: Path) -> None:
    async with new_site() as site, Witness(site.api) as witness:
        await site.furnish()
        operator, plugin = await site.operator(released), await site.plugin(released)
        await plugin.says("registered")
        for name in KEPT:
            await site.add(name)
        uids = {name: (await site.runs(name))["metadata"]["uid"] for name in KEPT}
        held = await site.held()
        assert held.keys() == set(KEPT)
        load = asyncio.create_task(site.load())
        try:
            for version in (None, released):
                await site.more(3)
                newer = await site.operator(version)
                await newer.says("standing by")
                await operator.stop()
                operator = newer
                await site.more(3)
                beside = await site.plugin(version)
                await beside.says("registered")
                await plugin.stop()
                plugin = beside
                await site.more(3)
                assert await site.held() == held
                files = site.cdi_files()
                assert all(any(uid in name for name in files) for uid, _ in held.values())
                assert {name: (await site.runs(name))["metadata"]["uid"] for name in KEPT} == uids
        finally:
            load.cancel()
            await asyncio.wait([load])
        pods, _ = await site.api.list(PODS, NAMESPACE)
        for pod in pods:
            await site.gone(pod["metadata"]["name"])

        async def no_claims() -> bool:
            return not (await site.api.list(RESOURCE_CLAIMS, NAMESPACE))[0]

        async def no_files() -> bool:
            return not site.cdi_files()

        await until("all claims are gone", no_claims, SECONDS)
        await until("the last plugin has unprepared what both prepared", no_files, SECONDS)
        await witness.caught_up()
        assert witness.findings() == []
        await operator.stop()
        await plugin.stop()
