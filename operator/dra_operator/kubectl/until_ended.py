"""Runs a server of a command until Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import AbstractAsyncContextManager, suppress

from dra_api.console import printable

from .answer import ExitCode, Problem


def serve_until_ended(running: AbstractAsyncContextManager[str], hint: str) -> int:
    """The exit code. ``running`` serves inside the block, and gives the address; ``hint`` is printed below that."""
    try:
        with suppress(KeyboardInterrupt):
            asyncio.run(_serve(running, hint))
    except Problem as problem:
        print(printable(f"kubectl dra: {problem}"), file=sys.stderr)
        return int(problem.code)
    return int(ExitCode.CLEAR)


async def _serve(running: AbstractAsyncContextManager[str], hint: str) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with running as address:
        print(f"{address}\n{hint}", flush=True)
        await ended.wait()
