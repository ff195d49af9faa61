"""The real kubectl, called beside servers that run in the test's own event loop."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
