"""A real etcd and kube-apiserver from ``KUBEBUILDER_ASSETS``, as controller-runtime's envtest starts them.

With a ``kube-controller-manager`` in the folder it runs too, for garbage collection, namespaces and workloads; its
claim controller stays off, since ours is the one under test. A *stock* control plane is what a cluster has: the
kube-controller-manager with all its default controllers and its Lease, and kube-scheduler. Tests that need one are
marked ``needs_stock_control_plane``.
"""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import envtest
import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

_CONTROLLERS = (
    "garbage-collector-controller,namespace-controller,daemonset-controller,deployment-controller,"
    "replicaset-controller,job-controller,serviceaccount-controller,resourcequota-controller"
)
_TOKEN = "envtest-admin"
VERSIONS = ("v1", "v1alpha3", "v1beta1", "v1beta2")
"""Of resource.k8s.io; v1alpha3 has the ResourcePoolStatusRequests, which their gate adds."""
GATED_VERSIONS = {"GenericWorkload": "scheduling.k8s.io/v1alpha2"}
"""What is served with a gate only; the versions are those of Kubernetes 1.36."""


def assets() -> Path | None:
    """The folder with the binaries, if the environment names one that has them."""
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    return Path(folder) if folder and (Path(folder) / "kube-apiserver").exists() else None


class ProcessEnded(Exception):
    """A server of the control plane ended by itself; the message has the end of its log."""


@contextmanager
def real_api_server(
    binaries: Path,
    folder: Path,
    *,
    stock: bool = False,
    gates: Mapping[str, bool] | None = None,
    collector: Sequence[str] = (),
) -> Iterator[Path]:
    """Starts the servers on loopback and yields an administrator's kubeconfig; they end with the context.

    The ``gates`` are set for the API server, and for all servers of a stock control plane; ``collector`` are flags of
    the kube-controller-manager of another one.
    Raises ProcessEnded as soon as one of them ends by itself at start, and at the end of the block if one did since.
    """
    without = "ServiceAccount" if stock else "ServiceAccount,TaintNodesByCondition"  # taints need a remover
    flags = [f"--disable-admission-plugins={without}", "--authorization-mode=Node,RBAC"]
    flags += _features(dict.fromkeys(VERSIONS, True), {"DRAResourcePoolStatus": True, **(gates or {})})
    with ExitStack() as stack:
        plane = stack.enter_context(_control_plane(binaries, folder, flags))
        manager = binaries / "kube-controller-manager"
        if stock:
            patient = ["--leader-elect-lease-duration=60s", "--leader-elect-renew-deadline=45s"]  # a busy machine
            own = _start_manager(stack, plane, manager, folder, [*patient, *_gates(gates or {})])
            plane.servers.append(stack.enter_context(_server(folder, binaries / "kube-scheduler", own)))
            for server in plane.servers[2:]:
                _wait_for_leader(plane, server.program.name)
        elif manager.exists():
            flags = [f"--kubeconfig={plane.kubeconfig}", "--secure-port=0", "--leader-elect=false"]
            some = [*flags, f"--controllers={_CONTROLLERS}", *collector]
            plane.servers.append(stack.enter_context(_server(folder, manager, some)))
        yield plane.kubeconfig
        _none_ended(plane.servers)


def _start_manager(
    stack: ExitStack, plane: _ControlPlane, manager: Path, folder: Path, more: Sequence[str]
) -> list[str]:
    """The kube-controller-manager of a stock control plane; the flags that kube-scheduler shares with it."""
    flags = [f"--kubeconfig={plane.kubeconfig}", "--secure-port=0", *more]
    own = [f"--service-account-private-key-file={plane.key}", "--use-service-account-credentials"]
    own += ["--kube-api-qps=100", "--kube-api-burst=200"]  # 20 a second would be 10 claims a second
    plane.servers.append(stack.enter_context(_server(folder, manager, [*flags, *own])))
    return flags


def _wait_for_leader(plane: _ControlPlane, name: str) -> None:
    leases = f"{plane.url}/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
    _wait_for(f"{leases}/{name}", plane.servers)


