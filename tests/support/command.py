"""Our console scripts as processes: read what they print while they run, end them, and look at what they leave.

They start in little time: a server imports the programs once, and forks for each. A start of the operator takes 1.4 s
of a processor until it has imported what it needs, and the tests start hundreds. What a process does from there on is
its own: it has its own pid, signals, environment, folder and streams. The server is that of ``multiprocessing``; there
is one for each process of the tests, from the first use on.

The real kubectl, called beside servers in the test's own event loop or in another thread.

What must never be seen in a log, an event, a condition, a metric or a message: what users keep secret.

Every log line of the suite is looked at (``tests/conftest.py``), and what commands print (here). Secrets are
the tokens that development clusters give out, whatever has the form of a service account's token, and ``MARK``, which
tests put where users put theirs.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

import aiohttp
import pytest
from dra_devcluster.apiserver.identity import Tokens
from prometheus_client.parser import text_string_to_metric_families
from waiting import until

PROGRAMS = {
    "dra-operator": "dra_operator.cli:main",
    "dra-devcluster": "dra_devcluster.cli:main",
    "dra-kubelet-plugin": "dra_kubeletplugin.cli:main",
    "kubectl-dra": "dra_operator.kubectl.cli:main",
}
"""Console scripts, and the function that each calls."""
PRELOADED = [
    *("command", "dra_devcluster.cluster", "dra_kubeletplugin.cli"),
    *("dra_operator.app.run", "dra_operator.kubectl.live"),
]

_context = get_context("forkserver")
_context.set_forkserver_preload(PRELOADED)


class ForkedProcess:
    """As far as the tests need it, what ``asyncio.subprocess.Process`` is."""

    def __init__(self, process: Any, stdout: asyncio.StreamReader | None) -> None:
        self._process, self.stdout = process, stdout
        self.pid: int = process.pid
        self._waiting: set[asyncio.Event] = set()

    @property
    def returncode(self) -> int | None:
        """The exit code; minus the signal that ended it; None while it runs."""
        code: int | None = self._process.exitcode
        return code

    def send_signal(self, number: int) -> None:
        """Does nothing when the process has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Does nothing when the process has ended."""
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        """Wait for the end, as several tasks may at once; returns the exit code."""
        loop = asyncio.get_running_loop()
        while (code := self.returncode) is None:
            ended = asyncio.Event()
            self._waiting.add(ended)
            loop.add_reader(self._process.sentinel, self._wake)  # a file has one reader: it is for all that wait
            try:
                await ended.wait()
            finally:
                self._waiting.discard(ended)
                if not self._waiting:
                    loop.remove_reader(self._process.sentinel)
        return code

    def _wake(self) -> None:
        for ended in self._waiting:
            ended.set()


async def start_forked(
    words: Sequence[str], environment: Mapping[str, str], *, cwd: Path | None = None, log: Path | None = None
) -> ForkedProcess:
    """Start one of ``PROGRAMS``, with ``words[0]`` its name. Both streams go to ``log``, or else to ``stdout``."""
    reader, writer = _context.Pipe(duplex=False)
    if log is not None:
        await asyncio.to_thread(log.touch)  # it can be read at once
    try:
        arguments = (list(words), dict(environment), cwd, log, writer)
        process = _context.Process(target=_become, args=arguments, daemon=False)
        await asyncio.to_thread(process.start)  # the first one waits for the imports
    finally:
        writer.close()
    if log is not None:
        reader.close()
        return ForkedProcess(process, None)
    stream = asyncio.StreamReader()
    pipe = os.fdopen(os.dup(reader.fileno()), "rb")
    reader.close()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), pipe)
    return ForkedProcess(process, stream)


def _become(words: list[str], environment: dict[str, str], cwd: Path | None, log: Path | None, out: Connection) -> None:
    """Be the program, in the child."""
    _keep_what_the_server_imported()
    target = out.fileno() if log is None else os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(target, stream)
    # Those of the server are for another file, of another kind.
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    if cwd is not None:
        os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = list(words)
    module, _, name = PROGRAMS[words[0]].partition(":")
    try:
        sys.exit(getattr(import_module(module), name)())
    finally:
        atexit._run_exitfuncs()


def _keep_what_the_server_imported() -> None:
    """No collection looks at it: that takes a quarter of a start, and copies the pages shared with the server.

    An operator that starts looks at everything that is frozen. Here it begins to do so with its second start.
    """
    gc.freeze()
    unfreeze = gc.unfreeze
    pytest.MonkeyPatch().setattr(gc, "unfreeze", lambda: pytest.MonkeyPatch().setattr(gc, "unfreeze", unfreeze))


# --- Programs, forked or started as a shell starts them ---

Process = asyncio.subprocess.Process | ForkedProcess


class Command:
    """A running program; ``output`` is what it has printed so far, on both streams."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.output = ""

    async def says(self, pattern: str, seconds: float = 120.0) -> re.Match[str]:
        """Wait for a line that matches. Raises AssertionError, with the output, when it does not come."""
        async with self._at_most(seconds):
            while line := await self._line():
                if match := re.search(pattern, line):
                    return match
        raise AssertionError(f"{pattern!r} was never said:\n{self.output}")

    async def end(self, number: int | None = None, seconds: float = 120.0) -> int:
        """Send a signal if one is given, wait for the end, and return the exit code. Raises AssertionError as well."""
        if number is not None:
            self.process.send_signal(number)
        async with self._at_most(seconds):
            while await self._line():
                pass
            return await self.process.wait()

    async def _line(self) -> str:
        assert self.process.stdout is not None
        line = (await self.process.stdout.readline()).decode()
        assert (shown := secret_in(line)) is None, shown
        self.output += line
        return line

    @asynccontextmanager
    async def _at_most(self, seconds: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError as error:
            raise AssertionError(f"still running after {seconds:.0f} s; it said:\n{self.output}") from error


@asynccontextmanager
async def running(
    words: Sequence[str | Path], *, cwd: Path | None = None, **environment: str | Path
) -> AsyncIterator[Command]:
    """A console script of ours, or any program by its path, until the end of the block."""
    texts, given = list(map(str, words)), os.environ | {name: str(value) for name, value in environment.items()}
    if texts[0] in PROGRAMS:
        process: Process = await start_forked(texts, given, cwd=cwd)
    else:
        process = await _started(texts, given, cwd)
    async with _ended(process) as command:
        yield command


async def run(words: Sequence[str | Path], *, seconds: float = 120.0, **environment: str | Path) -> tuple[int, str]:
    """Exit code and output of a program that ends by itself, started as a shell starts it."""
    given = os.environ | {name: str(value) for name, value in environment.items()}
    async with _ended(await _started(list(map(str, words)), given)) as command:
        code = await command.end(seconds=seconds)
        return code, command.output


async def _started(words: list[str], environment: dict[str, str], cwd: Path | None = None) -> Process:
    own = Path(sys.executable).parent / words[0]
    pipe, merged = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
    program = str(own) if own.exists() else words[0]
    return await asyncio.create_subprocess_exec(
        program, *words[1:], stdout=pipe, stderr=merged, cwd=cwd, env=environment
    )


@asynccontextmanager
async def _ended(process: Process) -> AsyncIterator[Command]:
    """At the end of the block the process is ended."""
    try:
        yield Command(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def left_in(folder: Path) -> list[str]:
    """Names of the files and folders that are there."""
    return sorted(path.name for path in folder.iterdir())


def children(pid: int) -> set[int]:
    """All descendants of a process."""
    found: set[int] = set()
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, file.read_text().split()):
            found |= {child, *children(child)}
    return found


def alive(pids: set[int]) -> set[int]:
    """Those that still run; zombies do not."""
    return {pid for pid in pids if _state(pid) not in ("", "Z")}


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


# --- The operator, which can be killed, paused and ended as processes are ---


class OperatorProcess:
    """``dra-operator run``, often with ``--check-invariants``; its log is a file. ``client`` names it at the proxy."""

    def __init__(self, process: asyncio.subprocess.Process | ForkedProcess, log: Path, client: str) -> None:
        self._process = process
        self.log = log
        self.client = client

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def text(self) -> str:
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


ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Kubectl:
    """Call it with kubectl's arguments: what it printed comes back, on both streams.

    The exit code is checked, unless ``code`` is None.
    """

    program: str
    kubeconfig: Path
    home: Path

    async def __call__(self, *arguments: str, stdin: str = "", code: int | None = 0) -> str:
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home), "KUBECONFIG": str(self.kubeconfig)}
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            self.program, *arguments, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.STDOUT, env=environment,
            cwd=ROOT,
        )  # fmt: skip
        try:
            output, _ = await asyncio.wait_for(process.communicate(stdin.encode()), 150)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert code in (None, process.returncode), (
            f"kubectl {' '.join(arguments)}: {process.returncode}\n{output.decode()}"
        )
        return output.decode()

    async def read(self, *arguments: str) -> Any:
        """An object, or a list of them, as plain data."""
        return json.loads(await self("get", *arguments, "-o", "json"))


