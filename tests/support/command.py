"""Our console scripts as processes: read what they print while they run, end them, and look at what they leave."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import forked
from secrecy import secret_in

Process = asyncio.subprocess.Process | forked.ForkedProcess


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
    if texts[0] in forked.PROGRAMS:
        process: Process = await forked.start(texts, given, cwd=cwd)
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