@dataclass
class StockScheduler:
    """A kube-scheduler that can be started again; it takes no Lease, so that its successor need not wait for it."""

    kubeconfig: Path
    _folder: Path
    _program: Path
    _flags: Sequence[str]
    _stack: ExitStack

    def start(self) -> None:
        """It works once it is in sync, within a second or two."""
        self._stack.enter_context(_server(self._folder, self._program, self._flags))

    def end(self) -> None:
        """As Kubernetes ends it: what it has assumed is lost, what it is writing may be."""
        self._stack.close()


@contextmanager
def stock_with_scheduler(binaries: Path, folder: Path) -> Iterator[StockScheduler]:
    """A stock control plane with the scheduler that it yields, which is running."""
    flags = ["--disable-admission-plugins=ServiceAccount", "--authorization-mode=Node,RBAC"]
    flags += _features(dict.fromkeys(VERSIONS, True), {"DRAResourcePoolStatus": True})
    with ExitStack() as stack:
        plane = stack.enter_context(_control_plane(binaries, folder, flags))
        own = _start_manager(stack, plane, binaries / "kube-controller-manager", folder, [])
        _wait_for_leader(plane, "kube-controller-manager")
        with ExitStack() as running:
            flags = [*own, "--leader-elect=false", "--v=3"]  # says when its own limit of requests holds one back
            scheduler = StockScheduler(plane.kubeconfig, folder, binaries / "kube-scheduler", flags, running)
            scheduler.start()
            yield scheduler
            scheduler.end()
        _none_ended(plane.servers)


@contextmanager
def configured_api_server(
    binaries: Path, folder: Path, versions: Mapping[str, bool], gates: Mapping[str, bool]
) -> Iterator[Path]:
    """The same with these versions of resource.k8s.io and these gates, and without controllers.

    Nodes are not authorized: that would need slices in v1, and the server would wait for them.
    """
    flags = ["--disable-admission-plugins=ServiceAccount", "--authorization-mode=RBAC", *_features(versions, gates)]
    with _control_plane(binaries, folder, flags) as plane:
        yield plane.kubeconfig
        _none_ended(plane.servers)


@contextmanager
def scheduling_api_server(binaries: Path, folder: Path, controllers: str = "") -> Iterator[Path]:
    """An API server with kube-scheduler, as fast as it can, and these controllers: nodes are never tainted."""
    without = "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition"
    with _control_plane(binaries, folder, [without, "--authorization-mode=RBAC"]) as plane:
        client = {"kubeconfig": str(plane.kubeconfig), "qps": 5000, "burst": 5000}
        settings = {"leaderElection": {"leaderElect": False}, "clientConnection": client}
        config = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration", **settings}
        (folder / "scheduler.yaml").write_text(yaml.safe_dump(config))
        flags = [f"--config={folder / 'scheduler.yaml'}", "--secure-port=0"]
        with ExitStack() as stack:
            plane.servers.append(stack.enter_context(_server(folder, binaries / "kube-scheduler", flags)))
            if controllers:
                flags = [f"--kubeconfig={plane.kubeconfig}", "--secure-port=0", "--leader-elect=false"]
                some = [*flags, f"--controllers={controllers}"]
                plane.servers.append(stack.enter_context(_server(folder, binaries / "kube-controller-manager", some)))
            yield plane.kubeconfig
            _none_ended(plane.servers)


@dataclass(frozen=True)
class _ControlPlane:
    """``key`` signs the tokens of service accounts."""

    url: str
    kubeconfig: Path
    key: Path
    servers: list[_Server]


@contextmanager
def _control_plane(binaries: Path, folder: Path, flags: Sequence[str]) -> Iterator[_ControlPlane]:
    """etcd and an API server with these flags; who uses it adds the other servers."""
    etcd, peer, secure = free_ports(3)
    key = _private_key(folder / "sa.key")
    (folder / "tokens").write_text(f"{_TOKEN},admin,admin,system:masters\n")
    url = f"https://127.0.0.1:{secure}"
    with ExitStack() as stack:
        servers = [stack.enter_context(_server(folder, binaries / "etcd", _etcd_arguments(folder, etcd, peer)))]
        arguments = _apiserver_arguments(folder, key, f"http://127.0.0.1:{etcd}", secure)
        servers.append(stack.enter_context(_server(folder, binaries / "kube-apiserver", [*arguments, *flags])))
        _wait_for(f"{url}/readyz", servers)
        yield _ControlPlane(url, _kubeconfig(folder / "kubeconfig", url), key, servers)


