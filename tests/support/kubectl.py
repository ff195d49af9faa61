"""The real kubectl, called beside servers in the test's own event loop or in another thread."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

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
