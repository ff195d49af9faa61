"""Who is measured: schedulers that work already, or that are started for each of their rounds; and what they spend."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from dra_kube import Api, KubeError
from envtest import real_api_server

_FAST = (
    "--kube-api-qps=5000",
    "--kube-api-burst=5000",
)  # the defaults, 20 and 50 requests a second, are the limit else
_SERIES = re.compile(r"^apiserver_request_total\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_WRITES = ("POST", "PUT", "PATCH", "APPLY", "DELETE")
_REVIEWS = {("tokenreviews", ""), ("subjectaccessreviews", ""), ("serviceaccounts", "token")}
_APART = {("pods", ""), ("leases", ""), *_REVIEWS}
"""Resources and sub-resources whose writes are the benchmark's own, or have nothing to do with pods."""
_SITE = Path(__file__).resolve().parent.parent / "build" / "site"
"""Where ``make compiled`` installs its wheel."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two that are compared. ``commands`` run in its rounds; ``pids`` are processes that run already."""

    name: str
    scheduler: str
    commands: tuple[tuple[str, ...], ...] = ()
    pids: tuple[int, ...] = ()

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[list[Process]]:
        """Its processes, for one round."""
        async with AsyncExitStack() as stack:
            started = [await stack.enter_async_context(_running(command)) for command in self.commands]
            yield [Process(pid) for pid in (*self.pids, *started)]


@asynccontextmanager
async def _running(command: Sequence[str]) -> AsyncIterator[int]:
    null = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, stdout=null, stderr=null)
    try:
        yield process.pid
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def side_of(text: str, kubeconfig: Path, binaries: Path | None) -> Side:
    """A side as the command line names it. Raises ValueError."""
    program = str(Path(sys.executable).with_name("dra-operator"))
    ours = ("--controllers", "templates,release,placement", "--no-leader-elect")
    if text in ("operator", "compiled"):
        command = (program, "run", "--kubeconfig", str(kubeconfig), *ours)
        return Side(text, "dra-scheduler", (command if text == "operator" else (*_compiled(), *command),))
    if text == "kopf":
        kopf = str(Path(sys.executable).with_name("kopf"))
        main = Path(__file__).with_name("throughput_kopf.py")
        return Side(text, "dra-scheduler", (("env", f"KUBECONFIG={kubeconfig}", kopf, "run", "-A", "-q", str(main)),))
    if text.startswith("tree="):
        folder = Path(text.removeprefix("tree="))
        found = ":".join(str(path.parent.parent) for path in folder.glob("*/dra_*/__init__.py"))
        command = (program, "run", "--kubeconfig", str(kubeconfig), *ours)
        return Side(folder.name, "dra-scheduler", (("env", f"PYTHONPATH={found}", *command),))
    if text == "reference":
        if binaries is None:
            raise ValueError("reference needs --binaries, a folder with kube-scheduler and kube-controller-manager")
        flags = (f"--kubeconfig={kubeconfig}", "--secure-port=0", "--leader-elect=false", *_FAST)
        manager = (str(binaries / "kube-controller-manager"), *flags, "--controllers=resourceclaim-controller")
        return Side(text, "default-scheduler", ((str(binaries / "kube-scheduler"), *flags), manager))
    name, _, pids = text.partition("=")
    try:
        return Side(name, name, pids=tuple(map(int, filter(None, pids.split(",")))))
    except ValueError:
        raise ValueError(f"{text}: write NAME, or NAME=PID,PID to see what these processes spend") from None


def _compiled() -> tuple[str, ...]:
    """What to put before a command that is to use the wheel of ``make compiled``. Raises ValueError without it."""
    if not any((_SITE / "dra_operator" / "allocator").glob("allocator.*.so")):
        raise ValueError(f"compiled: there is no compiled allocator in {_SITE}: run make compiled")
    return "env", f"PYTHONPATH={_SITE}"


class Process:
    """A process whose processor time and memory are looked at."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")

    def seconds(self) -> float:
        """Processor time so far."""
        fields = (self._folder / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def megabytes(self) -> float:
        """Memory in use now."""
        return int((self._folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def all_seconds() -> float:
    """Processor time so far of this process and all that it started: API server and etcd, where they are its own.

    What is not the side's bounds its rate, however fast it gets.
    """
    own, pids = 0.0, [os.getpid()]
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            own += Process(pid).seconds()
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                pids += map(int, children.read_text().split())
    return own


@contextmanager
def control_plane(binaries: Path) -> Iterator[Path]:
    """A real API server with the controllers of a cluster but that for claims, and no scheduler; its kubeconfig."""
    with TemporaryDirectory() as folder, real_api_server(binaries, Path(folder), collector=_FAST) as kubeconfig:
        yield kubeconfig


@contextmanager
def development_cluster() -> Iterator[Path]:
    """An API server in a process of its own; its kubeconfig."""
    with TemporaryDirectory() as folder:
        kubeconfig = Path(folder) / "kubeconfig"
        program = str(Path(sys.executable).with_name("dra-devcluster"))
        command = [program, "up", "--nodes", "0", "--kubeconfig", str(kubeconfig)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            try:
                while not kubeconfig.exists():
                    if process.poll() is not None:
                        raise RuntimeError(f"{program} up ended with {process.returncode}")
                    time.sleep(0.1)
                yield kubeconfig
            finally:
                process.terminate()


async def writes(api: Api) -> Counter[str]:
    """All writes that the server has answered so far, by verb, resource and code; empty where it does not tell."""
    try:
        page = await api.raw_text("/metrics")
    except KubeError:
        return Counter()
    found: Counter[str] = Counter()
    for labels, value in _SERIES.findall(page):
        label = dict(_LABEL.findall(labels))
        resource, subresource = label["resource"], label["subresource"]
        if label["verb"] in _WRITES and (resource, subresource) not in _APART:
            what = f"{resource}/{subresource}" if subresource else resource
            found[f"{label['verb']} {what} {label['code']}"] += int(float(value))
    return found