def _etcd_arguments(folder: Path, client_port: int, peer_port: int) -> list[str]:
    client, peer = f"http://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
    return [
        *("-data-dir", str(folder / "etcd"), "-listen-client-urls", client, "-advertise-client-urls", client),
        *("-listen-peer-urls", peer, "-initial-advertise-peer-urls", peer, "-initial-cluster", f"default={peer}"),
    ]


def _apiserver_arguments(folder: Path, key: Path, etcd: str, port: int) -> list[str]:
    return [
        f"--etcd-servers={etcd}",
        *("--bind-address=127.0.0.1", f"--secure-port={port}", f"--cert-dir={folder / 'certs'}"),
        f"--token-auth-file={folder / 'tokens'}",
        *("--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={key}"),
        *(f"--service-account-signing-key-file={key}", "--service-cluster-ip-range=10.0.0.0/24"),
        *("--advertise-address=127.0.0.1", "--kubelet-preferred-address-types=InternalIP"),
    ]


def _features(versions: Mapping[str, bool], gates: Mapping[str, bool]) -> list[str]:
    served = [f"resource.k8s.io/{version}={str(value).lower()}" for version, value in versions.items()]
    served += [f"{version}=true" for gate, version in GATED_VERSIONS.items() if gates.get(gate)]
    return [f"--runtime-config={','.join(served)}", *_gates(gates)]


def _gates(gates: Mapping[str, bool]) -> list[str]:
    on = [f"{gate}={str(value).lower()}" for gate, value in gates.items()]
    return [f"--feature-gates={','.join(on)}"] if on else []


@dataclass(frozen=True)
class _Server:
    program: Path
    log: Path
    process: subprocess.Popen[Any]


@contextmanager
def _server(folder: Path, program: Path, arguments: Sequence[str]) -> Iterator[_Server]:
    log = folder / f"{program.name}.log"
    with log.open("ab") as output:  # one that is started again says what happened before
        process = subprocess.Popen([str(program), *arguments], stdout=output, stderr=output)
    try:
        yield _Server(program, log, process)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _none_ended(servers: Sequence[_Server]) -> None:
    for server in servers:
        if (code := server.process.poll()) is not None:
            raise ProcessEnded(f"{server.program} ended by itself with {code}: {_end_of(server.log)}")


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]


def _wait_for(url: str, servers: Sequence[_Server], seconds: float = 180.0) -> None:
    context = ssl._create_unverified_context()  # the server signs its own certificate at start
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {_TOKEN}"})
    deadline = time.monotonic() + seconds
    while True:
        _none_ended(servers)
        try:
            with urllib.request.urlopen(request, context=context, timeout=2):
                return
        except OSError as error:
            if time.monotonic() > deadline:
                ends = "\n".join(f"{server.log.name}: {_end_of(server.log)}" for server in servers)
                raise TimeoutError(f"{url} does not answer after {seconds:.0f} s: {error}\n{ends}") from error
            time.sleep(0.2)


def _private_key(path: Path) -> Path:
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    path.write_bytes(private.private_bytes(*pem))
    return path


def free_ports(count: int) -> list[int]:
    """Different ones of the loopback that nobody listens on now."""
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


NEEDED = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")


def missing() -> str:
    """What is missing for a stock control plane, with the remedy; empty if nothing is."""
    folder = envtest.assets()
    lacks = [name for name in NEEDED if folder is None or not (folder / name).exists()]
    return f"set KUBEBUILDER_ASSETS to a folder with {', '.join(lacks)}" if lacks else ""


needs_stock_control_plane = pytest.mark.skipif(bool(missing()), reason=missing())
