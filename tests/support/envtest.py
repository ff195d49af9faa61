"""A real etcd and kube-apiserver from ``KUBEBUILDER_ASSETS``, as controller-runtime's envtest starts them.

With a ``kube-controller-manager`` beside them it runs too, for garbage collection, namespaces and workloads; its
claim controller stays off, since ours is the one under test.
"""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

_CONTROLLERS = (
    "garbage-collector-controller,namespace-controller,daemonset-controller,deployment-controller,"
    "replicaset-controller,job-controller,serviceaccount-controller"
)
_TOKEN = "envtest-admin"


def assets() -> Path | None:
    """The folder with the binaries, if the environment names one that has them."""
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    return Path(folder) if folder and (Path(folder) / "kube-apiserver").exists() else None


@contextmanager
def real_api_server(binaries: Path, folder: Path) -> Iterator[Path]:
    """Starts the servers on loopback and yields an administrator's kubeconfig; they end with the context."""
    etcd, peer, secure = _free_ports(3)
    key = folder / "sa.key"
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    key.write_bytes(private.private_bytes(*pem))
    (folder / "tokens").write_text(f"{_TOKEN},admin,admin,system:masters\n")
    kubeconfig = _kubeconfig(folder / "kubeconfig", f"https://127.0.0.1:{secure}")
    with ExitStack() as stack:
        client = f"http://127.0.0.1:{etcd}"
        stack.enter_context(
            _process(
                folder,
                binaries / "etcd",
                *("-data-dir", str(folder / "etcd"), "-listen-client-urls", client, "-advertise-client-urls", client),
                *("-listen-peer-urls", f"http://127.0.0.1:{peer}"),
                *("-initial-advertise-peer-urls", f"http://127.0.0.1:{peer}"),
                *("-initial-cluster", f"default=http://127.0.0.1:{peer}"),
            )
        )
        stack.enter_context(
            _process(
                folder,
                binaries / "kube-apiserver",
                f"--etcd-servers={client}",
                *("--bind-address=127.0.0.1", f"--secure-port={secure}", f"--cert-dir={folder / 'certs'}"),
                f"--token-auth-file={folder / 'tokens'}",
                *("--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={key}"),
                *(f"--service-account-signing-key-file={key}", "--service-cluster-ip-range=10.0.0.0/24"),
                *("--advertise-address=127.0.0.1", "--kubelet-preferred-address-types=InternalIP"),
                *("--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition"),
                "--runtime-config=resource.k8s.io/v1beta1=true,resource.k8s.io/v1beta2=true",
            )
        )
        _wait_for(f"https://127.0.0.1:{secure}/readyz", folder)
        manager = binaries / "kube-controller-manager"
        if manager.exists():
            arguments = (f"--kubeconfig={kubeconfig}", f"--controllers={_CONTROLLERS}", "--leader-elect=false")
            stack.enter_context(_process(folder, manager, *arguments, "--secure-port=0"))
        yield kubeconfig


@contextmanager
def _process(folder: Path, program: Path, *arguments: str) -> Iterator[None]:
    with (folder / f"{program.name}.log").open("wb") as log:
        process = subprocess.Popen([str(program), *arguments], stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(url: str, folder: Path, seconds: float = 60.0) -> None:
    context = ssl._create_unverified_context()  # the server signs its own certificate at start
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {_TOKEN}"})
    deadline = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(request, context=context, timeout=2):
                return
        except OSError as error:
            if time.monotonic() > deadline:
                ends = "\n".join(f"{log.name}: {log.read_text()[-2000:]}" for log in sorted(folder.glob("*.log")))
                raise TimeoutError(f"{url} does not answer after {seconds:.0f} s: {error}\n{ends}") from error
            time.sleep(0.2)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in sockets]
    for server in sockets:
        server.close()
    return ports


def _kubeconfig(path: Path, url: str) -> Path:
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "envtest",
                "contexts": [{"name": "envtest", "context": {"cluster": "envtest", "user": "admin"}}],
                "clusters": [{"name": "envtest", "cluster": {"server": url, "insecure-skip-tls-verify": True}}],
                "users": [{"name": "admin", "user": {"token": _TOKEN}}],
            }
        )
    )
    return path