def kubectl_for(kubeconfig: Path, home: Path) -> Kubectl:
    """A kubectl that keeps its caches in ``home``; skips the test, loudly, where there is none."""
    program = shutil.which("kubectl")
    if program is None:
        pytest.skip("kubectl is not installed: what needs it is NOT tested")
    return Kubectl(program, kubeconfig, home)


# --- The real kubectl, called in its own namespace beside a server that runs in another thread ---

TIMEOUT = 60.0
Post = Callable[[str, dict[str, Any]], None]
"""Creates an object at a path, without the cost of a kubectl."""


@dataclass(frozen=True)
class BlockingKubectl:
    """Call it with kubectl's arguments: it returns what kubectl printed (both streams) and checks the exit code."""

    path: str
    environment: dict[str, str]
    namespace: str

    def __call__(self, *arguments: str, stdin: str = "", code: int = 0) -> str:
        done = subprocess.run(
            self.command(*arguments),
            input=textwrap.dedent(stdin),
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        assert done.returncode == code, f"kubectl {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}"
        return done.stdout

    def read(self, *arguments: str) -> Any:
        """An object, or a list of them, as plain data."""
        return json.loads(self("get", *arguments, "-o", "json"))

    def rows(self, *arguments: str) -> list[list[str]]:
        """What `get` prints, as words, without the heading."""
        return [line.split() for line in self("get", *arguments, "--no-headers", "--ignore-not-found").splitlines()]

    def command(self, *arguments: str) -> list[str]:
        return [self.path, "--namespace", self.namespace, *arguments]

    @contextmanager
    def start(self, *arguments: str) -> Iterator[IO[str]]:
        """A command that runs until the end of the block; what it prints can be read."""
        command = self.command(*arguments)
        process = subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.terminate()
            process.communicate(timeout=TIMEOUT)


MARK = "hunter2-9f1c3b7e"
_FORM = re.compile(r"\beyJ[\w-]{10,}\.[\w-]{10,}")
_given: set[str] = {MARK}


def secret_in(text: str) -> str | None:
    """The beginning of a secret that the text shows; None if there is none."""
    form = _FORM.search(text)
    found = form[0] if form else next((secret for secret in _given if secret in text), None)
    return None if found is None else f"{found[:6]}... in: {text[:300]}"


class Watch(logging.Handler):
    """Keeps the lines that show a secret."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if (shown := secret_in(self.format(record))) is not None:
            self.found.append(shown)


def note_tokens() -> None:
    """Remember, from now on, each token that a development cluster of this process gives out."""
    made, issued = Tokens.credential, Tokens.issue
    begun = Tokens.__init__

    def begin(self: Tokens, *arguments: Any, **named: Any) -> None:
        begun(self, *arguments, **named)
        _given.add(self.admin)

    def noted(give: Callable[..., Any]) -> Callable[..., Any]:
        def given(*arguments: Any, **named: Any) -> Any:
            answer = give(*arguments, **named)
            _given.add(answer if isinstance(answer, str) else answer[0])
            return answer

        return given

    Tokens.__init__ = begin  # type: ignore[method-assign]
    Tokens.credential = noted(made)  # type: ignore[method-assign]
    Tokens.issue = noted(issued)  # type: ignore[method-assign]
