"""The operator as a process of its own, which can be killed, paused and ended as processes are.

``second_operator`` is one more for a session of end-to-end tests: it has what is off by default, and little patience.
It places pods of its own scheduler name. It evicts beside the first operator, or beside kube-controller-manager, and
they do the same; DeviceTaintRules and ResourcePoolStatusRequests are served by it alone.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import aiohttp
from command import ForkedProcess, start_forked
from prometheus_client.parser import text_string_to_metric_families
from waiting import until
from world import LoopThread


class OperatorProcess:
    """``dra-operator run``, often with ``--check-invariants``; its log is a file. ``client`` names it at the proxy."""

    def __init__(self, process: asyncio.subprocess.Process | ForkedProcess, log: Path, client: str) -> None:
        self._process = process
        self.log = log
        self.client = client

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def text(self) -> str:
        """What it has logged."""
        return self.log.read_text()

    def complaints(self) -> list[str]:
        """Violated invariants, and our bugs that ended in a traceback; each once."""
        records = re.split(r"^\d{4}-\d\d-\d\d [\d:,]+ ", self.text, flags=re.MULTILINE)
        return list(dict.fromkeys(record.strip() for record in records if _is_bad(record)))

    def unexplained(self) -> list[str]:
        """Tracebacks and warnings of Python, also of Kopf and asyncio: no line of them says what to do."""
        return [line for line in self.text.splitlines() if re.match(r"Traceback |.*Warning: |.*ERROR +asyncio", line)]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal if it still runs: SIGSTOP and SIGCONT pause it."""
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def kill(self) -> None:
        """End it at once (kill -9)."""
        self.signal(signal.SIGKILL)
        await self._process.wait()

    async def ended(self) -> int:
        """Wait until it ends by itself; its exit code."""
        return await self._process.wait()

    async def stop(self) -> int:
        """End it as Kubernetes does; its exit code."""
        self.signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            return await self._process.wait()

    async def probe(self, path: str) -> int:
        """The code that a probe (``/readyz``) gets; 0 when nothing answers."""
        return (await self._get(path))[0]

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of all samples of this name that have these labels."""
        _, text = await self._get("/metrics")
        families = text_string_to_metric_families(text)
        samples = (sample for family in families for sample in family.samples if sample.name == name)
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    async def _get(self, path: str) -> tuple[int, str]:
        found = re.search(r"http://127\.0\.0\.1:\d+", self.text)
        if found is None:
            return 0, ""
        try:
            async with aiohttp.ClientSession() as session, session.get(found[0] + path) as answer:
                return answer.status, await answer.text()
        except aiohttp.ClientError:
            return 0, ""

    async def becomes_ready(self, seconds: float = 150) -> None:
        """Wait for the readiness probe."""

        async def is_ready() -> bool:
            assert self._process.returncode is None, f"the operator ended: {self.text}"
            return await self.probe("/readyz") == 200

        await until("the operator is ready", is_ready, seconds)


def _is_bad(record: str) -> bool:
    """Kopf's and asyncio's own tracebacks are not ours."""
    return "invariant violated" in record or ("Traceback" in record and "/dra_operator/" in record)


@asynccontextmanager
async def operator_process(
    kubeconfig: Path, log: Path, client: str, *options: str, checks: bool = True
) -> AsyncIterator[OperatorProcess]:
    """It runs meanwhile, unless it is ended before; without ``checks`` exactly as its Deployment runs it."""
    arguments = ["run", "--kubeconfig", str(kubeconfig)]
    arguments += ["--check-invariants", "--metrics-port", "0"] if checks else []
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    process: asyncio.subprocess.Process | ForkedProcess
    if checks:
        process = await start_forked(["dra-operator", *arguments, *options], environment, log=log)
    else:
        command = [sys.executable, "-m", "dra_operator.cli", *arguments, *options]
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(*command, stdout=output, stderr=output, env=environment)
    running = OperatorProcess(process, log, client)
    try:
        yield running
    finally:
        running.signal(signal.SIGCONT)
        await running.kill()


NAME = "e2e-second"
"""Its scheduler name."""
FILTER_TIMEOUT = 0.1
OPTIONS = (
    *("--scheduler-name", NAME, "--controllers", "placement,release,eviction"),
    *("--feature-gates", "DRAResourcePoolStatus=true,DRADeviceTaintRules=true"),
    *("--binding-timeout", "2", "--filter-timeout", str(FILTER_TIMEOUT)),
)


@contextmanager
def second_operator(kubeconfig: Path, folder: Path) -> Iterator[OperatorProcess]:
    """It is ready, and runs in a process of its own."""
    thread, stack = LoopThread(), AsyncExitStack()
    try:
        running = operator_process(kubeconfig, folder / "log", "second", *OPTIONS)
        operator = thread.run(stack.enter_async_context(running))
        thread.run(operator.becomes_ready())
        yield operator
    finally:
        thread.run(stack.aclose())
        thread.close()
