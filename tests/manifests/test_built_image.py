"""The built image: what is in it, and its operator as the Deployment starts it, read-only and without a user name.

``.ci/image`` builds the image and runs these tests with its root file system in KOPF_DRA_IMAGE. Programs of the image
run in a mount namespace of their own, where that file system is the read-only root; this needs root.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from command import ROOT
from dra_api import yaml_text
from dra_devcluster.apiserver import DevApiServer, serve_in_thread
from dra_kube import PODS, Api, connection
from supervised import LiveCluster
from waiting import until

IMAGE = os.environ.get("KOPF_DRA_IMAGE")
pytestmark = pytest.mark.skipif(IMAGE is None, reason="KOPF_DRA_IMAGE does not name a folder: .ci/image builds it")
FOLDER = Path(IMAGE or ".")
FILES, CONFIG = FOLDER / "root", FOLDER / "image.json"
MOST = 130  # MB on top of the base
UID = 65532
ACCOUNT = "run/secrets/kubernetes.io/serviceaccount"
INSIDE = """
mount --make-rprivate / && mount --bind {root} {root} && mount --bind {account} {root}/{mount}
mount -o remount,bind,ro {root} && mount -o remount,bind,ro {root}/{mount} && mount -t proc none {root}/proc
exec chroot --userspec={uid}:{uid} {root} env --ignore-environment "$@"
"""


def config() -> dict[str, Any]:
    """What the image says of itself."""
    found: dict[str, Any] = json.loads(CONFIG.read_text())["OCIv1"]["config"]
    return found


def inside(words: Sequence[str], account: Path) -> list[str]:
    """The command line that runs a program of the image, with its environment, for the service account in a folder."""
    (FILES / ACCOUNT).mkdir(parents=True, exist_ok=True)
    script = INSIDE.format(root=FILES, account=account, mount=ACCOUNT, uid=UID)
    return ["unshare", "--mount", "--pid", "--fork", "sh", "-c", script, "sh", *config()["Env"], *words]


def test_the_labels_say_what_it_is_and_where_it_is_from() -> None:
    labels = config()["Labels"]
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    wanted = {
        "source": r"https://github\.com/kopf-dra/kopf-dra",
        "version": r"\d+\.\d+\.\d+",
        "licenses": r"Apache-2\.0",
    }
    for name, pattern in {**wanted, "revision": head.strip()}.items():
        assert re.fullmatch(pattern, labels[f"org.opencontainers.image.{name}"]), name


def test_the_user_is_a_number_and_the_command_that_of_the_deployment() -> None:
    assert config()["User"] == f"{UID}:{UID}"
    entries = [line.split(":") for line in (FILES / "etc/passwd").read_text().splitlines()]
    assert [entry[3] for entry in entries if entry[2] == str(UID)] == [str(UID)], "else its group would be 0"
    pod = yaml_text.load((ROOT / "manifests" / "operator" / "deployment.yaml").read_text())["spec"]["template"]["spec"]
    assert config()["Cmd"] == pod["containers"][0]["command"]


def test_nothing_is_in_it_that_it_does_not_run() -> None:
    (packages,) = FILES.glob("opt/kopf-dra/lib/python3*/site-packages")
    for name in ("pip", "setuptools", "hatchling", "pytest", "kubernetes/aio"):
        assert not (packages / name).exists(), name
    found = [
        path.name for path in (FILES / "opt").rglob("*") if re.search(r"^\.git$|kubeconfig$|\.key$|_cache$", path.name)
    ]
    assert not found
    megabytes = sum(path.lstat().st_size for path in (FILES / "opt").rglob("*")) / 2**20
    assert megabytes < MOST
    assert not [path for path in (FILES / "opt").rglob("*") if path.is_file() and path.stat().st_mode & 0o6022]


@pytest.mark.parametrize("program", ["dra-operator", "dra-kubelet-plugin", "kubectl-dra"])
def test_every_program_starts_without_compiling_itself(program: str, tmp_path: Path) -> None:
    done = subprocess.run(
        inside(["python", "-v", f"/opt/kopf-dra/bin/{program}", "--version"], tmp_path),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert re.search(r"\d+\.\d+\.\d+", done.stdout)
    compiled_now = re.findall(r"code object from '?(/opt/kopf-dra/lib/\S+\.py)\b", done.stderr)
    assert not compiled_now, "no byte code in the image, and no place to keep it"


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """A folder for what a pod's service account gets, which any user may read."""
    tmp_path.chmod(0o755)
    return tmp_path


async def test_its_operator_binds_a_pod_and_sends_traces(account: Path) -> None:
    traces: list[str] = []

    async def collect(request: web.BaseRequest) -> web.Response:
        traces.append(request.path)
        return web.Response()

    collector = web.ServerRunner(web.Server(collect))
    await collector.setup()
    await web.TCPSite(collector, "127.0.0.1", 0).start()
    try:
        with serve_in_thread() as server:
            await binds_a_pod(server, account, f"http://127.0.0.1:{collector.addresses[0][1]}")
    finally:
        await collector.cleanup()
    assert "/v1/traces" in traces


async def binds_a_pod(server: DevApiServer, account: Path, collector: str) -> None:
    async with Api(connection(server.write_kubeconfig(account / "kubeconfig"))) as api:
        cluster = LiveCluster(api)
        await cluster.furnish(template=True)
        await cluster.add_pod("p")
        host, port = give(account, server.kubeconfig)
        words = [f"KUBERNETES_SERVICE_HOST={host}", f"KUBERNETES_SERVICE_PORT={port}", "HOSTNAME=dra-operator-0"]
        words.append(f"OTEL_EXPORTER_OTLP_ENDPOINT={collector}")
        words += [*config()["Cmd"][:2], "--metrics-port", "0"]
        with (account / "log").open("wb") as log:
            operator = await asyncio.create_subprocess_exec(*inside(words, account), stdout=log, stderr=log)
        try:

            async def is_bound() -> bool:
                assert operator.returncode is None, (account / "log").read_text()
                return "nodeName" in (await api.get(PODS, "p", "ns"))["spec"]

            await until("the pod is bound", is_bound, 60)
            signal_first_process(operator, signal.SIGTERM)
            assert await asyncio.wait_for(operator.wait(), 15) == 0, (account / "log").read_text()
        finally:
            if operator.returncode is None:
                signal_first_process(operator, signal.SIGKILL)
                await operator.wait()
        assert "Traceback" not in (account / "log").read_text()


def signal_first_process(unshare: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Signal the process that unshare started: as the first one in its namespace it ends all others there.

    Unshare itself ignores SIGTERM, and what changed its user on the way outlives it, with --kill-child too.
    """
    for child in Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children").read_text().split():
        os.kill(int(child), number)


def give(account: Path, kubeconfig: dict[str, Any]) -> tuple[str, int]:
    """Put token and authority of a kubeconfig where pods have them; the server's address."""
    cluster, user = kubeconfig["clusters"][0]["cluster"], kubeconfig["users"][0]["user"]
    (account / "token").write_text(user["token"])
    (account / "ca.crt").write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    (account / "namespace").write_text("dra-system")
    address = urlsplit(cluster["server"])
    assert address.hostname
    assert address.port
    return address.hostname, address.port


def test_its_allocator_is_compiled() -> None:
    compiled = list((FILES / "opt/kopf-dra").rglob("dra_operator/allocator/*.so"))
    assert compiled, "KOPF_DRA_COMPILE=1 of the build stage had no effect"
